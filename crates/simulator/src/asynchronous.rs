//! Workers that do not wait for each other: asynchronous and stale-synchronous parameter servers.
//!
//! Each worker and the servers are a job of the event loop, with lanes and a barrier of its own, and all jobs share the servers'
//! roles and the network. A worker's iteration ends when all its gradients have been applied. Then it may pull the
//! parameters, unless the bound holds it back ([`Updates`]). The workers run to a steady state, which is measured.
use std::sync::Arc;

use paceline_model::{Cluster, Trace};
use paceline_schedule::{Roles, Schedule};

use crate::network::topology::NetworkLinks;
use crate::observer::Observer;
use crate::options::{Network, Options, SimulationError};
use crate::outcome::{Computation, Found, Observed, Outcome, Traffic, Usage, compose};
use crate::path::{Chain, Composition};
use crate::prepare::{prepare, with_least_latency};
use crate::run::path;
use crate::run_types::{JobPlace, Mark, Prepared};
use crate::simulation::{Boundary, JobRun, Simulation, Until};
use crate::staleness::{Asynchronous, MEASURED, MOST_TIMES, Updates, WARM_UP};
use crate::timeline::{JobOnTimeline, Recorder, Timeline};
use crate::worker::workers;

/// Simulates the iterations of workers that do not wait for each other, as they were recorded; `timeline`: whether one is wanted,
/// and of how many ranks.
pub(crate) fn simulate_asynchronous(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    timeline: Option<Option<u32>>,
) -> Result<(Outcome, Timeline), SimulationError> {
    let Some(ranks) = timeline else {
        let outcome = if options.critical_path {
            run::<Composition, ()>(trace, cluster, options, ())?.outcome
        } else {
            run::<(), ()>(trace, cluster, options, ())?.outcome
        };
        return Ok((outcome, Timeline::default()));
    };
    let ran = run::<Composition, Recorder>(trace, cluster, options, Recorder::default())?;
    let overlapping = options.network == Network::Fluid;
    let job = JobOnTimeline { name: None, trace, prepared: &ran.part, place: JobPlace::alone(ran.roles) };
    Ok((ran.outcome, Timeline::new(&ran.observer, &[job], &ran.wires, overlapping, ranks)))
}

struct Ran<O> {
    outcome: Outcome,
    observer: O,
    wires: NetworkLinks,
    roles: Roles,
    part: Prepared,
}

fn run<C: Chain, O: Observer>(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    watching: O,
) -> Result<Ran<O>, SimulationError> {
    let (whole, plan) = prepare(trace, cluster, options)?;
    let fluid = options.network == Network::Fluid;
    let seen = with_least_latency(cluster, &whole);
    let wires = NetworkLinks::for_schedule(&seen, &*whole.schedule, fluid, options.seed)?;
    let (traffic, roles) = (Traffic::of(&whole), whole.schedule.roles());
    let schedule: Arc<dyn Schedule> = match whole.schedule.part() {
        Some(part) => part.into(),
        None => return Err(SimulationError::about("strategy", format!("{} is synchronous", whole.entry.name))),
    };
    let part = Prepared { schedule, ..whole };
    let measured = options.iterations.unwrap_or(MEASURED) as usize;
    let most = MOST_TIMES * options.workers as usize * (WARM_UP + measured + 1);
    let updates = Updates::new(&part, options, most);
    let jobs = (0..options.workers).map(|worker| {
        let place = JobPlace {
            roles: part.schedule.roles(),
            first_worker: worker,
            first_server: roles.workers,
            first_switch: roles.total(),
            first_bucket: worker * updates.buckets,
        };
        JobRun::new(&part, place, (Boundary::Barrier, false), (WARM_UP, Until::Iterations(measured)), None)
    });
    let jobs: Vec<_> = jobs.collect();
    let mut simulation =
        Simulation::<C, O>::new(cluster, wires, jobs, workers(trace, cluster, options), fluid, watching);
    simulation.updates = Some(updates);
    simulation.run().map_err(SimulationError::new)?;

    let end = simulation.jobs.iter().filter_map(|job| job.marks.last()).max_by_key(|mark| mark.time);
    let end = end.copied().unwrap_or_default();
    let window = seconds(end.time - simulation.measured_from);
    let rates: Vec<f64> = simulation.jobs.iter().map(|job| rate(&job.marks[job.marks_before..], window)).collect();
    let all: f64 = rates.iter().sum();
    let iteration_s = if window > 0.0 { f64::from(options.workers) / all } else { 0.0 };
    let iterations = if window > 0.0 { window / iteration_s } else { 1.0 };
    let path = path(&Mark::default(), &end, false, iterations, iteration_s);
    let busy = simulation.workers.iter().map(|worker| worker.busy).collect();
    let counted = simulation.jobs.iter().map(|job| (job.marks.len() - job.marks_before).saturating_sub(1));
    let fewest = counted.min().unwrap_or(0) as u32;
    let (wires, observer) = (simulation.wires, simulation.observer);
    let (counts, blocked) = simulation.updates.map_or_else(Default::default, |it| (it.counts, it.blocked));
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let asynchronous = Asynchronous {
        bound: options.staleness,
        iterations: fewest,
        staleness: counts.into_iter().collect(),
        blocked_s: seconds(blocked) / (iterations * f64::from(options.workers)),
        fastest_s: 1.0 / rates.iter().copied().fold(0.0, f64::max),
        slowest_s: if slowest > 0.0 { 1.0 / slowest } else { window },
    };
    let usage = Usage { wires: &wires, workers: busy, iterations };
    let found = Found {
        iteration_s,
        computation: Computation::recorded(trace, options),
        traffic,
        observed: Observed::new(path, &usage, options.detail),
        watched: None,
        coordination: None,
        staggering: None,
        notes: part.schedule.note().into_iter().collect(),
    };
    let outcome =
        Outcome { asynchronous: Some(asynchronous), bus: None, ..compose(trace, cluster, options, &plan, found)? };
    Ok(Ran { outcome, observer, wires, roles, part })
}

fn seconds(picoseconds: u64) -> f64 {
    picoseconds as f64 * 1e-12
}

/// Iterations a second of a worker that ended iterations at these times; of one that is too slow to have ended two, those in
/// the `window`.
fn rate<C>(marks: &[Mark<C>], window: f64) -> f64 {
    match marks {
        [first, .., last] if last.time > first.time => (marks.len() - 1) as f64 / seconds(last.time - first.time),
        _ => marks.len() as f64 / window,
    }
}
