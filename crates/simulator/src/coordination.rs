//! Forecasts of training with a coordinator (Horovod's background thread) at any scale: one process per GPU, each with
//! a few cores that its input pipeline, graph scheduling and coordinator share.
//!
//! This model is separate from the event simulation: no message is simulated. Differences between processes are
//! drawn at random (late wake-ups, preemptions); their joint effect follows. S. Pumma, D. Buono, F. Checconi, X. Que,
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
//! | `collective` | copies and the all-reduce of a bucket |
//! | `iteration` | one iteration |
//! | [`coordinated`] | a run: its options and its result |
mod collective;
pub mod constants;
pub mod coordinated;
mod cycles;
mod draws;
mod iteration;
mod policy;
mod workload;

pub use constants::Constants;
pub use coordinated::{Breakdown, Coordinated, CoordinatedOptions, coordinate};
