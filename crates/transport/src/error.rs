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

impl RunError {
    /// Two ranks called different things as operation `seq` of a communicator: who (`rank 3`, `server 1 (rank 5)`) and
    /// description of each.
    #[must_use]
    pub fn mismatch(seq: u32, label: &str, (them, theirs): (&str, &str), (me, mine): (&str, &str)) -> RunError {
        let number = seq.wrapping_add(1);
        let label = if label.is_empty() { String::new() } else { format!(" of '{label}'") };
        RunError::Failed(if theirs == mine {
            format!(
                "operation {number}{label}: {me} and {them} both called {mine}, but with different strategies or \
                 chunk sizes; give all ranks the same PACELINE_STRATEGY, PACELINE_CHUNK and arguments"
            )
        } else {
            format!(
                "operation {number}{label} differs between ranks: {them} called {theirs}, {me} called {mine}; all \
                 ranks must call the same operations in the same order, with the same shapes and dtypes"
            )
        })
    }
}
