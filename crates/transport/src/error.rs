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
        let label = of(label);
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

/// ` of 'layer1.weight'`, ` of 'layer1.weight' and 7 more`; nothing without a label.
#[must_use]
pub fn of(label: &str) -> String {
    if label.is_empty() {
        return String::new();
    }
    let others = label.rsplit_once(" and ").filter(|(_, others)| {
        others.strip_suffix(" more").is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
    });
    match others {
        Some((first, others)) => format!(" of '{first}' and {others}"),
        None => format!(" of '{label}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn names_of_tensors_are_quoted_and_numbers_of_others_are_not() {
        assert_eq!(of(""), "");
        assert_eq!(of("weight"), " of 'weight'");
        assert_eq!(of("weight and 7 more"), " of 'weight' and 7 more");
        assert_eq!(of("this and no more"), " of 'this and no more'");
    }
}
