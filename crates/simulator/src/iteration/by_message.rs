//! Executes a plan message by message, in the event loop of all simulations: every rank follows the plan by itself.
use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_iteration::Plan;
use paceline_model::{Cluster, Trace};
use paceline_schedule::Bucket;

use super::executed::{Alone, Executed};
use super::groups::{ELEMENT_BYTES, Grouped, Programs, exchange_of};
use crate::network::topology::NetworkLinks;
use crate::options::{Network, Options, SimulationError};
use crate::outcome::{Observed, Usage};
use crate::path::COUNT;
use crate::plan_run::PlanRun;
use crate::planning::plan_of;
use crate::prepare::with_least_latency;
use crate::run_types::{JobPlace, Prepared};
use crate::simulation::{Boundary, JobRun, Simulation, Until};
use crate::worker::{followers, speeds};

pub(super) fn execute(
    plan: &Plan,
    programs: Programs,
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    slowest: u32,
    shown: u32,
) -> Result<Executed, SimulationError> {
    let mut prepared = prepared(plan, programs, true);
    for &slower in &speeds(cluster)[1..] {
        let own = plan_of(trace, &options.on_slower(slower))?;
        prepared.workers.push(PlanRun::new(&own, &exchange_of(&own), true));
    }
    let (mut simulation, end) = run_job(&prepared, trace, cluster, options)?;
    let busy = simulation.workers.iter().map(|worker| worker.busy).collect();
    let usage = Usage { wires: &simulation.wires, workers: busy, iterations: 1.0 };
    let observed = Observed::new(None, &usage, options.detail);
    let mut spans = BTreeMap::new();
    for (rank, worker) in (0u32..).zip(&mut simulation.workers) {
        if rank < shown || rank == slowest {
            spans.insert(rank, std::mem::take(&mut worker.progress.spans));
        }
    }
    Ok(Executed { end, slowest, spans, links: observed.links, busy: observed.busy })
}

/// The plan for the event loop, in which its exchanges are the buckets. `every_step`: whether spans are wanted.
pub(super) fn prepared(plan: &Plan, programs: Programs, every_step: bool) -> Prepared {
    let exchange_of = exchange_of(plan);
    let run = PlanRun::new(plan, &exchange_of, every_step);
    let buckets: Vec<Bucket> = programs.exchanges.iter().map(|&(_, bucket)| bucket).collect();
    let exchanges = plan.steps.iter().zip(&exchange_of).filter(|(_, exchange)| exchange.is_some());
    Prepared {
        entry: programs.entry,
        priority: (0..buckets.len() as u32).collect(),
        names: exchanges.map(|(step, _)| step.name(&plan.units)).collect(),
        kinds: programs.exchanges.iter().map(|&(part, _)| part as u32).collect(),
        buckets,
        element_bytes: ELEMENT_BYTES,
        workers: vec![run],
        exchange_only: false,
        schedule: Arc::new(programs.together()),
    }
}

/// A collective alone, from the moment at which it begins on all ranks until the last one has ended it.
pub(super) fn exchange_alone(
    grouped: Grouped,
    bucket: Bucket,
    cluster: &Cluster,
    options: &Options,
) -> Result<Alone, SimulationError> {
    let prepared = Prepared {
        entry: options.entry()?,
        schedule: Arc::new(grouped),
        buckets: vec![bucket],
        kinds: vec![0],
        names: vec![String::new()],
        priority: vec![0],
        element_bytes: ELEMENT_BYTES,
        workers: vec![PlanRun::exchange_alone()],
        exchange_only: true,
    };
    // Ranks differ in what they compute, and here they exchange.
    let calm = Cluster { jitter: None, stragglers: Vec::new(), ..cluster.clone() };
    let trace = Trace::all_reduce(4, 1).map_err(|e| SimulationError::new(e.to_string()))?;
    let (simulation, time) = run_job(&prepared, &trace, &calm, options)?;
    let usage = Usage { wires: &simulation.wires, workers: Vec::new(), iterations: 1.0 };
    let mut busy = [0.0; COUNT];
    for link in &simulation.wires.links {
        let share = link.busy as f64 / time.max(1) as f64;
        let slot = &mut busy[link.part as usize];
        *slot = share.min(1.0).max(*slot);
    }
    Ok(Alone { time, busy, links: Observed::new(None, &usage, false).links })
}

/// Runs one iteration; the simulation, and the end.
fn run_job<'a>(
    prepared: &'a Prepared,
    trace: &Trace,
    cluster: &'a Cluster,
    options: &Options,
) -> Result<(Simulation<'a, (), ()>, u64), SimulationError> {
    let fluid = options.network == Network::Fluid;
    let seen = with_least_latency(cluster, prepared);
    let wires = NetworkLinks::for_schedule(&seen, &*prepared.schedule, fluid, options.seed)?;
    let workers = followers(trace, cluster, options);
    let place = JobPlace::alone(prepared.schedule.roles());
    let job = JobRun::new(prepared, place, (Boundary::Sums, true), (0, Until::Mark(1)), None);
    let mut simulation = Simulation::new(cluster, wires, vec![job], workers, fluid, ());
    simulation.run().map_err(SimulationError::new)?;
    let end = simulation.jobs[0].marks.last().map_or(0, |mark| mark.time);
    Ok((simulation, end))
}
