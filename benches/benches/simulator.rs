//! The simulator's speed, in messages per second, against the targets of docs/benchmarks.md.
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use paceline_model::{Cluster, Time, Trace};
use paceline_simulator::{ChunkBytes, Options, simulate};

fn bench(c: &mut Criterion) {
    let cluster = Cluster { latency: Time(10_000_000), ..Cluster::default() };
    let mut group = c.benchmark_group("ring 100 MB, 25 Gbps, 10 us");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    for (name, workers, buckets, critical_path) in [
        ("1024 workers, 1 bucket", 1024, 1, false),
        ("1024 workers, 1 bucket, critical path", 1024, 1, true),
        ("256 workers, 16 buckets at once", 256, 16, false),
        ("32 workers, 611 buckets", 32, 611, false),
        ("32 workers, 611 buckets, critical path", 32, 611, true),
    ] {
        let trace = Trace::all_reduce(100_000_000, buckets).expect("a whole number of elements");
        let options =
            Options { chunk: Some(ChunkBytes::PerWorker), critical_path, ..Options::new("ring", workers) };
        let messages = simulate(&trace, &cluster, &options).expect("a legal configuration").messages;
        group.throughput(Throughput::Elements(messages));
        group.bench_function(name, |b| b.iter(|| simulate(&trace, &cluster, &options)));
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
