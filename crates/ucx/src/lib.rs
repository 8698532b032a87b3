//! UCX as a transport: the host's library, loaded at run time, never linked.
//!
//! A rank has one worker of UCX, with an endpoint to each other rank. Ranks tell each other their workers' addresses where
//! they meet, on authenticated connections. Any thread may call the worker, one at a time: a lock sees to that.
//!
//! | module | holds |
//! | --- | --- |
//! | `find` | finds the library: the setting's, one already loaded, the system's, a Python package's |
//! | `abi` | functions and structures of UCX's interface for messages (`ucp.h`) |
//! | `calls` | safe wrappers: errors as text, addresses of memory that stays where it is |
//! | `demand` | which of UCX's transports a job wants, and what the machine lacks for them |
//! | `messages` | messages in flight, by rank, and the buffers that they own |
//! | `shared` | these, shared by the channels, and what a sleeper polls |
//! | `port` | a job's messages: opening, connecting, greeting |
//! | `channel` | the channel to one rank, for the executor |
mod abi;
mod calls;
mod channel;
mod demand;
mod find;
mod messages;
mod port;
mod shared;

pub use calls::{Library, library};
pub use demand::Demand;
pub use port::{Options, Peers, Port};

/// Display name of the transport.
pub const NAME: &str = "ucx";
