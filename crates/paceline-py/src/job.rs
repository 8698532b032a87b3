//! Python bindings for the runtime: engine, communicator, operation.
#![allow(unsafe_code, reason = "Python passes addresses of buffers, with their owner")]
use std::any::Any;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_engine::Submission;
use paceline_engine::settings::{Settings, seconds};
use paceline_executor::InStep;
use paceline_executor::handle::Handle;
use parking_lot::Mutex;

use paceline_cuda::{CallerStream, Device, Driver, Stage};
use paceline_kernels::names::UnknownName;
use paceline_runtime::communicator::{CollectiveRequest, Communicator, OnDevice};
use paceline_runtime::negotiation;
use paceline_runtime::server::Groups;
use paceline_runtime::session::Session;
use paceline_schedule::Refusal;
use paceline_transport::error::RunError;
use paceline_transport::header::Collective;
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::coordinator::PyCoordinator;
use crate::user_error;

import_exception!(paceline.errors, JobError);

/// Waits are cut into slices of this length, with a check for Ctrl-C in between.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

pub(crate) fn python_error(error: RunError) -> PyErr {
    match error {
        RunError::Usage(text) => user_error(text),
        RunError::Setting(setting, reason) => user_error(Refusal::about(setting, reason)),
        RunError::Failed(text) => JobError::new_err(text),
        RunError::Remedied(error, remedy) => {
            let error = python_error(*error);
            let made = Python::attach(|py| error.value(py).call_method1("_set_remedy", (remedy,)).map(drop));
            made.err().unwrap_or(error)
        }
    }
}

/// All-gather of every rank's blob through MPI.
#[pyfunction]
pub fn mpi_exchange(py: Python<'_>, rank: u32, size: u32, settings: &str, blob: Vec<u8>) -> PyResult<Vec<Py<PyBytes>>> {
    let settings = Settings::parse(settings).map_err(python_error)?;
    let told = py.detach(|| paceline_engine::exchange_over_mpi(rank, size, &settings, blob));
    Ok(told.map_err(python_error)?.iter().map(|blob| PyBytes::new(py, blob).unbind()).collect())
}

/// Path, name and version of the MPI library that a job would use.
#[pyfunction]
#[pyo3(signature = (named=None))]
pub fn mpi_library(py: Python<'_>, named: Option<&str>) -> PyResult<(PathBuf, String)> {
    py.detach(|| paceline_mpi::library(named)).map_err(python_error)
}

/// Path and version of the UCX that a job would use, after a check of what the transport demands of it and this machine.
#[pyfunction]
#[pyo3(signature = (named=None, package=None, transport="grpc+ucx"))]
pub fn ucx_library(
    py: Python<'_>,
    named: Option<&str>,
    package: Option<&str>,
    transport: &str,
) -> PyResult<(PathBuf, String)> {
    let demand = match transport {
        "grpc+verbs" => paceline_ucx::Demand::Verbs,
        "grpc+gdr" => paceline_ucx::Demand::GpuDirect,
        _ => paceline_ucx::Demand::Any,
    };
    let library = py.detach(|| {
        let library = paceline_ucx::library(named, package)?;
        demand.check(&library).map(|()| library)
    });
    let library = library.map_err(python_error)?;
    Ok((library.path.clone(), library.version.clone()))
}

/// As JSON: the interface of the MPI library that a job would use, and what it says of device memory. MPI is initialized.
#[pyfunction]
#[pyo3(signature = (named=None, limit_s=10.0))]
pub fn mpi_on_devices(py: Python<'_>, named: Option<&str>, limit_s: f64) -> PyResult<String> {
    let thread = py.detach(|| paceline_mpi::Thread::get(named, seconds(limit_s))).map_err(python_error)?;
    let about = &thread.about;
    Ok(serde_json::json!({ "abi": about.abi, "takes": about.devices.takes, "said": about.devices.said }).to_string())
}

/// Path, version and device names of the CUDA driver that a job would use.
#[pyfunction]
#[pyo3(signature = (named=None))]
pub fn cuda_driver(py: Python<'_>, named: Option<&str>) -> PyResult<(PathBuf, String, Vec<String>)> {
    let wrong = |error: paceline_cuda::CudaError| user_error(error.0);
    py.detach(|| {
        let driver = Driver::get(named).map_err(wrong)?;
        let names = (0..driver.devices() as u32).map(|ordinal| driver.device(ordinal).map(|it| it.name().to_owned()));
        Ok((driver.path().to_owned(), driver.version(), names.collect::<Result<_, _>>().map_err(wrong)?))
    })
}

