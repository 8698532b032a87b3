//! Converts trace, cluster and options for the event loop: buckets, layers and gradients.
use std::borrow::Cow;
use std::sync::Arc;

use paceline_model::trace::WorkerTrace;
use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_schedule::{
    Bucket, ChunkBytes, Collective, Entry, Knob, Knobs, Placement, Rates, Schedule, Topology, buckets,
    build_collective, look_up,
};

use crate::iteration::PlanRun;
use crate::lanes::Lanes;
use crate::options::{Network, Options, Pull, SimulationError};

/// One forward layer of a recorded worker.
pub(crate) struct Layer {
    pub duration: Time,
    /// Range of `Worker::needs`: the buckets it waits for.
    pub needs: std::ops::Range<usize>,
}

/// A recorded worker, in terms of buckets.
pub(crate) struct Worker {
    pub layers: Vec<Layer>,
    pub needs: Vec<u32>,
    pub forward: Time,
    pub backward: Time,
    /// The optimizer step after the last bucket; zero if layers include it.
    pub optimizer: Time,
    /// When each bucket may be sent, from the start of the backward pass; sorted.
    pub ready: Vec<(Time, u32)>,
}

/// The constants of a simulation.
pub(crate) struct Prepared {
    pub entry: &'static Entry,
    pub schedule: Box<dyn Schedule>,
    pub buckets: Vec<Bucket>,
    pub names: Vec<String>,
    /// Position of each bucket in the distribution order.
    pub priority: Vec<u32>,
    pub element_bytes: u64,
    pub workers: Vec<Worker>,
    /// Forward layers wait for their parameters individually.
    pub pull_by_layer: bool,
    /// There is no computation: an iteration is one exchange, from gradients ready everywhere to sums everywhere.
    pub exchange_only: bool,
    /// What workers do instead of the passes of a trace.
    pub plan: Option<PlanRun>,
}

/// Events store roles in 16 bits.
const MAX_ROLES: u32 = 65_535;

fn wrong<T>(message: String) -> Result<T, SimulationError> {
    Err(SimulationError(message))
}

/// Refuses what the event loop cannot hold.
pub(crate) fn prepare(trace: &Trace, cluster: &Cluster, options: &Options) -> Result<Prepared, SimulationError> {
    prepare_in(trace, cluster, options, None)
}

/// The same for nodes in other racks than the cluster's: those of one of several jobs.
pub(crate) fn prepare_in(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    racks: Option<Arc<[u32]>>,
) -> Result<Prepared, SimulationError> {
    let prepared = plan_in(trace, cluster, options, racks)?;
    let roles = prepared.schedule.roles().total();
    if roles > MAX_ROLES {
        return wrong(format!("workers: {roles} workers, servers and switches are more than the {MAX_ROLES} possible"));
    }
    check_size(prepared.schedule.as_ref(), &prepared.buckets, &prepared.names)?;
    Ok(prepared)
}

/// The strategy's program on this cluster, or on nodes in other racks than its own.
pub(crate) fn schedule_of(
    cluster: &Cluster,
    options: &Options,
    element_bytes: u64,
    buckets: usize,
    racks: Option<Arc<[u32]>>,
) -> Result<(&'static Entry, Box<dyn Schedule>), SimulationError> {
    let entry = look_up(&options.strategy).map_err(|e| SimulationError(format!("strategy: {e}")))?;
    let mut knobs = knobs(options, element_bytes, buckets)?;
    knobs.rates = Some(rates(cluster, element_bytes));
    let servers = if entry.uses(Knob::Servers) { options.servers } else { 0 };
    let mut topology = topology(options.workers, servers, cluster, element_bytes);
    topology.racks = racks.or(topology.racks);
    let schedule =
        build_collective(options.collective, entry.name, &topology, &knobs).map_err(|e| SimulationError(e.0))?;
    Ok((entry, schedule))
}

/// The same for a world of any size.
pub(crate) fn plan(trace: &Trace, cluster: &Cluster, options: &Options) -> Result<Prepared, SimulationError> {
    plan_in(trace, cluster, options, None)
}

