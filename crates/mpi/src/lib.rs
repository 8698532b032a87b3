//! MPI as a transport: the launcher's library, loaded at run time, never linked.
//!
//! All calls are made on one thread, `paceline-mpi`, which also drives the executor of a job over MPI. Received data is
//! combined in place, and only whole operations are passed between threads. Like MPI, the thread belongs to the
//! process: it outlives jobs, and finalizes MPI when the process exits.
//!
//! | module | holds |
//! | --- | --- |
//! | `find` | finds the library: the setting's, the launcher's, one already loaded, the system's |
//! | `abi` | functions and constants of the MPI 5 standard ABI and of Open MPI's ABI |
//! | `calls` | safe wrappers: errors as text, on the right thread only |
//! | `requests` | messages in flight and the buffers they own |
//! | `collective` | the library's own all-reduce, its collectives on device memory, and the communicators it needs |
//! | `devices` | whether the library takes the memory of CUDA devices |
//! | `port` | a job's messages, by rank, and polling for them |
//! | `channel` | the channel to one rank, for the executor |
//! | `thread` | the thread: start, commands, finalizing MPI |
//! | `meet` | the exchange between all ranks before they are connected |
mod abi;
mod calls;
mod channel;
mod collective;
mod devices;
mod find;
mod meet;
mod port;
mod requests;
mod thread;

pub use meet::exchange;
pub use port::Port;
pub use thread::{About, Thread, entered, left, library};

/// Display name of the transport.
pub const NAME: &str = "mpi";
