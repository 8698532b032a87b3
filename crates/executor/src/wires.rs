//! The channels by rank, and which of them are lost.
//!
//! A *wire* is the channel of a rank or, numbered after those, a multicast stream. Outgoing and incoming streams are
//! numbered separately. What a process sends to itself arrives on one wire for each pair of roles.
use std::collections::HashMap;

use paceline_os::sync::Arc;
use paceline_os::time::Duration;
use paceline_schedule::Peers;
use paceline_transport::channel::{Channel, SendTicket, Sink};
use paceline_transport::header::FragmentHeader;
use paceline_transport::loopback::Loopback;
use paceline_transport::multicast::Multicast;
use paceline_transport::offload::Offload;
use paceline_transport::readiness::ReadySet;
use paceline_transport::traffic::Traffic;

use super::Limits;
use super::unexpected::UnexpectedQueue;
use crate::timeline::Timeline;

/// A lost connection.
#[derive(Debug)]
pub struct Lost {
    /// The rank.
    pub rank: u32,
    /// The system's error.
    pub reason: String,
}

/// How often a connection that takes nothing any more is looked at, where no set reports what comes.
const LOOK_AT_CUT: Duration = Duration::from_millis(20);
/// Number of the first loopback queue.
const LOOPBACK: u32 = 1 << 31;

/// The sockets of these channels. A single peer is cheaper to ask itself: with a set, a message that has come costs one
/// system call more (4 KiB between two ranks: 19.6 instead of 18.2 us; among four: 115 instead of 130). None either if the
/// system has no room for one.
fn ready_set(channels: &mut [Option<Box<dyn Channel>>]) -> Option<ReadySet> {
    let mut with_sockets: Vec<_> = (0..)
        .zip(channels)
        .filter_map(|(rank, channel)| Some((rank, channel.as_mut()?)))
        .filter(|(_, channel)| channel.has_sockets())
        .collect();
    let set = if with_sockets.len() > 1 { ReadySet::new().ok()? } else { return None };
    for (rank, channel) in &mut with_sockets {
        // One that finds the set full asks for itself.
        let _ = channel.join(&set, *rank);
    }
    Some(set)
}

/// A channel for each rank of the job, multicast streams, and the loopback.
pub struct Wires {
    me: u32,
    loopback: Loopback,
    zero_copy_min: usize,
    /// By rank; `None` for this rank.
    channels: Vec<Option<Box<dyn Channel>>>,
    names: Vec<&'static str>,
    /// By rank: whether the channel crosses a network.
    far: Vec<bool>,
    /// Of the channels that are sockets, if there are several.
    ready: Option<ReadySet>,
    multicast: Option<Multicast>,
    offload: Option<Box<dyn Offload>>,
    /// By rank: the channel may hold accepted bytes that are not with the system yet.
    unflushed: Vec<bool>,
    any_unflushed: bool,
    /// By rank: the socket had no room, and is not tried again in this turn.
    refused: Vec<bool>,
    any_refused: bool,
    /// By rank: the connection takes nothing any more, but what has come may still be read.
    cut: Vec<bool>,
    /// The set has reported something in this turn: it will not report it again.
    reported: bool,
    /// Ranks whose front fragment has been partly received.
    partial: Vec<bool>,
    /// Ranks whose front fragment nobody expects yet, and of which a part has been queued.
    collected: Vec<bool>,
    /// Ranks whose front fragment nobody expects yet, and that may not be queued either: their sockets stay readable.
    blocked: Vec<bool>,
    /// Streams (communicator, sender, receiver) with the message (operation, lane) that is being sent. The receiver
    /// takes one message at a time, so fragments of another one in between would block what it wants.
    streams: HashMap<(u32, u32, u32), (u32, u32)>,
    /// Payload bytes sent and received.
    pub bytes: [u64; 2],
    /// By rank: what has moved, for the failure detector.
    traffic: Vec<Arc<Traffic>>,
    /// Connections that were lost since the caller last looked.
    pub lost: Vec<Lost>,
    /// Where messages are recorded.
    pub timeline: Arc<Timeline>,
}

