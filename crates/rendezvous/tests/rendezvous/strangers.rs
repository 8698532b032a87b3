//! Strangers of all kinds, at rank 0 and in the mesh.
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use paceline_rendezvous::{Listener, connect_mesh, exchange};

use crate::common::{all, failure, free_address, secret, within};
use crate::proxy::proxy;

/// Bytes of the first message of a handshake.
const HELLO: usize = 100;

/// Connects as soon as something listens.
fn connect(address: &str) -> Option<TcpStream> {
    for _ in 0..200 {
        if let Ok(stream) = TcpStream::connect(address) {
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            return Some(stream);
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}

/// Bytes that a genuine rank 1 sent to a genuine rank 0.
fn recorded() -> Vec<u8> {
    let address = free_address();
    let (through, heard) = proxy(address.clone(), |_| None);
    let job =
        |rank: u32, address: String| move || exchange(rank, 2, &address, &secret(), b"blob", within(5000)).unwrap();
    all(vec![Box::new(job(0, address)) as Box<dyn FnOnce() -> _ + Send>, Box::new(job(1, through))]);
    let sent = heard.lock().unwrap().iter().max_by_key(|sent| sent.len()).unwrap().clone();
    assert!(sent.len() > HELLO + 32 + 4, "hello, proof and blob");
    sent
}

/// Many kinds of strangers at once; their connections are held open.
fn besiege(address: &str, genuine: &[u8]) -> Vec<TcpStream> {
    let mut held = Vec::new();
    let huge = [&genuine[..HELLO], &[0xff; 3000]].concat();
    let messages: [&[u8]; 7] = [
        b"",
        b"\x00\xff\x13 garbage that goes on and on and on",
        b"GET /metrics HTTP/1.1\r\nHost: rank0\r\n\r\n",
        &genuine[..50],
        &genuine[..HELLO],
        genuine,
        &huge,
    ];
    for round in 0..500 {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        // A tenth of them sends something.
        if round % 10 == 0 {
            let _ = stream.write_all(messages[round / 10 % messages.len()]);
        }
        held.push(stream);
    }
    held
}

#[test]
fn do_not_disturb_the_exchange() {
    let genuine = recorded();
    let address = &free_address();
    let besieged = &AtomicBool::new(false);
    let job = |rank: u32| {
        move || {
            while rank == 2 && !besieged.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(5));
            }
            let began = Instant::now();
            let blobs = exchange(rank, 3, address, &secret(), &[u8::try_from(rank).unwrap()], within(10_000)).unwrap();
            assert_eq!(blobs, [[0], [1], [2]]);
            if rank == 2 { began.elapsed() } else { Duration::ZERO }
        }
    };
    let siege = move || {
        drop(connect(address));
        let held = besiege(address, &genuine);
        besieged.store(true, Ordering::Release);
        thread::sleep(Duration::from_millis(300));
        drop(held);
        Duration::ZERO
    };
    let jobs = vec![
        Box::new(job(0)) as Box<dyn FnOnce() -> Duration + Send>,
        Box::new(job(1)),
        Box::new(job(2)),
        Box::new(siege),
    ];
    let last = all(jobs)[2];
    assert!(last < Duration::from_secs(2), "{last:?}");
}

#[test]
fn do_not_disturb_the_mesh() {
    let genuine = &recorded();
    let listeners: Vec<Listener> = (0..3).map(|_| Listener::bind("127.0.0.1").unwrap()).collect();
    let peers: &Vec<SocketAddr> = &listeners.iter().map(Listener::address).collect();
    let mut jobs: Vec<Box<dyn FnOnce() -> Duration + Send>> = Vec::new();
    for (rank, listener) in (0..).zip(listeners) {
        jobs.push(Box::new(move || {
            // The listeners' queues are full of strangers from the start.
            thread::sleep(Duration::from_millis(200));
            let began = Instant::now();
            let mut streams = [2; 3];
            streams[rank as usize] = 0;
            connect_mesh(rank, listener, peers, &streams, &secret(), [7; 16], within(10_000)).unwrap();
            began.elapsed()
        }));
    }
    for peer in peers {
        jobs.push(Box::new(move || {
            let held = besiege(&peer.to_string(), genuine);
            thread::sleep(Duration::from_millis(500));
            drop(held);
            Duration::ZERO
        }));
    }
    let slowest = all(jobs).into_iter().max().unwrap();
    assert!(slowest < Duration::from_secs(4), "{slowest:?}");
}

/// The bytes that a stranger receives until the connection ends.
fn answer(address: &str, message: &[u8]) -> Vec<u8> {
    let mut stream = connect(address).unwrap();
    stream.write_all(message).unwrap();
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    heard
}

#[test]
fn are_named_and_told_nothing() {
    let genuine = recorded();
    let address = &free_address();
    let mut newer = genuine[..HELLO].to_vec();
    newer[9] = 2;
    let strangers = move || {
        let began = Instant::now();
        assert_eq!(answer(address, b"GET / HTTP/1.1\r\n\r\n"), b"");
        assert_eq!(answer(address, b"something else"), b"");
        assert_eq!(answer(address, &newer)[..10], *b"PACELINE\x00\x01", "a newer one is told our version");
        let replayed = answer(address, &genuine);
        assert_eq!(replayed[..10], *b"PACELINE\x00\x01");
        assert_eq!(replayed[42..], [&[1], [0; 32].as_slice()].concat(), "unproven, and nothing signed");
        assert!(began.elapsed() < Duration::from_secs(1), "they are turned away at once");
        String::new()
    };
    let root = || failure(exchange(0, 2, address, &secret(), b"", within(1500)));
    let messages = all(vec![Box::new(root) as Box<dyn FnOnce() -> _ + Send>, Box::new(strangers)]);
    assert_eq!(
        messages[0],
        format!(
            "rank 1 of 2 has not come within 1.5 s to {address}; meanwhile: 127.0.0.1 runs a paceline of handshake \
             version 2 and this rank one of version 1; install the same paceline for all ranks; rank 1 (127.0.0.1) \
             does not know the job's secret; give all ranks the same PACELINE_SECRET; 127.0.0.1 speaks HTTP, not \
             paceline"
        )
    );
}
