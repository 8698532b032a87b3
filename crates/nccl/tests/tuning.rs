//! NCCL's own model, by hand and by its laws.
use paceline_nccl::{Algorithm, Group, Kind, Machine, Protocol, Release};
use proptest::prelude::*;

const RING_LL: (Algorithm, Protocol) = (Algorithm::Ring, Protocol::Ll);
const TREE_LL: (Algorithm, Protocol) = (Algorithm::Tree, Protocol::Ll);

/// The output of `NCCL_DEBUG_SUBSYS=TUNING` follows from the same table; here it is computed by hand.
#[test]
fn latencies_of_2_8_are_those_of_its_table() {
    let us = |ranks, per_node, choice| {
        let machine = Machine::of_rates(per_node, 1e18, 1e18);
        Release::V2_8.latency_s(Kind::AllReduce, Group::new(ranks, per_node), &machine, choice, 1.0) * 1e6
    };
    // 4 nodes of 8: chains of 7 steps at 0.52 us times 1.8, a tree of depth 2 at 5 us, both ways.
    assert!((us(32, 8, TREE_LL) - (4.4 + 14.0 * 0.52 * 1.8 + 4.0 * 5.0)).abs() < 1e-6);
    // 62 steps, 6 of them between nodes.
    assert!((us(32, 8, RING_LL) - (3.6 + 56.0 * 0.47 * 1.8 + 6.0 * 2.7)).abs() < 1e-6);
    // One node: no factor.
    assert!((us(8, 8, RING_LL) - (3.6 + 14.0 * 0.47)).abs() < 1e-6);
}

#[test]
fn release_2_8_has_rings_and_trees_only() {
    let machine = Machine::of_rates(8, 450e9, 50e9);
    assert!(machine.has_nvls());
    let old = Release::V2_8.available(Kind::AllReduce, Group::new(8, 8), &machine);
    assert_eq!(old.len(), 4, "{old:?}");
    let new = Release::CURRENT.available(Kind::AllReduce, Group::new(8, 8), &machine);
    assert!(old.iter().all(|it| new.contains(it)) && new.contains(&(Algorithm::Nvls, Protocol::Simple)));
}

proptest! {
    #[test]
    fn estimates_are_in_order_and_follow_from_their_parts(
        (ranks, per_node, log) in (2..3000u32, 1..9u32, 0..42u32),
        (inside, between) in (1e9..1e12, 1e8..1e12),
        release in prop::sample::select(vec![Release::V2_8, Release::V2_30]),
        kind in prop::sample::select(Kind::ALL.to_vec()),
    ) {
        let machine = Machine::of_rates(per_node, inside, between);
        let estimates = release.estimates(kind, 1 << log, Group::new(ranks, per_node), &machine);
        prop_assert!(!estimates.is_empty());
        prop_assert!(estimates.is_sorted_by(|a, b| a.seconds <= b.seconds));
        for it in &estimates {
            prop_assert!(it.bandwidth > 0.0 && it.latency_s >= 0.0, "{it:?}");
            prop_assert_eq!(it.seconds, it.latency_s + f64::from(log).exp2() / it.bandwidth);
        }
    }
}
