//! Workers that do not wait for each other: closed forms, the synchronous case, and what the bound allows.
use paceline_iteration::IterationOptions;
use paceline_iteration::Sharding;
use paceline_model::cluster::Jitter;
use paceline_model::trace::{Dtype, Gradient, Layer, Tensor, WorkerTrace};
use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_schedule::{Distribution, Placement};
use paceline_simulator::staleness::Asynchronous;
use paceline_simulator::{Network, Options, Outcome, Pull, simulate, simulate_with_timeline};
use proptest::prelude::*;

use crate::properties::{clusters, model};

const US: u64 = 1_000_000;

fn asynchronous(workers: u32, staleness: Option<u32>) -> Options {
    Options { staleness, ..Options::new("async-ps", workers) }
}

fn own(outcome: &Outcome) -> &Asynchronous {
    outcome.asynchronous.as_ref().unwrap()
}

fn flat(gbps: f64, latency_us: u64) -> Cluster {
    Cluster { bandwidth: Rate(gbps * 1e9), latency: Time(latency_us * US), ..Cluster::default() }
}

/// One layer with one tensor, whose gradient is ready when the backward pass ends.
fn one_tensor(bytes: u64, forward_us: u64, backward_us: u64) -> Trace {
    Trace {
        name: "one".into(),
        provenance: String::new(),
        batch: 8,
        dtype: Dtype::Float32,
        device: String::new(),
        library: String::new(),
        distribution: vec![0],
        tensors: vec![Tensor { name: "t".into(), bytes, pull_bytes: bytes, frozen_bytes: 0, shape: None }],
        workers: vec![WorkerTrace {
            forward: vec![Layer {
                name: "l".into(),
                duration: Time(forward_us * US),
                tensors: vec![0],
                activation_bytes: None,
                backward_bytes: None,
            }],
            gradients: vec![Gradient { tensor: 0, ready: Time(backward_us * US) }],
            backward: Time(backward_us * US),
            optimizer: Time::ZERO,
        }],
        optimizer_bytes: None,
        variables: Vec::new(),
        operators: None,
        backward_spread: 0.0,
    }
}

