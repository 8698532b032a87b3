//! How far a lane is.
use super::wires::Wires;
use paceline_transport::channel::SendTicket;

/// All of a message has gone or come. (A message without payload is a fragment, too.)
pub(super) const ALL: u64 = u64::MAX;

/// Elements that have gone to or come from each peer of a step.
#[derive(Default)]
pub(super) struct Moved {
    /// The only peer, or the first.
    one: u64,
    /// The others.
    more: Vec<u64>,
    complete: u32,
    /// When the first fragment of each moved; only while a timeline is recorded.
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

    /// The first fragment to or from a peer moves now.
    pub fn begin(&mut self, peer: u32, now: u64) {
        if self.since.len() <= peer as usize {
            self.since.resize(peer as usize + 1, 0);
        }
        self.since[peer as usize] = now;
    }

    /// When it did; none if nothing was recorded then.
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
    /// At the barrier.
    Parked,
    Done,
}

/// A zero-copy send that the peer has not read yet.
#[derive(Clone, Copy)]
pub(super) struct ZeroCopySend {
    /// Of the job.
    pub rank: u32,
    pub ticket: SendTicket,
    /// Elements sent once it has.
    pub upto: u64,
}

/// Which wires have not taken what a lane last wanted to send.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Refused {
    #[default]
    Not,
    By(u32),
    BySeveral,
}

impl Refused {
    /// Another has not.
    pub fn by(&mut self, wire: u32) {
        *self = if *self == Refused::Not { Refused::By(wire) } else { Refused::BySeveral };
    }
}

/// A lane of a role.
#[derive(Default)]
pub(super) struct Lane {
    pub pc: u32,
    pub state: State,
    /// Of the step's send: what has gone, so that it may change.
    pub sent: Moved,
    /// The zero-copy send in flight.
    pub zero_copy: Option<ZeroCopySend>,
    /// Whose fault it is that the step's send has not gone.
    pub refused: Refused,
    /// Of the step's receive, or of the receive behind the send it is at.
    pub got: Moved,
}

impl Lane {
    /// Whether it can surely not go on, except by what comes for it.
    pub fn stuck(&self, wires: &Wires) -> bool {
        matches!(self.refused, Refused::By(wire) if wires.full(wire))
    }
}