/// Name, dtype and bytes of each gradient in a bucket of a plan.
type PlannedBucket = Vec<(String, String, u64)>;

/// This process's membership in a job.
#[pyclass(frozen, module = "paceline._core", name = "Engine")]
pub struct PyEngine(pub(crate) Arc<Session>, Mutex<Groups>);

#[pymethods]
impl PyEngine {
    #[staticmethod]
    #[pyo3(signature = (rank, size, settings, exchange=None))]
    fn start(py: Python<'_>, rank: u32, size: u32, settings: &str, exchange: Option<Py<PyAny>>) -> PyResult<PyEngine> {
        let settings = Settings::parse(settings).map_err(python_error)?;
        let mut raised = None;
        let engine = py.detach(|| match exchange {
            None => Session::start(rank, size, settings, None),
            Some(function) => {
                let mut call = |blob: Vec<u8>| {
                    Python::attach(|py| {
                        let answer = function.call1(py, (PyBytes::new(py, &blob),))?;
                        answer.extract::<Vec<Vec<u8>>>(py)
                    })
                    .map_err(|e| {
                        let text = e.to_string();
                        raised = Some(e);
                        RunError::Failed(text)
                    })
                };
                Session::start(rank, size, settings, Some(&mut call))
            }
        });
        // An exception of the exchange is raised again unchanged.
        match (engine, raised) {
            (Ok(engine), _) => Ok(PyEngine(Arc::new(engine), Mutex::default())),
            (Err(_), Some(raised)) => Err(raised),
            (Err(error), None) => Err(python_error(error)),
        }
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.0.engine().rank()
    }

    #[getter]
    fn size(&self) -> u32 {
        self.0.engine().size()
    }

    #[pyo3(signature = (shown=None))]
    fn world(&self, py: Python<'_>, shown: Option<&str>) -> PyResult<PyCommunicator> {
        py.detach(|| self.0.world(shown)).map(|c| PyCommunicator::new(&self.0, c)).map_err(python_error)
    }

    fn group(&self, py: Python<'_>, ranks: Vec<u32>, name: &str) -> PyResult<PyCommunicator> {
        py.detach(|| self.0.group(ranks, name)).map(|c| PyCommunicator::new(&self.0, c)).map_err(python_error)
    }

    fn with_servers(&self, py: Python<'_>, name: &str) -> PyResult<PyCommunicator> {
        py.detach(|| self.0.with_servers(name)).map(|c| PyCommunicator::new(&self.0, c)).map_err(python_error)
    }

    #[pyo3(signature = (ranks, name, *, cycle_time_s=0.001, threshold=128 << 20, capacity=1024, warn_after_s=Some(60.0), give_up_after_s=Some(600.0), core=None, lent=Vec::new(), placement=BTreeMap::new(), policy="negotiate", bucket=(1 << 20, 25 << 20), prescribed=None))]
    #[expect(clippy::too_many_arguments, clippy::needless_pass_by_value, reason = "keyword arguments of Python")]
    fn coordinator(
        &self,
        py: Python<'_>,
        ranks: Vec<u32>,
        name: &str,
        cycle_time_s: f64,
        threshold: u64,
        capacity: usize,
        warn_after_s: Option<f64>,
        give_up_after_s: Option<f64>,
        core: Option<usize>,
        lent: Vec<(Vec<usize>, Vec<usize>)>,
        placement: BTreeMap<String, u32>,
        policy: &str,
        bucket: (u64, u64),
        prescribed: Option<(String, Vec<PlannedBucket>)>,
    ) -> PyResult<PyCoordinator> {
        let kind = crate::coordination::policy(policy)?;
        let nanoseconds = |s: f64| if s > 0.0 { seconds(s).as_nanos() as u64 } else { 0 };
        let settings = negotiation::Settings {
            cycle_time: nanoseconds(cycle_time_s),
            threshold,
            capacity,
            warn_after: warn_after_s.map(nanoseconds),
            give_up_after: give_up_after_s.map(nanoseconds),
            sleep_every: kind.sleep_every(),
        };
        let limits = negotiation::Limits { first: bucket.0, most: bucket.1 };
        let planned = |(name, dtype, bytes)| negotiation::Planned { name, dtype, bytes };
        let prescribed = prescribed.map(|(source, buckets)| negotiation::Prescribed {
            source,
            buckets: buckets.into_iter().map(|bucket| bucket.into_iter().map(planned).collect()).collect(),
        });
        let options = negotiation::CoordinatorOptions { kind, settings, limits, prescribed, core, lent, placement };
        let made = py.detach(|| self.0.coordinator(&ranks, name, options));
        made.map(|inner| PyCoordinator::new(&self.0, inner)).map_err(python_error)
    }

