//! TCP connections: buffers at both ends, a network in between, and all the ways in which a connection can end.
//!
//! Each end is a [`Stream`]. What one writes is in the `flight` of the other until it arrives and there is room in its `inbox`;
//! until that is acknowledged it counts against the writer's buffer. Acknowledgments need a way back of their own.
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::poll::{Kind, Watch};
use super::world::{Event, Nanoseconds, SECOND, World};

/// Retransmission of what a cut network has lost (RFC 6298: at least a second at first; Linux: 200 ms).
const AGAIN: Nanoseconds = SECOND / 5;
/// Retransmissions of a SYN before the call fails (`net.ipv4.tcp_syn_retries`).
const CALLS: u32 = 6;
/// Bytes for which the system always has memory.
const SMALL: usize = 256;
/// Silence after which a connection with keep-alive is lost: see `rendezvous::keep_alive`.
const SILENCE: Nanoseconds = 60 * SECOND;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Connection {
    New,
    Connecting,
    Connected,
    Failed,
}

enum Flight {
    /// The bytes, and how many of them are in the inbox.
    Data(Nanoseconds, Vec<u8>, usize),
    End(Nanoseconds),
    Reset(Nanoseconds),
}

impl Flight {
    fn arrives(&self) -> Nanoseconds {
        match self {
            Flight::Data(at, ..) | Flight::End(at) | Flight::Reset(at) => *at,
        }
    }
}

/// One end of a connection.
pub(super) struct Stream {
    pub host: usize,
    pub local: SocketAddr,
    pub remote: Option<SocketAddr>,
    pub connection: Connection,
    peer: Option<usize>,
    /// SO_ERROR.
    error: Option<Errno>,
    /// Received and not read.
    inbox: VecDeque<u8>,
    inbox_limit: usize,
    /// On its way here, in order.
    flight: VecDeque<Flight>,
    last_arrival: Nanoseconds,
    /// The peer has ended its side, and all it sent has arrived.
    ended: bool,
    reset: bool,
    /// Written and not acknowledged, bytes.
    pub unacknowledged: usize,
    outbox_limit: usize,
    /// A write or a poll has found no room (SOCK_NOSPACE): only then is room announced.
    lacked_room: bool,
    write_shut: bool,
    closed: bool,
    pub keep_alive: bool,
    /// Since when the network has not let anything through.
    cut_since: Option<Nanoseconds>,
    pub watch: Watch,
}

/// A listening socket.
pub(super) struct Listening {
    host: usize,
    local: SocketAddr,
    backlog: usize,
    queue: VecDeque<usize>,
    open: bool,
    pub watch: Watch,
}

impl World {
    /// A socket of the running process's host.
    pub(super) fn new_stream(&mut self, host: usize, local: SocketAddr) -> usize {
        let (outbox_limit, inbox_limit) = self.config.buffers;
        self.streams.push(Stream {
            host,
            local,
            remote: None,
            connection: Connection::New,
            peer: None,
            error: None,
            inbox: VecDeque::new(),
            inbox_limit,
            flight: VecDeque::new(),
            last_arrival: 0,
            ended: false,
            reset: false,
            unacknowledged: 0,
            outbox_limit,
            lacked_room: false,
            write_shut: false,
            closed: false,
            keep_alive: false,
            cut_since: None,
            watch: Watch::default(),
        });
        self.streams.len() - 1
    }

    /// A port that nobody uses.
    pub(super) fn free_port(&mut self) -> u16 {
        self.ports = self.ports.checked_add(1).unwrap_or(20_000);
        self.ports
    }

    /// Listens; a live listener at the address makes it fail.
    pub(super) fn listen(&mut self, host: usize, local: SocketAddr, backlog: usize) -> io::Result<usize> {
        if self.bound.contains_key(&local) {
            return Err(Errno::ADDRINUSE.into());
        }
        let (queue, open, watch) = (VecDeque::new(), true, Watch::default());
        self.listeners.push(Listening { host, local, backlog: backlog.max(1), queue, open, watch });
        let listener = self.listeners.len() - 1;
        self.bound.insert(local, listener);
        Ok(listener)
    }

