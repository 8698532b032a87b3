//! The simulator: runs the programs of `paceline-schedule` on a model of a network. Time is an integer, there is one
//! event queue, and it is deterministic: the same input and seed give the same result on every machine.
//!
//! | module | holds |
//! | --- | --- |
//! | [`options`] | the options of a simulation |
//! | `planning` | the plan of an iteration, with these options |
//! | `prepare`, `plan_run` | convert trace, options and plans for the event loop |
//! | `run_types` | what the parts of a run hand to each other |
//! | `forecast`, `run` | choose how an iteration is simulated, and simulate one as it was recorded |
//! | `simulation`, `worker`, `lanes` | the event loop: workers, and the state of programs |
//! | `event_queue`, `radix_heap`, `event` | future events: a monotone radix heap over the links' own queues |
//! | `network` | links and routes; FIFO and max-min fair sharing; the switch's memory |
//! | `asynchronous`, [`staleness`] | workers that do not wait for each other |
//! | `degraded` | what slow links add to an iteration |
//! | `ring` | rings of identical workers, without events |
//! | `path` | the composition of the critical path |
//! | [`jobs`] | several jobs that share a network |
//! | `replay` | the plan of a worker, for a real process that does the same |
//! | [`agreement`] | the coordinators of a small world, using their real state machines |
//! | [`timeline`] | Chrome trace JSON |
//! | [`iteration`] | sharded training: executes the plan of an iteration |
//! | [`outcome`], `sharded`, [`staggering`] | the result, what it has in addition for a plan, and how far apart workers are |
//! | [`nccl`] | NCCL's collectives on a cluster, and those of a plan |
//! | [`coordination`] | coordinators at any scale: a separate model |
pub mod agreement;
mod asynchronous;
pub mod coordination;
mod defaults;
mod degraded;
mod event;
mod event_queue;
mod forecast;
pub mod iteration;
pub mod jobs;
mod lanes;
pub mod nccl;
mod network;
mod observer;
pub mod offload;
pub mod options;
pub mod outcome;
mod path;
mod plan_run;
mod planning;
mod prepare;
mod radix_heap;
mod random;
mod replay;
mod ring;
mod run;
mod run_types;
mod sharded;
mod sharing;
mod simulation;
pub mod staggering;
pub mod staleness;
pub mod timeline;
mod worker;

pub use forecast::{simulate, simulate_with_timeline};
pub use jobs::simulate_jobs;
pub use nccl::NcclTimes;
pub use network::left::left_for_rings;
pub use options::{Network, Options, Pull, SimulationError};
pub use outcome::Outcome;
pub use prepare::bucket_tensors;
pub use replay::{PlayedFactors, Replay, replay};
