//! Code shared by trace, cluster and graph files: reading them, and errors that name the place and say what to do.
//!
//! A file may contain anything: reading one never hangs, never overflows the stack and never panics, and an error is
//! one short line, because it appears below a command line that the user has just typed.
mod error;
pub(crate) mod fields;
mod json;
mod read;
pub(crate) mod seconds;
pub(crate) mod strict;

pub use error::DocumentError;
pub(crate) use error::{Problem, shorten, shown, with_remedy, with_value};
pub(crate) use json::{Format, parse, quoted};
pub(crate) use read::read;

/// Larger files are refused before they are read. A trace of ResNet-200 (611 tensors) takes about 100 kB per worker.
pub const MAX_BYTES: u64 = 256_000_000;

/// Most entries of any list in a document.
pub const MAX_ENTRIES: usize = 1_000_000;
