//! TCP to a rank on another host, over one or more streams.
//!
//! Fragments are spread over the streams in turn and received in the same order, so that several streams (each with its
//! own window and congestion control) form one ordered channel.
mod socket;
mod stream;

use std::io;

use paceline_os::event::{PollFd, PollFlags};
use paceline_os::net::TcpStream;
use paceline_os::sync::Arc;
use stream::Stream;

use crate::channel::{Channel, Sink};
use crate::header::FragmentHeader;
use crate::readiness::{Ready, ReadySet};
use crate::traffic::Traffic;

/// Payload of a fragment: large enough that system calls are negligible, small enough that received data is still in
/// the cache when it is combined.
const FRAGMENT: usize = 128 << 10;

/// Display name.
pub const NAME: &str = "tcp";

/// A channel over TCP.
pub struct TcpChannel {
    streams: Vec<Stream>,
    to_send: usize,
    to_receive: usize,
}

impl TcpChannel {
    /// A channel over these connections, in the order both ends agreed on. Panics if there are none.
    ///
    /// # Errors
    /// They cannot be made non-blocking.
    pub fn new(streams: Vec<TcpStream>) -> io::Result<TcpChannel> {
        assert!(!streams.is_empty());
        let streams = streams.into_iter().map(Stream::new).collect::<io::Result<_>>()?;
        Ok(TcpChannel { streams, to_send: 0, to_receive: 0 })
    }
}

impl Channel for TcpChannel {
    fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool> {
        let taken = self.streams[self.to_send].send(header, payload)?;
        if taken {
            self.to_send = (self.to_send + 1) % self.streams.len();
        }
        Ok(taken)
    }

    fn front(&mut self) -> io::Result<Option<FragmentHeader>> {
        self.streams[self.to_receive].front()
    }

    fn take(&mut self, sink: Sink<'_>) -> io::Result<bool> {
        let taken = self.streams[self.to_receive].take(sink)?;
        if taken {
            self.to_receive = (self.to_receive + 1) % self.streams.len();
        }
        Ok(taken)
    }

    fn arrived(&self) -> usize {
        self.streams[self.to_receive].arrived()
    }

    fn count(&mut self, traffic: &Arc<Traffic>) {
        self.streams.iter_mut().for_each(|stream| stream.socket.count(traffic));
    }

    fn unacknowledged(&self) -> usize {
        self.streams.iter().map(|stream| stream.socket.unacknowledged()).sum()
    }

    fn flush(&mut self) -> io::Result<bool> {
        let mut all = true;
        for stream in &mut self.streams {
            all &= stream.flush()?;
        }
        Ok(all)
    }

    fn has_sockets(&self) -> bool {
        true
    }

    fn join(&mut self, set: &ReadySet, rank: u32) -> io::Result<()> {
        for (number, stream) in (0..).zip(&self.streams) {
            set.add(rank, number, stream.socket.stream())?;
        }
        self.streams.iter_mut().for_each(|stream| stream.socket.join());
        Ok(())
    }

    fn report(&mut self, socket: u32, ready: Ready) {
        if let Some(stream) = self.streams.get_mut(socket as usize) {
            stream.socket.report(ready);
        }
    }

    fn watch<'a>(&'a self, blocked: bool, fds: &mut Vec<PollFd<'a>>) {
        for (index, stream) in self.streams.iter().enumerate().filter(|(_, stream)| !stream.socket.joined()) {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, index == self.to_receive && !blocked);
            flags.set(PollFlags::OUT, stream.full());
            if !flags.is_empty() {
                fds.push(PollFd::new(stream.socket.stream(), flags));
            }
        }
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
