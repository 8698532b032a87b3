//! Executes the plan of an iteration (`paceline-iteration`) on a model of the network.
//!
//! | module | holds |
//! | --- | --- |
//! | this one | makes the plan, decides how it is executed, and says what was found |
//! | `groups` | the programs of all collectives of a plan, each between its groups of ranks |
//! | `by_message` | small worlds: every message of every collective, in the event loop |
//! | `collectives` | how long one collective takes alone, and what it uses of the network meanwhile |
//! | `by_collective` | large worlds: a collective is one event; those that overlap share the network |
//! | `account` | what was exposed, and the memory over time |
mod account;
mod by_collective;
mod by_message;
mod collectives;
mod groups;

use std::collections::BTreeMap;

use paceline_iteration::{Exchanges, IterationOptions, Method, Plan, Pull, Sharding, Step, Stream, Work, build};
use paceline_model::trace::WorkerTrace;
use paceline_model::{Cluster, Time, Trace};
use paceline_schedule::{Bucket, Knob, Schedule};
use serde::Serialize;

use crate::options::{Options, SimulationError};
use crate::outcome::{Busy, Computation, Found, LinkUse, Observed, Outcome, PathPart, Traffic, compose};
use crate::prepare::{self, Prepared, computes};
use crate::timeline::{Drawing, Line, Timeline};
use crate::worker::workers;
pub(crate) use by_message::followers;
use groups::Programs;

/// Plans with more messages than this (half a second) are executed by collective.
const MOST_MESSAGES: u64 = 2_000_000;
/// So are those in more ranks: events store roles in 16 bits, and each has a state in every collective.
const MOST_RANKS: u32 = 1024;

/// How a plan is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resolution {
    /// Every message.
    Messages,
    /// Collectives as a whole.
    Collectives,
}

/// Seconds of an iteration in which computation waits for communication, by what it waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ExposedBy {
    /// All-gathers of parameters.
    pub all_gather_s: f64,
    /// Reduce-scatters of gradients.
    pub reduce_scatter_s: f64,
    /// All-reduces of gradients or of their shards.
    pub all_reduce_s: f64,
    /// Computation between and after exchanges of compressed gradients.
    #[serde(skip_serializing_if = "is_zero")]
    pub compression_s: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

/// A rank's memory at its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// The sum of the others.
    pub peak_bytes: u64,
    /// Parameters, or the rank's shard.
    pub parameters_bytes: u64,
    /// Gradients, whole or sharded.
    pub gradients_bytes: u64,
    /// States of the optimizer, with its float32 copy of the parameters.
    pub optimizer_bytes: u64,
    /// Gathered units.
    pub gathered_bytes: u64,
    /// What FSDP2 copies gathered units out of, and gradients into.
    pub communication_bytes: u64,
    /// `None`: the trace does not say.
    pub activations_bytes: Option<u64>,
}

/// What a result has in addition if it comes from a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sharded {
    /// As users type it: `zero3`, `hsdp:8`.
    pub sharding: String,
    /// Ranks over which the state is sharded.
    pub shard_ranks: u32,
    /// Passes through the model in an iteration.
    pub passes: u32,
    /// Iterations of a round, in the last of which ranks exchange something.
    #[serde(skip_serializing_if = "is_one")]
    pub sync_every: u32,
    /// Number of units, or of buckets.
    pub units: u32,
    /// Number of parameters.
    pub parameters: u64,
    /// What computation waits for, on the slowest rank.
    pub exposed: ExposedBy,
    /// By how much the slowest rank computes longer than the trace by itself.
    pub straggling_s: f64,
    /// By how much collectives slow down its computation.
    pub slowed_s: f64,
    /// By how much handing gradients over to the library lengthens the backward pass.
    pub calls_s: f64,
    /// A rank's memory.
    pub memory: Memory,
    /// How the plan was executed.
    pub resolution: Resolution,
}

/// What the steps of the slowest rank say.
pub(crate) struct Watched {
    pub exposed: ExposedBy,
    pub straggling_s: f64,
    pub slowed_s: f64,
    pub calls_s: f64,
    pub memory: Memory,
    pub resolution: Resolution,
}

