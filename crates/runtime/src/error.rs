//! What can go wrong, for the user.
use thiserror::Error;

/// Why an operation or a job failed. The messages name ranks, hosts and tensors.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// The caller's mistake, or something this machine cannot do; the message names the remedy.
    #[error("{0}")]
    Usage(String),
    /// A rank died, is silent, left, or called something else.
    #[error("{0}")]
    Failed(String),
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, RunError>;
