//! The Python module `paceline._core`: converts arguments, calls Rust, releases the GIL. It makes no decisions.
//!
//! Structured arguments and results are passed as JSON, so that each is parsed in one place; `_core.pyi` is the
//! contract.
mod coordination;
mod coordinator;
mod job;
mod jobs;
mod nccl;
mod plan;
mod spec;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use paceline_model::trace::{Dtype, ImportOptions, parse_all_reduce, parse_modules, read_sends};
use paceline_model::{Cluster as ModelCluster, Time, Trace as ModelTrace, units};
use paceline_runtime::coordination::PolicyKind;
use paceline_schedule::{Collective, Knobs, Stand, Topology};
use paceline_simulator as simulator;
use pyo3::exceptions::PyOSError;
use pyo3::import_exception;
use pyo3::prelude::*;
use serde_json::json;

// Defined in Python, because each has more than one base.
import_exception!(paceline.errors, InvalidArgumentError);
import_exception!(paceline.errors, InternalError);

fn user_error(error: impl std::fmt::Display) -> PyErr {
    InvalidArgumentError::new_err(error.to_string())
}

fn named_dtype(name: &str) -> PyResult<Dtype> {
    let wrong = || user_error(format!("dtype: '{name}' is not one of {}", Dtype::ALL.map(Dtype::name).join(", ")));
    Dtype::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(wrong)
}

/// The computation of one worker in one iteration.
#[pyclass(frozen, module = "paceline._core")]
struct Trace(ModelTrace);

#[pymethods]
impl Trace {
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Trace> {
        py.detach(|| ModelTrace::read(&path)).map(Trace).map_err(user_error)
    }

    #[staticmethod]
    fn from_json(text: &[u8], source: &str) -> PyResult<Trace> {
        ModelTrace::from_json(text, source).map(Trace).map_err(user_error)
    }

    #[staticmethod]
    fn all_reduce(spec: &str) -> PyResult<Trace> {
        parse_all_reduce(spec).map(Trace).map_err(user_error)
    }

    #[staticmethod]
    #[pyo3(signature = (aggregation, distribution, *, name, batch, forward_s, first_gradient_s=0.0, backward_s=None, dtype="float32", device="", provenance=""))]
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
    ) -> PyResult<Trace> {
        let dtype = named_dtype(dtype)?;
        let time = |what: &str, seconds: f64| {
            let legal = seconds.is_finite() && (0.0..=units::MAX_SECONDS).contains(&seconds);
            if legal {
                Ok(Time::from_seconds(seconds))
            } else {
                Err(user_error(format!("{what}: {seconds} s is not between 0 and a day")))
            }
        };
        let options = ImportOptions {
            name,
            provenance: provenance.into(),
            device: device.into(),
            batch,
            dtype,
            forward: time("forward", forward_s)?,
            first_gradient: time("first gradient", first_gradient_s)?,
            backward: backward_s.map(|s| time("backward", s)).transpose()?,
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
        let (kind, count) = parse_modules(spec).map_err(user_error)?;
        self.0.clone().with_modules(kind, count).map(Trace).map_err(user_error)
    }

    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// Names of the tensors of each bucket, in the order of bucket numbers.
    #[pyo3(signature = (bucket_size=None))]
    fn buckets(&self, bucket_size: Option<u64>) -> Vec<Vec<String>> {
        let name = |t: &u32| self.0.tensors[*t as usize].name.clone();
        simulator::bucket_tensors(&self.0, bucket_size).iter().map(|b| b.iter().map(name).collect()).collect()
    }

    /// A summary for tables, as JSON.
    fn summary(&self) -> String {
        let worker = &self.0.workers[0];
        let gradient_bytes: u64 = self.0.tensors.iter().map(|t| t.bytes).sum();
        json!({
            "name": self.0.name,
            "provenance": self.0.provenance,
            "device": self.0.device,
            "library": self.0.library,
            "batch": self.0.batch,
            "dtype": self.0.dtype.name(),
            "layers": worker.forward.len(),
            "tensors": self.0.tensors.len(),
            "gradient_bytes": gradient_bytes,
            "frozen_bytes": self.0.tensors.iter().map(|t| t.frozen_bytes).sum::<u64>(),
            "optimizer_bytes": self.0.optimizer_bytes,
            // As `paceline record` calls passes before the last one.
            "accumulates": worker.forward.iter().any(|layer| layer.name == "(accumulation)"),
            "forward_s": worker.forward_time().seconds(),
            "backward_s": worker.backward.seconds(),
            "optimizer_s": worker.optimizer.seconds(),
            "recorded_workers": self.0.workers.len(),
        })
        .to_string()
    }
}

/// The machines and the network between them.
#[pyclass(frozen, module = "paceline._core")]
struct Cluster(ModelCluster);

