//! Runs the schedules of `paceline-schedule` on real buffers, between real processes.
//!
//! | module | holds |
//! | --- | --- |
//! | [`dtype`] | element types and reduction operations |
//! | [`reduce`] | kernels: combine, scale |
//! | [`space`] | the memory of an operation |
//! | [`tag`] | what stands in front of every fragment |
//! | [`channel`] | what a transport offers; [`shm`] and [`tcp`] are transports, `loopback` is for a process itself |
//! | [`multicast`] | one message to many ranks, copied by the network |
//! | [`program`] | what a rank does in an operation: a strategy's schedule, broadcast, all-gather, … |
//! | [`executor`] | runs programs over channels, never waiting |
//! | [`handle`] | the caller's view of an operation in flight |
//! | [`engine`] | this process's part of a job: threads, failures, closing |
//! | [`communicator`] | a group of ranks and the operations between them |
//! | [`coordination`] | operations on named tensors, which ranks ask for in any order |
//! | [`choice`] | which strategy an all-reduce takes |
//! | `timeline` | what a rank did when |
//! | [`settings`] | of a job |
//! | [`rendezvous`] | how ranks find and prove each other: secret, handshake, exchange, mesh of connections |
pub mod channel;
pub mod choice;
pub mod communicator;
pub mod coordination;
mod digest;
pub mod dtype;
pub mod engine;
pub mod error;
pub mod executor;
mod fork;
pub mod grpc;
pub mod handle;
mod loopback;
pub mod mpi;
pub mod multicast;
pub mod program;
pub mod reduce;
pub mod rendezvous;
mod request;
pub mod settings;
pub mod shm;
pub mod space;
pub mod tag;
pub mod tcp;
mod timeline;
