//! Executes the plan of an iteration (`paceline-iteration`) on a model of the network.
//!
//! | module | holds |
//! | --- | --- |
//! | this one | makes the plan, decides how it is executed, and says what was found |
//! | `groups` | the programs of all collectives of a plan, each between its groups of ranks |
//! | `by_message` | small worlds: every message of every collective, in the event loop |
//! | `passes` | iterations of many passes, from shorter ones |
//! | `collectives` | how long one collective takes alone, and what it uses of the network meanwhile |
//! | `by_collective` | large worlds: a collective is one event; those that overlap share the network |
//! | `executed` | their results |
//! | `account` | what was exposed, and the memory over time |
mod account;
mod by_collective;
mod by_message;
mod collectives;
mod executed;
mod groups;
mod passes;

use std::borrow::Cow;
use std::collections::BTreeMap;

use paceline_iteration::{IterationOptions, Plan, Sharding, Step, Stream, Work};
use paceline_model::{Cluster, Trace};
use paceline_schedule::{Bucket, Knob, Schedule};

use crate::options::{Options, SimulationError};
use crate::outcome::{Computation, Found, Observed, Outcome, PathPart, Traffic, compose};
pub use crate::planning::plan_of;
use crate::planning::{Factors, duration};
use crate::prepare;
use crate::run_types::Prepared;
use crate::sharded::Watched;
pub use crate::sharded::{ExposedBy, Memory, Resolution, Sharded};
use crate::timeline::{Drawing, Line, Timeline};
use crate::worker::slowest;
pub(crate) use account::unwatched;
use executed::Executed;
use groups::Programs;

/// Plans with more messages than this (half a second) are executed by collective.
const MOST_MESSAGES: u64 = 2_000_000;
/// So are those in more ranks: events store roles in 16 bits, and each has a state in every collective.
const MOST_RANKS: u32 = 1024;

/// The peak of the plan's memory if exchanges take no time.
///
/// # Errors
/// Those of [`plan_of`].
pub fn memory_of(trace: &Trace, options: &Options) -> Result<Memory, SimulationError> {
    Ok(account::unhindered(&plan_of(trace, &passes::few(options))?))
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
    if timeline.is_none() {
        let messages = |options: &Options| messages(trace, cluster, options);
        let decide = |sent| resolution.unwrap_or_else(|| resolution_of(sent, options));
        let run = |options: &Options, how| Ok(simulate_plan(trace, cluster, options, None, Some(how))?.0);
        if let Some(outcome) = passes::extended(options, messages, decide, run)? {
            return Ok((outcome, Timeline::default()));
        }
    }
    simulate_plan(trace, cluster, options, timeline, resolution)
}

/// How a plan is executed that sends so many messages.
fn resolution_of(messages: u64, options: &Options) -> Resolution {
    let few = messages <= MOST_MESSAGES && options.workers <= MOST_RANKS;
    if few && options.collectives.is_none() && options.slowdown == 0.0 {
        Resolution::Messages
    } else {
        Resolution::Collectives
    }
}

/// How many messages a plan sends.
fn messages(trace: &Trace, cluster: &Cluster, options: &Options) -> Result<u64, SimulationError> {
    Ok(Programs::new(&plan_of(trace, options)?, cluster, options)?.messages())
}

fn simulate_plan(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    timeline: Option<Option<u32>>,
    resolution: Option<Resolution>,
) -> Result<(Outcome, Timeline), SimulationError> {
    let plan = plan_of(trace, options)?;
    let programs = Programs::new(&plan, cluster, options)?;
    let sent = (programs.messages(), programs.bytes());
    let notes = programs.notes();
    let resolution = resolution.unwrap_or_else(|| resolution_of(sent.0, options));
    let shown = timeline.map_or(0, |ranks| ranks.unwrap_or(u32::MAX).min(plan.world));
    let slowest = slowest(&plan, trace, cluster, options);
    let own = if cluster.stragglers.is_empty() {
        Cow::Borrowed(&plan)
    } else {
        Cow::Owned(plan_of(trace, &options.on_slower(slowest.slower))?)
    };
    let executed = match resolution {
        Resolution::Messages => by_message::execute(&plan, programs, trace, cluster, options, slowest.rank, shown)?,
        Resolution::Collectives => by_collective::execute(&own, &programs, cluster, options, &slowest)?,
    };
    let drawn = if shown > 0 { draw(&plan, &executed) } else { Timeline::default() };
    let plans = (&plan, &*own, &slowest.factors);
    let found = Found { notes, ..found(trace, options, plans, executed, sent, resolution) };
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
    let programs = Programs::new(&plan_of(trace, &passes::few(options))?, cluster, options)?;
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
    let wrong = |setting, reason: String, remedy: &str| Err(SimulationError::about(setting, reason).remedy(remedy));
    let entry = options.entry()?;
    let asked = options.iteration.as_ref().map_or("its plan", IterationOptions::asked);
    let is_hybrid = options.iteration.as_ref().is_some_and(|iteration| iteration.sharding == Sharding::Hsdp);
    let in_switches = entry.uses(Knob::Aggregation) && !is_hybrid;
    if entry.uses(Knob::Servers) || entry.uses(Knob::Multicast) || in_switches {
        return wrong(
            "strategy",
            format!("{} needs servers or a switch, and {asked} needs collectives between ranks", entry.name),
            "{strategy=native}, ring, halving-doubling or hierarchical",
        );
    }
    if options.coordination.is_some() {
        return wrong(
            "coordinator",
            format!("needs exchanges in any order, and those of {asked} have a fixed one"),
            "drop {coordinator}",
        );
    }
    if options.iterations.is_some_and(|iterations| iterations > 1) && cluster.jitter.is_none() {
        return wrong(
            "iterations",
            "needs iterations that differ, and those of a plan are alike".into(),
            "drop {iterations}",
        );
    }
    Ok(())
}

/// `plan` and `own`: of ranks whose GPUs are as fast as most, and of the slowest rank, with what varies by its factors.
fn found(
    trace: &Trace,
    options: &Options,
    (plan, own, factors): (&Plan, &Plan, &Factors),
    executed: Executed,
    (messages, bytes): (u64, u64),
    resolution: Resolution,
) -> Found {
    let seconds = |picoseconds: u64| picoseconds as f64 * 1e-12;
    let spans = &executed.spans[&executed.slowest];
    let account = account::account(own, spans, executed.end);
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
    let sum = |counts: fn(&Step) -> bool| {
        seconds(own.steps.iter().filter(|step| counts(step)).filter_map(|step| duration(&step.work, factors)).sum())
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
            server_shares: Vec::new(),
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
        staggering: None,
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
