//! The Python module `paceline._core`: converts arguments, calls Rust, releases the GIL. It makes no decisions.
//!
//! `_core.pyi` is the contract.
mod cluster;
mod coordination;
mod coordinator;
mod fields;
mod graph;
mod job;
mod jobs;
mod nccl;
mod note;
mod outcome;
mod plan;
mod scenario;
mod trace;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use paceline_model::units::UnitError;
use paceline_model::{DocumentError, Rate, Time, units};
use paceline_nccl::NcclError;
use paceline_runtime::negotiation::PolicyKind;
use paceline_scenario::ScenarioError;
use paceline_schedule::{Collective, Knobs, Refusal, Stand, Topology};
use paceline_simulator as simulator;
use pyo3::exceptions::PyOSError;
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;

use crate::cluster::Cluster;
use crate::outcome::{Memory, Outcome};
use crate::plan::Plan;
use crate::trace::Trace;

// Defined in Python, because each has more than one base.
import_exception!(paceline.errors, InvalidArgumentError);
import_exception!(paceline.errors, InternalError);

/// The form that pickle takes: a function, and its arguments, here the JSON of a file and its name.
type Reduced<'py> = (Bound<'py, PyAny>, (Vec<u8>, String));

/// The caller's mistake, with the setting or the place in a document that it is about, and what to type instead.
fn user_error(error: impl Into<Mistake>) -> PyErr {
    let Mistake { refusal: Refusal { setting, reason, remedy }, place } = error.into();
    Python::attach(|py| {
        let about = PyDict::new(py);
        let made = about
            .set_item("setting", setting)
            .and_then(|()| about.set_item("place", place))
            .and_then(|()| about.set_item("remedy", remedy))
            .and_then(|()| py.get_type::<InvalidArgumentError>().call((reason,), Some(&about)));
        made.map_or_else(|failed| failed, PyErr::from_value)
    })
}

/// Content of an `InvalidArgumentError`.
struct Mistake {
    refusal: Refusal,
    place: Option<String>,
}

impl From<Refusal> for Mistake {
    fn from(refusal: Refusal) -> Mistake {
        Mistake { refusal, place: None }
    }
}

impl From<String> for Mistake {
    fn from(reason: String) -> Mistake {
        Refusal::new(reason).into()
    }
}

impl From<&str> for Mistake {
    fn from(reason: &str) -> Mistake {
        Refusal::new(reason).into()
    }
}

impl From<UnitError> for Mistake {
    fn from(error: UnitError) -> Mistake {
        Refusal::new(error.reason).remedy(error.remedy).into()
    }
}

impl From<NcclError> for Mistake {
    fn from(error: NcclError) -> Mistake {
        Refusal::new(error.reason).remedy(error.remedy).into()
    }
}

impl From<ScenarioError> for Mistake {
    fn from(error: ScenarioError) -> Mistake {
        match error {
            ScenarioError::Refused(refusal) => refusal.into(),
            ScenarioError::Cluster(error) => error.into(),
        }
    }
}

impl From<DocumentError> for Mistake {
    fn from(error: DocumentError) -> Mistake {
        let place = Some(error.place()).filter(|place| !place.is_empty()).map(str::to_owned);
        let refusal = Refusal { remedy: error.remedy().map(str::to_owned), ..Refusal::new(error.to_string()) };
        Mistake { refusal, place }
    }
}

