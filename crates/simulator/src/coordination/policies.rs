//! The cost of each coordinator policy, one per file. The policies are those of `paceline-coordinator`, with the same
//! names.
mod global_sleep;
mod graph;
mod negotiate;
mod nonblocking;
mod partitioned;

use paceline_coordinator::{Partition, PolicyKind};

use super::policy::Model;

/// The model of this policy.
pub(super) fn model(kind: PolicyKind) -> &'static Model {
    match kind {
        PolicyKind::Negotiate => &negotiate::NEGOTIATE,
        PolicyKind::GlobalSleep(_) => &global_sleep::GLOBAL_SLEEP,
        PolicyKind::Nonblocking => &nonblocking::NONBLOCKING,
        PolicyKind::Partitioned(Partition::Static) => &partitioned::PARTITIONED,
        PolicyKind::Partitioned(Partition::Dynamic) => &partitioned::DYNAMIC,
        PolicyKind::Graph => &graph::GRAPH,
    }
}
