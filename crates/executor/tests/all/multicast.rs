//! Strategies with multicasts: bit-identical to unicasts, whatever happens to the datagrams.
#![allow(unsafe_code, reason = "the world's buffers are handed over by address")]

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::world::{Casting, Transport, add_multicast, begin, drive, executors, on_all, operation, signature, space};
use paceline_executor::Executor;
use paceline_executor::handle::Handle;
use paceline_executor::program::Scheduled;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_schedule::{Bucket, Schedule, Topology, build};
use paceline_transport::error::RunError;
use paceline_transport::header::{Collective, FragmentHeader};
use paceline_transport::multicast::{Counters, Disturbance, Head, Key, OVERHEAD};
use paceline_transport::space::Space;

const STRATEGIES: [&str; 3] = ["ps-multicast", "ps-multicast-aggregation", "ring-multicast"];

fn schedule(name: &str, size: u32, servers: u32) -> Arc<dyn Schedule> {
    let topology = Topology { servers, ..Topology::flat(size) };
    Arc::from(build(name, &topology, &paceline_schedule::Knobs::default()).unwrap())
}

/// Begins an all-reduce with the roles that this rank plays.
fn all_reduce(
    executor: &mut Executor,
    schedule: &Arc<dyn Schedule>,
    (rank, id): (u32, u32),
    memory: &mut [u8],
    dtype: Dtype,
) -> Arc<Handle> {
    let len = (memory.len() / dtype.size()) as u64;
    let all = schedule.roles();
    let mut roles = vec![(rank, space(memory, dtype, 1 << 20))];
    for role in (all.workers..all.total()).filter(|role| role % all.workers == rank) {
        let mut scratch = Space::new(dtype.size());
        scratch.push_scratch(len);
        roles.push((role, scratch));
    }
    let program = Scheduled { schedule: schedule.clone(), bucket: Bucket { id, len, pull_only: false } };
    begin(executor, signature(Collective::AllReduce, dtype, ReduceOp::Sum, len), Box::new(program), roles)
}

