//! Networks of several switches, against closed forms.
use paceline_model::cluster::{Degraded, Fabric, Racks, Routing, Shape};
use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_schedule::{ChunkBytes, Knob, find, synchronous};
use paceline_simulator::{Network, Options, Outcome, left_for_rings, simulate};
use proptest::prelude::*;

const US: u64 = 1_000_000;

fn cluster(shape: Shape, routing: Routing) -> Cluster {
    let mut cluster = Cluster {
        bandwidth: Rate(10e9),
        fabric: Some(Fabric { shape, routing, hop_latency: Time::ZERO, link_bandwidth: None }),
        ..Cluster::default()
    };
    (cluster.switch.multicast, cluster.switch.aggregation) = (false, false);
    cluster
}

fn leaf_spine(nodes_per_leaf: u32, spines: u32, oversubscription: f64) -> Shape {
    Shape::LeafSpine { nodes_per_leaf, spines, oversubscription }
}

fn run(cluster: &Cluster, strategy: &str, workers: u32, bytes: u64, network: Network) -> Outcome {
    let options = Options { network, detail: true, ..Options::new(strategy, workers) };
    simulate(&Trace::all_reduce(bytes, 1).unwrap(), cluster, &options).unwrap()
}

fn refused(cluster: &Cluster, workers: u32) -> String {
    simulate(&Trace::all_reduce(4096, 1).unwrap(), cluster, &Options::new("ring", workers)).unwrap_err().to_string()
}

fn degraded(mut cluster: Cluster, links: &[(&str, f64)]) -> Cluster {
    cluster.degraded = links.iter().map(|&(link, factor)| Degraded { link: link.into(), factor }).collect();
    cluster
}

const BOTH: [Network; 2] = [Network::Fifo, Network::Fluid];

#[track_caller]
fn near(found: f64, expected: f64, error: f64) {
    assert!((found / expected - 1.0).abs() < error, "{found} {expected}");
}

#[test]
fn on_one_switch_it_is_the_flat_network() {
    let flat = Cluster { bandwidth: Rate(10e9), ..Cluster::default() };
    for (strategy, network) in [("ring", BOTH[0]), ("halving-doubling", BOTH[0]), ("ring", BOTH[1]), ("tree", BOTH[1])]
    {
        let one = run(&cluster(leaf_spine(8, 2, 4.0), Routing::Ecmp), strategy, 8, 800_000, network);
        assert_eq!(one.iteration_s, run(&flat, strategy, 8, 800_000, network).iteration_s);
    }
}

/// Two workers: 2(S/2B + a), where a grows with the switches (in a torus, links) between them.
#[test]
fn latency_grows_with_hops() {
    let dragonfly = Shape::Dragonfly { nodes_per_router: 1, routers_per_group: 1, global_links: 2, groups: 3 };
    for (shape, hops) in [
        (leaf_spine(2, 1, 1.0), 1.0),
        (leaf_spine(1, 1, 1.0), 3.0),
        (Shape::FatTree { radix: 2, oversubscription: 2.0 }, 1.0),
        (Shape::FatTree { radix: 2, oversubscription: 1.0 }, 5.0),
        (dragonfly, 2.0),
        (Shape::Torus { dimensions: vec![4, 4] }, 1.0),
    ] {
        let mut cluster = cluster(shape, Routing::Ecmp);
        cluster.latency = Time(3 * US);
        cluster.fabric.as_mut().unwrap().hop_latency = Time(US / 2);
        for network in BOTH {
            let time = run(&cluster, "ring", 2, 8_000, network).iteration_s;
            near(time, 2.0 * (4_000.0 * 8.0 / 10e9 + 3e-6 + hops * 0.5e-6), 1e-6);
        }
    }
}

