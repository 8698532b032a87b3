//! Plans: the published example, refused graphs, and the properties of every plan of a random graph.

use std::collections::BTreeMap;

use crate::graphs::{Case, ancestors, cases, edges, node};
use paceline_coordinator::plan::{Dag, NodeId, Plan, plan, plan_as_listed};
use proptest::prelude::*;

fn names(dag: &Dag, plan: &Plan) -> Vec<Vec<String>> {
    let name = |&tensor: &usize| dag.nodes()[plan.tensors[tensor].node.0 as usize].name.clone();
    plan.buckets.iter().map(|bucket| bucket.tensors.iter().map(name).collect()).collect()
}

/// The example of Pumma et al.: five all-reduces, 0 -> 2 -> 3, fetches 1, 3 and 4; 4 is deeper than 1.
fn example(dtype_of_4: &str) -> (Dag, Vec<NodeId>) {
    let sum = |name| node(name, Some(("float32", 4)));
    let nodes = vec![
        node("4", Some((dtype_of_4, 4))),
        node("x", None),
        node("y", None),
        node("z", None),
        sum("0"),
        sum("1"),
        sum("2"),
        sum("3"),
        node("not fetched", Some(("float32", 4))),
    ];
    let dag = Dag::new(nodes, &edges(&[(4, 6), (6, 7), (1, 2), (2, 3), (3, 0), (7, 8)])).unwrap();
    let fetches = ["1", "3", "4"].map(|name| dag.find(name).unwrap());
    (dag, fetches.to_vec())
}

#[test]
fn the_published_example() {
    let (dag, fetches) = example("float32");
    let found = plan(&dag, &fetches, 64_000_000).unwrap();
    assert_eq!(names(&dag, &found), [vec!["0", "1"], vec!["2"], vec!["3", "4"]]);
    // The names are the published ids: 4 has a larger id than 1 because it is deeper, although it is listed before it.
    let by_id = found.tensors.iter().map(|tensor| dag.nodes()[tensor.node.0 as usize].name.as_str());
    assert_eq!(by_id.collect::<Vec<_>>(), ["0", "1", "2", "3", "4"]);
    let depths: Vec<u32> = found.tensors.iter().map(|tensor| tensor.depth).collect();
    assert_eq!(depths, [0, 0, 1, 2, 3]);
}

#[test]
fn dtypes_do_not_mix_and_thresholds_hold() {
    let (dag, fetches) = example("float16");
    let buckets = |threshold| names(&dag, &plan(&dag, &fetches, threshold).unwrap());
    assert_eq!(buckets(64), [vec!["0", "1"], vec!["2"], vec!["3"], vec!["4"]]);
    assert_eq!(buckets(8), buckets(64));
    assert_eq!(buckets(7), [vec!["0"], vec!["1"], vec!["2"], vec!["3"], vec!["4"]]);
    assert_eq!(buckets(0), buckets(7));
}

/// a (float32) is needed by b (float16), which is needed by c (float32): c may not join a's bucket, though it is open
/// and c does not directly need a; and d, of b's dtype and concurrent with it, may join b's.
#[test]
fn buckets_of_two_dtypes_do_not_wait_for_each_other() {
    let nodes = vec![
        node("a", Some(("float32", 1))),
        node("b", Some(("float16", 1))),
        node("c", Some(("float32", 1))),
        node("x", None),
        node("d", Some(("float16", 1))),
    ];
    let dag = Dag::new(nodes, &edges(&[(0, 1), (1, 2), (3, 4)])).unwrap();
    let found = plan(&dag, &[NodeId(2), NodeId(4)], 64).unwrap();
    assert_eq!(names(&dag, &found), [vec!["a"], vec!["b", "d"], vec!["c"]]);
}

#[test]
fn sizes_do_not_overflow() {
    let nodes = ["a", "b"].map(|name| node(name, Some(("float32", u64::MAX)))).to_vec();
    let dag = Dag::new(nodes, &[]).unwrap();
    let found = plan(&dag, &[NodeId(0), NodeId(1)], u64::MAX).unwrap();
    assert_eq!(names(&dag, &found), [["a"], ["b"]]);
}

