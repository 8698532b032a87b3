//! The plan of an iteration for the event loop, in which every worker follows its plan by itself.
//!
//! Consecutive steps of computation that wait for nothing else form a run. A step's end is counted from the beginning of
//! its run, so that factors round once, and what nobody waits for in between takes no event.
use std::mem::{discriminant, replace, swap};

use paceline_iteration::{Plan, Stream};
use paceline_model::Time;

use crate::observer::Activity;
use crate::planning::{Kind, Spans, computed, predecessors};

/// A step, or several that are one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Computation.
    Compute {
        /// Number of its run.
        run: u32,
        /// Whether the run begins with it.
        begins: bool,
        /// Its end, from the beginning of the run.
        end: Time,
    },
    /// A bucket.
    Exchange(u32),
}

/// Computation without interruption.
pub(crate) struct Run {
    /// What it computes. An iteration may be over at the end of the optimizer's.
    pub kind: Kind,
    /// Whether it is of the model's stream of computation, and not beside it.
    pub is_models: bool,
    pub total: Time,
    /// Its spans in timelines, each from the end of the one before.
    pub shown: Vec<(Activity, Time)>,
    /// The span of waiting for it.
    pub awaited: Activity,
}

/// Work of the workers that copy a recorded one on a GPU of one speed.
pub(crate) struct PlanRun {
    pub tasks: Vec<Task>,
    pub runs: Vec<Run>,
    /// Tasks that wait for none of the same iteration.
    pub first: Vec<u32>,
    /// For each task, how many of the same iteration it waits for, and those that wait for it.
    waits: Vec<u32>,
    followers: Vec<Vec<u32>>,
    /// For each task, those of the iteration before for which it waits, and those of the next one that wait for it.
    after_previous: Vec<Vec<u32>>,
    next_followers: Vec<Vec<u32>>,
    /// Whether an iteration ends without its exchanges.
    ends_with_compute: bool,
    /// How many tasks an iteration has without those that outlast it.
    count: usize,
    task_of_bucket: Vec<u32>,
    /// Whether spans are wanted.
    every_step: bool,
}

/// How far a worker is.
#[derive(Default)]
pub(crate) struct Progress {
    waits: Vec<u32>,
    left: usize,
    /// Tasks of this iteration and of the one before that have ended, if later ones wait for them.
    arrived: Vec<bool>,
    previous: Vec<bool>,
    /// Of every step, if they are wanted.
    pub spans: Spans,
}

/// An iteration that is a forward pass, a backward pass, and an optimizer's step that waits for all exchanges.
pub(crate) struct Passes {
    pub forward: Time,
    pub backward: Time,
    pub optimizer: Time,
    /// When each bucket is sent, from the start of the backward pass, in order.
    pub ready: Vec<(Time, u32)>,
}

impl Progress {
    /// Whether no task of the iteration is left.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }
}

