//! Strategies of gradient synchronization, each written once as a schedule: the simulator executes it on a model of
//! a network, the runtime on real buffers.
//!
//! | module | holds |
//! | --- | --- |
//! | [`step`] | the vocabulary: send, receive, barrier; pieces and peers |
//! | [`schedule`] | the [`Schedule`] trait: a strategy for a given topology |
//! | [`chunk`] | how buckets are cut into messages |
//! | [`plan`] | topology and knobs, and what an entry of the registry is |
//! | [`registry`] | the registry of strategies, [`build`] |
//! | [`collective`] | all-reduce and its halves; which rank owns which shard |
//! | [`buckets`] | groups gradients into buckets |
//! | [`note`] | degenerate cases that a user should know about |
//! | [`strategies`] | one strategy per file |
//!
//! A program is a set of *lanes*. A lane is the sequence of operations on one piece of a bucket over all roles; a
//! role's part in it is a list of steps, given by a pure function of (bucket, role, lane, program counter), so that
//! nothing is ever materialized: a ring over 1,024 workers has two million messages and no list of them. The lanes of a
//! role are independent of each other. A message is matched by (operation, bucket, lane, slot), never by the order of
//! arrival.
//!
//! Nothing here depends on time, sockets or threads.
pub mod buckets;
pub mod chunk;
pub mod collective;
pub mod note;
pub mod plan;
pub mod registry;
pub mod schedule;
pub mod step;
pub mod strategies;

pub use chunk::{Chunk, ChunkBytes};
pub use collective::{Collective, shard};
pub use note::Note;
pub use plan::{Distribution, Entry, Inside, Knob, Knobs, Placement, PlanError, Rates, Refusal, Topology};
pub use registry::{build, build_collective, find, look_up, no_collective, registry, synchronous};
pub use schedule::{Least, Link, Links, Roles, Schedule, Stand, SwitchPlace, Volume};
pub use step::{Bucket, Op, Peers, Piece, Step};
