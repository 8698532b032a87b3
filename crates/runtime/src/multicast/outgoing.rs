//! A stream that this rank sends to the ranks of a group: what they have not all taken yet, and who lacks what.
//!
//! What is under way is bounded as TCP bounds it (RFC 5681, and RFC 9438 for how much less it is after a loss): by what the
//! receivers can hold, and by what the network seems to hold.
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use paceline_schedule::Peers;

use super::datagram::{BODY, Head, Key, OVERHEAD};
use super::link::Note;
use crate::tag::TAG_BYTES;

/// After such a silence with something not taken, receivers are told how much was sent: the end may be lost.
const TAIL: Duration = Duration::from_millis(1);
struct Receiver {
    rank: u32,
    role: u32,
    /// It has taken all below.
    taken: u64,
    /// It asked for these.
    lacks: BTreeSet<u64>,
}

pub(super) struct Outgoing {
    pub group: u32,
    /// The roles that the program names, and that of them which this process plays itself.
    peers: Peers,
    pub own: Option<u32>,
    receivers: Vec<Receiver>,
    /// Datagrams by number modulo the window.
    ring: Vec<Vec<u8>>,
    /// All receivers have taken all below.
    base: u64,
    next: u64,
    /// The system was given all below.
    sent: u64,
    last_sent: Instant,
    /// Receivers were told that all below were sent.
    told: u64,
    /// Datagrams under way at most: now, and up to where this grows fast.
    allowed: u64,
    threshold: u64,
    /// A loss below belongs to those for which `allowed` was lowered already.
    recover: u64,
    least: u64,
    /// Of what was taken since `allowed` grew by one.
    grown: u64,
    /// The communicator is gone: it ends when all is taken.
    pub ending: bool,
}

impl Outgoing {
    pub fn new(
        group: u32,
        peers: Peers,
        own: Option<u32>,
        receivers: impl Iterator<Item = (u32, u32)>,
        (window, first): (usize, usize),
    ) -> Outgoing {
        let receivers = receivers.map(|(rank, role)| Receiver { rank, role, taken: 0, lacks: BTreeSet::new() });
        Outgoing {
            group,
            peers,
            own,
            receivers: receivers.collect(),
            ring: vec![Vec::new(); window],
            base: 0,
            next: 0,
            sent: 0,
            last_sent: Instant::now(),
            told: 0,
            allowed: (2 * super::EVERY).min(window as u64),
            threshold: first as u64,
            recover: 0,
            least: (2 * super::EVERY).min(window as u64),
            grown: 0,
            ending: false,
        }
    }

    /// Whether it goes to just these roles, of which `host` says who plays them.
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

    /// Whether a fragment can be taken over.
    pub fn has_room(&self) -> bool {
        self.next - self.base < self.allowed
    }

    /// Bytes of it.
    pub fn held(&self) -> usize {
        self.ring.iter().map(Vec::len).sum()
    }

    /// Whether something was not taken by all.
    pub fn pending(&self) -> bool {
        self.base < self.next
    }

    /// Takes a fragment over; its memory may have been another's. `head.number` is given here.
    pub fn put(&mut self, mut head: Head, payload: &[u8], key: &Key, mut memory: Vec<u8>) {
        head.number = self.next;
        memory.resize(payload.len() + OVERHEAD, 0);
        key.write(&head, payload, &mut memory);
        let slot = self.slot(self.next);
        self.ring[slot] = memory;
        self.next += 1;
    }

    fn slot(&self, number: u64) -> usize {
        (number % self.ring.len() as u64) as usize
    }

    /// The next that the system was not given.
    pub fn unsent(&self) -> Option<&[u8]> {
        (self.sent < self.next).then(|| &self.ring[self.slot(self.sent)][..])
    }

    /// It was given it.
    pub fn was_sent(&mut self, now: Instant) {
        self.sent += 1;
        self.last_sent = now;
    }

    /// A receiver has taken all below; memory that is not needed any more goes to `spare`.
    pub fn taken(&mut self, rank: u32, below: u64, spare: &mut Vec<Vec<u8>>) {
        let Some(receiver) = self.receivers.iter_mut().find(|receiver| receiver.rank == rank) else { return };
        receiver.taken = receiver.taken.max(below.min(self.next));
        receiver.lacks = receiver.lacks.split_off(&receiver.taken);
        self.advance(spare);
    }

    /// A receiver wants no more, or is gone.
    pub fn without(&mut self, rank: u32, spare: &mut Vec<Vec<u8>>) {
        self.receivers.retain(|receiver| receiver.rank != rank);
        self.advance(spare);
    }

    fn advance(&mut self, spare: &mut Vec<Vec<u8>>) {
        let all = self.receivers.iter().map(|receiver| receiver.taken).min().unwrap_or(self.next);
        let moved = all.saturating_sub(self.base);
        while self.base < all {
            let slot = self.slot(self.base);
            spare.push(std::mem::take(&mut self.ring[slot]));
            self.base += 1;
        }
        // Nobody is there to whom the rest would have to be sent.
        self.sent = self.sent.max(self.base);
        self.grow(moved);
    }

    /// Twice as much each way there and back up to the threshold, then one more.
    fn grow(&mut self, taken: u64) {
        let most = self.ring.len() as u64;
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

    /// A receiver lacks these; how many.
    pub fn lacks(&mut self, rank: u32, from: u64, below: u64) -> u64 {
        let (base, sent) = (self.base, self.sent);
        let Some(receiver) = self.receivers.iter_mut().find(|receiver| receiver.rank == rank) else { return 0 };
        let missing = from.max(receiver.taken).max(base)..below.min(sent);
        let count = missing.end.saturating_sub(missing.start);
        receiver.lacks.extend(missing.clone());
        if count > 0 && missing.end > self.recover {
            self.recover = self.next;
            self.threshold = (self.allowed * 7 / 10).max(self.least);
            self.allowed = self.threshold;
        }
        count
    }

    /// Sends what receivers lack as far as their connections have room; what went to whom.
    pub fn repair(&mut self, mut send: impl FnMut(u32, &Note<'_>) -> bool) -> u64 {
        let mut count = 0;
        let window = self.ring.len() as u64;
        for receiver in &mut self.receivers {
            while let Some(&number) = receiver.lacks.first() {
                let datagram = &self.ring[(number % window) as usize];
                let body = &datagram[BODY - TAG_BYTES..datagram.len() - (OVERHEAD - BODY)];
                if !send(receiver.rank, &Note::Repair { number, last: super::datagram::is_last(datagram), body }) {
                    break;
                }
                receiver.lacks.pop_first();
                count += 1;
            }
        }
        count
    }

    /// When receivers are to be told how much was sent.
    pub fn due(&self) -> Option<Instant> {
        let silent = self.sent > self.base && self.told < self.sent;
        silent.then(|| self.last_sent + TAIL)
    }

    /// Tells them, if it is time.
    pub fn tell(&mut self, now: Instant, mut send: impl FnMut(u32, &Note<'_>)) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        self.told = self.sent;
        for receiver in self.receivers.iter().filter(|receiver| receiver.taken < self.sent) {
            send(receiver.rank, &Note::Sent { below: self.sent });
        }
    }
}
