//! Two ranks: order, back pressure, wake-ups, ends of streams.
use std::time::{Duration, Instant};

use paceline_grpc::{Connected, GrpcChannel};
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_transport::channel::{Channel, Sink};
use paceline_transport::header::{Collective, FragmentHeader};
use rustix::event::{Timespec, poll};

use crate::calling::{calling, signature};

pub const LIMIT: Duration = Duration::from_secs(10);

pub fn header(seq: u32) -> FragmentHeader {
    let signature = signature(Collective::AllReduce, Dtype::Uint8, ReduceOp::Sum, 7);
    FragmentHeader { group: 1, seq, lane: 2, slot: 3, from: 0, to: 1, bytes: 0, offset: 5, signature }
}

/// A fragment whose bytes encode its number.
fn payload(seq: u32, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u32).wrapping_mul(31).wrapping_add(seq) as u8).collect()
}

fn pair(encrypted: bool) -> (Vec<Connected>, GrpcChannel, GrpcChannel) {
    let mut ranks = calling(2, 0, encrypted);
    let (a, b) = (ranks[0].channels[1].take().unwrap(), ranks[1].channels[0].take().unwrap());
    (ranks, a, b)
}

/// The next fragment.
fn next(channel: &mut GrpcChannel) -> (u32, Vec<u8>) {
    let began = Instant::now();
    loop {
        if let Some(header) = channel.front().unwrap() {
            let mut payload = vec![0; header.bytes as usize];
            assert!(channel.take(Sink::Into(&mut payload)).unwrap());
            return (header.seq, payload);
        }
        assert!(began.elapsed() < LIMIT, "nothing comes");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Why a channel ends.
pub fn end(channel: &mut GrpcChannel) -> String {
    let began = Instant::now();
    loop {
        match channel.front() {
            Err(error) => return error.to_string(),
            Ok(Some(_)) => drop(channel.take(Sink::Drop)),
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(began.elapsed() < LIMIT, "it does not end");
    }
}

/// Sends until the receiver has accepted nothing for a while; returns how many were accepted.
fn fill(channel: &mut GrpcChannel, bytes: usize) -> u32 {
    let (mut seq, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_millis(500) {
        if channel.send(&header(seq), &payload(seq, bytes)).unwrap() {
            (seq, since) = (seq + 1, Instant::now());
        } else {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    seq
}

fn sleep(channel: &GrpcChannel) -> Duration {
    let began = Instant::now();
    let mut fds = Vec::new();
    channel.watch(false, &mut fds);
    poll(&mut fds, Some(&Timespec { tv_sec: LIMIT.as_secs().cast_signed(), tv_nsec: 0 })).unwrap();
    began.elapsed()
}

#[test]
fn a_rank_that_takes_nothing_stops_its_peer_and_loses_nothing() {
    for encrypted in [false, true] {
        let (_ranks, mut a, mut b) = pair(encrypted);
        let bytes = a.fragment();
        let sent = fill(&mut a, bytes);
        // Both queues (1 MiB each), HTTP/2's window (2 MiB) and buffers (1 MiB), and what lies between.
        let held = sent as usize * bytes;
        assert!((1 << 20..8 << 20).contains(&held), "{held} bytes are under way");
        for seq in 0..sent {
            assert!(next(&mut b) == (seq, payload(seq, bytes)), "fragment {seq}");
        }
        assert!(a.send(&header(sent), b"more").unwrap());
        assert_eq!(next(&mut b), (sent, b"more".to_vec()));
    }
}

#[test]
fn who_sleeps_is_woken_by_what_comes_and_by_room() {
    let (_ranks, mut a, mut b) = pair(false);
    for seq in 0..20 {
        assert!(b.front().unwrap().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(u64::from(seq % 5)));
                assert!(a.send(&header(seq), b"wake").unwrap());
            });
            assert!(sleep(&b) < LIMIT, "lost wake-up {seq}");
        });
        assert_eq!(next(&mut b).0, seq);
    }
    let bytes = a.fragment();
    let sent = fill(&mut a, bytes);
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            (0..sent).for_each(|seq| assert_eq!(next(&mut b).0, seq));
        });
        let mut naps = 0;
        while !a.send(&header(sent), b"room").unwrap() {
            assert!(sleep(&a) < LIMIT, "no room");
            a.front().unwrap();
            naps += 1;
        }
        assert!(naps < 100, "woken {naps} times for one room");
        taker.join().unwrap();
    });
    assert_eq!(next(&mut b).0, sent);
}

#[test]
fn what_was_sent_before_the_end_arrives() {
    for encrypted in [false, true] {
        let (ranks, mut a, mut b) = pair(encrypted);
        let bytes = 3 * a.fragment() / 4;
        let sent = fill(&mut a, bytes);
        drop(a);
        let leaving = std::thread::spawn(|| {
            ranks.into_iter().for_each(|Connected { controls, thread, .. }| {
                drop(controls);
                thread.close();
            })
        });
        for seq in 0..sent {
            assert!(next(&mut b) == (seq, payload(seq, bytes)), "fragment {seq}");
        }
        assert_eq!(end(&mut b), "the connection was closed");
        let began = Instant::now();
        leaving.join().unwrap();
        assert!(began.elapsed() < Duration::from_secs(3), "it left late");
        assert!(!b.send(&header(0), b"to nobody").unwrap());
    }
}

#[test]
fn workers_call_servers() {
    use std::io::{Read, Write};

    // Ranks 0 and 1 work, 2 and 3 serve. All pairs are connected, in both directions and for both purposes.
    let mut ranks = calling(4, 2, true);
    for a in 0..4 {
        for b in (0..4).filter(|&b| b != a) {
            let mut from = ranks[a].channels[b].take().unwrap();
            assert!(from.send(&header(a as u32), &payload(b as u32, 100)).unwrap());
            ranks[a].channels[b] = Some(from);
            let to = ranks[b].channels[a].as_mut().unwrap();
            assert_eq!(next(to), (a as u32, payload(b as u32, 100)));
            let note = [&5u32.to_le_bytes()[..], b"hello"].concat();
            ranks[a].controls[b].as_mut().unwrap().write_all(&note).unwrap();
            let control = ranks[b].controls[a].as_mut().unwrap();
            control.set_read_timeout(Some(LIMIT)).unwrap();
            let mut heard = [0; 9];
            control.read_exact(&mut heard).unwrap();
            assert_eq!(heard[..], note);
        }
    }
}
