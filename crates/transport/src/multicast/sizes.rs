//! What the ranks of a job agree on for their multicasts, and what is counted.
use serde::Serialize;

/// Most bytes of a stream that not all receivers have taken.
const WINDOW: usize = 4 << 20;
/// Fewest datagrams of a window.
const LEAST: usize = 8;
/// Bytes for which there is room in any network: the least packet buffer of a port of common switches.
const NETWORK: usize = 256 << 10;

/// What all ranks agree on, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Payload of a datagram.
    pub payload: usize,
    /// Of a stream, what not all receivers have taken.
    pub window: usize,
    /// Of a stream, what is under way before it is known whether the network holds more.
    pub first: usize,
}

impl Sizes {
    /// If so many send at a time to receivers whose systems hold `buffer` bytes.
    #[must_use]
    pub fn new(payload: usize, buffer: usize, senders: usize) -> Sizes {
        let window = (buffer / senders.max(1)).min(WINDOW);
        Sizes { payload, window, first: (NETWORK / senders.max(1)).min(window) }
    }

    /// As many as a window of these bytes has.
    pub(super) fn datagrams(&self, bytes: usize) -> usize {
        (bytes / self.payload).max(LEAST)
    }
}

/// What happened to datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Sent to the group.
    pub sent: u64,
    /// The system refused to send; they were repaired.
    pub refused: u64,
    /// Receivers lacked, one each.
    pub lost: u64,
    /// Sent again, to one receiver each.
    pub repaired: u64,
    /// Received from the group, signed and new.
    pub received: u64,
    /// Came again.
    pub repeated: u64,
    /// For groups of ranks without this one, or before it was told.
    pub others: u64,
    /// Of no rank of the job, or garbled.
    pub strangers: u64,
}
