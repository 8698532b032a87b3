//! The simulator: programs of `paceline-schedule` on a model of a network. Integer time, one event queue,
//! deterministic: same input and seed, same result, on every machine.
//!
//! | module | holds |
//! | --- | --- |
//! | [`options`] | what is asked for |
//! | `prepare` | trace and options in the loop's own terms |
//! | `simulation`, `worker`, `lanes` | the event loop: what workers do, where programs stand |
//! | `agenda`, `queue`, `event` | what is still to happen: a monotone radix heap over the links' own queues |
//! | `network` | links and routes; FIFO and max-min fair sharing; the switch's memory |
//! | `path` | the critical path's composition |
//! | `replay` | a worker's part, for a real process in its place |
//! | [`agreement`] | the coordinators of a small world, by their own state machines |
//! | [`timeline`] | Chrome trace JSON |
//! | [`outcome`] | the result |
//! | [`coordination`] | coordinators at any scale: a model of its own |
mod agenda;
pub mod agreement;
pub mod coordination;
mod event;
mod lanes;
mod network;
mod observer;
pub mod options;
pub mod outcome;
mod path;
mod prepare;
mod queue;
mod random;
mod replay;
mod run;
mod simulation;
pub mod timeline;
mod worker;

pub use options::{Network, Options, Pull, SimulationError};
pub use outcome::Outcome;
pub use prepare::bucket_tensors;
pub use replay::{PlayedBucket, PlayedFactors, PlayedLayer, Replay, replay};
pub use run::{simulate, simulate_with_timeline};
