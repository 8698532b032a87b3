//! Errors shown to the user.
use thiserror::Error;

/// Why an operation or a job failed. The messages name ranks, hosts and tensors.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// The caller's mistake, or something this machine cannot do; the message says what to do.
    #[error("{0}")]
    Usage(String),
    /// The caller's mistake in a setting: its name in Python, and what is wrong and to do, without that name.
    #[error("{name}: {1}", name = .0.replace('_', "-"))]
    Setting(&'static str, String),
    /// A rank died, does not answer, left, or called a different operation.
    #[error("{0}")]
    Failed(String),
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, RunError>;

impl RunError {
    /// Ranks called different operations where this one called `what`: for each, who (`rank 3`, `server 1 (rank 5)`) and
    /// a description. `plan_differs`: what differs if the descriptions do not, and the remedy.
    #[must_use]
    pub fn mismatch(
        what: &str,
        (them, theirs): (&str, &str),
        (me, mine): (&str, &str),
        plan_differs: &str,
    ) -> RunError {
        RunError::Failed(if theirs == mine {
            format!("{what}: {me} and {them} both called {mine}, but with different {plan_differs}")
        } else {
            format!(
                "{what} differs between ranks: {them} called {theirs}, {me} called {mine}; all ranks must call the same \
                 operations in the same order, with the same shapes and dtypes"
            )
        })
    }
}

/// How messages call the operations of a communicator: as the script that calls them does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Naming {
    /// `default`, or `weights of ranks [0, 2]`; `None`: no script knows the communicator, as its operations are on named
    /// tensors.
    group: Option<String>,
    /// Number of its first operation that the script calls; those before it belong to the making of the group, as all do
    /// while this is `None`.
    first: Option<u32>,
}

impl Naming {
    /// Of a communicator that is being made.
    #[must_use]
    pub fn of_new(name: &str, ranks: &[u32]) -> Naming {
        // A number tells groups of the same name apart.
        let name =
            [", servers", ", tensors", ", agreement"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let shown = match name.rsplit_once('#') {
            Some((shown, number)) if number.bytes().all(|digit| digit.is_ascii_digit()) => shown,
            _ => name,
        };
        let group = if shown == "world" { "default".to_owned() } else { format!("{shown} of ranks {ranks:?}") };
        Naming { group: Some(group), first: None }
    }

    /// From this operation on, the script calls them.
    pub fn begin(&mut self, first: u32) {
        self.first = Some(first);
    }

    /// Its operations are on named tensors, and no script counts them.
    pub fn hide(&mut self) {
        (self.group, self.first) = (None, Some(0));
    }

    /// Whether the group is still being made.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.first.is_none()
    }

    /// Whether its operations are on named tensors.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.group.is_none()
    }

    /// `group default`.
    #[must_use]
    pub fn group(&self) -> String {
        self.group.as_ref().map_or_else(|| "its group".to_owned(), |group| format!("group {group}"))
    }

    /// How many operations the script has called when the communicator has counted so many.
    #[must_use]
    pub fn counted(&self, all: u32) -> u32 {
        all.saturating_sub(self.first.unwrap_or(0))
    }

    /// `all_reduce #23 of group default`; the group alone while it is made. `seq`: counted in the communicator.
    #[must_use]
    pub fn of(&self, call: &str, seq: u32) -> String {
        match (&self.group, self.first.and_then(|first| seq.checked_sub(first))) {
            (None, _) => call.to_owned(),
            (Some(group), None) => format!("making group {group}"),
            (Some(group), Some(number)) => format!("{call} #{} of group {group}", u64::from(number) + 1),
        }
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
    use super::{Naming, of};

    #[test]
    fn operations_are_called_what_the_script_calls_them() {
        let mut naming = Naming::of_new("world", &[0, 1]);
        assert_eq!((naming.of("all_reduce", 7), naming.is_new()), ("making group default".to_owned(), true));
        naming.begin(5);
        assert_eq!(naming.of("all_reduce", 7), "all_reduce #3 of group default");
        assert_eq!((naming.of("barrier", 4), naming.counted(8)), ("making group default".to_owned(), 3));
        assert_eq!(Naming::of_new("weights#1", &[0, 2]).group(), "group weights of ranks [0, 2]");
        assert_eq!(Naming::of_new("a#b", &[0]).group(), "group a#b of ranks [0]");
        naming.hide();
        assert_eq!(naming.of("all_reduce", 7), "all_reduce");
    }

    #[test]
    fn names_of_tensors_are_quoted_and_numbers_of_others_are_not() {
        assert_eq!(of(""), "");
        assert_eq!(of("weight"), " of 'weight'");
        assert_eq!(of("weight and 7 more"), " of 'weight' and 7 more");
        assert_eq!(of("this and no more"), " of 'this and no more'");
    }
}
