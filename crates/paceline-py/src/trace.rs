//! Python bindings for traces: typed fields, and traces made of described workers.
use std::path::PathBuf;

use paceline_model::trace::{
    Distributed as ModelDistributed, Dtype, GradientFile, ImportOptions, LayerFile, SizedTensor, TraceFile,
    VariationFile, WorkerFile, parse_all_reduce, read_modules, read_sends,
};
use paceline_model::{Time, Trace as ModelTrace, units};
use paceline_schedule::Refusal;
use paceline_simulator as simulator;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyFutureWarning, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;

use crate::fields::{getters, record};
use crate::{Reduced, user_error};

/// The computation of one worker in one iteration.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Trace(pub ModelTrace);

record! {
    /// A forward layer.
    Layer(name, duration_s, tensors=vec![], *, activation_bytes=None, backward_bytes=None) {
        name: String,
        duration_s: f64,
        tensors: Vec<String>,
        activation_bytes: Option<u64>,
        backward_bytes: Option<u64>,
    }
}

record! {
    /// A gradient, and when it may be sent.
    Gradient(tensor, ready_s, bytes, shape=None) {
        tensor: String,
        ready_s: f64,
        bytes: u64,
        shape: Option<Vec<u64>>,
    }
}

/// JSON, as text or as the bytes of a file.
#[derive(FromPyObject)]
enum Text {
    Str(String),
    Bytes(Vec<u8>),
}

impl Text {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Text::Str(text) => text.as_bytes(),
            Text::Bytes(bytes) => bytes,
        }
    }
}

/// One recorded worker.
#[pyclass(frozen, eq, get_all, from_py_object, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Worker {
    forward: Vec<Layer>,
    gradients: Vec<Gradient>,
    backward_s: Option<f64>,
    optimizer_s: f64,
}

getters! { Worker, self {
    /// Seconds of the forward layers.
    forward_s: f64 = self.forward.iter().map(|layer| layer.duration_s).sum();
}

    #[new]
    #[pyo3(signature = (forward, gradients, *, backward_s=None, optimizer_s=0.0))]
    fn new(forward: Vec<Layer>, gradients: Vec<Gradient>, backward_s: Option<f64>, optimizer_s: f64) -> Worker {
        Worker { forward, gradients, backward_s, optimizer_s }
    }

    fn __repr__(&self) -> String {
        format!("Worker({} layers, {} gradients)", self.forward.len(), self.gradients.len())
    }
}

record! {
    /// A tensor with its bytes, or without where its gradient says them.
    Distributed(tensor, bytes=None) {
        tensor: String,
        bytes: Option<u64>,
    }
}

impl Layer {
    fn described(self, place: &str) -> PyResult<LayerFile> {
        Ok(LayerFile {
            duration_s: time(&format!("{place}.duration_s"), self.duration_s)?,
            layer: self.name,
            tensors: self.tensors,
            activation_bytes: self.activation_bytes,
            backward_bytes: self.backward_bytes,
        })
    }

    fn of(layer: LayerFile) -> Layer {
        Layer {
            name: layer.layer,
            duration_s: layer.duration_s.seconds(),
            tensors: layer.tensors,
            activation_bytes: layer.activation_bytes,
            backward_bytes: layer.backward_bytes,
        }
    }
}

impl Worker {
    fn described(self, number: usize) -> PyResult<WorkerFile> {
        let place = format!("workers[{number}]");
        let layer = |(at, layer): (usize, Layer)| layer.described(&format!("{place}.forward[{at}]"));
        let gradient = |(at, gradient): (usize, Gradient)| {
            let ready_s = time(&format!("{place}.gradients[{at}].ready_s"), gradient.ready_s)?;
            let Gradient { tensor, bytes, shape, .. } = gradient;
            PyResult::Ok(GradientFile { tensor, ready_s, bytes, shape })
        };
        Ok(WorkerFile {
            forward: self.forward.into_iter().enumerate().map(layer).collect::<PyResult<_>>()?,
            gradients: self.gradients.into_iter().enumerate().map(gradient).collect::<PyResult<_>>()?,
            backward_s: self.backward_s.map(|s| time(&format!("{place}.backward_s"), s)).transpose()?,
            optimizer_s: time(&format!("{place}.optimizer_s"), self.optimizer_s)?,
        })
    }