    pub(super) fn listener_address(&self, listener: usize) -> SocketAddr {
        self.listeners[listener].local
    }

    pub(super) fn listener_state(&self, listener: usize) -> PollFlags {
        if self.listeners[listener].queue.is_empty() { PollFlags::empty() } else { PollFlags::IN }
    }

    pub(super) fn accept(&mut self, listener: usize) -> io::Result<usize> {
        self.listeners[listener].queue.pop_front().ok_or_else(|| Errno::AGAIN.into())
    }

    pub(super) fn close_listener(&mut self, listener: usize) {
        let local = self.listeners[listener].local;
        self.listeners[listener].open = false;
        self.bound.remove(&local);
        for stream in std::mem::take(&mut self.listeners[listener].queue) {
            self.streams[stream].closed = true;
            self.send_reset(stream);
        }
    }

    /// Begins to connect.
    pub(super) fn connect(&mut self, stream: usize, remote: SocketAddr) {
        let port = self.free_port();
        let one = &mut self.streams[stream];
        if one.local.port() == 0 {
            one.local.set_port(port);
        }
        (one.connection, one.remote) = (Connection::Connecting, Some(remote));
        let (at, _) = self.way(stream, 0);
        self.at(at, Event::Connect(stream, 1));
    }

    fn host_of(&self, address: SocketAddr) -> usize {
        super::net::host_of(address.ip())
    }

    /// When something of this many bytes that leaves a stream's host now is at the other end, and when it has left.
    fn way(&mut self, stream: usize, bytes: usize) -> (Nanoseconds, Nanoseconds) {
        let here = self.streams[stream].host;
        let there = self.streams[stream].remote.map_or(here, |remote| self.host_of(remote));
        let (arrives, left) = self.between(here, there, bytes);
        (arrives, left)
    }

    pub(super) fn between(&mut self, here: usize, there: usize, bytes: usize) -> (Nanoseconds, Nanoseconds) {
        let usual = if here == there { self.config.inside } else { self.config.network };
        let link = self.links.get(&(here.min(there), here.max(there))).copied().unwrap_or(usual);
        let takes = bytes as u64 * link.per_kilobyte / 1000;
        let left = if here == there {
            self.now + takes
        } else {
            let free = self.card_free[here].max(self.now);
            self.card_free[here] = free + takes;
            free + takes
        };
        (left + link.latency + self.chance.below(link.jitter + 1), left)
    }

    pub(super) fn connect_arrives(&mut self, stream: usize, attempt: u32) {
        if self.streams[stream].closed || self.streams[stream].connection != Connection::Connecting {
            return;
        }
        let (here, Some(remote)) = (self.streams[stream].host, self.streams[stream].remote) else { return };
        let there = self.host_of(remote);
        let found = self.bound.get(&remote).copied();
        let full = found.is_some_and(|to| self.listeners[to].queue.len() >= self.listeners[to].backlog);
        if self.cut(here, there) || there >= self.card_free.len() || full {
            if attempt > CALLS {
                self.refuse(stream, Errno::TIMEDOUT.raw_os_error());
            } else {
                self.at(self.now + (SECOND << (attempt - 1)), Event::Connect(stream, attempt + 1));
            }
            return;
        }
        let (back, _) = self.between(there, here, 0);
        let Some(listener) = found.filter(|&to| self.listeners[to].open && self.listeners[to].host == there) else {
            self.at(back, Event::Refuse(stream, Errno::CONNREFUSED.raw_os_error()));
            return;
        };
        let accepted = self.new_stream(there, remote);
        let caller = self.streams[stream].local;
        let one = &mut self.streams[accepted];
        (one.connection, one.remote, one.peer) = (Connection::Connected, Some(caller), Some(stream));
        self.streams[stream].peer = Some(accepted);
        self.listeners[listener].queue.push_back(accepted);
        self.note(0x2000 + accepted as u64);
        self.changed(Kind::Listener(listener));
        self.at(back, Event::Established(stream));
    }