impl Watched {
    /// What is known of a plan without its steps, if nothing is sharded: its exchanges are all-reduces, and what they take
    /// changes nothing of its memory, because only computation allocates and frees.
    pub fn unwatched(plan: &Plan, exposed_s: f64) -> Watched {
        Watched {
            exposed: ExposedBy { all_reduce_s: exposed_s, ..ExposedBy::default() },
            straggling_s: 0.0,
            slowed_s: 0.0,
            calls_s: 0.0,
            memory: account::unhindered(plan),
            resolution: Resolution::Messages,
        }
    }
}

impl Sharded {
    /// This with a share of the difference of its times to those of another.
    pub(crate) fn towards(&self, other: &Sharded, share: f64) -> Sharded {
        let between = |here: f64, there: f64| here + (there - here) * share;
        let (own, their) = (self.exposed, other.exposed);
        Sharded {
            exposed: ExposedBy {
                all_gather_s: between(own.all_gather_s, their.all_gather_s),
                reduce_scatter_s: between(own.reduce_scatter_s, their.reduce_scatter_s),
                all_reduce_s: between(own.all_reduce_s, their.all_reduce_s),
                compression_s: between(own.compression_s, their.compression_s),
            },
            straggling_s: between(self.straggling_s, other.straggling_s),
            slowed_s: between(self.slowed_s, other.slowed_s),
            calls_s: between(self.calls_s, other.calls_s),
            ..self.clone()
        }
    }

    pub(crate) fn new(plan: &Plan, watched: Watched) -> Sharded {
        let Watched { exposed, straggling_s, slowed_s, calls_s, memory, resolution } = watched;
        Sharded {
            sharding: match plan.sharding {
                Sharding::Hsdp => format!("hsdp:{}", plan.shard_ranks),
                other if other.has_groups() && plan.shard_ranks < plan.world => {
                    format!("{}:{}", other.name(), plan.shard_ranks)
                }
                other => other.name().to_owned(),
            },
            shard_ranks: plan.shard_ranks,
            passes: plan.passes,
            sync_every: plan.iterations,
            units: plan.units.iter().filter(|unit| !unit.pull_only).count() as u32,
            parameters: plan.elements(),
            exposed,
            straggling_s,
            slowed_s,
            calls_s,
            memory,
            resolution,
        }
    }
}

/// The peak of the plan's memory if exchanges take no time.
///
/// # Errors
/// Those of [`plan_of`].
pub fn memory_of(trace: &Trace, options: &Options) -> Result<Memory, SimulationError> {
    Ok(account::unhindered(&plan_of(trace, options)?))
}

/// When each step of a rank began and ended, in picoseconds.
pub(crate) type Spans = Vec<(u64, u64)>;

/// What an execution found.
pub(crate) struct Executed {
    /// The end of the last rank.
    pub end: u64,
    /// The rank that computes longest.
    pub slowest: u32,
    /// Of the ranks that a timeline shows, and of the slowest.
    pub spans: BTreeMap<u32, Spans>,
    pub links: Vec<LinkUse>,
    pub busy: Option<Vec<Busy>>,
}

/// The plan that the ranks of a simulation execute; where they copy different recorded workers, that of the first one.
///
/// # Errors
/// Options that contradict each other; the message names the option.
pub fn plan_of(trace: &Trace, options: &Options) -> Result<Plan, SimulationError> {
    planned(&scaled(trace, options), options, &executed(trace, options)?)
}

/// The options of that plan.
pub(crate) fn executed(trace: &Trace, options: &Options) -> Result<IterationOptions, SimulationError> {
    let recorded = || IterationOptions {
        bucket_size: options.bucket_size,
        overlap: options.overlap,
        ..IterationOptions::new(Sharding::None)
    };
    let iteration = options.iteration.clone().unwrap_or_else(recorded);
    Ok(IterationOptions {
        compression: iteration.compression.scaled(1.0 / options.compute_speedup),
        exchanges: exchanges(trace, options, &iteration)?,
        collective: options.collective,
        call: options.call,
        agreement: options.agreement,
        ..iteration
    })
}

/// Paceline's runtime exchanges buckets side by side, and so do servers. NCCL does not, nor do hooks that compress.
fn exchanges(trace: &Trace, options: &Options, iteration: &IterationOptions) -> Result<Exchanges, SimulationError> {
    let on_a_stream = iteration.sharding != Sharding::None
        || iteration.compression.method != Method::None
        || iteration.sync_every > 1
        || options.collectives.is_some()
        || options.slowdown > 0.0;
    Ok(match options.entry()?.uses(Knob::Pull) {
        _ if on_a_stream => Exchanges::Stream,
        // Without computation an iteration is one exchange, and no layer could wait.
        true => Exchanges::Servers(if computes(trace) { options.pull } else { Pull::Step }),
        false => Exchanges::Background,
    })
}

