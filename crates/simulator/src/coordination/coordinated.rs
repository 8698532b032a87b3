//! A run of many iterations: its options and its result.
use paceline_coordinator::PolicyKind;
use paceline_model::{Cluster, Trace};
use serde::Serialize;

use super::collective::Collective;
use super::constants::Constants;
use super::draws::Draws;
use super::iteration::iterate;
use super::policy::{Setting, model};
use super::workload::Workload;
use crate::options::SimulationError;

/// The options of a run, other than trace and cluster.
#[derive(Clone)]
pub struct CoordinatedOptions {
    /// The coordinator's policy.
    pub coordinator: PolicyKind,
    /// Name or alias of the collective's strategy.
    pub strategy: String,
    /// Number of processes, one per GPU.
    pub workers: u32,
    /// Number of iterations to average over.
    pub iterations: u32,
    /// Seed of all random draws.
    pub seed: u64,
    /// Whether gradients are submitted while the backward pass is still running.
    pub overlap: bool,
    /// How long pipeline and scheduling are both active; `None`: the constants' share of an iteration on one node.
    pub contention_s: Option<f64>,
    /// Nodes of the training step's graph; `None`: the constants' nodes for every tensor.
    pub graph_nodes: Option<f64>,
    /// Constants of the model.
    pub constants: Constants,
}

/// Breakdown of an iteration in seconds: disjoint parts, averaged over processes and iterations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Breakdown {
    /// Computation of a process without delays.
    pub compute_s: f64,
    /// Waiting until a collective begins: ranks that are not ready, late wake-ups, cycles, agreement.
    pub coordinator_s: f64,
    /// Copies to and from the fusion buffer.
    pub copy_s: f64,
    /// Inside the collective: the network, and processes that arrive later than others.
    pub collective_s: f64,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct Coordinated {
    /// The registry's name of the policy.
    pub coordinator: &'static str,
    /// Number of processes.
    pub workers: u32,
    /// Mean iteration time.
    pub iteration_s: f64,
    /// Breakdown of the mean.
    pub breakdown: Breakdown,
    /// Mean lateness of the latest process in seconds; the waiting for it is included in the parts.
    pub latest_s: f64,
    /// How long input pipeline and scheduling are both active, in seconds.
    pub contention_s: f64,
    /// Number of buckets if all tensors were ready at once.
    pub buckets: usize,
    /// Messages of all buckets.
    pub messages: u64,
    /// Bytes that a worker sends per iteration.
    pub bytes_sent_per_worker: f64,
}

/// More would take too long to simulate, and fewer draws give the same result.
const MOST_ITERATIONS: u32 = 1_000_000;

/// Simulates one run.
///
/// # Errors
/// Invalid options; the message says what to do.
pub fn coordinate(
    trace: &Trace,
    cluster: &Cluster,
    options: &CoordinatedOptions,
) -> Result<Coordinated, SimulationError> {
    check(trace, cluster, options)?;
    let constants = &options.constants;
    let element_bytes = trace.dtype.size();
    let workload = Workload::new(trace, options.overlap, constants);
    let mut collective = Collective::new(&options.strategy, options.workers, cluster, element_bytes, constants)?;
    let contention = match options.contention_s {
        Some(seconds) => seconds * 1e3,
        None => {
            constants.contention_share * workload.on_one_node(&options.strategy, cluster, element_bytes, constants)?
        }
    };
    // Without overlap, no tensor moves before the computation ends, and contention ends with it.
    let contention = contention.min(workload.compute);
    let nodes = options.graph_nodes.unwrap_or(constants.nodes_per_tensor * workload.tensors.len() as f64);
    let model = model(options.coordinator);
    let stretch = (model.stretch)(constants);
    let setting = Setting {
        processes: options.workers,
        compute: workload.compute,
        contention: (contention * stretch).min(workload.compute),
        nodes_per_ms: if contention > 0.0 { constants.contention_share * nodes / contention } else { 0.0 },
        consensus: constants.consensus_step_ms * f64::from(options.workers).log2(),
        constants: constants.clone(),
    };
    let (mut coordinator, mut copy, mut network, mut late) = (0.0, 0.0, 0.0, 0.0);
    // A single process agrees with itself and reduces nothing.
    let iterations = if options.workers > 1 { options.iterations } else { 0 };
    for iteration in 0..iterations {
        let mut draws = Draws::new(options.seed, iteration);
        let spent = iterate(model, &setting, &workload, &mut collective, &mut draws)?;
        coordinator += spent.coordinator;
        copy += spent.copy;
        network += spent.collective;
        late += spent.late;
    }
    let mean = |sum: f64| sum / f64::from(iterations.max(1)) * 1e-3;
    let breakdown = Breakdown {
        compute_s: (workload.compute + workload.optimizer) * 1e-3,
        coordinator_s: mean(coordinator),
        copy_s: mean(copy),
        collective_s: mean(network),
    };
    let buckets = workload.fuse(&workload.tensors);
    let volumes: Vec<_> = buckets.iter().map(|bucket| collective.volume(bucket.bytes)).collect();
    let elements: u64 = volumes.iter().map(|volume| volume.worker_elements).sum();
    Ok(Coordinated {
        coordinator: options.coordinator.name(),
        workers: options.workers,
        iteration_s: breakdown.compute_s + breakdown.coordinator_s + breakdown.copy_s + breakdown.collective_s,
        breakdown,
        latest_s: mean(late),
        contention_s: setting.contention * 1e-3,
        buckets: buckets.len(),
        messages: volumes.iter().map(|volume| volume.messages).sum(),
        bytes_sent_per_worker: elements as f64 * element_bytes as f64 / f64::from(options.workers),
    })
}

fn check(trace: &Trace, cluster: &Cluster, options: &CoordinatedOptions) -> Result<(), SimulationError> {
    let wrong = |message: String| Err(SimulationError(message));
    options.constants.check().map_err(SimulationError)?;
    if options.workers == 0 {
        return wrong("workers: there must be at least one".into());
    }
    if !(1..=MOST_ITERATIONS).contains(&options.iterations) {
        return wrong(format!("iterations: give a number from 1 to {MOST_ITERATIONS}"));
    }
    if trace.tensors.iter().all(|tensor| tensor.bytes == 0) || trace.workers[0].gradients.is_empty() {
        return wrong(format!("{}: has no gradients, so there is nothing to coordinate", trace.name));
    }
    if let Some(seconds) = options.contention_s
        && !(0.0..=86_400.0).contains(&seconds)
    {
        return wrong(format!("contention: {seconds} s is not between 0 and a day"));
    }
    if let Some(nodes) = options.graph_nodes
        && !(0.0..=1e9).contains(&nodes)
    {
        return wrong(format!("graph_nodes: {nodes} is not between 0 and 1e9"));
    }
    if cluster.jitter.is_some() || !cluster.stragglers.is_empty() {
        return wrong(format!(
            "cluster '{}': its jitter and stragglers have no effect under a coordinator, whose processes are late by its \
             own constants; take them out of the file",
            cluster.name
        ));
    }
    if cluster.racks.is_some()
        || cluster.fabric.is_some()
        || !cluster.degraded.is_empty()
        || cluster.host_bandwidth.is_some()
        || cluster.reduction_bandwidth.is_some()
    {
        return wrong(format!(
            "cluster '{}': racks, fabric, degraded, host_bandwidth and reduction_bandwidth are not in the closed forms that a coordinator's \
             collectives take; take them out of the file",
            cluster.name
        ));
    }
    Ok(())
}
