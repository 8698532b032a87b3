//! Ways to agree, one a file.
//!
//! S. Pumma et al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning", describe the first as
//! Horovod has it and the others as remedies for what it does to large runs. `negotiate` is a state machine that three of
//! them share: `global-sleep` changes when a cycle begins, `nonblocking` how the driver waits for a vote, `partitioned` on
//! which cores threads run. `graph` is another one, beside it.
mod global_sleep;
mod graph;
mod negotiate;

pub use global_sleep::Pace;
pub use graph::{Assignment, Graph, Issue, Limits, Proposal, Seen, can_be_planned};
pub use negotiate::{Negotiate, Settings};

use crate::event::{Action, Event, Time};

/// Which policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Cycles, in which ranks vote.
    #[default]
    Negotiate,
    /// The same, with a sleep between cycles that all ranks share.
    GlobalSleep,
    /// The same, and nobody is kept from anything while votes are counted.
    Nonblocking,
    /// The same, on cores of its own.
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

    /// As users type it.
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

    /// As its publication calls it.
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

    /// One line for people.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            PolicyKind::Negotiate => "cycles in which ranks vote on what is ready, as Horovod's",
            PolicyKind::GlobalSleep => "all ranks sleep equally long between cycles",
            PolicyKind::Nonblocking => "a thread of its own waits for the votes, asleep; nothing else does",
            PolicyKind::Partitioned => "coordinator, input pipeline and framework have cores of their own",
            PolicyKind::Graph => "a plan made once from the order of the graph; no votes",
        }
    }

    /// The policy of this name or alias.
    #[must_use]
    pub fn find(name: &str) -> Option<PolicyKind> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == name || kind.alias() == Some(name))
    }
}

/// A rank's part of a coordinator.
pub trait Policy: Send {
    /// All this has happened by now; what is to be done, in this order. `now` never goes back.
    ///
    /// What has come together is told together: a vote for the first of several tensors would leave the others to the next.
    fn on_all(&mut self, now: Time, events: impl IntoIterator<Item = Event>) -> Vec<Action>
    where
        Self: Sized;

    /// The same of one event.
    fn on(&mut self, now: Time, event: Event) -> Vec<Action>
    where
        Self: Sized,
    {
        self.on_all(now, [event])
    }
}
