//! NCCL, in the same library: communicators of processes on one host, which exchange through a file in shared memory.
//!
//! Collectives run on the stand-in's streams. As NCCL's do, they wait for all ranks, for ever if one is gone, until the
//! communicator is aborted. Making one goes on in the background, and takes some time. `CUDA_STAND_IN_RECORD` names a file to
//! which every call is appended.
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use half::{bf16, f16};

use crate::driver::{fault, is_broken};
use crate::memory::reach;
use crate::stream;

const SUCCESS: c_int = 0;
const SYSTEM_ERROR: c_int = 2;
const INTERNAL_ERROR: c_int = 3;
const INVALID_ARGUMENT: c_int = 4;
const IN_PROGRESS: c_int = 7;
/// Bytes of a rank in the file, and of the file's head.
const SLOT: usize = 256 << 10;
const HEAD: usize = 4096;
const LOOK: Duration = Duration::from_micros(20);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

struct Comm {
    rank: usize,
    size: usize,
    /// The mapped file: a counter of arrivals, then a slot for each rank.
    shared: usize,
    /// Barriers that this rank has come to.
    barriers: AtomicU64,
    state: AtomicI32,
    aborted: AtomicBool,
}

impl Comm {
    fn arrivals(&self) -> &AtomicU64 {
        // SAFETY: the mapping is kept as long as the process, and begins with the counter.
        unsafe { AtomicU64::from_ptr(self.shared as *mut u64) }
    }

    fn slot(&self, rank: usize) -> *mut u8 {
        (self.shared + HEAD + rank * SLOT) as *mut u8
    }

