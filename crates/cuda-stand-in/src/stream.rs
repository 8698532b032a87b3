//! Streams, which are threads, and events.
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::driver::{
    ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_VALUE, NOT_READY, SUCCESS, break_context, fault, fault_in_context,
    is_broken,
};
use crate::memory::reach;

/// The longest wait before a piece of work, in microseconds.
const LONGEST_US: u64 = 300;
/// How long a stream sleeps before it looks again at a number in memory.
const LOOK: Duration = Duration::from_micros(20);

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    busy: bool,
    ends: bool,
}

/// A stream: its thread takes work in order.
struct Stream {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Stream {
    fn start(number: u64) -> Arc<Stream> {
        let stream = Arc::new(Stream { queue: Mutex::default(), changed: Condvar::new() });
        let own = stream.clone();
        let mut random = Random::new(number);
        // Without a thread nothing would ever happen, and tests would say so.
        let _ = std::thread::Builder::new().name(format!("cuda-stream-{number}")).spawn(move || own.run(&mut random));
        stream
    }

    fn run(&self, random: &mut Random) {
        loop {
            let work = {
                let mut queue = self.queue.lock();
                queue.busy = false;
                self.changed.notify_all();
                loop {
                    if let Some(work) = queue.work.pop_front() {
                        queue.busy = true;
                        break work;
                    }
                    if queue.ends {
                        return;
                    }
                    self.changed.wait(&mut queue);
                }
            };
            let wait = random.next() % (2 * LONGEST_US);
            // Half of all work begins at once.
            if wait > LONGEST_US {
                std::thread::sleep(Duration::from_micros(wait - LONGEST_US));
            }
            // A context that has failed does nothing any more.
            if !is_broken() {
                work();
            }
        }
    }

    fn push(&self, work: impl FnOnce() + Send + 'static) {
        self.queue.lock().work.push_back(Box::new(work));
        self.changed.notify_all();
    }

    fn idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.work.is_empty() && !queue.busy
    }

