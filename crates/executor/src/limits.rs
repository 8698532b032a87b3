//! Limits on what an executor buffers and begins ahead.
use paceline_os::limit;

/// Bounds on what is in flight in a process. The defaults suit training; tests use the smallest values that must work.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Payload bytes of a fragment from one role of this process to another.
    pub loopback_fragment: usize,
    /// Fragments in flight from one role of this process to another.
    pub loopback_fragments: usize,
    /// Smallest zero-copy send in bytes: below, finding the pages costs more than a second copy.
    pub zero_copy_min: usize,
    /// Queued unexpected bytes per wire above which no more are queued, unless nothing else helps.
    pub unexpected: usize,
    /// The same for sums that stream through this process, which need not arrive faster than they are forwarded. Also the
    /// amount by which that limit grows each time nothing else helps.
    pub unexpected_streams: usize,
    /// Bytes of operations that may begin before the oldest has completed. This also bounds the unexpected messages of
    /// peers.
    pub ahead: u64,
    /// Most lanes in flight for a role of an operation; a communicator may use fewer.
    pub window: u32,
    /// Most lanes in flight for all operations of a communicator; likewise.
    pub lanes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            loopback_fragment: limit("loopback fragment", 64 << 10),
            loopback_fragments: limit("loopback fragments", 8),
            zero_copy_min: limit("zero copy", 128 << 10),
            unexpected: limit("unexpected", 64 << 20),
            unexpected_streams: limit("unexpected streams", 4 << 20),
            ahead: limit("ahead", 16 << 20) as u64,
            window: limit("window", u32::MAX as usize) as u32,
            lanes: limit("lanes", usize::MAX),
        }
    }
}