fn plan_in(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    racks: Option<Arc<[u32]>>,
) -> Result<Prepared, SimulationError> {
    let entry = look_up(&options.strategy).map_err(|e| SimulationError(format!("strategy: {e}")))?;
    check(trace, cluster, options, entry)?;
    let with_servers = entry.uses(Knob::Pull);
    let element_bytes = trace.dtype.size();
    let grouped = group(trace, options, with_servers);
    let (_, schedule) = schedule_of(cluster, options, element_bytes, grouped.len(), racks)?;

    let mut bucket_of = vec![u32::MAX; trace.tensors.len()];
    let mut list = Vec::with_capacity(grouped.len());
    let mut names = Vec::with_capacity(grouped.len());
    for (id, tensors) in (0u32..).zip(&grouped) {
        let pull_only = trace.tensors[tensors[0] as usize].bytes == 0;
        let bytes: u64 = tensors
            .iter()
            .map(|&t| {
                let tensor = &trace.tensors[t as usize];
                if pull_only { tensor.pull_bytes } else { tensor.bytes }
            })
            .sum();
        tensors.iter().for_each(|&t| bucket_of[t as usize] = id);
        // A moving average may have another type: only its bytes matter.
        list.push(Bucket { id, len: bytes.div_ceil(element_bytes), pull_only });
        let first = &trace.tensors[tensors[0] as usize].name;
        names.push(if tensors.len() == 1 { first.clone() } else { format!("{first} +{}", tensors.len() - 1) });
    }
    let mut priority = vec![u32::MAX; list.len()];
    for (position, &tensor) in (0u32..).zip(&trace.distribution) {
        let bucket = bucket_of[tensor as usize];
        if bucket != u32::MAX {
            let slot = &mut priority[bucket as usize];
            *slot = position.min(*slot);
        }
    }
    let exchange_only = trace.workers.iter().all(|worker| worker.compute_time() == Time::ZERO);
    let pull_by_layer = with_servers && options.pull == Pull::Layer && !exchange_only;
    let workers = trace
        .workers
        .iter()
        .map(|worker| prepare_worker(worker, trace, options, &bucket_of, &list, pull_by_layer))
        .collect();
    Ok(Prepared {
        entry,
        schedule,
        buckets: list,
        names,
        priority,
        element_bytes,
        workers,
        pull_by_layer,
        exchange_only,
        plan: None,
    })
}

/// Checks what has nothing to do with a strategy's features.
pub(crate) fn check_plain(trace: &Trace, cluster: &Cluster, options: &Options) -> Result<(), SimulationError> {
    let entry = look_up(&options.strategy).map_err(|e| SimulationError(format!("strategy: {e}")))?;
    check(trace, cluster, options, entry)
}

fn check(trace: &Trace, cluster: &Cluster, options: &Options, entry: &Entry) -> Result<(), SimulationError> {
    if entry.uses(Knob::Multicast) && !cluster.switch.multicast {
        return wrong(format!(
            "strategy: {} needs a switch that multicasts, and cluster '{}' has none (switch.multicast)",
            entry.name, cluster.name
        ));
    }
    if entry.uses(Knob::Aggregation) && !cluster.switch.aggregation {
        return wrong(format!(
            "strategy: {} needs a switch that aggregates, and cluster '{}' has none (switch.aggregation)",
            entry.name, cluster.name
        ));
    }
    if cluster.switch.cut_through && entry.uses(Knob::Aggregation) && options.network == Network::Fluid {
        return wrong(
            "network: fluid has no model of a switch that forwards sums as they arrive (switch.cut_through); use fifo"
                .into(),
        );
    }
    if options.collective != Collective::AllReduce
        && trace.workers.iter().any(|worker| worker.compute_time() != Time::ZERO)
    {
        return wrong(format!(
            "collective: trace '{}' computes, and its gradients are all-reduced; {} is for exchanges alone",
            trace.name,
            options.collective.name()
        ));
    }
    if !(options.compute_speedup.is_finite() && (1e-6..=1e6).contains(&options.compute_speedup)) {
        return wrong(format!(
            "compute-speedup: {} is not between 0.000001 and 1000000; 2 makes all compute twice as fast",
            options.compute_speedup
        ));
    }
    if options.iterations.is_some_and(|n| n == 0 || n > 100_000) {
        return wrong("iterations: give a number from 1 to 100000".into());
    }
    if !(0.0..=2.0).contains(&options.spread) {
        return wrong(format!("spread: {} is not between 0 and 2", options.spread));
    }
    check_duration(trace, cluster, options)?;
    if let Some(&(rank, _)) = cluster.stragglers.iter().find(|(rank, _)| *rank >= options.workers) {
        return wrong(format!(
            "cluster.stragglers: rank {rank} does not exist; {} workers are numbered from 0",
            options.workers
        ));
    }
    Ok(())
}