    fn drain(&self) {
        let mut queue = self.queue.lock();
        while (!queue.work.is_empty() || queue.busy) && !is_broken() {
            self.changed.wait_for(&mut queue, Duration::from_millis(1));
        }
    }
}

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(number: u64) -> Random {
        let of = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        // Ranks are not in step.
        let rank = of("PACELINE_RANK").or_else(|| of("RANK")).unwrap_or(0);
        let seed = of("CUDA_STAND_IN_SEED").unwrap_or(1) ^ rank << 32;
        Random((seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

/// An event: how often it was recorded, and which record has happened.
#[derive(Default)]
struct Event {
    recorded: AtomicU64,
    happened: Mutex<u64>,
    changed: Condvar,
}

impl Event {
    fn wait(&self, record: u64) {
        let mut happened = self.happened.lock();
        while *happened < record && !is_broken() {
            self.changed.wait_for(&mut happened, Duration::from_millis(1));
        }
    }
}

#[derive(Default)]
struct Handles {
    streams: HashMap<usize, Arc<Stream>>,
    /// Destroyed, and not idle yet.
    ending: Vec<Arc<Stream>>,
    events: HashMap<usize, Arc<Event>>,
    /// The legacy default stream and that of threads; without the order that they imply.
    made: usize,
}

static HANDLES: Mutex<Option<Handles>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut Handles) -> T) -> T {
    act(HANDLES.lock().get_or_insert_with(|| Handles { made: 16, ..Handles::default() }))
}

fn stream(raw: *mut c_void) -> Option<Arc<Stream>> {
    with(|handles| match raw as usize {
        // The default streams: 0 is the legacy one, too.
        number @ 0..=2 => {
            let number = number.max(1);
            Some(handles.streams.entry(number).or_insert_with(|| Stream::start(number as u64)).clone())
        }
        number => handles.streams.get(&number).cloned(),
    })
}

fn event(raw: *mut c_void) -> Option<Arc<Event>> {
    with(|handles| handles.events.get(&(raw as usize)).cloned())
}

/// Waits for all that has been submitted.
pub fn drain() {
    let streams: Vec<Arc<Stream>> = with(|handles| {
        handles.ending.retain(|stream| !stream.idle());
        handles.streams.values().chain(&handles.ending).cloned().collect()
    });
    streams.iter().for_each(|stream| stream.drain());
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(made: *mut *mut c_void, _flags: c_uint) -> c_int {
    let status = fault_in_context("cuStreamCreate");
    if status != SUCCESS {
        return status;
    }
    let number = with(|handles| {
        handles.made += 16;
        let number = handles.made;
        handles.streams.insert(number, Stream::start(number as u64));
        number
    });
    // SAFETY: as in cuda.h.
    unsafe { *made = number as *mut c_void };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(raw: *mut c_void) -> c_int {
    let Some(stream) = with(|handles| handles.streams.remove(&(raw as usize))) else { return INVALID_HANDLE };
    // What it has still to do is done.
    with(|handles| handles.ending.push(stream.clone()));
    stream.queue.lock().ends = true;
    stream.changed.notify_all();
    fault_in_context("cuStreamDestroy_v2")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(raw: *mut c_void) -> c_int {
    match (fault_in_context("cuStreamQuery"), stream(raw)) {
        (SUCCESS, None) => INVALID_HANDLE,
        (SUCCESS, Some(stream)) => {
            if stream.idle() {
                SUCCESS
            } else {
                NOT_READY
            }
        }
        (status, _) => status,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(raw: *mut c_void) -> c_int {
    let Some(stream) = stream(raw) else { return INVALID_HANDLE };
    stream.drain();
    fault_in_context("cuStreamSynchronize")
}

/// Submits work to a stream.
pub fn submit(name: &'static str, raw: *mut c_void, work: impl FnOnce() + Send + 'static) -> c_int {
    match (fault_in_context(name), stream(raw)) {
        (SUCCESS, None) => INVALID_HANDLE,
        (SUCCESS, Some(stream)) => {
            stream.push(work);
            SUCCESS
        }
        (status, _) => status,
    }
}

/// Copies in the order of a stream. Device memory is looked up when the copy happens, as a device does.
fn copy(to: impl Fn() -> Option<*mut u8>, from: impl Fn() -> Option<*const u8>, bytes: usize) {
    match (to(), from()) {
        // SAFETY: both were looked up, or are the caller's promise.
        (Some(to), Some(from)) => unsafe { std::ptr::copy(from, to, bytes) },
        _ => break_context(ILLEGAL_ADDRESS),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, raw: *mut c_void) -> c_int {
    let to = to as usize;
    submit("cuMemcpyDtoHAsync_v2", raw, move || {
        copy(|| Some(to as *mut u8), || reach(from, bytes).map(<*mut u8>::cast_const), bytes);
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, raw: *mut c_void) -> c_int {
    let from = from as usize;
    submit("cuMemcpyHtoDAsync_v2", raw, move || copy(|| reach(to, bytes), || Some(from as *const u8), bytes))
}

/// For tests: their own memory, at once.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> c_int {
    let Some(from) = reach(from, bytes) else { return ILLEGAL_ADDRESS };
    // SAFETY: the caller's memory, as in cuda.h.
    unsafe { std::ptr::copy(from.cast_const(), to.cast(), bytes) };
    fault_in_context("cuMemcpyDtoH_v2")
}

/// For tests: their own memory, at once.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> c_int {
    let Some(to) = reach(to, bytes) else { return ILLEGAL_ADDRESS };
    // SAFETY: the caller's memory, as in cuda.h.
    unsafe { std::ptr::copy(from.cast(), to, bytes) };
    fault_in_context("cuMemcpyHtoD_v2")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(raw: *mut c_void, of: *mut c_void, _flags: c_uint) -> c_int {
    let Some(event) = event(of) else { return INVALID_HANDLE };
    // The record of this moment, not a later one.
    let record = event.recorded.load(Ordering::SeqCst);
    submit("cuStreamWaitEvent", raw, move || event.wait(record))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, raw: *mut c_void) -> c_int {
    submit("cuMemcpyDtoDAsync_v2", raw, move || {
        copy(|| reach(to, bytes), || reach(from, bytes).map(<*mut u8>::cast_const), bytes);
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitValue32_v2(raw: *mut c_void, number: u64, least: u32, _flags: c_uint) -> c_int {
    submit("cuStreamWaitValue32_v2", raw, move || {
        // SAFETY: page-locked memory of the caller, as in cuda.h.
        let number = unsafe { AtomicU32::from_ptr(number as *mut u32) };
        while (number.load(Ordering::SeqCst).wrapping_sub(least) as i32) < 0 && !is_broken() {
            std::thread::sleep(LOOK);
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWriteValue32_v2(raw: *mut c_void, number: u64, value: u32, _flags: c_uint) -> c_int {
    if !crate::memory::is_host(number) {
        return INVALID_VALUE;
    }
    submit("cuStreamWriteValue32_v2", raw, move || {
        // SAFETY: page-locked memory of the caller, as in cuda.h.
        unsafe { AtomicU32::from_ptr(number as *mut u32) }.store(value, Ordering::SeqCst);
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchHostFunc(
    raw: *mut c_void,
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> c_int {
    let data = data as usize;
    // SAFETY: the caller's function and data.
    submit("cuLaunchHostFunc", raw, move || unsafe { function(data as *mut c_void) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(made: *mut *mut c_void, _flags: c_uint) -> c_int {
    let status = fault_in_context("cuEventCreate");
    if status != SUCCESS {
        return status;
    }
    let number = with(|handles| {
        handles.made += 16;
        handles.events.insert(handles.made, Arc::default());
        handles.made
    });
    // SAFETY: as in cuda.h.
    unsafe { *made = number as *mut c_void };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(raw: *mut c_void) -> c_int {
    if with(|handles| handles.events.remove(&(raw as usize))).is_none() {
        return INVALID_HANDLE;
    }
    fault("cuEventDestroy_v2")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(raw: *mut c_void, on: *mut c_void) -> c_int {
    let Some(event) = event(raw) else { return INVALID_HANDLE };
    let record = event.recorded.fetch_add(1, Ordering::SeqCst) + 1;
    submit("cuEventRecord", on, move || {
        let mut happened = event.happened.lock();
        *happened = record.max(*happened);
        event.changed.notify_all();
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(raw: *mut c_void) -> c_int {
    match (fault_in_context("cuEventQuery"), event(raw)) {
        (SUCCESS, None) => INVALID_HANDLE,
        (SUCCESS, Some(event)) => {
            let happened = *event.happened.lock() >= event.recorded.load(Ordering::SeqCst);
            if happened { SUCCESS } else { NOT_READY }
        }
        (status, _) => status,
    }
}
