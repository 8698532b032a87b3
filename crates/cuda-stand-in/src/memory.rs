//! Device memory, which the host cannot touch, and page-locked memory.
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};

use parking_lot::Mutex;

use crate::driver::{
    ALREADY_REGISTERED, INVALID_VALUE, NOT_FOUND, NOT_REGISTERED, OUT_OF_MEMORY, SUCCESS, current, fault_in_context,
};

const POINTER_MEMORY_TYPE: c_int = 2;
const POINTER_BUFFER_ID: c_int = 7;
const POINTER_DEVICE: c_int = 9;

/// An allocation of this process, or one that it has imported.
#[derive(Clone, Copy)]
pub struct Allocation {
    pub device: c_int,
    /// Where the stand-in reaches it: its second mapping.
    inside: usize,
    pub bytes: usize,
    pub id: u64,
    /// The file that other processes map; `None`: imported by this process.
    pub file: Option<c_int>,
}

/// Page-locked memory.
#[derive(Clone, Copy)]
struct Host {
    bytes: usize,
    /// By `cuMemHostRegister_v2`: the memory is the caller's.
    registered: bool,
}

struct Memory {
    /// By address.
    device: BTreeMap<u64, Allocation>,
    /// By address.
    host: BTreeMap<u64, Host>,
    allocations: u64,
}

static MEMORY: Mutex<Memory> = Mutex::new(Memory { device: BTreeMap::new(), host: BTreeMap::new(), allocations: 0 });

impl Memory {
    fn next_id(&mut self) -> u64 {
        self.allocations += 1;
        self.allocations
    }

    /// The page-locked memory around these bytes.
    fn host_around(&self, address: u64, bytes: usize) -> Option<(u64, Host)> {
        let (&start, &host) = self.host.range(..=address).next_back()?;
        let inside = (address - start) as usize;
        (inside.checked_add(bytes)? <= host.bytes).then_some((start, host))
    }
}

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
    (inside.checked_add(bytes)? <= allocation.bytes).then_some((allocation.inside + inside) as *mut u8)
}

/// As `reach`, for page-locked memory, too.
pub fn reach_any(address: u64, bytes: usize) -> Option<*mut u8> {
    reach(address, bytes).or_else(|| MEMORY.lock().host_around(address, bytes).map(|_| address as *mut u8))
}

/// Name of an allocation's file, by which a process that opens it recognizes the allocation.
pub fn file_name(token: u64, id: u64) -> String {
    format!("cuda-stand-in-{token:016x}-{id}")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    let status = fault_in_context("cuMemAlloc_v2");
    if status != SUCCESS || bytes == 0 {
        return if status == SUCCESS { INVALID_VALUE } else { status };
    }
    let id = MEMORY.lock().next_id();
    let name = format!("{}\0", file_name(crate::ipc::token(), id));
    // SAFETY: a name that ends with a zero, and the size of a new file.
    let file = unsafe {
        let file = libc::memfd_create(name.as_ptr().cast(), libc::MFD_CLOEXEC);
        if file < 0 || libc::ftruncate(file, rounded(bytes) as libc::off_t) != 0 {
            return OUT_OF_MEMORY;
        }
        file
    };
    let allocation = Allocation { device: current().unwrap_or(0), inside: 0, bytes, id, file: Some(file) };
    let Some(at) = map(file, allocation) else { return OUT_OF_MEMORY };
    // SAFETY: as in cuda.h.
    unsafe { *address = at };
    SUCCESS
}

fn rounded(bytes: usize) -> usize {
    bytes.next_multiple_of(4096)
}

/// Maps the file of an allocation, and lists it. Its address.
fn map(file: c_int, mut allocation: Allocation) -> Option<u64> {
    let size = rounded(allocation.bytes);
    // SAFETY: new mappings.
    let map = |access| unsafe { libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED, file, 0) };
    let (outside, inside) = (map(libc::PROT_NONE), map(libc::PROT_READ | libc::PROT_WRITE));
    if outside == libc::MAP_FAILED || inside == libc::MAP_FAILED {
        return None;
    }
    allocation.inside = inside as usize;
    MEMORY.lock().device.insert(outside as u64, allocation);
    Some(outside as u64)
}

/// Maps the file of another process's allocation, which may be closed afterwards.
pub fn import(file: c_int, device: c_int, bytes: usize) -> Option<u64> {
    let id = MEMORY.lock().next_id();
    map(file, Allocation { device, inside: 0, bytes, id, file: None })
}

/// Unmaps an allocation. `imported`: one of another process; `false`: there is no such allocation at this address.
pub fn unmap(address: u64, imported: bool) -> bool {
    // As the driver does: what is under way may still use it.
    crate::stream::drain();
    let mut memory = MEMORY.lock();
    if memory.device.get(&address).is_none_or(|allocation| allocation.file.is_none() != imported) {
        return false;
    }
    let Some(allocation) = memory.device.remove(&address) else { return false };
    // SAFETY: mapped by `map`, and removed from the list.
    unsafe {
        libc::munmap(address as *mut c_void, rounded(allocation.bytes));
        libc::munmap(allocation.inside as *mut c_void, rounded(allocation.bytes));
        allocation.file.map(|file| libc::close(file));
    }
    true
}

/// Memory that other processes have imported stays valid: the file lives as long as any mapping.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    match fault_in_context("cuMemFree_v2") {
        SUCCESS if !unmap(address, false) => INVALID_VALUE,
        status => status,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) -> c_int {
    let Some((allocation, inside)) = around(address) else { return NOT_FOUND };
    // SAFETY: as in cuda.h: either may be null.
    unsafe {
        if let Some(base) = base.as_mut() {
            *base = address - inside as u64;
        }
        if let Some(bytes) = bytes.as_mut() {
            *bytes = allocation.bytes;
        }
    }
    fault_in_context("cuMemGetAddressRange_v2")
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
    MEMORY.lock().host.insert(memory as u64, Host { bytes, registered: false });
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
    let Some(host) = forget(address, false) else { return INVALID_VALUE };
    // SAFETY: mapped by `cuMemHostAlloc`, and removed from the list.
    unsafe { libc::munmap(address, host.bytes) };
    SUCCESS
}

/// Takes page-locked memory from the list, if it is of this kind.
fn forget(address: *mut c_void, registered: bool) -> Option<Host> {
    let mut memory = MEMORY.lock();
    memory.host.get(&(address as u64)).filter(|host| host.registered == registered)?;
    memory.host.remove(&(address as u64))
}

/// Memory may be registered once.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
    let status = fault_in_context("cuMemHostRegister_v2");
    let (start, end) = (address as u64, address as u64 + bytes as u64);
    if status != SUCCESS || start == 0 || bytes == 0 {
        return if status == SUCCESS { INVALID_VALUE } else { status };
    }
    let mut memory = MEMORY.lock();
    let before = memory.host.range(..end).next_back();
    if before.is_some_and(|(&other, host)| other + host.bytes as u64 > start) {
        return ALREADY_REGISTERED;
    }
    memory.host.insert(start, Host { bytes, registered: true });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(address: *mut c_void) -> c_int {
    let status = fault_in_context("cuMemHostUnregister");
    if status != SUCCESS {
        return status;
    }
    crate::stream::drain();
    if forget(address, true).is_some() { SUCCESS } else { NOT_REGISTERED }
}

/// Page-locked memory has the host's address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    on_device: *mut u64,
    address: *mut c_void,
    _flags: c_uint,
) -> c_int {
    if MEMORY.lock().host_around(address as u64, 1).is_none() {
        return INVALID_VALUE;
    }
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
