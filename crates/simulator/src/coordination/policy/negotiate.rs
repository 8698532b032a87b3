//! The baseline: a thread per process, all agree in every cycle in a blocking all-reduce of the response cache's bits.
//! Every thread sleeps by its own clock, so one that wakes late makes the others spin for the rest of the iteration.
use super::{Agreement, Coordinator, Policy};
use crate::coordination::cycles::{Cycles, Sleep};
use crate::coordination::draws::{Draws, Spin};

pub(super) const NEGOTIATE: Coordinator = Coordinator {
    name: "negotiate",
    aliases: &["baseline"],
    summary: "Horovod's: a cycle's all-reduce of the cache's bits says what is ready everywhere",
    stretch: |_| 1.0,
    begin: |setting, draws| Box::new(Negotiate(Cycles::new(setting, Sleep::Own, true, 1.0, draws))),
};

/// Also of `global-sleep`, which differs in how long it sleeps.
pub(super) struct Negotiate<'a>(pub Cycles<'a>);

impl Policy for Negotiate<'_> {
    fn next(&mut self, draws: &mut Draws) -> Option<Agreement> {
        Some(self.0.next(draws))
    }

    fn spins(&self) -> &[Spin] {
        self.0.spins()
    }
}
