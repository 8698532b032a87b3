//! Progress of a lane.
use super::wires::Wires;
use paceline_transport::channel::SendTicket;

/// The whole message has been moved. (A message without payload is one fragment, too.)
pub(super) const ALL: u64 = u64::MAX;

/// Elements sent to or received from each peer of a step.
#[derive(Default)]
pub(super) struct Moved {
    /// The only peer, or the first.
    one: u64,
    /// The others.
    more: Vec<u64>,
    complete: u32,
    /// When the first fragment of each message moved; only while a timeline is recorded.
    since: Vec<u64>,
}

impl Moved {
    pub fn get(&self, peer: u32) -> u64 {
        if peer == 0 { self.one } else { self.more.get(peer as usize - 1).copied().unwrap_or(0) }
    }

    pub fn set(&mut self, peer: u32, elements: u64) {
        if peer == 0 {
            self.one = elements;
        } else {
            if self.more.len() < peer as usize {
                self.more.resize(peer as usize, 0);
            }
            self.more[peer as usize - 1] = elements;
        }
        self.complete += u32::from(elements == ALL);
    }

    /// Records when the first fragment to or from a peer begins to move.
    pub fn begin(&mut self, peer: u32, now: u64) {
        if self.since.len() <= peer as usize {
            self.since.resize(peer as usize + 1, 0);
        }
        self.since[peer as usize] = now;
    }

    /// When it began to move; `None` if it was not recorded.
    pub fn since(&self, peer: u32) -> Option<u64> {
        self.since.get(peer as usize).copied().filter(|&since| since > 0)
    }

    pub fn complete(&self) -> u32 {
        self.complete
    }

    pub fn clear(&mut self) {
        self.one = 0;
        self.more.clear();
        self.complete = 0;
        self.since.clear();
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    #[default]
    Running,
    /// Waiting at the barrier.
    Parked,
    Done,
}

/// A zero-copy send that the peer has not read yet.
#[derive(Clone, Copy)]
pub(super) struct ZeroCopySend {
    /// Rank in the job.
    pub rank: u32,
    pub ticket: SendTicket,
    /// Elements sent once it has.
    pub upto: u64,
}

/// Which wires refused what the lane last tried to send.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Refused {
    #[default]
    Not,
    By(u32),
    BySeveral,
}

impl Refused {
    /// Another wire refused.
    pub fn by(&mut self, wire: u32) {
        *self = if *self == Refused::Not { Refused::By(wire) } else { Refused::BySeveral };
    }
}

/// A lane of a role.
#[derive(Default)]
pub(super) struct Lane {
    pub pc: u32,
    pub state: State,
    /// For the send of the step: elements sent, whose memory may change.
    pub sent: Moved,
    /// The zero-copy send in flight.
    pub zero_copy: Option<ZeroCopySend>,
    /// Which wires block the send of the step.
    pub refused: Refused,
    /// For the receive of the step, or for the receive after the send it is at.
    pub got: Moved,
}

impl Lane {
    /// Whether only an incoming fragment can advance this lane.
    pub fn stuck(&self, wires: &Wires) -> bool {
        matches!(self.refused, Refused::By(wire) if wires.full(wire))
    }
}
