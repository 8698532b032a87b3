//! Python bindings for forecasts with a coordinator.
use std::collections::HashMap;

use paceline_coordinator::PolicyKind;
use paceline_schedule::Refusal;
use paceline_simulator::agreement;
use paceline_simulator::coordination::{self, Constants};
use pyo3::prelude::*;
use serde::Deserialize;
use serde::de::value::{Error as NameError, MapDeserializer};
use serde_json::json;

use crate::user_error;

/// A coordinator with its constants.
#[pyclass(frozen, name = "Coordination", module = "paceline._core")]
pub struct Coordination(pub coordination::Coordination);

#[pymethods]
impl Coordination {
    #[new]
    #[pyo3(signature = (coordinator, *, contention_s=None, graph_nodes=None, constants=None))]
    fn new(
        coordinator: &str,
        contention_s: Option<f64>,
        graph_nodes: Option<f64>,
        constants: Option<HashMap<String, f64>>,
    ) -> PyResult<Coordination> {
        let policy = policy(coordinator)?;
        let constants = MapDeserializer::<_, NameError>::new(constants.unwrap_or_default().into_iter());
        let constants = Constants::deserialize(constants);
        let constants = constants.map_err(|e| user_error(Refusal::about("coordinator_constants", e.to_string())))?;
        Ok(Coordination(coordination::Coordination { coordinator: policy, contention_s, graph_nodes, constants }))
    }
}

/// The policy with this name, alias and argument.
pub(crate) fn policy(name: &str) -> PyResult<PolicyKind> {
    PolicyKind::find(name).map_err(|error| {
        user_error(Refusal::about("coordinator", error.reason).remedy(format!("{{coordinator={}}}", error.remedy)))
    })
}

/// The usual spelling of a coordinator's name with its argument.
#[pyfunction]
pub(crate) fn coordinator_name(name: &str) -> PyResult<String> {
    let named = PolicyKind::find(name);
    named.map(|it| it.to_string()).map_err(|error| user_error(Refusal::new(error.reason).remedy(error.remedy)))
}

/// Every constant of the model as JSON: name, unit, default, range, meaning, source.
#[pyfunction]
pub(crate) fn coordinator_constants() -> String {
    let list: Vec<_> = Constants::TABLE
        .iter()
        .map(|it| {
            json!({
                "name": it.name,
                "unit": it.unit,
                "default": it.default,
                "range": [it.range.0, it.range.1],
                "meaning": it.meaning,
                "source": it.source,
            })
        })
        .collect();
    json!(list).to_string()
}

/// Counts of a simulation of a small world's coordinators on the first rank, and the steps' nanoseconds.
#[pyclass(frozen, eq, get_all, module = "paceline._core")]
#[derive(PartialEq)]
pub struct Agreement {
    votes: u64,
    sleeps: u64,
    reports: u64,
    decisions: u64,
    negotiated: Vec<u64>,
    planned: Vec<u64>,
    steps: Vec<u64>,
}

/// Simulates the coordinators of a small world.
#[pyfunction]
#[pyo3(signature = (*, ranks, policy, steps, gradients, cycle_time, threshold, bucket, capacity, vote, tell, latency, bytes_per_s, apart=0, waits=None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python signature")]
pub fn simulate_agreement(
    py: Python<'_>,
    ranks: u32,
    policy: String,
    steps: u32,
    gradients: Vec<(u64, u64)>,
    cycle_time: u64,
    threshold: u64,
    bucket: (u64, u64),
    capacity: usize,
    vote: u64,
    tell: u64,
    latency: u64,
    bytes_per_s: f64,
    apart: usize,
    waits: Option<u64>,
) -> PyResult<Agreement> {
    let scenario = agreement::Scenario {
        ranks,
        policy,
        steps,
        gradients,
        apart,
        waits,
        cycle_time,
        threshold,
        bucket,
        capacity,
        vote,
        tell,
        latency,
        bytes_per_s,
    };
    let agreed = py.detach(|| agreement::agree(&scenario)).map_err(user_error)?;
    let agreement::Agreement { votes, sleeps, reports, decisions, negotiated, planned, steps } = agreed;
    Ok(Agreement { votes, sleeps, reports, decisions, negotiated, planned, steps })
}
