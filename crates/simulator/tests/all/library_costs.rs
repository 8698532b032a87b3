//! Costs that libraries and machines add to the workers' computation, on a network that takes no time.
use paceline_model::cluster::Jitter;
use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_simulator::offload::{Beside, Offloaded};
use paceline_simulator::{Options, simulate};

const FORWARD: f64 = 0.01;
const BACKWARD: f64 = 0.02;

fn trace() -> Trace {
    let text = r#"{"format":"paceline-trace","version":1,"name":"two","batch":1,"dtype":"float32","workers":[
        {"forward":[{"layer":"a","duration_s":0.01,"tensors":["x","y"]}],
         "gradients":[{"tensor":"y","ready_s":0.005,"bytes":4},{"tensor":"x","ready_s":0.02,"bytes":4}],
         "backward_s":0.02}]}"#;
    Trace::from_json(text.as_bytes(), "two").unwrap()
}

fn cluster() -> Cluster {
    Cluster { bandwidth: Rate(1e18), intra_bandwidth: Rate(1e18), ..Cluster::default() }
}

fn seconds(cluster: &Cluster, options: &Options) -> f64 {
    simulate(&trace(), cluster, options).unwrap().iteration_s
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
}

#[test]
fn calls_delay_the_backward_pass_and_agreements_run_beside_it() {
    let options = |call_us, agreement_us| Options {
        call: Time::from_seconds(call_us * 1e-6),
        agreement: Time::from_seconds(agreement_us * 1e-6),
        ..Options::new("ring", 4)
    };
    close(seconds(&cluster(), &options(0.0, 0.0)), FORWARD + BACKWARD);
    close(seconds(&cluster(), &options(100.0, 0.0)), FORWARD + BACKWARD + 2.0 * 100e-6);
    // The first agreement is over before the second gradient is ready.
    close(seconds(&cluster(), &options(0.0, 300.0)), FORWARD + BACKWARD + 300e-6);
    // It is not: 5 ms, then 20 ms each.
    close(seconds(&cluster(), &options(0.0, 20_000.0)), FORWARD + 0.005 + 2.0 * 0.02);
    // A faster device does not hand over faster.
    let faster = Options { compute_speedup: 10.0, ..options(100.0, 0.0) };
    close(seconds(&cluster(), &faster), (FORWARD + BACKWARD) / 10.0 + 2.0 * 100e-6);
}

#[test]
fn a_slow_gpu_lengthens_no_calls() {
    let options = |call_us, agreement_us| Options {
        call: Time::from_seconds(call_us * 1e-6),
        agreement: Time::from_seconds(agreement_us * 1e-6),
        ..Options::new("ring", 4)
    };
    let slow = Cluster { stragglers: vec![(2, 3.0)], ..cluster() };
    close(seconds(&slow, &options(100.0, 0.0)), 3.0 * (FORWARD + BACKWARD) + 2.0 * 100e-6);
    close(seconds(&slow, &options(0.0, 300.0)), 3.0 * (FORWARD + BACKWARD) + 300e-6);
    // Agreements that take longer than the pass run one after the other from the first gradient.
    close(seconds(&slow, &options(0.0, 80_000.0)), 3.0 * (FORWARD + 0.005) + 2.0 * 0.08);
}

#[test]
fn a_slow_gpu_lengthens_no_copies() {
    let beside = |computed, offloaded| Beside { computed, offloaded };
    let offloaded = Offloaded { forward: beside(0.25, 1.0), backward: beside(1.0, 0.5), optimizer: Beside::default() };
    let copying = Options { offloaded, ..Options::new("ring", 4) };
    let of = |factor: f64| Cluster { stragglers: vec![(2, factor)], ..cluster() };
    close(seconds(&of(1.0), &copying), FORWARD + BACKWARD);
    close(seconds(&of(3.0), &copying), FORWARD + 3.0 * BACKWARD);
    close(seconds(&of(8.0), &copying), 2.0 * FORWARD + 8.0 * BACKWARD);
    let fast = Cluster { stragglers: (0..4).map(|rank| (rank, 0.1)).collect(), ..cluster() };
    close(seconds(&fast, &copying), FORWARD + 0.5 * BACKWARD);
    // Nor do GPUs that share a node, or vary from step to step.
    let copies = Offloaded { forward: beside(1e-3, 1.0), backward: beside(1e-3, 1.0), ..offloaded };
    let copies = Options { offloaded: copies, iterations: Some(5), ..copying };
    let noisy = Cluster { jitter: Some(Jitter { sigma: 0.5 }), gpus_per_node: 2, node_contention: 0.5, ..cluster() };
    close(seconds(&noisy, &copies), FORWARD + BACKWARD);
    assert!(seconds(&noisy, &Options { offloaded: Offloaded::default(), ..copies }) > 1.5 * (FORWARD + BACKWARD));
}

#[test]
fn who_is_alone_hands_over_nothing_and_waits_for_nobody() {
    let alone = Options {
        call: Time::from_seconds(1e-3),
        agreement: Time::from_seconds(1e-3),
        spread: 0.1,
        ..Options::new("ring", 1)
    };
    let shared = Cluster { gpus_per_node: 4, node_contention: 0.5, ..cluster() };
    close(seconds(&shared, &alone), FORWARD + BACKWARD);
}

#[test]
fn all_wait_for_the_slowest() {
    // The largest of 4 normal draws is expected at 1.029 (Harter 1961); Blom's formula gives 1.049.
    let spread = Options { spread: 0.1, ..Options::new("ring", 4) };
    let slower = seconds(&cluster(), &spread) / (FORWARD + BACKWARD);
    assert!((slower.ln() - 0.1 * 1.03).abs() < 0.003, "{slower}");
}

#[test]
fn gpus_of_a_node_slow_each_other_down() {
    let shared = Cluster { gpus_per_node: 2, node_contention: 0.5, ..cluster() };
    close(seconds(&shared, &Options::new("ring", 2)), 1.5 * (FORWARD + BACKWARD));
    let alone = Cluster { gpus_per_node: 1, ..shared };
    close(seconds(&alone, &Options::new("ring", 2)), FORWARD + BACKWARD);
}
