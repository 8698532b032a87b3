//! Runs the schedules of `paceline-schedule` on real buffers, between real processes: what training and Python call.
//!
//! | module | holds |
//! | --- | --- |
//! | [`job`] | a process's part of a job: the groups made over an engine |
//! | [`communicator`] | a group of ranks and the operations between them |
//! | [`selection`] | which strategy an all-reduce takes |
//! | `tuning` | what is fastest for each size, measured |
//! | `clock_sync` | one clock for the timelines of all ranks |
//! | [`server`] | a process that is a parameter server and nothing else |
//! | [`coordination`] | operations on named tensors, which ranks ask for in any order |
//! | `digest` | what ranks compare |
//!
//! Below, each importing only what stands left of it: `kernels`, `transport`, {`rendezvous`, `mpi`}, {`executor`, `grpc`},
//! `engine`.
mod clock_sync;
pub mod communicator;
pub mod coordination;
mod digest;
pub mod job;
pub mod selection;
pub mod server;
mod tuning;
