//! Cost of signing and checking a multicast datagram, in bytes of payload per second.
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_transport::header::{Collective, EVERYBODY, FragmentHeader, Signature};
use paceline_transport::multicast::{Head, Key, OVERHEAD};

fn datagrams(c: &mut Criterion) {
    let key = Key::new(&[7; 32]);
    let signature = Signature {
        collective: Collective::AllReduce,
        dtype: Dtype::Float32,
        op: ReduceOp::Sum,
        root: 0,
        count: 1 << 20,
        plan: 1,
    };
    // For jumbo frames, and for Ethernet's.
    for payload in [8192, 1384] {
        let mut group = c.benchmark_group(format!("{payload} bytes"));
        group.sample_size(10).measurement_time(Duration::from_secs(2)).throughput(Throughput::Bytes(payload as u64));
        let bytes = payload as u32;
        let (seq, lane, slot, from, to, offset) = (0, 0, 1, 4, EVERYBODY, 0);
        let header = FragmentHeader { group: 0, seq, lane, slot, from, to, bytes, offset, signature };
        let head = Head { sender: 0, number: 0, last: false, header };
        let (body, mut out) = (vec![0x3c; payload], vec![0; payload + OVERHEAD]);
        group.bench_function("sign", |b| b.iter(|| key.write(&head, black_box(&body), black_box(&mut out))));
        group.bench_function("check", |b| b.iter(|| assert!(key.signed(black_box(&out)))));
        group.finish();
    }
}

criterion_group!(benches, datagrams);
criterion_main!(benches);