/// The cluster as strategies see it.
pub(crate) fn topology(workers: u32, servers: u32, cluster: &Cluster, element_bytes: u64) -> Topology {
    Topology {
        workers,
        ranks_per_node: cluster.gpus_per_node,
        servers,
        switch_radix: cluster.switch.radix,
        switch_memory: cluster.switch.memory.map(|bytes| bytes / element_bytes),
        racks: None,
    }
    .in_racks(nodes_per_switch(cluster))
}

/// Nodes under one switch of the lowest level; `None`: all.
pub(crate) fn nodes_per_switch(cluster: &Cluster) -> Option<u32> {
    let of_fabric = cluster.fabric.as_ref().map(paceline_model::cluster::Fabric::nodes_per_switch);
    cluster.racks.map(|racks| racks.nodes_per_rack).or(of_fabric.filter(|&nodes| nodes > 1))
}

/// The rates of the cluster's links, for strategies whose choice depends on them.
pub(crate) fn rates(cluster: &Cluster, element_bytes: u64) -> Rates {
    let bytes_per_s = |rate: Rate| (rate.0 / 8.0) as u64;
    Rates {
        between: bytes_per_s(cluster.bandwidth),
        inside: bytes_per_s(cluster.intra_bandwidth),
        element: element_bytes,
    }
}

/// The cluster with at least the latencies of the strategy's library: those of the largest bucket.
pub(crate) fn with_least_latency<'a>(cluster: &'a Cluster, prepared: &Prepared) -> Cow<'a, Cluster> {
    let largest = prepared.buckets.iter().max_by_key(|bucket| bucket.len);
    let Some(least) = largest.and_then(|bucket| prepared.schedule.least_latency(bucket)) else {
        return Cow::Borrowed(cluster);
    };
    Cow::Owned(Cluster {
        latency: cluster.latency.max(Time::from_seconds(least.between_s)),
        intra_latency: cluster.intra_latency.max(Time::from_seconds(least.inside_s)),
        ..cluster.clone()
    })
}

/// Time is 64 bits of picoseconds, 213 days: simulations that could come near that are refused, because the result
/// could be wrong. The bound is generous: all workers' bytes through one link twice, and compute at its slowest.
fn check_duration(trace: &Trace, cluster: &Cluster, options: &Options) -> Result<(), SimulationError> {
    let compute = trace.workers.iter().map(|worker| worker.compute_time().seconds()).fold(0.0, f64::max);
    let straggler = cluster.stragglers.iter().map(|&(_, factor)| factor).fold(1.0, f64::max);
    // Nine standard deviations do not occur in any simulation of feasible length.
    let jitter = (9.0 * cluster.jitter.map_or(options.spread, |jitter| jitter.sigma)).exp();
    let calls = (options.call + options.agreement).seconds() * trace.tensors.len() as f64;
    let compute = (compute / options.compute_speedup + calls) * (1.0 + cluster.node_contention);
    let slowest = compute * straggler * (1.0 + trace.backward_spread) * jitter;
    let bytes: f64 = trace.tensors.iter().map(|tensor| tensor.pull_bytes.max(tensor.bytes) as f64).sum();
    let oversubscription = cluster.racks.map_or(1.0, |racks| racks.oversubscription);
    let own = [cluster.host_bandwidth, cluster.reduction_bandwidth].into_iter().flatten().map(|rate| rate.0);
    let fabric = cluster.fabric.as_ref().map_or(f64::INFINITY, |fabric| fabric.link_rate(cluster.bandwidth).0);
    let left = cluster.degraded.iter().map(|one| one.factor).filter(|&factor| factor > 0.0).fold(1.0, f64::min);
    let rate =
        own.fold(cluster.bandwidth.0.min(cluster.intra_bandwidth.0) / oversubscription, f64::min).min(fabric) * left;
    // Through the slowest link, and through the adders.
    let network = 4.0 * bytes * 8.0 * f64::from(options.workers) / rate;
    let iterations = f64::from(options.iterations.unwrap_or(2)) + 2.0;
    if (slowest + network) * iterations > 1e7 {
        return wrong(format!(
            "'{}' could take {:.0} days on this cluster, and simulated time ends at 115 days; check the units of times, \
             sizes and rates, or ask for fewer iterations",
            trace.name,
            (slowest + network) * iterations / 86_400.0
        ));
    }
    Ok(())
}

