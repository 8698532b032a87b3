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
use crate::memory::{reach, reach_any};
use crate::random::Random;

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

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, raw: *mut c_void) -> c_int {
    submit("cuMemcpyDtoDAsync_v2", raw, move || {
        copy(|| reach(to, bytes), || reach(from, bytes).map(<*mut u8>::cast_const), bytes);
    })
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

/// A number that streams of several processes may wait for: where it is, if a stream may use it at all.
fn number(address: u64) -> Option<*mut u32> {
    let at = reach_any(address, size_of::<u32>())?;
    address.is_multiple_of(size_of::<u32>() as u64).then_some(at.cast())
}

/// Submits work on a number. The address is checked now, as a driver does, and when the stream comes there, as a device does.
fn submit_on_number(
    name: &'static str,
    raw: *mut c_void,
    address: u64,
    work: impl FnOnce(&AtomicU32) + Send + 'static,
) -> c_int {
    if number(address).is_none() {
        return INVALID_VALUE;
    }
    submit(name, raw, move || match number(address) {
        // SAFETY: it stays mapped until the streams are idle, and what else uses it is atomic, too, as in cuda.h.
        Some(at) => work(unsafe { AtomicU32::from_ptr(at) }),
        None => break_context(ILLEGAL_ADDRESS),
    })
}

/// `CU_STREAM_WAIT_VALUE_GEQ`, which is cyclic, and `CU_STREAM_WAIT_VALUE_EQ`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitValue32_v2(raw: *mut c_void, address: u64, value: u32, flags: c_uint) -> c_int {
    let come: fn(u32, u32) -> bool = match flags {
        0 => |number, least| number.wrapping_sub(least) as i32 >= 0,
        1 => |number, wanted| number == wanted,
        _ => return INVALID_VALUE,
    };
    submit_on_number("cuStreamWaitValue32_v2", raw, address, move |number| {
        while !come(number.load(Ordering::Acquire), value) && !is_broken() {
            std::thread::sleep(LOOK);
        }
    })
}

/// Only with `CU_STREAM_WRITE_VALUE_DEFAULT`: who sees the value sees what the stream wrote before.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWriteValue32_v2(raw: *mut c_void, address: u64, value: u32, flags: c_uint) -> c_int {
    if flags != 0 {
        return INVALID_VALUE;
    }
    submit_on_number("cuStreamWriteValue32_v2", raw, address, move |number| number.store(value, Ordering::Release))
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
