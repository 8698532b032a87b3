//! Callers that do not know the secret are refused before anything is read, are soon disconnected, and keep no rank
//! out.
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use paceline_grpc::{self as grpc, ConnectOptions, Contract, GrpcListener, Offer, StreamKind};
use paceline_transport::error::RunError;

use crate::hostile::{KEY, block_on, dial, host, request, token};

fn options(rank: u32, offers: &[Offer], key: [u8; 32], seconds: u64) -> ConnectOptions {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    ConnectOptions { rank, workers: 2, offers: offers.to_vec(), key, tensors: true, deadline }
}

/// A correct rank 1.
fn joins(listener: GrpcListener, offers: &[Offer]) -> grpc::Connected {
    grpc::connect(listener, options(1, offers, KEY, 20)).unwrap()
}

fn failure(result: Result<grpc::Connected, RunError>) -> String {
    match result {
        Err(RunError::Failed(message)) => message,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it connected"),
    }
}

/// Status and message of a call with these headers, part of which was sent without waiting.
fn status(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> (String, String) {
    block_on(async {
        let mut client = dial(address).await;
        let (answer, mut body) = client.send_request(request(path, headers), false).unwrap();
        body.send_data(Bytes::from_static(&[0; 100]), false).unwrap();
        let answer = answer.await.unwrap();
        let text = |name| answer.headers().get(name).map_or(String::new(), |text| text.to_str().unwrap().to_owned());
        assert!(answer.headers().get("paceline-proof").is_none());
        (text("grpc-status"), text("grpc-message"))
    })
}

#[test]
fn without_the_token_nobody_is_let_in() {
    let (host, offers, listener) = host(20);
    let (address, genuine) = (offers[0].address, token(StreamKind::Tensors, &offers));
    let of = |rank: &'static str, authorization: &'static str| {
        [("paceline-rank", rank), ("paceline-to", "0"), ("authorization", authorization)]
    };
    let other_key = Contract::new(&[8; 32], StreamKind::Tensors, (1, &offers[1]), (0, &offers[0])).authorization();
    let wrong = [
        status(address, "Tensors", &[]),
        status(address, "Tensors", &of("1", "")[..2]),
        status(address, "Tensors", &of("1", "Bearer 00")),
        status(address, "Tensors", &of("4294967295", "Bearer 00")),
        status(address, "Control", &[("paceline-rank", "1"), ("paceline-to", "0"), ("authorization", &genuine)]),
        status(address, "Tensors", &[("paceline-rank", "0"), ("paceline-to", "0"), ("authorization", &genuine)]),
        status(address, "Tensors", &[("paceline-rank", "1"), ("paceline-to", "0"), ("authorization", &other_key)]),
    ];
    for (at, (code, message)) in wrong.iter().enumerate() {
        // UNAUTHENTICATED
        assert_eq!(code, "16", "{at}: {message}");
    }
    // UNIMPLEMENTED
    assert_eq!(status(address, "Shutdown", &of("1", "Bearer 00")).0, "12");
    let connected = joins(listener, &offers);
    assert!(host.join().unwrap().unwrap().channels[1].is_some());
    // All ranks have connected, so the listener is closed.
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    drop(connected);
}

/// Reads until the other end closes; returns how long that took.
fn closed(mut stream: TcpStream, since: Instant) -> Duration {
    stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(1..) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("it is not closed"),
            _ => return since.elapsed(),
        }
    }
}

#[test]
fn who_says_nothing_or_nonsense_is_soon_gone_and_holds_up_nobody() {
    let (host, offers, listener) = host(20);
    let (address, began) = (offers[0].address, Instant::now());
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let frame = |length: [u8; 3], kind: u8| [&preface[..], &length, &[kind, 0, 0, 0, 0, 1], &[0xff; 40]].concat();
    let said: [&[u8]; 7] = [
        b"",
        b"GET /metrics HTTP/1.1\r\nHost: rank0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        preface,
        // Frames with illegal lengths, invalid headers, and truncated frames.
        &frame([0xff, 0xff, 0xff], 0),
        &frame([0, 0, 40], 1),
        &frame([0, 0, 90], 4),
    ];
    let mut held = Vec::new();
    for at in 0..200 {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let _ = stream.write_all(said[at % said.len()]);
        held.push(stream);
    }
    // A lot of data without a token: the last of it is no longer accepted.
    let mut much = TcpStream::connect(address).unwrap();
    much.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = much.write_all(preface);
    let flood =
        (0..4000).try_for_each(|_| much.write_all(&[&[0, 16, 0, 0x10, 0, 0, 0, 0, 0], &[0; 4096][..]].concat()));
    assert!(flood.is_err(), "16 MB of a stranger were taken");
    // The rank connects before the strangers have been given up.
    let connected = joins(listener, &offers);
    assert!(host.join().unwrap().unwrap().channels[1].is_some());
    drop(connected);
    for stream in held {
        assert!(closed(stream, began) < Duration::from_secs(12));
    }
}

