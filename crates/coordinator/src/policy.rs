//! Coordination policies, one per file.
//!
//! S. Pumma et al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning", describe the first
//! as Horovod implements it and the others as remedies for its problems in large runs. Four of them share the state
//! machine `negotiate`: `global-sleep` changes when a cycle begins, `nonblocking` how the driver waits for a vote,
//! `partitioned` on which cores threads run. `graph` is a separate state machine.
mod global_sleep;
mod graph;
mod negotiate;

pub use global_sleep::Pace;
pub use graph::{Assignment, Graph, Issue, Limits, Proposal, Seen, can_be_planned};
pub use negotiate::{Negotiate, Settings};

use crate::event::{Action, Event, Time};

/// A coordination policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Cycles in which ranks vote.
    #[default]
    Negotiate,
    /// The same, with a common sleep between cycles.
    GlobalSleep,
    /// The same, without blocking while votes are counted.
    Nonblocking,
    /// The same, with separate cores.
    Partitioned,
    /// A plan instead of cycles.
    Graph,
}

impl PolicyKind {
    /// In the order of tables.
    pub const ALL: [PolicyKind; 5] = [
        PolicyKind::Negotiate,
        PolicyKind::GlobalSleep,
        PolicyKind::Nonblocking,
        PolicyKind::Partitioned,
        PolicyKind::Graph,
    ];

    /// The name that users type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Negotiate => "negotiate",
            PolicyKind::GlobalSleep => "global-sleep",
            PolicyKind::Nonblocking => "nonblocking",
            PolicyKind::Partitioned => "partitioned",
            PolicyKind::Graph => "graph",
        }
    }

    /// The name in its publication.
    #[must_use]
    pub fn alias(self) -> Option<&'static str> {
        match self {
            PolicyKind::Negotiate => None,
            PolicyKind::GlobalSleep => Some("gs"),
            PolicyKind::Nonblocking => Some("nbcs"),
            PolicyKind::Partitioned => Some("scp"),
            PolicyKind::Graph => Some("topo"),
        }
    }

    /// A one-line summary.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            PolicyKind::Negotiate => "cycles in which ranks vote on ready tensors, as in Horovod",
            PolicyKind::GlobalSleep => "all ranks sleep equally long between cycles",
            PolicyKind::Nonblocking => "only a separate, sleeping thread waits for the votes",
            PolicyKind::Partitioned => "coordinator, input pipeline and framework have separate cores",
            PolicyKind::Graph => "a plan made once from the order of the graph; no votes",
        }
    }

    /// The policy with this name or alias.
    #[must_use]
    pub fn find(name: &str) -> Option<PolicyKind> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == name || kind.alias() == Some(name))
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