/// The plan with these options of what [`scaled`] returns.
pub(crate) fn planned(
    computed: &Trace,
    options: &Options,
    iteration: &IterationOptions,
) -> Result<Plan, SimulationError> {
    build(computed, options.workers, iteration)
}

/// The trace with the speed-up.
pub(crate) fn scaled(trace: &Trace, options: &Options) -> Trace {
    let workers = trace.workers.iter().map(|worker| sped_up(worker, options)).collect();
    Trace { workers, ..trace.clone() }
}

/// A recorded worker with the speed-up.
pub(crate) fn sped_up(worker: &WorkerTrace, options: &Options) -> WorkerTrace {
    let faster = 1.0 / options.compute_speedup;
    let mut worker = worker.clone();
    worker.gradients.iter_mut().for_each(|gradient| gradient.ready = gradient.ready.scaled(faster));
    worker.backward = worker.backward.scaled(faster);
    worker.forward.iter_mut().for_each(|layer| layer.duration = layer.duration.scaled(faster));
    worker.optimizer = worker.optimizer.scaled(faster);
    worker
}

/// Executes the plan, which all ranks have in common.
///
/// # Arguments
/// `timeline`: wanted, with the streams of so many ranks, or of all. `resolution`: how, if that is not to be decided here by
/// the number of messages.
///
/// # Errors
/// Those of [`simulate`](crate::simulate).
pub fn simulate_as(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    timeline: Option<Option<u32>>,
    resolution: Option<Resolution>,
) -> Result<(Outcome, Timeline), SimulationError> {
    check(cluster, options)?;
    prepare::check(trace, cluster, options)?;
    let plan = plan_of(trace, options)?;
    let programs = Programs::new(&plan, cluster, options)?;
    let sent = (programs.messages(), programs.bytes());
    let notes = programs.notes();
    let few = sent.0 <= MOST_MESSAGES && plan.world <= MOST_RANKS;
    let by_message = few && options.collectives.is_none() && options.slowdown == 0.0;
    let resolution = resolution.unwrap_or(if by_message { Resolution::Messages } else { Resolution::Collectives });
    let shown = timeline.map_or(0, |ranks| ranks.unwrap_or(u32::MAX).min(plan.world));
    let executed = match resolution {
        Resolution::Messages => by_message::execute(&plan, programs, trace, cluster, options, shown)?,
        Resolution::Collectives => by_collective::execute(&plan, &programs, trace, cluster, options)?,
    };
    let drawn = if shown > 0 { draw(&plan, &executed) } else { Timeline::default() };
    let found = Found { notes, ..found(trace, cluster, options, &plan, executed, sent, resolution) };
    Ok((compose(trace, cluster, options, &plan, found)?, drawn))
}

/// The programs of the plan's collectives, and each of its exchanges that differs from the others.
///
/// # Errors
/// Those of [`simulate_as`].
pub(crate) fn programs_of(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
) -> Result<(Box<dyn Schedule>, Vec<Bucket>), SimulationError> {
    check(cluster, options)?;
    let programs = Programs::new(&plan_of(trace, options)?, cluster, options)?;
    let different: BTreeMap<_, _> =
        programs.exchanges.iter().map(|&(part, bucket)| ((part, bucket.len), bucket)).collect();
    Ok((Box::new(programs.together()), different.into_values().collect()))
}

/// The plan of one of several jobs for the event loop, message by message.
///
/// # Errors
/// Those of [`simulate_as`].
pub(crate) fn prepare_messages(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
) -> Result<Prepared, SimulationError> {
    check(cluster, options)?;
    prepare::check(trace, cluster, options)?;
    let plan = plan_of(trace, options)?;
    let programs = Programs::new(&plan, cluster, options)?;
    let prepared = by_message::prepared(&plan, programs, false);
    prepare::check_size(prepared.schedule.as_ref(), &prepared.buckets, &prepared.names)?;
    Ok(prepared)
}

