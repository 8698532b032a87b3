//! What the coordinators cost, one a file. They are those of `paceline-coordinator`, under its names.
mod global_sleep;
mod graph;
mod negotiate;
mod nonblocking;
mod partitioned;

use paceline_coordinator::PolicyKind;

use super::constants::Constants;
use super::draws::{Draws, Spin};

/// What a policy knows of an iteration; times are ms.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub processes: u32,
    /// From the start of the iteration until a process that nothing delays has all gradients.
    pub compute: f64,
    /// How long pipeline and scheduling are both active.
    pub contention: f64,
    /// An all-reduce of the cache's bits.
    pub consensus: f64,
    pub constants: Constants,
}

/// An agreement on what is ready everywhere; times are ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Agreement {
    /// It is on tensors that were ready by then.
    pub seen: f64,
    /// The same for processes that look at another time; nothing delays those.
    pub earliest: f64,
    /// When processes begin the collective, on average, and the last one.
    pub issued: f64,
    pub last: f64,
}

/// A coordinator at work in one iteration.
pub(super) trait Policy {
    /// The next agreement; agreements are in the order of time. None: tensors are issued as they are ready, without.
    fn next(&mut self, draws: &mut Draws) -> Option<Agreement>;

    /// Spins until now that take cores from what the process computes.
    fn spins(&self) -> &[Spin];
}

/// How a kind of coordinator is modelled.
pub(super) struct Model {
    /// The input pipeline is active longer by this factor.
    pub stretch: fn(&Constants) -> f64,
    /// At the start of an iteration.
    pub begin: for<'a> fn(&'a Setting, &mut Draws) -> Box<dyn Policy + 'a>,
}

/// The model of a kind.
pub(super) fn model(kind: PolicyKind) -> &'static Model {
    match kind {
        PolicyKind::Negotiate => &negotiate::NEGOTIATE,
        PolicyKind::GlobalSleep => &global_sleep::GLOBAL_SLEEP,
        PolicyKind::Nonblocking => &nonblocking::NONBLOCKING,
        PolicyKind::Partitioned => &partitioned::PARTITIONED,
        PolicyKind::Graph => &graph::GRAPH,
    }
}
