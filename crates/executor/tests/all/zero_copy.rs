//! Zero-copy sends: when they complete, and what happens if the owner of the memory gives up.
#![allow(unsafe_code, reason = "the world's buffers are handed over by address")]

use crate::world::{Transport, begin, channels, drive, executors, on_all, signature, space};
use paceline_executor::program::SendRecv;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_transport::channel::{Channel, Sink};
use paceline_transport::error::RunError;
use paceline_transport::header::{Collective, FragmentHeader};

const BYTES: usize = 200_000;

fn header() -> FragmentHeader {
    let signature = signature(Collective::AllReduce, Dtype::Uint8, ReduceOp::Sum, BYTES as u64);
    FragmentHeader { group: 0, seq: 0, lane: 0, slot: 0, from: 0, to: 1, bytes: BYTES as u32, offset: 0, signature }
}

fn pair(transport: Transport) -> (Box<dyn Channel>, Box<dyn Channel>) {
    let mut all = channels(2, transport);
    (all[0][1].take().unwrap(), all[1][0].take().unwrap())
}

#[test]
fn a_send_completes_when_it_has_been_read() {
    let (mut ours, mut theirs) = pair(Transport::Shm);
    assert!(ours.zero_copy_limit() >= BYTES);
    let payload: Vec<u8> = (0..BYTES).map(|i| (i * 7) as u8).collect();
    // More than once around the ring, alternating the kind of read.
    for turn in 0..30 {
        let ticket = ours.send_zero_copy(&header(), &payload).unwrap().unwrap();
        assert!(!ours.is_complete(ticket));
        assert_eq!(theirs.front().unwrap().unwrap().bytes as usize, BYTES);
        let mut copy = vec![0; BYTES];
        let taken = match turn % 3 {
            0 => theirs.take(Sink::Into(&mut copy)),
            1 => theirs.take(Sink::Show(&mut |at, part| copy[at..at + part.len()].copy_from_slice(part))),
            _ => theirs.take(Sink::Drop),
        };
        assert!(taken.unwrap());
        assert!(ours.is_complete(ticket));
        assert!(turn % 3 == 2 || copy == payload);
    }
}

#[test]
fn no_more_sends_are_in_flight_than_there_are_slots() {
    let (mut ours, mut theirs) = pair(Transport::Shm);
    let payload = vec![1; BYTES];
    let mut tickets = Vec::new();
    while let Some(ticket) = ours.send_zero_copy(&header(), &payload).unwrap() {
        tickets.push(ticket);
    }
    assert!(!ours.send(&FragmentHeader { bytes: 1, ..header() }, &[1]).unwrap());
    for (index, &ticket) in tickets.iter().enumerate() {
        theirs.front().unwrap().unwrap();
        assert!(theirs.take(Sink::Drop).unwrap());
        assert!(ours.is_complete(ticket));
        assert!(tickets[index + 1..].iter().all(|&later| !ours.is_complete(later)));
    }
}

#[test]
fn a_canceled_send_is_not_received() {
    let (mut ours, mut theirs) = pair(Transport::Shm);
    let payload = vec![1; BYTES];
    let ticket = ours.send_zero_copy(&header(), &payload).unwrap().unwrap();
    ours.cancel(ticket);
    // One that the receiver had looked at, and one that it had not: the fragment behind them comes next.
    assert!(theirs.front().unwrap().is_none());
    let ticket = ours.send_zero_copy(&header(), &payload).unwrap().unwrap();
    theirs.front().unwrap().unwrap();
    ours.cancel(ticket);
    assert!(!theirs.take(Sink::Into(&mut vec![0; BYTES])).unwrap());
    assert!(!theirs.take(Sink::Show(&mut |_, _| {})).unwrap());
    assert!(ours.send(&FragmentHeader { bytes: 1, ..header() }, &[5]).unwrap());
    assert_eq!(theirs.front().unwrap().unwrap().bytes, 1);
    assert!(ours.is_complete(ticket) && theirs.take(Sink::Drop).unwrap());
    // Too late: it has been read, and another fragment has the slot.
    let ticket = ours.send_zero_copy(&header(), &payload).unwrap().unwrap();
    theirs.front().unwrap().unwrap();
    assert!(theirs.take(Sink::Into(&mut vec![0; BYTES])).unwrap());
    ours.cancel(ticket);
    let mut copy = vec![0; BYTES];
    let next = ours.send_zero_copy(&header(), &payload).unwrap().unwrap();
    theirs.front().unwrap().unwrap();
    assert!(theirs.take(Sink::Into(&mut copy)).unwrap() && ours.is_complete(next) && copy == payload);
}

