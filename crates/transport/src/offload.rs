//! Collectives that the library underneath a transport does itself: the all-reduce of MPI.
use std::time::Duration;

use paceline_kernels::dtype::{Dtype, ReduceOp};

use crate::space::Space;

/// An all-reduce under way in the library.
#[derive(Debug, PartialEq, Eq)]
pub struct OffloadTicket(pub u64);

/// A library that must be called for anything to move, and has collectives of its own. Errors are what it says.
pub trait Offload: Send {
    /// Has the library go on; whether anything moved.
    fn progress(&mut self) -> bool;

    /// How long to sleep when nothing can be done: nothing wakes a sleeper when something comes.
    fn nap(&self) -> Duration;

    /// Has the library make what it needs for a group, and for `duplicates` more groups of the same ranks. All ranks of the
    /// group call this together; it waits for them.
    ///
    /// # Errors
    /// What the library says.
    fn join(&mut self, group: u32, ranks: &[u32], duplicates: usize) -> Result<(), String>;

    /// A group takes over one of the duplicates that were made for another of the same ranks. All of its ranks do so in one
    /// order.
    fn inherit(&mut self, from: u32, to: u32);

    /// A group is not needed any more. All of its ranks come to this, at times of their own.
    fn part(&mut self, group: u32);

    /// Begins the library's all-reduce of all elements of a space. The memory of the space must stay as it is until the
    /// all-reduce is over or abandoned.
    ///
    /// # Errors
    /// What the library says.
    fn all_reduce(&mut self, group: u32, kind: (Dtype, ReduceOp), space: &mut Space) -> Result<OffloadTicket, String>;

    /// Whether an all-reduce is over; then the space holds the result.
    ///
    /// # Errors
    /// What the library says.
    fn all_reduced(&mut self, ticket: &OffloadTicket, space: &mut Space) -> Result<bool, String>;

    /// Gives up an all-reduce that may be under way; the library touches no memory of the caller's after this.
    fn abandon(&mut self, ticket: &OffloadTicket);

    /// Ends it; whether nothing of it is left.
    fn close(self: Box<Self>) -> bool;
}
