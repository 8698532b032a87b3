//! Several jobs on one network: JSON in and out.
use std::path::PathBuf;
use std::sync::Arc;

use paceline_model::Time;
use paceline_simulator::Network;
use paceline_simulator::iteration::Resolution;
use paceline_simulator::jobs::{Length, Mix, PlacedJobSpec, Watch, server_nodes};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::{Cluster, InternalError, Trace, spec, user_error, write_timeline};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    nodes: u32,
    network: Network,
    jobs: Vec<One>,
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

/// Stops simulations of jobs, and says how far they are.
#[pyclass(frozen, name = "JobsWatch", module = "paceline._core")]
#[derive(Default)]
pub struct JobsWatch(Arc<Watch>);

#[pymethods]
impl JobsWatch {
    #[new]
    fn new() -> JobsWatch {
        JobsWatch::default()
    }

    /// All simulations end soon, with what they have.
    fn stop(&self) {
        self.0.stop();
    }

    /// Iterations that all jobs of a simulation have made, summed over simulations.
    #[getter]
    fn rounds(&self) -> u64 {
        self.0.rounds()
    }
}

/// Jobs on one network: all of them or some are simulated, at their places.
#[pyclass(frozen, name = "JobsOnNetwork", module = "paceline._core")]
pub struct JobsOnNetwork(Mix);

#[pymethods]
impl JobsOnNetwork {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "the Python list is converted")]
    fn new(
        py: Python<'_>,
        traces: Vec<PyRef<'_, Trace>>,
        cluster: &Cluster,
        mix: &str,
        watch: &JobsWatch,
    ) -> PyResult<JobsOnNetwork> {
        let described: Described = serde_json::from_str(mix).map_err(|e| user_error(format!("jobs: {e}")))?;
        let mut jobs = Vec::with_capacity(described.jobs.len());
        for (one, trace) in described.jobs.into_iter().zip(&traces) {
            jobs.push(PlacedJobSpec {
                options: spec::options(&one.options.to_string())
                    .map_err(|e| user_error(format!("{}: {e}", one.name)))?,
                name: one.name,
                trace: Arc::new(trace.0.clone()),
                ranks_per_node: one.ranks_per_node,
                gpus_per_rank: one.gpus_per_rank,
                nodes: one.nodes,
                server_nodes: one.server_nodes,
                start: Time::from_seconds(one.start_s),
            });
        }
        let (nodes, network) = (described.nodes, described.network);
        let mix = py.detach(|| Mix::new(&cluster.0, nodes, jobs, network, Arc::clone(&watch.0)));
        mix.map(JobsOnNetwork).map_err(user_error)
    }

    /// Messages of each job in the time of so many iterations of the slowest one.
    fn messages(&self, iterations: u32) -> Vec<u64> {
        self.0.messages(iterations)
    }

    /// Whether collectives can be single events.
    #[getter]
    fn has_collectives_only(&self) -> bool {
        self.0.has_collectives_only()
    }

    /// Simulates the jobs of these numbers: to the `iterations` of the slowest one while all run, or to these `marks` of
    /// each. Returns JSON.
    #[pyo3(signature = (which, *, iterations, marks=None, by_collective=false, timeline=None))]
    #[expect(clippy::needless_pass_by_value, reason = "the Python list is converted")]
    fn run(
        &self,
        py: Python<'_>,
        which: Vec<usize>,
        iterations: u32,
        marks: Option<Vec<usize>>,
        by_collective: bool,
        timeline: Option<PathBuf>,
    ) -> PyResult<String> {
        let length = marks.map_or(Length::Iterations(iterations), Length::Marks);
        let resolution = if by_collective { Resolution::Collectives } else { Resolution::Messages };
        py.detach(|| {
            let outcome = match timeline {
                None => self.0.run(&which, &length, resolution).map_err(user_error)?,
                Some(path) => {
                    let (outcome, timeline) = self.0.run_with_timeline(&which, &length).map_err(user_error)?;
                    write_timeline(&path, &timeline)?;
                    outcome
                }
            };
            serde_json::to_string(&outcome).map_err(|e| InternalError::new_err(e.to_string()))
        })
    }
}

/// How many nodes of their own the servers of a job with these options need on this cluster.
#[pyfunction]
pub fn nodes_for_servers(cluster: &Cluster, options: &str) -> PyResult<u32> {
    let options = spec::options(options).map_err(user_error)?;
    Ok(server_nodes(&cluster.0, &options))
}