/// In the last step of recursive doubling, everything crosses the spine: log2(n) S/B inside a leaf of n nodes, and
/// oversubscription S/B between two.
#[test]
fn what_crosses_the_spine_is_limited_by_oversubscription() {
    for oversubscription in [1.0, 2.0, 4.0, 8.0] {
        let cluster = cluster(leaf_spine(8, 1, oversubscription), Routing::Ecmp);
        let expected = (3.0 + oversubscription) * 4e6 * 8.0 / 10e9;
        near(run(&cluster, "recursive-doubling", 16, 4_000_000, Network::Fluid).iteration_s, expected, 1e-6);
        let fifo = run(&cluster, "recursive-doubling", 16, 4_000_000, Network::Fifo);
        near(fifo.iteration_s, expected, if oversubscription == 1.0 { 0.25 } else { 0.01 });
        if oversubscription > 4.0 {
            assert_eq!(fifo.critical_path[0].part, "leaf-spine link");
        }
    }
}

/// A ring crosses each uplink once, so only uplinks slower than a NIC slow it down: 2(W-1)S/W over their rate.
#[test]
fn a_ring_feels_only_uplinks_slower_than_a_card() {
    for (oversubscription, slower) in [(4.0, 1.0), (8.0, 2.0)] {
        let cluster = cluster(leaf_spine(4, 1, oversubscription), Routing::Ecmp);
        for network in BOTH {
            let time = run(&cluster, "ring", 16, 16_000_000, network).iteration_s;
            near(time, slower * 2.0 * 15.0 / 16.0 * 16e6 * 8.0 / 10e9, 0.04);
        }
    }
}

/// With as many spines as flows, adaptive routing finds one for each, and hashes collide.
#[test]
fn adaptive_routing_avoids_the_collisions_of_hashes() {
    let time = |routing, network| {
        let cluster = cluster(leaf_spine(8, 8, 1.0), routing);
        run(&cluster, "recursive-doubling", 16, 4_000_000, network).iteration_s / (4e6 * 8.0 / 10e9)
    };
    near(time(Routing::Adaptive, Network::Fluid), 4.0, 1e-6);
    near(time(Routing::Adaptive, Network::Fifo), 4.0, 1e-3);
    for network in BOTH {
        let collisions = time(Routing::Ecmp, network) - 3.0;
        assert!((1.99..8.01).contains(&collisions), "{collisions}");
    }
}

/// Every GPU has a NIC, so a ring per rail uses all of them: `gpus` times the rate of one.
#[test]
fn rails_carry_a_ring_each() {
    let rails = |gpus| Cluster {
        gpus_per_node: gpus,
        intra_bandwidth: Rate(4e12),
        ..cluster(Shape::Rails { nodes_per_leaf: 4, spines: 1, oversubscription: 1.0 }, Routing::Ecmp)
    };
    for network in BOTH {
        let time = run(&rails(4), "hierarchical", 16, 64_000_000, network).iteration_s;
        // Rings of 4 nodes, each over a quarter of the data.
        near(time, 2.0 * 3.0 / 4.0 * 16e6 * 8.0 / 10e9, 0.02);
    }
    // Ranks with the same number share a leaf; the spine is not used.
    let outcome = run(&rails(4), "hierarchical", 16, 64_000_000, Network::Fifo);
    assert!(outcome.busy.unwrap().iter().all(|link| !link.name.contains("spine")));
}

#[test]
fn what_has_failed_is_avoided() {
    for (shape, failed, link) in [
        (leaf_spine(2, 2, 1.0), "spine0", "spine0"),
        (leaf_spine(2, 2, 1.0), "leaf1-spine1", "leaf1-spine1"),
        (Shape::FatTree { radix: 4, oversubscription: 1.0 }, "agg0-core0", "agg0-core0"),
        (Shape::Torus { dimensions: vec![4, 4] }, "router1-router0", "router0-router1"),
        (
            Shape::Dragonfly { nodes_per_router: 2, routers_per_group: 2, global_links: 1, groups: 3 },
            "router0 - router1",
            "router0-router1",
        ),
    ] {
        for (routing, network) in [(Routing::Ecmp, BOTH[0]), (Routing::Adaptive, BOTH[1])] {
            let whole = cluster(shape.clone(), routing);
            let broken = degraded(whole.clone(), &[(failed, 0.0)]);
            let is = |name: &str| name == link || name.split('-').any(|switch| switch == link);
            let uses = |outcome: &Outcome| outcome.busy.as_ref().unwrap().iter().any(|one| is(&one.name));
            let (before, after) = (run(&whole, "ring", 12, 48_000, network), run(&broken, "ring", 12, 48_000, network));
            assert!(!uses(&after), "{failed}");
            assert!(uses(&before) || routing == Routing::Ecmp || failed.starts_with("leaf"), "{failed}");
            assert!(after.iteration_s >= before.iteration_s * 0.999);
        }
    }
}