    pub(super) fn established(&mut self, stream: usize) {
        let one = &mut self.streams[stream];
        if one.connection == Connection::Connecting && !one.closed {
            one.connection = Connection::Connected;
            self.deliver(stream);
            self.changed(Kind::Stream(stream));
        }
    }

    pub(super) fn refuse(&mut self, stream: usize, error: i32) {
        let one = &mut self.streams[stream];
        if one.connection == Connection::Connecting {
            (one.connection, one.error) = (Connection::Failed, Some(Errno::from_raw_os_error(error)));
            self.changed(Kind::Stream(stream));
        }
    }

    pub(super) fn take_error(&mut self, stream: usize) -> Option<io::Error> {
        self.streams[stream].error.take().map(io::Error::from)
    }

    pub(super) fn stream_state(&mut self, stream: usize) -> PollFlags {
        let one = &mut self.streams[stream];
        let mut flags = PollFlags::empty();
        let failed = one.connection == Connection::Failed || one.reset;
        if one.connection == Connection::Connecting {
            return flags;
        }
        if one.connection == Connection::New {
            return PollFlags::OUT | PollFlags::HUP;
        }
        let free = one.outbox_limit.saturating_sub(one.unacknowledged);
        let writable = one.write_shut || failed || free >= one.outbox_limit.div_ceil(3);
        // poll(2) asks to be told, too.
        one.lacked_room |= !writable;
        flags.set(PollFlags::OUT, writable);
        flags.set(PollFlags::IN, !one.inbox.is_empty() || one.ended || failed);
        flags.set(PollFlags::RDHUP, one.ended || failed);
        flags.set(PollFlags::HUP, failed || (one.ended && one.write_shut));
        flags.set(PollFlags::ERR, one.error.is_some());
        flags
    }

    pub(super) fn read_stream(&mut self, stream: usize, into: &mut [u8]) -> io::Result<usize> {
        let one = &mut self.streams[stream];
        if matches!(one.connection, Connection::New | Connection::Connecting) {
            return Err(if one.connection == Connection::New { Errno::NOTCONN } else { Errno::AGAIN }.into());
        }
        if into.is_empty() {
            return Ok(0);
        }
        if one.inbox.is_empty() {
            if let Some(error) = one.error.take() {
                return Err(error.into());
            }
            return if one.ended || one.reset || one.connection == Connection::Failed {
                Ok(0)
            } else {
                Err(Errno::AGAIN.into())
            };
        }
        let count = into.len().min(one.inbox.len());
        let (front, back) = one.inbox.as_slices();
        let first = count.min(front.len());
        into[..first].copy_from_slice(&front[..first]);
        into[first..count].copy_from_slice(&back[..count - first]);
        one.inbox.drain(..count);
        // What waited for room comes in.
        if !one.flight.is_empty() {
            self.deliver(stream);
        }
        self.busy();
        Ok(count)
    }

    pub(super) fn peek_stream(&mut self, stream: usize, into: &mut [u8]) -> io::Result<usize> {
        let one = &self.streams[stream];
        if one.inbox.is_empty() {
            return self.read_stream(stream, into);
        }
        let count = into.len().min(one.inbox.len());
        into.iter_mut().zip(&one.inbox).for_each(|(to, &byte)| *to = byte);
        Ok(count)
    }

