//! Collectives that a communication library runs itself: the all-reduce of MPI.
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::time::Duration;

use crate::space::Space;

/// An all-reduce in flight in the library.
#[derive(Debug, PartialEq, Eq)]
pub struct OffloadTicket(pub u64);

/// A library with collectives of its own that makes progress only when called. Errors are the library's text.
pub trait Offload: Send {
    /// Lets the library progress; returns whether anything moved.
    fn progress(&mut self) -> bool;

    /// How long to sleep when there is nothing to do: the library does not wake sleepers.
    fn nap(&self) -> Duration;

    /// Creates a communicator for a group, and `duplicates` more for later groups of the same ranks. Collective: it waits
    /// for all ranks of the group.
    ///
    /// # Errors
    /// The library's error.
    fn join(&mut self, group: u32, ranks: &[u32], duplicates: usize) -> Result<(), String>;

    /// Hands one of the duplicates made for `from` to `to`. All ranks must do so in the same order.
    fn inherit(&mut self, from: u32, to: u32);

    /// Frees what belongs to a group. All its ranks call this, at any time.
    fn part(&mut self, group: u32);

    /// Begins an all-reduce of all elements of a space. The memory must not be touched until the all-reduce is done or
    /// abandoned.
    ///
    /// # Errors
    /// The library's error.
    fn all_reduce(&mut self, group: u32, kind: (Dtype, ReduceOp), space: &mut Space) -> Result<OffloadTicket, String>;

    /// Whether an all-reduce is done; the space then holds the result.
    ///
    /// # Errors
    /// The library's error.
    fn all_reduced(&mut self, ticket: &OffloadTicket, space: &mut Space) -> Result<bool, String>;

    /// Abandons an all-reduce that may be in flight. The library does not touch the caller's memory afterwards.
    fn abandon(&mut self, ticket: &OffloadTicket);

    /// Shuts the library down; returns whether nothing is left in flight.
    fn close(self: Box<Self>) -> bool;
}
