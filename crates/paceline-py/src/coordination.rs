//! Python bindings for forecasts with a coordinator.
use paceline_coordinator::PolicyKind;
use paceline_simulator::coordination::{Constants, CoordinatedOptions, coordinate as run};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::json;

use crate::{Cluster, InternalError, Trace, user_error};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    coordinator: String,
    strategy: String,
    workers: u32,
    iterations: u32,
    seed: u64,
    overlap: bool,
    contention_s: Option<f64>,
    graph_nodes: Option<f64>,
    #[serde(default)]
    constants: Constants,
}

/// Simulates training with a coordinator, without the GIL. Returns the outcome as JSON.
#[pyfunction]
pub(crate) fn coordinate(py: Python<'_>, trace: &Trace, cluster: &Cluster, options: &str) -> PyResult<String> {
    let spec: Spec = serde_json::from_str(options).map_err(|e| user_error(format!("coordinator: {e}")))?;
    let coordinator = PolicyKind::find(&spec.coordinator)
        .ok_or_else(|| user_error(format!("coordinator: no '{}'", spec.coordinator)))?;
    let options = CoordinatedOptions {
        coordinator,
        strategy: spec.strategy,
        workers: spec.workers,
        iterations: spec.iterations,
        seed: spec.seed,
        overlap: spec.overlap,
        contention_s: spec.contention_s,
        graph_nodes: spec.graph_nodes,
        constants: spec.constants,
    };
    let result = py.detach(|| run(&trace.0, &cluster.0, &options)).map_err(user_error)?;
    serde_json::to_string(&result).map_err(|e| InternalError::new_err(e.to_string()))
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