impl PlanRun {
    /// `bucket_of`: the bucket of each step that is an exchange. `every_step`: whether each step is a task, with a span.
    pub fn new(plan: &Plan, bucket_of: &[Option<u32>], every_step: bool) -> PlanRun {
        let before = predecessors(plan);
        let mut followed = vec![0; plan.steps.len()];
        before.iter().flatten().for_each(|&it| followed[it as usize] += 1);
        let (mut tasks, mut runs) = (Vec::new(), Vec::<Run>::new());
        let mut task_of: Vec<u32> = Vec::with_capacity(plan.steps.len());
        let mut layers = 0;
        for ((step, before), bucket) in plan.steps.iter().zip(&before).zip(bucket_of) {
            let Some((kind, length)) = computed(&step.work) else {
                task_of.push(tasks.len() as u32);
                tasks.push(Task::Exchange(bucket.unwrap_or(u32::MAX)));
                continue;
            };
            let continued = match (before.as_slice(), step.stream, step.after_previous.is_empty()) {
                (&[one], Stream::Compute, true) => {
                    let earlier = &plan.steps[one as usize];
                    let same = discriminant(&earlier.work) == discriminant(&step.work);
                    (same && earlier.stream == Stream::Compute).then_some(one as usize)
                }
                _ => None,
            };
            let run = match continued.map(|one| tasks[task_of[one] as usize]) {
                Some(Task::Compute { run, .. }) => run,
                _ => {
                    runs.push(Run::of(kind, step.stream, layers));
                    runs.len() as u32 - 1
                }
            };
            let own = &mut runs[run as usize];
            own.total += length;
            let end = own.total;
            match kind {
                Kind::Forward => {
                    own.shown.push((Activity::Layer(layers), end));
                    layers += 1;
                }
                _ => own.shown = vec![(own.shown.first().map_or(own.awaited, |it| it.0), end)],
            }
            let joined = continued.filter(|&one| !every_step && followed[one] == 1);
            match joined.map(|one| task_of[one]) {
                Some(task) => {
                    if let Task::Compute { end: ended, .. } = &mut tasks[task as usize] {
                        *ended = end;
                    }
                    task_of.push(task);
                }
                None => {
                    task_of.push(tasks.len() as u32);
                    tasks.push(Task::Compute { run, begins: continued.is_none(), end });
                }
            }
        }
        PlanRun::linked(plan, &before, &task_of, tasks, runs, every_step)
    }

    fn linked(
        plan: &Plan,
        before: &[Vec<u32>],
        task_of: &[u32],
        tasks: Vec<Task>,
        runs: Vec<Run>,
        every_step: bool,
    ) -> PlanRun {
        let none: Vec<Vec<u32>> = vec![Vec::new(); tasks.len()];
        let (mut waits, mut followers) = (vec![0; tasks.len()], none.clone());
        let (mut after_previous, mut next_followers) = (none.clone(), none);
        for ((step, before), &task) in plan.steps.iter().zip(before).zip(task_of) {
            let number = |&it: &u32| task_of[it as usize];
            for it in before.iter().map(number).filter(|&it| it != task) {
                waits[task as usize] += 1;
                followers[it as usize].push(task);
            }
            for it in step.after_previous.iter().map(number) {
                after_previous[task as usize].push(it);
                next_followers[it as usize].push(task);
            }
        }
        let exchanges = || {
            (0u32..).zip(&tasks).filter_map(|(number, task)| match *task {
                Task::Exchange(bucket) => Some((number, bucket)),
                Task::Compute { .. } => None,
            })
        };
        let buckets = exchanges().map(|(_, bucket)| bucket as usize + 1).max().unwrap_or(0);
        let mut task_of_bucket = vec![u32::MAX; buckets];
        exchanges().for_each(|(number, bucket)| task_of_bucket[bucket as usize] = number);
        let outlasting = if plan.ends_with_compute { exchanges().count() } else { 0 };
        PlanRun {
            first: (0u32..).zip(&waits).filter(|(_, waits)| **waits == 0).map(|(task, _)| task).collect(),
            waits,
            followers,
            after_previous,
            next_followers,
            ends_with_compute: plan.ends_with_compute,
            count: tasks.len() - outlasting,
            task_of_bucket,
            every_step,
            tasks,
            runs,
        }
    }

    /// An iteration in which one bucket is exchanged, and nothing else happens.
    pub fn exchange_alone() -> PlanRun {
        PlanRun {
            tasks: vec![Task::Exchange(0)],
            runs: Vec::new(),
            first: vec![0],
            waits: vec![0],
            followers: vec![Vec::new()],
            after_previous: vec![Vec::new()],
            next_followers: vec![Vec::new()],
            ends_with_compute: false,
            count: 1,
            task_of_bucket: vec![0],
            every_step: false,
        }
    }

    /// Begins an iteration; `is_first`: there is none before it.
    pub fn begin(&self, progress: &mut Progress, is_first: bool) {
        progress.waits.clone_from(&self.waits);
        progress.left = self.count;
        if self.every_step {
            progress.spans = vec![(0, 0); self.tasks.len()];
        }
        if !self.ends_with_compute {
            return;
        }
        swap(&mut progress.previous, &mut progress.arrived);
        progress.arrived.clear();
        progress.arrived.resize(self.tasks.len(), false);
        if !is_first {
            for (waits, after) in progress.waits.iter_mut().zip(&self.after_previous) {
                *waits += after.iter().filter(|&&task| !progress.previous[task as usize]).count() as u32;
            }
        }
    }

