//! A directed graph of operations.
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use super::PlanError;

/// A node's index in the list from which the graph was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    pub(super) fn at(self) -> usize {
        self.0 as usize
    }
}

/// The data of an all-reduce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllReduce {
    /// Element type; only compared.
    pub dtype: String,
    /// Bytes of the whole tensor.
    pub bytes: u64,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Unique in the graph.
    pub name: String,
    /// `Some` if the operation is an all-reduce.
    pub all_reduce: Option<AllReduce>,
}

/// Nodes and their dependencies. Cycles are detected during planning, because only the nodes that a fetch needs matter.
#[derive(Clone, Debug)]
pub struct Dag {
    nodes: Vec<Node>,
    by_name: HashMap<String, NodeId>,
    /// All nodes' parents, concatenated; those of node n end where those of n + 1 begin.
    parents: Vec<NodeId>,
    begins: Vec<u32>,
}

/// Two numbers are reserved as marks of the traversal.
const MOST: usize = u32::MAX as usize - 2;

impl Dag {
    /// A graph of these nodes; an edge leads from a parent to the child that needs it. An edge may occur several times,
    /// for example if an operation reads one tensor twice.
    ///
    /// # Errors
    /// Two nodes with the same name, an edge from or to a missing node, or more than 4 billion of either.
    pub fn new(nodes: Vec<Node>, edges: &[(NodeId, NodeId)]) -> Result<Dag, PlanError> {
        if nodes.len() > MOST || edges.len() > MOST {
            return Err(PlanError::TooLarge { nodes: nodes.len(), edges: edges.len() });
        }
        let mut by_name = HashMap::with_capacity(nodes.len());
        for (at, node) in (0u32..).zip(&nodes) {
            match by_name.entry(node.name.clone()) {
                Entry::Vacant(place) => place.insert(NodeId(at)),
                Entry::Occupied(before) => {
                    let (first, second) = (before.get().at(), at as usize);
                    return Err(PlanError::DoubleName { name: node.name.clone(), first, second });
                }
            };
        }
        let (parents, begins) = grouped_by_child(nodes.len(), edges)?;
        Ok(Dag { nodes, by_name, parents, begins })
    }

    /// Every node, in the graph's order.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// The nodes that a node needs.
    ///
    /// # Panics
    /// If the node belongs to another, larger graph.
    #[must_use]
    pub fn parents(&self, node: NodeId) -> &[NodeId] {
        &self.parents[self.parent_places(node)]
    }

    pub(super) fn parent_places(&self, node: NodeId) -> Range<usize> {
        self.begins[node.at()] as usize..self.begins[node.at() + 1] as usize
    }

    pub(super) fn parent_at(&self, place: usize) -> NodeId {
        self.parents[place]
    }
}

/// Compressed sparse rows: the parents of each child in the order of the edges, and the offset of each child's.
fn grouped_by_child(nodes: usize, edges: &[(NodeId, NodeId)]) -> Result<(Vec<NodeId>, Vec<u32>), PlanError> {
    let mut begins = vec![0u32; nodes + 1];
    for (edge, &(parent, child)) in edges.iter().enumerate() {
        if let Some(node) = [parent, child].into_iter().find(|node| node.at() >= nodes) {
            return Err(PlanError::UnknownNode { edge, node: node.0, nodes });
        }
        begins[child.at() + 1] += 1;
    }
    for at in 1..=nodes {
        begins[at] += begins[at - 1];
    }
    let mut next = begins.clone();
    let mut parents = vec![NodeId(0); edges.len()];
    for &(parent, child) in edges {
        let place = &mut next[child.at()];
        parents[*place as usize] = parent;
        *place += 1;
    }
    Ok((parents, begins))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(names: &[&str]) -> Vec<Node> {
        names.iter().map(|&name| Node { name: name.into(), all_reduce: None }).collect()
    }

    #[test]
    fn parents_are_grouped_in_the_order_of_edges() {
        let edges = [(2, 0), (1, 2), (1, 0), (2, 0)].map(|(parent, child)| (NodeId(parent), NodeId(child)));
        let dag = Dag::new(nodes(&["a", "b", "c"]), &edges).unwrap();
        assert_eq!(dag.parents(NodeId(0)), [NodeId(2), NodeId(1), NodeId(2)]);
        assert_eq!(dag.parents(NodeId(1)), []);
        assert_eq!(dag.parents(NodeId(2)), [NodeId(1)]);
        assert_eq!((dag.find("c"), dag.find("d")), (Some(NodeId(2)), None));
    }

    #[test]
    fn names_are_unique_and_edges_lead_somewhere() {
        let error = Dag::new(nodes(&["a", "b", "a"]), &[]).unwrap_err();
        assert_eq!(error.to_string(), "nodes 0 and 2 are both named 'a'");
        let error = Dag::new(nodes(&["a"]), &[(NodeId(0), NodeId(0)), (NodeId(0), NodeId(1))]).unwrap_err();
        assert_eq!(error.to_string(), "edge 1 names node 1, and the graph has 1 nodes");
    }
}
