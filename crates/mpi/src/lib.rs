//! MPI as a transport: the library of the launcher, loaded at run time, never linked.
//!
//! All calls are made on one thread, `paceline-mpi`, which also drives the executor of a job that runs over MPI: what
//! arrives is combined where it lies, and nothing is handed over between threads but whole operations. The thread
//! belongs to the process, as MPI does: it outlives jobs, and ends MPI when the process exits.
//!
//! | module | holds |
//! | --- | --- |
//! | `find` | which library: the setting's, the launcher's, what the process has loaded, the system's |
//! | `abi` | functions and constants of the MPI 5 standard ABI and of Open MPI's own |
//! | `calls` | MPI's functions as Rust's: errors as text, on the right thread only |
//! | `requests` | messages under way and the memory they own |
//! | `collective` | the library's own all-reduce, and the communicators it needs |
//! | `port` | a job's messages, by rank, and looking for them |
//! | `channel` | a rank's part of the port, for the executor |
//! | `thread` | the thread: beginning, what it is asked to do, the end of MPI |
//! | `meet` | what all ranks tell each other before they are connected |
mod abi;
mod calls;
mod channel;
mod collective;
mod find;
mod meet;
mod port;
mod requests;
mod thread;

pub use meet::exchange;
pub use port::Port;
pub use thread::{About, Thread, entered, left, library};

/// What the transport is called.
pub const NAME: &str = "mpi";
