//! Properties of coordinators for any constants: parts add up, draws are seeded, and each policy is affected only by
//! the causes that its mechanism leaves.
use paceline_coordinator::PolicyKind;
use paceline_model::trace::Dtype;
use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_simulator::coordination::{Constants, Coordinated, CoordinatedOptions, coordinate};
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

fn options(coordinator: &str, workers: u32) -> CoordinatedOptions {
    CoordinatedOptions {
        coordinator: PolicyKind::find(coordinator).unwrap(),
        strategy: "native".into(),
        workers,
        iterations: 40,
        seed: 1,
        overlap: false,
        contention_s: None,
        graph_nodes: None,
        constants: Constants::default(),
    }
}

fn with(coordinator: &str, workers: u32, change: impl Fn(&mut Constants)) -> Coordinated {
    let mut options = CoordinatedOptions { iterations: 300, ..options(coordinator, workers) };
    change(&mut options.constants);
    coordinate(&trace(), &summit(), &options).unwrap()
}

fn any_coordinator() -> impl Strategy<Value = &'static str> {
    prop::sample::select(PolicyKind::ALL.map(PolicyKind::name).to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_are_none_negative_and_add_up(
        name in any_coordinator(),
        workers in prop::sample::select(vec![1u32, 2, 6, 96, 1000, 24_576]),
        overlap in any::<bool>(),
        fusion_mib in prop::sample::select(vec![0.0, 1.0, 64.0]),
        cycle_ms in 0.5f64..20.0,
        rate in 0.0f64..0.0005,
        seed in any::<u64>(),
    ) {
        let constants = Constants { cycle_ms, fusion_mib, preemption_per_node: rate, ..Constants::default() };
        let asked = CoordinatedOptions { overlap, seed, constants, iterations: 8, ..options(name, workers) };
        let found = coordinate(&trace(), &summit(), &asked).unwrap();
        let parts = found.breakdown;
        let all = [parts.compute_s, parts.coordinator_s, parts.copy_s, parts.collective_s];
        prop_assert!(all.iter().all(|part| part.is_finite() && *part >= 0.0), "{found:?}");
        prop_assert!((all.iter().sum::<f64>() / found.iteration_s - 1.0).abs() < 1e-9);
        prop_assert!((parts.compute_s - 0.0375).abs() < 1e-9);
        let own = 1e-3 * (asked.constants.cycle_ms / 2.0 + asked.constants.order_ms * found.buckets as f64);
        prop_assert!(name != "graph" || parts.coordinator_s <= own + 1e-12, "{found:?}");
        prop_assert!(found.iteration_s >= 0.0375 + if overlap { 0.0 } else { found.latest_s } - 1e-9, "{found:?}");
        let text = |found: &Coordinated| serde_json::to_string(found).unwrap();
        prop_assert_eq!(text(&found), text(&coordinate(&trace(), &summit(), &asked).unwrap()));
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
            let mut constants = Constants::default();
            constants.preemption_mean_ms *= factor;
            let asked = CoordinatedOptions { seed, constants, iterations: 10, ..options(name, workers) };
            coordinate(&trace(), &summit(), &asked).unwrap().iteration_s
        };
        prop_assert!(time(factor) >= time(1.0) - 1e-12);
    }
}

#[test]
fn more_delays_of_any_kind_are_slower_on_average() {
    for coordinator in PolicyKind::ALL {
        let name = coordinator.name();
        let time = |change: fn(&mut Constants)| with(name, 6144, change).iteration_s;
        let usual = time(|_| ());
        assert!(time(|it| it.preemption_per_node *= 3.0) > usual, "{name}");
        assert!(time(|it| it.oversleep_probability *= 3.0) > 0.99 * usual, "{name}");
        assert!(time(|it| it.spin_preemption_per_node *= 3.0) > 0.99 * usual, "{name}");
    }
}

#[test]
fn a_process_alone_has_no_overhead() {
    for coordinator in PolicyKind::ALL {
        let found = with(coordinator.name(), 1, |_| ());
        assert_eq!(found.iteration_s, found.breakdown.compute_s, "{}", coordinator.name());
    }
}

