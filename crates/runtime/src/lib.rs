//! Runs the schedules of `paceline-schedule` on real buffers, between real processes.
//!
//! | module | holds |
//! | --- | --- |
//! | [`dtype`] | element types and reduction operations |
//! | [`reduce`] | kernels: combine, scale |
//! | [`rendezvous`] | how ranks find and prove each other: secret, handshake, exchange, mesh of connections |
pub mod dtype;
pub mod error;
pub mod reduce;
pub mod rendezvous;
