//! Runs the schedules of `paceline-schedule` on real buffers, between real processes: what training and Python call.
//!
//! | module | holds |
//! | --- | --- |
//! | [`session`] | a process's membership in a job: the groups built on an engine |
//! | [`communicator`] | a group of ranks and the operations between them |
//! | [`selection`] | which algorithm an all-reduce uses |
//! | `tuning` | measures which algorithm is fastest for each size |
//! | `clock_sync` | one clock for the timelines of all ranks |
//! | [`server`] | a process that is only a parameter server |
//! | [`negotiation`] | operations on named tensors, which ranks may submit in any order |
//! | `digest` | digests for values that ranks compare |
//!
//! Crates below, each importing only those to its left: `kernels`, `transport`, {`rendezvous`, `mpi`}, {`executor`,
//! `grpc`}, `engine`.
mod clock_sync;
pub mod communicator;
mod digest;
pub mod negotiation;
pub mod selection;
pub mod server;
pub mod session;
mod tuning;
