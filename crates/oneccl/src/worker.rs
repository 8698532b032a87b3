//! A communicator, and the thread that makes its blocking calls.
#![allow(unsafe_code, reason = "the thread calls the library with memory that it owns")]
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_kernels::dtype::{Dtype, ReduceOp};

use crate::buffer::Buffer;
use crate::library::Library;

/// How long the end of a thread is awaited that has nothing left to do.
const END: Duration = Duration::from_secs(5);

struct Work {
    number: u64,
    buffer: Buffer,
    kind: (c_int, c_int),
}

type Outcome = Result<Buffer, String>;

/// The thread of a communicator, as others see it.
pub(crate) struct Worker {
    work: Sender<Work>,
    results: Receiver<(u64, Outcome)>,
    /// Results that nobody has taken yet.
    kept: HashMap<u64, Outcome>,
    thread: JoinHandle<bool>,
}

impl Worker {
    /// Begins a thread, which first meets those of all other ranks.
    pub fn begin(library: &Arc<Library>, identifier: &[u8], rank: u32, size: u32) -> Result<Worker, String> {
        let ((work, given), (done, results)) = (channel::<Work>(), channel());
        let (library, identifier) = (library.clone(), identifier.to_vec());
        let body = move || serve(&library, &identifier, (rank, size), &given, &done);
        let thread = std::thread::Builder::new().name("paceline-oneccl".into()).spawn(body);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Worker { work, results, kept: HashMap::new(), thread })
    }

    /// Begins an all-reduce, in the order of all ranks.
    pub fn reduce(&mut self, number: u64, buffer: Buffer, kind: (Dtype, ReduceOp)) -> Result<(), String> {
        let kind = (number_of(Buffer::dtype(kind.0)), operation(kind.1));
        self.work.send(Work { number, buffer, kind }).map_err(|_| "oneCCL: its thread has ended".into())
    }

    /// The outcome of an all-reduce, once it is done.
    pub fn result(&mut self, number: u64) -> Option<Outcome> {
        self.kept.extend(self.results.try_iter());
        let ended = || self.thread.is_finished().then(|| Err("oneCCL: its thread has ended".into()));
        self.kept.remove(&number).or_else(ended)
    }

    /// Leaves the thread to itself: it may be stuck in the library, and owns all the memory that it touches.
    pub fn abandon(self) {
        drop(self);
    }

    /// Waits until the communicator is gone; `false`: it is not.
    pub fn end(self) -> bool {
        let Worker { work, thread, .. } = self;
        drop(work);
        let until = Instant::now() + END;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        thread.is_finished() && thread.join().unwrap_or(false)
    }
}

/// Makes the calls of one communicator until no more can come; returns whether its end went well.
fn serve(
    library: &Library,
    identifier: &[u8],
    (rank, size): (u32, u32),
    given: &Receiver<Work>,
    done: &Sender<(u64, Outcome)>,
) -> bool {
    let communicator = library.init_rank(identifier, rank, size);
    while let Ok(Work { number, mut buffer, kind }) = given.recv() {
        let outcome = communicator.clone().and_then(|communicator| {
            let (memory, count) = buffer.memory();
            // SAFETY: the buffer has this many elements of the type, and this thread owns it.
            unsafe { library.all_reduce(memory, count, kind, communicator) }.map(|()| buffer)
        });
        if done.send((number, outcome)).is_err() {
            break;
        }
    }
    // SAFETY: nothing uses the communicator any more.
    communicator.is_ok_and(|communicator| unsafe { library.destroy(communicator) })
}

/// The library's number of an element type.
fn number_of(dtype: Dtype) -> c_int {
    match dtype {
        Dtype::Uint8 => 1,
        Dtype::Int32 => 2,
        Dtype::Int64 => 4,
        Dtype::Float16 => 6,
        Dtype::Float32 => 7,
        Dtype::Float64 => 8,
        Dtype::Bfloat16 => 9,
    }
}

/// The library's number of a reduction.
fn operation(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
    }
}