/// Limit for the states of one bucket; others are in flight at the same time.
const MAX_STATE_BYTES: usize = 4_000_000_000;

/// More messages than this take over ten minutes and, if all are in flight, more memory than machines have.
const MAX_MESSAGES: u64 = 4_000_000_000;

/// Refuses simulations that need too much memory or time before they start.
fn check_size(schedule: &dyn Schedule, buckets: &[Bucket], names: &[String]) -> Result<(), SimulationError> {
    let Some(bucket) = buckets.iter().max_by_key(|bucket| schedule.lanes(bucket)) else { return Ok(()) };
    let lanes = schedule.lanes(bucket);
    let bytes = Lanes::bytes(schedule.roles().total(), lanes, schedule.slots(), schedule.senders());
    // Piece numbers have 32 bits.
    if lanes == u32::MAX || bytes > MAX_STATE_BYTES {
        return wrong(format!(
            "chunk: '{}' in {lanes} pieces or more needs over {} GB of memory; ask for larger pieces (--chunk) or fewer \
             workers and servers",
            names[bucket.id as usize],
            bytes / 1_000_000_000
        ));
    }
    let messages = buckets.iter().fold(0u64, |sum, bucket| sum.saturating_add(schedule.volume(bucket).messages));
    if messages > MAX_MESSAGES {
        return wrong(format!(
            "chunk: {messages} messages an iteration are more than the {MAX_MESSAGES} that can be simulated; fuse tensors \
             (--bucket-size), ask for larger pieces (--chunk) or fewer workers"
        ));
    }
    Ok(())
}

fn knobs(options: &Options, element_bytes: u64, buckets: usize) -> Result<Knobs, SimulationError> {
    let chunk = match options.chunk {
        None => None,
        Some(ChunkBytes::Size(bytes)) if bytes < element_bytes => {
            return wrong(format!("chunk: {bytes} bytes are less than one element of {element_bytes}"));
        }
        Some(chunk) => chunk.in_elements(element_bytes),
    };
    if let Placement::Table(table) = &options.placement
        && table.len() != buckets
    {
        return wrong(format!("placement: places {} buckets, but there are {buckets}", table.len()));
    }
    Ok(Knobs {
        chunk,
        placement: options.placement.clone(),
        distribution: options.distribution,
        barrier: options.barrier,
        inside: options.inside,
        ..Knobs::default()
    })
}

/// The tensors of each bucket. Without fusion, bucket i is tensor i, so that placement counts tensors in model order;
/// tensors without gradient are included if servers distribute them.
fn group(trace: &Trace, options: &Options, with_servers: bool) -> Vec<Vec<u32>> {
    let mut groups: Vec<Vec<u32>> = match options.bucket_size {
        None => (0u32..).zip(&trace.tensors).filter(|(_, t)| t.bytes > 0).map(|(i, _)| vec![i]).collect(),
        Some(_) => {
            let order: Vec<u32> = trace.workers[0].gradients.iter().map(|g| g.tensor).collect();
            let bytes: Vec<u64> = order.iter().map(|&t| trace.tensors[t as usize].bytes).collect();
            buckets::fuse(&bytes, options.bucket_size).into_iter().map(|range| order[range].to_vec()).collect()
        }
    };
    if with_servers {
        groups.extend((0u32..).zip(&trace.tensors).filter(|(_, t)| t.bytes == 0).map(|(i, _)| vec![i]));
    }
    groups
}

