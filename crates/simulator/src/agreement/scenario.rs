//! Input and output of the simulation of a small world's coordinators.
use paceline_coordinator::Time;

/// The scenario to simulate. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Number of ranks, at least 1.
    pub ranks: u32,
    /// Name of the policy, as users type it.
    pub policy: String,
    /// Steps of every rank.
    pub steps: u32,
    /// Gradients of a step: bytes, and when each is ready after the start of the step; in this order.
    pub gradients: Vec<(u64, Time)>,
    /// How many of them, counted from the first, have another type and therefore their own buckets.
    pub apart: usize,
    /// When the script waits for their sums, after the start of the step; `None`: when the last of them is ready.
    pub waits: Option<Time>,
    /// From the start of one cycle to the start of the next.
    pub cycle_time: Time,
    /// Most bytes of a negotiated bucket.
    pub threshold: u64,
    /// Most bytes of the first planned bucket, and of the others.
    pub bucket: (u64, u64),
    /// Capacity of the response cache, in tensors.
    pub capacity: usize,
    /// From the last vote to the tally.
    pub vote: Time,
    /// From the last report until all are gathered, and from a decision until it is known.
    pub tell: Time,
    /// Time of an all-reduce of no bytes.
    pub latency: Time,
    /// Bytes per second of an all-reduce.
    pub bytes_per_s: f64,
}

/// The outcome, on the first rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Cycles: number of votes of the first rank.
    pub votes: u64,
    /// Votes that also agreed on a common sleep.
    pub sleeps: u64,
    /// Reports of the first rank.
    pub reports: u64,
    /// Decisions of the first rank.
    pub decisions: u64,
    /// Bytes of each negotiated bucket, in order.
    pub negotiated: Vec<u64>,
    /// Bytes of each planned bucket.
    pub planned: Vec<u64>,
    /// Duration of each step.
    pub steps: Vec<Time>,
}
