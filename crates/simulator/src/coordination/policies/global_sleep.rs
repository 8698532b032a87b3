//! GS: one more all-reduce per cycle computes the smallest sleep, which all ranks use. So a late rank does not sleep in
//! full while the others skip their sleep, and the others wait for the same delay only once.
use super::negotiate::Negotiate;
use crate::coordination::cycles::{Cycles, Sleep};
use crate::coordination::policy::Model;

pub(super) const GLOBAL_SLEEP: Model = Model {
    stretch: |_| 1.0,
    begin: |setting, draws| Box::new(Negotiate(Cycles::new(setting, Sleep::Smallest, true, 2.0, draws))),
};