#[pymethods]
impl Cluster {
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Cluster> {
        py.detach(|| ModelCluster::read(&path)).map(Cluster).map_err(user_error)
    }

    #[staticmethod]
    fn from_json(text: &[u8], source: &str) -> PyResult<Cluster> {
        ModelCluster::from_json(text, source).map(Cluster).map_err(user_error)
    }

    fn to_json(&self) -> String {
        self.0.to_json()
    }

    #[getter]
    fn links(&self) -> String {
        self.0.link_names()
    }
}

/// Runs one simulation without the GIL. Returns the outcome as JSON; writes the timeline if a path is given, of all
/// ranks or of the first ones.
#[pyfunction]
#[pyo3(signature = (trace, cluster, options, timeline=None, ranks=None))]
fn simulate(
    py: Python<'_>,
    trace: &Trace,
    cluster: &Cluster,
    options: &str,
    timeline: Option<PathBuf>,
    ranks: Option<u32>,
) -> PyResult<String> {
    let options = spec::options(options).map_err(user_error)?;
    py.detach(|| {
        let outcome = match timeline {
            None => simulator::simulate(&trace.0, &cluster.0, &options).map_err(user_error)?,
            Some(path) => {
                let (outcome, timeline) =
                    simulator::simulate_with_timeline(&trace.0, &cluster.0, &options, ranks).map_err(user_error)?;
                write_timeline(&path, &timeline)?;
                outcome
            }
        };
        serde_json::to_string(&outcome).map_err(|e| InternalError::new_err(e.to_string()))
    })
}

/// Writes a timeline as a Chrome trace.
pub(crate) fn write_timeline(path: &Path, timeline: &simulator::timeline::Timeline) -> PyResult<()> {
    let written = File::create(path).map(BufWriter::new).and_then(|mut out| {
        timeline.write(&mut out)?;
        out.flush()
    });
    written.map_err(|e| PyOSError::new_err(format!("{}: {e}", path.display())))
}

/// Why the exchanges under a coordinator can be neither simulated nor taken from a closed form; None if they can be.
#[pyfunction]
fn unreachable(py: Python<'_>, trace: &Trace, cluster: &Cluster, options: &str) -> PyResult<Option<String>> {
    let options = spec::options(options).map_err(user_error)?;
    py.detach(|| simulator::coordination::unreachable(&trace.0, &cluster.0, &options)).map_err(user_error)
}

/// A worker's plan in a simulation, as JSON, for a real process that does the same.
#[pyfunction]
fn replay(
    py: Python<'_>,
    trace: &Trace,
    cluster: &Cluster,
    options: &str,
    worker: u32,
    iterations: u32,
) -> PyResult<String> {
    let options = spec::options(options).map_err(user_error)?;
    let part = py.detach(|| simulator::replay(&trace.0, &cluster.0, &options, worker, iterations));
    serde_json::to_string(&part.map_err(user_error)?).map_err(|e| InternalError::new_err(e.to_string()))
}

/// Whether all ranks follow one plan, whose steps are watched one by one.
#[pyfunction]
fn is_planned(options: &str) -> PyResult<bool> {
    Ok(spec::options(options).map_err(user_error)?.is_planned())
}

/// The plan of an iteration, as JSON.
#[pyfunction]
fn iteration_plan(py: Python<'_>, trace: &Trace, options: &str) -> PyResult<String> {
    let options = spec::options(options).map_err(user_error)?;
    py.detach(|| simulator::iteration::plan_of(&trace.0, &options)).map(|plan| plan.to_json()).map_err(user_error)
}

/// The peak of a rank's memory by kind, as JSON: that of a plan whose exchanges take no time.
#[pyfunction]
fn iteration_memory(py: Python<'_>, trace: &Trace, options: &str) -> PyResult<String> {
    let options = spec::options(options).map_err(user_error)?;
    let memory = py.detach(|| simulator::iteration::memory_of(&trace.0, &options)).map_err(user_error)?;
    serde_json::to_string(&memory).map_err(|e| InternalError::new_err(e.to_string()))
}

/// All strategies as JSON: name, aliases, summary, knobs, collectives.
#[pyfunction]
fn strategies() -> String {
    let list: Vec<_> = paceline_schedule::registry()
        .iter()
        .map(|entry| {
            let knobs: Vec<_> = entry.knobs.iter().map(|knob| knob.name()).collect();
            let offered = Collective::ALL.into_iter().filter(|&collective| entry.offers(collective));
            let collectives: Vec<_> = offered.map(Collective::name).collect();
            json!({
                "name": entry.name, "aliases": entry.aliases, "summary": entry.summary, "knobs": knobs,
                "collectives": collectives
            })
        })
        .collect();
    json!(list).to_string()
}

