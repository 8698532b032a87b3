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
    /// Another error, and its remedy: what to type or look at, in a few words.
    #[error("{0}")]
    Remedied(Box<RunError>, String),
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, RunError>;

impl RunError {
    /// The same error with a remedy: what to type or look at, in a few words. It replaces an earlier one.
    #[must_use]
    pub fn with_remedy(self, remedy: impl Into<String>) -> RunError {
        let (error, _) = self.parts();
        RunError::Remedied(Box::new(error), remedy.into())
    }

    /// The remedy, if there is one.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        match self {
            RunError::Remedied(_, remedy) => Some(remedy),
            _ => None,
        }
    }

    /// The error without its remedy, and the remedy.
    #[must_use]
    pub fn parts(self) -> (RunError, Option<String>) {
        match self {
            RunError::Remedied(error, remedy) => (*error, Some(remedy)),
            error => (error, None),
        }
    }

    /// A failure with this message, and the remedy of another, if that has one.
    #[must_use]
    pub fn failed_like(message: String, remedy: Option<&str>) -> RunError {
        match remedy {
            Some(remedy) => RunError::Failed(message).with_remedy(remedy),
            None => RunError::Failed(message),
        }
    }

    /// Ranks called different operations where this one called `what` (`op 2`): for each, who (`rank 3`, `server 1 (rank
    /// 5)`) and a description. `plan_differs`: what differs if the descriptions do not, and the remedy.
    #[must_use]
    pub fn mismatch(
        what: &str,
        (them, theirs): (&str, &str),
        (me, mine): (&str, &str),
        (differs, remedy): (&str, &str),
    ) -> RunError {
        if theirs == mine {
            let message = format!("ranks disagree on {what}: {me} and {them} called {mine} with different {differs}");
            return RunError::Failed(message).with_remedy(remedy);
        }
        let message = format!("ranks disagree on {what}: {them} called {theirs}, {me} called {mine}");
        RunError::Failed(message).with_remedy(SAME_CALLS)
    }
}

/// The remedy where ranks do not call the same.
pub const SAME_CALLS: &str = "the same calls in the same order, with the same shapes and dtypes, on all ranks";

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
        let group = if shown == "world" { DEFAULT.to_owned() } else { format!("{shown} of ranks {ranks:?}") };
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

    /// How many operations the script has called when the communicator has counted so many.
    #[must_use]
    pub fn counted(&self, all: u32) -> u32 {
        all.saturating_sub(self.first.unwrap_or(0))
    }

    /// `op 23`, or `op 23 of group weights of ranks [0, 2]`, as the script counts from 1; `None`: it does not call them.
    /// `seq`: counted in the communicator, from 0.
    #[must_use]
    pub fn number(&self, seq: u32) -> Option<String> {
        let (group, number) = (self.group.as_ref()?, seq.checked_sub(self.first?)?);
        Some(match self.shown() {
            Some(_) => format!("op {} of group {group}", u64::from(number) + 1),
            None => format!("op {}", u64::from(number) + 1),
        })
    }

    /// `group weights of ranks [0, 2]`; `None`: the default group, or none that a script knows.
    #[must_use]
    pub fn shown(&self) -> Option<String> {
        self.group.as_ref().filter(|group| *group != DEFAULT).map(|group| format!("group {group}"))
    }

    /// On what ranks disagree: `op 2`, with the name of its tensors, or the call where no script counts it.
    #[must_use]
    pub fn disagreed(&self, call: &str, seq: u32, label: &str) -> String {
        let own = if label.starts_with(call) { "" } else { label };
        self.making(seq).unwrap_or_else(|| self.number(seq).unwrap_or_else(|| call.to_owned()) + &of(own))
    }

    /// `making group default`, if the operation belongs to that.
    #[must_use]
    pub fn making(&self, seq: u32) -> Option<String> {
        let group = self.group.as_ref()?;
        let is_own = self.first.is_some_and(|first| seq >= first);
        (!is_own).then(|| format!("making group {group}"))
    }
}

/// The name that a script's group of all ranks has in messages.
const DEFAULT: &str = "default";

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
    use super::{Naming, RunError, of};

    #[test]
    fn operations_are_counted_as_the_script_counts_them() {
        let mut naming = Naming::of_new("world", &[0, 1]);
        assert_eq!((naming.making(7).as_deref(), naming.is_new()), (Some("making group default"), true));
        naming.begin(5);
        assert_eq!((naming.number(7).as_deref(), naming.making(7)), (Some("op 3"), None));
        assert_eq!((naming.number(4), naming.counted(8)), (None, 3));
        assert_eq!(naming.making(4).as_deref(), Some("making group default"));
        let mut weights = Naming::of_new("weights#1", &[0, 2]);
        weights.begin(0);
        assert_eq!(weights.number(0).as_deref(), Some("op 1 of group weights of ranks [0, 2]"));
        let group = |name: &str| Naming::of_new(name, &[0]).shown();
        assert_eq!((group("a#b").as_deref(), group("world")), (Some("group a#b of ranks [0]"), None));
        naming.hide();
        assert_eq!((naming.number(7), naming.making(7)), (None, None));
    }

    #[test]
    fn the_last_remedy_counts() {
        let error = RunError::Failed("rank 1 died".into()).with_remedy("one").with_remedy("another");
        assert_eq!((error.to_string().as_str(), error.remedy()), ("rank 1 died", Some("another")));
        assert_eq!(error.parts(), (RunError::Failed("rank 1 died".into()), Some("another".into())));
    }

    #[test]
    fn names_of_tensors_are_quoted_and_numbers_of_others_are_not() {
        assert_eq!(of(""), "");
        assert_eq!(of("weight"), " of 'weight'");
        assert_eq!(of("weight and 7 more"), " of 'weight' and 7 more");
        assert_eq!(of("this and no more"), " of 'this and no more'");
    }
}
