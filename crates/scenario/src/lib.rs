//! The question of a forecast, and its meaning for a simulation. [`Scenario::lowered`] is the only place in which a library on
//! a channel becomes rates, costs and buckets; forecasts, plans, replays and jobs on one network all pass through it.
//!
//! | module | holds |
//! | --- | --- |
//! | `scenario` | the scenario: what was asked, by whom it is carried out |
//! | [`given`] | the options that users give |
//! | [`library`] | the habits and costs of a communication library |
//! | [`channel`] | what libraries get of a link over TCP and RDMA |
//! | `lower` | the scenario as a cluster and options of the simulator |
//! | `plan` | the options of an iteration's plan |
//! | `memory` | what is read off a lowered scenario: its messages, and the memory of a GPU |
pub mod channel;
pub mod given;
pub mod library;
mod lower;
mod memory;
mod plan;
mod scenario;

pub use channel::Channels;
pub use given::{BucketSize, Given, ShardedBy};
pub use library::{Habits, Library, Servers};
pub use lower::Lowered;
pub use memory::of_gpu;
pub use scenario::{Parallel, Scenario, ScenarioError};