/// Writes a timeline as a Chrome trace.
pub(crate) fn write_timeline(path: &Path, timeline: &simulator::timeline::Timeline) -> PyResult<()> {
    let written = File::create(path).map(BufWriter::new).and_then(|mut out| {
        timeline.write(&mut out)?;
        out.flush()
    });
    written.map_err(|e| PyOSError::new_err(format!("{}: {e}", path.display())))
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
    let schedule = paceline_schedule::build(strategy, &topology, &Knobs::default()).map_err(user_error)?;
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

/// A rate in bits per second as cluster files spell it.
#[pyfunction]
fn written_rate(bits_per_s: f64) -> String {
    paceline_model::cluster::written_rate(Rate(bits_per_s))
}

/// A time as cluster files spell it.
#[pyfunction]
fn written_time(seconds: f64) -> PyResult<String> {
    trace::time("time", seconds).map(paceline_model::cluster::written_time)
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
    module.add_class::<trace::Layer>()?;
    module.add_class::<trace::Gradient>()?;
    module.add_class::<trace::Worker>()?;
    module.add_class::<trace::Distributed>()?;
    module.add_class::<Cluster>()?;
    module.add_class::<cluster::Racks>()?;
    module.add_class::<cluster::Switch>()?;
    module.add_class::<cluster::Sockets>()?;
    module.add_class::<cluster::Degraded>()?;
    module.add_class::<cluster::Straggler>()?;
    module.add_class::<cluster::Mesh>()?;
    module.add_class::<cluster::Fabric>()?;
    module.add_class::<cluster::PartCosts>()?;
    module.add_class::<cluster::CompressionCosts>()?;
    module.add_class::<graph::Graph>()?;
    module.add_class::<Outcome>()?;
    module.add_class::<note::Note>()?;
    module.add_class::<outcome::LinkUse>()?;
    module.add_class::<outcome::Busy>()?;
    module.add_class::<outcome::PathPart>()?;
    module.add_class::<outcome::Asynchronous>()?;
    module.add_class::<outcome::Sharded>()?;
    module.add_class::<outcome::ExposedBy>()?;
    module.add_class::<Memory>()?;
    module.add_class::<Plan>()?;
    module.add_class::<plan::PlanStep>()?;
    module.add_class::<plan::PlanUnit>()?;
    module.add_class::<plan::Exchanged>()?;
    module.add_class::<plan::RankGroup>()?;
    module.add_class::<scenario::Scenario>()?;
    module.add_class::<scenario::Lowered>()?;
    module.add_class::<scenario::Replay>()?;
    module.add_class::<scenario::PlannedCollective>()?;
    module.add_class::<scenario::PyLibrary>()?;
    module.add_class::<scenario::PyChannels>()?;
    module.add_class::<coordination::Coordination>()?;
    module.add_class::<coordination::Agreement>()?;
    module.add_function(wrap_pyfunction!(job::mpi_exchange, module)?)?;
    module.add_function(wrap_pyfunction!(job::mpi_library, module)?)?;
    module.add_function(wrap_pyfunction!(job::ucx_library, module)?)?;
    module.add_function(wrap_pyfunction!(job::mpi_on_devices, module)?)?;
    module.add_function(wrap_pyfunction!(job::cuda_driver, module)?)?;
    nccl::add(module)?;
    module.add_class::<jobs::JobsWatch>()?;
    module.add_class::<jobs::JobsOnNetwork>()?;
    module.add_class::<jobs::PlacedJob>()?;
    module.add_class::<jobs::JobsOutcome>()?;
    module.add_class::<jobs::JobOutcome>()?;
    module.add_class::<jobs::SharedLink>()?;
    module.add_function(wrap_pyfunction!(strategies, module)?)?;
    module.add_function(wrap_pyfunction!(switches, module)?)?;
    module.add_function(wrap_pyfunction!(coordination::coordinator_constants, module)?)?;
    module.add_function(wrap_pyfunction!(coordinators, module)?)?;
    module.add_function(wrap_pyfunction!(coordination::coordinator_name, module)?)?;
    module.add_function(wrap_pyfunction!(coordination::simulate_agreement, module)?)?;
    module.add_function(wrap_pyfunction!(parse_rate, module)?)?;
    module.add_function(wrap_pyfunction!(parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(parse_time, module)?)?;
    module.add_function(wrap_pyfunction!(written_rate, module)?)?;
    module.add_function(wrap_pyfunction!(written_time, module)?)?;
    module.add_function(wrap_pyfunction!(nearest, module)?)?;
    Ok(())
}
