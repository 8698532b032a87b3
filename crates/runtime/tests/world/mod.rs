//! Worlds of ranks as threads of one process, with real shared memory and real sockets between them.
#![allow(dead_code, reason = "every test uses a part of it")]
#![allow(unsafe_code, reason = "buffers of the test are handed over by address, as a caller does")]
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_runtime::channel::Channel;
use paceline_runtime::dtype::{Dtype, ReduceOp};
use paceline_runtime::executor::{Begin, Executor, Wires};
use paceline_runtime::handle::Handle;
use paceline_runtime::program::Program;
use paceline_runtime::shm::{Bell, Ringer, Segment, ShmChannel};
use paceline_runtime::space::Space;
use paceline_runtime::tag::{Call, Signature};
use paceline_runtime::tcp::TcpChannel;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Transport {
    Shm,
    /// Shared memory that lends nothing.
    ShmCopied,
    Tcp,
    TwoStreams,
    /// Shared memory between neighbours (0-1, 2-3, …), TCP between the others.
    Mixed,
}

pub const TRANSPORTS: [Transport; 5] =
    [Transport::Shm, Transport::ShmCopied, Transport::Tcp, Transport::TwoStreams, Transport::Mixed];

fn socket_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// For each rank the channels to the others.
pub fn channels(size: u32, transport: Transport) -> Vec<Vec<Option<Box<dyn Channel>>>> {
    let segments: Vec<_> = (0..size).map(|_| Segment::create(size).unwrap()).collect();
    let bells: Vec<_> = segments.iter().map(|(segment, ..)| Bell::new(segment.clone()).unwrap()).collect();
    let mut all: Vec<Vec<Option<Box<dyn Channel>>>> = (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    for a in 0..size {
        for b in a + 1..size {
            let shm = match transport {
                Transport::Shm | Transport::ShmCopied => true,
                Transport::Tcp | Transport::TwoStreams => false,
                Transport::Mixed => a / 2 == b / 2,
            };
            let (ours, theirs): (Box<dyn Channel>, Box<dyn Channel>) = if shm {
                let make = |me: u32, peer: u32| {
                    let (_, _, address): &(Arc<Segment>, OwnedFd, _) = &segments[peer as usize];
                    let mut address = address.clone();
                    if transport == Transport::ShmCopied {
                        address.token_at = 0;
                    }
                    let opened = Segment::open(&address).unwrap();
                    let ringer =
                        Ringer::open(opened.clone(), std::process::id(), bells[peer as usize].address()).unwrap();
                    Box::new(ShmChannel::new(segments[me as usize].0.clone(), me, opened, peer, ringer))
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
    channels(size, transport)
        .into_iter()
        .enumerate()
        .map(|(rank, channels)| {
            let mut executor = Executor::new(Wires::new(rank as u32, channels));
            executor.add_group(0, (0..size).collect(), rank as u32);
            executor
        })
        .collect()
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
        if !executor.progress() && !executor.put_aside(false) {
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

pub fn signature(call: Call, dtype: Dtype, op: ReduceOp, count: u64) -> Signature {
    Signature { call, dtype, op, root: 0, count, plan: 0 }
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
    let handle = Arc::new(Handle::new(None));
    let begin = Begin {
        signature,
        program,
        roles,
        lends: true,
        transfer: None,
        step: None,
        factor,
        finish: None,
        label: String::new(),
        handle: handle.clone(),
        keep: None,
    };
    executor.begin(0, begin);
    handle
}
