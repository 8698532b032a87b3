//! Worlds of ranks as threads of one process, with real shared memory and real sockets between them.
#![allow(unsafe_code, reason = "buffers of the test are handed over by address, as a caller does")]
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use paceline_executor::handle::Handle;
use paceline_executor::program::Program;
use paceline_executor::{Executor, OperationSpec, Wires};
use paceline_grpc::Connected;
use paceline_kernels::dtype::Dtype;
use paceline_transport::channel::Channel;
use paceline_transport::header::Signature;
use paceline_transport::multicast::{Disturbance, Key, Multicast, Port, Sizes};
use paceline_transport::shm::{PeerWaker, Segment, ShmChannel, Waker};
use paceline_transport::space::Space;
use paceline_transport::tcp::TcpChannel;

#[path = "../../../grpc/tests/calling/mod.rs"]
mod calling;

pub use calling::{calling, signature};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Transport {
    Shm,
    /// Shared memory without zero-copy sends.
    ShmCopied,
    Tcp,
    TwoStreams,
    /// Shared memory between neighbors (0-1, 2-3, …), TCP between the others.
    Mixed,
    /// As `Mixed`; multicasts go out as such.
    Multicast,
    Grpc,
    /// gRPC, encrypted.
    Tls,
}

pub const TRANSPORTS: [Transport; 8] = [
    Transport::Shm,
    Transport::ShmCopied,
    Transport::Tcp,
    Transport::TwoStreams,
    Transport::Mixed,
    Transport::Multicast,
    Transport::Grpc,
    Transport::Tls,
];

fn socket_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn boxed(connected: Connected) -> Vec<Option<Box<dyn Channel>>> {
    let boxed = |channel| -> Box<dyn Channel> { Box::new(channel) };
    connected.channels.into_iter().map(|channel| channel.map(boxed)).collect()
}

/// For each rank the channels to the others.
pub fn channels(size: u32, transport: Transport) -> Vec<Vec<Option<Box<dyn Channel>>>> {
    if let Transport::Grpc | Transport::Tls = transport {
        return calling(size, 0, transport == Transport::Tls).into_iter().map(boxed).collect();
    }
    let segments: Vec<_> = (0..size).map(|_| Segment::create(size).unwrap()).collect();
    let wakers: Vec<_> = segments.iter().map(|(segment, ..)| Waker::new(segment.clone()).unwrap()).collect();
    let mut all: Vec<Vec<Option<Box<dyn Channel>>>> = (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    for a in 0..size {
        for b in a + 1..size {
            let shm = match transport {
                Transport::Shm | Transport::ShmCopied => true,
                Transport::Tcp | Transport::TwoStreams => false,
                Transport::Mixed | Transport::Multicast => a / 2 == b / 2,
                Transport::Grpc | Transport::Tls => unreachable!("they have been made above"),
            };
            let (ours, theirs): (Box<dyn Channel>, Box<dyn Channel>) = if shm {
                let make = |me: u32, peer: u32| {
                    let (_, _, address): &(Arc<Segment>, OwnedFd, _) = &segments[peer as usize];
                    let mut address = address.clone();
                    if transport == Transport::ShmCopied {
                        address.token_at = 0;
                    }
                    let opened = Segment::open(&address).unwrap();
                    let peer_waker =
                        PeerWaker::open(opened.clone(), std::process::id(), wakers[peer as usize].address()).unwrap();
                    Box::new(ShmChannel::new(segments[me as usize].0.clone(), me, opened, peer, peer_waker))
                };
                (make(a, b), make(b, a))
            } else {
                let count = if transport == Transport::TwoStreams { 2 } else { 1 };
                let (x, y): (Vec<_>, Vec<_>) = (0..count).map(|_| socket_pair()).unzip();
                (Box::new(TcpChannel::new(x).unwrap()), Box::new(TcpChannel::new(y).unwrap()))
            };
            all[a as usize][b as usize] = Some(ours);
            all[b as usize][a as usize] = Some(theirs);
        }
    }
    all
}

/// An executor for each rank, all connected.
pub fn executors(size: u32, transport: Transport) -> Vec<Executor> {
    let mut executors: Vec<_> = (0..)
        .zip(channels(size, transport))
        .map(|(rank, channels)| {
            let mut executor = Executor::new(Wires::new(rank, channels));
            executor.add_group(0, (0..size).collect(), rank);
            executor
        })
        .collect();
    if transport == Transport::Multicast {
        add_multicast(&mut executors, &Casting::default());
    }
    executors
}

/// Properties of the tests' multicast.
pub struct Casting {
    pub disturbance: Option<Disturbance>,
    /// Bytes of a datagram's payload, and of a window.
    pub payload: usize,
    pub window: usize,
    /// The key of the job.
    pub key: [u8; 32],
}

impl Default for Casting {
    fn default() -> Casting {
        Casting { disturbance: None, payload: 8192, window: 1 << 20, key: [3; 32] }
    }
}

/// Group addresses that no other test uses.
fn group_address() -> SocketAddrV4 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let group = Ipv4Addr::new(239, 1 + (process % 200) as u8, (process / 200) as u8, number as u8);
    SocketAddrV4::new(group, 20_000 + (number / 256) as u16)
}

