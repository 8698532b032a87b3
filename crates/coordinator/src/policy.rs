//! Coordination policies, one per file.
//!
//! S. Pumma et al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning", describe the first
//! as Horovod implements it and the others as remedies for its problems in large runs. Four of them share the state
//! machine `negotiate`: `global-sleep` changes when a cycle begins, `nonblocking` how the driver waits for a vote,
//! `partitioned` on which cores threads run. `graph` is a separate state machine.
mod global_sleep;
mod graph;
mod negotiate;
mod prescribed;
mod proposal;

pub use global_sleep::Pace;
pub use graph::{Assignment, Graph, Issue, Limits, can_be_planned};
pub use negotiate::{Negotiate, Settings};
pub use prescribed::{Planned, Prescribed};
pub use proposal::{Proposal, Seen};

use std::fmt;
use std::num::NonZeroU32;

use crate::event::{Action, Event, Time};

/// A coordination policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Cycles in which ranks vote.
    #[default]
    Negotiate,
    /// The same, with a common sleep after every so many cycles.
    GlobalSleep(NonZeroU32),
    /// The same, without blocking while votes are counted.
    Nonblocking,
    /// The same, with separate cores.
    Partitioned(Partition),
    /// A plan instead of cycles.
    Graph,
}

/// Whose a coordinator's core is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Partition {
    /// Always the coordinator's.
    #[default]
    Static,
    /// The coordinator's while it has work; other threads use it otherwise.
    Dynamic,
}

/// Why a name means no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct UnknownPolicy {
    /// The part that is wrong, and how.
    pub reason: String,
    /// A name to use instead.
    pub remedy: String,
}

/// The argument of [`Partition::Dynamic`].
const DYNAMIC: &str = "dynamic";

impl PolicyKind {
    /// In the order of tables, without arguments.
    pub const ALL: [PolicyKind; 5] = [
        PolicyKind::Negotiate,
        PolicyKind::GlobalSleep(NonZeroU32::MIN),
        PolicyKind::Nonblocking,
        PolicyKind::Partitioned(Partition::Static),
        PolicyKind::Graph,
    ];

    /// The name that users type, without its argument.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Negotiate => "negotiate",
            PolicyKind::GlobalSleep(_) => "global-sleep",
            PolicyKind::Nonblocking => "nonblocking",
            PolicyKind::Partitioned(_) => "partitioned",
            PolicyKind::Graph => "graph",
        }
    }

    /// The name in its publication.
    #[must_use]
    pub fn alias(self) -> Option<&'static str> {
        match self {
            PolicyKind::Negotiate => None,
            PolicyKind::GlobalSleep(_) => Some("gs"),
            PolicyKind::Nonblocking => Some("nbcs"),
            PolicyKind::Partitioned(_) => Some("scp"),
            PolicyKind::Graph => Some("topo"),
        }
    }

    /// A one-line summary.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            PolicyKind::Negotiate => "cycles in which ranks vote on ready tensors, as in Horovod",
            PolicyKind::GlobalSleep(_) => "all ranks sleep equally long between cycles",
            PolicyKind::Nonblocking => "only a separate, sleeping thread waits for the votes",
            PolicyKind::Partitioned(_) => "coordinator, input pipeline and framework have separate cores",
            PolicyKind::Graph => "a plan made once from the order of the graph; no votes",
        }
    }

    /// After how many cycles all ranks sleep equally long; `None`: they never do.
    #[must_use]
    pub fn sleep_every(self) -> Option<NonZeroU32> {
        match self {
            PolicyKind::GlobalSleep(every) => Some(every),
            _ => None,
        }
    }

    /// The policy with this name or alias, followed by its argument if it has one: `global-sleep:4`.
    ///
    /// # Errors
    /// No policy has the name, or the argument does not fit it.
    pub fn find(text: &str) -> Result<PolicyKind, UnknownPolicy> {
        let (name, argument) = text.split_once(':').map_or((text, None), |(name, argument)| (name, Some(argument)));
        let wrong = |reason, remedy: &str| Err(UnknownPolicy { reason, remedy: remedy.into() });
        let Some(kind) = PolicyKind::ALL.into_iter().find(|kind| kind.name() == name || kind.alias() == Some(name))
        else {
            return wrong(format!("'{name}' is unknown"), PolicyKind::default().name());
        };
        match (kind, argument) {
            (_, None) => Ok(kind),
            (PolicyKind::GlobalSleep(_), Some(every)) => match every.parse() {
                Ok(every) => Ok(PolicyKind::GlobalSleep(every)),
                Err(_) => wrong(
                    format!("{name}: needs a number of cycles of 1 to {}, not '{every}'", NonZeroU32::MAX),
                    &format!("{name}:4"),
                ),
            },
            (PolicyKind::Partitioned(_), Some(DYNAMIC)) => Ok(PolicyKind::Partitioned(Partition::Dynamic)),
            (PolicyKind::Partitioned(_), Some(argument)) => {
                wrong(format!("{name}: takes '{DYNAMIC}', not '{argument}'"), &format!("{name}:{DYNAMIC}"))
            }
            (_, Some(argument)) => wrong(format!("{name}: takes no '{argument}'"), name),
        }
    }
}

