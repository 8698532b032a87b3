//! The baseline: one thread per process, and in every cycle a blocking all-reduce of the response cache's bits. Every
//! thread sleeps by its own clock, so one that wakes late makes the others spin for the rest of the iteration.
use crate::coordination::cycles::Cycles;
use crate::coordination::draws::{Draws, Spin};
use crate::coordination::policy::{Agreement, Model, Policy};

pub(super) const NEGOTIATE: Model =
    Model { stretch: |_| 1.0, begin: |setting, draws| Box::new(Negotiate(Cycles::new(setting, true, draws))) };

/// Also the model of `global-sleep`, which differs only in how long it sleeps.
pub(super) struct Negotiate<'a>(pub Cycles<'a>);

impl Policy for Negotiate<'_> {
    fn next(&mut self, draws: &mut Draws) -> Option<Agreement> {
        Some(self.0.next(draws))
    }

    fn spins(&self) -> &[Spin] {
        self.0.spins()
    }
}
