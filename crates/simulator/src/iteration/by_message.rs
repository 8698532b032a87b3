//! Executes a plan message by message, in the event loop of all simulations: every rank follows the plan by itself.
use std::collections::BTreeMap;

use paceline_iteration::Plan;
use paceline_model::{Cluster, Time, Trace};
use paceline_schedule::Bucket;

use super::collectives::Alone;
use super::groups::{ELEMENT_BYTES, Grouped, Programs};
use super::{Executed, Spans, duration, factors, predecessors};
use crate::network::topology::NetworkLinks;
use crate::options::{Network, Options, SimulationError};
use crate::outcome::{Observed, Usage};
use crate::path::COUNT;
use crate::prepare::{Prepared, Worker, with_least_latency};
use crate::simulation::{Boundary, Job, JobPlace, Simulation, Until};
use crate::worker::workers;

/// A plan for the event loop.
pub(crate) struct PlanRun {
    /// For each step, how many it waits for, and those that wait for it.
    waits: Vec<u32>,
    followers: Vec<Vec<u32>>,
    /// Picoseconds of computation of each rank's steps; for an exchange its bucket.
    work: Vec<Vec<Task>>,
    step_of_bucket: Vec<u32>,
}

/// What a step is on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Picoseconds.
    Compute(u64),
    /// A bucket.
    Exchange(u32),
}

/// How far a rank is.
pub(crate) struct Progress {
    waits: Vec<u32>,
    left: usize,
    pub spans: Spans,
}

impl PlanRun {
    fn new(plan: &Plan, programs: &Programs, factors: &[(f64, f64)]) -> PlanRun {
        let before = predecessors(plan);
        let mut followers: Vec<Vec<u32>> = vec![Vec::new(); plan.steps.len()];
        for (step, before) in (0u32..).zip(&before) {
            before.iter().for_each(|&it| followers[it as usize].push(step));
        }
        let of_rank = |&factors: &(f64, f64)| {
            let task = |(step, exchange): (&paceline_iteration::Step, &Option<u32>)| match exchange {
                Some(bucket) => Task::Exchange(*bucket),
                None => Task::Compute(duration(&step.work, factors).unwrap_or(0)),
            };
            plan.steps.iter().zip(&programs.exchange_of).map(task).collect()
        };
        let is_exchange = |&step: &u32| programs.exchange_of[step as usize].is_some();
        PlanRun {
            waits: before.iter().map(|before| before.len() as u32).collect(),
            followers,
            work: factors.iter().map(of_rank).collect(),
            step_of_bucket: (0..plan.steps.len() as u32).filter(is_exchange).collect(),
        }
    }

    /// Steps that wait for nothing, and a rank that has done none.
    pub fn begin(&self) -> (Progress, Vec<u32>) {
        let first = (0u32..).zip(&self.waits).filter(|(_, waits)| **waits == 0).map(|(step, _)| step).collect();
        let left = self.waits.len();
        (Progress { waits: self.waits.clone(), left, spans: vec![(0, 0); left] }, first)
    }

    pub fn task(&self, rank: u32, step: u32) -> Task {
        self.work[rank as usize][step as usize]
    }

    pub fn step_of(&self, bucket: u32) -> u32 {
        self.step_of_bucket[bucket as usize]
    }

    /// Ends a step; the steps that can now begin, and whether it was the last one.
    pub fn end(&self, progress: &mut Progress, step: u32, now: u64) -> (Vec<u32>, bool) {
        progress.spans[step as usize].1 = now;
        progress.left -= 1;
        let mut ready = Vec::new();
        for &follower in &self.followers[step as usize] {
            let waits = &mut progress.waits[follower as usize];
            *waits -= 1;
            if *waits == 0 {
                ready.push(follower);
            }
        }
        (ready, progress.left == 0)
    }
}

pub(super) fn execute(
    plan: &Plan,
    programs: Programs,
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    shown: u32,
) -> Result<Executed, SimulationError> {
    let factors = factors(trace, cluster, options);
    let run = PlanRun::new(plan, &programs, &factors);
    let computes = |rank: usize| {
        let time = |task: &Task| if let Task::Compute(time) = task { *time } else { 0 };
        run.work[rank].iter().map(time).sum::<u64>()
    };
    let slowest = (0..factors.len()).max_by_key(|&rank| (computes(rank), std::cmp::Reverse(rank))).unwrap_or(0) as u32;
    let buckets: Vec<Bucket> = programs.exchanges.iter().map(|&(_, bucket)| bucket).collect();
    let prepared = Prepared {
        entry: programs.entry,
        priority: (0..buckets.len() as u32).collect(),
        names: vec![String::new(); buckets.len()],
        buckets,
        element_bytes: ELEMENT_BYTES,
        workers: vec![idle(Vec::new())],
        pull_by_layer: false,
        exchange_only: false,
        plan: Some(run),
        schedule: Box::new(programs.together()),
    };
    let (mut simulation, end) = run_job(&prepared, trace, cluster, options)?;
    let busy = simulation.workers.iter().map(|worker| worker.busy).collect();
    let usage = Usage { wires: &simulation.wires, workers: busy, iterations: 1.0 };
    let observed = Observed::new(None, &usage, options.detail);
    let mut spans = BTreeMap::new();
    for (rank, worker) in (0u32..).zip(&mut simulation.workers) {
        if let Some(progress) = worker.plan.take().filter(|_| rank < shown || rank == slowest) {
            spans.insert(rank, progress.spans);
        }
    }
    Ok(Executed { end, slowest, spans, links: observed.links, busy: observed.busy })
}

/// A collective alone, from the moment at which it begins on all ranks until the last one has ended it.
pub(super) fn exchange_alone(
    grouped: Grouped,
    bucket: Bucket,
    cluster: &Cluster,
    options: &Options,
) -> Result<Alone, SimulationError> {
    let entry = paceline_schedule::look_up(&options.strategy).map_err(|e| SimulationError(format!("strategy: {e}")))?;
    let prepared = Prepared {
        entry,
        schedule: Box::new(grouped),
        buckets: vec![bucket],
        names: vec![String::new()],
        priority: vec![0],
        element_bytes: ELEMENT_BYTES,
        workers: vec![idle(vec![(Time::ZERO, 0)])],
        pull_by_layer: false,
        exchange_only: true,
        plan: None,
    };
    // Ranks differ in what they compute, and here they exchange.
    let calm = Cluster { jitter: None, stragglers: Vec::new(), ..cluster.clone() };
    let trace = Trace::all_reduce(4, 1).map_err(|e| SimulationError(e.to_string()))?;
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

/// A worker that computes nothing by itself.
fn idle(ready: Vec<(Time, u32)>) -> Worker {
    Worker {
        layers: Vec::new(),
        needs: Vec::new(),
        forward: Time::ZERO,
        backward: Time::ZERO,
        optimizer: Time::ZERO,
        ready,
    }
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
    let wires = NetworkLinks::for_schedule(&seen, &*prepared.schedule, fluid, options.seed).map_err(SimulationError)?;
    let workers = workers(trace, cluster, options, prepared.buckets.len());
    let place = JobPlace::alone(prepared.schedule.roles());
    let job = Job::new(prepared, place, (Boundary::Sums, true), (0, Until::Mark(1)), None);
    let mut simulation = Simulation::new(cluster, wires, vec![job], workers, fluid, ());
    simulation.run().map_err(SimulationError)?;
    let end = simulation.jobs[0].marks.last().map_or(0, |mark| mark.time);
    Ok((simulation, end))
}
