//! Result of the execution of a plan, or of one of its collectives.
use std::collections::BTreeMap;

use crate::outcome::{Busy, LinkUse};
use crate::path::COUNT;
use crate::planning::Spans;

/// Result of an execution.
pub(super) struct Executed {
    /// The end of the last rank.
    pub end: u64,
    /// The rank that computes longest.
    pub slowest: u32,
    /// Of the ranks that a timeline shows, and of the slowest.
    pub spans: BTreeMap<u32, Spans>,
    pub links: Vec<LinkUse>,
    pub busy: Option<Vec<Busy>>,
}

/// A collective alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Alone {
    /// Picoseconds.
    pub time: u64,
    /// The share of that time in which the busiest link of each kind is busy.
    pub busy: [f64; COUNT],
    pub links: Vec<LinkUse>,
}
