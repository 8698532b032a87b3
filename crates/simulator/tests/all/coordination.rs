//! Properties of coordinators for any constants: parts add up, draws are seeded, and each policy is affected only by
//! the causes that its mechanism leaves.
use paceline_coordinator::PolicyKind;
use paceline_model::trace::Dtype;
use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_simulator::coordination::{Constants, Coordinated, Coordination};
use paceline_simulator::{Network, Options, Outcome, simulate, simulate_with_timeline};
use proptest::prelude::*;

/// 37.5 ms of computation and 160 tensors of 320 kB, ready evenly in the second half.
fn trace() -> Trace {
    let mut trace = Trace::all_reduce(160 * 320_000, 160).unwrap();
    trace.dtype = Dtype::Float16;
    let worker = &mut trace.workers[0];
    worker.backward = Time(37_500_000_000);
    for (i, gradient) in (1..).zip(&mut worker.gradients) {
        gradient.ready = Time(18_750_000_000 + 18_750_000_000 / 160 * i);
    }
    trace
}

fn summit() -> Cluster {
    Cluster {
        bandwidth: Rate(184e9),
        latency: Time(2_540_000),
        gpus_per_node: 6,
        intra_bandwidth: Rate(256e9),
        ..Cluster::default()
    }
}

/// Without overlap and with the published fusion, as the published runs.
fn options(coordinator: &str, workers: u32) -> Options {
    Options {
        coordination: Some(Coordination::new(PolicyKind::find(coordinator).unwrap())),
        iterations: Some(40),
        seed: 1,
        overlap: false,
        bucket_size: Some(64 << 20),
        ..Options::new("native", workers)
    }
}

fn constants(options: &mut Options) -> &mut Constants {
    &mut options.coordination.as_mut().unwrap().constants
}

fn coordinate(options: &Options) -> (Outcome, Coordinated) {
    let found = simulate(&trace(), &summit(), options).unwrap();
    let coordinated = found.coordination.unwrap();
    (found, coordinated)
}

fn with(coordinator: &str, workers: u32, change: impl Fn(&mut Constants)) -> (Outcome, Coordinated) {
    let mut options = Options { iterations: Some(300), ..options(coordinator, workers) };
    change(constants(&mut options));
    coordinate(&options)
}

/// Processes that are never late, on a network that gives what the cluster says.
fn balanced(it: &mut Constants) {
    (it.preemption_per_node, it.spin_preemption_per_node, it.oversleep_probability) = (0.0, 0.0, 0.0);
    (it.congestion, it.collective_step_ms) = (0.0, 0.0);
}

/// Nor does anything that a coordinator does take any time.
fn free(it: &mut Constants) {
    balanced(it);
    (it.consensus_step_ms, it.turn_ms, it.order_ms, it.cycle_ms, it.test_ms) = (0.0, 0.0, 0.0, 0.0, 0.01);
    (it.copy_launch_ms, it.copy_gb_per_s) = (0.0, 1e6);
}

