//! Numbers the nodes that the fetches need: parents before children.
use super::{Dag, NodeId, PlanError};

/// Not visited yet.
const UNSEEN: u32 = u32::MAX;
/// On the path from a fetch to the current node.
const OPEN: u32 = u32::MAX - 1;

/// Nodes in order, and their depths.
pub(super) struct Ranked {
    /// Parents before children.
    pub order: Vec<NodeId>,
    /// By node; for those in `order`, the number of edges on the longest path from a source.
    pub depth: Vec<u32>,
}

impl Ranked {
    /// In the graph's order, if it lists parents before children.
    pub fn listed(mut self, graph: &Dag) -> Result<Ranked, PlanError> {
        self.order.sort_unstable();
        let name = |node: NodeId| graph.nodes()[node.at()].name.clone();
        for &node in &self.order {
            if let Some(&parent) = graph.parents(node).iter().find(|&&parent| parent > node) {
                return Err(PlanError::NotListedInOrder { node: name(node), parent: name(parent) });
            }
        }
        Ok(self)
    }
}

/// By depth, then in the graph's order. Traverses the graph backward from the fetches, depth first: a node's depth is
/// known when those of its parents are.
pub(super) fn rank(graph: &Dag, fetches: &[NodeId]) -> Result<Ranked, PlanError> {
    let nodes = graph.nodes().len();
    if fetches.is_empty() {
        return Err(PlanError::NoFetch);
    }
    let mut depth = vec![UNSEEN; nodes];
    // An explicit stack, because graphs may be deeper than a thread's stack.
    let mut path: Vec<(NodeId, usize)> = Vec::new();
    for &fetch in fetches {
        match depth.get(fetch.at()) {
            None => return Err(PlanError::UnknownFetch { fetch: fetch.0, nodes }),
            Some(&UNSEEN) => open(graph, fetch, &mut depth, &mut path),
            Some(_) => {}
        }
        while let Some((node, next)) = path.last_mut() {
            let (node, places) = (*node, graph.parent_places(*node));
            if *next == places.end {
                let parents = graph.parents(node).iter();
                depth[node.at()] = parents.map(|parent| depth[parent.at()] + 1).max().unwrap_or(0);
                path.pop();
                continue;
            }
            let parent = graph.parent_at(*next);
            *next += 1;
            match depth[parent.at()] {
                UNSEEN => open(graph, parent, &mut depth, &mut path),
                OPEN => return Err(cycle(graph, parent, &path)),
                _ => {}
            }
        }
    }
    Ok(Ranked { order: sorted(&depth), depth })
}

fn open(graph: &Dag, node: NodeId, depth: &mut [u32], path: &mut Vec<(NodeId, usize)>) {
    depth[node.at()] = OPEN;
    path.push((node, graph.parent_places(node).start));
}

/// Sorts by depth; a counting sort, which keeps nodes of the same depth in the graph's order.
fn sorted(depth: &[u32]) -> Vec<NodeId> {
    let seen = || (0u32..).zip(depth).filter(|&(_, &depth)| depth != UNSEEN);
    let deepest = seen().map(|(_, &depth)| depth as usize).max().unwrap_or(0);
    let mut next = vec![0usize; deepest + 2];
    for (_, &depth) in seen() {
        next[depth as usize + 1] += 1;
    }
    for at in 1..next.len() {
        next[at] += next[at - 1];
    }
    let mut order = vec![NodeId(0); next[deepest + 1]];
    for (node, &depth) in seen() {
        order[next[depth as usize]] = NodeId(node);
        next[depth as usize] += 1;
    }
    order
}

/// The path lists children before their parents, starting with the fetch.
fn cycle(graph: &Dag, closing: NodeId, path: &[(NodeId, usize)]) -> PlanError {
    let back = path.iter().rev().map(|&(node, _)| node).take_while(|&node| node != closing);
    let names = std::iter::once(closing).chain(back).map(|node| graph.nodes()[node.at()].name.clone());
    PlanError::Cycle(names.collect())
}
