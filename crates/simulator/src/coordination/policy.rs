//! The coordinators, one a file. To add one: write its file, name it here twice; tests run over [`coordinators`].
mod global_sleep;
mod graph;
mod negotiate;
mod nonblocking;
mod partitioned;

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

/// A coordinator as the registry lists it.
pub struct Coordinator {
    /// As users type it.
    pub name: &'static str,
    /// Other names for the same.
    pub aliases: &'static [&'static str],
    /// One line for people.
    pub summary: &'static str,
    /// The input pipeline is active longer by this factor.
    stretch: fn(&Constants) -> f64,
    begin: for<'a> fn(&'a Setting, &mut Draws) -> Box<dyn Policy + 'a>,
}

impl Coordinator {
    pub(super) fn begin<'a>(&self, setting: &'a Setting, draws: &mut Draws) -> Box<dyn Policy + 'a> {
        (self.begin)(setting, draws)
    }

    pub(super) fn stretch(&self, constants: &Constants) -> f64 {
        (self.stretch)(constants)
    }
}

/// All of them; the first is the one that others are compared with.
#[must_use]
pub fn coordinators() -> &'static [&'static Coordinator] {
    &[
        &negotiate::NEGOTIATE,
        &global_sleep::GLOBAL_SLEEP,
        &nonblocking::NONBLOCKING,
        &partitioned::PARTITIONED,
        &graph::GRAPH,
    ]
}

/// The coordinator of this name or alias.
#[must_use]
pub fn find_coordinator(name: &str) -> Option<&'static Coordinator> {
    coordinators().iter().copied().find(|it| it.name == name || it.aliases.contains(&name))
}
