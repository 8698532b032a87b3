//! How much an executor holds and begins ahead.

/// Bounds on what is under way in a process. The defaults suit training; tests take the least that must do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Payload bytes of a fragment from one role of this process to another.
    pub loopback_fragment: usize,
    /// Fragments from one role of this process to another that have not been taken.
    pub loopback_fragments: usize,
    /// Least bytes that are lent: below, finding the pages costs more than copying once more.
    pub least_lent: usize,
    /// Bytes put aside of a wire above which it is left alone unless nothing else helps.
    pub aside: usize,
    /// The same of what streams through this process, which need not come faster than it goes on; and by how much more
    /// is put aside each time that nothing else helps.
    pub aside_streams: usize,
    /// Bytes of operations that may begin before the oldest is over: what peers put aside is bounded by it.
    pub ahead: u64,
    /// Lanes in flight of an operation's role, at most; a communicator may take fewer.
    pub window: u32,
    /// Lanes in flight of a communicator's operations, at most; likewise.
    pub lanes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            loopback_fragment: 64 << 10,
            loopback_fragments: 8,
            least_lent: 128 << 10,
            aside: 64 << 20,
            aside_streams: 4 << 20,
            ahead: 16 << 20,
            window: u32::MAX,
            lanes: usize::MAX,
        }
    }
}