/// The buckets of a simulation for users of `--placement FILE`: names of their tensors.
#[must_use]
pub fn bucket_tensors(trace: &Trace, bucket_size: Option<u64>) -> Vec<Vec<u32>> {
    let options = Options { bucket_size, ..Options::new("ps", 1) };
    group(trace, &options, true)
}

/// When the library may send each gradient of a worker, and when the worker's backward pass ends.
pub(crate) struct Calls {
    pub ready: Vec<Time>,
    pub backward: Time,
}

/// Each call delays all later gradients; each gradient then waits for its agreement.
pub(crate) fn calls(worker: &WorkerTrace, options: &Options, faster: f64) -> Calls {
    let mut ready: Vec<Time> = worker.gradients.iter().map(|gradient| gradient.ready.scaled(faster)).collect();
    let mut backward = worker.backward.scaled(faster);
    let nothing = options.call == Time::ZERO && options.agreement == Time::ZERO;
    if nothing || options.workers < 2 || worker.compute_time() == Time::ZERO {
        return Calls { ready, backward };
    }
    let mut order: Vec<usize> = (0..ready.len()).collect();
    order.sort_by_key(|&gradient| ready[gradient]);
    let (mut called, mut agreed) = (Time::ZERO, Time::ZERO);
    for gradient in order {
        called += options.call;
        agreed = agreed.max(ready[gradient] + called) + options.agreement;
        ready[gradient] = agreed;
    }
    backward = (backward + called).max(agreed);
    Calls { ready, backward }
}

fn prepare_worker(
    worker: &WorkerTrace,
    trace: &Trace,
    options: &Options,
    bucket_of: &[u32],
    list: &[Bucket],
    pull_by_layer: bool,
) -> Worker {
    let faster = 1.0 / options.compute_speedup;
    let total: u64 = trace.tensors.iter().map(|t| t.bytes).sum();
    let mut updated = vec![false; trace.tensors.len()];
    let (mut layers, mut needs) = (Vec::new(), Vec::new());
    // The last layer found to need a bucket: one layer may need a million.
    let mut needed_by = vec![usize::MAX; list.len()];
    for (position, layer) in worker.forward.iter().enumerate() {
        let start = needs.len();
        let mut bytes = 0;
        for &tensor in &layer.tensors {
            let bucket = bucket_of[tensor as usize];
            if bucket != u32::MAX && std::mem::replace(&mut needed_by[bucket as usize], position) != position {
                needs.push(bucket);
            }
            if !std::mem::replace(&mut updated[tensor as usize], true) {
                bytes += trace.tensors[tensor as usize].bytes;
            }
        }
        // If parameters are pulled layer by layer, they are also updated layer by layer, each before its first use.
        let update =
            if pull_by_layer && total > 0 { worker.optimizer.scaled(bytes as f64 / total as f64) } else { Time::ZERO };
        layers.push(Layer { duration: (layer.duration + update).scaled(faster), needs: start..needs.len() });
    }
    let calls = calls(worker, options, faster);
    let backward = calls.backward;
    let mut ready: Vec<(Time, u32)> = list.iter().map(|bucket| (Time::ZERO, bucket.id)).collect();
    for (gradient, &handed_over) in worker.gradients.iter().zip(&calls.ready) {
        let bucket = bucket_of[gradient.tensor as usize];
        let at = if options.overlap { handed_over } else { backward };
        let slot = &mut ready[bucket as usize].0;
        *slot = at.max(*slot);
    }
    // Ties keep the trace's order of gradients.
    let mut rank = vec![0; list.len()];
    for (position, gradient) in (0u32..).zip(&worker.gradients) {
        rank[bucket_of[gradient.tensor as usize] as usize] = position;
    }
    ready.sort_by_key(|&(at, bucket)| (at, rank[bucket as usize]));
    Worker {
        forward: layers.iter().fold(Time::ZERO, |sum, layer| sum + layer.duration),
        layers,
        needs,
        backward,
        optimizer: if pull_by_layer { Time::ZERO } else { worker.optimizer.scaled(faster) },
        ready,
    }
}