#[test]
fn ranks_of_another_secret_say_so() {
    let (host, offers, listener) = host(1);
    let said = failure(grpc::connect(listener, options(1, &offers, [8; 32], 20)));
    assert!(
        said.starts_with("rank 1: rank 0 (127.0.0.1) refused the call") && said.contains("PACELINE_SECRET"),
        "{said}"
    );
    let said = failure(host.join().unwrap());
    assert!(said.contains("rank 0 of 2 was not called by rank 1 at 127.0.0.1:"), "{said}");
    assert!(said.contains("over gRPC within 1 s; meanwhile: 127.0.0.1 made a call without the token"), "{said}");
}

#[test]
fn only_the_certificate_that_was_told_is_believed() {
    let listeners = [true, true].map(|tls| GrpcListener::open("127.0.0.1", Some(tls)).unwrap());
    let mut offers: Vec<Offer> = listeners.iter().map(|listener| listener.offer().clone()).collect();
    let genuine = offers.clone();
    offers[0].certificate = offers[1].certificate.clone();
    let [host, listener] = listeners;
    let hosting = std::thread::spawn(move || grpc::connect(host, options(0, &genuine, KEY, 2)));
    let said = failure(grpc::connect(listener, options(1, &offers, KEY, 1)));
    assert!(said.contains("could not call rank 0 (rank 0 (127.0.0.1): invalid peer certificate"), "{said}");
    assert!(failure(hosting.join().unwrap()).contains("was not called by rank 1"));
}

#[test]
fn who_changes_what_ranks_are_told_is_seen_by_the_token() {
    // A man in the middle tells rank 1 forged random numbers and that there is no encryption, and tells both the same:
    // each end uses what it offers itself.
    for strips_tls in [false, true] {
        let listeners = [strips_tls, false].map(|tls| GrpcListener::open("127.0.0.1", Some(tls)).unwrap());
        let mut told: Vec<Offer> = listeners.iter().map(|listener| listener.offer().clone()).collect();
        if strips_tls {
            told[0].certificate = None;
        } else {
            told[0].nonce = [0; 16];
        }
        let [host, listener] = listeners;
        let both = [options(0, &told, KEY, 2), options(1, &told, KEY, 1)];
        let [to_host, to_call] = both;
        let hosting = std::thread::spawn(move || grpc::connect(host, to_host));
        let said = failure(grpc::connect(listener, to_call));
        assert!(said.contains(if strips_tls { "could not call rank 0" } else { "refused the call" }), "{said}");
        assert!(failure(hosting.join().unwrap()).contains("was not called by rank 1"));
    }
}

#[test]
fn a_rank_that_comes_twice_or_leaves_is_named() {
    let (host, offers, _door) = host(20);
    let headers =
        |kind| [("authorization", token(kind, &offers)), ("paceline-rank", "1".into()), ("paceline-to", "0".into())];
    block_on(async {
        let mut client = dial(offers[0].address).await;
        for (again, expected) in [(false, None), (true, Some("6"))] {
            let headers = headers(StreamKind::Control);
            let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
            let (answer, body) = client.send_request(request("Control", &headers), false).unwrap();
            let answer = answer.await.unwrap();
            // ALREADY_EXISTS
            assert_eq!(answer.headers().get("grpc-status").map(|code| code.to_str().unwrap()), expected, "{again}");
            std::mem::forget(body);
        }
    });
    let said = failure(host.join().unwrap());
    assert!(said.starts_with("rank 1 (127.0.0.1) left while the ranks connected"), "{said}");
}
