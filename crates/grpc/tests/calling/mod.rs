//! Ranks as threads of one process that call each other over gRPC, for the tests of this crate and of the executor.
use std::time::{Duration, Instant};

use paceline_grpc::{self as grpc, ConnectOptions, Connected, GrpcListener};
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_transport::header::{Collective, Signature};

/// Ranks that call each other over gRPC; the last `servers` of them are parameter servers.
pub fn calling(size: u32, servers: u32, encrypted: bool) -> Vec<Connected> {
    let listeners: Vec<GrpcListener> =
        (0..size).map(|_| GrpcListener::open("127.0.0.1", Some(encrypted)).unwrap()).collect();
    let offers: Vec<_> = listeners.iter().map(|listener| listener.offer().clone()).collect();
    let deadline = Instant::now() + Duration::from_secs(30);
    let options = &|rank| ConnectOptions {
        rank,
        workers: size - servers,
        offers: offers.clone(),
        key: [9; 32],
        tensors: true,
        deadline,
    };
    std::thread::scope(|scope| {
        let connect = |(rank, listener)| scope.spawn(move || grpc::connect(listener, options(rank)).unwrap());
        let threads: Vec<_> = (0..).zip(listeners).map(connect).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Of an operation without a root.
pub fn signature(collective: Collective, dtype: Dtype, op: ReduceOp, count: u64) -> Signature {
    Signature { collective, dtype, op, root: 0, count, plan: 0 }
}