    fn next_notice(&self, py: Python<'_>, timeout_s: f64) -> Option<(u64, Option<String>)> {
        let notice = py.detach(|| self.0.engine().next_notice(seconds(timeout_s)))?;
        drop(self.0.engine().take_finished());
        Some((notice.number, notice.error.map(|e| e.to_string())))
    }

    fn status(&self) -> String {
        let mut status = self.0.engine().status();
        let copied = |(device, counters): (String, paceline_cuda::Counters)| {
            serde_json::json!({
                "device": device,
                "operations": counters.operations,
                "bytes_to_host": counters.to_host,
                "bytes_to_device": counters.to_device,
                "ordered": counters.ordered,
            })
        };
        let devices: Vec<_> = self.0.stages().counters().into_iter().map(copied).collect();
        if !devices.is_empty() {
            status["cuda"] = devices.into();
        }
        let ipc = self.0.stages().ipc_counters();
        if ipc.operations > 0 {
            status["cuda_ipc"] = serde_json::json!({
                "operations": ipc.operations,
                "handles_made": ipc.exported,
                "handles_known": ipc.known,
                "allocations_opened": ipc.opened,
                "allocations_open_already": ipc.open,
            });
        }
        let operations = self.0.stages().nccl_operations();
        if operations > 0 {
            status["cuda_nccl"] = serde_json::json!({ "operations": operations });
        }
        let (operations, bytes) = self.0.stages().mpi_counters();
        if operations > 0 {
            status["cuda_mpi"] = serde_json::json!({ "operations": operations, "bytes": bytes });
        }
        status.to_string()
    }

    fn serve(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let served = py.detach(|| {
            let mut groups = self.1.lock();
            self.0.serve(&mut groups, seconds(timeout_s))
        });
        py.check_signals()?;
        served.map_err(python_error)
    }

    fn start_timeline(&self, path: &str) -> PyResult<()> {
        self.0.engine().start_timeline(path).map_err(python_error)
    }

    fn stop_timeline(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.engine().stop_timeline()).map_err(python_error)
    }

    fn mark(&self, category: &str, name: &str, begin: u64, end: u64) {
        self.0.engine().mark(category, name, begin, end);
    }

    /// `patience_s`: as in `Engine::close_with`.
    #[pyo3(signature = (patience_s=Some(0.0)))]
    fn close(&self, py: Python<'_>, patience_s: Option<f64>) -> PyResult<()> {
        if self.0.engine().is_forked() {
            return Ok(());
        }
        let raised = Mutex::new(None);
        py.detach(|| {
            self.0.stages().drain(DRAIN);
            let interrupted = || {
                let mut raised = raised.lock();
                if raised.is_none() {
                    *raised = Python::attach(|py| py.check_signals()).err();
                }
                raised.is_some()
            };
            self.0.engine().close_with(patience_s.map(seconds), &interrupted);
        });
        drop(self.0.engine().take_finished());
        raised.into_inner().map_or(Ok(()), Err)
    }

    fn note_cause(&self, cause: &str) {
        self.0.engine().shared.note_cause(cause);
    }

    fn forget_after_fork(&self) {
        self.0.engine().forget_after_fork();
    }
}

/// The device on which all of this memory lies. `what` names the call in a message.
pub(crate) fn stage_of<'a>(
    job: &Session,
    regions: impl Iterator<Item = &'a (usize, u64)>,
    what: &str,
) -> Result<Arc<Stage>, RunError> {
    let library = job.engine().cuda_library();
    let driver = Driver::get(library).map_err(|e| RunError::Usage(e.0))?;
    let mut devices = Vec::new();
    for &(address, _) in regions.filter(|region| region.1 > 0) {
        devices.push(Device::of(&driver, address as u64).map_err(|e| RunError::Failed(e.0))?);
    }
    devices.dedup();
    let ordinal = match devices[..] {
        [] => 0,
        [Some(ordinal)] => ordinal,
        [None] => {
            return Err(RunError::Usage(format!("{what}: the CUDA driver does not know this memory (was it freed?)"))
                .with_remedy("an array that is alive"));
        }
        _ => {
            return Err(RunError::Usage(format!("{what}: the arrays lie on several devices"))
                .with_remedy("all arrays of one call on one device"));
        }
    };
    job.stages().of(library, ordinal)
}

