//! A stream that this rank receives: puts datagrams in order and finds gaps.
use paceline_os::time::{Duration, Instant};

use crate::header::{FragmentHeader, HEADER_BYTES};

/// A missing datagram is requested after this many later ones, because the network may have reordered them, or after
/// this time without any.
const REORDERED: u64 = 8;
const PATIENCE: Duration = Duration::from_millis(1);

/// A fragment that has arrived.
struct Fragment {
    header: FragmentHeader,
    last: bool,
    payload: Vec<u8>,
}

pub(super) struct Incoming {
    pub rank: u32,
    pub group: u32,
    /// This process's role for the sender.
    role: u32,
    /// Fragments by number modulo the window.
    ring: Vec<Option<Fragment>>,
    /// The next fragment to take.
    next: u64,
    /// The sender knows that all below were taken.
    told: u64,
    /// A message has ended since the last report to the sender.
    ended: bool,
    /// All below `top` were sent, as far as is known; `seen` is one past the highest that has arrived.
    top: u64,
    seen: u64,
    /// Missing datagrams below this have been requested.
    asked: u64,
    /// Datagrams that have come so far.
    pub came: u64,
    /// A datagram has arrived since the last check.
    fresh: bool,
    /// Since when no datagram has arrived, while one at or above `asked` is missing.
    quiet: Option<Instant>,
}

impl Incoming {
    pub fn new(rank: u32, group: u32, role: u32, window: usize) -> Incoming {
        let ring = (0..window).map(|_| None).collect();
        let (next, told, ended, top, seen, asked, came, fresh, quiet) = (0, 0, false, 0, 0, 0, 0, false, None);
        Incoming { rank, group, role, ring, next, told, ended, top, seen, asked, came, fresh, quiet }
    }

    fn slot(&self, number: u64) -> usize {
        (number % self.ring.len() as u64) as usize
    }

    /// Whether it is missing, though it may have been sent.
    pub fn lacks(&self, number: u64) -> bool {
        let window = self.ring.len() as u64;
        (self.next..self.next.saturating_add(window)).contains(&number) && self.ring[self.slot(number)].is_none()
    }

    /// Stores a repair: header and payload. Its buffer may be reused.
    pub fn repaired(&mut self, number: u64, last: bool, body: &[u8], memory: Vec<u8>) {
        let Some((header, payload)) = body.split_first_chunk::<HEADER_BYTES>() else { return };
        if let Some(header) = FragmentHeader::decode(header).filter(|header| header.bytes as usize == payload.len()) {
            self.put(number, header, last, payload, memory);
        }
    }

    /// Stores a missing fragment. Its buffer may be reused.
    pub fn put(&mut self, number: u64, header: FragmentHeader, last: bool, payload: &[u8], mut memory: Vec<u8>) {
        memory.clear();
        memory.extend_from_slice(payload);
        let slot = self.slot(number);
        self.ring[slot] = Some(Fragment { header, last, payload: memory });
        self.seen = self.seen.max(number + 1);
        self.top = self.top.max(self.seen);
        self.came += 1;
        self.fresh = true;
    }

    /// The sender has sent all below.
    pub fn sent(&mut self, below: u64) {
        self.top = self.top.max(below.min(self.next + self.ring.len() as u64));
        self.fresh = true;
    }

    /// The header of the next fragment, with this process's role.
    pub fn front(&self) -> Option<FragmentHeader> {
        let fragment = self.ring[self.slot(self.next)].as_ref()?;
        Some(FragmentHeader { to: self.role as u16, ..fragment.header })
    }

    /// Takes the next fragment and returns its payload.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let slot = self.slot(self.next);
        let Fragment { last, payload, .. } = self.ring[slot].take()?;
        self.next += 1;
        self.ended |= last;
        Some(payload)
    }

    /// Count to report to the sender as taken: after every few datagrams, and at the end of a message.
    pub fn news(&mut self, every: u64) -> Option<u64> {
        let count = self.next - self.told;
        if count < every && !(self.ended && count > 0 && self.front().is_none()) {
            return None;
        }
        (self.told, self.ended) = (self.next, false);
        Some(self.next)
    }

    /// When to request missing datagrams.
    pub fn due(&self) -> Option<Instant> {
        self.quiet.map(|since| since + PATIENCE)
    }

    /// Requests missing datagrams, in runs, if it is time.
    pub fn ask(&mut self, now: Instant, mut ask: impl FnMut(u64, u64)) {
        self.asked = self.asked.max(self.next);
        while self.asked < self.top && self.ring[self.slot(self.asked)].is_some() {
            self.asked += 1;
        }
        let fresh = std::mem::take(&mut self.fresh);
        if self.asked == self.top {
            self.quiet = None;
            return;
        }
        let since = self.quiet.filter(|_| !fresh).unwrap_or(now);
        self.quiet = Some(since);
        let late = now >= since + PATIENCE;
        let below = if late { self.top } else { self.seen.saturating_sub(REORDERED) };
        let mut from = None;
        while self.asked < below {
            if self.ring[self.slot(self.asked)].is_some() {
                if let Some(from) = from.take() {
                    ask(from, self.asked);
                }
            } else {
                from.get_or_insert(self.asked);
            }
            self.asked += 1;
        }
        if let Some(from) = from {
            ask(from, self.asked);
        }
        if self.asked == self.top {
            self.quiet = None;
        }
    }

    /// Bytes waiting to be taken.
    pub fn held(&self) -> usize {
        self.ring.iter().flatten().map(|fragment| fragment.payload.len()).sum()
    }
}
