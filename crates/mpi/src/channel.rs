//! A rank's part of the port.
use std::io;
use std::sync::Arc;

use super::NAME;
use super::port::{FRAGMENT, Shared, locked};
use paceline_transport::channel::{Channel, Sink};
use paceline_transport::header::FragmentHeader;

/// A channel over MPI.
pub(super) struct MpiChannel {
    pub lanes: Arc<Shared>,
    pub rank: usize,
}

impl Channel for MpiChannel {
    fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool> {
        locked(&self.lanes).send(self.rank, header, payload)
    }

    fn front(&mut self) -> io::Result<Option<FragmentHeader>> {
        locked(&self.lanes).front(self.rank)
    }

    fn take(&mut self, sink: Sink<'_>) -> io::Result<bool> {
        locked(&self.lanes).take(self.rank, sink)
    }

    /// Whether the peer has received all.
    fn flush(&mut self) -> io::Result<bool> {
        locked(&self.lanes).flushed(self.rank)
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
