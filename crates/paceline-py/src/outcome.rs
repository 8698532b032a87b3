//! The result of a simulation, as typed fields.
use paceline_simulator::coordination::Coordinated;
use paceline_simulator::iteration::{self, Resolution};
use paceline_simulator::outcome;
use pyo3::prelude::*;

/// How busy the links of one kind were.
#[pyclass(frozen, eq, get_all, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct LinkUse {
    kind: &'static str,
    links: u32,
    busiest_s: f64,
    mean_s: f64,
}

/// Busy time of one link or worker.
#[pyclass(frozen, eq, get_all, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Busy {
    name: String,
    kind: &'static str,
    busy_s: f64,
}

/// A part of the critical path.
#[pyclass(frozen, eq, get_all, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct PathPart {
    part: &'static str,
    seconds: f64,
}

/// Exposed communication by collective.
#[pyclass(frozen, eq, get_all, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct ExposedBy {
    all_gather_s: f64,
    reduce_scatter_s: f64,
    all_reduce_s: f64,
    compression_s: f64,
}

/// A rank's memory at its peak.
#[pyclass(frozen, eq, get_all, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Memory {
    peak_bytes: u64,
    parameters_bytes: u64,
    gradients_bytes: u64,
    optimizer_bytes: u64,
    gathered_bytes: u64,
    communication_bytes: u64,
    activations_bytes: Option<u64>,
}

/// What the plan of the iteration says.
#[pyclass(frozen, eq, get_all, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Sharded {
    sharding: String,
    shard_ranks: u32,
    passes: u32,
    sync_every: u32,
    units: u32,
    parameters: u64,
    exposed: ExposedBy,
    straggling_s: f64,
    slowed_s: f64,
    calls_s: f64,
    memory: Memory,
    resolution: &'static str,
}

/// The result of one simulation.
#[pyclass(frozen, eq, get_all, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Outcome {
    trace: String,
    strategy: &'static str,
    workers: u32,
    servers: u32,
    bandwidth_bps: f64,
    iteration_s: f64,
    samples_per_s: Option<f64>,
    scaling_efficiency: Option<f64>,
    exposed_communication_s: f64,
    forward_s: f64,
    backward_s: f64,
    optimizer_s: f64,
    bytes_sent_per_worker: f64,
    messages: u64,
    batch: u32,
    gradient_bytes: u64,
    buckets: u32,
    links: Vec<LinkUse>,
    critical_path: Vec<PathPart>,
    queued_s: Option<f64>,
    busy: Option<Vec<Busy>>,
    coordinator: Option<&'static str>,
    coordinator_s: Option<f64>,
    copy_s: Option<f64>,
    collective_s: Option<f64>,
    latest_s: Option<f64>,
    contention_s: Option<f64>,
    sharded: Sharded,
    algorithm_bandwidth_bps: Option<f64>,
    bus_bandwidth_bps: Option<f64>,
    notes: Vec<String>,
}

impl From<iteration::Memory> for Memory {
    fn from(memory: iteration::Memory) -> Memory {
        let iteration::Memory {
            peak_bytes,
            parameters_bytes,
            gradients_bytes,
            optimizer_bytes,
            gathered_bytes,
            communication_bytes,
            activations_bytes,
        } = memory;
        Memory {
            peak_bytes,
            parameters_bytes,
            gradients_bytes,
            optimizer_bytes,
            gathered_bytes,
            communication_bytes,
            activations_bytes,
        }
    }
}

impl From<iteration::Sharded> for Sharded {
    fn from(sharded: iteration::Sharded) -> Sharded {
        let iteration::Sharded {
            sharding,
            shard_ranks,
            passes,
            sync_every,
            units,
            parameters,
            exposed,
            straggling_s,
            slowed_s,
            calls_s,
            memory,
            resolution,
        } = sharded;
        let iteration::ExposedBy { all_gather_s, reduce_scatter_s, all_reduce_s, compression_s } = exposed;
        Sharded {
            sharding,
            shard_ranks,
            passes,
            sync_every,
            units,
            parameters,
            exposed: ExposedBy { all_gather_s, reduce_scatter_s, all_reduce_s, compression_s },
            straggling_s,
            slowed_s,
            calls_s,
            memory: memory.into(),
            resolution: match resolution {
                Resolution::Messages => "messages",
                Resolution::Collectives => "collectives",
            },
        }
    }
}

impl From<outcome::Outcome> for Outcome {
    fn from(outcome: outcome::Outcome) -> Outcome {
        let outcome::Outcome {
            trace,
            strategy,
            workers,
            servers,
            bandwidth_bps,
            iteration_s,
            samples_per_s,
            scaling_efficiency,
            exposed_communication_s,
            forward_s,
            backward_s,
            optimizer_s,
            bytes_sent_per_worker,
            messages,
            batch,
            gradient_bytes,
            buckets,
            links,
            critical_path,
            queued_s,
            busy,
            coordination,
            sharded,
            bus,
            notes,
        } = outcome;
        let link = |outcome::LinkUse { kind, links, busiest_s, mean_s }| LinkUse { kind, links, busiest_s, mean_s };
        let one = |outcome::Busy { name, kind, busy_s }| Busy { name, kind, busy_s };
        let part = |outcome::PathPart { part, seconds }| PathPart { part, seconds };
        let coordinated = |field: fn(Coordinated) -> f64| coordination.map(field);
        Outcome {
            trace,
            strategy,
            workers,
            servers,
            bandwidth_bps,
            iteration_s,
            samples_per_s,
            scaling_efficiency,
            exposed_communication_s,
            forward_s,
            backward_s,
            optimizer_s,
            bytes_sent_per_worker,
            messages,
            batch,
            gradient_bytes,
            buckets,
            links: links.into_iter().map(link).collect(),
            critical_path: critical_path.into_iter().map(part).collect(),
            queued_s,
            busy: busy.map(|all| all.into_iter().map(one).collect()),
            coordinator: coordination.map(|it| it.coordinator),
            coordinator_s: coordinated(|it| it.coordinator_s),
            copy_s: coordinated(|it| it.copy_s),
            collective_s: coordinated(|it| it.collective_s),
            latest_s: coordinated(|it| it.latest_s),
            contention_s: coordinated(|it| it.contention_s),
            sharded: sharded.into(),
            algorithm_bandwidth_bps: bus.map(|it| it.algorithm_bandwidth_bps),
            bus_bandwidth_bps: bus.map(|it| it.bus_bandwidth_bps),
            notes,
        }
    }
}