/// Has the multicasts of these ranks go out as such; their address.
pub fn add_multicast(executors: &mut [Executor], how: &Casting) -> SocketAddrV4 {
    let (size, address) = (executors.len() as u32, group_address());
    let mut links: Vec<Vec<Option<TcpStream>>> = (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    for a in 0..size {
        for b in a + 1..size {
            let (ours, theirs) = socket_pair();
            links[a as usize][b as usize] = Some(ours);
            links[b as usize][a as usize] = Some(theirs);
        }
    }
    for (rank, (executor, links)) in (0..).zip(executors.iter_mut().zip(links)) {
        let port = Port::open(address, Ipv4Addr::LOCALHOST.into(), true).unwrap();
        let sizes = Sizes { payload: how.payload, window: how.window, first: how.window / 4 };
        let multicast = Multicast::new(rank, port, Key::new(&how.key), sizes, links, how.disturbance).unwrap();
        executor.wires().set_multicast(multicast);
    }
    address
}

/// Runs `f` on every rank in its own thread and gives what they return.
pub fn on_all<T: Send>(executors: &mut [Executor], f: impl Fn(u32, &mut Executor) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = executors
            .iter_mut()
            .enumerate()
            .map(|(rank, executor)| {
                let f = &f;
                scope.spawn(move || f(rank as u32, executor))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Drives the executor until all handles are done. Panics after 20 s: nothing may hang.
pub fn drive(executor: &mut Executor, handles: &[Arc<Handle>]) {
    let start = Instant::now();
    while !handles.iter().all(|handle| handle.done()) {
        if !executor.progress() && !executor.queue_unexpected(false) {
            std::thread::yield_now();
        }
        assert!(start.elapsed() < Duration::from_secs(20), "an operation hangs");
    }
    // What others still need of this rank is with its channels already, or must be flushed.
    while executor.wires().unflushed() {
        executor.progress();
    }
}

/// A space over a vector of bytes, cut into runs of `cut` elements.
pub fn space(memory: &mut [u8], dtype: Dtype, cut: usize) -> Space {
    let mut space = Space::new(dtype.size());
    for piece in memory.chunks_mut(cut.max(1) * dtype.size()) {
        // SAFETY: the vector outlives the operation, which the test drives to its end before it looks.
        unsafe { space.push(piece.as_mut_ptr(), (piece.len() / dtype.size()) as u64) };
    }
    space
}

/// Begins an operation of group 0 and gives its handle.
pub fn begin(
    executor: &mut Executor,
    signature: Signature,
    program: Box<dyn Program>,
    roles: Vec<(u32, Space)>,
) -> Arc<Handle> {
    begin_scaled(executor, signature, program, roles, None)
}

/// The same; results are multiplied by the factor.
pub fn begin_scaled(
    executor: &mut Executor,
    signature: Signature,
    program: Box<dyn Program>,
    roles: Vec<(u32, Space)>,
    factor: Option<f64>,
) -> Arc<Handle> {
    let spec = OperationSpec { factor, ..operation(signature, program, roles) };
    let handle = spec.handle.clone();
    executor.begin(0, spec);
    handle
}

/// An operation of which nothing else is asked.
pub fn operation(signature: Signature, program: Box<dyn Program>, roles: Vec<(u32, Space)>) -> OperationSpec {
    OperationSpec {
        signature,
        program,
        roles,
        zero_copy: true,
        point_to_point: None,
        step: None,
        factor: None,
        finish: None,
        label: String::new(),
        handle: Arc::new(Handle::new(None)),
        keep: None,
    }
}
