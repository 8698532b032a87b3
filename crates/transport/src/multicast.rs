//! Multicast: the network copies one UDP datagram, and this module makes a reliable, ordered, bounded stream of it.
//!
//! A rank has one stream for each group that it multicasts to; all streams of a job share one group address. Only
//! receivers join it. The sender keeps a copy of each datagram until all receivers have *taken* it, that is, until
//! their executors have. So a slow receiver slows the sender down, and no rank needs more memory than the window. A
//! receiver requests missing datagrams over a separate TCP connection, so that neither request nor repair can queue
//! behind a fragment that the executor does not take yet. That connection is reliable, so no request or repair is sent
//! twice. Only two timers are needed: the receiver's, which allows for reordering, and the sender's for the end of its
//! data, because no later datagram then reveals a loss.
//!
//! | module | holds |
//! | --- | --- |
//! | `datagram` | the format, and the code that only ranks of the job can compute |
//! | `port` | the sockets |
//! | `control` | control messages between the two ends, over TCP |
//! | `outgoing` | a stream that is sent: window, repairs, congestion control |
//! | `incoming` | a stream that is received: reordering, gaps |
//! | `receive` | receives datagrams, from ranks and from strangers |
//! | `dispatch` | what other ranks report about their streams and ours |
//! | `sizes` | sizes that ranks agree on, and counters |
//! | `disturb` | loss, duplication and reordering, for tests |
mod control;
mod datagram;
mod dispatch;
mod disturb;
mod incoming;
mod outgoing;
mod port;
mod receive;
mod sizes;

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};

use control::{ControlConnection, ControlMessage};
pub use datagram::{Head, Key, OVERHEAD, feed};
pub use disturb::Disturbance;
use disturb::Disturber;
use incoming::Incoming;
use outgoing::Outgoing;
use paceline_os::event::epoll::{self, CreateFlags, EventData, EventFlags};
use paceline_os::event::{PollFd, PollFlags, Timespec};
use paceline_os::fd::{AsFd, OwnedFd};
use paceline_os::net::TcpStream;
use paceline_os::sync::Arc;
use paceline_os::time::{Duration, Instant};
use paceline_schedule::Peers;
pub use port::Port;
pub use sizes::{Counters, Sizes};

use crate::channel::Sink;
use crate::header::FragmentHeader;
use crate::traffic::Traffic;

/// The sender is notified after this many datagrams were taken.
const EVERY: u64 = 8;
/// Epoll id of the group's socket; control connections use the numbers of their ranks.
const RECEIVER: u64 = u64::MAX;

/// All streams of this rank.
pub struct Multicast {
    me: u32,
    key: Key,
    port: Port,
    /// Payload of a datagram, and datagrams in a window.
    payload: usize,
    window: usize,
    first: usize,
    /// Control connections, by rank.
    controls: Vec<Option<ControlConnection>>,
    outgoing: Vec<Option<Outgoing>>,
    sends_to: HashMap<u32, usize>,
    incoming: Vec<Option<Incoming>>,
    /// By rank and group.
    comes_from: HashMap<(u32, u32), usize>,
    /// Groups that were freed, and streams begun in them since, by rank and group.
    gone: HashSet<u32>,
    refused: Vec<(u32, u32)>,
    /// Receives datagrams.
    buffers: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// The epoll set.
    ready: OwnedFd,
    /// The system accepts no datagrams at the moment.
    full: bool,
    disturber: Option<Disturber>,
    counters: Counters,
    /// By rank, once there are any: what comes counts as movement, also while something before it is missing.
    traffic: Vec<Arc<Traffic>>,
    /// Connections lost since the caller's last check, and why.
    pub lost: Vec<(u32, io::Error)>,
}

