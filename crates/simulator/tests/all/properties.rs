//! Properties of every configuration: it ends, it is deterministic, and it is no faster than physics allows.
use paceline_model::cluster::{Jitter, Racks, ServerPlace, Switch};
use paceline_model::trace::{Dtype, Gradient, Layer, Tensor, WorkerTrace};
use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_schedule::{ChunkBytes, Distribution, Inside, Knob, Placement, find, synchronous};
use paceline_simulator::{Network, Options, Pull, simulate, simulate_with_timeline};
use proptest::prelude::*;

const US: u64 = 1_000_000;

/// A small model: layer i needs tensor i; gradients come in reverse order; one more tensor is only distributed.
pub(super) fn model(sizes: &[u64], layer_us: u64, spread: f64) -> Trace {
    let name = |i: usize| format!("t{i}");
    let mut tensors: Vec<Tensor> = sizes
        .iter()
        .enumerate()
        .map(|(i, &elements)| Tensor {
            name: name(i),
            bytes: 4 * elements,
            pull_bytes: 4 * elements,
            frozen_bytes: 0,
            shape: None,
        })
        .collect();
    tensors.push(Tensor { name: "moving average".into(), bytes: 0, pull_bytes: 400, frozen_bytes: 0, shape: None });
    let count = sizes.len() as u32;
    let forward = (0..count)
        .map(|i| Layer {
            name: name(i as usize),
            duration: Time(layer_us * US),
            tensors: vec![i],
            activation_bytes: None,
            backward_bytes: None,
        })
        .collect();
    let gradients = (0..count)
        .rev()
        .map(|i| Gradient { tensor: i, ready: Time(2 * layer_us * US * u64::from(count - i)) })
        .collect();
    Trace {
        name: "model".into(),
        provenance: String::new(),
        batch: 4,
        dtype: Dtype::Float32,
        device: String::new(),
        library: String::new(),
        distribution: (0..=count).collect(),
        tensors,
        workers: vec![WorkerTrace {
            forward,
            gradients,
            backward: Time(2 * layer_us * US * u64::from(count)),
            optimizer: Time(7 * US),
        }],
        variables: Vec::new(),
        optimizer_bytes: None,
        operators: None,
        backward_spread: spread,
    }
}

prop_compose! {
    pub(super) fn clusters()(
        gbps in 1u32..50,
        latency in 0u64..20,
        overhead in 0u64..3,
        gpus_per_node in 1u32..5,
        colocated in any::<bool>(),
        racks in prop::option::of((1u32..6, 1.0f64..8.0)),
        radix in prop::option::of(2u32..6),
        straggler in prop::option::of(1.0f64..3.0),
        jitter in prop::option::of(0.0f64..0.3),
        own in (prop::option::of(1u32..50), prop::option::of(1u32..50)),
    ) -> Cluster {
        Cluster {
            bandwidth: Rate(f64::from(gbps) * 1e9),
            latency: Time(latency * US),
            message_overhead: Time(overhead * US),
            gpus_per_node,
            intra_latency: Time(latency * US / 4),
            host_bandwidth: own.0.map(|gbps| Rate(f64::from(gbps) * 1e9)),
            reduction_bandwidth: own.1.map(|gbps| Rate(f64::from(gbps) * 1e9)),
            servers: if colocated { ServerPlace::Colocated } else { ServerPlace::OwnNodes },
            racks: racks.map(|(nodes_per_rack, oversubscription)| Racks { nodes_per_rack, oversubscription }),
            switch: Switch { multicast: true, aggregation: true, cut_through: radix == Some(3), memory: None, radix },
            stragglers: straggler.map(|factor| vec![(0, factor)]).unwrap_or_default(),
            jitter: jitter.map(|sigma| Jitter { sigma }),
            ..Cluster::default()
        }
    }
}

/// The fluid network has no cut-through switch.
fn possible(mut cluster: Cluster, options: &Options) -> Cluster {
    cluster.switch.cut_through &= options.network == Network::Fifo;
    cluster
}