    fn of(worker: WorkerFile) -> Worker {
        let gradient = |gradient: GradientFile| {
            let ready_s = gradient.ready_s.seconds();
            let GradientFile { tensor, bytes, shape, .. } = gradient;
            Gradient { tensor, ready_s, bytes, shape }
        };
        Worker {
            forward: worker.forward.into_iter().map(Layer::of).collect(),
            gradients: worker.gradients.into_iter().map(gradient).collect(),
            backward_s: worker.backward_s.map(Time::seconds),
            optimizer_s: worker.optimizer_s.seconds(),
        }
    }
}

/// A time from Python; errors name its place.
/// A time of at most a day; `None`: it is none.
pub fn within_a_day(seconds: f64) -> Option<Time> {
    (0.0..=units::MAX_SECONDS).contains(&seconds).then(|| Time::from_seconds(seconds))
}

pub fn time(place: &str, seconds: f64) -> PyResult<Time> {
    if let Some(time) = within_a_day(seconds) {
        return Ok(time);
    }
    Err(user_error(
        Refusal::new(format!("{place}: must be 0 s to a day, not {seconds} s")).remedy("seconds, such as 0.004"),
    ))
}

pub fn named_dtype(name: &str) -> PyResult<Dtype> {
    let wrong = || {
        user_error(
            Refusal::new(format!("dtype: unknown dtype '{name}'"))
                .remedy(format!("one of {}", Dtype::ALL.map(Dtype::name).join(", "))),
        )
    };
    Dtype::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(wrong)
}

fn described(workers: Vec<Worker>) -> PyResult<Vec<WorkerFile>> {
    workers.into_iter().enumerate().map(|(number, worker)| worker.described(number)).collect()
}

fn set(file: &mut TraceFile, field: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match field {
        "name" => file.name = value.extract()?,
        "provenance" => file.provenance = value.extract()?,
        "batch" => file.batch = value.extract()?,
        "dtype" => file.dtype = named_dtype(&value.extract::<String>()?)?,
        "device" => file.device = value.extract()?,
        "library" => file.library = value.extract()?,
        "workers" => {
            file.workers = described(value.extract()?)?;
            file.operators = None;
        }
        "operators" if value.is_none() => file.operators = None,
        "distribution" => {
            let order: Vec<Distributed> = value.extract()?;
            let one = |Distributed { tensor, bytes }| ModelDistributed { tensor, bytes };
            file.distribution = order.into_iter().map(one).collect();
        }
        "variables" => {
            let created: Vec<Distributed> = value.extract()?;
            let one = |Distributed { tensor, bytes }| ModelDistributed { tensor, bytes };
            file.variables = created.into_iter().map(one).collect();
        }
        "frozen" => {
            let sizes: Vec<(String, u64)> = value.extract()?;
            file.frozen = sizes.into_iter().map(|(tensor, bytes)| SizedTensor { tensor, bytes }).collect();
        }
        "optimizer_bytes" => file.optimizer_bytes = value.extract()?,
        "backward_spread" => file.variation = Some(VariationFile { backward_spread: value.extract()? }),
        other => return Err(PyTypeError::new_err(format!("a trace has no field '{other}'"))),
    }
    Ok(())
}

impl Trace {
    fn first(&self) -> &paceline_model::trace::WorkerTrace {
        &self.0.workers[0]
    }
}

