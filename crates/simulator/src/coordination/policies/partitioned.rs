//! SCP: coordinator, scheduling and pipeline have separate cores. The coordinator wakes on time, and its spinning
//! preempts nothing; with fewer cores, the pipeline is active for longer.
use crate::coordination::cycles::{Cycles, Sleep};
use crate::coordination::draws::{Draws, Spin};
use crate::coordination::policy::{Agreement, Model, Policy};

pub(super) const PARTITIONED: Model = Model {
    stretch: |constants| constants.cores / constants.pipeline_cores,
    begin: |setting, draws| Box::new(Partitioned(Cycles::new(setting, Sleep::Own, false, 1.0, draws))),
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
