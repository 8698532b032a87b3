//! Multicasts: one datagram over UDP that the network copies, and what makes it a reliable, ordered, bounded stream.
//!
//! A rank has a stream for each group that it multicasts to; all streams of a job share one group address. Only those who
//! receive join it. The sender keeps a copy of each datagram until all receivers have *taken* it, which is when the
//! executor did: a receiver that is slow slows the sender, and nobody needs more memory than the window. A receiver asks
//! for what is missing over a TCP connection that serves for nothing else, so that neither the question nor the repair can
//! stand behind a fragment that nobody wants yet. That connection is reliable: nothing is asked, told or repaired twice,
//! and there are only two timers: a receiver's for datagrams that come in another order, and the sender's for the end of
//! what it sends, after which no later datagram shows that something is missing.
//!
//! | module | holds |
//! | --- | --- |
//! | `datagram` | the format, and the code that only ranks of the job can make |
//! | `port` | the sockets |
//! | `control` | control messages between the two ends, over TCP |
//! | `outgoing` | a stream that is sent: the window, repairs, how much may be under way |
//! | `incoming` | a stream that is received: order, gaps |
//! | `receive` | datagrams from the group, and from anybody else |
//! | `dispatch` | what other ranks report about their streams and ours |
//! | `sizes` | what ranks agree on; what is counted |
//! | `disturb` | loss, repetition and another order, for tests |
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
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use paceline_schedule::Peers;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::channel::Sink;
use crate::header::FragmentHeader;
use control::{ControlConnection, ControlMessage};
pub use datagram::{Head, Key, OVERHEAD, feed};
pub use disturb::Disturbance;
use disturb::Disturber;
use incoming::Incoming;
use outgoing::Outgoing;
pub use port::Port;
pub use sizes::{Counters, Sizes};

/// Taken datagrams after which a sender is told.
const EVERY: u64 = 8;
/// Of the group's socket among what is watched; control connections have the numbers of their ranks.
const RECEIVER: u64 = u64::MAX;

/// All streams of this rank.
pub struct Multicast {
    me: u32,
    key: Key,
    port: Port,
    /// Payload of a datagram, and datagrams of a window.
    payload: usize,
    window: usize,
    first: usize,
    /// By rank.
    controls: Vec<Option<ControlConnection>>,
    outgoing: Vec<Option<Outgoing>>,
    sends_to: HashMap<u32, usize>,
    incoming: Vec<Option<Incoming>>,
    /// By rank and group.
    comes_from: HashMap<(u32, u32), usize>,
    /// Groups that are gone, and what was begun in them since: by rank and group.
    gone: HashSet<u32>,
    refused: Vec<(u32, u32)>,
    /// Receive datagrams.
    buffers: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// What is readable.
    ready: OwnedFd,
    /// The system takes no datagram now.
    full: bool,
    disturber: Option<Disturber>,
    counters: Counters,
    /// Connections that were lost since the caller last looked, and why.
    pub lost: Vec<(u32, io::Error)>,
}

impl Multicast {
    /// Of this rank. The sizes are the same at all ranks; `controls` are connections by rank.
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
            lost: Vec::new(),
        })
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes that are kept: sent and not taken by all, received and not taken.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        let sent = self.outgoing.iter().flatten().map(Outgoing::held).sum();
        (sent, self.incoming.iter().flatten().map(Incoming::held).sum())
    }

    /// For people and tests, as JSON.
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

    /// Payload of a fragment.
    pub fn fragment(&self) -> usize {
        self.payload
    }

    /// The stream to these roles of a group, of which `host` says who plays them, and that of them which this process
    /// plays itself; none if nobody else does, or if the group's stream goes to others.
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

    /// Whether the stream takes a fragment over.
    pub fn has_room(&self, stream: u32) -> bool {
        self.outgoing[stream as usize].as_ref().is_some_and(Outgoing::has_room)
    }

    /// Takes the fragment over, or refuses it because the window is full; `last`: the message ends with it.
    pub fn send(&mut self, stream: u32, header: &FragmentHeader, payload: &[u8], last: bool) -> bool {
        let Some(stream) = &mut self.outgoing[stream as usize] else { return false };
        if !stream.has_room() {
            return false;
        }
        stream.put(Head { sender: self.me, number: 0, last, header: *header }, payload, &self.key);
        // Fewer wait for the end of this turn: many go out as one.
        if stream.unsent() >= self.port.at_once(self.payload + OVERHEAD) && !self.full {
            self.push_out();
        }
        true
    }

    /// Streams that are received are numbered below this.
    pub fn streams(&self) -> u32 {
        self.incoming.len() as u32
    }

    /// The header of the next fragment of a stream.
    pub fn front(&self, stream: u32) -> Option<FragmentHeader> {
        self.incoming[stream as usize].as_ref()?.front()
    }

    /// Takes it.
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

    /// One look at everything; whether anything came.
    pub fn look(&mut self) -> bool {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 32];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = epoll::wait(&self.ready, &mut events, Some(&now)).unwrap_or(0);
        // What is said of a stream before what came of it: its beginning, and how much was sent.
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

    /// Sends what is due: datagrams, questions, repairs, how much was sent.
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

    /// Gives the system what it takes.
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
                    // The card cannot cut them.
                    Err(_) if count > 1 => {
                        most = 1;
                        continue;
                    }
                    // As if the network had lost it: a queue that is full, an interface that is down, a filter.
                    Err(_) => self.counters.refused += 1,
                }
                stream.were_sent(count, now);
            }
        }
    }

    /// Tells senders what was taken, and sends what waits; whether all is out.
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

    /// Whether somebody has to go on looking: receivers may lack something.
    fn pending(&self) -> bool {
        self.outgoing.iter().flatten().any(Outgoing::pending)
            || self.controls.iter().flatten().any(ControlConnection::full)
    }

    /// Drops connections that were lost; nobody is there any more to whom anything would have to be sent.
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

    /// A communicator is gone. `failed`: what was sent in it matters to nobody; else it is still brought to its receivers.
    pub fn forget(&mut self, group: u32, failed: bool) {
        self.gone.insert(group);
        if let Some(&index) = self.sends_to.get(&group) {
            match &mut self.outgoing[index] {
                Some(stream) if !failed => stream.ending = true,
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

    /// The longest sleep after which something is due.
    pub fn nap(&self) -> Option<Duration> {
        let incoming = self.incoming.iter().flatten().filter_map(Incoming::due);
        let due = incoming.chain(self.outgoing.iter().flatten().filter_map(Outgoing::due)).min()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Adds what to watch while sleeping.
    pub fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.push(PollFd::from_borrowed_fd(self.ready.as_fd(), PollFlags::IN));
        if self.full {
            fds.push(PollFd::new(self.port.sender(), PollFlags::OUT));
        }
        self.controls.iter().flatten().for_each(|control| control.watch(fds));
    }
}

/// Says something to a rank that is there.
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