impl Multicast {
    /// Streams of this rank. The sizes are the same at all ranks; `controls` are connections by rank.
    ///
    /// # Errors
    /// Too many open files.
    pub fn new(
        me: u32,
        port: Port,
        key: Key,
        sizes: Sizes,
        controls: Vec<Option<TcpStream>>,
        disturbance: Option<Disturbance>,
    ) -> io::Result<Multicast> {
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        if let Some(receiver) = port.receiver() {
            epoll::add(&ready, receiver, EventData::new_u64(RECEIVER), EventFlags::IN)?;
        }
        let controls = controls
            .into_iter()
            .map(|control| control.map(ControlConnection::new).transpose())
            .collect::<io::Result<Vec<_>>>()?;
        for (rank, control) in (0u64..).zip(&controls) {
            if let Some(control) = control {
                epoll::add(&ready, control.socket(), EventData::new_u64(rank), EventFlags::IN)?;
            }
        }
        Ok(Multicast {
            me,
            key,
            port,
            payload: sizes.payload,
            window: sizes.datagrams(sizes.window),
            first: sizes.datagrams(sizes.first),
            controls,
            outgoing: Vec::new(),
            sends_to: HashMap::new(),
            incoming: Vec::new(),
            comes_from: HashMap::new(),
            gone: HashSet::new(),
            refused: Vec::new(),
            buffers: receive::buffers(),
            spare: Vec::new(),
            ready,
            full: false,
            disturber: disturbance.map(|how| Disturber::new(how, me)),
            counters: Counters::default(),
            traffic: Vec::new(),
            lost: Vec::new(),
        })
    }

    /// Counts what comes from the ranks here from now on.
    pub fn count(&mut self, traffic: &[Arc<Traffic>]) {
        self.traffic = traffic.to_vec();
    }

    /// Datagrams that have come for a communicator, whether or not they can be taken yet.
    pub fn came_for(&self, group: u32) -> u64 {
        if paceline_os::mutant("datagrams do not move") {
            return 0;
        }
        self.incoming.iter().flatten().filter(|stream| stream.group == group).map(|stream| stream.came).sum()
    }

    fn moved(&self, rank: u32, bytes: usize) {
        if let Some(traffic) = self.traffic.get(rank as usize)
            && !paceline_os::mutant("datagrams do not move")
        {
            traffic.receive(bytes);
        }
    }

