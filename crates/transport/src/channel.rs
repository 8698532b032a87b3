//! A transport's service to the executor: fragments, in order, to and from one peer.
//!
//! A channel never blocks. It is bounded: when `send` refuses a fragment, the executor does something else and tries again.
//! A fragment is handed over with its header. An ordinary send copies the payload. A zero-copy send leaves it in place: it
//! must not change until the channel says that the send is complete. Shared memory uses this so that only the peer copies.
use std::io;

use paceline_os::event::PollFd;
use paceline_os::sync::Arc;

use crate::header::FragmentHeader;
use crate::readiness::{Ready, ReadySet};
use crate::traffic::Traffic;

/// Largest fragment of any channel, bytes.
pub const LARGEST_FRAGMENT: usize = 512 << 10;

/// Longest message of a control connection, bytes; a peer that sends more is disconnected.
pub const LONGEST_CONTROL_MESSAGE: usize = 1 << 20;

/// Where the payload of a received fragment goes.
pub enum Sink<'a> {
    /// Copied here; exactly as long as the payload.
    Into(&'a mut [u8]),
    /// Shown in order, in parts of whole elements at any alignment, each with its byte offset.
    Show(&'a mut dyn FnMut(usize, &[u8])),
    /// Discarded.
    Drop,
}

/// Identifies a zero-copy send on its channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendTicket(pub u32);

/// A bounded, ordered, reliable connection to one peer.
pub trait Channel: Send {
    /// Accepts a copy of the fragment; `false` if there is no room.
    ///
    /// # Errors
    /// The connection is lost.
    fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool>;

    /// Largest zero-copy send in bytes; 0: not supported.
    fn zero_copy_limit(&self) -> usize {
        0
    }

    /// Sends without a copy; `None` if there is no room. The payload must not change until the send is complete.
    ///
    /// # Errors
    /// The connection is lost.
    fn send_zero_copy(&mut self, _header: &FragmentHeader, _payload: &[u8]) -> io::Result<Option<SendTicket>> {
        Ok(None)
    }

    /// Whether the peer has read a zero-copy send, so that its payload may change.
    fn is_complete(&mut self, _ticket: SendTicket) -> bool {
        true
    }

    /// Cancels a zero-copy send that is not complete: the peer will not use its payload.
    fn cancel(&mut self, _ticket: SendTicket) {}

    /// The header of the next fragment to receive, if it has arrived.
    ///
    /// # Errors
    /// The connection is lost, or the peer sent an invalid header.
    fn front(&mut self) -> io::Result<Option<FragmentHeader>>;

    /// Receives the payload of the fragment at the front; `false` if only part of it has arrived: call it again. A call
    /// with `Show` may be followed by one with `Into`, not the other way round; `Drop` may follow either.
    ///
    /// # Errors
    /// The connection is lost.
    fn take(&mut self, sink: Sink<'_>) -> io::Result<bool>;

    /// Bytes of the front fragment's payload that [`take`](Channel::take) has received so far.
    fn arrived(&self) -> usize {
        0
    }

    /// From now on, counts parts of fragments that it sends and receives. Whole fragments are counted by the caller.
    fn count(&mut self, _traffic: &Arc<Traffic>) {}

    /// Hands accepted fragments to the system; returns whether all of them are out.
    ///
    /// # Errors
    /// The connection is lost.
    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Flushed bytes that the peer's system has not acknowledged: closing the connection could lose them.
    fn unacknowledged(&self) -> usize {
        0
    }

    /// Whether it can join a [`ReadySet`].
    fn has_sockets(&self) -> bool {
        false
    }

    /// Adds its sockets to the set, as those of peer `rank`: from now on it asks the system only for what [`report`] has
    /// announced. The caller looks at the set before each turn.
    ///
    /// # Errors
    /// The set is full; the channel goes on without it.
    ///
    /// [`report`]: Channel::report
    fn join(&mut self, _set: &ReadySet, _rank: u32) -> io::Result<()> {
        Ok(())
    }

    /// The set reports that one of its sockets has changed.
    fn report(&mut self, _socket: u32, _ready: Ready) {}

    /// Adds what to poll before sleeping: it becomes ready when the channel has something to do. Not what is in a
    /// [`ReadySet`]; shared memory uses its own waker instead. `blocked`: the caller does not want the fragment at the
    /// front, so that more data is nothing to wake up for.
    fn watch<'a>(&'a self, _blocked: bool, _fds: &mut Vec<PollFd<'a>>) {}

    /// Largest payload of a fragment, bytes.
    fn fragment(&self) -> usize;

    /// Whether the channel crosses a network: then more is in flight at once, and a full channel stays full for a while.
    fn far(&self) -> bool {
        false
    }

    /// Display name: `shm`, `tcp`, `grpc`.
    fn name(&self) -> &'static str;
}