fn any_coordinator() -> impl Strategy<Value = &'static str> {
    prop::sample::select(PolicyKind::ALL.map(PolicyKind::name).to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_are_none_negative_and_add_up(
        name in any_coordinator(),
        workers in prop::sample::select(vec![1u32, 2, 6, 96, 1000, 24_576]),
        overlap in any::<bool>(),
        bucket_size in prop::sample::select(vec![None, Some(1 << 20), Some(64 << 20)]),
        cycle_ms in 0.5f64..20.0,
        rate in 0.0f64..0.0005,
        seed in any::<u64>(),
    ) {
        let mut asked = Options { overlap, seed, bucket_size, iterations: Some(8), ..options(name, workers) };
        (constants(&mut asked).cycle_ms, constants(&mut asked).preemption_per_node) = (cycle_ms, rate);
        let (found, parts) = coordinate(&asked);
        let all = [parts.coordinator_s, parts.copy_s, parts.collective_s];
        prop_assert!(all.iter().all(|part| part.is_finite() && *part >= 0.0), "{found:?}");
        prop_assert!(((0.0375 + all.iter().sum::<f64>()) / found.iteration_s - 1.0).abs() < 1e-9);
        let path: f64 = found.critical_path.iter().map(|part| part.seconds).sum();
        prop_assert!((path / found.iteration_s - 1.0).abs() < 1e-9, "{found:?}");
        let own = 1e-3 * (cycle_ms / 2.0 + constants(&mut asked).order_ms * f64::from(found.buckets));
        prop_assert!(name != "graph" || parts.coordinator_s <= own + 1e-12, "{found:?}");
        prop_assert!(found.iteration_s >= 0.0375 + if overlap { 0.0 } else { parts.latest_s } - 1e-9, "{found:?}");
        prop_assert_eq!(&found, &coordinate(&asked).0);
    }

    /// One question has one answer: without lateness and cost of agreement, what is left is the plain simulation of the
    /// same buckets, issued one at a time.
    #[test]
    fn a_coordinator_that_costs_nothing_is_the_plain_simulation(
        policy in any_coordinator(),
        strategy in prop::sample::select(vec!["ring", "native", "halving-doubling", "hierarchical", "tree", "ps"]),
        workers in prop::sample::select(vec![2u32, 6, 12, 24]),
        overlap in any::<bool>(),
        bucket_size in prop::sample::select(vec![Some(1 << 20), Some(8 << 20), Some(64 << 20)]),
        speedup in 0.5f64..4.0,
        network in prop::sample::select(vec![Network::Fifo, Network::Fluid]),
    ) {
        let mut asked = Options {
            strategy: strategy.into(),
            overlap,
            bucket_size,
            compute_speedup: speedup,
            network,
            iterations: Some(2),
            ..options(policy, workers)
        };
        free(constants(&mut asked));
        let found = coordinate(&asked).0.iteration_s;
        // A rank that polls sees a bucket up to a shortest cycle later.
        let plain = issued_one_at_a_time(&asked);
        if policy == "graph" || !overlap {
            let late = if policy == "graph" { 1e-6 } else { 1e-4 };
            prop_assert!((found - plain) > -1e-9 && found - plain < late, "{found} {plain}");
        } else {
            // With overlap, cycles decide which tensors make up a bucket; a free one exchanges each as it is ready.
            prop_assert!(found >= 0.0375 / speedup);
        }
    }

    /// With the same draws, lengthening all preemptions by a factor never makes an iteration faster.
    #[test]
    fn longer_preemptions_are_never_faster(
        name in any_coordinator(),
        workers in prop::sample::select(vec![2u32, 96, 6144]),
        factor in 1.0f64..3.0,
        seed in any::<u64>(),
    ) {
        let time = |factor: f64| {
            let mut asked = Options { seed, iterations: Some(10), ..options(name, workers) };
            constants(&mut asked).preemption_mean_ms *= factor;
            coordinate(&asked).0.iteration_s
        };
        prop_assert!(time(factor) >= time(1.0) - 1e-12);
    }
}

#[test]
fn more_delays_of_any_kind_are_slower_on_average() {
    for coordinator in PolicyKind::ALL {
        let name = coordinator.name();
        let time = |change: fn(&mut Constants)| with(name, 6144, change).0.iteration_s;
        let usual = time(|_| ());
        assert!(time(|it| it.preemption_per_node *= 3.0) > usual, "{name}");
        assert!(time(|it| it.oversleep_probability *= 3.0) > 0.99 * usual, "{name}");
        assert!(time(|it| it.spin_preemption_per_node *= 3.0) > 0.99 * usual, "{name}");
    }
}

#[test]
fn a_process_alone_has_no_overhead() {
    for coordinator in PolicyKind::ALL {
        let (found, parts) = with(coordinator.name(), 1, |_| ());
        assert_eq!(found.exposed_communication_s, 0.0, "{}", coordinator.name());
        assert_eq!(parts.collective_s, 0.0);
    }
}

