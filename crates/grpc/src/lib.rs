//! gRPC between ranks: control messages, and tensors unless another transport carries them.
//!
//! Every two ranks share one HTTP/2 connection, with one call for control and one for tensors. The called rank is an
//! ordinary gRPC service (`rank.proto`); a parameter server is called by its workers. Each call carries a token, and
//! each answer a proof ([`token`]); both are derived from the job's secret. Once all ranks have connected, the listener
//! is closed.
//!
//! One thread with its own async executor does all of this ([`thread`]). Two bounded queues for each peer ([`queues`])
//! connect it to the job's executor, which never blocks. A rank that does not take its fragments makes its peers wait,
//! through the flow control of HTTP/2, and costs no memory.
//!
//! | module | holds |
//! | --- | --- |
//! | `generated` | the code of `rank.proto`, written by `cargo run -p paceline-protobuf` |
//! | `fragment` | fragments as messages |
//! | `queues`, `channel` | the queues, and the executor's side of them |
//! | `gauge` | what moves on the connections |
//! | `listener` | where a rank listens, and its certificate |
//! | `token` | authentication of both ends of a call |
//! | `socket` | connections, and limits on unauthenticated ones |
//! | `meeting` | which connections are needed, and their state |
//! | `service`, `call` | the two ends of a call |
//! | `streams` | the contents of a call |
//! | `thread` | the thread that runs all of this |
mod call;
mod channel;
mod fragment;
mod gauge;
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

/// Time limit for connecting, checking the certificate and showing the token.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Metadata keys of a call.
const FROM: &str = "paceline-rank";
const TO: &str = "paceline-to";
const PROOF: &str = "paceline-proof";

/// Longest message: a control message, which may be longer than a fragment, in its envelope.
const LONGEST_MESSAGE: usize = paceline_transport::channel::LONGEST_CONTROL_MESSAGE + 64;
/// Limit on the headers of a call, in bytes: ours take about 400.
const LONGEST_HEADERS: u32 = 8 << 10;
/// Flow-control window of a stream, in bytes: enough to keep a network busy for 1 ms at 16 Gbit/s.
const STREAM_WINDOW: u32 = 2 << 20;
/// Window of both streams together, so that tensors cannot block control messages.
const CONNECTION_WINDOW: u32 = 2 * STREAM_WINDOW;
/// Largest HTTP/2 frame.
const FRAME: u32 = 256 << 10;
