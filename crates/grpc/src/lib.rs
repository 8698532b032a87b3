//! gRPC between ranks: control, and tensors unless another transport has them.
//!
//! Every two ranks have one HTTP/2 connection with a call for each of the two. Who is called is a service as any other of
//! gRPC (`rank.proto`); a parameter server is one that its workers call. Each call shows a token first, and each answer a
//! proof ([`token`]); both are made of the job's secret. When all ranks have come, nothing listens any more.
//!
//! One thread with an executor of its own does all of it ([`thread`]). Between it and the job's executor, which never waits,
//! stand two bounded queues for each peer ([`queues`]): a rank that does not take what comes makes its peers wait, by the flow
//! control of HTTP/2, and costs no memory.
//!
//! | module | holds |
//! | --- | --- |
//! | `generated` | the code of `rank.proto` (`cargo run -p paceline-protobuf` writes it) |
//! | `fragment` | fragments as messages |
//! | `queues`, `channel` | the queues, and the executor's side of them |
//! | `listener` | where a rank listens, and its certificate |
//! | `token` | what both ends of a call prove |
//! | `socket` | connections, and what strangers may do with them |
//! | `meeting` | who is to be connected, and what became of it |
//! | `service`, `call` | the two ends of a call |
//! | `streams` | what goes through a call |
//! | `thread` | the thread of all of it |
mod call;
mod channel;
mod fragment;
#[allow(missing_docs, clippy::pedantic, reason = "written by a program")]
#[rustfmt::skip]
mod generated;
mod listener;
mod meeting;
mod queues;
mod service;
mod socket;
mod streams;
mod thread;
mod token;

use std::time::Duration;

pub use channel::{GrpcChannel, NAME};
#[doc(hidden)]
pub use fragment::feed;
pub use listener::{GrpcListener, Offer};
pub use thread::{ConnectOptions, Connected, Thread, connect};
#[doc(hidden)]
pub use token::{Contract, StreamKind};

/// Longest time until a connection is made, its certificate checked and its token shown.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Of the metadata of a call.
const FROM: &str = "paceline-rank";
const TO: &str = "paceline-to";
const PROOF: &str = "paceline-proof";

/// Longest message: one of the monitor's, which are longer than fragments, in its envelope.
const LONGEST_MESSAGE: usize = paceline_transport::channel::LONGEST_CONTROL_MESSAGE + 64;
/// Bytes of the headers of a call: ours have some 400.
const LONGEST_HEADERS: u32 = 8 << 10;
/// What a peer may send of a stream before it is read: enough to keep a network busy for 1 ms at 16 Gbit/s.
const STREAM_WINDOW: u32 = 2 << 20;
/// The same of both streams: that of tensors cannot keep that of control waiting.
const CONNECTION_WINDOW: u32 = 2 * STREAM_WINDOW;
/// Largest frame of HTTP/2.
const FRAME: u32 = 256 << 10;
