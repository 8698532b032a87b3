//! GS: after every N cycles, one more all-reduce computes the smallest sleep, which all ranks use. So a late rank does not
//! sleep in full while the others skip their sleep, and the others wait for the same delay in at most N cycles.
use super::negotiate::Negotiate;
use crate::coordination::cycles::Cycles;
use crate::coordination::policy::Model;

pub(super) const GLOBAL_SLEEP: Model =
    Model { stretch: |_| 1.0, begin: |setting, draws| Box::new(Negotiate(Cycles::new(setting, true, draws))) };
