//! Several jobs on one network, against what is known without simulating.
use std::sync::Arc;

use paceline_model::cluster::{Fabric, Racks, Routing, Shape};
use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_schedule::{ChunkBytes, Knob, synchronous};
use paceline_simulator::jobs::{JobsOutcome, Length, PlacedJobSpec, server_nodes, simulate_jobs};
use paceline_simulator::{Network, Options, simulate};

const BOTH: [Network; 2] = [Network::Fifo, Network::Fluid];

fn cluster() -> Cluster {
    Cluster { bandwidth: Rate(10e9), latency: Time(3_000_000), ..Cluster::default() }
}

/// A job that exchanges `bytes` all the time.
fn job(name: &str, strategy: &str, bytes: u64, nodes: &[u32]) -> PlacedJobSpec {
    PlacedJobSpec {
        name: name.into(),
        trace: Arc::new(Trace::all_reduce(bytes, 2).unwrap()),
        options: Options::new(strategy, nodes.len() as u32),
        ranks_per_node: 1,
        gpus_per_rank: 1,
        nodes: nodes.to_vec(),
        server_nodes: Vec::new(),
        start: Time::ZERO,
    }
}

fn run(cluster: &Cluster, jobs: &[PlacedJobSpec], network: Network) -> JobsOutcome {
    simulate_jobs(cluster, 32, jobs, network, &Length::Iterations(6)).unwrap()
}

/// Seconds per measured iteration.
fn mean(outcome: &JobsOutcome, job: usize) -> f64 {
    let of = &outcome.jobs[job];
    let (first, last) = of.measured;
    (of.marks_ps[last] - of.marks_ps[first]) as f64 * 1e-12 / (last - first) as f64
}

/// One job on the first nodes takes as long as without placement, under every strategy.
#[test]
fn a_job_alone_is_the_simulation_of_one_job() {
    for network in BOTH {
        for entry in synchronous() {
            let mut one = job("one", entry.name, 4_000_000, &[0, 1, 2, 3]);
            one.options.servers = 1;
            let needed = server_nodes(&cluster(), &one.options);
            one.server_nodes = (4..4 + needed).collect();
            let options = Options { network, iterations: Some(6), ..one.options.clone() };
            let expected = simulate(&one.trace, &cluster(), &options).unwrap().iteration_s;
            let found = mean(&run(&cluster(), &[one], network), 0);
            assert!((found / expected - 1.0).abs() < 1e-6, "{} {network:?}: {found} {expected}", entry.name);
        }
    }
}

/// Jobs on links of their own make the same marks as alone, to the picosecond.
#[test]
fn jobs_on_disjoint_links_do_not_affect_each_other() {
    let a = job("a", "ring", 6_000_000, &[0, 1, 2, 3]);
    let b = job("b", "sharp", 1_000_000, &[4, 5, 9]);
    let mut c = job("c", "ps", 2_000_000, &[6, 7]);
    c.server_nodes = vec![8];
    c.start = Time(700_000_000);
    for network in BOTH {
        let jobs = [a.clone(), b.clone(), c.clone()];
        let together = run(&cluster(), &jobs, network);
        for (number, one) in jobs.iter().enumerate() {
            let marks = &together.jobs[number].marks_ps;
            let length = Length::Marks(vec![marks.len()]);
            let alone = simulate_jobs(&cluster(), 32, std::slice::from_ref(one), network, &length).unwrap();
            assert_eq!(&alone.jobs[0].marks_ps, marks, "{} {network:?}", one.name);
        }
        assert!(together.links.iter().all(|link| link.jobs.len() == 1), "{:?}", together.links);
    }
}

/// Two equal jobs across one uplink: max-min fairness gives each half of it.
#[test]
fn two_equal_jobs_on_one_link_get_half_of_it() {
    let racks = Some(Racks { nodes_per_rack: 2, oversubscription: 2.0 });
    let cluster = Cluster { racks, latency: Time::ZERO, ..cluster() };
    let jobs = [job("a", "ring", 8_000_000, &[0, 2]), job("b", "ring", 8_000_000, &[1, 3])];
    let alone = mean(&run(&cluster, &jobs[..1], Network::Fluid), 0);
    let together = run(&cluster, &jobs, Network::Fluid);
    for number in 0..2 {
        let slowdown = mean(&together, number) / alone;
        assert!((slowdown - 2.0).abs() < 1e-6, "{slowdown}");
    }
    let shared: Vec<_> = together.links.iter().filter(|link| link.jobs.len() == 2).collect();
    assert_eq!(shared.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().len(), 4, "{shared:?}");
    assert!(shared.iter().all(|link| link.name.starts_with("rack") && link.busy > 0.99), "{shared:?}");
}

