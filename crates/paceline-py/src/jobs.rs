//! Several jobs on one network: JSON in and out.
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;

use paceline_model::Time;
use paceline_simulator::jobs::{Length, PlacedJobSpec, server_nodes};
use paceline_simulator::{Network, simulate_jobs, simulate_jobs_with_timeline};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use serde::Deserialize;

use crate::{Cluster, InternalError, Trace, spec, user_error};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mix {
    nodes: u32,
    network: Network,
    jobs: Vec<One>,
    /// Of the job with the fewest, while all run.
    iterations: u32,
    /// Instead: to which mark each job runs.
    marks: Option<Vec<usize>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    name: String,
    ranks_per_node: u32,
    gpus_per_rank: u32,
    nodes: Vec<u32>,
    server_nodes: Vec<u32>,
    start_s: f64,
    /// As for `simulate`.
    options: serde_json::Value,
}

/// Simulates several jobs on one network without the GIL: options and result are JSON.
#[pyfunction]
#[pyo3(signature = (traces, cluster, mix, timeline=None))]
#[expect(clippy::needless_pass_by_value, reason = "the Python list is converted")]
pub fn simulate_mix(
    py: Python<'_>,
    traces: Vec<PyRef<'_, Trace>>,
    cluster: &Cluster,
    mix: &str,
    timeline: Option<PathBuf>,
) -> PyResult<String> {
    let mix: Mix = serde_json::from_str(mix).map_err(|e| user_error(format!("jobs: {e}")))?;
    let mut jobs = Vec::with_capacity(mix.jobs.len());
    for (one, trace) in mix.jobs.into_iter().zip(&traces) {
        jobs.push(PlacedJobSpec {
            options: spec::options(&one.options.to_string()).map_err(|e| user_error(format!("{}: {e}", one.name)))?,
            name: one.name,
            trace: Arc::new(trace.0.clone()),
            ranks_per_node: one.ranks_per_node,
            gpus_per_rank: one.gpus_per_rank,
            nodes: one.nodes,
            server_nodes: one.server_nodes,
            start: Time::from_seconds(one.start_s),
        });
    }
    let length = mix.marks.map_or(Length::Iterations(mix.iterations), Length::Marks);
    py.detach(|| {
        let Some(path) = timeline else {
            let outcome = simulate_jobs(&cluster.0, mix.nodes, &jobs, mix.network, &length).map_err(user_error)?;
            return serde_json::to_string(&outcome).map_err(|e| InternalError::new_err(e.to_string()));
        };
        let (outcome, timeline) =
            simulate_jobs_with_timeline(&cluster.0, mix.nodes, &jobs, mix.network, &length).map_err(user_error)?;
        let written = File::create(&path).map(BufWriter::new).and_then(|mut out| {
            timeline.write(&mut out)?;
            out.flush()
        });
        written.map_err(|e| PyOSError::new_err(format!("{}: {e}", path.display())))?;
        serde_json::to_string(&outcome).map_err(|e| InternalError::new_err(e.to_string()))
    })
}

/// How many nodes of their own the servers of a job with these options need on this cluster.
#[pyfunction]
pub fn nodes_for_servers(cluster: &Cluster, options: &str) -> PyResult<u32> {
    let options = spec::options(options).map_err(user_error)?;
    Ok(server_nodes(&cluster.0, &options))
}
