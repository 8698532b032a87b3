//! Parts of the model of a coordinator policy.
use std::num::NonZeroU32;

use super::constants::Constants;
use super::draws::{Draws, Spin};

/// The parameters of an iteration for a policy; times are in ms.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub processes: u32,
    /// After how many cycles all threads sleep equally long; `None`: they never do.
    pub sleep_every: Option<NonZeroU32>,
    /// From the start of the iteration until a process without delays has all gradients.
    pub compute: f64,
    /// How long pipeline and scheduling are both active.
    pub contention: f64,
    /// Nodes of the graph that are scheduled per ms of it.
    pub nodes_per_ms: f64,
    /// Time of an all-reduce of the cache's bits.
    pub consensus: f64,
    pub constants: Constants,
}

impl Setting {
    /// A wake-up that was due during contention and is late. With the contention ends what kept the thread waiting.
    pub fn late_wake(&self, due: f64, draws: &mut Draws) -> f64 {
        (due + draws.exponential(self.constants.oversleep_mean_ms)).min(due.max(self.contention))
    }
}

/// An agreement on which tensors are ready everywhere; times are in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Agreement {
    /// It covers tensors that were ready by this time.
    pub seen: f64,
    /// The same for processes that check at another time and have no delays.
    pub earliest: f64,
    /// When processes begin the collective: the mean, and the last one.
    pub issued: f64,
    pub last: f64,
}

/// A coordinator during one iteration.
pub(super) trait Policy {
    /// The next agreement, in order of time. `None`: tensors are issued when they are ready, without agreement.
    fn next(&mut self, draws: &mut Draws) -> Option<Agreement>;

    /// Spins so far that compete with the process's computation for cores.
    fn spins(&self) -> &[Spin];
}

/// The model of a policy.
pub(super) struct Model {
    /// Factor by which the input pipeline is active for longer.
    pub stretch: fn(&Constants) -> f64,
    /// Creates the coordinator at the start of an iteration.
    pub begin: for<'a> fn(&'a Setting, &mut Draws) -> Box<dyn Policy + 'a>,
}
