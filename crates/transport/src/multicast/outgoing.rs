//! A stream that this rank sends to the ranks of a group: the datagrams not taken by all, and which receiver lacks
//! which.
//!
//! The amount in flight is bounded as in TCP (RFC 5681; RFC 9438 for the reduction after a loss): by what the receivers
//! can hold, and by what the network appears to hold.
use std::collections::BTreeSet;

use paceline_os::time::{Duration, Instant};
use paceline_schedule::Peers;

use super::control::ControlMessage;
use super::datagram::{BODY, Head, Key, OVERHEAD};
use crate::header::HEADER_BYTES;

/// After a silence of twice the round-trip time, and at least this, while datagrams are outstanding, receivers are told
/// how much was sent, because the last datagrams may be lost (compare the tail loss probe of RFC 8985, 7.2). Not
/// earlier: datagrams may wait in the system's queue for long, and receivers would then request some that are still in
/// flight.
const TAIL: Duration = Duration::from_millis(1);
/// Before the round-trip time is known.
const FIRST_TAIL: Duration = Duration::from_millis(20);
/// At most: a round trip includes the time that receivers take to begin an operation, and the end of the next one must be
/// found and repaired well within a limit of a second.
const LONGEST_TAIL: Duration = Duration::from_millis(400);

struct Receiver {
    rank: u32,
    role: u32,
    /// It has taken all below.
    taken: u64,
    /// Datagrams it has requested.
    lacks: BTreeSet<u64>,
}

pub(super) struct Outgoing {
    pub group: u32,
    /// The roles in the program, and the one that this process has itself.
    peers: Peers,
    pub own: Option<u32>,
    receivers: Vec<Receiver>,
    /// Datagrams by number modulo the window, contiguous, in slots of the maximum length.
    ring: Vec<u8>,
    slot: usize,
    /// Length of each.
    lengths: Vec<usize>,
    /// All receivers have taken all below.
    base: u64,
    next: u64,
    /// All below have been given to the system.
    sent: u64,
    last_sent: Instant,
    /// Smoothed round-trip time, from sending until all receivers have taken, and the current measurement: it ends when
    /// `base` reaches this number.
    round: Option<Duration>,
    probe: Option<(u64, Instant)>,
    /// Receivers were told that all below were sent.
    told: u64,
    /// Congestion window in datagrams, and the slow-start threshold.
    allowed: u64,
    threshold: u64,
    /// Losses below this belong to a reduction of `allowed` that has already happened.
    recover: u64,
    least: u64,
    /// Datagrams taken since `allowed` last grew by one.
    grown: u64,
    /// The communicator has been freed: the stream ends when all datagrams are taken.
    pub ending: bool,
}

impl Outgoing {
    pub fn new(
        group: u32,
        peers: Peers,
        own: Option<u32>,
        receivers: impl Iterator<Item = (u32, u32)>,
        (window, first): (usize, usize),
        payload: usize,
    ) -> Outgoing {
        let slot = payload + OVERHEAD;
        let receivers = receivers.map(|(rank, role)| Receiver { rank, role, taken: 0, lacks: BTreeSet::new() });
        Outgoing {
            group,
            peers,
            own,
            receivers: receivers.collect(),
            ring: vec![0; window * slot],
            slot,
            lengths: vec![0; window],
            base: 0,
            next: 0,
            sent: 0,
            last_sent: Instant::now(),
            round: None,
            probe: None,
            told: 0,
            allowed: (2 * super::EVERY).min(window as u64),
            threshold: first as u64,
            recover: 0,
            least: (2 * super::EVERY).min(window as u64),
            grown: 0,
            ending: false,
        }
    }

    /// Whether its receivers are exactly these roles; `host` gives the rank of each.
    pub fn is_for(&mut self, peers: Peers, me: u32, host: impl Fn(u32) -> u32) -> bool {
        if self.peers == peers {
            return true;
        }
        let mut others = 0;
        let own = peers.iter().find(|&role| host(role) == me);
        let known = peers.iter().filter(|&role| host(role) != me).all(|role| {
            others += 1;
            self.receivers.iter().any(|receiver| receiver.rank == host(role) && receiver.role == role)
        });
        if known && others == self.receivers.len() {
            (self.peers, self.own) = (peers, own);
            return true;
        }
        false
    }

    /// Receivers with their roles.
    pub fn receivers(&self) -> impl Iterator<Item = (u32, u32)> {
        self.receivers.iter().map(|receiver| (receiver.rank, receiver.role))
    }

    /// Whether there is room for a fragment.
    pub fn has_room(&self) -> bool {
        self.next - self.base < self.allowed
    }

    /// Bytes in the window.
    pub fn held(&self) -> usize {
        (self.base..self.next).map(|number| self.lengths[self.place(number)]).sum()
    }

    /// Whether some receiver has not taken everything.
    pub fn pending(&self) -> bool {
        self.base < self.next
    }

    /// Accepts a fragment and assigns `head.number`.
    pub fn put(&mut self, mut head: Head, payload: &[u8], key: &Key) {
        head.number = self.next;
        let place = self.place(self.next);
        self.lengths[place] = key.write(&head, payload, &mut self.ring[place * self.slot..][..self.slot]);
        self.next += 1;
    }

