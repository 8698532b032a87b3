//! Converts trace, cluster and options for the event loop: buckets, layers and gradients.
use std::borrow::Cow;
use std::sync::Arc;

use paceline_iteration::{IterationOptions, Plan, Step, Work, buckets};
use paceline_model::cluster::Fabric;
use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_nccl::Release;
use paceline_schedule::{
    Bucket, ChunkBytes, Collective, Entry, Knob, Knobs, Placement, Rates, Schedule, Topology, build_collective,
};

use crate::lanes::Lanes;
use crate::options::{Network, Options, SimulationError};
use crate::plan_run::PlanRun;
use crate::planning::{computes, executed, planned, scaled};
use crate::run_types::Prepared;
use crate::staleness::{MEASURED, MOST_TIMES, WARM_UP};
use crate::worker::speeds;

/// Events store roles in 16 bits.
pub(crate) const MAX_ROLES: u32 = 65_535;

fn wrong<T>(setting: &'static str, reason: String, remedy: impl Into<String>) -> Result<T, SimulationError> {
    Err(SimulationError::about(setting, reason).remedy(remedy))
}

/// What to type instead of a strategy that the cluster's switch does not support.
const BETWEEN_RANKS: &str = "{strategy=ring}, native or hierarchical (list: paceline list strategies)";

/// Also returns the plan of the first recorded worker. Refuses what the event loop cannot hold.
pub(crate) fn prepare(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
) -> Result<(Prepared, Plan), SimulationError> {
    prepare_in(trace, cluster, options, RacksAndPods::default())
}

/// Where the nodes of one of several jobs are: how many in each of its racks, and how many of these in each of its pods. By
/// default they fill one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct RacksAndPods {
    pub racks: Option<Arc<[u32]>>,
    pub pods: Option<Arc<[u32]>>,
}

/// The same for nodes in other racks than the cluster's: those of one of several jobs.
pub(crate) fn prepare_in(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    within: RacksAndPods,
) -> Result<(Prepared, Plan), SimulationError> {
    let (prepared, plan) = plan_in(trace, cluster, options, within)?;
    let roles = prepared.schedule.roles().total();
    if roles > MAX_ROLES {
        return wrong(
            "workers",
            format!("{roles} workers, servers and switches are more than the {MAX_ROLES} possible"),
            format!("{{workers={}}}", MAX_ROLES / 2),
        );
    }
    match prepared.schedule.part() {
        None => check_size(prepared.schedule.as_ref(), &prepared.buckets, &prepared.names)?,
        Some(part) => {
            check_size(part.as_ref(), &prepared.buckets, &prepared.names)?;
            check_updates(&prepared, options)?;
        }
    }
    Ok((prepared, plan))
}

/// The strategy's program on this cluster, or on nodes in other racks than its own.
pub(crate) fn schedule_of(
    cluster: &Cluster,
    options: &Options,
    element_bytes: u64,
    buckets: usize,
    within: RacksAndPods,
) -> Result<(&'static Entry, Box<dyn Schedule>), SimulationError> {
    let entry = options.entry()?;
    let mut knobs = knobs(options, element_bytes, buckets)?;
    knobs.rates = Some(rates(cluster, element_bytes, options.nccl));
    let servers = if entry.uses(Knob::Servers) { options.servers } else { 0 };
    let mut topology = topology(options.workers, servers, cluster, element_bytes);
    if within.racks.is_some() {
        (topology.racks, topology.pods) = (within.racks, within.pods);
    }
    let schedule = build_collective(options.collective, entry.name, &topology, &knobs)?;
    Ok((entry, schedule))
}

/// The same for a world of any size.
pub(crate) fn plan(trace: &Trace, cluster: &Cluster, options: &Options) -> Result<(Prepared, Plan), SimulationError> {
    plan_in(trace, cluster, options, RacksAndPods::default())
}

