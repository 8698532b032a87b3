//! Python bindings for the coordinator: operations on named tensors.
#![allow(unsafe_code, reason = "Python passes addresses of buffers, with their owner, and gets memory to read")]
use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Instant;

use paceline_cuda::CallerStream;
use paceline_engine::settings::seconds;
use paceline_runtime::negotiation::{Coordinator, Named, Output, Wanted};
use paceline_runtime::session::Session;
use paceline_schedule::Refusal;
use paceline_transport::header::Collective;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::job::{SLICE, parse, python_error, stage_of};
use crate::user_error;

/// Agrees with the other ranks of a group on which tensors are ready.
#[pyclass(frozen, module = "paceline._core", name = "Coordinator")]
pub struct PyCoordinator {
    engine: Arc<Session>,
    inner: Arc<Coordinator>,
}

impl PyCoordinator {
    pub fn new(engine: &Arc<Session>, inner: Coordinator) -> PyCoordinator {
        PyCoordinator { engine: engine.clone(), inner: Arc::new(inner) }
    }

    fn own(&self, operations: &[PyRef<'_, NamedOperation>]) -> PyResult<Vec<Arc<Named>>> {
        if operations.iter().any(|operation| !Arc::ptr_eq(&operation.coordinator, &self.inner)) {
            return Err(user_error(
                Refusal::new("an operation was requested from another coordinator").remedy("the one that began it"),
            ));
        }
        Ok(operations.iter().map(|operation| operation.named.clone()).collect())
    }

    fn operation(&self, named: Arc<Named>) -> NamedOperation {
        NamedOperation { coordinator: self.inner.clone(), engine: self.engine.clone(), named }
    }
}

#[pymethods]
impl PyCoordinator {
    #[getter]
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    #[getter]
    fn size(&self) -> u32 {
        self.inner.size()
    }

    #[getter]
    fn ranks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.inner.ranks())
    }

    #[pyo3(signature = (call, name, *, inputs=Vec::new(), dtype="uint8", shape=Vec::new(), device="cpu", op="", own=Vec::new(), root=None, prescale=1.0, postscale=1.0, keep=None, stream=None))]
    #[expect(clippy::too_many_arguments, clippy::needless_pass_by_value, reason = "keyword arguments of Python")]
    fn request(
        &self,
        call: &str,
        name: &str,
        inputs: Vec<(usize, u64)>,
        dtype: &str,
        shape: Vec<u64>,
        device: &str,
        op: &str,
        own: Vec<u64>,
        root: Option<u32>,
        prescale: f64,
        postscale: f64,
        keep: Option<Py<PyAny>>,
        stream: Option<u64>,
    ) -> PyResult<NamedOperation> {
        drop(self.engine.engine().take_finished());
        let wanted = Wanted {
            collective: parse("call", call)?,
            name,
            inputs: &inputs,
            dtype,
            shape: &shape,
            device,
            op: if op.is_empty() { None } else { Some(parse("op", op)?) },
            own: &own,
            root,
            prescale,
            postscale,
        };
        let keep = keep.map(|keep| Box::new(keep) as Box<dyn Any + Send>);
        let mut named = Named::new(&wanted, self.inner.size(), keep).map_err(python_error)?;
        if let Some(stream) = stream {
            if !matches!(wanted.collective, Collective::AllReduce | Collective::Broadcast) {
                return Err(user_error(
                    Refusal::new(format!("{call} of '{name}': takes memory of the host")).remedy("tensor.cpu()"),
                ));
            }
            let stage = stage_of(&self.engine, inputs.iter(), call).map_err(python_error)?;
            // SAFETY: the Python side passes a stream of the device on which the memory lies.
            let behind = unsafe { named.behind(self.engine.stages(), &stage, CallerStream(stream)) };
            named = behind.map_err(python_error)?;
        }
        Ok(self.operation(Arc::new(named)))
    }

    #[pyo3(signature = (operations, *, waits=false))]
    #[expect(clippy::needless_pass_by_value, reason = "the Python list is converted")]
    fn submit(&self, py: Python<'_>, operations: Vec<PyRef<'_, NamedOperation>>, waits: bool) -> PyResult<()> {
        let named = self.own(&operations)?;
        // SAFETY: the Python side passes addresses of buffers that `keep` owns, and `keep` lives until the operation
        // completes.
        py.detach(|| unsafe { self.inner.submit(&named, waits) }).map_err(python_error)
    }

    #[pyo3(signature = (of, operations, *, late=false))]
    #[expect(clippy::needless_pass_by_value, reason = "the Python list is converted")]
    fn submit_step(
        &self,
        py: Python<'_>,
        of: &str,
        operations: Vec<PyRef<'_, NamedOperation>>,
        late: bool,
    ) -> PyResult<()> {
        let named = self.own(&operations)?;
        // SAFETY: as in `submit`.
        py.detach(|| unsafe { self.inner.submit_step(of, &named, late) }).map_err(python_error)
    }

    fn flush(&self, py: Python<'_>, of: &str) -> PyResult<()> {
        py.detach(|| self.inner.flush(of)).map_err(python_error)
    }

    /// Checks for Ctrl-C every 100 ms.
    fn ended(&self, py: Python<'_>, of: &str) -> PyResult<()> {
        while !py.detach(|| self.inner.ended(of, Instant::now() + SLICE)).map_err(python_error)? {
            py.check_signals()?;
        }
        Ok(())
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.inner.counts()
    }

    fn place(&self, servers: BTreeMap<String, u32>) {
        self.inner.place(servers);
    }

    fn join(&self) -> PyResult<NamedOperation> {
        self.inner.join().map(|named| self.operation(named)).map_err(python_error)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
        drop(self.engine.engine().take_finished());
    }
}

