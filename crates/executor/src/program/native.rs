//! What the library underneath does itself. Before it is asked, all ranks meet: a barrier whose messages carry what each
//! takes the operation for, so that ranks that call different things are told, and one that is missing is waited for
//! here, where an operation can be given up. MPI can do neither.
use paceline_schedule::Step;

use super::{Barrier, Program};

/// What the library is asked for when all ranks have met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Underneath {
    /// A communicator for the group, and so many for groups of the same ranks.
    Join(usize),
    /// An all-reduce of the operation's memory.
    AllReduce,
}

/// A barrier, then the library.
pub struct Native {
    /// In which all ranks meet.
    pub barrier: Barrier,
    /// Afterwards.
    pub then: Underneath,
}

impl Program for Native {
    fn lanes(&self) -> u32 {
        self.barrier.lanes()
    }

    fn step(&self, role: u32, lane: u32, pc: u32) -> Step {
        self.barrier.step(role, lane, pc)
    }

    fn underneath(&self) -> Option<Underneath> {
        Some(self.then)
    }
}
