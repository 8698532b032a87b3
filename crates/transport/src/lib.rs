//! Transports that carry fragments of tensors between ranks.
//!
//! | module | holds |
//! | --- | --- |
//! | [`header`] | the header of every fragment |
//! | [`space`] | the memory of an operation |
//! | [`channel`] | the interface of a transport; [`shm`], [`tcp`] and [`loopback`] implement it |
//! | [`readiness`] | which sockets can be read or written, in one system call |
//! | [`multicast`] | one message to many ranks, copied by the network |
//! | [`traffic`] | counters of what moves to and from a peer |
//! | [`offload`] | collectives that a communication library runs itself |
//! | [`error`] | why something cannot be done |
//! | [`waiting`] | when a wait for other ranks is reported |
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
pub mod traffic;
pub mod waiting;
