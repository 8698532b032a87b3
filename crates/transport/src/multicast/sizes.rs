//! Sizes that the ranks of a job agree on for their multicasts, and counters.
use serde::Serialize;

/// Most bytes of a stream that some receiver has not taken.
const WINDOW: usize = 4 << 20;
/// Fewest datagrams of a window.
const LEAST: usize = 8;
/// Bytes that any network can buffer: the smallest packet buffer per port of common switches.
const NETWORK: usize = 256 << 10;

/// Sizes that all ranks agree on, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Payload of a datagram.
    pub payload: usize,
    /// Window of a stream: data that some receiver has not taken.
    pub window: usize,
    /// Initial congestion window of a stream.
    pub first: usize,
}

impl Sizes {
    /// Sizes if this many ranks send at a time to receivers whose sockets hold `buffer` bytes.
    #[must_use]
    pub fn new(payload: usize, buffer: usize, senders: usize) -> Sizes {
        let window = (buffer / senders.max(1)).min(WINDOW);
        Sizes { payload, window, first: (NETWORK / senders.max(1)).min(window) }
    }

    /// Datagrams in a window of this many bytes.
    pub(super) fn datagrams(&self, bytes: usize) -> usize {
        (bytes / self.payload).max(LEAST)
    }
}

/// Counters of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Sent to the group.
    pub sent: u64,
    /// Refused by the system on sending, and repaired.
    pub refused: u64,
    /// Reported missing by receivers, each counted once.
    pub lost: u64,
    /// Retransmitted, to one receiver each.
    pub repaired: u64,
    /// Received from the group, authenticated and new.
    pub received: u64,
    /// Duplicates.
    pub repeated: u64,
    /// For groups without this rank, or before the stream was announced to it.
    pub others: u64,
    /// Not from a rank of the job, or corrupted.
    pub strangers: u64,
}
