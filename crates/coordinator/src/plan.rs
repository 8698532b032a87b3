//! Which all-reduces go together and in which order, from the graph of a step alone: nothing is negotiated.
//!
//! Every rank computes the same graph, so every rank makes the same plan, once. The method is that of S. Pumma, D. Buono,
//! F. Checconi, X. Que and W. Feng, "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning":
//! all-reduces get ids from the graph, those that are logically concurrent and of one dtype are fused, and bucket k is
//! issued when it is complete and bucket k-1 is issued.
//!
//! | module | holds |
//! | --- | --- |
//! | `dag` | the graph: nodes, edges, which nodes are all-reduces |
//! | `ids` | what a fetch needs, parents before children, by depth |
//! | `buckets` | all-reduces in that order to buckets |
//! | `error` | what is no plan, and why |
mod buckets;
mod dag;
mod error;
mod ids;

pub use buckets::{Fused, Tensor};
pub use dag::{AllReduce, Dag, Node, NodeId};
pub use error::PlanError;

/// The order and the buckets of a graph's all-reduces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Every node that a fetch needs, parents before children.
    pub order: Vec<NodeId>,
    /// The all-reduces among them; the place of one here is its id.
    pub tensors: Vec<Tensor>,
    /// In the order in which they are issued. Members depend on earlier buckets only, so that no order in which tensors
    /// become ready can block them.
    pub buckets: Vec<Fused>,
}

/// Plans what the fetches need, in time proportional to its nodes and edges. A bucket holds at most `threshold` bytes,
/// unless it is a single tensor; with 0 nothing is fused.
///
/// Ids rise with the depth of a node, its longest path from a source; nodes of one depth are numbered in the order of the
/// graph, siblings among them. All ranks must list nodes in the same order, as any deterministic program does.
///
/// # Errors
/// No fetch or one that is no node of this graph, and a cycle in what the fetches need.
pub fn plan(graph: &Dag, fetches: &[NodeId], threshold: u64) -> Result<Plan, PlanError> {
    Ok(fused(graph, ids::rank(graph, fetches)?, threshold))
}

/// As [`plan`], but ids follow the graph's list, in which parents must stand before children: for graphs whose nodes stand
/// in the order in which they run. Depth says little about time where branches differ in length, and a bucket waits for
/// the last of its tensors and for all buckets before it.
///
/// # Errors
/// As [`plan`], and a node that stands before what it needs.
pub fn plan_as_listed(graph: &Dag, fetches: &[NodeId], threshold: u64) -> Result<Plan, PlanError> {
    Ok(fused(graph, ids::rank(graph, fetches)?.listed(graph)?, threshold))
}

fn fused(graph: &Dag, ranked: ids::Ranked, threshold: u64) -> Plan {
    let (tensors, buckets) = buckets::fuse(graph, &ranked, threshold);
    Plan { order: ranked.order, tensors, buckets }
}
