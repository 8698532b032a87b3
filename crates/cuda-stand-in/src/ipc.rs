//! Device memory of other processes.
//!
//! A handle names a whole allocation: the owner's process, and the descriptor and the name of the file that holds it. Whoever
//! opens it maps that file. So an import outlives the owner's `cuMemFree` and its process; a handle does not.
use std::ffi::{c_int, c_uint};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::driver::{
    ALREADY_MAPPED, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, MAP_FAILED, SUCCESS, fault_in_context,
};
use crate::memory::{around, file_name, import, unmap};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which cuda.h demands.
const PEER_ACCESS: c_uint = 1;

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// The owner's, as those that follow.
    token: u64,
    process: u32,
    file: c_int,
    id: u64,
    bytes: u64,
    device: c_int,
    unused: [u8; 20],
    /// In the owner's process.
    address: [u8; 8],
}

impl Handle {
    /// Whether both lie, or have lain, in the same place.
    fn overlaps(&self, other: &Handle) -> bool {
        let range = |handle: &Handle| {
            let begin = u64::from_ne_bytes(handle.address);
            begin..begin + handle.bytes
        };
        let (one, two) = (range(self), range(other));
        (self.token, self.process) == (other.token, other.process) && one.start < two.end && two.start < one.end
    }
}

const _: () = assert!(size_of::<Handle>() == 64);

/// A handle that this process has opened.
struct Import {
    handle: Handle,
    address: u64,
    /// How often it is open.
    count: usize,
}

static IMPORTS: Mutex<Vec<Import>> = Mutex::new(Vec::new());

/// Different in every process: process ids come again.
pub fn token() -> u64 {
    static TOKEN: OnceLock<u64> = OnceLock::new();
    *TOKEN.get_or_init(|| {
        let mut bytes = [0; 8];
        // SAFETY: a buffer of this size. Without random numbers, process ids must do.
        unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        u64::from_ne_bytes(bytes)
    })
}

/// `CUDA_STAND_IN_UNSHARED=1`: no memory can be shared, as in PyTorch's expandable segments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut Handle, address: u64) -> c_int {
    let status = fault_in_context("cuIpcGetMemHandle");
    if status != SUCCESS {
        return status;
    }
    let Some((allocation, inside)) = around(address) else { return INVALID_VALUE };
    let Some(file) = allocation.file else { return INVALID_VALUE };
    if std::env::var("CUDA_STAND_IN_UNSHARED").is_ok_and(|text| text == "1") {
        return INVALID_VALUE;
    }
    let made = Handle {
        token: token(),
        process: std::process::id(),
        file,
        id: allocation.id,
        bytes: allocation.bytes as u64,
        device: allocation.device,
        unused: [0; 20],
        address: (address - inside as u64).to_ne_bytes(),
    };
    // SAFETY: as in cuda.h.
    unsafe { *handle = made };
    SUCCESS
}

/// Opens the file of a handle; an error if its owner has freed it, or has ended.
fn open(handle: &Handle) -> Result<u64, c_int> {
    let path = format!("/proc/{}/fd/{}", handle.process, handle.file);
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|_| INVALID_HANDLE)?;
    // The descriptor, and even the process, may be another by now.
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| INVALID_HANDLE)?;
    let wanted = format!("/memfd:{} ", file_name(handle.token, handle.id));
    if !link.to_string_lossy().starts_with(&wanted) {
        return Err(INVALID_HANDLE);
    }
    import(file.as_raw_fd(), handle.device, handle.bytes as usize).ok_or(MAP_FAILED)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(address: *mut u64, handle: Handle, flags: c_uint) -> c_int {
    let status = fault_in_context("cuIpcOpenMemHandle_v2");
    if status != SUCCESS {
        return status;
    }
    if flags != PEER_ACCESS {
        return INVALID_VALUE;
    }
    if (handle.process, handle.token) == (std::process::id(), token()) {
        return INVALID_CONTEXT;
    }
    let mut imports = IMPORTS.lock();
    // As with the real one, if what was freed is still open.
    if imports.iter().any(|import| import.handle != handle && import.handle.overlaps(&handle)) {
        return ALREADY_MAPPED;
    }
    let at = match imports.iter_mut().find(|import| import.handle == handle) {
        Some(known) => {
            known.count += 1;
            known.address
        }
        None => match open(&handle) {
            Ok(address) => {
                imports.push(Import { handle, address, count: 1 });
                address
            }
            Err(status) => return status,
        },
    };
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
    let mut imports = IMPORTS.lock();
    let Some(index) = imports.iter().position(|import| import.address == address) else { return INVALID_VALUE };
    imports[index].count -= 1;
    if imports[index].count > 0 {
        return SUCCESS;
    }
    imports.remove(index);
    drop(imports);
    if unmap(address, true) { SUCCESS } else { INVALID_VALUE }
}
