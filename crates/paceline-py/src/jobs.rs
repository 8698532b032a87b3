//! Several jobs on one network.
use std::path::PathBuf;
use std::sync::Arc;

use paceline_model::Time;
use paceline_simulator::Network;
use paceline_simulator::iteration::Resolution;
use paceline_simulator::jobs::{self, Length, Mix, PlacedJobSpec, Watch};
use pyo3::prelude::*;

use crate::cluster::Cluster;
use crate::fields::getters;
use crate::note::Note;
use crate::scenario::{Scenario, named};
use crate::{user_error, write_timeline};

/// A job and its place.
#[pyclass(frozen, module = "paceline._core")]
pub struct PlacedJob(PlacedJobSpec);

#[pymethods]
impl PlacedJob {
    #[new]
    #[pyo3(signature = (name, scenario, *, ranks_per_node, gpus_per_rank, nodes, server_nodes, start_s))]
    fn new(
        name: String,
        scenario: &Scenario,
        ranks_per_node: u32,
        gpus_per_rank: u32,
        nodes: Vec<u32>,
        server_nodes: Vec<u32>,
        start_s: f64,
    ) -> PlacedJob {
        let (trace, options) = scenario.job();
        PlacedJob(PlacedJobSpec {
            name,
            trace: Arc::new(trace),
            options,
            ranks_per_node,
            gpus_per_rank,
            nodes,
            server_nodes,
            start: Time::from_seconds(start_s),
        })
    }
}

/// Measurements of a job.
#[pyclass(frozen, module = "paceline._core")]
pub struct JobOutcome(jobs::JobOutcome);

getters! { JobOutcome, self {
    name: &str = &self.0.name;
    marks_ps: Vec<u64> = self.0.marks_ps.clone();
    sync_every: u32 = self.0.sync_every;
    samples: u64 = self.0.samples;
    measured: (usize, usize) = self.0.measured;
    notes: Vec<Note> = self.0.notes.iter().copied().map(Note::from).collect();
} }

/// How busy a link was, and the numbers of the jobs that used it.
#[pyclass(frozen, module = "paceline._core")]
pub struct SharedLink(jobs::SharedLink);

getters! { SharedLink, self {
    name: &str = &self.0.name;
    kind: &str = self.0.kind;
    busy: f64 = self.0.busy;
    jobs: Vec<u32> = self.0.jobs.clone();
} }

/// The result for all jobs.
#[pyclass(frozen, module = "paceline._core")]
pub struct JobsOutcome(jobs::JobsOutcome);

getters! { JobsOutcome, self {
    jobs: Vec<JobOutcome> = self.0.jobs.iter().cloned().map(JobOutcome).collect();
    links: Vec<SharedLink> = self.0.links.iter().cloned().map(SharedLink).collect();
    measured_s: f64 = self.0.measured_s;
    is_complete: bool = self.0.is_complete;
} }

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
        let network = named::<Network>("network", network)?;
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
            Ok(JobsOutcome(outcome))
        })
    }
}