/// A group of ranks.
#[pyclass(frozen, module = "paceline._core", name = "Communicator")]
pub struct PyCommunicator {
    engine: Arc<Session>,
    inner: Arc<Communicator>,
}

impl PyCommunicator {
    /// Begins an operation on the device on which all its memory lies.
    fn on_device(
        &self,
        request: &CollectiveRequest<'_>,
        stream: CallerStream,
        keep: Option<Box<dyn Any + Send>>,
        how: Submission,
    ) -> Result<State, RunError> {
        let regions = request.inputs.iter().chain(request.outputs);
        let stage = stage_of(&self.engine, regions, request.collective.name())?;
        // SAFETY: the Python side passes addresses of memory that `keep` owns.
        unsafe { self.inner.submit_on_device((self.engine.stages(), &stage, stream), request, keep, how) }
            .map(State::Device)
    }

    fn new(engine: &Arc<Session>, communicator: Communicator) -> PyCommunicator {
        PyCommunicator { engine: engine.clone(), inner: Arc::new(communicator) }
    }
}

pub(crate) fn parse<T: FromStr<Err = UnknownName>>(what: &str, text: &str) -> PyResult<T> {
    text.parse().map_err(|error| user_error(format!("{what}: {error}")))
}

#[pymethods]
impl PyCommunicator {
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

