//! Groups all-reduces into buckets, in the order of their ids.
use std::collections::HashMap;

use super::ids::Ranked;
use super::{Dag, NodeId};

/// An all-reduce of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its node.
    pub node: NodeId,
    /// Edges on the longest path from a source to it.
    pub depth: u32,
    /// The index of its bucket in the plan.
    pub bucket: usize,
}

/// All-reduces that are fused into one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fused {
    /// Element type of all its tensors.
    pub dtype: String,
    /// Sum of its tensors' bytes, saturating at 64 bits.
    pub bytes: u64,
    /// Ids, ascending.
    pub tensors: Vec<usize>,
}

/// One pass in the order of ids. Each dtype has one open bucket, the last of that dtype. A tensor joins it if there is
/// room and everything that the tensor needs is in earlier buckets. So no bucket has two members that depend on each
/// other, and none needs a later one. Buckets of other dtypes count as well, otherwise two open buckets could wait for
/// each other.
pub(super) fn fuse(graph: &Dag, ranked: &Ranked, threshold: u64) -> (Vec<Tensor>, Vec<Fused>) {
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut buckets: Vec<Fused> = Vec::new();
    let mut open: HashMap<&str, usize> = HashMap::new();
    // By node: how many of the first buckets must complete before its children begin.
    let mut behind = vec![0usize; graph.nodes().len()];
    for &node in &ranked.order {
        let earliest = graph.parents(node).iter().map(|parent| behind[parent.at()]).max().unwrap_or(0);
        behind[node.at()] = earliest;
        let Some(wanted) = &graph.nodes()[node.at()].all_reduce else { continue };
        let fits = |&bucket: &usize| {
            let bytes = buckets[bucket].bytes.checked_add(wanted.bytes);
            bucket >= earliest && bytes.is_some_and(|bytes| bytes <= threshold)
        };
        let bucket = open.get(wanted.dtype.as_str()).copied().filter(fits).unwrap_or_else(|| {
            buckets.push(Fused { dtype: wanted.dtype.clone(), bytes: 0, tensors: Vec::new() });
            open.insert(&wanted.dtype, buckets.len() - 1);
            buckets.len() - 1
        });
        behind[node.at()] = bucket + 1;
        buckets[bucket].bytes = buckets[bucket].bytes.saturating_add(wanted.bytes);
        buckets[bucket].tensors.push(tensors.len());
        tensors.push(Tensor { node, depth: ranked.depth[node.at()], bucket });
    }
    (tensors, buckets)
}