    /// Waits for all ranks; `false`: aborted.
    fn meet(&self) -> bool {
        let all = (self.barriers.fetch_add(1, Ordering::SeqCst) + 1) * self.size as u64;
        self.arrivals().fetch_add(1, Ordering::SeqCst);
        while self.arrivals().load(Ordering::SeqCst) < all {
            if self.aborted.load(Ordering::SeqCst) || is_broken() {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Puts this rank's bytes into its slot, lets `take` see all slots, and goes on when all have.
    fn exchange(&self, own: Option<&[u8]>, take: impl FnOnce(&dyn Fn(usize) -> *const u8)) -> bool {
        if let Some(own) = own {
            // SAFETY: a slot has room for a piece.
            unsafe { std::ptr::copy_nonoverlapping(own.as_ptr(), self.slot(self.rank), own.len()) };
        }
        if !self.meet() {
            return false;
        }
        take(&|rank| self.slot(rank).cast_const());
        self.meet()
    }
}

fn record(call: &str) {
    let Ok(path) = std::env::var("CUDA_STAND_IN_RECORD") else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    // In one write, because other ranks append, too. What cannot be recorded is missed by the test.
    let _ = file.and_then(|mut file| file.write_all(format!("{call}\n").as_bytes()));
}

/// `CUDA_STAND_IN_NCCL` names another version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    let named = std::env::var("CUDA_STAND_IN_NCCL").ok().and_then(|text| text.parse().ok());
    // SAFETY: as in nccl.h.
    unsafe { *version = named.unwrap_or(2_30_07) };
    fault("ncclGetVersion")
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(status: c_int) -> *const c_char {
    let text: &CStr = match status {
        SUCCESS => c"no error",
        1 => c"unhandled cuda error",
        SYSTEM_ERROR => c"unhandled system error",
        INTERNAL_ERROR => c"internal error",
        INVALID_ARGUMENT => c"invalid argument",
        5 => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    record("ncclGetUniqueId");
    let mut bytes = [0; 128];
    // SAFETY: a buffer of this size.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast::<c_void>(), 16, 0) };
    // SAFETY: as in nccl.h.
    unsafe { *id = UniqueId(bytes) };
    if got == 16 { fault("ncclGetUniqueId") } else { SYSTEM_ERROR }
}

/// Maps the file of a communicator.
fn map(id: &UniqueId, size: usize) -> Option<(usize, std::path::PathBuf)> {
    let mut name = String::from("/dev/shm/nccl-stand-in-");
    for byte in &id.0[..16] {
        let _ = write!(name, "{byte:02x}");
    }
    let file = std::fs::OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&name).ok()?;
    let bytes = HEAD + size * SLOT;
    file.set_len(bytes as u64).ok()?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: a new mapping.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, descriptor, 0) };
    (memory != libc::MAP_FAILED).then_some((memory as usize, name.into()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    made: *mut *mut c_void,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    config: *mut Config,
) -> c_int {
    record("ncclCommInitRankConfig");
    let status = fault("ncclCommInitRankConfig");
    // SAFETY: as in nccl.h.
    let config = unsafe { &*config };
    if config.magic != 0xcafe_beef || config.blocking != 0 || config.size < std::mem::size_of::<Config>() {
        return INVALID_ARGUMENT;
    }
    if status != SUCCESS {
        return status;
    }
    let (rank, size) = (rank as usize, size as usize);
    let Some((shared, path)) = map(&id, size) else { return SYSTEM_ERROR };
    let comm = Arc::new(Comm {
        rank,
        size,
        shared,
        barriers: AtomicU64::new(0),
        state: AtomicI32::new(IN_PROGRESS),
        aborted: AtomicBool::new(false),
    });
    // SAFETY: as in nccl.h. It is never freed: calls may come after it was aborted.
    unsafe { *made = Arc::into_raw(comm.clone()).cast_mut().cast::<c_void>() };
    let started = std::thread::Builder::new().spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        let all = comm.meet();
        if comm.rank == 0 {
            let _ = std::fs::remove_file(path);
        }
        comm.state.store(if all { SUCCESS } else { INTERNAL_ERROR }, Ordering::SeqCst);
    });
    if started.is_ok() { IN_PROGRESS } else { SYSTEM_ERROR }
}

/// The communicator of a handle.
unsafe fn comm(raw: *mut c_void) -> Arc<Comm> {
    let raw = raw.cast_const().cast::<Comm>();
    // SAFETY: made by `ncclCommInitRankConfig`, and never freed.
    unsafe {
        Arc::increment_strong_count(raw);
        Arc::from_raw(raw)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(raw: *mut c_void, state: *mut c_int) -> c_int {
    // SAFETY: as in nccl.h.
    unsafe { *state = comm(raw).state.load(Ordering::SeqCst) };
    fault("ncclCommGetAsyncError")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(raw: *mut c_void) -> c_int {
    record("ncclCommAbort");
    // SAFETY: as in nccl.h.
    unsafe { comm(raw) }.aborted.store(true, Ordering::SeqCst);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    fault("ncclGroupStart")
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    fault("ncclGroupEnd")
}

/// Bytes of an element.
fn element(dtype: c_int) -> Option<usize> {
    match dtype {
        0 | 1 => Some(1),
        6 | 9 => Some(2),
        2 | 3 | 7 => Some(4),
        4 | 5 | 8 => Some(8),
        _ => None,
    }
}

/// Combines the numbers of all ranks, in the order of ranks.
fn combine(dtype: c_int, op: c_int, all: &[&[u8]], into: &mut [u8]) {
    macro_rules! numbers {
        ($kind:ty, $to:expr, $from:expr, $add:expr, $multiply:expr, $divide:expr) => {{
            const BYTES: usize = std::mem::size_of::<$kind>();
            for (at, out) in into.chunks_exact_mut(BYTES).enumerate() {
                let each = all.iter().map(|bytes| {
                    let mut number = [0; BYTES];
                    number.copy_from_slice(&bytes[at * BYTES..][..BYTES]);
                    $to(<$kind>::from_ne_bytes(number))
                });
                let result = match op {
                    0 | 4 => each.reduce($add),
                    1 => each.reduce($multiply),
                    2 => each.reduce(|a, b| if b > a { b } else { a }),
                    _ => each.reduce(|a, b| if b < a { b } else { a }),
                };
                let result = result.map(|result| if op == 4 { $divide(result, all.len()) } else { result });
                if let Some(result) = result {
                    out.copy_from_slice(&$from(result).to_ne_bytes());
                }
            }
        }};
    }
    macro_rules! integers {
        ($kind:ty) => {
            numbers!($kind, |a: $kind| a, |a: $kind| a, <$kind>::wrapping_add, <$kind>::wrapping_mul, |a: $kind, n| a
                / n as $kind)
        };
    }
    macro_rules! floats {
        ($kind:ty, $wide:ty, $to:expr, $from:expr) => {
            numbers!($kind, $to, $from, |a: $wide, b: $wide| a + b, |a: $wide, b: $wide| a * b, |a: $wide, n| a / n
                as $wide)
        };
    }
    match dtype {
        1 => integers!(u8),
        2 => integers!(i32),
        4 => integers!(i64),
        6 => floats!(u16, f32, |a| f16::from_bits(a).to_f32(), |a| f16::from_f32(a).to_bits()),
        7 => floats!(f32, f32, |a| a, |a| a),
        8 => floats!(f64, f64, |a| a, |a| a),
        9 => floats!(u16, f32, |a| bf16::from_bits(a).to_f32(), |a| bf16::from_f32(a).to_bits()),
        _ => {}
    }
}

/// A rank's contribution to a collective, and the result it expects.
struct Collective {
    name: &'static str,
    /// From, and its bytes.
    input: Option<(u64, usize)>,
    /// To, and the first byte of what each rank contributes that is wanted.
    output: Option<(u64, usize)>,
    /// Bytes that each rank contributes.
    bytes: usize,
    /// How they become the result.
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Combine { dtype: c_int, op: c_int, bytes: usize },
    Copy { from: usize },
    Gather,
}

unsafe fn submit(raw: *mut c_void, on: *mut c_void, collective: Collective) -> c_int {
    record(collective.name);
    // SAFETY: as in nccl.h.
    let comm = unsafe { comm(raw) };
    let status = fault(collective.name);
    if status != SUCCESS {
        return status;
    }
    let submitted = stream::submit("cuLaunchKernel", on, move || {
        if !run(&comm, &collective) && !comm.aborted.load(Ordering::SeqCst) {
            comm.state.store(INTERNAL_ERROR, Ordering::SeqCst);
        }
    });
    if submitted == SUCCESS { SUCCESS } else { 1 }
}

/// In pieces that fit into a slot; `false`: aborted, or memory that is none.
fn run(comm: &Comm, collective: &Collective) -> bool {
    let bytes = |address: u64, count: usize| {
        let memory = if count == 0 { Some(std::ptr::NonNull::dangling().as_ptr()) } else { reach(address, count) };
        // SAFETY: the stand-in's memory of this allocation, which only this stream touches, as in nccl.h.
        memory.map(|at| unsafe { std::slice::from_raw_parts_mut(at, count) })
    };
    let mut at = 0;
    while at < collective.bytes {
        let count = SLOT.min(collective.bytes - at);
        let own = match collective.input {
            None => None,
            Some((from, _)) => match bytes(from + at as u64, count) {
                Some(own) => Some(&*own),
                None => return false,
            },
        };
        let mut good = true;
        let going = comm.exchange(own, |slot| {
            // SAFETY: all have written their pieces, and none writes before all have read.
            let of = |rank| unsafe { std::slice::from_raw_parts(slot(rank), count) };
            let Some((to, first)) = collective.output else { return };
            match collective.kind {
                Kind::Copy { from } => match bytes(to + at as u64, count) {
                    Some(into) => into.copy_from_slice(of(from)),
                    None => good = false,
                },
                Kind::Gather => {
                    for rank in 0..comm.size {
                        match bytes(to + (rank * collective.bytes + at) as u64, count) {
                            Some(into) => into.copy_from_slice(of(rank)),
                            None => good = false,
                        }
                    }
                }
                Kind::Combine { dtype, op, bytes: wanted } => {
                    // The part of the piece that this rank wants.
                    let (begin, end) = (first.max(at), (first + wanted).min(at + count));
                    if begin < end {
                        let all: Vec<Vec<u8>> =
                            (0..comm.size).map(|rank| of(rank)[begin - at..end - at].to_vec()).collect();
                        let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
                        match bytes(to + (begin - first) as u64, end - begin) {
                            Some(into) => combine(dtype, op, &all, into),
                            None => good = false,
                        }
                    }
                }
            }
        });
        if !going || !good {
            return false;
        }
        at += count;
    }
    true
}

/// An all-reduce, or a reduction to one rank.
unsafe fn reduce(
    name: &'static str,
    (from, to): (u64, u64),
    (count, dtype, op): (usize, c_int, c_int),
    root: Option<c_int>,
    raw: *mut c_void,
    on: *mut c_void,
) -> c_int {
    let Some(size) = element(dtype) else { return INVALID_ARGUMENT };
    let bytes = count * size;
    let kind = Kind::Combine { dtype, op, bytes };
    // SAFETY: as in nccl.h.
    unsafe {
        let rank = comm(raw).rank;
        let output = root.is_none_or(|root| rank == root as usize).then_some((to, 0));
        submit(raw, on, Collective { name, input: Some((from, bytes)), output, bytes, kind })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
    raw: *mut c_void,
    on: *mut c_void,
) -> c_int {
    // SAFETY: as in nccl.h.
    unsafe { reduce("ncclAllReduce", (from, to), (count, dtype, op), None, raw, on) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduce(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    raw: *mut c_void,
    on: *mut c_void,
) -> c_int {
    // SAFETY: as in nccl.h.
    unsafe { reduce("ncclReduce", (from, to), (count, dtype, op), Some(root), raw, on) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    root: c_int,
    raw: *mut c_void,
    on: *mut c_void,
) -> c_int {
    let Some(size) = element(dtype) else { return INVALID_ARGUMENT };
    let bytes = count * size;
    let kind = Kind::Copy { from: root as usize };
    // SAFETY: as in nccl.h.
    unsafe {
        let input = (comm(raw).rank == root as usize).then_some((from, bytes));
        submit(raw, on, Collective { name: "ncclBroadcast", input, output: Some((to, 0)), bytes, kind })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    raw: *mut c_void,
    on: *mut c_void,
) -> c_int {
    let Some(size) = element(dtype) else { return INVALID_ARGUMENT };
    let bytes = count * size;
    let collective = Collective {
        name: "ncclAllGather",
        input: Some((from, bytes)),
        output: Some((to, 0)),
        bytes,
        kind: Kind::Gather,
    };
    // SAFETY: as in nccl.h.
    unsafe { submit(raw, on, collective) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
    raw: *mut c_void,
    on: *mut c_void,
) -> c_int {
    let Some(size) = element(dtype) else { return INVALID_ARGUMENT };
    // SAFETY: as in nccl.h.
    unsafe {
        let (rank, ranks) = (comm(raw).rank, comm(raw).size);
        let (part, bytes) = (count * size, count * size * ranks);
        let kind = Kind::Combine { dtype, op, bytes: part };
        let output = Some((to, rank * part));
        submit(raw, on, Collective { name: "ncclReduceScatter", input: Some((from, bytes)), output, bytes, kind })
    }
}
