//! SCP: coordinator, scheduling and pipeline have separate cores. The coordinator wakes on time, and its spinning
//! preempts nothing; with fewer cores, the pipeline is active for longer.
//!
//! With a dynamic partition, the coordinator's core is its own only in its turns and while it waits for others: they
//! preempt nothing either. Between turns, pipeline and scheduling have all cores, so a wake-up may be late, as under
//! `negotiate`, and they lack one core for the share of a cycle that a turn takes.
use crate::coordination::cycles::Cycles;
use crate::coordination::draws::{Draws, Spin};
use crate::coordination::policy::{Agreement, Model, Policy};

pub(super) const PARTITIONED: Model = Model {
    stretch: |constants| constants.cores / constants.pipeline_cores,
    begin: |setting, draws| Box::new(Partitioned(Cycles::new(setting, false, draws))),
};

pub(super) const DYNAMIC: Model = Model {
    stretch: |constants| {
        let active = (constants.turn_ms / constants.cycle()).min(1.0);
        constants.cores / (constants.cores - active)
    },
    begin: |setting, draws| Box::new(Partitioned(Cycles::new(setting, true, draws))),
};

struct Partitioned<'a>(Cycles<'a>);

impl Policy for Partitioned<'_> {
    fn next(&mut self, draws: &mut Draws) -> Option<Agreement> {
        Some(self.0.next(draws))
    }

    fn spins(&self) -> &[Spin] {
        &[]
    }
}
