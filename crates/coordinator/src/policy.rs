//! Ways to agree. Each is a state machine behind one trait.
mod negotiate;

pub use negotiate::{Negotiate, Settings};

use crate::event::{Action, Event, Time};

/// A rank's part of a coordinator.
pub trait Policy: Send {
    /// Something has happened; what is to be done, in this order. `now` never goes back.
    fn on(&mut self, now: Time, event: Event) -> Vec<Action>;
}
