//! What a transport offers to the executor: fragments, in order, to and from one peer.
//!
//! A channel never blocks. It is bounded: when `send` refuses, the executor does something else and comes again. A
//! fragment is handed over with its header; what is sent belongs to the channel from then on, what is *lent* stays where
//! it is and must not change until the channel says that it has been returned. Shared memory lends so that the peer
//! copies once; MPI, gRPC or a device library, whose sends are over later than they begin, do the same.
use std::io;

use rustix::event::PollFd;

use crate::header::FragmentHeader;

/// No channel has larger fragments, bytes.
pub const LARGEST_FRAGMENT: usize = 512 << 10;

/// Longest message of a control connection, bytes; a peer that sends more is lost.
pub const LONGEST_CONTROL_MESSAGE: usize = 1 << 20;

/// Where the payload of a received fragment goes.
pub enum Sink<'a> {
    /// Is copied here; exactly as long as the payload.
    Into(&'a mut [u8]),
    /// Is shown in order, in parts of whole elements at an arbitrary alignment, with the byte at which a part begins.
    Show(&'a mut dyn FnMut(usize, &[u8])),
    /// Is thrown away.
    Drop,
}

/// A fragment that was lent, for the channel that lent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(pub u32);

/// A bounded, ordered, reliable connection to one peer.
pub trait Channel: Send {
    /// Takes the fragment over, or refuses it because there is no room (`false`).
    ///
    /// # Errors
    /// The connection is lost.
    fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool>;

    /// Most bytes of a fragment that can be lent; 0: none can.
    fn lends(&self) -> usize {
        0
    }

    /// Lends the payload, or refuses it because there is no room (`None`).
    ///
    /// # Errors
    /// The connection is lost.
    fn lend(&mut self, _header: &FragmentHeader, _payload: &[u8]) -> io::Result<Option<Ticket>> {
        Ok(None)
    }

    /// Whether the peer has what was lent, so that it may change.
    fn returned(&mut self, _ticket: Ticket) -> bool {
        true
    }

    /// Takes back what was lent and not returned: the peer will not complete an operation with it.
    fn revoke(&mut self, _ticket: Ticket) {}

    /// The header of the next fragment to be received, if its head has come.
    ///
    /// # Errors
    /// The connection is lost, or the peer sent what is no header.
    fn front(&mut self) -> io::Result<Option<FragmentHeader>>;

    /// Receives the payload of the fragment at the front; `false` if it has not come wholly: then it is called again.
    /// What was to be shown may then go into memory, not the other way round (except to be thrown away).
    ///
    /// # Errors
    /// The connection is lost.
    fn take(&mut self, sink: Sink<'_>) -> io::Result<bool>;

    /// Pushes out what was taken over but not yet handed to the system; whether all of it is out.
    ///
    /// # Errors
    /// The connection is lost.
    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Adds what becomes readable or writable when it is worth to look again, for a caller that wants to sleep. Shared
    /// memory has a bell of its own.
    fn watch<'a>(&'a self, _fds: &mut Vec<PollFd<'a>>) {}

    /// Most bytes of a fragment's payload.
    fn fragment(&self) -> usize;

    /// Whether a network is between: then more is under way at once, and one that is full stays so for a while.
    fn far(&self) -> bool {
        false
    }

    /// What it is, for people: `shm`, `tcp`, `grpc`.
    fn name(&self) -> &'static str;
}
