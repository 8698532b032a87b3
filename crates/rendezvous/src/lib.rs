//! Rendezvous: how ranks find and authenticate each other when a job starts.
//!
//! First [`exchange`]: rank 0 listens at an address that all ranks were given, the others connect, and each gets the
//! blobs of all (where they can be reached, what memory they share). Then [`connect_mesh`]: every rank connects to
//! every other, with one control stream and a number of data streams.
//!
//! Every connection begins with a handshake in which both sides prove that they know the job's [`Secret`], without
//! sending it. This keeps strangers out. It does not encrypt later data, and it does not protect a stream against an
//! attacker who can change packets in transit: that is left to the network.
//!
//! | module | holds |
//! | --- | --- |
//! | `secret` | the job's secret |
//! | `wire` | the bytes of handshake messages, which strangers may send too |
//! | `proof` | what is signed, and with which key |
//! | `handshake` | the two sides of a handshake, without sockets |
//! | `call`, `acceptor` | handshakes over sockets: outgoing and incoming connections |
//! | `frame` | authenticated messages on a proven connection |
//! | `exchange`, `root`, `member` | the all-gather of blobs through rank 0 |
//! | `mesh`, `slots` | the connections of the job, and their slots |
//! | `address`, `interfaces`, `listener` | where to listen, and whether that is safe |
//! | `stranger_log`, `text`, `wait` | what strangers did; texts for messages; waiting for sockets |
mod acceptor;
mod address;
mod blobs;
mod call;
mod exchange;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod handshake;
mod interfaces;
mod listener;
mod member;
mod mesh;
mod proof;
mod root;
mod secret;
mod slots;
mod stranger_log;
pub mod text;
mod wait;
mod wire;

pub use address::plain;
pub use blobs::MAX_BLOB;
pub use exchange::exchange;
pub use listener::{Listener, check_exposure, interface_of};
pub use mesh::{MAX_STREAMS, Mesh, connect_mesh};
pub use proof::{grpc_key, multicast_key, ucx_key};
pub use secret::Secret;
pub use stranger_log::StrangerLog;
pub use wait::keep_alive;
