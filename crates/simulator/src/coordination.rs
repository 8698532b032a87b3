//! Forecasts of training under a coordinator (Horovod's background thread) at any scale: one process per GPU, each with
//! few cores that its input pipeline, its graph scheduling and its coordinator share.
//!
//! It is a model of its own beside the event simulation: no message is simulated. What differs between processes is
//! drawn (who wakes late, who is preempted), what they do together follows from it. S. Pumma, D. Buono, F. Checconi,
//! X. Que, W. Feng, "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning", describe the cause,
//! four remedies and what they measured; docs/explanation/coordinator-model.md tells the model.
//!
//! | module | holds |
//! | --- | --- |
//! | [`constants`] | every constant with unit, value and source |
//! | `draws` | late wake-ups and preemptions: only processes that have one are drawn |
//! | `cycles` | coordinators that wait for each other in every cycle |
//! | `policy` | the coordinators, one a file |
//! | `workload` | trace and cluster in the model's terms |
//! | `collective` | copies and the all-reduce of a bucket |
//! | `iteration` | one iteration |
//! | [`coordinated`] | a run: what is asked for, and the result |
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