    /// Counters so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes in memory: sent and not taken by all receivers, or received and not taken.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        let sent = self.outgoing.iter().flatten().map(Outgoing::held).sum();
        (sent, self.incoming.iter().flatten().map(Incoming::held).sum())
    }

    /// A description for diagnostics and tests, as JSON.
    pub fn status(&self) -> serde_json::Value {
        let (kept, waiting) = self.held();
        serde_json::json!({
            "address": self.port.address.to_string(),
            "payload": self.payload,
            "window": self.window * self.payload,
            "kept": kept,
            "waiting": waiting,
            "datagrams": self.counters,
        })
    }

    /// Largest payload of a fragment, bytes.
    pub fn fragment(&self) -> usize {
        self.payload
    }

    /// The stream to these roles of a group (`host` gives the rank of each role), and which of the roles this process
    /// plays itself. `None` if no other process has one of them, or if the group's stream has other receivers.
    pub fn to(&mut self, group: u32, peers: Peers, host: impl Fn(u32) -> u32) -> Option<(u32, Option<u32>)> {
        let me = self.me;
        if let Some(&index) = self.sends_to.get(&group) {
            let stream = self.outgoing[index].as_mut()?;
            return stream.is_for(peers, me, host).then_some((index as u32, stream.own));
        }
        if self.gone.contains(&group) || peers.iter().all(|role| host(role) == me) {
            return None;
        }
        let own = peers.iter().find(|&role| host(role) == me);
        let others = peers.iter().filter(|&role| host(role) != me).map(|role| (host(role), role));
        let mut stream = Outgoing::new(group, peers, own, others, (self.window, self.first), self.payload);
        let receivers: Vec<_> = stream.receivers().collect();
        let index = self.outgoing.len();
        for &(rank, role) in &receivers {
            match self.controls[rank as usize] {
                Some(_) => write(&mut self.controls, &mut self.lost, rank, group, &ControlMessage::Open { role }),
                None => stream.without(rank),
            }
        }
        self.outgoing.push(Some(stream));
        self.sends_to.insert(group, index);
        self.bury();
        Some((index as u32, own))
    }

    /// Whether the stream has room for a fragment.
    pub fn has_room(&self, stream: u32) -> bool {
        self.outgoing[stream as usize].as_ref().is_some_and(Outgoing::has_room)
    }

    /// Accepts a fragment, or refuses it because the window is full; `last`: it ends the message.
    pub fn send(&mut self, stream: u32, header: &FragmentHeader, payload: &[u8], last: bool) -> bool {
        let Some(stream) = &mut self.outgoing[stream as usize] else { return false };
        if !stream.has_room() {
            paceline_os::reached!("multicast: window full");
            return false;
        }
        stream.put(Head { sender: self.me, number: 0, last, header: *header }, payload, &self.key);
        // A few can wait for the end of this turn, so that many are sent in one call.
        if stream.unsent() >= self.port.at_once(self.payload + OVERHEAD) && !self.full {
            self.push_out();
        }
        true
    }

    /// Upper bound on the indices of incoming streams.
    pub fn streams(&self) -> u32 {
        self.incoming.len() as u32
    }

    /// The header of the next fragment of a stream.
    pub fn front(&self, stream: u32) -> Option<FragmentHeader> {
        self.incoming[stream as usize].as_ref()?.front()
    }

    /// Takes the next fragment of a stream.
    pub fn take(&mut self, stream: u32, sink: Sink<'_>) -> bool {
        let Some(payload) = self.incoming[stream as usize].as_mut().and_then(Incoming::take) else { return false };
        match sink {
            Sink::Into(to) => to.copy_from_slice(&payload),
            Sink::Show(show) => show(0, &payload),
            Sink::Drop => {}
        }
        self.keep(payload);
        true
    }

    fn keep(&mut self, memory: Vec<u8>) {
        if self.spare.len() < self.window {
            self.spare.push(memory);
        }
    }

    /// Handles everything that is ready; returns whether anything was.
    pub fn look(&mut self) -> bool {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 32];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = epoll::wait(&self.ready, &mut events, Some(&now)).unwrap_or(0);
        // Control messages first: they announce a stream, and how much of it was sent, before its datagrams are
        // handled.
        for rank in events[..ready].iter().map(|event| event.data.u64()).filter(|&number| number != RECEIVER) {
            self.read_control(rank as u32);
        }
        if self.disturber.is_some() || events[..ready].iter().any(|event| event.data.u64() == RECEIVER) {
            self.receive();
        }
        if !self.comes_from.is_empty() || !self.sends_to.is_empty() {
            self.go_on();
        }
        ready > 0
    }

    /// Sends what is due: datagrams, requests, repairs, progress reports.
    fn go_on(&mut self) {
        let now = Instant::now();
        let (controls, lost) = (&mut self.controls, &mut self.lost);
        for stream in self.incoming.iter_mut().flatten() {
            let (rank, group) = (stream.rank, stream.group);
            stream.ask(now, |from, below| write(controls, lost, rank, group, &ControlMessage::Missing { from, below }));
        }
        self.push_out();
        let (controls, lost) = (&mut self.controls, &mut self.lost);
        for stream in self.outgoing.iter_mut().flatten().filter(|stream| stream.pending()) {
            let group = stream.group;
            self.counters.repaired += stream.repair(|rank, message| {
                let room = controls[rank as usize].as_ref().is_some_and(|control| !control.busy());
                if room {
                    write(controls, lost, rank, group, message);
                }
                room
            });
            stream.tell(now, |rank, message| write(controls, lost, rank, group, message));
        }
        self.bury();
    }

    /// Gives the system as many datagrams as it accepts.
    fn push_out(&mut self) {
        self.full = false;
        let (now, longest) = (Instant::now(), self.payload + OVERHEAD);
        for stream in self.outgoing.iter_mut().flatten() {
            let mut most = self.port.at_once(longest);
            while let Some((datagrams, count, length)) = stream.next(most) {
                match self.port.send(datagrams, length) {
                    Ok(()) => self.counters.sent += count as u64,
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        self.full = true;
                        return;
                    }
                    // The network card cannot segment them.
                    Err(_) if count > 1 => {
                        most = 1;
                        continue;
                    }
                    // Treated as a loss in the network: a full queue, an interface that is down, a firewall.
                    Err(_) => self.counters.refused += 1,
                }
                stream.were_sent(count, now);
            }
        }
    }

    /// Reports taken datagrams to their senders, and sends queued bytes; returns whether all are sent.
    pub fn flush(&mut self) -> bool {
        if !self.full {
            self.push_out();
        }
        let every = EVERY.min((self.window as u64 / 4).max(1));
        let (controls, lost) = (&mut self.controls, &mut self.lost);
        for (rank, group) in self.refused.drain(..) {
            write(controls, lost, rank, group, &ControlMessage::Enough);
        }
        for stream in self.incoming.iter_mut().flatten() {
            if let Some(below) = stream.news(every) {
                write(controls, lost, stream.rank, stream.group, &ControlMessage::Taken { below });
            }
        }
        for rank in 0..self.controls.len() {
            if let Some(Err(error)) =
                self.controls[rank].as_mut().filter(|control| control.full()).map(ControlConnection::flush)
            {
                self.lost.push((rank as u32, error));
            }
        }
        self.bury();
        !self.pending()
    }

    /// Whether receivers may still lack something, so that the caller must keep polling.
    fn pending(&self) -> bool {
        self.outgoing.iter().flatten().any(Outgoing::pending)
            || self.controls.iter().flatten().any(ControlConnection::full)
    }

    /// Drops lost connections; their ranks need no more data.
    fn bury(&mut self) {
        for (rank, _) in &self.lost {
            if self.controls[*rank as usize].take().is_some() {
                self.outgoing.iter_mut().flatten().for_each(|stream| stream.without(*rank));
            }
        }
        for stream in &mut self.outgoing {
            if stream.as_ref().is_some_and(|stream| stream.ending && !stream.pending()) {
                *stream = None;
            }
        }
    }

    /// Frees a communicator. Unless it has `failed`, data sent in it is still delivered.
    pub fn forget(&mut self, group: u32, failed: bool) {
        self.gone.insert(group);
        if let Some(&index) = self.sends_to.get(&group) {
            match &mut self.outgoing[index] {
                // A communicator that has ended well is destroyed all the same: see `Executor::remove_group`.
                Some(stream) if !failed || stream.ending => stream.ending = true,
                stream => *stream = None,
            }
        }
        for stream in &mut self.incoming {
            if let Some(Incoming { rank, .. }) = stream.take_if(|stream| stream.group == group) {
                self.refused.push((rank, group));
            }
        }
        self.flush();
    }

    /// Time until the next timer.
    pub fn nap(&self) -> Option<Duration> {
        let incoming = self.incoming.iter().flatten().filter_map(Incoming::due);
        let due = incoming.chain(self.outgoing.iter().flatten().filter_map(Outgoing::due)).min()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Adds what to poll before sleeping.
    pub fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.push(PollFd::from_borrowed_fd(self.ready.as_fd(), PollFlags::IN));
        if self.full {
            fds.push(PollFd::new(self.port.sender(), PollFlags::OUT));
        }
        self.controls.iter().flatten().for_each(|control| control.watch(fds));
    }
}

/// Sends a control message to a rank, if it is connected.
fn write(
    controls: &mut [Option<ControlConnection>],
    lost: &mut Vec<(u32, io::Error)>,
    rank: u32,
    group: u32,
    message: &ControlMessage<'_>,
) {
    if let Some(Err(error)) = controls[rank as usize].as_mut().map(|control| control.write(group, message)) {
        lost.push((rank, error));
    }
}
