//! GS: one more all-reduce a cycle gives the smallest sleep, which all use. So a late one does not sleep in full while
//! the others skip theirs, and nobody waits for the same lateness twice.
use super::Model;
use super::negotiate::Negotiate;
use crate::coordination::cycles::{Cycles, Sleep};

pub(super) const GLOBAL_SLEEP: Model = Model {
    stretch: |_| 1.0,
    begin: |setting, draws| Box::new(Negotiate(Cycles::new(setting, Sleep::Smallest, true, 2.0, draws))),
};
