//! The result of a simulation, as typed fields.
use paceline_simulator::coordination::Coordinated;
use paceline_simulator::iteration::{self, Resolution};
use paceline_simulator::{outcome, staggering, staleness};
use pyo3::prelude::*;

use crate::fields::getters;
use crate::note::Note;

/// How busy the links of one kind were.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(PartialEq)]
pub struct LinkUse(outcome::LinkUse);

getters! { LinkUse, self {
    kind: &str = self.0.kind;
    links: u32 = self.0.links;
    busiest_s: f64 = self.0.busiest_s;
    mean_s: f64 = self.0.mean_s;
} }

/// Busy time of one link or worker.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(PartialEq)]
pub struct Busy(outcome::Busy);

getters! { Busy, self {
    name: &str = &self.0.name;
    kind: &str = self.0.kind;
    busy_s: f64 = self.0.busy_s;
} }

/// A part of the critical path.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(PartialEq)]
pub struct PathPart(outcome::PathPart);

getters! { PathPart, self {
    part: &str = self.0.part;
    seconds: f64 = self.0.seconds;
} }

/// Exposed communication by collective.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(PartialEq)]
pub struct ExposedBy(iteration::ExposedBy);

getters! { ExposedBy, self {
    all_gather_s: f64 = self.0.all_gather_s;
    reduce_scatter_s: f64 = self.0.reduce_scatter_s;
    all_reduce_s: f64 = self.0.all_reduce_s;
    compression_s: f64 = self.0.compression_s;
} }

/// A rank's memory at its peak.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(PartialEq)]
pub struct Memory(pub iteration::Memory);

getters! { Memory, self {
    peak_bytes: u64 = self.0.peak_bytes;
    parameters_bytes: u64 = self.0.parameters_bytes;
    gradients_bytes: u64 = self.0.gradients_bytes;
    optimizer_bytes: u64 = self.0.optimizer_bytes;
    gathered_bytes: u64 = self.0.gathered_bytes;
    communication_bytes: u64 = self.0.communication_bytes;
    activations_bytes: Option<u64> = self.0.activations_bytes;
    apart_bytes: u64 = self.0.apart_bytes;
    state_bytes: u64 = self.0.state_bytes;
} }

/// The part of an outcome that only a plan has.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(PartialEq)]
pub struct Sharded(iteration::Sharded);

getters! { Sharded, self {
    sharding: &str = &self.0.sharding;
    shard_ranks: u32 = self.0.shard_ranks;
    passes: u32 = self.0.passes;
    sync_every: u32 = self.0.sync_every;
    units: u32 = self.0.units;
    parameters: u64 = self.0.parameters;
    exposed: ExposedBy = ExposedBy(self.0.exposed);
    straggling_s: f64 = self.0.straggling_s;
    slowed_s: f64 = self.0.slowed_s;
    calls_s: f64 = self.0.calls_s;
    memory: Memory = Memory(self.0.memory);
    resolution: &str = match self.0.resolution {
        Resolution::Messages => "messages",
        Resolution::Collectives => "collectives",
    };
} }

/// The moments at which workers come to a part of an iteration, from its beginning.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(PartialEq)]
pub struct Spread(staggering::Spread);

getters! { Spread, self {
    min_s: f64 = self.0.min_s;
    median_s: f64 = self.0.median_s;
    max_s: f64 = self.0.max_s;
    spread_s: f64 = self.0.spread_s();
    workers_s: Option<Vec<f64>> = self.0.workers_s.clone();
} }

/// How far apart workers come to the parts of an iteration.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(PartialEq)]
pub struct Staggering(staggering::Staggering);

getters! { Staggering, self {
    pull: Option<Spread> = self.0.pull.clone().map(Spread);
    backward: Spread = Spread(self.0.backward.clone());
    push: Spread = Spread(self.0.push.clone());
} }

/// The steady state of workers that do not wait for each other.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(PartialEq)]
pub struct Asynchronous(staleness::Asynchronous);

getters! { Asynchronous, self {
    bound: Option<u32> = self.0.bound;
    iterations: u32 = self.0.iterations;
    staleness: Vec<(u32, u64)> = self.0.staleness.clone();
    mean: f64 = self.0.mean();
    median: u32 = self.0.quantile(0.5);
    p90: u32 = self.0.quantile(0.9);
    blocked_s: f64 = self.0.blocked_s;
    fastest_s: f64 = self.0.fastest_s;
    slowest_s: f64 = self.0.slowest_s;
} }

/// The result of one simulation.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(PartialEq)]
pub struct Outcome(pub outcome::Outcome);

impl Outcome {
    fn coordinated(&self, field: fn(&Coordinated) -> f64) -> Option<f64> {
        self.0.coordination.as_ref().map(field)
    }
}

getters! { Outcome, self {
    trace: &str = &self.0.trace;
    strategy: &str = self.0.strategy;
    workers: u32 = self.0.workers;
    servers: u32 = self.0.servers;
    bandwidth_bps: f64 = self.0.bandwidth_bps;
    iteration_s: f64 = self.0.iteration_s;
    samples_per_s: Option<f64> = self.0.samples_per_s;
    scaling_efficiency: Option<f64> = self.0.scaling_efficiency;
    exposed_communication_s: f64 = self.0.exposed_communication_s;
    forward_s: f64 = self.0.forward_s;
    backward_s: f64 = self.0.backward_s;
    optimizer_s: f64 = self.0.optimizer_s;
    bytes_sent_per_worker: f64 = self.0.bytes_sent_per_worker;
    messages: u64 = self.0.messages;
    batch: u32 = self.0.batch;
    gradient_bytes: u64 = self.0.gradient_bytes;
    buckets: u32 = self.0.buckets;
    server_shares: Vec<f64> = self.0.server_shares.clone();
    links: Vec<LinkUse> = self.0.links.iter().cloned().map(LinkUse).collect();
    critical_path: Vec<PathPart> = self.0.critical_path.iter().cloned().map(PathPart).collect();
    queued_s: Option<f64> = self.0.queued_s;
    busy: Option<Vec<Busy>> = self.0.busy.as_ref().map(|all| all.iter().cloned().map(Busy).collect());
    coordinator: Option<String> = self.0.coordination.as_ref().map(|it| it.coordinator.to_string());
    coordinator_s: Option<f64> = self.coordinated(|it| it.coordinator_s);
    copy_s: Option<f64> = self.coordinated(|it| it.copy_s);
    collective_s: Option<f64> = self.coordinated(|it| it.collective_s);
    latest_s: Option<f64> = self.coordinated(|it| it.latest_s);
    contention_s: Option<f64> = self.coordinated(|it| it.contention_s);
    staggering: Option<Staggering> = self.0.staggering.clone().map(Staggering);
    asynchronous: Option<Asynchronous> = self.0.asynchronous.clone().map(Asynchronous);
    sharded: Sharded = Sharded(self.0.sharded.clone());
    algorithm_bandwidth_bps: Option<f64> = self.0.bus.map(|bus| bus.algorithm_bandwidth_bps);
    bus_bandwidth_bps: Option<f64> = self.0.bus.map(|bus| bus.bus_bandwidth_bps);
    notes: Vec<Note> = self.0.notes.iter().copied().map(Note::from).collect();
} }