/// An operation on a named tensor.
#[pyclass(frozen, module = "paceline._core")]
pub struct NamedOperation {
    coordinator: Arc<Coordinator>,
    engine: Arc<Session>,
    named: Arc<Named>,
}

#[pymethods]
impl NamedOperation {
    #[getter]
    fn name(&self) -> &str {
        self.named.name()
    }

    /// Waits without the GIL; checks for Ctrl-C every 100 ms.
    #[pyo3(signature = (timeout_s=None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        let limit = timeout_s.map(|s| Instant::now() + seconds(s));
        loop {
            let slice = Instant::now() + SLICE;
            let until = limit.map_or(slice, |limit| limit.min(slice));
            let done = py.detach(|| self.coordinator.wait(&self.named, Some(until))).map_err(python_error)?;
            drop(self.engine.engine().take_finished());
            if done {
                return Ok(true);
            }
            py.check_signals()?;
            if limit.is_some_and(|limit| Instant::now() >= limit) {
                return Ok(false);
            }
        }
    }

    fn done(&self) -> PyResult<bool> {
        self.coordinator.of_this_process().map_err(python_error)?;
        Ok(self.named.done())
    }

    /// Once it has been waited for: what this stream is told from now on sees the result.
    fn hold(&self, stream: u64) -> PyResult<()> {
        self.named.hold(CallerStream(stream)).map_err(python_error)
    }

    fn data(&self) -> PyResult<Data> {
        let output = self.named.output();
        let wrong = || user_error(Refusal::new(format!("'{}' has no result yet", self.named.name())).remedy("wait()"));
        output.map(Data).ok_or_else(wrong)
    }

    fn own(&self) -> Vec<Vec<u64>> {
        self.named.own().to_vec()
    }

    fn source(&self) -> PyResult<u32> {
        let wrong = || {
            let reason = format!("'{}' is not a completed join", self.named.name());
            user_error(Refusal::new(reason).remedy("wait() of a join"))
        };
        self.named.last_joined().ok_or_else(wrong)
    }
}

/// Memory of a result, through the buffer protocol; writable.
#[pyclass(frozen, module = "paceline._core")]
pub struct Data(Arc<Output>);

#[pymethods]
impl Data {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// `view` comes from the interpreter.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view given"));
        }
        let output = &slf.get().0;
        let length = ffi::Py_ssize_t::try_from(output.len()).map_err(|e| PyBufferError::new_err(e.to_string()))?;
        let address = output.address() as *mut std::ffi::c_void;
        // SAFETY: the memory lives as long as this object, and the view holds a reference to it.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, length, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
