//! The plan of one training iteration: what is gathered, computed, reduced, scattered, updated and freed, in which
//! order, and what each step waits for. It is data, made in one place from a trace, a sharding and a library's habits;
//! the simulator and live ranks execute the same plan.
//!
//! | module | holds |
//! | --- | --- |
//! | [`options`] | sharding, prefetch, accumulation, dtypes, optimizer |
//! | [`compression`] | what a compressed bucket sends, and what that costs |
//! | [`units`] | cuts a trace into the units that are gathered and scattered as one |
//! | [`plan`] | the plan, its JSON, its checks and its closed forms |
//! | [`build`] | makes a plan |
//!
//! Nothing here knows networks, clocks or sockets.
pub mod build;
pub mod compression;
pub mod options;
pub mod plan;
pub mod units;

pub use build::build;
pub use compression::{Compression, Cost, Method};
pub use options::{Exchanges, Held, IterationError, IterationOptions, Optimizer, Pull, Reshard, Sharding};
pub use plan::{Buffer, BufferKind, Collective, Group, Plan, Step, Stream, Unit, Work};
pub use units::{Bucket, buckets, buckets_with_experts_apart};
