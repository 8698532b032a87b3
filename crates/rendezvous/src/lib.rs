//! How ranks find and prove each other, once, when a job starts.
//!
//! First [`exchange`]: rank 0 listens at an address that everyone was given, the others connect, and each learns the
//! blob of each (where it can be reached, what memory it shares). Then [`connect_mesh`]: every rank connects to every
//! other, one control stream and so many data streams.
//!
//! Every connection begins with a handshake in which both sides prove that they know the job's [`Secret`], without
//! sending it. It keeps strangers out; it does not hide what is sent afterwards, nor does it protect a stream against
//! somebody who can change packets on their way: that is the network's part.
//!
//! | module | holds |
//! | --- | --- |
//! | `secret` | the job's secret |
//! | `wire` | messages of the handshake, as bytes: what is read from strangers |
//! | `proof` | what is signed, and with which key |
//! | `handshake` | the two sides of a handshake, without sockets |
//! | `call`, `acceptor` | the same with sockets: outgoing and incoming connections |
//! | `frame` | authenticated messages on a proven connection |
//! | `exchange`, `root`, `member` | the all-gather of blobs through rank 0 |
//! | `mesh`, `slots` | the connections of the job, and their places |
//! | `address`, `interfaces`, `listener` | where to listen, and whether that is wise |
//! | `stranger_log`, `text`, `wait` | what strangers did; texts; sleeping until a socket is ready |
mod acceptor;
mod address;
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

pub use address::check_exposure;
pub use address::plain;
pub use exchange::{MAX_BLOB, exchange};
pub use listener::Listener;
pub use mesh::{MAX_STREAMS, Mesh, connect_mesh};
pub use proof::{grpc_key, multicast_key};
pub use secret::Secret;
pub use stranger_log::StrangerLog;
pub use wait::keep_alive;