prop_compose! {
    fn options()(
        strategy in 0..synchronous().len(),
        workers in 1u32..14,
        servers in 1u32..4,
        chunk in prop::option::of(prop::sample::select(vec![
            ChunkBytes::Whole, ChunkBytes::PerWorker, ChunkBytes::Size(4096),
        ])),
        even in any::<bool>(),
        block in any::<bool>(),
        barrier in any::<bool>(),
        step in any::<bool>(),
        root in any::<bool>(),
        bucket_size in prop::option::of(1u64..40_000),
        fluid in any::<bool>(),
        overlap in any::<bool>(),
        (iterations, seed) in (prop::option::of(1u32..4), any::<u64>()),
    ) -> Options {
        Options {
            servers,
            chunk: if even { None } else { chunk },
            placement: if even { Placement::Even } else { Placement::RoundRobin },
            distribution: if block && barrier { Distribution::Block } else { Distribution::RoundRobin },
            barrier,
            pull: if step { Pull::Step } else { Pull::Layer },
            inside: if root { Inside::Root } else { Inside::Ring },
            bucket_size,
            network: if fluid { Network::Fluid } else { Network::Fifo },
            overlap,
            iterations,
            seed,
            ..Options::new(synchronous()[strategy].name, workers)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ends_and_is_deterministic_and_no_faster_than_physics(
        cluster in clusters(),
        options in options(),
        sizes in prop::collection::vec(1u64..20_000, 1..6),
        layer_us in 0u64..50,
        spread in prop::sample::select(vec![0.0, 0.1]),
    ) {
        let (trace, cluster) = (model(&sizes, layer_us, spread), possible(cluster, &options));
        let outcome = simulate(&trace, &cluster, &options).unwrap();
        prop_assert_eq!(&simulate(&trace, &cluster, &options).unwrap(), &outcome);

        // Observing changes nothing.
        let unwatched = Options { critical_path: false, ..options.clone() };
        prop_assert_eq!(simulate(&trace, &cluster, &unwatched).unwrap().iteration_s, outcome.iteration_s);
        let (watched, timeline) = simulate_with_timeline(&trace, &cluster, &options, None).unwrap();
        prop_assert_eq!(watched.iteration_s, outcome.iteration_s);
        let mut json = Vec::new();
        timeline.write(&mut json).unwrap();
        prop_assert!(serde_json::from_slice::<serde_json::Value>(&json).is_ok());

        // Computation takes its time, whatever the network; jitter may shorten it.
        let compute = outcome.forward_s + outcome.backward_s + outcome.optimizer_s;
        if cluster.jitter.is_none() && options.barrier {
            prop_assert!(outcome.iteration_s >= compute * (1.0 - 1e-9), "{} {compute}", outcome.iteration_s);
        }
        // A node's card carries what its ranks send to other nodes: at least one rank's share of a ring.
        if options.barrier && options.iterations.is_none() && cluster.gpus_per_node == 1 && options.workers > 1 {
            let bytes = 4 * sizes.iter().sum::<u64>();
            let least = bytes as f64 * 8.0 / cluster.bandwidth.0;
            prop_assert!(outcome.iteration_s >= least * 0.999, "{} {least}", outcome.iteration_s);
        }
        // No link is busy for longer than an iteration takes.
        if options.barrier {
            for link in &outcome.links {
                prop_assert!(link.busiest_s <= outcome.iteration_s * (1.0 + 1e-9) + 1e-11, "{link:?}");
            }
        }
        // The critical path accounts for the iteration.
        let path: f64 = outcome.critical_path.iter().map(|part| part.seconds).sum();
        prop_assert!((path - outcome.iteration_s).abs() <= 1e-3 * outcome.iteration_s + 1e-9,
            "{path} of {}: {:?}", outcome.iteration_s, outcome.critical_path);
    }

    /// More bandwidth never hurts in the FIFO network without random variation, one rank per node, all-reduce.
    #[test]
    fn twice_the_bandwidth_is_not_slower(
        strategy in prop::sample::select(vec!["ring", "recursive-doubling", "halving-doubling", "tree", "ps"]),
        workers in 1u32..17,
        sizes in prop::collection::vec(1u64..20_000, 1..4),
    ) {
        let trace = model(&sizes, 3, 0.0);
        let time = |gbps: f64| {
            let cluster = Cluster { bandwidth: Rate(gbps * 1e9), ..Cluster::default() };
            simulate(&trace, &cluster, &Options::new(strategy, workers)).unwrap().iteration_s
        };
        prop_assert!(time(20.0) <= time(10.0) * (1.0 + 1e-9));
    }
}

#[test]
fn a_worker_alone_needs_its_compute_only() {
    let trace = model(&[1000, 2000], 10, 0.0);
    for entry in synchronous().iter().filter(|entry| !entry.uses(Knob::Servers)) {
        let outcome = simulate(&trace, &Cluster::default(), &Options::new(entry.name, 1)).unwrap();
        assert!((outcome.scaling_efficiency.unwrap() - 1.0).abs() < 1e-12, "{}", entry.name);
        assert!(outcome.exposed_communication_s.abs() < 1e-12);
    }
}

#[test]
fn without_overlap_compute_and_communication_add_up() {
    let trace = model(&[1_000_000], 1000, 0.0);
    let options = Options { overlap: false, ..Options::new("ring", 4) };
    let outcome = simulate(&trace, &Cluster::default(), &options).unwrap();
    let ring = 2.0 * 3.0 * 4e6 / 4.0 * 8.0 / 25e9;
    assert!((outcome.exposed_communication_s - ring).abs() < 1e-9);
}

#[test]
fn compute_speedup_divides_compute_and_nothing_else() {
    let trace = model(&[1_000_000], 1000, 0.0);
    let time = |compute_speedup| {
        let options = Options { compute_speedup, overlap: false, ..Options::new("ring", 4) };
        simulate(&trace, &Cluster::default(), &options).unwrap()
    };
    assert!((time(1.0).exposed_communication_s - time(4.0).exposed_communication_s).abs() < 1e-9);
    assert!((time(1.0).forward_s / time(4.0).forward_s - 4.0).abs() < 1e-9);
}

#[test]
fn fusion_saves_latency_and_costs_overlap() {
    let trace = model(&[1000; 5], 5, 0.0);
    let slow = Cluster { latency: Time(500 * US), ..Cluster::default() };
    let time = |bucket_size| {
        let options = Options { bucket_size, ..Options::new("recursive-doubling", 8) };
        simulate(&trace, &slow, &options).unwrap()
    };
    assert_eq!((time(None).buckets, time(Some(1_000_000)).buckets), (5, 1));
    assert!(time(Some(1_000_000)).messages * 5 == time(None).messages);
}

#[test]
fn fluid_and_fifo_agree_on_a_ring_and_on_an_incast() {
    // One bucket: all flows are alike, so fair sharing and taking turns end at the same time.
    let trace = Trace::all_reduce(8_000_000, 1).unwrap();
    for strategy in ["ring", "halving-doubling", "recursive-doubling", "ps", "ps-multicast-aggregation"] {
        let time = |network| {
            let options = Options { network, pull: Pull::Step, ..Options::new(strategy, 8) };
            simulate(&trace, &Cluster::default(), &options).unwrap().iteration_s
        };
        let (fifo, fluid) = (time(Network::Fifo), time(Network::Fluid));
        assert!((fifo / fluid - 1.0).abs() < 1e-6, "{strategy}: {fifo} {fluid}");
    }
}

#[test]
fn no_barrier_is_not_slower_for_parameter_servers() {
    let trace = model(&[100_000; 5], 100, 0.0);
    let time = |barrier| {
        let options = Options { barrier, ..Options::new("ps", 4) };
        simulate(&trace, &Cluster::default(), &options).unwrap().iteration_s
    };
    assert!(time(false) <= time(true) * (1.0 + 1e-9), "{} {}", time(false), time(true));
}

#[test]
fn a_straggler_holds_all_others_up() {
    let trace = model(&[1000], 1000, 0.0);
    let slow = Cluster { stragglers: vec![(2, 2.0)], ..Cluster::default() };
    let iteration = simulate(&trace, &slow, &Options::new("ring", 4)).unwrap().iteration_s;
    assert!(iteration > 2.0 * 3e-3 && iteration < 2.0 * 3.1e-3, "{iteration}");
    let error = simulate(&trace, &slow, &Options::new("ring", 2)).unwrap_err().to_string();
    assert!(error.contains("rank 2"), "{error}");
}

#[test]
fn what_cannot_be_represented_is_refused() {
    let trace = Trace::all_reduce(1_000_000_000_000, 1).unwrap();
    let slow = Cluster { bandwidth: Rate(1000.0), ..Cluster::default() };
    let error = simulate(&trace, &slow, &Options::new("ps", 4)).unwrap_err().to_string();
    assert!(error.contains("days"), "{error}");
    let plain = Cluster { switch: Switch { multicast: false, ..Cluster::default().switch }, ..Cluster::default() };
    for entry in synchronous() {
        let result = simulate(&model(&[10], 1, 0.0), &plain, &Options::new(entry.name, 2));
        assert_eq!(result.is_err(), find(entry.name).unwrap().uses(Knob::Multicast), "{}", entry.name);
    }
}

#[test]
fn busy_times_are_those_of_one_iteration() {
    let (workers, once) = (8.0, 4e6 * 8.0 / 25e9);
    let busy = |strategy: &str, barrier, iterations| {
        let options = Options { detail: true, barrier, iterations, ..Options::new(strategy, 8) };
        let outcome = simulate(&model(&[1_000_000], 5000, 0.0), &Cluster::default(), &options).unwrap();
        let list = outcome.busy.unwrap();
        move |name: &str| list.iter().find(|busy| busy.name == name).map_or(0.0, |busy| busy.busy_s)
    };
    // 100 elements without a gradient are distributed as well.
    let pulled = once + 400.0 * 8.0 / 25e9;
    for iterations in [1, 3] {
        let ps = busy("ps", true, Some(iterations));
        for (name, seconds) in [
            ("server 0 egress", workers * pulled),
            ("server 0 ingress", workers * once),
            ("worker 3 ingress", pulled),
            ("worker 3 egress", once),
            ("worker 3 compute", 15e-3 + 7e-6),
        ] {
            assert!((ps(name) - seconds).abs() < 1e-9, "{name}: {} {seconds}", ps(name));
        }
        let ring = busy("ring", true, Some(iterations));
        assert!((ring("worker 0 egress") - 2.0 * 7.0 / 8.0 * once).abs() < 1e-9);
    }
}