fn check(cluster: &Cluster, options: &Options) -> Result<(), SimulationError> {
    let wrong = |setting, reason: String| Err(SimulationError::about(setting, reason));
    let entry = options.entry()?;
    let asked = options.iteration.as_ref().map_or("its plan", IterationOptions::asked);
    let is_hybrid = options.iteration.as_ref().is_some_and(|iteration| iteration.sharding == Sharding::Hsdp);
    let in_switches = entry.uses(Knob::Aggregation) && !is_hybrid;
    if entry.uses(Knob::Servers) || entry.uses(Knob::Multicast) || in_switches {
        return wrong(
            "strategy",
            format!(
                "{} needs servers or a switch, and {asked} needs collectives between ranks; use native, ring, \
             halving-doubling or hierarchical",
                entry.name
            ),
        );
    }
    if options.coordination.is_some() {
        return wrong(
            "coordinator",
            format!("has no effect with {asked}, whose exchanges have a fixed order; leave it out"),
        );
    }
    if options.iterations.is_some_and(|iterations| iterations > 1) && cluster.jitter.is_none() {
        return wrong("iterations", "all iterations of a plan are alike; leave it out".into());
    }
    Ok(())
}

/// How much longer each rank computes than the plan: forward and optimizer, and backward.
pub(crate) fn factors(trace: &Trace, cluster: &Cluster, options: &Options) -> Vec<(f64, f64)> {
    let mut workers = workers::<()>(trace, cluster, options);
    workers
        .iter_mut()
        .map(|worker| {
            worker.pace = pace(trace, worker.recorded);
            worker.vary(cluster);
            (worker.factor, worker.backward_factor)
        })
        .collect()
}

/// How much longer a recorded worker computes than the first one, whose plan all ranks have.
pub(crate) fn pace(trace: &Trace, recorded: usize) -> f64 {
    let [own, first] = [recorded, 0].map(|worker| trace.workers[worker].compute_time().seconds());
    if first > 0.0 { own / first } else { 1.0 }
}

/// Picoseconds of a step of computation on a rank; `None`: it is an exchange.
pub(crate) fn duration(work: &Work, (factor, backward): (f64, f64)) -> Option<u64> {
    match *work {
        Work::Forward { duration_ps }
        | Work::Optimizer { duration_ps }
        | Work::Compress { duration_ps }
        | Work::Decompress { duration_ps }
        | Work::OuterOptimizer { duration_ps } => Some(Time(duration_ps).scaled(factor).0),
        Work::Backward { duration_ps } => Some(Time(duration_ps).scaled(backward).0),
        Work::Exchange { .. } => None,
    }
}

/// For each step, those that it waits for: the one before it on its stream, and those it names.
pub(crate) fn predecessors(plan: &Plan) -> Vec<Vec<u32>> {
    let mut last: [Option<u32>; Stream::ALL.len()] = [None; Stream::ALL.len()];
    (0u32..)
        .zip(&plan.steps)
        .map(|(number, step)| {
            let mut before = step.after.clone();
            if step.stream != Stream::Background {
                before.extend(last[step.stream as usize].replace(number));
            }
            before.sort_unstable();
            before.dedup();
            before
        })
        .collect()
}

