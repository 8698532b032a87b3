//! The input of forecasts: units, the trace of one training step, and the cluster it runs on.
//!
//! | module | holds |
//! | --- | --- |
//! | [`units`] | time, sizes and rates as types, and the one parser of "25Gbps", "100MB", "10us" |
//! | [`trace`] | the computation of one worker in one iteration, independent of any network |
//! | [`cluster`] | nodes, links, racks and the switch's features |
//! | [`graph`] | the operations of one step and their dependencies, without times |
//! | [`document`] | code shared by these files: reading, strictness, errors that name the place |
//! | [`mod@nearest`] | "did you mean …?" |
//!
//! This crate does not depend on strategies, clocks or sockets.
pub mod cluster;
pub mod document;
pub mod graph;
pub mod nearest;
mod pattern;
pub mod trace;
pub mod units;

pub use cluster::Cluster;
pub use document::DocumentError;
pub use graph::Graph;
pub use nearest::nearest;
pub use trace::Trace;
pub use units::{Rate, Time};