fn close(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 1e-6
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// One tensor: a worker's iteration is its own round trip, or W S/B if each direction of the server carries one after the
    /// other. Between its pull and its update every other worker has updated once.
    #[test]
    fn one_tensor_takes_a_round_trip_or_its_turn_at_the_server(
        workers in 1u32..20,
        megabytes in 1u64..50,
        (forward_us, backward_us) in (1u64..20_000, 1u64..40_000),
        gbps in prop::sample::select(vec![1.0, 10.0, 25.0]),
        latency_us in prop::sample::select(vec![0u64, 5, 50]),
    ) {
        let trace = one_tensor(megabytes * 1_000_000, forward_us, backward_us);
        let outcome = simulate(&trace, &flat(gbps, latency_us), &asynchronous(workers, None)).unwrap();
        let once = megabytes as f64 * 8e-3 / gbps;
        let alone = (forward_us + backward_us + 2 * latency_us) as f64 * 1e-6 + 2.0 * once;
        let expected = alone.max(f64::from(workers) * once);
        prop_assert!(close(outcome.iteration_s, expected), "{} s, not {expected} s", outcome.iteration_s);
        prop_assert!(close(outcome.samples_per_s.unwrap(), f64::from(8 * workers) / expected));
        let staleness = &own(&outcome).staleness;
        prop_assert!(staleness.len() == 1 && staleness[0].0 == workers - 1, "{staleness:?}");
    }

    /// One worker is the synchronous one, whatever the model, servers and network.
    #[test]
    fn a_worker_alone_is_synchronous(
        cluster in clusters(),
        sizes in prop::collection::vec(1u64..2_000_000, 1..6),
        layer_us in 1u64..2000,
        servers in 1u32..4,
        (even, step, fluid) in any::<(bool, bool, bool)>(),
    ) {
        let cluster = Cluster { jitter: None, reduction_bandwidth: None, ..cluster };
        let trace = model(&sizes, layer_us, 0.0);
        let of = |strategy| Options {
            servers,
            placement: if even { Placement::Even } else { Placement::RoundRobin },
            pull: if step { Pull::Step } else { Pull::Layer },
            network: if fluid { Network::Fluid } else { Network::Fifo },
            iterations: Some(20),
            ..Options::new(strategy, 1)
        };
        let (found, expected) = (simulate(&trace, &cluster, &of("async-ps")), simulate(&trace, &cluster, &of("ps")));
        let (found, expected) = (found.unwrap(), expected.unwrap());
        prop_assert!(close(found.iteration_s, expected.iteration_s), "{} {}", found.iteration_s, expected.iteration_s);
        prop_assert_eq!(own(&found).quantile(1.0), 0);
        prop_assert_eq!(found.messages, expected.messages);
    }

    /// With a bound of 0, all pull when the last one's gradients have arrived: `ps` with its barrier.
    #[test]
    fn a_bound_of_zero_is_the_barrier(
        cluster in clusters(),
        sizes in prop::collection::vec(1u64..500_000, 1..5),
        layer_us in 1u64..2000,
        workers in 2u32..9,
        servers in 1u32..4,
        (even, step, block) in any::<(bool, bool, bool)>(),
        spread in prop::sample::select(vec![0.0, 0.2]),
    ) {
        let cluster = Cluster { jitter: None, ..cluster };
        let trace = model(&sizes, layer_us, spread);
        let of = |strategy, staleness| Options {
            servers,
            staleness,
            placement: if even { Placement::Even } else { Placement::RoundRobin },
            distribution: if block { Distribution::Block } else { Distribution::RoundRobin },
            pull: if step { Pull::Step } else { Pull::Layer },
            iterations: Some(12),
            ..Options::new(strategy, workers)
        };
        let found = simulate(&trace, &cluster, &of("async-ps", Some(0))).unwrap();
        let expected = simulate(&trace, &cluster, &of("ps", None)).unwrap();
        prop_assert!(
            (found.iteration_s / expected.iteration_s - 1.0).abs() < 1e-3,
            "{} {}", found.iteration_s, expected.iteration_s
        );
        prop_assert!(own(&found).quantile(1.0) < workers);
    }

    /// Between a pull and the update, another worker may apply the N iterations by which it is behind, its current one, and the N
    /// by which it may be ahead.
    #[test]
    fn staleness_stays_within_the_bound(
        cluster in clusters(),
        sizes in prop::collection::vec(1u64..300_000, 1..5),
        layer_us in 1u64..1000,
        workers in 1u32..10,
        servers in 1u32..4,
        bound in 0u32..4,
        (even, fluid) in any::<(bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let trace = model(&sizes, layer_us, 0.3);
        let options = Options {
            servers,
            placement: if even { Placement::Even } else { Placement::RoundRobin },
            network: if fluid { Network::Fluid } else { Network::Fifo },
            seed,
            ..asynchronous(workers, Some(bound))
        };
        let outcome = simulate(&trace, &cluster, &options).unwrap();
        let it = own(&outcome);
        prop_assert!(it.quantile(1.0) <= (2 * bound + 1) * (workers - 1), "{:?}", it.staleness);
        prop_assert!(it.updates() >= u64::from(workers) * u64::from(it.iterations));
        prop_assert!(it.blocked_s >= 0.0 && it.blocked_s <= outcome.iteration_s * (1.0 + 1e-9));
        prop_assert!(it.fastest_s <= outcome.iteration_s * (1.0 + 1e-9));
        prop_assert!(outcome.iteration_s <= it.slowest_s * (1.0 + 1e-9));
        let rate = f64::from(4 * workers) / outcome.iteration_s;
        prop_assert!(close(outcome.samples_per_s.unwrap(), rate));
        // The same seed gives the same result.
        prop_assert_eq!(&outcome, &simulate(&trace, &cluster, &options).unwrap());
    }

    /// Neither a worker's own work nor the bytes of all at a server can be undercut.
    #[test]
    fn nobody_is_faster_than_its_computation_or_the_servers(
        sizes in prop::collection::vec(1u64..2_000_000, 1..5),
        layer_us in 1u64..2000,
        workers in 1u32..20,
        gbps in 1u32..30,
    ) {
        let (trace, cluster) = (model(&sizes, layer_us, 0.0), flat(f64::from(gbps), 5));
        let outcome = simulate(&trace, &cluster, &asynchronous(workers, None)).unwrap();
        let compute = trace.workers[0].compute_time().seconds();
        let bytes: u64 = trace.tensors.iter().map(|it| it.bytes).sum();
        let through = f64::from(workers) * bytes as f64 * 8e-9 / f64::from(gbps);
        // The window begins and ends within iterations.
        let least = compute.max(through * (1.0 - 1.0 / f64::from(own(&outcome).iterations)));
        prop_assert!(outcome.iteration_s >= least * (1.0 - 1e-6), "{} {least}", outcome.iteration_s);
    }
}

#[test]
fn where_the_network_is_fast_it_is_computation_whatever_the_workers() {
    let trace = model(&[1000, 2000, 500], 700, 0.0);
    let alone = trace.workers[0].compute_time().seconds();
    for workers in [1, 2, 8, 40] {
        let outcome = simulate(&trace, &flat(100_000.0, 0), &asynchronous(workers, None)).unwrap();
        assert!((outcome.iteration_s / alone - 1.0).abs() < 1e-4, "{workers}: {} {alone}", outcome.iteration_s);
        assert!(outcome.scaling_efficiency.unwrap() > 0.9999);
    }
}

#[test]
fn where_the_servers_are_slow_each_direction_carries_all_parameters_once_an_iteration() {
    let trace = model(&[400_000, 900_000, 100_000, 600_000], 300, 0.0);
    let bytes: u64 = trace.tensors.iter().map(|it| it.pull_bytes).sum();
    for (workers, servers) in [(8, 1), (32, 1), (32, 2)] {
        let options = Options { servers, placement: Placement::Even, ..asynchronous(workers, None) };
        let outcome = simulate(&trace, &flat(10.0, 5), &options).unwrap();
        let expected = f64::from(workers) * bytes as f64 * 8e-10 / f64::from(servers);
        assert!((outcome.iteration_s / expected - 1.0).abs() < 0.05, "{} {expected}", outcome.iteration_s);
    }
}

#[test]
fn a_slow_worker_slows_nobody_down_unless_the_bound_says_so() {
    let trace = model(&[1000, 2000], 500, 0.0);
    let cluster = Cluster { stragglers: vec![(2, 3.0)], ..flat(10_000.0, 0) };
    let run = |bound| simulate(&trace, &cluster, &asynchronous(8, bound)).unwrap();
    let (free, bound, lock) = (run(None), run(Some(3)), run(Some(0)));
    let alone = trace.workers[0].compute_time().seconds();
    let it = own(&free);
    assert!((it.fastest_s / alone - 1.0).abs() < 1e-2 && (it.slowest_s / alone / 3.0 - 1.0).abs() < 1e-2, "{it:?}");
    assert!((8.0 / free.iteration_s * alone - (7.0 + 1.0 / 3.0)).abs() < 0.1);
    assert!(it.blocked_s == 0.0);
    // In the long run the slow one sets the pace.
    for (outcome, ahead) in [(&bound, 3.0), (&lock, 0.0)] {
        let it = own(outcome);
        let least = 3.0 * alone * (1.0 - (ahead + 1.0) / f64::from(it.iterations));
        assert!(outcome.iteration_s > least && outcome.iteration_s < 3.0 * alone * 1.01, "{}", outcome.iteration_s);
        // Seven of eight wait for two thirds of it.
        assert!((it.blocked_s / outcome.iteration_s - 7.0 / 8.0 * 2.0 / 3.0).abs() < 0.1, "{it:?}");
    }
    assert!(own(&lock).quantile(1.0) <= 7);
}

#[test]
fn a_very_slow_worker_ends_the_simulation_none_the_less() {
    let trace = model(&[1000, 2000], 500, 0.0);
    let cluster = Cluster { stragglers: vec![(0, 1e6)], ..flat(10.0, 5) };
    let outcome = simulate(&trace, &cluster, &asynchronous(4, None)).unwrap();
    let alone = trace.workers[0].compute_time().seconds();
    assert!(outcome.iteration_s < 4.0 / 3.0 * alone * 1.2, "{}", outcome.iteration_s);
    assert_eq!(own(&outcome).iterations, 0);
}

#[test]
fn jitter_is_of_each_worker_and_of_the_seed() {
    let cluster = Cluster { jitter: Some(Jitter { sigma: 0.2 }), ..flat(10.0, 5) };
    let trace = model(&[100_000, 200_000], 500, 0.0);
    let run = |seed| simulate(&trace, &cluster, &Options { seed, ..asynchronous(6, None) }).unwrap();
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).iteration_s, run(2).iteration_s);
}