/// Causes that a policy's mechanism removes have no effect on it.
#[test]
fn causes_act_through_mechanisms() {
    let same = |name, change: fn(&mut Constants)| with(name, 6144, change).1 == with(name, 6144, |_| ()).1;
    let [spin, late]: [fn(&mut Constants); 2] =
        [|it| it.spin_preemption_per_node *= 4.0, |it| it.oversleep_probability *= 4.0];
    for (name, by_spin, by_lateness) in [
        ("negotiate", true, true),
        ("global-sleep", true, true),
        ("nonblocking", false, true),
        ("partitioned", false, false),
        ("partitioned:dynamic", false, true),
        ("graph", false, false),
    ] {
        assert_eq!(!same(name, spin), by_spin, "{name}");
        assert_eq!(!same(name, late), by_lateness, "{name}");
    }
    // Only partitioned cores leave fewer cores to the pipeline, only a coordinator that does not block tests, and only
    // the graph's order is kept.
    type Change = fn(&mut Constants);
    let own: [(&str, Change); 3] = [
        ("partitioned", |it| it.pipeline_cores = 3.0),
        ("nonblocking", |it| it.test_ms = 3.0),
        ("graph", |it| it.order_ms = 3.0),
    ];
    for coordinator in PolicyKind::ALL {
        for (policy, change) in own {
            assert_eq!(!same(coordinator.name(), change), coordinator.name() == policy, "{}", coordinator.name());
        }
    }
}

/// A common sleep after every cycle costs an all-reduce each, and after no cycle of an iteration it is the baseline.
#[test]
fn the_rarer_a_common_sleep_the_more_it_is_like_none() {
    let mean = |name| with(name, 24_576, |_| ()).1.coordinator_s;
    let [baseline, every] = ["negotiate", "global-sleep"].map(mean);
    let rarer = ["gs:2", "gs:4", "gs:8", "gs:64"].map(mean);
    assert!(every < rarer[0] && rarer.is_sorted() && rarer[3] < baseline, "{every} {rarer:?} {baseline}");
    // So rare that no iteration has one: the same cycles from the same draws.
    let parts = |name| Coordinated { coordinator: PolicyKind::Negotiate, ..with(name, 24_576, |_| ()).1 };
    assert_eq!(parts("global-sleep:4294967295"), parts("negotiate"));
    // Without lateness all turns are the same, and it costs what its all-reduces take: half as many cost less.
    let balanced = |name| {
        let found = with(name, 24_576, |it| {
            balanced(it);
            it.consensus_step_ms = 0.05;
        });
        found.1.coordinator_s
    };
    assert!(balanced("negotiate") < balanced("gs:2") && balanced("gs:2") < balanced("gs"));
}

/// Most of what the graph's order saves in the coordinator is lost again inside the collective.
#[test]
fn lateness_comes_back_inside_the_collective() {
    let [negotiated, graph] = ["negotiate", "graph"].map(|name| with(name, 24_576, |_| ()).1);
    let returned = (graph.collective_s - negotiated.collective_s) / negotiated.coordinator_s;
    assert!((0.5..0.8).contains(&returned), "{returned}");
}

/// J. Romero et al., "Accelerating collective communication in data parallel training across deep learning frameworks",
/// NSDI 2022: the same response cache on well-balanced processes has 93 % of linear scaling on 27,600 GPUs.
#[test]
fn balanced_processes_scale_with_the_same_cache() {
    let mut asked = Options { overlap: true, ..options("negotiate", 27_600) };
    balanced(constants(&mut asked));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/paceline/catalog/traces/resnet-50.json");
    let resnet = Trace::read(path.as_ref()).unwrap().with_dtype(Dtype::Float16).unwrap();
    let found = simulate(&resnet.scaled_to_rate(32.0 / 0.0375).unwrap(), &summit(), &asked).unwrap();
    let efficiency = found.scaling_efficiency.unwrap();
    assert!((0.90..0.96).contains(&efficiency), "{efficiency}");
    assert_eq!(found.coordination.unwrap().latest_s, 0.0);
}

