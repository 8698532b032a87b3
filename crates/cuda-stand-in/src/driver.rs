//! Devices, contexts, errors and faults.
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::Mutex;

pub const SUCCESS: c_int = 0;
pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
const INVALID_DEVICE: c_int = 101;
pub const INVALID_CONTEXT: c_int = 201;
pub const MAP_FAILED: c_int = 205;
pub const ALREADY_MAPPED: c_int = 208;
pub const INVALID_PTX: c_int = 218;
pub const INVALID_HANDLE: c_int = 400;
pub const NOT_FOUND: c_int = 500;
pub const NOT_READY: c_int = 600;
pub const ILLEGAL_ADDRESS: c_int = 700;
pub const ALREADY_REGISTERED: c_int = 712;
pub const NOT_REGISTERED: c_int = 713;
pub const MISALIGNED_ADDRESS: c_int = 716;
const LAUNCH_FAILED: c_int = 719;
pub const NOT_SUPPORTED: c_int = 801;

/// Devices, unless `CUDA_STAND_IN_DEVICES` says otherwise.
const DEVICES: c_int = 2;

thread_local! {
    /// Contexts of this thread, the current one last. A context's address is its device's number plus one.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The error that has ended the context; 0: none.
static BROKEN: AtomicI32 = AtomicI32::new(0);

/// The calls so far of each function that a fault is wanted in.
static CALLS: Mutex<Option<HashMap<&'static str, u32>>> = Mutex::new(None);

/// Returns an error code if a fault is due or the context has failed, else 0.
pub fn fault(name: &'static str) -> c_int {
    let broken = BROKEN.load(Ordering::SeqCst);
    if broken != 0 {
        return broken;
    }
    let Ok(wanted) = std::env::var("CUDA_STAND_IN_FAULT") else { return SUCCESS };
    let mut parts = wanted.split(':');
    if parts.next() != Some(name) {
        return SUCCESS;
    }
    let number: u32 = parts.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let status: c_int = parts.next().and_then(|text| text.parse().ok()).unwrap_or(INVALID_VALUE);
    let mut calls = CALLS.lock();
    let count = calls.get_or_insert_with(HashMap::new).entry(name).or_default();
    *count += 1;
    if *count != number {
        return SUCCESS;
    }
    if [ILLEGAL_ADDRESS, MISALIGNED_ADDRESS, LAUNCH_FAILED].contains(&status) {
        break_context(status);
    }
    status
}

/// The context has failed: all later calls do.
pub fn break_context(status: c_int) {
    let _ = BROKEN.compare_exchange(0, status, Ordering::SeqCst, Ordering::SeqCst);
}

pub fn is_broken() -> bool {
    BROKEN.load(Ordering::SeqCst) != 0
}

/// The device of the thread's context.
pub fn current() -> Option<c_int> {
    CURRENT.with_borrow(|stack| stack.last().map(|&context| context as c_int - 1))
}

/// As `fault`, for a function that needs a context.
pub fn fault_in_context(name: &'static str) -> c_int {
    match fault(name) {
        SUCCESS if current().is_none() => INVALID_CONTEXT,
        status => status,
    }
}

fn devices() -> c_int {
    std::env::var("CUDA_STAND_IN_DEVICES").ok().and_then(|text| text.parse().ok()).unwrap_or(DEVICES)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    fault("cuInit")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: as in cuda.h.
    unsafe { *version = 12080 };
    fault("cuDriverGetVersion")
}

const ERRORS: [(c_int, &CStr, &CStr); 17] = [
    (SUCCESS, c"CUDA_SUCCESS", c"no error"),
    (INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (INVALID_DEVICE, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (INVALID_CONTEXT, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (MAP_FAILED, c"CUDA_ERROR_MAP_FAILED", c"mapping of buffer object failed"),
    (ALREADY_MAPPED, c"CUDA_ERROR_ALREADY_MAPPED", c"resource already mapped"),
    (INVALID_PTX, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (INVALID_HANDLE, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (NOT_FOUND, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (NOT_READY, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (ILLEGAL_ADDRESS, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (
        ALREADY_REGISTERED,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        NOT_REGISTERED,
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region",
    ),
    (MISALIGNED_ADDRESS, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
    (LAUNCH_FAILED, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (NOT_SUPPORTED, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
];

unsafe fn text(
    status: c_int,
    to: *mut *const c_char,
    which: impl Fn(&(c_int, &'static CStr, &'static CStr)) -> &'static CStr,
) -> c_int {
    let found = ERRORS.iter().find(|(known, ..)| *known == status);
    // SAFETY: as in cuda.h.
    unsafe { *to = found.map_or(std::ptr::null(), |error| which(error).as_ptr()) };
    if found.is_some() { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(status: c_int, to: *mut *const c_char) -> c_int {
    // SAFETY: as in cuda.h.
    unsafe { text(status, to, |error| error.1) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(status: c_int, to: *mut *const c_char) -> c_int {
    // SAFETY: as in cuda.h.
    unsafe { text(status, to, |error| error.2) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: as in cuda.h.
    unsafe { *count = devices() };
    fault("cuDeviceGetCount")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    if !(0..devices()).contains(&ordinal) {
        return INVALID_DEVICE;
    }
    // SAFETY: as in cuda.h.
    unsafe { *device = ordinal };
    fault("cuDeviceGet")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> c_int {
    let text = format!("Stand-in {device}\0");
    let bytes = &text.as_bytes()[..text.len().min(length.max(0) as usize)];
    // SAFETY: as in cuda.h: there is room for `length` bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), name, bytes.len()) };
    fault("cuDeviceGetName")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int {
    if !(0..devices()).contains(&device) {
        return INVALID_DEVICE;
    }
    let is = match attribute {
        // Threads of a block, and of a warp.
        1 => 1024,
        10 => 32,
        // Multiprocessors.
        16 => 4,
        // Host memory has device addresses, which are the host's, also if it was registered.
        19 | 41 | 91 | 99 => 1,
        // Compute capability 7.0, the least that Paceline's kernels need.
        75 => 7,
        _ => 0,
    };
    // SAFETY: as in cuda.h.
    unsafe { *value = is };
    fault("cuDeviceGetAttribute")
}

/// Processes that see the same device see the same number, unless `CUDA_STAND_IN_APART` says that they see different devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> c_int {
    if !(0..devices()).contains(&device) {
        return INVALID_DEVICE;
    }
    let process = if std::env::var_os("CUDA_STAND_IN_APART").is_some() { std::process::id() } else { 0 };
    let mut bytes = *b"Stand-in________";
    bytes[8..12].copy_from_slice(&device.to_le_bytes());
    bytes[12..].copy_from_slice(&process.to_le_bytes());
    // SAFETY: as in cuda.h.
    unsafe { *uuid = bytes };
    fault("cuDeviceGetUuid_v2")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> c_int {
    if ![device, peer].iter().all(|number| (0..devices()).contains(number)) {
        return INVALID_DEVICE;
    }
    // SAFETY: as in cuda.h. A device is no peer of its own.
    unsafe { *can = c_int::from(device != peer) };
    fault("cuDeviceCanAccessPeer")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_int {
    // SAFETY: as in cuda.h.
    unsafe { *context = (device as usize + 1) as *mut c_void };
    fault("cuDevicePrimaryCtxRetain")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> c_int {
    fault("cuDevicePrimaryCtxRelease_v2")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: *mut c_void) -> c_int {
    if !(1..=devices() as usize).contains(&(context as usize)) {
        return INVALID_CONTEXT;
    }
    // Also a context that has failed can be current.
    CURRENT.with_borrow_mut(|stack| stack.push(context as usize));
    SUCCESS
}

/// In place of the thread's current one.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> c_int {
    CURRENT.with_borrow_mut(Vec::pop);
    cuCtxPushCurrent_v2(context)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut *mut c_void) -> c_int {
    let popped = CURRENT.with_borrow_mut(Vec::pop);
    // SAFETY: as in cuda.h.
    unsafe { *context = popped.unwrap_or(0) as *mut c_void };
    if popped.is_some() { SUCCESS } else { INVALID_CONTEXT }
}