/// For each role of an aggregating switch, its rack, or null if it connects racks, as JSON.
#[pyfunction]
fn switches(strategy: &str, nodes: u32, nodes_per_rack: Option<u32>) -> PyResult<String> {
    let topology = Topology::flat(nodes).in_racks(nodes_per_rack);
    let schedule =
        paceline_schedule::build(strategy, &topology, &Knobs::default()).map_err(|e| user_error(e.to_string()))?;
    let rack = |number| match schedule.switch_place(number).stand {
        Stand::Rack(rack) => Some(rack),
        Stand::Pod(_) | Stand::Top => None,
    };
    let racks: Vec<_> = (0..schedule.roles().switches).map(rack).collect();
    Ok(json!(racks).to_string())
}

/// The coordinators' policies as JSON: name, aliases, summary.
#[pyfunction]
fn coordinators() -> String {
    let list: Vec<_> = PolicyKind::ALL
        .iter()
        .map(|kind| {
            let aliases: Vec<_> = kind.alias().into_iter().collect();
            json!({"name": kind.name(), "aliases": aliases, "summary": kind.summary()})
        })
        .collect();
    json!(list).to_string()
}

/// Simulates the coordinators of a small world. Returns cycles, control messages, buckets and steps as JSON.
#[pyfunction]
fn simulate_agreement(py: Python<'_>, scenario: &str) -> PyResult<String> {
    let scenario = serde_json::from_str(scenario).map_err(|e| user_error(format!("scenario: {e}")))?;
    let found = py.detach(|| simulator::agreement::agree(&scenario)).map_err(user_error)?;
    serde_json::to_string(&found).map_err(|e| InternalError::new_err(e.to_string()))
}

/// Parses a rate; returns bits per second.
#[pyfunction]
fn parse_rate(text: &str) -> PyResult<f64> {
    units::parse_rate(text).map(|rate| rate.0).map_err(user_error)
}

/// Parses a size; returns bytes.
#[pyfunction]
fn parse_size(text: &str) -> PyResult<u64> {
    units::parse_size(text).map_err(user_error)
}

/// Parses a duration; returns seconds.
#[pyfunction]
fn parse_time(text: &str) -> PyResult<f64> {
    units::parse_time(text).map(Time::seconds).map_err(user_error)
}

/// The most similar of some words, if any is similar.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "the Python list is converted")]
fn nearest(word: &str, candidates: Vec<String>) -> Option<String> {
    paceline_model::nearest(word, candidates.iter().map(String::as_str)).map(str::to_owned)
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<job::PyEngine>()?;
    module.add_class::<job::PyCommunicator>()?;
    module.add_class::<job::Operation>()?;
    module.add_class::<coordinator::PyCoordinator>()?;
    module.add_class::<coordinator::NamedOperation>()?;
    module.add_class::<coordinator::Data>()?;
    module.add_class::<Trace>()?;
    module.add_class::<Cluster>()?;
    module.add_class::<plan::Graph>()?;
    module.add_function(wrap_pyfunction!(job::mpi_exchange, module)?)?;
    module.add_function(wrap_pyfunction!(job::mpi_library, module)?)?;
    module.add_function(wrap_pyfunction!(job::mpi_on_devices, module)?)?;
    module.add_function(wrap_pyfunction!(job::cuda_driver, module)?)?;
    module.add_function(wrap_pyfunction!(simulate, module)?)?;
    module.add_function(wrap_pyfunction!(unreachable, module)?)?;
    module.add_function(wrap_pyfunction!(replay, module)?)?;
    module.add_function(wrap_pyfunction!(is_planned, module)?)?;
    module.add_function(wrap_pyfunction!(iteration_plan, module)?)?;
    module.add_function(wrap_pyfunction!(iteration_memory, module)?)?;
    nccl::add(module)?;
    module.add_class::<jobs::JobsWatch>()?;
    module.add_class::<jobs::JobsOnNetwork>()?;
    module.add_function(wrap_pyfunction!(jobs::nodes_for_servers, module)?)?;
    module.add_function(wrap_pyfunction!(strategies, module)?)?;
    module.add_function(wrap_pyfunction!(switches, module)?)?;
    module.add_function(wrap_pyfunction!(coordination::coordinator_constants, module)?)?;
    module.add_function(wrap_pyfunction!(coordinators, module)?)?;
    module.add_function(wrap_pyfunction!(simulate_agreement, module)?)?;
    module.add_function(wrap_pyfunction!(parse_rate, module)?)?;
    module.add_function(wrap_pyfunction!(parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(parse_time, module)?)?;
    module.add_function(wrap_pyfunction!(nearest, module)?)?;
    Ok(())
}