    fn place(&self, number: u64) -> usize {
        (number % self.lengths.len() as u64) as usize
    }

    fn datagram(&self, number: u64) -> &[u8] {
        let place = self.place(number);
        &self.ring[place * self.slot..][..self.lengths[place]]
    }

    /// Datagrams not yet given to the system.
    pub fn unsent(&self) -> usize {
        (self.next - self.sent) as usize
    }

    /// The next datagrams to send, `most` at most, contiguous: all have the length of the first, except that the last
    /// may be shorter. Also returns their number and the length of the first.
    pub fn next(&self, most: usize) -> Option<(&[u8], usize, usize)> {
        let most = self.unsent().min(most);
        let first = self.place(self.sent);
        let length = *self.lengths.get(first).filter(|_| most > 0)?;
        let mut count = 1;
        while count < most && first + count < self.lengths.len() && self.lengths[first + count - 1] == self.slot {
            count += 1;
        }
        let bytes = (count - 1) * self.slot + self.lengths[first + count - 1];
        Some((&self.ring[first * self.slot..][..bytes], count, length))
    }

    /// The system accepted this many.
    pub fn were_sent(&mut self, count: usize, now: Instant) {
        self.sent += count as u64;
        self.last_sent = now;
        self.probe.get_or_insert((self.sent, now));
    }

    /// A receiver has taken all below.
    pub fn taken(&mut self, rank: u32, below: u64) {
        let Some(receiver) = self.receivers.iter_mut().find(|receiver| receiver.rank == rank) else { return };
        receiver.taken = receiver.taken.max(below.min(self.next));
        receiver.lacks = receiver.lacks.split_off(&receiver.taken);
        self.advance();
    }

    /// A receiver has unsubscribed or is gone.
    pub fn without(&mut self, rank: u32) {
        self.receivers.retain(|receiver| receiver.rank != rank);
        self.advance();
    }

    fn advance(&mut self) {
        let all = self.receivers.iter().map(|receiver| receiver.taken).min().unwrap_or(self.next);
        let moved = all.saturating_sub(self.base);
        self.base = self.base.max(all);
        if let Some((number, since)) = self.probe
            && number <= self.base
        {
            let took = since.elapsed();
            self.round = Some(self.round.map_or(took, |round| (round * 7 + took) / 8));
            self.probe = None;
        }
        // Without receivers, the rest need not be sent.
        self.sent = self.sent.max(self.base);
        self.grow(moved);
    }

    /// Doubles every round trip up to the threshold, then grows by one per round trip.
    fn grow(&mut self, taken: u64) {
        let most = self.lengths.len() as u64;
        if self.allowed < self.threshold {
            self.allowed = (self.allowed + taken).min(most);
        } else {
            self.grown += taken;
            if self.grown >= self.allowed {
                self.grown = 0;
                self.allowed = (self.allowed + 1).min(most);
            }
        }
    }

    /// A receiver lacks these; returns how many.
    pub fn lacks(&mut self, rank: u32, from: u64, below: u64) -> u64 {
        let (base, sent) = (self.base, self.sent);
        let Some(receiver) = self.receivers.iter_mut().find(|receiver| receiver.rank == rank) else { return 0 };
        let missing = from.max(receiver.taken).max(base)..below.min(sent);
        let count = missing.end.saturating_sub(missing.start);
        receiver.lacks.extend(missing.clone());
        // Before any receiver has taken anything, they may not know of the stream yet: no sign of congestion.
        if count > 0 && base > 0 && missing.end > self.recover {
            self.recover = self.next;
            self.threshold = (self.allowed * 7 / 10).max(self.least);
            self.allowed = self.threshold;
        }
        count
    }

    /// Sends repairs as long as the connections have room.
    pub fn repair(&mut self, mut send: impl FnMut(u32, &ControlMessage<'_>) -> bool) -> u64 {
        let mut count = 0;
        for index in 0..self.receivers.len() {
            while let Some(&number) = self.receivers[index].lacks.first() {
                let datagram = self.datagram(number);
                let body = &datagram[BODY - HEADER_BYTES..datagram.len() - (OVERHEAD - BODY)];
                let repair = ControlMessage::Repair { number, last: super::datagram::is_last(datagram), body };
                if !send(self.receivers[index].rank, &repair) {
                    break;
                }
                paceline_os::reached!("multicast: datagram repaired");
                self.receivers[index].lacks.pop_first();
                count += 1;
            }
        }
        count
    }

    /// When to tell receivers how much was sent.
    pub fn due(&self) -> Option<Instant> {
        let silent = self.sent == self.next && self.sent > self.base && self.told < self.sent;
        let longest =
            if paceline_os::mutant("the end waits for two round trips") { Duration::MAX } else { LONGEST_TAIL };
        silent.then(|| self.last_sent + self.round.map_or(FIRST_TAIL, |round| (round * 2).clamp(TAIL, longest)))
    }

    /// Tells receivers how much was sent, if it is time.
    pub fn tell(&mut self, now: Instant, mut send: impl FnMut(u32, &ControlMessage<'_>)) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        paceline_os::reached!("multicast: receivers told of the end");
        self.told = self.sent;
        for receiver in self.receivers.iter().filter(|receiver| receiver.taken < self.sent) {
            send(receiver.rank, &ControlMessage::Sent { below: self.sent });
        }
    }
}