#[test]
fn slow_links_slow_down() {
    for network in BOTH {
        let flat = Cluster { bandwidth: Rate(10e9), ..Cluster::default() };
        let time = |cluster: &Cluster| run(cluster, "ring", 8, 8_000_000, network).iteration_s;
        near(time(&degraded(flat.clone(), &[("node3", 0.5)])) / time(&flat), 2.0, 0.1);
        let spine = cluster(leaf_spine(4, 1, 4.0), Routing::Ecmp);
        near(time(&degraded(spine.clone(), &[("leaf0-spine0", 0.5)])) / time(&spine), 2.0, 0.1);
    }
}

#[test]
fn mistakes_are_named() {
    let spine = cluster(leaf_spine(4, 2, 1.0), Routing::Ecmp);
    let with = |links: &[(&str, f64)]| refused(&degraded(spine.clone(), links), 8);
    assert!(with(&[("leaf1-spine0", 0.0), ("leaf1-spine1", 0.0)]).contains("worker 4 is cut off from worker 0"));
    assert!(with(&[("node3", 0.0)]).contains("node3 is cut off without its only link"));
    let unknown = with(&[("leaf2-spine0", 0.5)]);
    assert!(unknown.contains("no link 'leaf2-spine0' with 8 workers"), "{unknown}");
    let torus = cluster(Shape::Torus { dimensions: vec![2, 3] }, Routing::Ecmp);
    assert!(refused(&torus, 7).contains("7 nodes do not fit into the torus"), "{}", refused(&torus, 7));
}

/// A fabric whose switches can do all that is modeled.
fn able(shape: Shape) -> Cluster {
    let mut cluster = cluster(shape, Routing::Ecmp);
    let shape = &cluster.fabric.as_ref().unwrap().shape;
    (cluster.switch.multicast, cluster.switch.aggregation) = (shape.can_multicast(), shape.can_aggregate());
    cluster
}

/// Sums take (S + (2D-1)c)/B + a over D levels in pieces of c; a grows with the switches up and down, of which the last one
/// is passed once.
#[test]
fn sums_go_up_a_tree_of_the_fabric() {
    const CHUNK: f64 = 10_000.0;
    for (shape, workers, levels) in [
        (leaf_spine(8, 2, 1.0), 8, 1.0),
        (leaf_spine(4, 4, 1.0), 12, 2.0),
        (leaf_spine(1, 1, 1.0), 6, 2.0),
        (Shape::FatTree { radix: 4, oversubscription: 1.0 }, 2, 1.0),
        (Shape::FatTree { radix: 4, oversubscription: 1.0 }, 4, 2.0),
        (Shape::FatTree { radix: 4, oversubscription: 1.0 }, 16, 3.0),
        (Shape::FatTree { radix: 6, oversubscription: 2.0 }, 50, 3.0),
    ] {
        let mut cluster = able(shape);
        cluster.latency = Time(3 * US);
        cluster.fabric.as_mut().unwrap().hop_latency = Time(US / 2);
        for network in BOTH {
            let chunk = Some(ChunkBytes::Size(CHUNK as u64));
            let options = Options { network, chunk, ..Options::new("sharp", workers) };
            let time = simulate(&Trace::all_reduce(4_000_000, 1).unwrap(), &cluster, &options).unwrap().iteration_s;
            let moved = (4e6 + (2.0 * levels - 1.0) * CHUNK) * 8.0 / 10e9;
            near(time, moved + 3e-6 + (2.0 * levels - 1.0) * 0.5e-6, 1e-6);
        }
    }
}

/// Of the links between two levels, a tree uses one: where it is slower than a NIC, sums are, too.
#[test]
fn a_tree_has_one_link_to_each_switch_above() {
    let cluster = able(leaf_spine(4, 8, 1.0));
    for network in BOTH {
        let found = run(&cluster, "sharp", 8, 40_000_000, network);
        near(found.iteration_s, 2.0 * 4e7 * 8.0 / 10e9, 0.03);
        let used = |from: &str| {
            found.busy.as_ref().unwrap().iter().filter(|one| one.name.starts_with(from) && one.busy_s > 0.0).count()
        };
        assert_eq!((used("leaf0-spine"), used("leaf1-spine"), used("spine0-leaf"), used("spine1-leaf")), (1, 1, 2, 0));
    }
}

