//! What trace, cluster and graph files have in common: how they are read, and errors that name the place and the remedy.
//!
//! A file comes from anywhere: reading one never hangs, never overflows the stack and never panics, and what is wrong
//! with it is said in one short line, because it stands at the end of a command line that a person just typed.
mod error;
pub(crate) mod fields;
mod json;
mod read;
pub(crate) mod seconds;
pub(crate) mod strict;

pub use error::DocumentError;
pub(crate) use error::{Problem, shorten, shown};
pub(crate) use json::{Format, parse, quoted};
pub(crate) use read::read;

/// Larger files are refused before they are read. A trace of ResNet-200 (611 tensors) takes some 100 kB a worker.
pub const MAX_BYTES: u64 = 256_000_000;

/// The most entries that any list of a document may have.
pub const MAX_ENTRIES: usize = 1_000_000;