/// Bytes that differ between all ranks.
fn bytes(rank: u32, id: u32, count: usize) -> Vec<u8> {
    let mut state = u64::from(rank) << 32 | u64::from(id) | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Results of all-reduces of these lengths, and the counters.
fn run(
    executors: &mut [Executor],
    schedule: &Arc<dyn Schedule>,
    dtype: Dtype,
    lengths: &[usize],
) -> Vec<(Vec<Vec<u8>>, Option<Counters>)> {
    on_all(executors, |rank, executor| {
        let mut memory: Vec<_> =
            (0..).zip(lengths).map(|(id, &length)| bytes(rank, id, length * dtype.size())).collect();
        let handles: Vec<_> = (0..)
            .zip(&mut memory)
            .map(|(id, memory)| all_reduce(executor, schedule, (rank, id), memory, dtype))
            .collect();
        drive(executor, &handles);
        assert!(handles.iter().all(|handle| handle.result().is_ok()));
        (memory, executor.wires().multicast().map(|all| all.counters()))
    })
}

fn casting(size: u32, how: &Casting) -> (Vec<Executor>, SocketAddrV4) {
    let mut all = executors(size, Transport::Mixed);
    let address = add_multicast(&mut all, how);
    (all, address)
}

/// Checks that results match unicasts; returns the sum of the counters.
fn same_as_unicasts(name: &str, size: u32, dtype: Dtype, lengths: &[usize], how: &Casting) -> Counters {
    let schedule = schedule(name, size, 1 + size % 3);
    let (mut ours, _) = casting(size, how);
    let with = run(&mut ours, &schedule, dtype, lengths);
    let without = run(&mut executors(size, Transport::ShmCopied), &schedule, dtype, lengths);
    let mut sum = Counters::default();
    for (rank, ((got, counters), (expected, _))) in with.iter().zip(&without).enumerate() {
        assert!(got == expected && got == &with[0].0, "{name}, {size} ranks, {dtype:?}: rank {rank} has other bits");
        let counters = counters.unwrap();
        sum.sent += counters.sent;
        sum.received += counters.received;
        sum.repaired += counters.repaired;
        sum.repeated += counters.repeated;
        sum.strangers += counters.strangers;
        sum.refused += counters.refused;
    }
    for (rank, executor) in ours.iter_mut().enumerate() {
        assert!(executor.wires().lost.is_empty());
        assert_eq!(executor.wires().multicast().unwrap().held(), (0, 0), "rank {rank} keeps something");
    }
    assert_eq!((sum.strangers, sum.refused), (0, 0));
    sum
}

#[test]
fn the_same_bits_as_with_unicasts() {
    // All sizes with `PACELINE_TEST_ALL` (`make test-all`).
    let all = std::env::var_os("PACELINE_TEST_ALL").is_some();
    for name in STRATEGIES {
        for size in (2..=8).filter(|size| all || [2, 3, 5].contains(size)) {
            // Lengths around the ends of datagrams, pieces and the window.
            let element = 8192 / 4;
            let lengths = [0, 1, 5, element - 1, element, element + 1, 3 * element + 7, 300_000];
            let counters = same_as_unicasts(name, size, Dtype::Float32, &lengths, &Casting::default());
            assert!(counters.sent > 0 && counters.received > 0, "{name} {size}: {counters:?}");
        }
    }
}

#[test]
fn every_dtype() {
    for name in STRATEGIES {
        for dtype in Dtype::ALL {
            for payload in [8192, 1384] {
                let element = payload / dtype.size();
                let lengths = [1, element - 1, element, element + 1, 3 * element, 40_001];
                same_as_unicasts(name, 3, dtype, &lengths, &Casting { payload, ..Casting::default() });
            }
        }
    }
}

#[test]
fn nothing_is_lost_whatever_befalls_the_datagrams() {
    let how = |lose, repeat, reorder| Disturbance { lose, repeat, reorder, seed: 11 };
    for disturbance in [how(0.2, 0.0, 0.0), how(0.0, 0.3, 0.0), how(0.0, 0.0, 0.3), how(0.2, 0.2, 0.2)] {
        for name in STRATEGIES {
            for window in [64 << 10, 1 << 20] {
                let casting = Casting { disturbance: Some(disturbance), window, ..Casting::default() };
                let counters = same_as_unicasts(name, 4, Dtype::Float32, &[1, 10_000, 0, 100_003, 7], &casting);
                assert!(counters.repaired > 0 || disturbance.lose == 0.0, "{counters:?}");
                assert!(counters.repeated > 0 || disturbance.repeat == 0.0, "{counters:?}");
            }
        }
    }
}

/// All datagrams are lost: all is repaired.
#[test]
fn a_network_that_copies_nothing_is_slow_and_no_more() {
    let disturbance = Some(Disturbance { lose: 1.0, ..Disturbance::default() });
    let casting = Casting { disturbance, ..Casting::default() };
    let counters = same_as_unicasts("ps-multicast", 3, Dtype::Int32, &[50_000, 3], &casting);
    assert_eq!((counters.received, counters.repaired), (0, 2 * counters.sent));
}

#[test]
fn a_multicast_is_sent_once() {
    // In a ring each piece goes W - 1 times to the next, and then once to all.
    let (size, elements) = (4, 100_000);
    let (mut all, _) = casting(size, &Casting::default());
    run(&mut all, &schedule("ring-multicast", size, 1), Dtype::Float32, &[elements]);
    for executor in &mut all {
        assert_eq!(executor.wires().bytes, [4 * elements as u64, 4 * elements as u64 / 4 * 6]);
    }
    let mut all = executors(size, Transport::Mixed);
    run(&mut all, &schedule("ring-multicast", size, 1), Dtype::Float32, &[elements]);
    assert!(all.iter_mut().all(|executor| executor.wires().bytes[0] >= 4 * elements as u64 / 4 * 6 - 8));
}

#[test]
fn who_does_not_look_slows_the_others_and_costs_no_memory() {
    const BYTES: usize = 12 << 20;
    let (size, how) = (3, Casting { window: 512 << 10, ..Casting::default() });
    let schedule = schedule("ps-multicast", size, 1);
    let (mut all, _) = casting(size, &how);
    let (slow, most) = (Barrier::new(size as usize), how.window + how.window / 8192 * OVERHEAD);
    on_all(&mut all, |rank, executor| {
        let mut memory = vec![rank as u8 + 1; BYTES];
        let handle = all_reduce(executor, &schedule, (rank, 0), &mut memory, Dtype::Uint8);
        let began = Instant::now();
        let (mut asleep, mut seen) = (false, 0);
        while !handle.done() {
            if !executor.progress() {
                std::thread::yield_now();
            }
            let (kept, waiting) = executor.wires().multicast().unwrap().held();
            assert!(kept <= most && waiting <= 2 * most, "rank {rank} keeps {kept} and {waiting} bytes");
            seen = seen.max(kept);
            // In the middle of the multicast.
            if rank == 2 && !asleep && executor.wires().multicast().unwrap().counters().received > 200 {
                std::thread::sleep(Duration::from_millis(400));
                asleep = true;
            }
            assert!(began.elapsed() < Duration::from_secs(30));
        }
        assert!(asleep || rank != 2);
        assert!(seen > 0 || rank != 0, "the server's window was used");
        assert!(memory.iter().all(|&byte| byte == 6));
        while executor.wires().unflushed() {
            executor.progress();
        }
        slow.wait();
    });
}

/// A stranger on the network sends to the group: garbage, datagrams of another job, and changed, truncated or repeated
/// ones.
#[test]
fn strangers_are_counted_and_change_nothing() {
    let how = Casting::default();
    let (mut all, address) = casting(3, &how);
    let over = AtomicBool::new(false);
    let schedule = schedule("ps-multicast", 3, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| disturb(address, &how.key, &over));
        let results = run(&mut all, &schedule, Dtype::Int32, &[400_000, 1, 0, 400_000]);
        over.store(true, Ordering::SeqCst);
        let plain = run(&mut executors(3, Transport::ShmCopied), &schedule, Dtype::Int32, &[400_000, 1, 0, 400_000]);
        for ((got, counters), (expected, _)) in results.iter().zip(&plain) {
            assert!(got == expected);
            assert!(counters.unwrap().strangers > 0, "{counters:?}");
        }
    });
}

