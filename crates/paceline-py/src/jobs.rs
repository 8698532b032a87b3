//! Several jobs on one network.
use std::path::PathBuf;
use std::sync::Arc;

use paceline_model::Time;
use paceline_simulator::Network;
use paceline_simulator::iteration::Resolution;
use paceline_simulator::jobs::{self, Length, Mix, PlacedJobSpec, Watch, server_nodes};
use pyo3::prelude::*;

use crate::{Cluster, Trace, spec, user_error, write_timeline};

/// A job and its place.
#[pyclass(frozen, module = "paceline._core")]
pub struct PlacedJob(PlacedJobSpec);

#[pymethods]
impl PlacedJob {
    #[new]
    #[pyo3(signature = (name, trace, options, *, ranks_per_node, gpus_per_rank, nodes, server_nodes, start_s))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python signature")]
    fn new(
        name: String,
        trace: &Trace,
        options: &str,
        ranks_per_node: u32,
        gpus_per_rank: u32,
        nodes: Vec<u32>,
        server_nodes: Vec<u32>,
        start_s: f64,
    ) -> PyResult<PlacedJob> {
        Ok(PlacedJob(PlacedJobSpec {
            options: spec::options(options).map_err(|e| user_error(format!("{name}: {e}")))?,
            trace: Arc::new(trace.0.clone()),
            name,
            ranks_per_node,
            gpus_per_rank,
            nodes,
            server_nodes,
            start: Time::from_seconds(start_s),
        }))
    }
}

/// What was measured of a job.
#[pyclass(frozen, get_all, module = "paceline._core")]
#[derive(Clone)]
pub struct JobOutcome {
    name: String,
    marks_ps: Vec<u64>,
    sync_every: u32,
    samples: u64,
    measured: (usize, usize),
    notes: Vec<String>,
}

/// How busy a link was, and the numbers of the jobs that used it.
#[pyclass(frozen, get_all, module = "paceline._core")]
#[derive(Clone)]
pub struct SharedLink {
    name: String,
    kind: &'static str,
    busy: f64,
    jobs: Vec<u32>,
}

/// The result for all jobs.
#[pyclass(frozen, get_all, module = "paceline._core")]
pub struct JobsOutcome {
    jobs: Vec<JobOutcome>,
    links: Vec<SharedLink>,
    measured_s: f64,
    is_complete: bool,
}

impl From<jobs::JobsOutcome> for JobsOutcome {
    fn from(outcome: jobs::JobsOutcome) -> JobsOutcome {
        let job = |jobs::JobOutcome { name, marks_ps, sync_every, samples, measured, notes }| JobOutcome {
            name,
            marks_ps,
            sync_every,
            samples,
            measured,
            notes,
        };
        let link = |jobs::SharedLink { name, kind, busy, jobs }| SharedLink { name, kind, busy, jobs };
        JobsOutcome {
            jobs: outcome.jobs.into_iter().map(job).collect(),
            links: outcome.links.into_iter().map(link).collect(),
            measured_s: outcome.measured_s,
            is_complete: outcome.is_complete,
        }
    }
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
        cluster: &Cluster,
        jobs: Vec<PyRef<'_, PlacedJob>>,
        nodes: u32,
        network: &str,
        watch: &JobsWatch,
    ) -> PyResult<JobsOnNetwork> {
        let jobs = jobs.iter().map(|job| job.0.clone()).collect();
        let network = spec::named::<Network>("network", network)?;
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
    /// each.
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
    ) -> PyResult<JobsOutcome> {
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
            Ok(outcome.into())
        })
    }
}

/// How many nodes of their own the servers of a job with these options need on this cluster.
#[pyfunction]
pub fn nodes_for_servers(cluster: &Cluster, options: &str) -> PyResult<u32> {
    let options = spec::options(options).map_err(user_error)?;
    Ok(server_nodes(&cluster.0, &options))
}