    /// How long its model computes in an iteration.
    pub fn computation(&self) -> Time {
        self.runs.iter().filter(|run| run.is_models).fold(Time::ZERO, |sum, run| sum + run.total)
    }

    /// Whether a task can begin.
    pub fn is_ready(&self, progress: &Progress, task: u32) -> bool {
        progress.waits[task as usize] == 0
    }

    /// The task of a bucket.
    pub fn task_of(&self, bucket: u32) -> u32 {
        self.task_of_bucket[bucket as usize]
    }

    /// Ends a task of this iteration; the tasks that can now begin, and whether the iteration is over.
    pub fn end(&self, progress: &mut Progress, task: u32, now: u64) -> (Vec<u32>, bool) {
        if self.every_step {
            progress.spans[task as usize].1 = now;
        }
        if self.ends_with_compute && matches!(self.tasks[task as usize], Task::Exchange(_)) {
            progress.arrived[task as usize] = true;
            return (Vec::new(), false);
        }
        progress.left -= 1;
        (released(&self.followers[task as usize], &mut progress.waits), progress.left == 0)
    }

    /// Ends a task of the iteration before; the tasks that can now begin.
    pub fn end_previous(&self, progress: &mut Progress, task: u32) -> Vec<u32> {
        if replace(&mut progress.previous[task as usize], true) {
            return Vec::new();
        }
        released(&self.next_followers[task as usize], &mut progress.waits)
    }

    /// The iteration as passes, if it is nothing else.
    pub fn passes(&self) -> Option<Passes> {
        let mut found = Passes { forward: Time::ZERO, backward: Time::ZERO, optimizer: Time::ZERO, ready: Vec::new() };
        if self.ends_with_compute {
            return None;
        }
        for run in &self.runs {
            let slot = match run {
                Run { is_models: false, .. } => return None,
                Run { kind: Kind::Backward, .. } => &mut found.backward,
                Run { kind: Kind::Optimizer, .. } => &mut found.optimizer,
                _ => &mut found.forward,
            };
            if *slot != Time::ZERO {
                return None;
            }
            *slot = run.total;
        }
        let mut sent: Vec<Option<(Time, u32)>> = vec![None; self.tasks.len()];
        for (task, followers) in self.tasks.iter().zip(&self.followers) {
            for &follower in followers {
                let Task::Exchange(bucket) = self.tasks[follower as usize] else { continue };
                let Task::Compute { run, end, .. } = *task else { return None };
                let at = if self.runs[run as usize].kind == Kind::Backward { end } else { Time::ZERO };
                if sent[follower as usize].replace((at, bucket)).is_some() {
                    return None;
                }
            }
        }
        found.ready = sent.into_iter().flatten().collect();
        (found.ready.len() == self.task_of_bucket.len()).then_some(found)
    }
}

impl Run {
    fn of(kind: Kind, stream: Stream, layer: u32) -> Run {
        let shown = match kind {
            Kind::Backward => vec![(Activity::Backward, Time::ZERO)],
            Kind::Forward => Vec::new(),
            Kind::Optimizer | Kind::Other => vec![(Activity::Optimizer, Time::ZERO)],
        };
        let awaited = if kind == Kind::Forward { Activity::Wait(layer) } else { Activity::WaitForSums };
        Run { kind, is_models: stream == Stream::Compute, total: Time::ZERO, shown, awaited }
    }
}

fn released(followers: &[u32], waits: &mut [u32]) -> Vec<u32> {
    let mut ready = Vec::new();
    for &follower in followers {
        let waits = &mut waits[follower as usize];
        *waits -= 1;
        if *waits == 0 {
            ready.push(follower);
        }
    }
    ready
}