#[test]
fn a_timeline_has_every_worker_and_the_result_is_the_same() {
    let trace = model(&[100_000, 200_000], 500, 0.0);
    let options = Options { iterations: Some(2), ..asynchronous(3, Some(1)) };
    let (outcome, timeline) = simulate_with_timeline(&trace, &flat(10.0, 5), &options, None).unwrap();
    assert_eq!(outcome, simulate(&trace, &flat(10.0, 5), &options).unwrap());
    let mut json = Vec::new();
    timeline.write(&mut json).unwrap();
    let text = String::from_utf8(json).unwrap();
    for name in ["worker 0", "worker 2", "server 0", "\"t1\"", "wait for t0"] {
        assert!(text.contains(name), "{name}");
    }
}

#[test]
fn what_needs_sums_is_refused() {
    let trace = model(&[1000], 500, 0.0);
    let refused = |options: Options| simulate(&trace, &flat(10.0, 5), &options).unwrap_err();
    let iteration = Some(IterationOptions { accumulate: 2, ..IterationOptions::new(Sharding::None) });
    let error = refused(Options { iteration, ..asynchronous(2, None) });
    assert!(error.to_string().contains("accumulate"), "{error}");
    assert_eq!(refused(Options { barrier: false, ..asynchronous(2, None) }).setting, Some("barrier"));
    let block = Options { distribution: Distribution::Block, ..asynchronous(2, None) };
    assert_eq!(refused(block).setting, Some("distribution"));
    assert_eq!(refused(Options { staleness: Some(3), ..Options::new("ps", 2) }).setting, Some("staleness"));
}