/// Racks with as many uplinks as nodes, and leaves with as many spines, carry a multicast alike.
#[test]
fn multicasts_go_down_a_tree_of_the_fabric() {
    let in_racks = Cluster {
        racks: Some(Racks { nodes_per_rack: 4, oversubscription: 1.0 }),
        fabric: None,
        ..able(leaf_spine(4, 4, 1.0))
    };
    for strategy in ["ps-multicast", "ring-multicast"] {
        for network in BOTH {
            let time = |cluster: &Cluster| run(cluster, strategy, 12, 1_000_000, network).iteration_s;
            let (leaves, racks) = (time(&able(leaf_spine(4, 4, 1.0))), time(&in_racks));
            near(leaves, racks, if network == Network::Fluid { 0.35 } else { 1e-6 });
            let mut slow = able(leaf_spine(4, 4, 1.0));
            slow.fabric.as_mut().unwrap().hop_latency = Time(500 * US);
            let flat = run(&slow, strategy, 3, 1_000_000, network).iteration_s;
            assert!(time(&slow) >= leaves + 3.0 * 500e-6 && flat < time(&slow));
        }
    }
}

#[test]
fn a_tree_avoids_what_is_removed() {
    let whole = able(leaf_spine(2, 2, 1.0));
    let time = |cluster: &Cluster| run(cluster, "sharp", 4, 4_000_000, Network::Fifo);
    let other = time(&degraded(whole.clone(), &[("leaf1-spine0", 0.0)]));
    assert_eq!(other.iteration_s, time(&whole).iteration_s);
    assert!(other.busy.unwrap().iter().all(|one| one.name != "leaf0-spine0" || one.busy_s == 0.0));
    // A slow link is avoided as well, but where all are.
    let slow = time(&degraded(whole.clone(), &[("spine0", 0.1)]));
    assert_eq!(slow.iteration_s, time(&whole).iteration_s);
    let all = time(&degraded(whole.clone(), &[("spine0", 0.1), ("spine1", 0.1)]));
    assert!(all.iteration_s > 10.0 * 4e6 * 8.0 / 10e9);
    // Messages still have a way over a third leaf; no tree has.
    let apart = degraded(whole, &[("leaf0-spine0", 0.0), ("leaf1-spine1", 0.0)]);
    assert!(refused(&apart, 6).contains("no switch is left that reaches all others, for multicasts and aggregation"));
    let mut plain = apart;
    (plain.switch.multicast, plain.switch.aggregation) = (false, false);
    assert!(run(&plain, "ring", 6, 4_000_000, Network::Fifo).iteration_s > 0.0);
}

#[test]
fn servers_that_add_up_in_one_switch_have_none_in_a_fabric() {
    let wanted = Options::new("ps-aggregation", 4);
    let trace = Trace::all_reduce(4096, 1).unwrap();
    let error = simulate(&trace, &able(leaf_spine(2, 2, 1.0)), &wanted).unwrap_err().to_string();
    assert!(error.contains("ps-aggregation adds up in one switch, and those of cluster 'flat' form a fabric"));
}

