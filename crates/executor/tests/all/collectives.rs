//! Collectives other than all-reduce, and sends and receives, over every transport.
#![allow(unsafe_code, reason = "buffers of the test are handed over by address, as a caller does")]

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::world::{TRANSPORTS, Transport, begin, drive, executors, on_all, operation, signature, space};
use paceline_executor::handle::Handle;
use paceline_executor::program::{Barrier, Broadcast, Exchange, Program, Reduce, ReduceScatter, SendRecv};
use paceline_executor::{Executor, OperationSpec, PointToPoint, Wires};
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_schedule::{Op, Piece, Step};
use paceline_transport::channel::{Channel, Sink};
use paceline_transport::header::{Collective, FragmentHeader, Signature};

const SIZES: [u32; 4] = [2, 3, 5, 8];

fn bytes(values: impl Iterator<Item = i32>) -> Vec<u8> {
    values.flat_map(i32::to_ne_bytes).collect()
}

fn values(memory: &[u8]) -> Vec<i32> {
    memory.chunks(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect()
}

/// Runs one program on all ranks, over memory that `fill` initializes; returns the memory afterwards.
fn run(
    size: u32,
    transport: Transport,
    collective: Collective,
    fill: impl Fn(u32) -> Vec<i32> + Sync,
    program: impl Fn(u32) -> Box<dyn Program> + Sync,
) -> Vec<Vec<i32>> {
    let mut executors = executors(size, transport);
    on_all(&mut executors, |rank, executor| {
        let mut memory = bytes(fill(rank).into_iter());
        let signature = signature(collective, Dtype::Int32, ReduceOp::Sum, 0);
        let roles = vec![(rank, space(&mut memory, Dtype::Int32, 1000))];
        let handle = begin(executor, signature, program(rank), roles);
        drive(executor, &[handle]);
        values(&memory)
    })
}

#[test]
fn broadcast_from_every_root() {
    for transport in TRANSPORTS {
        for size in SIZES {
            for root in [0, size - 1] {
                for len in [1, 999, 20_000] {
                    let fill = |rank: u32| (0..len).map(|i| if rank == root { i } else { -1 }).collect();
                    let program =
                        |_| -> Box<dyn Program> { Box::new(Broadcast { size, root, len: len as u64, chunk: 700 }) };
                    let results = run(size, transport, Collective::Broadcast, fill, program);
                    assert!(results.iter().all(|r| r.iter().copied().eq(0..len)), "{transport:?} {size} {root} {len}");
                }
            }
        }
    }
}

#[test]
fn reduce_and_reduce_scatter() {
    for transport in TRANSPORTS {
        for size in SIZES {
            let (root, len) = (size / 2, 5003u64);
            let fill = |rank: u32| (0..len as i32).map(|i| i * (rank as i32 + 1)).collect();
            let program = |_| -> Box<dyn Program> { Box::new(Reduce { size, root, len, chunk: 512 }) };
            let results = run(size, transport, Collective::Reduce, fill, program);
            let factor = (size * (size + 1) / 2) as i32;
            assert!(results[root as usize].iter().copied().eq((0..len as i32).map(|i| i * factor)));
            // The memory of the other ranks is unchanged.
            let other = (root + 1) % size;
            assert!(results[other as usize].iter().copied().eq((0..len as i32).map(|i| i * (other as i32 + 1))));

            // Parts of different lengths, one of them empty: rank r gets 700 r elements.
            let lengths: Vec<u64> = (0..size).map(|r| 700 * u64::from(r)).collect();
            let total: u64 = lengths.iter().sum();
            let starts: Vec<u64> = lengths
                .iter()
                .scan(0, |at, l| {
                    *at += l;
                    Some(*at - l)
                })
                .collect();
            let own = |rank: u32| Piece { off: total, len: lengths[rank as usize] };
            let fill = |rank: u32| {
                let mut all: Vec<i32> = (0..total as i32).map(|i| i + rank as i32).collect();
                let start = starts[rank as usize] as usize;
                all.extend_from_within(start..start + lengths[rank as usize] as usize);
                all
            };
            let program = |rank| -> Box<dyn Program> {
                let parts = starts.iter().zip(&lengths).map(|(&off, &len)| Piece { off, len }).collect();
                Box::new(ReduceScatter { parts, own: own(rank), chunk: 512 })
            };
            let results = run(size, transport, Collective::ReduceScatter, fill, program);
            let ranks = (0..size as i32).sum::<i32>();
            for (rank, result) in results.iter().enumerate() {
                let expected = (0..lengths[rank] as i32).map(|i| (starts[rank] as i32 + i) * size as i32 + ranks);
                assert!(result[total as usize..].iter().copied().eq(expected), "{transport:?} {size} {rank}");
            }
        }
    }
}

/// A rank that had to send in a lane before it receives there would wait for a peer that does the same.
#[test]
fn in_a_lane_of_a_reduce_scatter_a_rank_sends_or_receives() {
    let lengths = [1300u64, 0, 512, 1, 700];
    let size = lengths.len() as u32;
    let mut end = 0;
    let parts: Vec<Piece> = lengths
        .iter()
        .map(|&len| {
            end += len;
            Piece { off: end - len, len }
        })
        .collect();
    for role in 0..size {
        let own = Piece { off: end, len: lengths[role as usize] };
        let program = ReduceScatter { parts: parts.clone(), own, chunk: 512 };
        let (mut sent, mut received) = (vec![0; parts.len()], 0);
        for lane in 0..program.lanes() {
            match program.step(role, lane, 0) {
                Step::Send { to, piece, .. } => {
                    let peer = to.get(0) as usize;
                    assert_eq!((to.count, piece.off), (1, parts[peer].off + sent[peer]));
                    sent[peer] += piece.len;
                }
                Step::Recv { from, op, piece, .. } => {
                    assert_eq!((from.count, op, piece.off), (size - 1, Op::Reduce, own.off + received));
                    received += piece.len;
                }
                step => assert_eq!(step, Step::Done),
            }
            assert_eq!(program.step(role, lane, 1), Step::Done);
        }
        assert_eq!(received, own.len);
        let others = |to: &usize| *to != role as usize;
        for to in (0..size as usize).filter(others) {
            assert_eq!(sent[to], lengths[to]);
        }
    }
}

#[test]
fn everybody_sends_something_else_to_everybody() {
    for transport in TRANSPORTS {
        for size in SIZES {
            // From a to b go 300 (a + 2 b) elements, nothing from 0 to 0.
            let len = |a: u32, b: u32| 300 * u64::from(a + 2 * b);
            let pieces = |lengths: Vec<u64>, start: u64| -> Vec<Piece> {
                let mut off = start;
                lengths
                    .into_iter()
                    .map(|len| {
                        off += len;
                        Piece { off: off - len, len }
                    })
                    .collect()
            };
            let sends = |me: u32| pieces((0..size).map(|b| len(me, b)).collect(), 0);
            let sent = |me: u32| (0..size).map(|b| len(me, b)).sum::<u64>();
            let recvs = |me: u32| pieces((0..size).map(|a| len(a, me)).collect(), sent(me));
            let fill = |me: u32| {
                let out = (0..size).flat_map(|b| (0..len(me, b) as i32).map(move |i| i + (me * 100 + b) as i32));
                out.chain((0..size).flat_map(|a| std::iter::repeat_n(-1, len(a, me) as usize))).collect()
            };
            let program =
                |me| -> Box<dyn Program> { Box::new(Exchange { me, sends: sends(me), recvs: recvs(me), chunk: 256 }) };
            let results = run(size, transport, Collective::AllToAll, fill, program);
            for (me, result) in (0u32..).zip(&results) {
                for (a, piece) in (0u32..).zip(recvs(me)).filter(|(a, _)| *a != me) {
                    let got = &result[piece.off as usize..(piece.off + piece.len) as usize];
                    let expected = (0..piece.len as i32).map(|i| i + (a * 100 + me) as i32);
                    assert!(got.iter().copied().eq(expected), "{transport:?} {size}: {a} to {me}");
                }
            }
        }
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    use std::sync::atomic::{AtomicU32, Ordering};
    for transport in TRANSPORTS {
        for size in SIZES {
            let (mut executors, come) = (executors(size, transport), AtomicU32::new(0));
            on_all(&mut executors, |rank, executor| {
                for round in 0..20 {
                    if (rank + round) % size == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    come.fetch_add(1, Ordering::SeqCst);
                    let signature = signature(Collective::Barrier, Dtype::Uint8, ReduceOp::Sum, 0);
                    let roles = vec![(rank, space(&mut [], Dtype::Uint8, 1))];
                    let handle = begin(executor, signature, Box::new(Barrier { size }), roles);
                    drive(executor, &[handle]);
                    assert!(come.load(Ordering::SeqCst) >= (round + 1) * size);
                }
            });
        }
    }
}

fn transfer(executor: &mut Executor, memory: &mut [u8], peer: Option<u32>, tag: u32, sends: bool) -> Arc<Handle> {
    transfer_in(0, executor, memory, peer, tag, sends)
}

fn transfer_in(
    group: u32,
    executor: &mut Executor,
    memory: &mut [u8],
    peer: Option<u32>,
    tag: u32,
    sends: bool,
) -> Arc<Handle> {
    let len = memory.len() as u64 / 4;
    let signature: Signature = signature(Collective::SendRecv, Dtype::Int32, ReduceOp::Sum, len);
    let program = Box::new(SendRecv { peer: peer.unwrap_or(0), sends, len });
    // A receive from any rank has the role of this rank all the same.
    let roles = vec![(ME.with(std::cell::Cell::get), space(memory, Dtype::Int32, 1 << 20))];
    let spec = OperationSpec {
        point_to_point: Some(PointToPoint { peer, tag, sends }),
        ..operation(signature, program, roles)
    };
    let handle = spec.handle.clone();
    executor.begin(group, spec);
    handle
}

thread_local! {
    static ME: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

#[test]
fn transfers_match_by_rank_and_tag_in_their_order() {
    const LONG: usize = 30_000;
    for transport in TRANSPORTS {
        let mut executors = executors(3, transport);
        on_all(&mut executors, |rank, executor| {
            ME.with(|me| me.set(rank));
            let message = |rank: u32, tag: u32, i: usize| (rank * 100 + tag * 10) as i32 + i as i32;
            if rank > 0 {
                // Two messages under each of two tags, the later tag's first; of tag 7 the second is the longer one.
                let order = [(7, 0), (7, 1), (3, 0), (3, 1)];
                let fill = |&(tag, i): &(u32, usize)| {
                    let len = if tag == 7 { LONG * (i + 1) } else { LONG };
                    bytes(std::iter::repeat_n(message(rank, tag, i), len))
                };
                let mut memory: Vec<Vec<u8>> = order.iter().map(fill).collect();
                let send =
                    |(memory, (tag, _)): (&mut Vec<u8>, (u32, usize))| transfer(executor, memory, Some(0), tag, true);
                let handles: Vec<_> = memory.iter_mut().zip(order).map(send).collect();
                drive(executor, &handles);
                return;
            }
            // Receive from any rank: the messages of each rank arrive in order.
            let mut next = [0; 3];
            for _ in 0..4 {
                let mut memory = vec![0; 4 * LONG];
                let any = transfer(executor, &mut memory, None, 3, false);
                drive(executor, std::slice::from_ref(&any));
                let from = any.source();
                let expected = message(from, 3, next[from as usize]);
                assert!(values(&memory).iter().all(|&v| v == expected), "{transport:?} from {from}");
                next[from as usize] += 1;
            }
            assert_eq!(next, [0, 2, 2]);
            // Exactly these, requested in another order than they were sent.
            let order = [(2, 0), (1, 0), (1, 1), (2, 1)];
            let mut memory: Vec<Vec<u8>> = order.iter().map(|(_, i)| vec![0; 4 * LONG * (i + 1)]).collect();
            let receive =
                |(memory, (from, _)): (&mut Vec<u8>, (u32, usize))| transfer(executor, memory, Some(from), 7, false);
            let handles: Vec<_> = memory.iter_mut().zip(order).map(receive).collect();
            drive(executor, &handles);
            for (memory, (from, i)) in memory.iter().zip(order) {
                assert!(values(memory).iter().all(|&v| v == message(from, 7, i)), "{transport:?} from {from}");
            }
        });
    }
}

#[test]
fn who_calls_something_else_is_told() {
    let mut executors = executors(2, Transport::Shm);
    let texts = on_all(&mut executors, |rank, executor| {
        let mut memory = vec![0; 4 * (10 + rank as usize)];
        let len = 10 + u64::from(rank);
        let signature = signature(Collective::Broadcast, Dtype::Int32, ReduceOp::Sum, len);
        let roles = vec![(rank, space(&mut memory, Dtype::Int32, 100))];
        let handle = begin(executor, signature, Box::new(Broadcast { size: 2, root: 0, len, chunk: 64 }), roles);
        drive(executor, std::slice::from_ref(&handle));
        handle.result().err().map(|e| e.to_string())
    });
    let text = texts[1].as_ref().unwrap();
    assert!(text.contains("rank 0 called broadcast (int32[10], root 0)"), "{text}");
    assert!(text.contains("rank 1 called broadcast (int32[11], root 0)"), "{text}");
}

/// A channel to a peer that takes everything. What it has sent arrives when the test says so.
#[derive(Clone, Default)]
struct Letters(Arc<std::sync::Mutex<std::collections::VecDeque<FragmentHeader>>>);

impl Channel for Letters {
    fn send(&mut self, _header: &FragmentHeader, _payload: &[u8]) -> io::Result<bool> {
        Ok(true)
    }

    fn front(&mut self) -> io::Result<Option<FragmentHeader>> {
        Ok(self.0.lock().unwrap().front().copied())
    }

    fn take(&mut self, sink: Sink<'_>) -> io::Result<bool> {
        let header = self.0.lock().unwrap().pop_front().unwrap();
        if let Sink::Show(show) = sink {
            show(0, &vec![0; header.bytes as usize]);
        }
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn fragment(&self) -> usize {
        1000
    }

    fn name(&self) -> &'static str {
        "letters"
    }
}

/// When a fragment reaches rank 0: before it has called the operation, while it is in flight, or after it is complete.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Arrives {
    Before,
    During,
    After,
}

fn told(
    theirs: Signature,
    arrives: Arrives,
    mine: Signature,
    program: impl Fn() -> Box<dyn Program>,
) -> Option<String> {
    let letters = Letters::default();
    let mut executor = Executor::new(Wires::new(0, vec![None, Some(Box::new(letters.clone()))]));
    executor.add_group(0, vec![0, 1], 0);
    let header =
        FragmentHeader { group: 0, seq: 0, lane: 0, slot: 0, from: 1, to: 0, bytes: 16, offset: 0, signature: theirs };
    let arrive = || letters.0.lock().unwrap().push_back(header);
    if arrives == Arrives::Before {
        arrive();
        executor.progress();
        assert!(executor.queue_unexpected(false));
    }
    let mut memory = vec![0; 64];
    let handle = begin(&mut executor, mine, program(), vec![(0, space(&mut memory, Dtype::Int32, 100))]);
    if arrives == Arrives::During {
        arrive();
    }
    executor.progress();
    if arrives == Arrives::After {
        assert!(handle.done() && handle.result().is_ok());
        arrive();
        executor.progress();
    }
    assert!(letters.0.lock().unwrap().is_empty());
    let failed = executor.failures.pop().map(|failure| failure.error.to_string());
    // What comes next does not go on as if nothing had happened.
    let next = begin(&mut executor, mine, program(), vec![(0, space(&mut memory, Dtype::Int32, 100))]);
    executor.progress();
    assert_eq!(next.result().err().map(|error| error.to_string()), failed);
    failed
}

/// Each rank is the root of its own broadcast and needs nothing from the other. Whenever the other's fragment arrives,
/// perhaps after the operation is complete: it is noticed.
#[test]
fn who_finishes_alone_is_told_of_a_different_call() {
    let call = |collective, root| Signature { root, ..signature(collective, Dtype::Int32, ReduceOp::Sum, 4) };
    let mine = call(Collective::Broadcast, 0);
    let program = || -> Box<dyn Program> { Box::new(Broadcast { size: 2, root: 0, len: 4, chunk: 64 }) };
    for arrives in [Arrives::Before, Arrives::During, Arrives::After] {
        for theirs in [call(Collective::Broadcast, 1), call(Collective::Reduce, 0)] {
            let text = told(theirs, arrives, mine, program).unwrap_or_else(|| panic!("{arrives:?}: nothing is said"));
            let expected = format!(
                "ranks disagree on op 1: rank 1 called {}, rank 0 called broadcast (int32[4], root 0)",
                theirs.describe()
            );
            assert!(text.starts_with(&expected), "{arrives:?}: {text}");
        }
    }
    // One that agrees and that nobody needs any more is no mistake.
    assert_eq!(told(mine, Arrives::After, mine, program), None);
}

/// Only the two ranks know how many elements go from one to the other.
#[test]
fn sizes_that_differ_between_two_ranks_are_named() {
    let call = |count| Signature { root: 1, ..signature(Collective::Scatter, Dtype::Int32, ReduceOp::Sum, count) };
    let expects = |len| {
        move || -> Box<dyn Program> {
            let (sends, recvs) =
                (vec![Piece { off: 0, len: 0 }; 2], vec![Piece { off: 0, len: 0 }, Piece { off: 0, len }]);
            Box::new(Exchange { me: 0, sends, recvs, chunk: 2 })
        }
    };
    for arrives in [Arrives::Before, Arrives::During, Arrives::After] {
        for len in [0, 3, 5] {
            if (arrives == Arrives::After) != (len == 0) {
                continue;
            }
            let text = told(call(4), arrives, call(0), expects(len)).unwrap_or_else(|| panic!("{arrives:?} {len}"));
            let expected = format!(
                "ranks disagree on op 1: rank 1 called scatter (int32[4] for rank 0, root 1), rank 0 called scatter \
                 (int32[{len}] from rank 1, root 1)"
            );
            assert!(text.starts_with(&expected), "{arrives:?} {len}: {text}");
        }
    }
}

/// A channel to a slow peer: it holds one fragment, and gets rid of it at every second flush.
#[derive(Default)]
struct Slow {
    held: bool,
    flushes: u32,
}

impl Channel for Slow {
    fn send(&mut self, _header: &FragmentHeader, _payload: &[u8]) -> io::Result<bool> {
        Ok(!std::mem::replace(&mut self.held, true))
    }

    fn front(&mut self) -> io::Result<Option<FragmentHeader>> {
        Ok(None)
    }

    fn take(&mut self, _sink: Sink<'_>) -> io::Result<bool> {
        Ok(false)
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.flushes += 1;
        self.held &= self.flushes % 2 == 1;
        Ok(!self.held)
    }

    fn fragment(&self) -> usize {
        1000
    }

    fn name(&self) -> &'static str {
        "slow"
    }
}

/// A thread without work sleeps. Room that a flush makes is work: a socket that is not full is not polled.
#[test]
fn nobody_sleeps_while_there_is_room_again() {
    let mut executor = Executor::new(Wires::new(0, vec![None, Some(Box::new(Slow::default()))]));
    executor.add_group(0, vec![0, 1], 0);
    let mut memory = vec![0; 10_000];
    let handle = transfer(&mut executor, &mut memory, Some(1), 0, true);
    while executor.progress() || executor.wires().unflushed() && executor.progress() {}
    assert!(handle.done());
}

/// A channel that is always full again belongs to nobody: a small send of one group does not wait for a large one of another.
#[test]
fn groups_take_turns_where_there_is_little_room() {
    let mut executor = Executor::new(Wires::new(0, vec![None, Some(Box::new(Slow::default()))]));
    executor.add_group(0, vec![0, 1], 0);
    executor.add_group(1, vec![0, 1], 0);
    let (mut large, mut small) = (vec![0; 1_000_000], vec![0; 12]);
    let large = transfer(&mut executor, &mut large, Some(1), 0, true);
    let small = transfer_in(1, &mut executor, &mut small, Some(1), 0, true);
    while !small.done() {
        executor.progress();
    }
    assert!(!large.done());
}

/// On a slow link a fragment may take longer than the time limit.
#[test]
fn parts_of_a_fragment_are_progress() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let channel = paceline_transport::tcp::TcpChannel::new(vec![listener.accept().unwrap().0]).unwrap();
    let wires = Wires::new(0, vec![None, Some(Box::new(channel))]);
    let traffic = wires.traffic();
    let mut executor = Executor::new(wires);
    executor.add_group(0, vec![0, 1], 0);
    let mut memory = vec![0; 100_000];
    let handle = transfer(&mut executor, &mut memory, Some(1), 0, false);
    let (signature, bytes) = (signature(Collective::SendRecv, Dtype::Int32, ReduceOp::Sum, 25_000), 100_000);
    let header = FragmentHeader { group: 0, seq: 0, lane: 0, slot: 0, from: 1, to: 0, bytes, offset: 0, signature };
    sender.write_all(&header.encode()).unwrap();
    let mut seen = Vec::new();
    for part in vec![7; 100_000].chunks(20_000) {
        seen.push((handle.moved.load(Relaxed), traffic[1].read()[0]));
        sender.write_all(part).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !handle.done() && handle.moved.load(Relaxed) == seen[seen.len() - 1].0 {
            executor.progress();
            assert!(std::time::Instant::now() < until);
        }
    }
    assert!(seen.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{seen:?}");
    while !handle.done() {
        executor.progress();
    }
}