/// Sums of two jobs go up trees of their own, as long as there are as many spines.
#[test]
fn two_trees_share_a_spine_only_if_there_is_one() {
    for (spines, oversubscription, slower) in [(1, 2.0, 2.0), (2, 1.0, 1.0)] {
        let shape = Shape::LeafSpine { nodes_per_leaf: 2, spines, oversubscription };
        let fabric = Fabric { shape, routing: Routing::Ecmp, hop_latency: Time::ZERO, link_bandwidth: None };
        let cluster = Cluster { fabric: Some(fabric), latency: Time::ZERO, ..cluster() };
        let mut jobs = [job("a", "sharp", 8_000_000, &[0, 2, 4]), job("b", "sharp", 8_000_000, &[1, 3, 5])];
        jobs.iter_mut().for_each(|job| job.options.chunk = Some(ChunkBytes::Size(40_000)));
        for network in BOTH {
            let alone = mean(&run(&cluster, &jobs[..1], network), 0);
            let together = run(&cluster, &jobs, network);
            for number in 0..2 {
                let slowdown = mean(&together, number) / alone;
                assert!((slowdown / slower - 1.0).abs() < 0.03, "{spines} spines, {network:?}: {slowdown}");
            }
            let shared = together.links.iter().filter(|link| link.jobs.len() == 2);
            assert_eq!(shared.count(), if spines == 1 { 6 } else { 0 });
        }
    }
}

/// Routes are by hash: they are those that the job has alone.
#[test]
fn jobs_that_share_no_link_of_a_fabric_are_as_fast_as_alone() {
    let shape = Shape::LeafSpine { nodes_per_leaf: 2, spines: 3, oversubscription: 2.0 };
    let fabric = Fabric { shape, routing: Routing::Ecmp, hop_latency: Time::ZERO, link_bandwidth: None };
    let cluster = Cluster { fabric: Some(fabric), ..cluster() };
    let mut other = job("other", "ps", 3_000_000, &[6, 8, 10, 12]);
    (other.options.servers, other.server_nodes) = (2, vec![7, 9]);
    let jobs = [job("ring", "ring", 2_000_000, &[0, 1]), other];
    for network in BOTH {
        let together = run(&cluster, &jobs, network);
        for (number, one) in jobs.iter().enumerate() {
            let marks = &together.jobs[number].marks_ps;
            let length = Length::Marks(vec![marks.len()]);
            let alone = simulate_jobs(&cluster, 32, std::slice::from_ref(one), network, &length).unwrap();
            assert_eq!(&alone.jobs[0].marks_ps, marks, "{} {network:?}", one.name);
        }
    }
}

/// A job's tree is over the leaves, or the pods, in which it has nodes.
#[test]
fn the_tree_of_a_job_is_where_its_nodes_are() {
    let shape = Shape::FatTree { radix: 4, oversubscription: 1.0 };
    let fabric = Fabric { shape, routing: Routing::Ecmp, hop_latency: Time(1_000_000), link_bandwidth: None };
    let cluster = Cluster { fabric: Some(fabric), latency: Time::ZERO, ..cluster() };
    // Edges of two nodes, pods of two edges.
    for (nodes, switches) in [(&[4, 5][..], 1.0), (&[4, 6], 3.0), (&[0, 1, 12, 15], 5.0), (&[3, 9], 5.0)] {
        let mut one = job("one", "sharp", 4_000_000, nodes);
        one.options.chunk = Some(ChunkBytes::Size(4_000));
        for network in BOTH {
            let found = mean(&simulate_jobs(&cluster, 16, &[one.clone()], network, &Length::Iterations(3)).unwrap(), 0);
            let expected = (4e6 + switches * 4e3) * 8.0 / 10e9 + switches * 1e-6;
            assert!((found / expected - 1.0).abs() < 1e-6, "{nodes:?} {network:?}: {found} {expected}");
        }
    }
}

/// All strategies with several GPUs per node, in racks, two of them at once: everything ends and nobody is faster than
/// alone by more than the rounding of a pipeline.
#[test]
fn every_strategy_runs_beside_a_ring_in_racks() {
    let racks = Some(Racks { nodes_per_rack: 4, oversubscription: 2.0 });
    let cluster = Cluster { racks, gpus_per_node: 2, ..cluster() };
    for network in BOTH {
        for entry in synchronous() {
            let mut one = job("one", entry.name, 3_000_000, &[0, 1, 4, 6]);
            (one.ranks_per_node, one.options.workers) = (2, 7);
            if entry.uses(Knob::Servers) {
                one.options.servers = 2;
                one.server_nodes = vec![2, 9];
            }
            let mut other = job("other", "ring", 3_000_000, &[3, 5, 7, 8]);
            (other.ranks_per_node, other.options.workers) = (2, 8);
            let alone = mean(&run(&cluster, &[one.clone()], network), 0);
            let together = run(&cluster, &[one, other], network);
            let slowdown = mean(&together, 0) / alone;
            assert!((0.98..4.0).contains(&slowdown), "{} {network:?}: {slowdown}", entry.name);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_the_jobs_name() {
    let refused = |jobs: &[PlacedJobSpec]| {
        simulate_jobs(&cluster(), 8, jobs, Network::Fifo, &Length::Iterations(1)).unwrap_err().to_string()
    };
    let fits = job("a", "ring", 1000, &[0, 1]);
    assert!(refused(&[fits.clone(), job("b", "ring", 1000, &[1, 2])]).starts_with("b: nodes: node 1 has 1 GPUs"));
    assert!(refused(&[job("b", "ring", 1000, &[7, 8])]).starts_with("b: nodes: there is no node 8"));
    assert!(refused(&[job("b", "rign", 1000, &[1, 2])]).starts_with("b: strategy: unknown"));
    let mut few = fits;
    few.options.workers = 3;
    assert!(refused(&[few]).starts_with("a: nodes: 2 are given for workers that fill 3"));
}
