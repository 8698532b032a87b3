//! What is asked of the coordinators of a small world, and what came out.
use paceline_coordinator::Time;
use serde::{Deserialize, Serialize};

/// What is simulated. Times are nanoseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Ranks, at least 1.
    pub ranks: u32,
    /// As users type it.
    pub policy: String,
    /// Of every rank, one after the other.
    pub steps: u32,
    /// Of a step: bytes, and when it is ready after the step's beginning; in this order.
    pub gradients: Vec<(u64, Time)>,
    /// How many of them, the first ones, are of another type, and so in buckets of their own.
    #[serde(default)]
    pub apart: usize,
    /// When the script waits for their sums, after the step's beginning; none: when the last of them is ready.
    #[serde(default)]
    pub waits: Option<Time>,
    /// From the beginning of a cycle to that of the next.
    pub cycle_time: Time,
    /// Most bytes of a bucket that is negotiated.
    pub threshold: u64,
    /// Bytes of the first planned bucket, and of others, at most.
    pub bucket: (u64, u64),
    /// Tensors that are remembered.
    pub capacity: usize,
    /// From the last vote to the tally.
    pub vote: Time,
    /// From the last report to its being gathered, and from a decision to its being known.
    pub tell: Time,
    /// An all-reduce of no bytes.
    pub latency: Time,
    /// Bytes per second of an all-reduce.
    pub bytes_per_s: f64,
}

/// What came out, of the first rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Agreement {
    /// Cycles: votes of the first rank.
    pub votes: u64,
    /// Its reports to itself.
    pub reports: u64,
    /// Its decisions.
    pub decisions: u64,
    /// Bytes of each bucket that was negotiated, in order.
    pub negotiated: Vec<u64>,
    /// Bytes of each planned bucket.
    pub planned: Vec<u64>,
    /// How long each step lasted.
    pub steps: Vec<Time>,
}