fn plan_in(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    within: RacksAndPods,
) -> Result<(Prepared, Plan), SimulationError> {
    check(trace, cluster, options)?;
    let element_bytes = trace.dtype.size();
    let iteration = executed(trace, options)?;
    let fused = buckets(trace, iteration.bucket_size, iteration.exchanges.have_servers());
    let placed = with_variables_placed(trace, options, &fused)?;
    let (entry, schedule) = schedule_of(cluster, &placed, element_bytes, fused.len(), within)?;

    let bucket = |(id, bucket): (u32, &paceline_iteration::Bucket)| Bucket {
        id,
        len: bucket.elements,
        pull_only: bucket.pull_only,
    };
    let list = (0u32..).zip(&fused).map(bucket).collect();
    let fused_buckets = fused.len();
    let priority = fused.iter().map(|bucket| bucket.priority).collect();
    let names = fused.into_iter().map(|bucket| bucket.name).collect();
    let of = |own: &Options, recorded| {
        planned(&scaled(trace, own), own, &IterationOptions { recorded, ..iteration.clone() })
    };
    let bucket_of = |step: &Step| step.unit.filter(|_| matches!(step.work, Work::Exchange { .. }));
    let run = |plan: &Plan| PlanRun::new(plan, &plan.steps.iter().map(bucket_of).collect::<Vec<_>>(), false);
    let plan = of(options, 0)?;
    let mut workers = Vec::new();
    for slower in speeds(cluster) {
        let own = options.on_slower(slower);
        for recorded in 0..trace.workers.len() {
            workers.push(run(&of(&own, recorded)?));
        }
    }
    let prepared = Prepared {
        entry,
        schedule: schedule.into(),
        kinds: vec![0; fused_buckets],
        buckets: list,
        names,
        priority,
        element_bytes,
        workers,
        exchange_only: !computes(trace),
    };
    Ok((prepared, plan))
}

/// Refuses what no run can do.
pub(crate) fn check(trace: &Trace, cluster: &Cluster, options: &Options) -> Result<(), SimulationError> {
    let entry = options.entry()?;
    if !entry.is_synchronous() && options.is_planned() {
        let asked = options.iteration.as_ref().map_or("nccl", IterationOptions::asked);
        return wrong(
            "strategy",
            format!("{asked}: {} workers do not wait for each other's gradients", entry.name),
            "{strategy=native}, or drop it",
        );
    }
    if entry.is_synchronous() && options.staleness.is_some() {
        return wrong(
            "staleness",
            format!("has no effect on {}", entry.name),
            "{strategy=async-ps}, or drop {staleness}",
        );
    }
    if !entry.is_synchronous() && !options.barrier {
        return wrong(
            "barrier",
            format!("{} workers never begin together", entry.name),
            "drop --no-barrier, or {staleness=0} (they wait for each other)",
        );
    }
    if entry.uses(Knob::Multicast) && !cluster.switch.multicast {
        return wrong(
            "strategy",
            format!(
                "{} needs a switch that multicasts, and cluster '{}' has none (switch.multicast)",
                entry.name, cluster.name
            ),
            BETWEEN_RANKS,
        );
    }
    if entry.uses(Knob::Aggregation) && !cluster.switch.aggregation {
        return wrong(
            "strategy",
            format!(
                "{} needs a switch that aggregates, and cluster '{}' has none (switch.aggregation)",
                entry.name, cluster.name
            ),
            BETWEEN_RANKS,
        );
    }
    if entry.uses(Knob::Aggregation) && entry.uses(Knob::Servers) && cluster.fabric.is_some() {
        return wrong(
            "strategy",
            format!("{} adds up in one switch, and those of cluster '{}' form a fabric", entry.name, cluster.name),
            "{strategy=sharp}",
        );
    }
    if cluster.switch.cut_through && entry.uses(Knob::Aggregation) && options.network == Network::Fluid {
        return wrong(
            "network",
            "fluid has no model of a switch that forwards sums as they arrive (switch.cut_through)".into(),
            "{network=fifo}",
        );
    }
    if options.collective != Collective::AllReduce
        && trace.workers.iter().any(|worker| worker.compute_time() != Time::ZERO)
    {
        return Err(SimulationError::new(format!(
            "collective: {} is for exchanges alone, and trace '{}' computes",
            options.collective.name(),
            trace.name
        ))
        .remedy("allreduce:1GB"));
    }
    if !(options.compute_speedup.is_finite() && (1e-6..=1e6).contains(&options.compute_speedup)) {
        return wrong(
            "compute_speedup",
            format!("must be 0.000001-1000000, not {}", options.compute_speedup),
            "{compute_speedup=2} (all compute twice as fast)",
        );
    }
    if options.iterations.is_some_and(|n| n == 0 || n > 100_000) {
        return wrong("iterations", "must be 1-100000".into(), "{iterations=10}");
    }
    if !(0.0..=2.0).contains(&options.spread) {
        return Err(SimulationError::new(format!("spread: must be 0-2, not {}", options.spread)).remedy("0.05"));
    }
    check_duration(trace, cluster, options)?;
    if let Some(&(rank, _)) = cluster.stragglers.iter().find(|(rank, _)| *rank >= options.workers) {
        return Err(SimulationError::new(format!(
            "cluster.stragglers: there is no rank {rank} with {} workers",
            options.workers
        ))
        .remedy(format!("{{workers={}}}", rank.saturating_add(1))));
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
        pods: None,
    }
    .in_racks(nodes_per_switch(cluster))
    .in_pods(cluster.fabric.as_ref().and_then(Fabric::switches_per_pod))
}

