//! The simulator's speed against the targets of docs/results/benchmarks.md, beside a bare event loop that does nothing else.
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use paceline_model::{Cluster, Time, Trace};
use paceline_schedule::ChunkBytes;
use paceline_simulator::{Options, simulate};

/// The least an event simulation of a ring can do: a standard heap, one event per message, no links, no programs.
fn bare_loop(workers: u64, hop_ps: u64) -> u64 {
    let mut heap: BinaryHeap<Reverse<(u64, u64, u64)>> = (0..workers).map(|w| Reverse((hop_ps, w, 1))).collect();
    let mut end = 0;
    while let Some(Reverse((time, worker, hops))) = heap.pop() {
        end = time;
        if hops < 2 * (workers - 1) {
            heap.push(Reverse((time + hop_ps, (worker + 1) % workers, hops + 1)));
        }
    }
    end
}

fn bench(c: &mut Criterion) {
    let cluster = Cluster { latency: Time(10_000_000), ..Cluster::default() };
    let mut group = c.benchmark_group("ring 100 MB, 25 Gbps, 10 us");
    group.sample_size(10).measurement_time(Duration::from_secs(5));

    group.throughput(Throughput::Elements(2_095_104));
    group.bench_function("bare event loop, 1024 workers", |b| b.iter(|| bare_loop(black_box(1024), 41_250_000)));

    for (name, workers, buckets, critical_path) in [
        ("1024 workers, 1 bucket", 1024, 1, false),
        ("1024 workers, 1 bucket, critical path", 1024, 1, true),
        ("256 workers, 16 buckets at once", 256, 16, false),
        ("32 workers, 611 buckets", 32, 611, false),
        ("32 workers, 611 buckets, critical path", 32, 611, true),
    ] {
        let trace = Trace::all_reduce(100_000_000, buckets).expect("a whole number of elements");
        let options = Options { chunk: Some(ChunkBytes::PerWorker), critical_path, ..Options::new("ring", workers) };
        let messages = simulate(&trace, &cluster, &options).expect("a legal configuration").messages;
        group.throughput(Throughput::Elements(messages));
        group.bench_function(name, |b| b.iter(|| simulate(&trace, &cluster, &options)));
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
