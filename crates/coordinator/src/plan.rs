//! Plans which all-reduces are fused and in which order they begin, from the graph of a step alone, without
//! negotiation.
//!
//! Every rank computes the same graph, so every rank makes the same plan, once. The method is that of S. Pumma, D. Buono,
//! F. Checconi, X. Que and W. Feng, "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning":
//! all-reduces get ids from the graph, those that are logically concurrent and of one dtype are fused, and bucket k is
//! issued when it is complete and bucket k-1 is issued.
//!
//! | module | holds |
//! | --- | --- |
//! | `dag` | the graph: nodes, edges, and which nodes are all-reduces |
//! | `ids` | the nodes that the fetches need, parents before children, by depth |
//! | `buckets` | groups all-reduces into buckets, in that order |
//! | `error` | why a graph cannot be planned |
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
    /// The all-reduces among them; the index here is the id.
    pub tensors: Vec<Tensor>,
    /// In the order in which they are issued. Members depend only on earlier buckets, so that no order in which tensors
    /// become ready can cause a deadlock.
    pub buckets: Vec<Fused>,
}

/// Plans what the fetches need, in time proportional to its nodes and edges. A bucket has at most `threshold` bytes,
/// unless it is a single tensor; with 0 nothing is fused.
///
/// Ids rise with the depth of a node, its longest path from a source; nodes of one depth are numbered in the order of the
/// graph, siblings among them. All ranks must list nodes in the same order, as any deterministic program does.
///
/// # Errors
/// No fetch, a fetch that is not in the graph, or a cycle in what the fetches need.
pub fn plan(graph: &Dag, fetches: &[NodeId], threshold: u64) -> Result<Plan, PlanError> {
    Ok(fused(graph, ids::rank(graph, fetches)?, threshold))
}

/// Like [`plan`], but ids follow the graph's list, in which parents must come before children: for graphs whose nodes
/// are listed in the order in which they run. Depth says little about time if branches differ in length, and a bucket
/// waits for the last of its tensors and for all earlier buckets.
///
/// # Errors
/// As [`plan`], or a node listed before one that it needs.
pub fn plan_as_listed(graph: &Dag, fetches: &[NodeId], threshold: u64) -> Result<Plan, PlanError> {
    Ok(fused(graph, ids::rank(graph, fetches)?.listed(graph)?, threshold))
}

fn fused(graph: &Dag, ranked: ids::Ranked, threshold: u64) -> Plan {
    let (tensors, buckets) = buckets::fuse(graph, &ranked, threshold);
    Plan { order: ranked.order, tensors, buckets }
}
