//! Simulates one iteration, from the first layer to the last sum.
use super::collective::{Collective, copies_ms};
use super::draws::{Draws, Latest, Preemptions, Rank};
use super::policy::{Agreement, Model, Setting};
use super::workload::{Fused, Workload};
use crate::options::SimulationError;

/// Breakdown of the time after the computation in ms; every moment counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    /// Waiting until processes begin a collective.
    pub coordinator: f64,
    pub copy: f64,
    /// The network, including the wait in it for processes that arrive later.
    pub collective: f64,
    /// Lateness of the latest process, ms; not a part of the iteration.
    pub late: f64,
}

impl Spent {
    pub fn add(&mut self, other: &Spent) {
        self.coordinator += other.coordinator;
        self.copy += other.copy;
        self.collective += other.collective;
        self.late += other.late;
    }
}

/// A bucket in the course of an iteration; times are in ms from its start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Issued {
    pub tensors: usize,
    pub bytes: u64,
    /// A process without delays has all of it.
    pub ready: f64,
    /// All have agreed on it; `None`: each begins by itself.
    pub agreed: Option<f64>,
    /// The last process begins.
    pub start: f64,
    /// The coordinator's other work for it.
    pub own: f64,
    pub copies: f64,
    pub end: f64,
}

/// How much of the time after the computation has been attributed.
struct Clock {
    compute: f64,
    now: f64,
}

impl Clock {
    /// How much of the time until `end` has not been attributed yet.
    fn until(&mut self, end: f64) -> f64 {
        let new = (end - self.now.max(self.compute)).max(0.0);
        self.now = self.now.max(end);
        new
    }
}

/// One iteration under one coordinator.
pub(super) struct Iteration<'a, 'b> {
    pub model: &'a Model,
    pub setting: &'a Setting,
    pub workload: &'a Workload,
    pub collective: &'a mut Collective<'b>,
    /// If given: the processes that are late, and the buckets.
    pub shown: Option<&'a mut Shown>,
}

/// An iteration for its timeline.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub ranks: Vec<Rank>,
    pub issued: Vec<Issued>,
}

impl Iteration<'_, '_> {
    /// Simulates it. `slower`: the factor by which the slowest process computes longer.
    pub fn run(&mut self, slower: f64, draws: &mut Draws) -> Result<Spent, SimulationError> {
        let (setting, workload) = (self.setting, self.workload);
        // Lateness must be drawn before it is known which tensors are ready, so cycles are simulated ahead to the end of
        // the computation; later ones preempt nothing.
        let mut policy = (self.model.begin)(setting, draws);
        let mut agreements = Vec::new();
        while agreements.last().is_none_or(|it: &Agreement| it.seen < setting.compute) {
            match policy.next(draws) {
                Some(agreement) => agreements.push(agreement),
                None => break,
            }
        }
        let constants = &setting.constants;
        let latest = draws.latest(
            setting.processes,
            &Preemptions {
                rate: constants.preemption_per_node * setting.nodes_per_ms,
                contention: setting.contention,
                mean: constants.preemption_mean_ms,
                spin_rate: constants.spin_preemption_per_node * setting.nodes_per_ms,
                spins: policy.spins(),
            },
            if agreements.is_empty() { constants.cycle_ms } else { 0.0 },
            self.shown.as_deref_mut().map(|shown| &mut shown.ranks),
        );
        let Latest { late, begun } = latest;
        let mut spent = Spent { late, ..Spent::default() };
        let mut clock = Clock { compute: setting.compute, now: 0.0 };
        if agreements.is_empty() {
            self.in_order(begun, slower, &mut spent, &mut clock)?;
            return Ok(spent);
        }
        let mut agreements = agreements.into_iter();
        let mut rest = workload.tensors.as_slice();
        while !rest.is_empty() {
            let Some(at) = agreements.next().or_else(|| policy.next(draws)) else { break };
            let ready = rest.partition_point(|tensor| {
                let ready = tensor.ready * slower;
                ready + late <= at.seen && ready <= at.earliest
            });
            let (now, later) = rest.split_at(ready);
            rest = later;
            let ready = now.last().map_or(0.0, |tensor| tensor.ready);
            for bucket in workload.fuse(now) {
                self.issue(&mut spent, &mut clock, (at.issued, at.last), 0.0, ready, true, bucket)?;
            }
        }
        Ok(spent)
    }

    /// Buckets in the order of the graph: each begins in a process at its first turn after the last tensor is ready
    /// there. `begun`: how long after a punctual process's tensors the last process has that turn.
    fn in_order(
        &mut self,
        begun: f64,
        slower: f64,
        spent: &mut Spent,
        clock: &mut Clock,
    ) -> Result<(), SimulationError> {
        let (workload, constants) = (self.workload, &self.setting.constants);
        let mean = (constants.cycle_ms / 2.0).min(begun);
        let mut end = 0;
        for bucket in workload.fuse(&workload.tensors) {
            end += bucket.tensors;
            let ready = workload.tensors[end - 1].ready;
            let turns = (ready + mean, ready * slower + begun);
            self.issue(spent, clock, turns, constants.order_ms, ready, false, bucket)?;
        }
        Ok(())
    }

    /// One bucket, begun by processes at `issued` (the mean, and the last of them), or when the previous bucket has
    /// completed. `own`: what the coordinator does for it besides, ms.
    #[expect(clippy::too_many_arguments, reason = "what an agreement and a turn have in common")]
    fn issue(
        &mut self,
        spent: &mut Spent,
        clock: &mut Clock,
        (issued, last): (f64, f64),
        own: f64,
        ready: f64,
        agreed: bool,
        bucket: Fused,
    ) -> Result<(), SimulationError> {
        let copies = copies_ms(bucket.tensors, bucket.bytes, &self.setting.constants);
        spent.coordinator += clock.until(issued);
        // Each process copies when it begins; the others wait for the copies of the last one.
        let start = clock.now.max(last);
        spent.collective += clock.until(start);
        spent.coordinator += clock.until(start + own);
        spent.copy += clock.until(start + own + copies);
        let end = start + own + copies + self.collective.ms(bucket.bytes)?;
        spent.collective += clock.until(end);
        if let Some(shown) = self.shown.as_deref_mut() {
            let agreed = agreed.then_some(issued);
            let Fused { tensors, bytes } = bucket;
            shown.issued.push(Issued { tensors, bytes, ready, agreed, start, own, copies, end });
        }
        Ok(())
    }
}