    pub(super) fn write_stream(&mut self, stream: usize, parts: &[&[u8]]) -> io::Result<usize> {
        let one = &mut self.streams[stream];
        match one.connection {
            Connection::New => return Err(Errno::NOTCONN.into()),
            Connection::Connecting => return Err(Errno::AGAIN.into()),
            _ => {}
        }
        if let Some(error) = one.error.take() {
            return Err(error.into());
        }
        if one.write_shut || one.reset || one.connection == Connection::Failed {
            return Err(Errno::PIPE.into());
        }
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let room = one.outbox_limit.saturating_sub(one.unacknowledged);
        if bytes == 0 {
            return Ok(0);
        }
        if room == 0 {
            one.lacked_room = true;
            return Err(Errno::AGAIN.into());
        }
        let mut count = bytes.min(room);
        // Not for a message of a handshake, which finds an empty buffer.
        if bytes > SMALL && self.chance.once_in(self.config.pressure) {
            count = self.chance.within(1, count as u64) as usize;
            let soon = self.now + self.chance.within(1_000, 1_000_000);
            self.at(soon, Event::Room(stream));
        }
        let one = &mut self.streams[stream];
        one.lacked_room |= count < bytes;
        one.unacknowledged += count;
        let Some(peer) = one.peer else { return Err(Errno::PIPE.into()) };
        let mut left = count;
        let (mut rest, mut parts) = (&[][..], parts.iter());
        while left > 0 {
            let bytes = left.min(self.config.segment);
            let mut data = Vec::with_capacity(bytes);
            while data.len() < bytes {
                if rest.is_empty() {
                    rest = parts.next().copied().unwrap_or_default();
                }
                let (now, later) = rest.split_at(rest.len().min(bytes - data.len()));
                data.extend_from_slice(now);
                rest = later;
            }
            let (arrives, _) = self.way(stream, bytes);
            self.send(peer, |at| Flight::Data(at, data, 0), arrives);
            left -= bytes;
        }
        self.note(0x3000 + count as u64);
        self.say(|| format!("  stream {stream} writes {count} of {bytes} to {peer}"));
        self.busy();
        Ok(count)
    }

    fn send(&mut self, to: usize, flight: impl FnOnce(Nanoseconds) -> Flight, arrives: Nanoseconds) {
        let one = &mut self.streams[to];
        let at = arrives.max(one.last_arrival);
        one.last_arrival = at;
        one.flight.push_back(flight(at));
        self.at(at, Event::Deliver(to));
    }

    /// Takes in what has arrived, as far as there is room.
    pub(super) fn deliver(&mut self, stream: usize) {
        let one = &self.streams[stream];
        let Some(peer) = one.peer else { return };
        if one.flight.is_empty() || one.connection == Connection::Connecting {
            return;
        }
        let (here, there) = (one.host, self.streams[peer].host);
        if self.cut(here, there) {
            self.wait_for_network(stream, peer);
            return;
        }
        self.streams[stream].cut_since = None;
        let (mut taken, mut news) = (0, false);
        loop {
            let now = self.now;
            let one = &mut self.streams[stream];
            if one.flight.front().is_none_or(|flight| flight.arrives() > now) {
                break;
            }
            match one.flight.front_mut() {
                Some(Flight::Data(..)) if one.closed => {
                    // Nobody reads it any more.
                    one.flight.clear();
                    self.send_reset(stream);
                    break;
                }
                Some(Flight::Data(_, data, done)) => {
                    let room = one.inbox_limit.saturating_sub(one.inbox.len());
                    let count = room.min(data.len() - *done);
                    if count == 0 {
                        break;
                    }
                    one.inbox.extend(&data[*done..*done + count]);
                    *done += count;
                    (taken, news) = (taken + count, true);
                    if *done == data.len() {
                        one.flight.pop_front();
                    }
                }
                Some(Flight::End(_)) => {
                    (one.ended, news) = (true, true);
                    one.flight.pop_front();
                }
                Some(Flight::Reset(_)) => {
                    // After the end of the peer's side, what has arrived is read and then the end (SOCK_DONE in Linux).
                    if !one.ended {
                        one.error = Some(Errno::CONNRESET);
                    }
                    (one.reset, one.ended, news) = (true, true, true);
                    one.flight.clear();
                    break;
                }
                None => break,
            }
        }
        self.say(|| format!("  stream {stream} receives {taken}"));
        if taken > 0 {
            let (at, _) = self.between(here, there, 0);
            self.at(at, Event::Acknowledge(peer, taken));
        }
        if news && !self.streams[stream].closed {
            self.changed(Kind::Stream(stream));
        }
    }