/// Buckets of neighbors up to the size, each begun when its last tensor is ready and the one before is over.
fn issued_one_at_a_time(options: &Options) -> f64 {
    let (trace, cluster) = (trace(), summit());
    let worker = &trace.workers[0];
    let speed = options.compute_speedup;
    let mut end = 0.0f64;
    let (mut bytes, mut ready) = (0, 0.0);
    let mut exchange = |bytes: u64, ready: f64| {
        let mut bare = Trace::all_reduce(bytes, 1).unwrap();
        bare.dtype = trace.dtype;
        let plain = Options {
            coordination: None,
            iterations: None,
            bucket_size: None,
            overlap: true,
            compute_speedup: 1.0,
            ..options.clone()
        };
        end = end.max(ready) + simulate(&bare, &cluster, &plain).unwrap().iteration_s;
    };
    for gradient in &worker.gradients {
        let own = trace.tensors[gradient.tensor as usize].bytes;
        if bytes > 0 && bytes + own > options.bucket_size.unwrap() {
            exchange(bytes, ready);
            bytes = 0;
        }
        bytes += own;
        ready = if options.overlap { gradient.ready } else { worker.backward }.seconds() / speed;
    }
    exchange(bytes, ready);
    end.max(worker.backward.seconds() / speed)
}

#[test]
fn what_cannot_be_is_refused_with_a_remedy() {
    let refused = |change: fn(&mut Options, &mut Cluster)| {
        let (mut asked, mut cluster) = (options("negotiate", 4096), summit());
        change(&mut asked, &mut cluster);
        simulate(&trace(), &cluster, &asked).unwrap_err().to_string()
    };
    assert!(
        refused(|asked, _| (asked.workers, asked.strategy) = (24_576, "halving-doubling".into()))
            .contains("no closed form here")
    );
    assert!(
        refused(|asked, _| (asked.workers, asked.network) = (24_576, Network::Fluid))
            .contains("no closed form on such a network")
    );
    assert!(refused(|asked, _| asked.workers = 0).contains("workers"));
    assert!(refused(|asked, _| asked.iterations = Some(0)).contains("iterations"));
    assert!(refused(|asked, _| constants(asked).cycle_ms = f64::NAN).contains("cycle_ms"));
    assert!(refused(|_, cluster| cluster.stragglers = vec![(5000, 2.0)]).contains("stragglers"));
}

/// A straggler delays every bucket, and the others wait for it in the coordinator.
#[test]
fn a_straggler_delays_all() {
    let mut asked = options("graph", 96);
    free(constants(&mut asked));
    let alike = coordinate(&asked).0.iteration_s;
    let cluster = Cluster { stragglers: vec![(7, 1.5)], ..summit() };
    let found = simulate(&trace(), &cluster, &asked).unwrap().iteration_s;
    assert!((found - alike - 0.5 * 0.0375).abs() < 1e-9, "{found} {alike}");
    let jitter = Some(paceline_model::cluster::Jitter { sigma: 0.05 });
    let found = simulate(&trace(), &Cluster { jitter, ..summit() }, &asked).unwrap().iteration_s;
    // The slowest of 96 is two and a half standard deviations slower.
    assert!((found - alike - 0.125 * 0.0375).abs() < 0.03 * 0.0375, "{found} {alike}");
}

/// The timeline shows what the first iteration consists of, on every rank.
#[test]
fn a_timeline_shows_every_rank() {
    let asked = Options { iterations: Some(1), ..options("negotiate", 12) };
    let (found, timeline) = simulate_with_timeline(&trace(), &summit(), &asked, None).unwrap();
    let mut text = Vec::new();
    timeline.write(&mut text).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let end = events.iter().filter_map(|it| Some(it["ts"].as_f64()? + it["dur"].as_f64()?)).fold(0.0, f64::max);
    assert!((end * 1e-6 / found.iteration_s - 1.0).abs() < 1e-6, "{end} {}", found.iteration_s);
    for name in ["forward", "backward", "negotiate", "copy in", "160 tensors, 51.200 MB", "copy out", "wait for sums"] {
        assert!(events.iter().filter(|it| it["name"] == name).count() >= 12 || name == "forward", "{name}");
    }
}
