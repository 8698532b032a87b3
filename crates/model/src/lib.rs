//! What a forecast is made from: units, the trace of one training step, and the cluster it runs on.
//!
//! | module | holds |
//! | --- | --- |
//! | [`units`] | time, sizes and rates as types, and the one parser of "25Gbps", "100MB", "10us" |
//! | [`trace`] | what one worker computes in one iteration, independent of any network |
//! | [`cluster`] | nodes, links, racks and what the switch can do |
//! | [`graph`] | the operations of one step and their dependences, with no time in it |
//! | [`document`] | what these files have in common: reading, strictness, errors that name the place |
//! | [`mod@nearest`] | "did you mean …?" |
//!
//! This crate knows no strategy, no clock and no socket.
pub mod cluster;
pub mod document;
pub mod graph;
pub mod nearest;
pub mod trace;
pub mod units;

pub use cluster::Cluster;
pub use document::DocumentError;
pub use graph::Graph;
pub use nearest::nearest;
pub use trace::Trace;
pub use units::{Rate, Time};
