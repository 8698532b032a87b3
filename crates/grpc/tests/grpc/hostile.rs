//! A rank that knows the secret and sends an invalid fragment: only its stream ends, and the error gives the reason.
use std::io::Read;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use paceline_grpc::{self as grpc, ConnectOptions, Connected, Contract, GrpcListener, Offer, StreamKind};
use paceline_transport::error::Result;
use tokio::net::TcpStream;

use crate::channels::{LIMIT, end};

pub const KEY: [u8; 32] = [9; 32];

/// Rank 0 of two, waiting for rank 1; the addresses of both, and the listener of rank 1.
pub fn host(seconds: u64) -> (JoinHandle<Result<Connected>>, Vec<Offer>, GrpcListener) {
    let listeners = [GrpcListener::open("127.0.0.1", None).unwrap(), GrpcListener::open("127.0.0.1", None).unwrap()];
    let offers: Vec<Offer> = listeners.iter().map(|listener| listener.offer().clone()).collect();
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let options = ConnectOptions { rank: 0, workers: 2, offers: offers.clone(), key: KEY, tensors: true, deadline };
    let [listener, other] = listeners;
    (std::thread::spawn(move || grpc::connect(listener, options)), offers, other)
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LIMIT, future).await.expect("it hangs") })
}

/// An HTTP/2 connection with handwritten requests.
pub async fn dial(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client.ready().await.unwrap()
}

/// A call with these headers.
pub fn request(path: &str, headers: &[(&str, &str)]) -> Request<()> {
    let request = Request::builder().method("POST").uri(format!("http://paceline/paceline.v1.Rank/{path}"));
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).body(()).unwrap()
}

/// Rank 1's token.
pub fn token(kind: StreamKind, offers: &[Offer]) -> String {
    Contract::new(&KEY, kind, (1, &offers[1]), (0, &offers[0])).authorization()
}

fn call(client: &mut SendRequest<Bytes>, kind: StreamKind, offers: &[Offer]) -> (ResponseFuture, SendStream<Bytes>) {
    let path = if kind == StreamKind::Control { "Control" } else { "Tensors" };
    let headers = [("authorization", &*token(kind, offers)), ("paceline-rank", "1"), ("paceline-to", "0")];
    client.send_request(request(path, &headers), false).unwrap()
}

/// A message as gRPC frames it.
fn framed(flag: u8, length: u32, message: &[u8]) -> Bytes {
    [&[flag][..], &length.to_be_bytes(), message].concat().into()
}

fn whole(message: &[u8]) -> Bytes {
    framed(0, message.len() as u32, message)
}

/// Rank 0's error about rank 1 after it sent this. The control stream is not affected.
fn said_of(message: Bytes, and_ends: bool) -> String {
    let (host, offers, _door) = host(20);
    block_on(async {
        let mut client = dial(offers[0].address).await;
        let (answer, control) = call(&mut client, StreamKind::Control, &offers);
        let contract = Contract::new(&KEY, StreamKind::Control, (1, &offers[1]), (0, &offers[0]));
        let answer = answer.await.unwrap();
        assert!(contract.is_proof(answer.headers()["paceline-proof"].as_bytes()));
        let (answer, mut tensors) = call(&mut client, StreamKind::Tensors, &offers);
        assert_eq!(answer.await.unwrap().status(), 200);
        let mut connected = tokio::task::spawn_blocking(|| host.join().unwrap().unwrap()).await.unwrap();
        tensors.send_data(message, and_ends).unwrap();
        let said = tokio::task::spawn_blocking(move || {
            let said = end(connected.channels[1].as_mut().unwrap());
            let mut control = connected.controls[1].take().unwrap();
            control.set_nonblocking(true).unwrap();
            assert_eq!(control.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
            said
        });
        let said = said.await.unwrap();
        drop(control);
        said
    })
}

#[test]
fn what_is_no_message_is_named() {
    assert!(said_of(whole(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), false).contains("failed to decode"));
    assert!(said_of(framed(1, 4, b"zip!"), false).contains("ompress"));
    // The header of a message that never arrives.
    assert!(said_of(framed(0, 1000, b"short"), true).contains("Unexpected EOF"));
}

#[test]
fn what_is_too_long_is_refused_before_it_comes() {
    let said = said_of(framed(0, u32::MAX, b""), false);
    assert!(said.contains("4294967295 bytes") && said.contains("limit"), "{said}");
}

#[test]
fn messages_that_are_no_fragments_are_named() {
    assert_eq!(said_of(whole(b""), false), "the peer sent a fragment without a signature");
    // A signature (field 8) whose call (field 1) is 99.
    assert_eq!(said_of(whole(&[0x42, 2, 0x08, 99]), false), "the peer sent a fragment of an unknown call");
}

#[test]
fn one_that_just_ends_is_closed() {
    assert_eq!(said_of(Bytes::new(), true), "the connection was closed");
}
