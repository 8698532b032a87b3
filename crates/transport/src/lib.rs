//! What carries fragments of tensors between ranks.
//!
//! | module | holds |
//! | --- | --- |
//! | [`header`] | the header of every fragment |
//! | [`space`] | the memory of an operation |
//! | [`channel`] | what a transport offers; [`shm`], [`tcp`] and [`loopback`] are transports |
//! | [`readiness`] | which sockets can be read or written, in one system call |
//! | [`multicast`] | one message to many ranks, copied by the network |
//! | [`offload`] | collectives that a communication library runs itself |
//! | [`error`] | why something cannot be done |
pub mod channel;
pub mod error;
pub mod header;
pub mod loopback;
pub mod multicast;
pub mod offload;
pub mod readiness;
pub mod shm;
pub mod space;
pub mod tcp;
