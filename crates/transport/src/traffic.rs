//! Bytes moved between this rank and a peer, however few: evidence that a slow connection is not a broken one.
use paceline_os::sync::Arc;
use paceline_os::sync::atomic::{AtomicU64, Ordering};

/// Counters of one peer. They only grow; their values mean nothing but that something has moved since they were read.
///
/// A transport that receives a fragment in parts counts each part, because on a slow link a fragment may take longer
/// than the time limit.
#[derive(Debug, Default)]
pub struct Traffic {
    received: AtomicU64,
    sent: AtomicU64,
}

impl Traffic {
    /// Counters for this many peers, by rank.
    #[must_use]
    pub fn of(ranks: usize) -> Vec<Arc<Traffic>> {
        (0..ranks).map(|_| Arc::default()).collect()
    }

    /// Something has come from the peer.
    pub fn receive(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Something has been handed to the system for the peer.
    pub fn send(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Received and sent so far.
    #[must_use]
    pub fn read(&self) -> [u64; 2] {
        [self.received.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed)]
    }
}