#[test]
fn unreadable_memory_is_an_error_unless_canceled() {
    let (mut ours, mut theirs) = pair(Transport::Shm);
    // SAFETY: never read here; the kernel is asked to, and refuses.
    let nowhere = unsafe { std::slice::from_raw_parts(std::ptr::without_provenance::<u8>(1 << 46), BYTES) };
    let ticket = ours.send_zero_copy(&header(), nowhere).unwrap().unwrap();
    theirs.front().unwrap().unwrap();
    assert!(theirs.take(Sink::Into(&mut vec![0; BYTES])).is_err());
    ours.cancel(ticket);
    assert!(!theirs.take(Sink::Into(&mut vec![0; BYTES])).unwrap());
}

/// A connection that broke on one side only.
#[test]
fn dropping_a_connection_cancels_its_sends() {
    let (mut ours, mut theirs) = pair(Transport::Shm);
    let payload = vec![1; BYTES];
    assert!(ours.send(&FragmentHeader { bytes: 1, ..header() }, &[5]).unwrap());
    ours.send_zero_copy(&header(), &payload).unwrap().unwrap();
    ours.send_zero_copy(&header(), &payload).unwrap().unwrap();
    drop(ours);
    assert_eq!(theirs.front().unwrap().unwrap().bytes, 1);
    assert!(theirs.take(Sink::Drop).unwrap());
    assert!(theirs.front().unwrap().is_none());
}

#[test]
fn no_zero_copy_without_read_access() {
    for transport in [Transport::ShmCopied, Transport::Tcp] {
        let (ours, theirs) = pair(transport);
        assert_eq!((ours.zero_copy_limit(), theirs.zero_copy_limit()), (0, 0), "{transport:?}");
    }
}

/// Rank 0 sends, gives up and reuses its memory: rank 1 must not receive the new contents.
#[test]
fn failing_an_operation_cancels_its_sends() {
    let mut both = executors(2, Transport::Shm);
    let (mut sent, mut got) = (vec![1u8; BYTES], vec![0u8; BYTES]);
    let begin = |executor: &mut _, role, memory: &mut [u8]| {
        let program = Box::new(SendRecv { peer: 1 - role, sends: role == 0, len: BYTES as u64 });
        let space = space(memory, Dtype::Uint8, BYTES);
        begin(
            executor,
            signature(Collective::Broadcast, Dtype::Uint8, ReduceOp::Sum, BYTES as u64),
            program,
            vec![(role, space)],
        )
    };
    let theirs = begin(&mut both[0], 0, &mut sent);
    both[0].progress();
    assert!(!theirs.done(), "it is offered, and nobody has read it");
    both[0].fail_group(0, &RunError::Failed("given up".into()));
    assert!(theirs.done() && theirs.result().is_err());
    sent.fill(2);
    let ours = begin(&mut both[1], 1, &mut got);
    for _ in 0..100 {
        both[1].progress();
        both[1].queue_unexpected(true);
    }
    assert!(!ours.done() && got.iter().all(|&byte| byte == 0));
    // Once rank 1 learns of the failure, the slot is free again.
    both[1].fail_group(0, &RunError::Failed("rank 0 gave up".into()));
    both[1].progress();
    for (rank, executor) in (0..).zip(&mut both) {
        executor.add_group(7, vec![0, 1], rank);
    }
    assert!(both[1].wires().lost.is_empty());
}

/// Both ranks exchange without a copy, whoever is late.
#[test]
fn a_late_rank_reads_what_was_sent() {
    let mut both = executors(2, Transport::Shm);
    on_all(&mut both, |rank, executor| {
        for turn in 0..20u8 {
            if u32::from(turn) % 2 == rank {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let mut memory = vec![turn + rank as u8; BYTES];
            let sends = u32::from(turn) % 2 != rank;
            let program = Box::new(SendRecv { peer: 1 - rank, sends, len: BYTES as u64 });
            let space = space(&mut memory, Dtype::Uint8, BYTES);
            let all = signature(Collective::Broadcast, Dtype::Uint8, ReduceOp::Sum, BYTES as u64);
            let handle = begin(executor, all, program, vec![(rank, space)]);
            drive(executor, &[handle]);
            let sender = turn + if sends { rank as u8 } else { 1 - rank as u8 };
            assert!(memory.iter().all(|&byte| byte == sender));
        }
    });
}
