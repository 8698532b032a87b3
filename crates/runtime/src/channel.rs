//! What a transport offers to the executor: fragments, in order, to and from one peer.
//!
//! A channel never blocks. It is bounded: when `send` refuses, the executor does something else and comes again. What
//! multicast, MPI, gRPC or a device library need beyond it (sending to several, asking whether an earlier send is
//! over) fits behind the same four calls, because a fragment is handed over with its tag and belongs to the channel
//! from then on.
use std::io;

use rustix::event::PollFd;

use crate::tag::Tag;

/// Where the payload of a received fragment goes.
pub enum Sink<'a> {
    /// Is copied here; exactly as long as the payload.
    Into(&'a mut [u8]),
    /// Is shown, whole, at an arbitrary alignment.
    Show(&'a mut dyn FnMut(&[u8])),
}

/// A bounded, ordered, reliable connection to one peer.
pub trait Channel: Send {
    /// Takes the fragment over, or refuses it because there is no room (`false`).
    ///
    /// # Errors
    /// The connection is lost.
    fn send(&mut self, tag: &Tag, payload: &[u8]) -> io::Result<bool>;

    /// The tag of the next fragment to be received, if its head has come.
    ///
    /// # Errors
    /// The connection is lost, or the peer sent what is no tag.
    fn front(&mut self) -> io::Result<Option<Tag>>;

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

    /// What it is, for people: `shm`, `tcp`.
    fn name(&self) -> &'static str;
}