fn disturb(address: SocketAddrV4, key: &[u8; 32], over: &AtomicBool) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let interface = socket2::SockRef::from(&socket);
    interface.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    let header = |bytes| FragmentHeader {
        group: 0,
        seq: 0,
        lane: 0,
        slot: 1,
        from: 3,
        to: u16::MAX,
        bytes,
        offset: 0,
        signature: signature(Collective::AllReduce, Dtype::Int32, ReduceOp::Sum, 400_000),
    };
    let (ours, other) = (Key::new(key), Key::new(&[9; 32]));
    let mut number = 0u64;
    while !over.load(Ordering::SeqCst) {
        number += 1;
        let head = Head { sender: 0, number, last: false, header: header(800) };
        let mut datagram = vec![0; 800 + OVERHEAD];
        let length = [&ours, &other][number as usize % 2].write(&head, &[number as u8; 800], &mut datagram);
        match number % 5 {
            0 => datagram.truncate(length / 2),
            1 => datagram = bytes(9, number as u32, 1 + number as usize % 9000),
            2 => datagram[100] ^= 1,
            3 => datagram = vec![datagram[0]; 20_000],
            _ => datagram[24] ^= 1,
        }
        let _ = socket.send_to(&datagram, address);
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// A receiver leaves in the middle of a stream: the others learn which, and nothing is kept for it.
#[test]
fn who_is_gone_is_named_and_not_waited_for() {
    let (size, schedule) = (3, schedule("ps-multicast", 3, 1));
    let (mut all, _) = casting(size, &Casting { window: 128 << 10, ..Casting::default() });
    let mut gone = all.pop().unwrap();
    let mut memory: Vec<Vec<u8>> = (0..size).map(|rank| vec![rank as u8; 8 << 20]).collect();
    let theirs = all_reduce(&mut gone, &schedule, (2, 0), &mut memory[2], Dtype::Uint8);
    let (two, three) = memory.split_at_mut(1);
    let handles = [
        all_reduce(&mut all[0], &schedule, (0, 0), &mut two[0], Dtype::Uint8),
        all_reduce(&mut all[1], &schedule, (1, 0), &mut three[0], Dtype::Uint8),
    ];
    let until = Instant::now() + Duration::from_secs(20);
    while gone.wires().multicast().unwrap().counters().received < 20 {
        gone.progress();
        all.iter_mut().for_each(|executor| {
            executor.progress();
        });
        assert!(Instant::now() < until);
    }
    gone.wires().disconnect(true);
    while all.iter_mut().any(|executor| executor.wires().lost.is_empty()) {
        all.iter_mut().for_each(|executor| {
            executor.progress();
        });
        assert!(Instant::now() < until);
    }
    let error = RunError::Failed("rank 2 died".into());
    for (executor, handle) in all.iter_mut().zip(&handles) {
        assert!(executor.wires().lost.iter().all(|lost| lost.rank == 2));
        executor.fail_group(0, &error);
        assert!(handle.result().is_err());
    }
    for executor in &mut all {
        while executor.wires().unflushed() {
            executor.progress();
            assert!(Instant::now() < until);
        }
        assert_eq!(executor.wires().multicast().unwrap().held(), (0, 0));
    }
    assert!(!theirs.done());
    gone.fail_group(0, &error);
}

/// Groups of some ranks: the others see the datagrams and ignore them.
#[test]
fn groups_of_some_ranks() {
    let (mut all, _) = casting(4, &Casting::default());
    let (pair, trio) = (schedule("ring-multicast", 2, 1), schedule("ps-multicast", 3, 2));
    for (rank, executor) in (0u32..).zip(&mut all) {
        if rank < 2 {
            executor.add_group(7, vec![1, 0], 1 - rank);
        }
        if rank > 0 {
            executor.add_group(8, vec![1, 2, 3], rank - 1);
        }
    }
    let begin_in = |executor: &mut Executor, group: u32, schedule: &Arc<dyn Schedule>, me: u32, memory: &mut [u8]| {
        let (len, all) = (memory.len() as u64, schedule.roles());
        let mut roles = vec![(me, space(memory, Dtype::Uint8, 1 << 20))];
        for role in (all.workers..all.total()).filter(|role| role % all.workers == me) {
            let mut scratch = Space::new(1);
            scratch.push_scratch(len);
            roles.push((role, scratch));
        }
        let program = Scheduled { schedule: schedule.clone(), bucket: Bucket { id: 0, len, pull_only: false } };
        let signature = signature(Collective::AllReduce, Dtype::Uint8, ReduceOp::Sum, len);
        let spec = operation(signature, Box::new(program), roles);
        let handle = spec.handle.clone();
        executor.begin(group, spec);
        handle
    };
    on_all(&mut all, |rank, executor| {
        for _ in 0..3 {
            let (mut first, mut second) = (vec![rank as u8 + 1; 70_000], vec![rank as u8 + 1; 50_001]);
            let mut handles = Vec::new();
            if rank < 2 {
                handles.push(begin_in(executor, 7, &pair, 1 - rank, &mut first));
            }
            if rank > 0 {
                handles.push(begin_in(executor, 8, &trio, rank - 1, &mut second));
            }
            drive(executor, &handles);
            assert!(rank > 1 || first.iter().all(|&byte| byte == 3));
            assert!(rank < 1 || second.iter().all(|&byte| byte == 9));
        }
        executor.remove_group(7);
    });
    for executor in &mut all {
        assert_eq!(executor.wires().multicast().unwrap().held(), (0, 0));
    }
}