fn found(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    plan: &Plan,
    executed: Executed,
    (messages, bytes): (u64, u64),
    resolution: Resolution,
) -> Found {
    let seconds = |picoseconds: u64| picoseconds as f64 * 1e-12;
    let spans = &executed.spans[&executed.slowest];
    let account = account::account(plan, spans, executed.end);
    // Of one iteration, where the plan has several.
    let share = 1.0 / f64::from(plan.iterations);
    let (mut forward, mut backward, mut optimizer) = (0, 0, 0);
    for step in &plan.steps {
        match step.work {
            Work::Forward { duration_ps } => forward += duration_ps,
            Work::Backward { duration_ps } => backward += duration_ps,
            Work::Optimizer { duration_ps } => optimizer += duration_ps,
            Work::Compress { .. } | Work::Decompress { .. } | Work::OuterOptimizer { .. } | Work::Exchange { .. } => {}
        }
    }
    let compute_s = seconds(forward + backward + optimizer);
    let factors = factors(trace, cluster, options)[executed.slowest as usize];
    let sum = |counts: fn(&Step) -> bool| {
        seconds(plan.steps.iter().filter(|step| counts(step)).filter_map(|step| duration(&step.work, factors)).sum())
    };
    let own_s = sum(|step| is_training(&step.work));
    // What compression adds to the computation of the model.
    let added_s = sum(|step| step.stream == Stream::Compute && !is_training(&step.work));
    let computed_s = account.computed_s - added_s;
    // A rank alone calls no library for its gradients, and updates all parameters.
    let alone = Computation::recorded(trace, options);
    let passes = plan.samples as f64 / f64::from(trace.batch);
    // Its calls are no computation, whichever of the two ways simulates an iteration.
    let calls_s = crate::outcome::exposed(seconds(backward), alone.backward_s * passes);
    let alone_s = (alone.forward_s + alone.backward_s) * passes + alone.optimizer_s * f64::from(plan.iterations);
    let exposed = ExposedBy {
        all_gather_s: account.exposed.all_gather_s * share,
        reduce_scatter_s: account.exposed.reduce_scatter_s * share,
        all_reduce_s: account.exposed.all_reduce_s * share,
        compression_s: (account.exposed.compression_s + added_s) * share,
    };
    let mut critical_path = vec![
        PathPart { part: "compute", seconds: computed_s * share },
        PathPart { part: "all-gather", seconds: exposed.all_gather_s },
        PathPart { part: "reduce-scatter", seconds: exposed.reduce_scatter_s },
        PathPart { part: "all-reduce", seconds: exposed.all_reduce_s },
        PathPart { part: "compression", seconds: exposed.compression_s },
    ];
    critical_path.retain(|part| part.seconds > 0.0);
    critical_path.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let Executed { mut links, mut busy, .. } = executed;
    for link in &mut links {
        link.busiest_s *= share;
        link.mean_s *= share;
    }
    busy.iter_mut().flatten().for_each(|one| one.busy_s *= share);
    Found {
        iteration_s: seconds(executed.end) * share,
        computation: Computation {
            forward_s: seconds(forward) * share,
            backward_s: (seconds(backward) - calls_s) * share,
            optimizer_s: seconds(optimizer) * share,
            alone_s: alone_s * share,
        },
        traffic: Traffic {
            servers: 0,
            buckets: plan.units.len() as u32,
            messages: messages.div_ceil(u64::from(plan.iterations)),
            bytes_per_worker: bytes as f64 / f64::from(plan.world) * share,
        },
        observed: Observed { links, busy, critical_path, queued_s: None },
        watched: Some(Watched {
            exposed,
            straggling_s: (own_s - compute_s).max(0.0) * share,
            slowed_s: crate::outcome::exposed(computed_s, own_s.max(compute_s)) * share,
            calls_s: calls_s * share,
            memory: account.memory,
            resolution,
        }),
        coordination: None,
        notes: Vec::new(),
    }
}

/// Whether it is the work of a rank alone, without others to exchange with.
fn is_training(work: &Work) -> bool {
    matches!(work, Work::Forward { .. } | Work::Backward { .. } | Work::Optimizer { .. })
}

/// The streams of ranks, in ms.
fn draw(plan: &Plan, executed: &Executed) -> Timeline {
    let mut drawing = Drawing::default();
    let ms = |picoseconds: u64| picoseconds as f64 * 1e-9;
    for (&rank, spans) in &executed.spans {
        let used = |stream: &Stream| plan.steps.iter().any(|step| step.stream == *stream);
        for (number, stream) in (0u32..).zip(Stream::ALL).filter(|(_, stream)| used(stream)) {
            // What runs at once is on lines of its own, of which each is free when a span begins on it.
            let mut lines: Vec<(Line, u64)> = Vec::new();
            for (step, &(start, end)) in plan.steps.iter().zip(spans).filter(|(step, _)| step.stream == stream) {
                let free = lines.iter().position(|(_, free)| *free <= start).unwrap_or_else(|| {
                    let thread = number + lines.len() as u32;
                    lines.push((drawing.track(rank + 1, thread, &format!("worker {rank}"), stream.name()), 0));
                    lines.len() - 1
                });
                let (line, ended) = &mut lines[free];
                *ended = end;
                let category = match step.work {
                    Work::Forward { .. } => "forward",
                    Work::Backward { .. } => "backward",
                    Work::Optimizer { .. } | Work::OuterOptimizer { .. } => "optimizer",
                    Work::Compress { .. } | Work::Decompress { .. } => "compression",
                    Work::Exchange { .. } => "collective",
                };
                drawing.span(line, &step.name(&plan.units), category, ms(start), ms(end));
            }
        }
    }
    drawing.finish()
}