/// Nodes under one switch of the lowest level; `None`: all.
pub(crate) fn nodes_per_switch(cluster: &Cluster) -> Option<u32> {
    let in_levels = cluster.fabric.as_ref().filter(|fabric| fabric.shape.can_aggregate());
    cluster.racks.map(|racks| racks.nodes_per_rack).or(in_levels.map(Fabric::nodes_per_switch))
}

/// The rates of the cluster's links, for strategies whose choice depends on them.
pub(crate) fn rates(cluster: &Cluster, element_bytes: u64, nccl: Release) -> Rates {
    let bytes_per_s = |rate: Rate| (rate.0 / 8.0) as u64;
    Rates {
        between: bytes_per_s(cluster.bandwidth),
        inside: bytes_per_s(cluster.intra_bandwidth),
        element: element_bytes,
        nccl,
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
    // Through the slowest link, and through the adders. In the collectives of a plan no node sends for all workers: a rank
    // sends a buffer as often as recursive doubling does.
    let through_one = if options.is_planned() {
        let passes = options.iteration.as_ref().map_or(1, |iteration| iteration.accumulate);
        f64::from(cluster.gpus_per_node) * f64::from(passes) * f64::from(options.workers).log2().max(2.0)
    } else {
        f64::from(options.workers)
    };
    let network = 4.0 * bytes * 8.0 * through_one / rate;
    let iterations = if options.entry()?.is_synchronous() {
        f64::from(options.iterations.unwrap_or(2)) + 2.0
    } else {
        MOST_TIMES as f64 * (f64::from(options.iterations.unwrap_or(MEASURED)) + WARM_UP as f64 + 1.0)
    };
    if (slowest + network) * iterations > 1e7 {
        return Err(SimulationError::new(format!(
            "'{}' could take {:.0} days on this cluster, and simulated time ends at 115 days",
            trace.name,
            (slowest + network) * iterations / 86_400.0
        ))
        .remedy("{bandwidth=25Gbps}, fewer {iterations}, or other units of times, sizes and rates"));
    }
    Ok(())
}

/// Limit for the states of one bucket; others are in flight at the same time.
const MAX_STATE_BYTES: usize = 4_000_000_000;

/// More messages than this take over ten minutes and, if all are in flight, more memory than machines have.
const MAX_MESSAGES: u64 = 4_000_000_000;

/// Buckets of all workers: events count them in 32 bits, with room for the parity of iterations.
const MAX_PARTS: u64 = 100_000_000;

/// Refuses simulations that need too much memory or time before they start.
/// Refuses programs whose state or messages are too many for the event loop.
pub(crate) fn check_size(schedule: &dyn Schedule, buckets: &[Bucket], names: &[String]) -> Result<(), SimulationError> {
    let Some(bucket) = buckets.iter().max_by_key(|bucket| schedule.lanes(bucket)) else { return Ok(()) };
    let lanes = schedule.lanes(bucket);
    let bytes = Lanes::bytes(schedule.roles().total(), lanes, schedule.slots(), schedule.senders());
    // Piece numbers have 32 bits.
    if lanes == u32::MAX || bytes > MAX_STATE_BYTES {
        return wrong(
            "chunk",
            format!(
                "'{}' in {lanes} pieces or more needs over {} GB of memory",
                names[bucket.id as usize],
                bytes / 1_000_000_000
            ),
            "{chunk=16MB}, or fewer {workers} and {servers}",
        );
    }
    let messages = buckets.iter().fold(0u64, |sum, bucket| sum.saturating_add(schedule.volume(bucket).messages));
    if messages > MAX_MESSAGES {
        return wrong(
            "chunk",
            format!("{messages} messages an iteration are more than the {MAX_MESSAGES} that can be simulated"),
            "{bucket_size=64MiB}, {chunk=16MB}, or fewer {workers}",
        );
    }
    Ok(())
}

/// Refuses asynchronous workers whose iterations have too many messages, or too many tensors on too many workers.
fn check_updates(prepared: &Prepared, options: &Options) -> Result<(), SimulationError> {
    let iterations = WARM_UP as u64 + u64::from(options.iterations.unwrap_or(MEASURED));
    let volume = |bucket: &Bucket| prepared.schedule.volume(bucket).messages;
    let messages = prepared.buckets.iter().fold(0u64, |sum, bucket| sum.saturating_add(volume(bucket)));
    let parts = prepared.buckets.len() as u64 * u64::from(options.workers);
    if messages.saturating_mul(iterations) > MAX_MESSAGES || parts > MAX_PARTS {
        return wrong(
            "workers",
            format!("{iterations} iterations of {messages} messages are more than can be simulated"),
            "{bucket_size=64MiB}, fewer {workers}, or fewer {iterations}",
        );
    }
    Ok(())
}

fn knobs(options: &Options, element_bytes: u64, buckets: usize) -> Result<Knobs, SimulationError> {
    let chunk = match options.chunk {
        None => None,
        Some(ChunkBytes::Size(bytes)) if bytes < element_bytes => {
            return wrong(
                "chunk",
                format!("must be at least an element of {element_bytes} bytes, not {bytes}"),
                format!("{{chunk={element_bytes}B}}"),
            );
        }
        Some(chunk) => chunk.in_elements(element_bytes),
    };
    if let Placement::Table(table) = &options.placement
        && table.len() != buckets
    {
        return wrong(
            "placement",
            format!("places {} buckets, but there are {buckets}", table.len()),
            "{placement=round-robin}, or a server for each bucket",
        );
    }
    Ok(Knobs {
        chunk,
        placement: options.placement.clone(),
        distribution: options.distribution,
        barrier: options.barrier,
        inside: options.inside,
        staleness: options.staleness,
        ..Knobs::default()
    })
}

/// The options with a server for each bucket, where variables are placed in the order of their creation.
fn with_variables_placed<'a>(
    trace: &Trace,
    options: &'a Options,
    fused: &[paceline_iteration::Bucket],
) -> Result<Cow<'a, Options>, SimulationError> {
    if options.placement != Placement::TensorFlow {
        return Ok(Cow::Borrowed(options));
    }
    let numbers = trace.variable_numbers();
    let server = |bucket: &paceline_iteration::Bucket| match bucket.tensors.as_slice() {
        [tensor] => Ok(numbers[*tensor as usize] % options.servers.max(1)),
        _ => wrong(
            "placement",
            format!("tensorflow places single variables, and the bucket of '{}' has several", bucket.name),
            "{bucket_size=none}",
        ),
    };
    let servers: Vec<u32> = fused.iter().map(server).collect::<Result<_, _>>()?;
    Ok(Cow::Owned(Options { placement: Placement::Table(servers.into()), ..options.clone() }))
}

/// The buckets of a simulation for users of `--placement FILE`: names of their tensors.
#[must_use]
pub fn bucket_tensors(trace: &Trace, bucket_size: Option<u64>) -> Vec<Vec<u32>> {
    buckets(trace, bucket_size, true).into_iter().map(|bucket| bucket.tensors).collect()
}