#[test]
fn what_is_no_plan() {
    let nodes = ["a", "b", "c", "d"].map(|name| node(name, None)).to_vec();
    let dag = Dag::new(nodes, &edges(&[(0, 1), (1, 2), (2, 1), (3, 3)])).unwrap();
    let error = |fetches: &[NodeId]| plan(&dag, fetches, 0).unwrap_err().to_string();
    assert_eq!(error(&[NodeId(2)]), "the graph has a cycle: 'c' -> 'b' -> 'c'");
    assert!(error(&[NodeId(3)]).contains("cycle: 'd' -> 'd'"));
    assert_eq!(error(&[NodeId(4)]), "fetch 4 is not a node: the graph has 4 nodes");
    assert!(error(&[]).starts_with("no fetch is given"));
    // A cycle that no fetch needs does not matter.
    assert_eq!(plan(&dag, &[NodeId(0)], 0).unwrap().order, [NodeId(0)]);
}

#[test]
fn lists_that_are_no_order() {
    let (dag, fetches) = example("float32");
    let error = plan_as_listed(&dag, &fetches, 64).unwrap_err().to_string();
    assert_eq!(error, "'4' comes before 'z', which it needs");
    let fetches = [dag.find("1").unwrap(), dag.find("3").unwrap()];
    assert_eq!(names(&dag, &plan_as_listed(&dag, &fetches, 64).unwrap()), [vec!["0", "1"], vec!["2"], vec!["3"]]);
}

#[test]
fn a_chain_of_a_million_nodes_does_not_overflow_the_stack() {
    let count = 1_000_000;
    let nodes = (0..count).map(|at: u32| node(&at.to_string(), None)).collect();
    let pairs: Vec<(u32, u32)> = (1..count).map(|at| (at - 1, at)).collect();
    let found = plan(&Dag::new(nodes, &edges(&pairs)).unwrap(), &[NodeId(count - 1)], 0).unwrap();
    assert_eq!(found.order.len(), count as usize);
}

/// Ranks whose nodes complete in any order: a bucket is issued when all its members are ready and the previous one has
/// been issued, and completes when all ranks have issued it. True if all ranks finish.
fn every_rank_finishes(case: &Case, plan: &Plan, ranks: usize, seed: u64) -> bool {
    let mut random = seed | 1;
    let mut below = |count: usize| {
        // xorshift64 (Marsaglia 2003): any order will do, but it must be the same in every run.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % count as u64) as usize
    };
    let bucket_of: BTreeMap<NodeId, usize> = plan.tensors.iter().map(|t| (t.node, t.bucket)).collect();
    let mut done = vec![vec![false; case.dag.nodes().len()]; ranks];
    let mut ready = vec![vec![0; plan.buckets.len()]; ranks];
    let mut submitted = done.clone();
    let mut issued = vec![0; ranks];
    loop {
        let able: Vec<(usize, NodeId)> = (0..ranks)
            .flat_map(|rank| plan.order.iter().map(move |&node| (rank, node)))
            .filter(|&(rank, node)| !submitted[rank][node.0 as usize])
            .filter(|&(rank, node)| case.dag.parents(node).iter().all(|parent| done[rank][parent.0 as usize]))
            .collect();
        if able.is_empty() {
            return done.iter().all(|done| plan.order.iter().all(|node| done[node.0 as usize]));
        }
        let (rank, node) = able[below(able.len())];
        submitted[rank][node.0 as usize] = true;
        let Some(&bucket) = bucket_of.get(&node) else {
            done[rank][node.0 as usize] = true;
            continue;
        };
        ready[rank][bucket] += 1;
        while plan.buckets.get(issued[rank]).is_some_and(|next| next.tensors.len() == ready[rank][issued[rank]]) {
            issued[rank] += 1;
        }
        let everywhere = issued.iter().copied().min().unwrap_or(0);
        for tensor in plan.tensors.iter().filter(|tensor| tensor.bucket < everywhere) {
            done.iter_mut().for_each(|done| done[tensor.node.0 as usize] = true);
        }
    }
}