getters! { Trace, self {
    name: &str = &self.0.name;
    provenance: &str = &self.0.provenance;
    device: &str = &self.0.device;
    library: &str = &self.0.library;
    batch: u32 = self.0.batch;
    dtype: &'static str = self.0.dtype.name();
    /// Number of forward layers.
    layer_count: usize = self.first().forward.len();
    /// Number of tensors.
    tensor_count: usize = self.0.tensors.len();
    /// Number of recorded workers.
    worker_count: usize = self.0.workers.len();
    gradient_bytes: u64 = self.0.tensors.iter().map(|tensor| tensor.bytes).sum();
    frozen_bytes: u64 = self.0.tensors.iter().map(|tensor| tensor.frozen_bytes).sum();
    optimizer_bytes: Option<u64> = self.0.optimizer_bytes;
    backward_spread: f64 = self.0.backward_spread;
    forward_s: f64 = self.first().forward_time().seconds();
    backward_s: f64 = self.first().backward.seconds();
    optimizer_s: f64 = self.first().optimizer.seconds();
    /// Whether anything is computed.
    computes: bool = self.first().compute_time() > Time::ZERO;
    /// Whether passes before the last one were recorded, which `paceline record` writes as a layer of this name.
    /// Whether it can be timed again for another GPU.
    has_operators: bool = self.0.operators.is_some();
    accumulates: bool = self.first().forward.iter().any(|layer| layer.name == "(accumulation)");
    workers: Vec<Worker> = TraceFile::from(&self.0).workers.into_iter().map(Worker::of).collect();
    /// In the order in which servers distribute them.
    distribution: Vec<Distributed> = {
        let one = |ModelDistributed { tensor, bytes }| Distributed { tensor, bytes };
        TraceFile::from(&self.0).distribution.into_iter().map(one).collect()
    };
    /// In the order of their creation, as far as it is known.
    variables: Vec<Distributed> = {
        let one = |ModelDistributed { tensor, bytes }| Distributed { tensor, bytes };
        TraceFile::from(&self.0).variables.into_iter().map(one).collect()
    };
    frozen: Vec<(String, u64)> = {
        let frozen = self.0.tensors.iter().filter(|tensor| tensor.frozen_bytes > 0);
        frozen.map(|tensor| (tensor.name.clone(), tensor.frozen_bytes)).collect()
    };
}

    /// A trace of described workers.
    #[new]
    #[pyo3(signature = (name, batch, dtype, workers, **fields))]
    fn new(
        name: String,
        batch: u32,
        dtype: &str,
        workers: Vec<Worker>,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Trace> {
        let mut file = TraceFile::new(name, batch, named_dtype(dtype)?, described(workers)?);
        for (field, value) in fields.into_iter().flatten() {
            set(&mut file, &field.extract::<String>()?, &value)?;
        }
        let source = file.name.clone();
        file.trace(&source).map(Trace).map_err(user_error)
    }

    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Trace> {
        py.detach(|| ModelTrace::read(&path)).map(Trace).map_err(user_error)
    }

    /// Parses a trace's JSON.
    #[staticmethod]
    #[pyo3(signature = (text, source="trace"))]
    fn from_json(text: Text, source: &str) -> PyResult<Trace> {
        ModelTrace::from_json(text.as_bytes(), source).map(Trace).map_err(user_error)
    }

    /// Makes a trace of the content of its file.
    #[staticmethod]
    #[pyo3(signature = (document, source="trace"))]
    fn from_dict(document: &Bound<'_, PyDict>, source: &str) -> PyResult<Trace> {
        let json = document.py().import("json")?;
        let text: String = match json.call_method1("dumps", (document,)) {
            Ok(text) => text.extract()?,
            Err(error) => {
                let reason = error.value(document.py()).to_string();
                return Err(user_error(
                    Refusal::new(format!("{source}: cannot be JSON: {reason}"))
                        .remedy("text, numbers, lists and dicts, as Trace.to_dict() returns"),
                ));
            }
        };
        ModelTrace::from_json(text.as_bytes(), source).map(Trace).map_err(user_error)
    }

    #[staticmethod]
    fn all_reduce(spec: &str) -> PyResult<Trace> {
        parse_all_reduce(spec).map(Trace).map_err(user_error)
    }

    #[staticmethod]
    #[pyo3(signature = (aggregation, distribution, *, name, batch, forward_s, first_gradient_s=0.0, backward_s=None, dtype="float32", device="", provenance="", dependency=None, exclude=Vec::new()))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python signature")]
    fn import_sends(
        aggregation: PathBuf,
        distribution: PathBuf,
        name: String,
        batch: u32,
        forward_s: f64,
        first_gradient_s: f64,
        backward_s: Option<f64>,
        dtype: &str,
        device: &str,
        provenance: &str,
        dependency: Option<String>,
        exclude: Vec<String>,
    ) -> PyResult<Trace> {
        let options = ImportOptions {
            name,
            provenance: provenance.into(),
            device: device.into(),
            batch,
            dtype: named_dtype(dtype)?,
            forward: time("forward", forward_s)?,
            first_gradient: time("first gradient", first_gradient_s)?,
            backward: backward_s.map(|s| time("backward", s)).transpose()?,
            dependency,
            exclude,
            aggregation_source: aggregation.display().to_string(),
            distribution_source: distribution.display().to_string(),
        };
        read_sends(&aggregation, &distribution, options).map(Trace).map_err(user_error)
    }

    fn scaled_to_rate(&self, samples_per_s: f64) -> PyResult<Trace> {
        self.0.clone().scaled_to_rate(samples_per_s).map(Trace).map_err(user_error)
    }

    fn with_batch(&self, batch: u32) -> PyResult<Trace> {
        self.0.clone().with_batch(batch).map(Trace).map_err(user_error)
    }

    fn with_dtype(&self, dtype: &str) -> PyResult<Trace> {
        self.0.clone().with_dtype(named_dtype(dtype)?).map(Trace).map_err(user_error)
    }

    fn with_modules(&self, spec: &str) -> PyResult<Trace> {
        let (module, count) = read_modules(spec).map_err(user_error)?;
        self.0.clone().with_modules(&module, count).map(Trace).map_err(user_error)
    }

    /// The same trace with other values of some fields.
    #[pyo3(signature = (**fields))]
    fn replace(&self, fields: Option<&Bound<'_, PyDict>>) -> PyResult<Trace> {
        let mut file = TraceFile::from(&self.0);
        for (field, value) in fields.into_iter().flatten() {
            set(&mut file, &field.extract::<String>()?, &value)?;
        }
        let source = file.name.clone();
        file.trace(&source).map(Trace).map_err(user_error)
    }

    /// The trace in its file format.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// The content of the trace's file.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("json")?.call_method1("loads", (self.0.to_json(),))
    }

    /// Totals as JSON, as before there were getters.
    fn summary(&self, py: Python<'_>) -> PyResult<String> {
        let message = c"Trace.summary() goes with the next release; read the trace's fields, such as trace.batch";
        PyErr::warn(py, &py.get_type::<PyFutureWarning>(), message, 1)?;
        let totals = json!({
            "name": self.name(),
            "provenance": self.provenance(),
            "device": self.device(),
            "library": self.library(),
            "batch": self.batch(),
            "dtype": self.dtype(),
            "layers": self.layer_count(),
            "tensors": self.tensor_count(),
            "gradient_bytes": self.gradient_bytes(),
            "frozen_bytes": self.frozen_bytes(),
            "optimizer_bytes": self.optimizer_bytes(),
            "accumulates": self.accumulates(),
            "forward_s": self.forward_s(),
            "backward_s": self.backward_s(),
            "optimizer_s": self.optimizer_s(),
            "recorded_workers": self.worker_count(),
        });
        Ok(totals.to_string())
    }

    /// The content of the field `operators`; None if the trace has none.
    fn operators<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(operators) = &self.0.operators else { return Ok(None) };
        py.import("json")?.call_method1("loads", (operators.to_json(),)).map(Some)
    }

    /// Names of the tensors of each bucket, in the order of bucket numbers.
    #[pyo3(signature = (bucket_size=None))]
    fn buckets(&self, bucket_size: Option<u64>) -> Vec<Vec<String>> {
        let name = |t: &u32| self.0.tensors[*t as usize].name.clone();
        simulator::bucket_tensors(&self.0, bucket_size).iter().map(|b| b.iter().map(name).collect()).collect()
    }

    fn __repr__(&self) -> String {
        format!("Trace({:?})", self.0.name)
    }

    /// For pickle: between processes a trace travels as its file.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let class = py.get_type::<Trace>().getattr("from_json")?;
        Ok((class, (self.0.to_json().into_bytes(), self.0.name.clone())))
    }
}