/// Causes that a policy's mechanism removes have no effect on it.
#[test]
fn causes_act_through_mechanisms() {
    let same =
        |name, change: fn(&mut Constants)| with(name, 6144, change).iteration_s == with(name, 6144, |_| ()).iteration_s;
    let [spin, late]: [fn(&mut Constants); 2] =
        [|it| it.spin_preemption_per_node *= 4.0, |it| it.oversleep_probability *= 4.0];
    for (name, by_spin, by_lateness) in [
        ("negotiate", true, true),
        ("global-sleep", true, true),
        ("nonblocking", false, true),
        ("partitioned", false, false),
        ("graph", false, false),
    ] {
        assert_eq!(!same(name, spin), by_spin, "{name}");
        assert_eq!(!same(name, late), by_lateness, "{name}");
    }
    // Only partitioned cores leave fewer cores to the pipeline, only a coordinator that does not block tests, and only
    // the graph's order is kept.
    let own: [(&str, fn(&mut Constants)); 3] = [
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

/// Most of what the graph's order saves in the coordinator is lost again inside the collective.
#[test]
fn lateness_comes_back_inside_the_collective() {
    let [negotiated, graph] = ["negotiate", "graph"].map(|name| with(name, 24_576, |_| ()).breakdown);
    let returned = (graph.collective_s - negotiated.collective_s) / negotiated.coordinator_s;
    assert!((0.5..0.8).contains(&returned), "{returned}");
}

/// J. Romero et al., "Accelerating collective communication in data parallel training across deep learning frameworks",
/// NSDI 2022: the same response cache on well-balanced processes has 93 % of linear scaling on 27,600 GPUs.
#[test]
fn balanced_processes_scale_with_the_same_cache() {
    let constants = Constants {
        preemption_per_node: 0.0,
        spin_preemption_per_node: 0.0,
        oversleep_probability: 0.0,
        congestion: 0.0,
        collective_step_ms: 0.0,
        ..Constants::default()
    };
    let asked = CoordinatedOptions { overlap: true, constants, ..options("negotiate", 27_600) };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/paceline/catalog/traces/resnet-50.json");
    let resnet = Trace::read(path.as_ref()).unwrap().with_dtype(Dtype::Float16).unwrap();
    let found = coordinate(&resnet.scaled_to_rate(32.0 / 0.0375).unwrap(), &summit(), &asked).unwrap();
    let efficiency = found.breakdown.compute_s / found.iteration_s;
    assert!((0.90..0.96).contains(&efficiency), "{efficiency}");
    assert_eq!(found.latest_s, 0.0);
}

#[test]
fn what_cannot_be_is_refused_with_a_remedy() {
    let refused = |change: fn(&mut CoordinatedOptions, &mut Cluster)| {
        let (mut asked, mut cluster) = (options("negotiate", 4096), summit());
        change(&mut asked, &mut cluster);
        coordinate(&trace(), &cluster, &asked).unwrap_err().0
    };
    assert!(refused(|asked, _| asked.strategy = "ps".into()).contains("servers"));
    assert!(refused(|asked, _| asked.strategy = "halving-doubling".into()).contains("no closed form"));
    assert!(refused(|asked, _| asked.workers = 0).contains("workers"));
    assert!(refused(|asked, _| asked.iterations = 0).contains("iterations"));
    assert!(refused(|asked, _| asked.constants.cycle_ms = f64::NAN).contains("cycle_ms"));
    assert!(refused(|_, cluster| cluster.stragglers = vec![(0, 2.0)]).contains("stragglers"));
}

/// A strategy without a closed form is simulated message by message at small sizes.
#[test]
fn strategies_without_a_closed_form_are_simulated() {
    let asked = CoordinatedOptions { strategy: "halving-doubling".into(), ..options("graph", 96) };
    assert!(coordinate(&trace(), &summit(), &asked).unwrap().breakdown.collective_s > 0.0);
}
