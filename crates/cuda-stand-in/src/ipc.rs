//! Device memory of other processes. A handle names the whole allocation; whoever opens it maps the same file, so that it
//! outlives the owner's `cuMemFree`.
use std::collections::HashMap;
use std::ffi::c_int;

use parking_lot::Mutex;

use crate::driver::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, MAP_FAILED, SUCCESS, fault_in_context};
use crate::memory::{around, map, unmap};

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle([u8; 64]);

/// What a handle says.
#[derive(Clone, Copy)]
struct Named {
    pid: u32,
    file: u32,
    bytes: u64,
    id: u64,
}

impl Named {
    fn write(self) -> Handle {
        let mut handle = [0; 64];
        handle[..4].copy_from_slice(&self.pid.to_le_bytes());
        handle[4..8].copy_from_slice(&self.file.to_le_bytes());
        handle[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        handle[16..24].copy_from_slice(&self.id.to_le_bytes());
        Handle(handle)
    }

    fn read(handle: &Handle) -> Named {
        let word = |at: usize| u32::from_le_bytes(handle.0[at..at + 4].try_into().unwrap_or_default());
        let long = |at: usize| u64::from_le_bytes(handle.0[at..at + 8].try_into().unwrap_or_default());
        Named { pid: word(0), file: word(4), bytes: long(8), id: long(16) }
    }
}

/// By handle: where it was opened, and how often.
static OPENED: Mutex<Option<HashMap<Handle, (u64, u32)>>> = Mutex::new(None);

/// With `CUDA_STAND_IN_UNSHARED=1`, no memory can be shared, as with expandable segments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut Handle, address: u64) -> c_int {
    let status = fault_in_context("cuIpcGetMemHandle");
    let Some((allocation, _)) = around(address) else { return INVALID_VALUE };
    if status != SUCCESS || std::env::var("CUDA_STAND_IN_UNSHARED").is_ok_and(|text| text == "1") {
        return if status == SUCCESS { INVALID_VALUE } else { status };
    }
    let (file, bytes) = (allocation.file as u32, allocation.bytes as u64);
    // SAFETY: as in cuda.h.
    unsafe { *handle = Named { pid: std::process::id(), file, bytes, id: allocation.id }.write() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(address: *mut u64, handle: Handle, _flags: u32) -> c_int {
    let status = fault_in_context("cuIpcOpenMemHandle_v2");
    if status != SUCCESS {
        return status;
    }
    let named = Named::read(&handle);
    if named.pid == std::process::id() {
        return INVALID_CONTEXT;
    }
    let mut opened = OPENED.lock();
    let opened = opened.get_or_insert_default();
    if let Some((at, count)) = opened.get_mut(&handle) {
        *count += 1;
        // SAFETY: as in cuda.h.
        unsafe { *address = *at };
        return SUCCESS;
    }
    let path = format!("/proc/{}/fd/{}\0", named.pid, named.file);
    // SAFETY: a path that ends with a zero.
    let file = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC) };
    if file < 0 {
        return INVALID_HANDLE;
    }
    // Numbers of other processes do not meet those of this one.
    let Some(at) = map(file, named.bytes as usize, Some(named.id | u64::from(named.pid) << 32)) else {
        return MAP_FAILED;
    };
    opened.insert(handle, (at, 1));
    // SAFETY: as in cuda.h.
    unsafe { *address = at };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuIpcCloseMemHandle(address: u64) -> c_int {
    let status = fault_in_context("cuIpcCloseMemHandle");
    if status != SUCCESS {
        return status;
    }
    let mut opened = OPENED.lock();
    let opened = opened.get_or_insert_default();
    let Some((&handle, (_, count))) = opened.iter_mut().find(|(_, (at, _))| *at == address) else {
        return INVALID_VALUE;
    };
    *count -= 1;
    if *count == 0 {
        opened.remove(&handle);
        return unmap(address).map_or(INVALID_VALUE, |()| SUCCESS);
    }
    SUCCESS
}