    fn wait_for_network(&mut self, stream: usize, peer: usize) {
        let now = self.now;
        let since = *self.streams[stream].cut_since.get_or_insert(now);
        if now - since < SILENCE {
            self.at(now + AGAIN, Event::Deliver(stream));
            return;
        }
        for end in [stream, peer].into_iter().filter(|&end| self.streams[end].keep_alive).collect::<Vec<_>>() {
            let one = &mut self.streams[end];
            if !one.reset {
                (one.reset, one.ended, one.error) = (true, true, Some(Errno::TIMEDOUT));
                self.changed(Kind::Stream(end));
            }
        }
        self.at(now + SECOND, Event::Deliver(stream));
    }

    pub(super) fn acknowledge(&mut self, stream: usize, bytes: usize) {
        let Some(peer) = self.streams[stream].peer else { return };
        if self.cut(self.streams[stream].host, self.streams[peer].host) {
            self.at(self.now + AGAIN, Event::Acknowledge(stream, bytes));
            return;
        }
        let one = &mut self.streams[stream];
        one.unacknowledged = one.unacknowledged.saturating_sub(bytes);
        self.room(stream);
    }

    /// Announces room, if somebody has looked for it in vain.
    pub(super) fn room(&mut self, stream: usize) {
        let one = &mut self.streams[stream];
        let free = one.outbox_limit.saturating_sub(one.unacknowledged);
        if one.lacked_room && free >= one.outbox_limit.div_ceil(3) && !one.closed {
            one.lacked_room = false;
            self.say(|| format!("  stream {stream} has room again"));
            self.changed(Kind::Stream(stream));
        }
    }

    pub(super) fn shut_write(&mut self, stream: usize) -> io::Result<()> {
        let one = &mut self.streams[stream];
        if one.connection != Connection::Connected || one.reset {
            return Err(Errno::NOTCONN.into());
        }
        if !std::mem::replace(&mut one.write_shut, true) {
            self.send_end(stream);
            self.changed(Kind::Stream(stream));
        }
        Ok(())
    }

    fn send_end(&mut self, stream: usize) {
        if let Some(peer) = self.streams[stream].peer {
            let (arrives, _) = self.way(stream, 0);
            self.send(peer, Flight::End, arrives);
        }
    }

    /// Resets the connection: what has not left yet, because the peer has no room for it, is lost. What has arrived is
    /// still read (Linux: `tcp_reset` leaves the receive queue).
    fn send_reset(&mut self, stream: usize) {
        let Some(peer) = self.streams[stream].peer else { return };
        let (arrives, _) = self.way(stream, 0);
        let one = &mut self.streams[peer];
        let room = one.inbox_limit.saturating_sub(one.inbox.len());
        let mut within = 0;
        one.flight.retain(|flight| match flight {
            Flight::Data(_, data, done) => {
                within += data.len() - done;
                within <= room
            }
            _ => true,
        });
        self.send(peer, Flight::Reset, arrives);
    }

    pub(super) fn close_stream(&mut self, stream: usize) {
        let resets = self.config.resets;
        let now = self.now;
        let one = &mut self.streams[stream];
        if std::mem::replace(&mut one.closed, true) || one.connection != Connection::Connected || one.reset {
            return;
        }
        let arrived = |flight: &Flight| matches!(flight, Flight::Data(at, ..) if *at <= now);
        let unread = !one.inbox.is_empty() || one.flight.iter().any(arrived);
        one.inbox = VecDeque::new();
        if resets && unread {
            self.send_reset(stream);
        } else if !std::mem::replace(&mut self.streams[stream].write_shut, true) {
            self.send_end(stream);
        }
    }
}
