//! Errors shown to the user.
use thiserror::Error;

/// Why an operation or a job failed. The messages name ranks, hosts and tensors.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// The caller's mistake, or something this machine cannot do; the message says what to do.
    #[error("{0}")]
    Usage(String),
    /// A rank died, does not answer, left, or called a different operation.
    #[error("{0}")]
    Failed(String),
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, RunError>;

impl RunError {
    /// Ranks called different operations as operation `seq` of a communicator: for each, who (`rank 3`, `server 1 (rank
    /// 5)`) and a description. `plan_differs`: what differs if the descriptions do not, and the remedy.
    #[must_use]
    pub fn mismatch(
        seq: u32,
        label: &str,
        (them, theirs): (&str, &str),
        (me, mine): (&str, &str),
        plan_differs: &str,
    ) -> RunError {
        let number = seq.wrapping_add(1);
        let label = if label.is_empty() { String::new() } else { format!(" of '{label}'") };
        RunError::Failed(if theirs == mine {
            format!("operation {number}{label}: {me} and {them} both called {mine}, but with different {plan_differs}")
        } else {
            format!(
                "operation {number}{label} differs between ranks: {them} called {theirs}, {me} called {mine}; all \
                 ranks must call the same operations in the same order, with the same shapes and dtypes"
            )
        })
    }
}