/// Properties of every plan, however its ids were assigned.
fn sound(case: &Case, found: &Plan) -> Result<(), TestCaseError> {
    let needs = ancestors(case);
    let needed =
        |node: usize| case.fetches.iter().any(|fetch| fetch.0 as usize == node || needs[fetch.0 as usize][node]);

    // Exactly the nodes that the fetches need, each once, parents before children.
    let place: BTreeMap<usize, usize> =
        found.order.iter().enumerate().map(|(at, node)| (node.0 as usize, at)).collect();
    prop_assert_eq!(place.len(), found.order.len());
    for node in 0..case.dag.nodes().len() {
        prop_assert_eq!(place.contains_key(&node), needed(node));
    }
    for (parent, child) in &case.pairs {
        if let Some(child) = place.get(&(*child as usize)) {
            prop_assert!(place[&(*parent as usize)] < *child);
        }
    }

    // Every needed all-reduce has one id and one bucket; ids follow the order.
    let planned: Vec<NodeId> = found.tensors.iter().map(|tensor| tensor.node).collect();
    let wanted = |node: &&NodeId| case.dag.nodes()[node.0 as usize].all_reduce.is_some();
    prop_assert_eq!(&planned, &found.order.iter().filter(wanted).copied().collect::<Vec<_>>());
    let mut members: Vec<usize> = found.buckets.iter().flat_map(|bucket| bucket.tensors.clone()).collect();
    members.sort_unstable();
    prop_assert_eq!(members, (0..planned.len()).collect::<Vec<_>>());

    for (number, bucket) in found.buckets.iter().enumerate() {
        let operation = |&id: &usize| case.dag.nodes()[planned[id].0 as usize].all_reduce.clone().unwrap();
        prop_assert!(bucket.tensors.is_sorted());
        prop_assert!(bucket.tensors.iter().all(|id| found.tensors[*id].bucket == number));
        prop_assert!(bucket.tensors.iter().all(|id| operation(id).dtype == bucket.dtype));
        prop_assert_eq!(bucket.bytes, bucket.tensors.iter().map(|id| operation(id).bytes).sum::<u64>());
        prop_assert!(bucket.bytes <= case.threshold || bucket.tensors.len() == 1);
        // Members need only earlier buckets, neither this one nor a later one.
        for member in &bucket.tensors {
            for other in &found.tensors {
                let depends = needs[planned[*member].0 as usize][other.node.0 as usize];
                prop_assert!(!depends || other.bucket < number);
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_plan_is_sound(case in cases()) {
        let found = plan(&case.dag, &case.fetches, case.threshold).unwrap();
        sound(&case, &found)?;
        prop_assert_eq!(&plan(&case.dag, &case.fetches, case.threshold).unwrap(), &found);
    }

    #[test]
    fn no_order_of_arrival_is_a_deadlock(case in cases(), ranks in 1usize..4, seed in any::<u64>()) {
        let found = plan(&case.dag, &case.fetches, case.threshold).unwrap();
        prop_assert!(every_rank_finishes(&case, &found, ranks, seed));
    }

    #[test]
    fn plans_as_listed_are_as_sound(case in cases(), ranks in 1usize..4, seed in any::<u64>()) {
        let case = case.listed_in_order();
        let found = plan_as_listed(&case.dag, &case.fetches, case.threshold).unwrap();
        prop_assert!(found.order.is_sorted());
        sound(&case, &found)?;
        prop_assert!(every_rank_finishes(&case, &found, ranks, seed));
    }

    /// The order of fetches and of edges does not matter.
    #[test]
    fn only_the_graph_counts(case in cases()) {
        let found = plan(&case.dag, &case.fetches, case.threshold).unwrap();
        let mut turned = case.clone();
        turned.fetches.reverse();
        turned.pairs.reverse();
        turned.pairs.extend(case.pairs.iter().take(3));
        let dag = Dag::new(case.dag.nodes().to_vec(), &edges(&turned.pairs)).unwrap();
        prop_assert_eq!(plan(&dag, &turned.fetches, case.threshold).unwrap(), found);
    }

    /// A cycle among what is fetched is found, and the message shows a real one.
    #[test]
    fn cycles_are_found(case in cases(), from in any::<prop::sample::Index>()) {
        let needs = ancestors(&case);
        let fetch = case.fetches[0];
        let count = case.dag.nodes().len() as u32;
        let above: Vec<u32> =
            (0..count).filter(|&node| node == fetch.0 || needs[fetch.0 as usize][node as usize]).collect();
        let mut pairs = case.pairs.clone();
        pairs.push((fetch.0, above[from.index(above.len())]));
        let dag = Dag::new(case.dag.nodes().to_vec(), &edges(&pairs)).unwrap();
        let Err(paceline_coordinator::plan::PlanError::Cycle(names)) = plan(&dag, &[fetch], 0) else {
            return Err(TestCaseError::fail("no cycle is found"));
        };
        let found: Vec<u32> = names.iter().map(|name| dag.find(name).unwrap().0).collect();
        for (at, &parent) in found.iter().enumerate() {
            prop_assert!(pairs.contains(&(parent, found[(at + 1) % found.len()])));
        }
    }
}
