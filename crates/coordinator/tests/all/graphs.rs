//! Graphs for tests of the planner, and their dependencies by brute force.
use paceline_coordinator::plan::{AllReduce, Dag, Node, NodeId};
use proptest::prelude::*;

pub fn node(name: &str, all_reduce: Option<(&str, u64)>) -> Node {
    let all_reduce = all_reduce.map(|(dtype, bytes)| AllReduce { dtype: dtype.into(), bytes });
    Node { name: name.into(), all_reduce }
}

pub fn edges(pairs: &[(u32, u32)]) -> Vec<(NodeId, NodeId)> {
    pairs.iter().map(|&(parent, child)| (NodeId(parent), NodeId(child))).collect()
}

/// A graph in any order of nodes, its fetches and a threshold.
#[derive(Clone, Debug)]
pub struct Case {
    pub dag: Dag,
    pub pairs: Vec<(u32, u32)>,
    pub fetches: Vec<NodeId>,
    pub threshold: u64,
}

impl Case {
    /// Multiple edges between the same nodes, each from the one listed first.
    pub fn listed_in_order(mut self) -> Case {
        self.pairs.iter_mut().for_each(|pair| *pair = (pair.0.min(pair.1), pair.0.max(pair.1)));
        self.dag = Dag::new(self.dag.nodes().to_vec(), &edges(&self.pairs)).expect("edges lead to nodes");
        self
    }
}

pub fn cases() -> impl Strategy<Value = Case> {
    (2usize..40)
        .prop_flat_map(|count| {
            let operation = prop_oneof![
                1 => Just(None),
                2 => (prop_oneof![Just("float16"), Just("float32"), Just("int64")], 0u64..50).prop_map(Some),
            ];
            let nodes = prop::collection::vec(operation, count);
            let pairs = prop::collection::vec((0..count, 0..count), 0..3 * count);
            let shuffled = Just((0..count).collect::<Vec<_>>()).prop_shuffle();
            let fetches = prop::collection::vec(0..count, 1..6);
            (nodes, pairs, shuffled, fetches, prop_oneof![Just(0), 1u64..200, Just(u64::MAX)])
        })
        .prop_map(|(operations, pairs, shuffled, fetches, threshold)| {
            let nodes =
                operations.into_iter().enumerate().map(|(at, operation)| node(&format!("n{at}"), operation)).collect();
            // Edges follow a hidden order, so that there is no cycle and the list's order carries no information.
            let pairs: Vec<(u32, u32)> = pairs
                .into_iter()
                .filter(|(a, b)| a != b)
                .map(|(a, b)| (shuffled[a.min(b)] as u32, shuffled[a.max(b)] as u32))
                .collect();
            let dag = Dag::new(nodes, &edges(&pairs)).expect("names are unique and edges lead to nodes");
            let fetches = fetches.into_iter().map(|fetch| NodeId(fetch as u32)).collect();
            Case { dag, pairs, fetches, threshold }
        })
}

/// The nodes that each node needs, directly or indirectly.
pub fn ancestors(case: &Case) -> Vec<Vec<bool>> {
    let count = case.dag.nodes().len();
    let mut needs = vec![vec![false; count]; count];
    for &(parent, child) in &case.pairs {
        needs[child as usize][parent as usize] = true;
    }
    for through in 0..count {
        for child in 0..count {
            if needs[child][through] {
                let more = needs[through].clone();
                needs[child].iter_mut().zip(more).for_each(|(known, more)| *known |= more);
            }
        }
    }
    needs
}
