//! Forecasts of training with a coordinator (Horovod's background thread) at any scale: one process per GPU, each with
//! a few cores that its input pipeline, graph scheduling and coordinator share.
//!
//! A coordinator decides which tensors make up a bucket, and when it is exchanged; buckets are exchanged one at a time,
//! each for as long as the event simulation of this bucket alone takes. Differences between processes are drawn at
//! random (late wake-ups, preemptions); their joint effect follows. S. Pumma, D. Buono, F. Checconi, X. Que,
//! W. Feng, "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning", describe the cause, four
//! remedies and their measurements; docs/explanation/coordinator-model.md describes the model.
//!
//! | module | holds |
//! | --- | --- |
//! | [`constants`] | every constant with unit, value and source |
//! | `draws` | late wake-ups and preemptions: only processes that have any are drawn |
//! | `cycles` | coordinators that wait for each other in every cycle |
//! | `policy` | the coordinators, one per file |
//! | `workload` | trace and cluster in the model's terms |
//! | `collective` | copies and the exchange of a bucket |
//! | `iteration` | one iteration |
//! | `timeline` | draws one |
//! | [`coordinated`] | a run: its options and its result |
mod collective;
pub mod constants;
pub mod coordinated;
mod cycles;
mod draws;
mod iteration;
mod policy;
mod timeline;
mod workload;

pub use constants::Constants;
pub(crate) use coordinated::coordinate;
pub use coordinated::{Coordinated, Coordination, unreachable};