prop_compose! {
    fn shapes()(
        kind in 0..5,
        (a, b, c) in (1u32..4, 1u32..4, 1u32..4),
        oversubscription in prop::sample::select(vec![1.0, 2.0, 3.0]),
    ) -> Shape {
        match kind {
            0 => leaf_spine(a, b, oversubscription),
            1 => Shape::Rails { nodes_per_leaf: a, spines: b, oversubscription },
            2 => Shape::FatTree { radix: 4, oversubscription },
            3 => Shape::Dragonfly { nodes_per_router: a, routers_per_group: 1 + b, global_links: c, groups: (1 + b) * c + 1 },
            _ => Shape::Torus { dimensions: vec![2 + a, 2 + b, c] },
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every fabric carries every strategy: it ends, it is deterministic, and it is not faster than one switch.
    #[test]
    fn every_fabric_carries_every_strategy(
        shape in shapes(),
        adaptive in any::<bool>(),
        fluid in any::<bool>(),
        strategy in prop::sample::select(
            synchronous()
                .into_iter()
                .filter(|entry| !(entry.uses(Knob::Servers) && entry.uses(Knob::Aggregation)))
                .map(|entry| entry.name)
                .collect::<Vec<_>>()
        ),
        workers in 1u32..12,
        servers in 1u32..3,
        gpus_per_node in 1u32..4,
        seed in any::<u64>(),
        bytes in 1u64..50_000,
    ) {
        let mut cluster = cluster(shape, if adaptive { Routing::Adaptive } else { Routing::Ecmp });
        cluster.gpus_per_node = gpus_per_node;
        cluster.intra_bandwidth = Rate(40e9);
        let fabric = cluster.fabric.as_mut().unwrap();
        fabric.hop_latency = Time(US / 2);
        (cluster.switch.multicast, cluster.switch.aggregation) = (fabric.shape.can_multicast(), fabric.shape.can_aggregate());
        let entry = find(strategy).unwrap();
        prop_assume!(cluster.switch.multicast || !entry.uses(Knob::Multicast));
        prop_assume!(cluster.switch.aggregation || !entry.uses(Knob::Aggregation));
        let network = if fluid { Network::Fluid } else { Network::Fifo };
        let options = Options { network, servers, seed, ..Options::new(strategy, workers) };
        let nodes = u64::from(workers.div_ceil(gpus_per_node) + if entry.uses(Knob::Servers) { servers } else { 0 });
        prop_assume!(cluster.fabric.as_ref().unwrap().capacity().is_none_or(|most| nodes <= most));
        let trace = Trace::all_reduce(4 * bytes, 1).unwrap();
        let outcome = simulate(&trace, &cluster, &options).unwrap();
        prop_assert_eq!(&simulate(&trace, &cluster, &options).unwrap(), &outcome);
        let path: f64 = outcome.critical_path.iter().map(|part| part.seconds).sum();
        prop_assert!((path - outcome.iteration_s).abs() <= 1e-3 * outcome.iteration_s + 1e-9);
        // With one NIC a node, one switch with all links at the NIC's rate is at least as fast for a ring.
        if strategy == "ring" && !matches!(cluster.fabric.as_ref().unwrap().shape, Shape::Rails { .. }) {
            let flat = Cluster { fabric: None, ..cluster.clone() };
            let least = simulate(&trace, &flat, &options).unwrap().iteration_s;
            prop_assert!(outcome.iteration_s >= least * (1.0 - 1e-6), "{} {least}", outcome.iteration_s);
        }
    }
}

/// Of a rail's leaf, one NIC sends to the next unit: all links together carry many times as much.
#[test]
fn rings_on_rails_need_little_of_the_links_between_switches() {
    let rails = |routing| Cluster {
        gpus_per_node: 4,
        ..cluster(Shape::Rails { nodes_per_leaf: 4, spines: 4, oversubscription: 1.0 }, routing)
    };
    let left = |cluster: &Cluster, size, stride| left_for_rings(cluster, 32, (size, stride), 0).unwrap();
    let adaptive = rails(Routing::Adaptive);
    assert_eq!(left(&adaptive, 32, 1), 1.0);
    assert_eq!(left(&degraded(adaptive.clone(), &[("leaf0-spine1", 0.0)]), 32, 1), 1.0);
    // An eighth of four links is half of a NIC.
    let all = degraded(adaptive.clone(), &[("leaf0", 0.125)]);
    assert_eq!(left(&all, 32, 1), 0.5);
    assert_eq!(left(&all, 8, 4), 0.5);
    // Groups of a unit send nothing beyond their leaves.
    assert_eq!(left(&all, 16, 1), 1.0);
    assert_eq!(left(&degraded(adaptive, &[("node3", 0.1)]), 32, 1), 1.0);
    let hashed = rails(Routing::Ecmp);
    assert_eq!(left(&hashed, 32, 1), 1.0);
    assert!(left(&degraded(hashed, &[("leaf0", 0.5)]), 32, 1) <= 0.5);
}
