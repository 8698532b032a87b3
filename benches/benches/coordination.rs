//! An iteration of 24,576 processes under every coordinator: under 1 ms is wanted, of one core.
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use paceline_coordinator::PolicyKind;
use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_simulator::coordination::Coordination;
use paceline_simulator::{Options, simulate};

const ITERATIONS: u32 = 100;

fn bench(c: &mut Criterion) {
    let cluster =
        Cluster { bandwidth: Rate(184e9), gpus_per_node: 6, intra_bandwidth: Rate(256e9), ..Cluster::default() };
    let mut trace = Trace::all_reduce(51_200_000, 160).expect("a whole number of elements");
    trace.workers[0].backward = Time(37_500_000_000);
    let mut group = c.benchmark_group("iterations of 24,576 processes");
    group.sample_size(10).measurement_time(Duration::from_secs(2)).throughput(Throughput::Elements(ITERATIONS.into()));
    for coordinator in PolicyKind::ALL {
        let coordination =
            Coordination { contention_s: Some(0.0203), graph_nodes: Some(3988.0), ..Coordination::new(coordinator) };
        let options = Options {
            coordination: Some(coordination),
            iterations: Some(ITERATIONS),
            overlap: false,
            bucket_size: Some(64 << 20),
            ..Options::new("native", 24_576)
        };
        group.bench_function(coordinator.name(), |b| {
            b.iter(|| simulate(black_box(&trace), &cluster, &options).expect("options that can be"));
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
