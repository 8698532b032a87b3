//! Simulates one iteration, from the first layer to the last sum.
use super::collective::{Collective, copies_ms};
use super::draws::{Draws, Latest, Preemptions};
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

/// Simulates one iteration.
pub(super) fn iterate(
    model: &Model,
    setting: &Setting,
    workload: &Workload,
    collective: &mut Collective,
    draws: &mut Draws,
) -> Result<Spent, SimulationError> {
    // Lateness must be drawn before it is known which tensors are ready, so cycles are simulated ahead to the end of
    // the computation; later ones preempt nothing.
    let mut policy = (model.begin)(setting, draws);
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
    );
    let Latest { late, begun } = latest;
    let mut spent = Spent { late, ..Spent::default() };
    let mut clock = Clock { compute: setting.compute, now: 0.0 };
    if agreements.is_empty() {
        in_order(workload, constants.cycle_ms / 2.0, begun, |turns, bucket| {
            issue(&mut spent, &mut clock, setting, collective, turns, constants.order_ms, bucket)
        })?;
        return Ok(spent);
    }
    let mut agreements = agreements.into_iter();
    let mut rest = workload.tensors.as_slice();
    while !rest.is_empty() {
        let Some(at) = agreements.next().or_else(|| policy.next(draws)) else { break };
        let ready = rest.partition_point(|tensor| tensor.ready + late <= at.seen && tensor.ready <= at.earliest);
        let (now, later) = rest.split_at(ready);
        rest = later;
        for bucket in workload.fuse(now) {
            issue(&mut spent, &mut clock, setting, collective, (at.issued, at.last), 0.0, bucket)?;
        }
    }
    Ok(spent)
}

/// Buckets in the order of the graph: each begins in a process at its first turn after the last tensor is ready there.
/// `mean`, `last`: how long after a punctual process's tensors processes have that turn.
fn in_order(
    workload: &Workload,
    mean: f64,
    last: f64,
    mut issue: impl FnMut((f64, f64), Fused) -> Result<(), SimulationError>,
) -> Result<(), SimulationError> {
    let mut end = 0;
    for bucket in workload.fuse(&workload.tensors) {
        end += bucket.tensors;
        let ready = workload.tensors[end - 1].ready;
        issue((ready + mean.min(last), ready + last), bucket)?;
    }
    Ok(())
}

/// One bucket, begun by processes at `issued` (the mean, and the last of them), or when the previous bucket has
/// completed. `own`: what the coordinator does for it besides, ms.
fn issue(
    spent: &mut Spent,
    clock: &mut Clock,
    setting: &Setting,
    collective: &mut Collective,
    (issued, last): (f64, f64),
    own: f64,
    bucket: Fused,
) -> Result<(), SimulationError> {
    let copies = copies_ms(bucket.tensors, bucket.bytes, &setting.constants);
    spent.coordinator += clock.until(issued);
    // Each process copies when it begins; the others wait for the copies of the last one.
    let start = clock.now.max(last);
    spent.collective += clock.until(start);
    spent.coordinator += clock.until(start + own);
    let start = start + own;
    spent.copy += clock.until(start + copies);
    spent.collective += clock.until(start + copies + collective.ms(bucket.bytes)?);
    Ok(())
}
