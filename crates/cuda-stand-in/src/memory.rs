//! Device memory, which the host cannot touch, and page-locked memory.
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};

use parking_lot::Mutex;

use crate::driver::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, current, fault_in_context};

const POINTER_MEMORY_TYPE: c_int = 2;
const POINTER_BUFFER_ID: c_int = 7;
const POINTER_DEVICE: c_int = 9;

/// An allocation, of this process or opened from another: its device, its second mapping, its size and its number.
#[derive(Clone, Copy)]
pub struct Allocation {
    pub device: c_int,
    /// Where the stand-in reaches it.
    inside: usize,
    pub bytes: usize,
    pub id: u64,
    pub file: c_int,
}

struct Memory {
    /// By address.
    device: BTreeMap<u64, Allocation>,
    /// Page-locked: address and size.
    host: BTreeMap<u64, usize>,
    allocations: u64,
}

static MEMORY: Mutex<Memory> = Mutex::new(Memory { device: BTreeMap::new(), host: BTreeMap::new(), allocations: 0 });

/// The allocation around an address, and how far inside of it that is.
pub fn around(address: u64) -> Option<(Allocation, usize)> {
    let memory = MEMORY.lock();
    let (&start, &allocation) = memory.device.range(..=address).next_back()?;
    let inside = (address - start) as usize;
    (inside < allocation.bytes.max(1)).then_some((allocation, inside))
}

/// Where the stand-in reaches device memory; `None`: these bytes are not inside of one allocation.
pub fn reach(address: u64, bytes: usize) -> Option<*mut u8> {
    let (allocation, inside) = around(address)?;
    (inside + bytes <= allocation.bytes).then_some((allocation.inside + inside) as *mut u8)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    let status = fault_in_context("cuMemAlloc_v2");
    if status != SUCCESS || bytes == 0 {
        return if status == SUCCESS { INVALID_VALUE } else { status };
    }
    let size = bytes.next_multiple_of(4096);
    // SAFETY: a new file.
    let file = unsafe {
        let file = libc::memfd_create(c"cuda-stand-in".as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 || libc::ftruncate(file, size as libc::off_t) != 0 {
            return OUT_OF_MEMORY;
        }
        file
    };
    let Some(at) = map(file, bytes, None) else { return OUT_OF_MEMORY };
    // SAFETY: as in cuda.h.
    unsafe { *address = at };
    SUCCESS
}

/// Maps a file of device memory: where nobody can touch it, for its address, and where the stand-in reaches it. `id`: its
/// number, if it is another process's.
pub fn map(file: c_int, bytes: usize, id: Option<u64>) -> Option<u64> {
    let size = bytes.next_multiple_of(4096);
    let map = |access| {
        // SAFETY: a new mapping of a file that is open.
        unsafe { libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED, file, 0) }
    };
    let (outside, inside) = (map(libc::PROT_NONE), map(libc::PROT_READ | libc::PROT_WRITE));
    if outside == libc::MAP_FAILED || inside == libc::MAP_FAILED {
        return None;
    }
    let mut memory = MEMORY.lock();
    memory.allocations += 1;
    let id = id.unwrap_or(memory.allocations);
    let allocation = Allocation { device: current().unwrap_or(0), inside: inside as usize, bytes, id, file };
    memory.device.insert(outside as u64, allocation);
    Some(outside as u64)
}

/// Takes an allocation away, once nothing uses it; `None`: there is none at this address.
pub fn unmap(address: u64) -> Option<()> {
    // As the driver does: what is under way may still use it.
    crate::stream::drain();
    let allocation = MEMORY.lock().device.remove(&address)?;
    let size = allocation.bytes.next_multiple_of(4096);
    // SAFETY: mapped by `map`, and removed from the list.
    unsafe {
        libc::munmap(address as *mut c_void, size);
        libc::munmap(allocation.inside as *mut c_void, size);
        libc::close(allocation.file);
    }
    Some(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    let status = fault_in_context("cuMemFree_v2");
    if status != SUCCESS {
        return status;
    }
    unmap(address).map_or(INVALID_VALUE, |()| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) -> c_int {
    let Some((allocation, inside)) = around(address) else { return INVALID_VALUE };
    // SAFETY: as in cuda.h: either may be null.
    unsafe {
        if !base.is_null() {
            *base = address - inside as u64;
        }
        if !bytes.is_null() {
            *bytes = allocation.bytes;
        }
    }
    fault_in_context("cuMemGetAddressRange_v2")
}

/// Whether a stream may read and write a number there: page-locked memory.
pub fn is_host(address: u64) -> bool {
    let memory = MEMORY.lock();
    memory.host.range(..=address).next_back().is_some_and(|(&start, &bytes)| address + 4 <= start + bytes as u64)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
    let status = fault_in_context("cuMemHostRegister_v2");
    if status == SUCCESS {
        MEMORY.lock().host.insert(address as u64, bytes);
    }
    status
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(address: *mut c_void) -> c_int {
    crate::stream::drain();
    match (fault_in_context("cuMemHostUnregister"), MEMORY.lock().host.remove(&(address as u64))) {
        (SUCCESS, None) => INVALID_VALUE,
        (status, _) => status,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
    let status = fault_in_context("cuMemHostAlloc");
    if status != SUCCESS {
        return status;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, how, -1, 0) };
    if memory == libc::MAP_FAILED {
        return OUT_OF_MEMORY;
    }
    MEMORY.lock().host.insert(memory as u64, bytes);
    // SAFETY: as in cuda.h.
    unsafe { *address = memory };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(address: *mut c_void) -> c_int {
    let status = fault_in_context("cuMemFreeHost");
    if status != SUCCESS {
        return status;
    }
    crate::stream::drain();
    let Some(bytes) = MEMORY.lock().host.remove(&(address as u64)) else { return INVALID_VALUE };
    // SAFETY: mapped by `cuMemHostAlloc`, and removed from the list.
    unsafe { libc::munmap(address, bytes) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    on_device: *mut u64,
    address: *mut c_void,
    _flags: c_uint,
) -> c_int {
    // SAFETY: as in cuda.h.
    unsafe { *on_device = address as u64 };
    fault_in_context("cuMemHostGetDevicePointer_v2")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: u64) -> c_int {
    let Some((allocation, _)) = around(address) else { return INVALID_VALUE };
    // SAFETY: as in cuda.h: each attribute has its type.
    unsafe {
        match attribute {
            POINTER_MEMORY_TYPE => *value.cast::<c_uint>() = 2,
            POINTER_DEVICE => *value.cast::<c_int>() = allocation.device,
            POINTER_BUFFER_ID => *value.cast::<u64>() = allocation.id,
            _ => return INVALID_VALUE,
        }
    }
    SUCCESS
}
