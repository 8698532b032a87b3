//! Kernels of the runtime, in bytes of one buffer per second: in the second level of the cache, and out of all caches.
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_kernels::reduce::{copy, copy_streaming, kernel, kernel_and_copy, scale};

/// A buffer as shared memory has them: at the beginning of a line of the cache. It holds normal numbers of any type.
fn buffer(memory: &mut Vec<u8>, len: usize) -> &mut [u8] {
    memory.resize(len + 64, 0x3c);
    let start = memory.as_ptr().align_offset(64);
    &mut memory[start..start + len]
}

fn kernels(c: &mut Criterion) {
    for (name, len) in [("64 KiB", 64 << 10), ("64 MiB", 64 << 20)] {
        let mut group = c.benchmark_group(name);
        group.sample_size(10).measurement_time(Duration::from_secs(2)).throughput(Throughput::Bytes(len as u64));
        let mut memory = [const { Vec::new() }; 3];
        let [dst, out, src] = memory.each_mut().map(|memory| buffer(memory, len));
        for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
            let (sum, sum_and_copy) = (kernel(dtype, ReduceOp::Sum), kernel_and_copy(dtype, ReduceOp::Sum));
            let name = dtype.name();
            group.bench_function(format!("{name} sum"), |b| b.iter(|| sum(black_box(&mut *dst), black_box(src))));
            group.bench_function(format!("{name} sum, then copy"), |b| {
                b.iter(|| {
                    sum(black_box(&mut *dst), black_box(src));
                    copy(black_box(&mut *out), black_box(dst));
                });
            });
            group.bench_function(format!("{name} sum and copy"), |b| {
                b.iter(|| sum_and_copy(black_box(&mut *dst), black_box(&mut *out), black_box(src)));
            });
            // Not less than 1: halves of halves would soon be subnormal.
            group.bench_function(format!("{name} scale"), |b| b.iter(|| scale(dtype, black_box(&mut *dst), -1.0)));
        }
        group.finish();
    }
}

/// From a small buffer, which stays in the cache, into the pieces of a large one, which does not.
fn copies(c: &mut Criterion) {
    const TOTAL: usize = 512 << 20;
    let mut memory = [const { Vec::new() }; 2];
    let [dst, src] = memory.each_mut().map(|memory| buffer(memory, TOTAL));
    for (name, len) in [("256 KiB", 256 << 10), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)] {
        let mut group = c.benchmark_group(format!("{name} into 512 MiB"));
        group.sample_size(10).measurement_time(Duration::from_secs(2)).throughput(Throughput::Bytes(TOTAL as u64));
        let mut bench = |name: &str, copy: fn(&mut [u8], &[u8])| {
            group.bench_function(name, |b| {
                b.iter(|| dst.chunks_mut(len).for_each(|piece| copy(black_box(piece), black_box(&src[..len]))));
            });
        };
        bench("copy", copy);
        bench("copy_streaming", copy_streaming);
        group.finish();
    }
}

criterion_group!(benches, kernels, copies);
criterion_main!(benches);
