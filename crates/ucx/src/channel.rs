//! The channel to one rank over UCX.
use std::io;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};

use super::NAME;
use super::messages::FRAGMENT;
use super::shared::Shared;
use paceline_transport::channel::{Channel, Sink};
use paceline_transport::header::FragmentHeader;

/// A channel over UCX.
pub(super) struct UcxChannel {
    pub shared: Arc<Shared>,
    pub rank: usize,
}

impl Channel for UcxChannel {
    fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool> {
        self.shared.with(|messages| messages.send(self.rank, header, payload))
    }

    fn front(&mut self) -> io::Result<Option<FragmentHeader>> {
        self.shared.with(|messages| messages.front(self.rank))
    }

    fn take(&mut self, sink: Sink<'_>) -> io::Result<bool> {
        self.shared.with(|messages| messages.take(self.rank, sink))
    }

    /// Whether the peer has received everything.
    fn flush(&mut self) -> io::Result<bool> {
        self.shared.with(|messages| messages.flushed(self.rank))
    }

    fn watch<'a>(&'a self, blocked: bool, fds: &mut Vec<PollFd<'a>>) {
        let sleeps = self.shared.with(|messages| messages.about_to_sleep(self.rank, blocked));
        fds.push(PollFd::new(if sleeps { &self.shared.descriptor } else { &self.shared.ready }, PollFlags::IN));
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