impl Wires {
    /// `channels` by rank. A rank sends to itself through the loopback.
    #[must_use]
    pub fn new(me: u32, mut channels: Vec<Option<Box<dyn Channel>>>) -> Wires {
        channels[me as usize] = None;
        let name = |channel: &Option<Box<dyn Channel>>| channel.as_ref().map_or("none", |channel| channel.name());
        let mut names: Vec<_> = channels.iter().map(name).collect();
        names[me as usize] = "self";
        let Limits { loopback_fragment, loopback_fragments, zero_copy_min, .. } = Limits::default();
        let ready = ready_set(&mut channels);
        let far = channels.iter().map(|channel| channel.as_ref().is_some_and(|channel| channel.far())).collect();
        let timeline = Arc::new(Timeline::new(me, 0, None));
        let traffic = Traffic::of(channels.len());
        for (channel, traffic) in channels.iter_mut().zip(&traffic) {
            channel.iter_mut().for_each(|channel| channel.count(traffic));
        }
        let [unflushed, refused, cut, partial, collected, blocked] =
            std::array::from_fn(|_| vec![false; channels.len()]);
        let (multicast, offload, any_unflushed, any_refused, streams, bytes, lost) =
            (None, None, false, false, HashMap::new(), [0; 2], Vec::new());
        Wires {
            me,
            loopback: Loopback::new(loopback_fragment, loopback_fragments),
            zero_copy_min,
            channels,
            names,
            far,
            ready,
            multicast,
            offload,
            unflushed,
            any_unflushed,
            refused,
            any_refused,
            cut,
            reported: false,
            partial,
            collected,
            blocked,
            streams,
            bytes,
            traffic,
            lost,
            timeline,
        }
    }

    pub(super) fn limit(&mut self, limits: &Limits) {
        self.loopback = Loopback::new(limits.loopback_fragment, limits.loopback_fragments);
        self.zero_copy_min = limits.zero_copy_min;
    }

    /// Sends multicasts as such from now on.
    pub fn set_multicast(&mut self, mut multicast: Multicast) {
        multicast.count(&self.traffic);
        self.multicast = Some(multicast);
    }

    /// The multicasts, if they are sent as such.
    #[must_use]
    pub fn multicast(&self) -> Option<&Multicast> {
        self.multicast.as_ref()
    }

    /// Has this library called whenever the executor is driven; the channels belong to it.
    pub fn set_offload(&mut self, offload: Box<dyn Offload>) {
        self.offload = Some(offload);
    }

    /// This process's rank.
    pub(super) fn rank(&self) -> u32 {
        self.me
    }

    /// The offload library, if there is one.
    pub(super) fn offload(&mut self) -> Option<&mut (dyn Offload + 'static)> {
        self.offload.as_deref_mut()
    }

    /// Whether nothing wakes a sleeper when a message arrives, so that it must look again after `nap`.
    #[must_use]
    pub fn must_look(&self) -> bool {
        self.offload.is_some()
    }

    fn ranks(&self) -> u32 {
        self.channels.len() as u32
    }

    /// The `at`-th wire to receive from.
    pub(super) fn source(&self, at: u32) -> Option<u32> {
        let others = self.ranks() + self.multicast.as_ref().map_or(0, Multicast::streams);
        match at.checked_sub(others) {
            None => Some(at),
            Some(queue) => ((queue as usize) < self.loopback.queues()).then_some(LOOPBACK + queue),
        }
    }

    /// The wire that multicasts to these roles of a group, and the role among them that this process plays itself,
    /// which the wire does not reach. `host` maps roles to ranks. `None` if there is no multicast to these roles.
    pub(super) fn cast(&mut self, group: u32, peers: Peers, host: impl Fn(u32) -> u32) -> Option<(u32, Option<u32>)> {
        let (stream, own) = self.multicast.as_mut()?.to(group, peers, host)?;
        Some((self.ranks() + stream, own))
    }

    /// Whether this wire leads from this process to itself.
    pub(super) fn is_own(&self, wire: u32) -> bool {
        wire == self.me || wire >= LOOPBACK
    }

