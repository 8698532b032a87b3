//! Every strategy over every transport: sums are exact and the same on all ranks, or on the rank that owns them.

use std::sync::Arc;

use crate::world::{TRANSPORTS, Transport, begin_scaled, drive, executors, on_all, signature, space};
use paceline_executor::Executor;
use paceline_executor::handle::Handle;
use paceline_executor::program::Scheduled;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_schedule::{
    self as schedule, Bucket, Chunk, Knobs, Schedule, Topology, build_collective, shard, synchronous,
};
use paceline_transport::channel::LARGEST_FRAGMENT;
use paceline_transport::header::Collective;
use paceline_transport::space::Space;

/// Factor of sums. A rank alone has nobody to apply it, and in a reduce-scatter the caller does.
fn factor(schedule: &dyn Schedule) -> Option<f64> {
    (schedule.roles().total() > 1 && schedule.collective() == schedule::Collective::AllReduce).then_some(3.0)
}

/// The roles that a rank plays, with memory for each: servers and switches are spread over the workers.
fn roles(schedule: &dyn Schedule, rank: u32, worker: Space, len: u64) -> Vec<(u32, Space)> {
    let all = schedule.roles();
    let mut mine = vec![(rank, worker)];
    for role in all.workers..all.total() {
        if role % all.workers == rank {
            let mut scratch = Space::new(8);
            if role < all.workers + all.servers {
                scratch.push_scratch(len);
            } else {
                // A switch passes on in the least memory that takes every fragment.
                scratch = Space::windowed(8, len, LARGEST_FRAGMENT as u64 / 8);
            }
            mine.push((role, scratch));
        }
    }
    mine
}

fn start(
    executor: &mut Executor,
    schedule: &Arc<dyn Schedule>,
    rank: u32,
    id: u32,
    memory: &mut [u8],
    cut: usize,
) -> Arc<Handle> {
    let len = (memory.len() / 8) as u64;
    let program = Scheduled { schedule: schedule.clone(), bucket: Bucket { id, len, pull_only: false } };
    let roles = roles(&**schedule, rank, space(memory, Dtype::Int64, cut), len);
    let collective = match schedule.collective() {
        schedule::Collective::AllReduce => Collective::AllReduce,
        schedule::Collective::ReduceScatter => Collective::ReduceScatter,
        schedule::Collective::AllGather => Collective::AllGather,
    };
    let signature = signature(collective, Dtype::Int64, ReduceOp::Sum, len);
    begin_scaled(executor, signature, Box::new(program), roles, factor(&**schedule))
}

/// Checks each collective that the strategy has.
fn check(name: &str, size: u32, transport: Transport, knobs: &Knobs, servers: u32, lengths: &[usize]) {
    let entry = schedule::find(name).unwrap();
    for collective in schedule::Collective::ALL.into_iter().filter(|&it| entry.offers(it)) {
        check_one(collective, name, size, transport, knobs, servers, lengths);
    }
}

fn check_one(
    collective: schedule::Collective,
    name: &str,
    size: u32,
    transport: Transport,
    knobs: &Knobs,
    servers: u32,
    lengths: &[usize],
) {
    let topology = Topology {
        ranks_per_node: 2.min(size),
        servers,
        switch_radix: (size > 4).then_some(3),
        ..Topology::flat(size)
    };
    let topology = topology.in_racks((size > 5).then_some(2));
    let schedule: Arc<dyn Schedule> = Arc::from(build_collective(collective, name, &topology, knobs).unwrap());
    let mut executors = executors(size, transport);
    let value = |rank: u32, id: usize, i: usize| i64::from(rank + 1) * 1_000_003 + (id * 7 + i) as i64;
    let range = |piece: schedule::Piece| piece.off as usize..(piece.off + piece.len) as usize;
    let expected: Vec<Vec<i64>> = (0..)
        .zip(lengths)
        .map(|(id, &len)| {
            let bucket = Bucket { id: id as u32, len: len as u64, pull_only: false };
            if collective.reduces() {
                let factor = factor(&*schedule).map_or(1, |f| f as i64);
                (0..len).map(|i| (0..size).map(|r| value(r, id, i)).sum::<i64>() * factor).collect()
            } else {
                // The shards of all ranks, in order.
                (0..size)
                    .flat_map(|owner| range(shard(&bucket, size, owner)).map(move |i| value(owner, id, i)))
                    .collect()
            }
        })
        .collect();
    let results = on_all(&mut executors, |rank, executor| {
        let mut memory: Vec<Vec<u8>> = (0..)
            .zip(lengths)
            .map(|(id, &len)| {
                let mut memory = vec![0; 8 * len];
                for (i, element) in memory.chunks_exact_mut(8).enumerate() {
                    element.copy_from_slice(&value(rank, id, i).to_ne_bytes());
                }
                memory
            })
            .collect();
        let handles: Vec<_> = memory
            .iter_mut()
            .enumerate()
            .map(|(id, memory)| {
                // In small runs, of other lengths on other ranks, or in one.
                let cut = if id % 2 == 1 { 100 + 37 * rank as usize } else { 1 << 20 };
                start(executor, &schedule, rank, id as u32, memory, cut)
            })
            .collect();
        drive(executor, &handles);
        for (id, memory) in memory.iter().enumerate() {
            let bucket = Bucket { id: id as u32, len: lengths[id] as u64, pull_only: false };
            let complete = range(if collective.gathers() { bucket.whole() } else { shard(&bucket, size, rank) });
            for (element, i) in memory[8 * complete.start..8 * complete.end].chunks_exact(8).zip(complete) {
                let found = i64::from_ne_bytes(element.try_into().unwrap());
                assert_eq!(found, expected[id][i], "{name} {collective:?} {size} {transport:?} {id} {i}");
            }
        }
        handles.iter().map(|handle| handle.result()).collect::<Vec<_>>()
    });
    assert!(results.iter().flatten().all(Result::is_ok));
}

#[test]
fn every_strategy_over_every_transport() {
    // More ranks than cores take long: all sizes over all transports with `PACELINE_TEST_ALL` (`make test-all`), otherwise
    // each size over one and each transport with one.
    let all = std::env::var_os("PACELINE_TEST_ALL").is_some();
    for entry in synchronous() {
        for (i, transport) in TRANSPORTS.into_iter().enumerate() {
            let sizes: &[u32] = match (all, i) {
                (true, _) => &[1, 2, 3, 4, 5, 8],
                (false, 0) => &[1, 2, 3, 5],
                (false, _) => &[3],
            };
            for &size in sizes {
                check(entry.name, size, transport, &Knobs::default(), 1 + size % 3, &[0, 1, 5, 1000, 40_000, 30_000]);
            }
        }
    }
}

#[test]
fn large_messages_in_small_pieces_and_whole() {
    // Every third without `PACELINE_TEST_ALL`, of which each strategy has both chunks and each transport both.
    let all = std::env::var_os("PACELINE_TEST_ALL").is_some();
    for (i, entry) in synchronous().iter().enumerate() {
        for (j, chunk) in [Chunk::Elements(5000), Chunk::Whole].into_iter().enumerate() {
            for (k, transport) in [Transport::Shm, Transport::ShmCopied, Transport::Mixed].into_iter().enumerate() {
                if !all && (i + j + k) % 3 != 0 {
                    continue;
                }
                let knobs = Knobs { chunk: Some(chunk), ..Knobs::default() };
                check(entry.name, 4, transport, &knobs, 2, &[300_000, 3, 250_001]);
            }
        }
    }
}
