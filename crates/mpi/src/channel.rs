//! The channel to one rank over MPI.
use std::io;
use std::sync::Arc;

use super::NAME;
use super::port::{FRAGMENT, SharedMessages, locked};
use paceline_transport::channel::{Channel, Sink};
use paceline_transport::header::FragmentHeader;

/// A channel over MPI.
pub(super) struct MpiChannel {
    pub messages: Arc<SharedMessages>,
    pub rank: usize,
}

impl Channel for MpiChannel {
    fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool> {
        locked(&self.messages).send(self.rank, header, payload)
    }

    fn front(&mut self) -> io::Result<Option<FragmentHeader>> {
        locked(&self.messages).front(self.rank)
    }

    fn take(&mut self, sink: Sink<'_>) -> io::Result<bool> {
        locked(&self.messages).take(self.rank, sink)
    }

    /// Whether the peer has received everything.
    fn flush(&mut self) -> io::Result<bool> {
        locked(&self.messages).flushed(self.rank)
    }

    fn fragment(&self) -> usize {
        FRAGMENT
    }

    fn far(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        NAME
    }
}