    /// Names of the channels by rank; lost ones included.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.names.clone()
    }

    /// Whether all of these ranks are reached without a network.
    pub(super) fn near(&self, ranks: &[u32]) -> bool {
        ranks.iter().all(|&rank| self.far.get(rank as usize) != Some(&true))
    }

    /// By rank: counters of what moves.
    #[must_use]
    pub fn traffic(&self) -> Vec<Arc<Traffic>> {
        self.traffic.clone()
    }

    fn lose(&mut self, rank: u32, error: &std::io::Error) {
        paceline_os::reached!("executor: connection lost");
        self.channels[rank as usize] = None;
        self.collected[rank as usize] = false;
        if !std::mem::take(&mut self.cut[rank as usize]) {
            self.lost.push(Lost { rank, reason: error.to_string() });
        }
    }

    /// A write has failed: the connection is lost, but who sent something and then left has done its part. What the system
    /// has received is still there to be read, also after a reset.
    fn cut(&mut self, rank: u32, error: &std::io::Error) {
        let sockets = self.channels[rank as usize].as_ref().is_some_and(|channel| channel.has_sockets());
        if !sockets || paceline_os::mutant("a write that fails loses what has come") {
            return self.lose(rank, error);
        }
        if !std::mem::replace(&mut self.cut[rank as usize], true) {
            paceline_os::reached!("executor: connection takes nothing any more");
            self.unflushed[rank as usize] = false;
            self.lost.push(Lost { rank, reason: error.to_string() });
        }
    }

    /// Largest payload of a fragment on this wire, bytes.
    pub(super) fn fragment(&self, wire: u32) -> usize {
        match self.channels.get(wire as usize) {
            None => self.multicast.as_ref().map_or(4096, Multicast::fragment),
            Some(None) if wire == self.me => self.loopback.fragment(),
            Some(channel) => channel.as_ref().map_or(4096, |c| c.fragment()),
        }
    }

    /// Sends a fragment; returns whether it was accepted. A lost channel accepts nothing: the operation waits until it
    /// is failed. `last`: the fragment ends its message.
    pub(super) fn send(&mut self, rank: u32, header: &FragmentHeader, payload: &[u8], last: bool) -> bool {
        if let Some(stream) = rank.checked_sub(self.ranks()) {
            let taken = self.multicast.as_mut().is_some_and(|all| all.send(stream, header, payload, last));
            self.bytes[0] += payload.len() as u64 * u64::from(taken);
            return taken;
        }
        if self.full(rank) || self.cut[rank as usize] {
            return false;
        }
        let Some(channel) = &mut self.channels[rank as usize] else {
            let taken = rank == self.me && self.loopback.send(header, payload);
            self.bytes[0] += payload.len() as u64 * u64::from(taken);
            return taken;
        };
        match channel.send(header, payload) {
            Ok(taken) => {
                if !taken {
                    paceline_os::reached!("executor: channel without room");
                }
                self.refused[rank as usize] = !taken && self.far[rank as usize];
                self.any_refused |= !taken;
                if taken {
                    self.unflushed[rank as usize] = true;
                    self.any_unflushed = true;
                    self.bytes[0] += payload.len() as u64;
                    self.traffic[rank as usize].send(1);
                }
                taken
            }
            Err(error) => {
                self.cut(rank, &error);
                false
            }
        }
    }

    /// Whether a message may be sent on a stream now. If so, no other message may until this one has
    /// [left](Wires::leave).
    pub(super) fn enter(&mut self, stream: (u32, u32, u32), message: (u32, u32)) -> bool {
        *self.streams.entry(stream).or_insert(message) == message
    }

    pub(super) fn leave(&mut self, stream: (u32, u32, u32)) {
        self.streams.remove(&stream);
    }

    /// Whether a channel has had no room in this turn.
    pub(super) fn any_refused(&self) -> bool {
        self.any_refused
    }

    /// Whether this wire is known to accept nothing now.
    pub(super) fn full(&self, wire: u32) -> bool {
        match wire.checked_sub(self.ranks()) {
            Some(stream) => self.multicast.as_ref().is_some_and(|all| !all.has_room(stream)),
            None => self.refused[wire as usize],
        }
    }

    /// Largest zero-copy send to this rank in bytes, or 0.
    pub(super) fn zero_copy_limit(&self, rank: u32) -> usize {
        self.channels[rank as usize].as_ref().map_or(0, |channel| channel.zero_copy_limit())
    }

    /// Smallest zero-copy send, bytes.
    pub(super) fn zero_copy_min(&self) -> usize {
        self.zero_copy_min
    }

    /// As [`Wires::send`]; the payload must not change until the send [is complete](Wires::is_complete).
    pub(super) fn send_zero_copy(&mut self, rank: u32, header: &FragmentHeader, payload: &[u8]) -> Option<SendTicket> {
        match self.channels[rank as usize].as_mut()?.send_zero_copy(header, payload) {
            Ok(ticket) => {
                paceline_os::reached!("executor: zero-copy send");
                self.bytes[0] += ticket.map_or(0, |_| payload.len() as u64);
                self.traffic[rank as usize].send(usize::from(ticket.is_some()));
                ticket
            }
            Err(error) => {
                self.lose(rank, &error);
                None
            }
        }
    }

    /// Whether the rank has read a zero-copy send. A lost rank never has: the operation waits until it is failed.
    pub(super) fn is_complete(&mut self, rank: u32, ticket: SendTicket) -> bool {
        self.channels[rank as usize].as_mut().is_some_and(|channel| channel.is_complete(ticket))
    }

    /// Cancels a zero-copy send.
    pub(super) fn cancel(&mut self, rank: u32, ticket: SendTicket) {
        paceline_os::reached!("executor: zero-copy send canceled");
        if let Some(channel) = &mut self.channels[rank as usize] {
            channel.cancel(ticket);
        }
    }

    /// Begins a turn: lets the offload library and multicasts progress; returns whether anything arrived.
    pub(super) fn look(&mut self) -> bool {
        self.refused.fill(false);
        self.any_refused = false;
        self.reported = false;
        if let Some(ready) = &self.ready {
            ready.look(|rank, socket, ready| {
                self.reported = true;
                if let Some(Some(channel)) = self.channels.get_mut(rank as usize) {
                    channel.report(socket, ready);
                }
            });
        }
        let came = self.offload.as_mut().is_some_and(|library| library.progress());
        let Some(multicast) = &mut self.multicast else { return came };
        let any = came | multicast.look();
        for (rank, error) in std::mem::take(&mut multicast.lost) {
            self.lost.push(Lost { rank, reason: error.to_string() });
        }
        any
    }

    #[inline]
    pub(super) fn front(&mut self, wire: u32) -> Option<FragmentHeader> {
        let Some(channel) = self.channels.get_mut(wire as usize) else { return self.front_of_others(wire) };
        match channel.as_mut()?.front() {
            Ok(header) => header,
            Err(error) => {
                self.lose(wire, &error);
                None
            }
        }
    }

    fn front_of_others(&self, wire: u32) -> Option<FragmentHeader> {
        match wire.checked_sub(LOOPBACK) {
            Some(queue) => self.loopback.front(queue as usize),
            None => self.multicast.as_ref()?.front(wire - self.ranks()),
        }
    }

    pub(super) fn take(&mut self, wire: u32, bytes: u32, sink: Sink<'_>) -> bool {
        let Some(channel) = self.channels.get_mut(wire as usize) else {
            let stream = wire - self.ranks();
            let taken = match wire.checked_sub(LOOPBACK) {
                Some(queue) => self.loopback.take(queue as usize, sink),
                None => self.multicast.as_mut().is_some_and(|all| all.take(stream, sink)),
            };
            self.bytes[1] += u64::from(bytes) * u64::from(taken);
            return taken;
        };
        let Some(channel) = channel else { return false };
        match channel.take(sink) {
            Ok(taken) => {
                self.bytes[1] += u64::from(bytes) * u64::from(taken);
                self.traffic[wire as usize].receive(usize::from(taken));
                (self.partial[wire as usize], self.collected[wire as usize]) = (!taken, false);
                self.blocked[wire as usize] = false;
                taken
            }
            Err(error) => {
                self.lose(wire, &error);
                false
            }
        }
    }

    /// Bytes of the front fragment that have been received, if it has not been taken.
    pub(super) fn arrived(&self, wire: u32) -> usize {
        self.channels.get(wire as usize).and_then(Option::as_ref).map_or(0, |channel| channel.arrived())
    }

    /// Whether nothing can be done with the front fragment for now: see `Channel::watch`.
    pub(super) fn block(&mut self, wire: u32, blocked: bool) {
        if let Some(state) = self.blocked.get_mut(wire as usize) {
            *state = blocked;
        }
    }

    pub(super) fn discard(&mut self, wire: u32) -> bool {
        self.take(wire, 0, Sink::Drop)
    }

    pub(super) fn queue_unexpected(
        &mut self,
        wire: u32,
        header: &FragmentHeader,
        unexpected: &mut UnexpectedQueue,
    ) -> bool {
        if self.partial.get(wire as usize) == Some(&true) {
            return false;
        }
        paceline_os::reached!("executor: fragment queued as unexpected");
        let mut copy = Vec::with_capacity(header.bytes as usize);
        let taken = self.take(wire, header.bytes, Sink::Show(&mut |_, payload| copy.extend_from_slice(payload)));
        // What has been collected so far is kept for the next call: see `Channel::take`.
        if (wire as usize) < self.partial.len() {
            (self.partial[wire as usize], self.collected[wire as usize]) = (false, !taken);
        }
        if taken {
            unexpected.put((wire, self.is_own(wire)), header, copy);
        }
        taken
    }

    /// Whether the rest of an unexpected fragment is on its way.
    pub(super) fn collects(&self) -> bool {
        self.collected.contains(&true)
    }

    /// Hands to the system what channels hold; returns whether any channel became empty. Whoever was refused must then
    /// try again: the channel no longer waits for room, so nothing wakes it.
    pub(super) fn flush(&mut self) -> bool {
        if !self.any_unflushed && self.multicast.is_none() {
            return false;
        }
        let mut any = false;
        self.any_unflushed = self.multicast.as_mut().is_some_and(|all| !all.flush());
        for rank in 0..self.ranks() {
            if !self.unflushed[rank as usize] {
                continue;
            }
            let Some(channel) = &mut self.channels[rank as usize] else { continue };
            match channel.flush() {
                Ok(true) => {
                    self.unflushed[rank as usize] = false;
                    any = !paceline_os::mutant("flush wakes nobody");
                }
                Ok(false) => self.any_unflushed = true,
                Err(error) => self.cut(rank, &error),
            }
        }
        any
    }

    /// Drops the state of a group, which has `failed` or is no longer needed.
    pub(super) fn forget(&mut self, group: u32, failed: bool) {
        self.loopback.forget(group);
        self.streams.retain(|&(of, ..), _| of != group);
        if let Some(multicast) = &mut self.multicast {
            multicast.forget(group, failed);
        }
    }

    /// The longest sleep before something is due.
    #[must_use]
    pub fn nap(&self) -> Option<Duration> {
        let library = self.offload.as_ref().map(|library| library.nap());
        let cut = (self.ready.is_none() && self.cut.contains(&true)).then_some(LOOK_AT_CUT);
        self.multicast.as_ref().and_then(Multicast::nap).into_iter().chain(library).chain(cut).min()
    }

    /// Closes all connections; returns whether that went well. `whole`: all ranks that must take part are there.
    pub fn disconnect(&mut self, whole: bool) -> bool {
        self.multicast = None;
        self.channels.iter_mut().for_each(|channel| *channel = None);
        // Without the other ranks, operations in flight are left to the library.
        self.offload.take().is_none_or(|library| whole && library.close())
    }

    /// Counts what has come from other ranks, whether or not anything could be done with it.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.traffic.iter().map(|traffic| traffic.read()[0]).sum()
    }

    /// Counts what was handed to the system for other ranks, each part of a fragment by itself.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.traffic.iter().map(|traffic| traffic.read()[1]).sum()
    }

    /// Whether a socket has changed in the last turn. Even if nothing moved then, a fragment that nobody expects yet may
    /// have arrived further, and whoever sleeps now is not woken for it.
    #[must_use]
    pub fn reported(&self) -> bool {
        self.reported
    }

    /// Adds what to poll before sleeping.
    pub fn watch<'a>(&'a self, fds: &mut Vec<paceline_os::event::PollFd<'a>>) {
        if let Some(ready) = &self.ready {
            fds.push(paceline_os::event::PollFd::from_borrowed_fd(ready.as_fd(), paceline_os::event::PollFlags::IN));
        }
        for ((channel, &blocked), &cut) in self.channels.iter().zip(&self.blocked).zip(&self.cut) {
            // A connection that was reset is always ready.
            if let Some(channel) = channel.as_ref().filter(|_| !cut) {
                channel.watch(blocked && !paceline_os::mutant("polls what it may not take"), fds);
            }
        }
        if let Some(multicast) = &self.multicast {
            multicast.watch(fds);
        }
    }

    /// Ranks to which accepted bytes are still on their way, with the bytes that the system holds for them.
    #[must_use]
    pub fn undelivered(&self) -> Vec<(u32, usize)> {
        let takes = |rank: &u32| !self.cut[*rank as usize];
        let channels = (0..).zip(&self.channels).filter(|(rank, _)| takes(rank));
        let channels = channels.filter_map(|(rank, channel)| Some((rank, channel.as_ref()?)));
        let left = channels.map(|(rank, channel)| (rank, channel.unacknowledged()));
        left.filter(|&(rank, bytes)| bytes > 0 || self.unflushed[rank as usize]).collect()
    }

    /// Whether accepted bytes are not with the system yet.
    #[must_use]
    pub fn unflushed(&self) -> bool {
        self.any_unflushed
    }
}
