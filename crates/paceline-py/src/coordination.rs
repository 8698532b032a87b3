//! Python bindings for forecasts with a coordinator.
use paceline_coordinator::PolicyKind;
use paceline_schedule::Refusal;
use paceline_simulator::coordination::{Constants, Coordination};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::json;

/// A coordinator, in the options of a simulation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spec {
    coordinator: String,
    contention_s: Option<f64>,
    graph_nodes: Option<f64>,
    #[serde(default)]
    constants: Constants,
}

impl Spec {
    pub fn coordination(self) -> Result<Coordination, Refusal> {
        let coordinator = PolicyKind::find(&self.coordinator)
            .ok_or_else(|| Refusal::about("coordinator", format!("no '{}'", self.coordinator)))?;
        let Spec { contention_s, graph_nodes, constants, .. } = self;
        Ok(Coordination { coordinator, contention_s, graph_nodes, constants })
    }
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