    /// Waits until no operation is in flight; `false` if nothing has moved for so long.
    fn drain(&self, py: Python<'_>, patience_s: f64) -> PyResult<bool> {
        let (mut last, mut since) = (self.inner.in_flight(), Instant::now());
        while last.0 > 0 {
            if since.elapsed() >= seconds(patience_s) {
                return Ok(false);
            }
            py.detach(|| std::thread::sleep(Duration::from_millis(1)));
            py.check_signals()?;
            let now = self.inner.in_flight();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(true)
    }

    /// The algorithm of an all-reduce of up to this many bytes.
    fn choices(&self) -> Vec<(u64, String)> {
        self.inner.choices()
    }

    #[pyo3(signature = (call, *, inputs=Vec::new(), outputs=Vec::new(), dtype="uint8", op="sum", root=0, tag=0, counts=None, out_counts=None, prescale=1.0, postscale=1.0, strategy=None, label="", timeout_s=None, keep=None, notify=None, background=true, step=None, pull_only=false, bucket=None, stream=None))]
    #[expect(clippy::too_many_arguments, clippy::needless_pass_by_value, reason = "keyword arguments of Python")]
    fn submit(
        &self,
        py: Python<'_>,
        call: &str,
        inputs: Vec<(usize, u64)>,
        outputs: Vec<(usize, u64)>,
        dtype: &str,
        op: &str,
        root: i64,
        tag: u32,
        counts: Option<Vec<u64>>,
        out_counts: Option<Vec<u64>>,
        prescale: f64,
        postscale: f64,
        strategy: Option<&str>,
        label: &str,
        timeout_s: Option<f64>,
        keep: Option<Py<PyAny>>,
        notify: Option<u64>,
        background: bool,
        step: Option<(bool, u32)>,
        pull_only: bool,
        bucket: Option<u32>,
        stream: Option<u64>,
    ) -> PyResult<Operation> {
        drop(self.engine.engine().take_finished());
        let (collective, sends) = match call {
            "send" => (Collective::SendRecv, true),
            "recv" => (Collective::SendRecv, false),
            name => (parse("call", name)?, false),
        };
        let from_anybody = collective == Collective::SendRecv && !sends && root == -1;
        let request = CollectiveRequest {
            collective,
            dtype: parse("dtype", dtype)?,
            op: parse("op", op)?,
            inputs: &inputs,
            outputs: &outputs,
            root: if from_anybody {
                0
            } else {
                u32::try_from(root).map_err(|_| user_error(format!("root: {root} is not a rank")))?
            },
            tag,
            sends,
            from_anybody,
            counts: counts.as_deref(),
            out_counts: out_counts.as_deref(),
            prescale,
            postscale,
            strategy,
            bucket,
            step: step.map(|(last, priority)| InStep { last, priority }),
            pull_only,
            label,
            notify,
            handle: None,
            device: None,
        };
        let how = Submission { timeout: timeout_s.map(seconds), background, ..Submission::default() };
        let keep = keep.map(|keep| Box::new(keep) as Box<dyn Any + Send>);
        // SAFETY: the Python side passes addresses of buffers that `keep` owns, and `keep` lives until the operation
        // completes.
        let state = match stream {
            // SAFETY: as above.
            None => py.detach(|| unsafe { self.inner.submit(&request, keep, how) }).map(State::Host),
            Some(stream) => py.detach(|| self.on_device(&request, CallerStream(stream), keep, how)),
        };
        let state = state.map_err(python_error)?;
        Ok(Operation { communicator: self.inner.clone(), engine: self.engine.clone(), state })
    }

    /// Fast path for an all-reduce of one buffer that is waited for immediately.
    fn all_reduce(&self, py: Python<'_>, address: usize, elements: u64, dtype: &str, op: &str) -> PyResult<()> {
        let dtype = parse("dtype", dtype)?;
        let op = parse("op", op)?;
        let inputs = [(address, elements)];
        let request = CollectiveRequest {
            collective: Collective::AllReduce,
            dtype,
            op,
            inputs: &inputs,
            ..CollectiveRequest::default()
        };
        // SAFETY: the caller holds the buffer during this call, which lasts until the operation has completed.
        let handle = py.detach(|| unsafe { self.inner.submit(&request, None, Submission::default()) });
        let handle = handle.map_err(python_error)?;
        wait(py, &self.inner, &handle, None).map(drop).inspect_err(|_| {
            // The buffer may be freed after this, for instance after Ctrl-C.
            if !handle.done() {
                py.detach(|| self.inner.abandon("a rank was interrupted in an all_reduce"));
            }
        })
    }
}

/// How long a job that ends waits for its devices.
const DRAIN: Duration = Duration::from_secs(30);

/// Waits without the GIL; checks for Ctrl-C every 100 ms.
fn wait(py: Python<'_>, communicator: &Communicator, handle: &Arc<Handle>, timeout_s: Option<f64>) -> PyResult<bool> {
    in_slices(py, timeout_s, |until| communicator.wait(handle, Some(until)))
}

fn in_slices(
    py: Python<'_>,
    timeout_s: Option<f64>,
    wait: impl Fn(Instant) -> Result<bool, RunError> + Sync,
) -> PyResult<bool> {
    let limit = timeout_s.map(|s| Instant::now() + seconds(s));
    loop {
        let slice = Instant::now() + SLICE;
        let until = limit.map_or(slice, |limit| limit.min(slice));
        if py.detach(|| wait(until)).map_err(python_error)? {
            return Ok(true);
        }
        py.check_signals()?;
        if limit.is_some_and(|limit| Instant::now() >= limit) {
            return Ok(false);
        }
    }
}

enum State {
    Host(Arc<Handle>),
    Device(OnDevice),
}

/// An operation in flight.
#[pyclass(frozen, module = "paceline._core")]
pub struct Operation {
    communicator: Arc<Communicator>,
    engine: Arc<Session>,
    state: State,
}

#[pymethods]
impl Operation {
    #[pyo3(signature = (timeout_s=None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        let done = match &self.state {
            State::Host(handle) => wait(py, &self.communicator, handle, timeout_s),
            State::Device(operation) => in_slices(py, timeout_s, |until| operation.land(Some(until))),
        };
        drop(self.engine.engine().take_finished());
        done
    }

    fn done(&self) -> PyResult<bool> {
        let done = match &self.state {
            State::Host(handle) => handle.done(),
            State::Device(operation) => operation.done(),
        };
        if !done {
            self.communicator.of_this_process().map_err(python_error)?;
        }
        Ok(done)
    }

    /// Whether `wait` returns at once; the notice of the operation comes then, too. A device may still be at work.
    fn ready(&self) -> bool {
        match &self.state {
            State::Host(handle) => handle.done(),
            State::Device(operation) => operation.ready(),
        }
    }

    fn source(&self) -> u32 {
        match &self.state {
            State::Host(handle) => handle.source(),
            State::Device(operation) => operation.source(),
        }
    }

    /// Once it has been waited for: what this stream is told from now on sees the result.
    fn hold(&self, stream: u64) -> PyResult<()> {
        match &self.state {
            State::Host(_) => Ok(()),
            State::Device(operation) => operation.hold(CallerStream(stream)).map_err(python_error),
        }
    }
}
