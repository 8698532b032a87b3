//! Worlds in threads, each at its own addresses.
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use paceline_rendezvous::{Listener, Mesh, Secret, connect_mesh, exchange};
use paceline_transport::error::{Result, RunError};

pub fn secret() -> Secret {
    Secret::from_text("the secret of this test's job").unwrap()
}

/// A free "host:port", on a loopback address that no other test uses and hardly any other process.
pub fn free_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) + 1;
    let [a, b, ..] = std::process::id().to_le_bytes();
    let host = format!("127.{}.{}.{}", 1 + a % 254, b, 1 + number % 254);
    TcpListener::bind((host.as_str(), 0)).unwrap().local_addr().unwrap().to_string()
}

pub fn within(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
}

pub fn failure<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result.map_err(|error| error.parts().0) {
        Err(RunError::Failed(message)) => message,
        other => panic!("{other:?}"),
    }
}

pub fn misuse<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(RunError::Usage(message)) => message,
        other => panic!("{other:?}"),
    }
}

/// The results of these threads, in their order.
pub fn all<T: Send>(jobs: Vec<Box<dyn FnOnce() -> T + Send + '_>>) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(job)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Data streams between two ranks of a test's world: 0, 1 or 2.
pub fn streams_between(a: u32, b: u32) -> u32 {
    if a == b { 0 } else { (a + b) % 3 }
}

/// Everything that a rank does on startup.
pub fn start(rank: u32, size: u32, address: &str, deadline: Instant) -> Result<(Mesh, Vec<SocketAddr>)> {
    let listener = Listener::bind("127.0.0.1")?;
    let job = [42; 16];
    let blobs = exchange(rank, size, address, &secret(), listener.address().to_string().as_bytes(), deadline)?;
    let peers: Vec<SocketAddr> = blobs.iter().map(|blob| std::str::from_utf8(blob).unwrap().parse().unwrap()).collect();
    let streams: Vec<u32> = (0..size).map(|peer| streams_between(rank, peer)).collect();
    let mesh = connect_mesh(rank, listener, &peers, &streams, &secret(), job, deadline)?;
    Ok((mesh, peers))
}