/// The name with its argument, unless that is the usual one.
impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyKind::GlobalSleep(every) if *every > NonZeroU32::MIN => write!(f, "{}:{every}", self.name()),
            PolicyKind::Partitioned(Partition::Dynamic) => write!(f, "{}:{DYNAMIC}", self.name()),
            _ => f.write_str(self.name()),
        }
    }
}

/// A rank's state machine.
pub trait Policy: Send {
    /// Handles events that have happened by now; returns the actions, in order. `now` never goes backward.
    ///
    /// Events that arrive together are passed together: otherwise the vote for the first of several tensors would leave
    /// the others to the next cycle.
    fn on_all(&mut self, now: Time, events: impl IntoIterator<Item = Event>) -> Vec<Action>
    where
        Self: Sized;

    /// Handles a single event.
    fn on(&mut self, now: Time, event: Event) -> Vec<Action>
    where
        Self: Sized,
    {
        self.on_all(now, [event])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        let every = [1, 2, 7, u32::MAX].map(|every| PolicyKind::GlobalSleep(NonZeroU32::new(every).unwrap()));
        let dynamic = [PolicyKind::Partitioned(Partition::Dynamic)];
        for kind in PolicyKind::ALL.into_iter().chain(every).chain(dynamic) {
            assert_eq!(PolicyKind::find(&kind.to_string()), Ok(kind));
        }
        assert_eq!(PolicyKind::find("gs"), PolicyKind::find("global-sleep:1"));
        assert_eq!(PolicyKind::find("gs:12"), PolicyKind::find("global-sleep:12"));
    }

    #[test]
    fn an_argument_that_does_not_fit_is_refused_with_a_remedy() {
        for argument in ["0", "x", "", "-1", "1.5", "4294967296", "4:2", " 4"] {
            let error = PolicyKind::find(&format!("gs:{argument}")).unwrap_err();
            assert!(error.reason.contains(&format!("1 to 4294967295, not '{argument}'")), "{error}");
            assert!(PolicyKind::find(&error.remedy).is_ok());
        }
        assert!(PolicyKind::find("scp:often").unwrap_err().reason.contains("takes 'dynamic', not 'often'"));
        for text in ["graph:2", "nbcs:", "negotiate:gs"] {
            let error = PolicyKind::find(text).unwrap_err();
            assert!(error.reason.contains("takes no") && PolicyKind::find(&error.remedy).is_ok(), "{error}");
        }
        assert!(PolicyKind::find("grpah:2").unwrap_err().reason.contains("'grpah' is unknown"));
    }
}
