//! The gRPC channel, as the executor sees it.
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags};

use super::fragment::{FRAGMENT, message};
use super::queues::PeerQueues;
use paceline_transport::channel::{Channel, Sink};
use paceline_transport::header::FragmentHeader;
use paceline_transport::traffic::Traffic;

/// Display name.
pub const NAME: &str = "grpc";

/// A channel to a rank over gRPC, in either direction of the call.
pub struct GrpcChannel {
    queues: Arc<PeerQueues>,
    /// Taken from the queue, but not yet by the executor.
    arrived: VecDeque<(FragmentHeader, Bytes)>,
    /// The last fragment was refused.
    refused: bool,
    slept: AtomicBool,
}

impl GrpcChannel {
    pub(super) fn new(queues: Arc<PeerQueues>) -> GrpcChannel {
        GrpcChannel { queues, arrived: VecDeque::new(), refused: false, slept: AtomicBool::new(false) }
    }
}

impl Drop for GrpcChannel {
    fn drop(&mut self) {
        self.queues.close();
    }
}

impl Channel for GrpcChannel {
    fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool> {
        let taken = self.queues.send(|| message(header, Bytes::copy_from_slice(payload)));
        self.refused = !taken;
        Ok(taken)
    }

    fn front(&mut self) -> io::Result<Option<FragmentHeader>> {
        if *self.slept.get_mut() {
            *self.slept.get_mut() = false;
            self.queues.awake();
        }
        if self.arrived.is_empty() {
            self.queues.receive(&mut self.arrived).map_err(|why| io::Error::new(ErrorKind::UnexpectedEof, why))?;
        }
        Ok(self.arrived.front().map(|(header, _)| *header))
    }

    fn take(&mut self, sink: Sink<'_>) -> io::Result<bool> {
        let Some((_, payload)) = self.arrived.pop_front() else { return Ok(false) };
        match sink {
            Sink::Into(to) => to.copy_from_slice(&payload),
            Sink::Show(show) => show(0, &payload),
            Sink::Drop => {}
        }
        Ok(true)
    }

    fn count(&mut self, traffic: &Arc<Traffic>) {
        self.queues.meter.count_in(traffic);
    }

    fn watch<'a>(&'a self, _blocked: bool, fds: &mut Vec<PollFd<'a>>) {
        self.slept.store(true, Ordering::Relaxed);
        fds.push(PollFd::new(self.queues.about_to_sleep(self.refused), PollFlags::IN));
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
