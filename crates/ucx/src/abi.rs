//! The part of UCX's interface for messages (`ucp/api/ucp.h`) that is called.
//!
//! Every structure begins with a mask of the fields that are set, and later versions only append fields: what is declared
//! here ends with the last field that is used. Offsets are those of UCX 1.12 to 1.22 on 64-bit machines. Functions that
//! begin an operation return null (done), an error as a negative address, or a request.
#![allow(unsafe_code, reason = "symbols of a library that is loaded at run time become functions here")]
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// `ucs_status_t`.
pub(super) type Status = c_int;
pub(super) const OK: Status = 0;
pub(super) const IN_PROGRESS: Status = 1;
pub(super) const BUSY: Status = -15;
/// `UCS_ERR_LAST`: addresses from here to -1 are errors.
pub(super) const LAST_ERROR: Status = -100;

/// A `ucp_context_h`, `ucp_worker_h`, `ucp_ep_h`, `ucp_config_t *`, `ucp_address_t *` or request.
pub(super) type Handle = *mut c_void;

/// `ucp_params_t`.
#[repr(C)]
pub(super) struct Params {
    pub field_mask: u64,
    pub features: u64,
    pub request_size: usize,
    pub request_init: Handle,
    pub request_cleanup: Handle,
    pub tag_sender_mask: u64,
    pub mt_workers_shared: c_int,
    pub estimated_num_eps: usize,
    pub estimated_num_ppn: usize,
    pub name: *const c_char,
    pub node_local_id: usize,
}

impl Params {
    pub const FEATURES: u64 = 1;
    pub const REQUEST_SIZE: u64 = 1 << 1;
    pub const TAG_SENDER_MASK: u64 = 1 << 4;
    pub const MT_WORKERS_SHARED: u64 = 1 << 5;
    pub const ESTIMATED_NUM_EPS: u64 = 1 << 6;
}

/// `UCP_FEATURE_TAG` and `UCP_FEATURE_WAKEUP`.
pub(super) const FEATURE_TAG: u64 = 1;
pub(super) const FEATURE_WAKEUP: u64 = 1 << 4;

/// `ucp_worker_params_t`.
#[repr(C)]
pub(super) struct WorkerParams {
    pub field_mask: u64,
    pub thread_mode: c_int,
    pub rest: [u64; 23],
}

impl WorkerParams {
    pub const THREAD_MODE: u64 = 1;
    /// `UCS_THREAD_MODE_SERIALIZED`: any thread, one at a time.
    pub const SERIALIZED: c_int = 1;
}

/// `ucp_err_handler_cb_t`.
pub(super) type ErrorCallback = unsafe extern "C" fn(*mut c_void, Handle, Status);

/// `ucp_ep_params_t`.
#[repr(C)]
pub(super) struct EndpointParams {
    pub field_mask: u64,
    pub address: *const c_void,
    pub err_mode: c_int,
    pub err_callback: Option<ErrorCallback>,
    pub err_argument: *mut c_void,
    pub rest: [u64; 8],
}

impl EndpointParams {
    pub const REMOTE_ADDRESS: u64 = 1;
    pub const ERR_MODE: u64 = 1 << 1;
    pub const ERR_HANDLER: u64 = 1 << 2;
    /// `UCP_ERR_HANDLING_MODE_PEER`: the other side's death is an error of the endpoint.
    pub const PEER: c_int = 1;
}

/// `ucp_request_param_t`.
#[repr(C)]
pub(super) struct RequestParam {
    pub attributes: u32,
    pub flags: u32,
    pub request: Handle,
    pub callback: Handle,
    pub datatype: u64,
    pub user_data: Handle,
    pub reply_buffer: Handle,
    pub memory_type: c_int,
    pub rest: [u64; 5],
}

impl RequestParam {
    pub const FLAGS: u32 = 1 << 4;
    pub const MEMORY_TYPE: u32 = 1 << 6;
    /// Never null: always a request.
    pub const NOT_AT_ONCE: u32 = 1 << 16;
    /// `UCP_EP_CLOSE_FLAG_FORCE`.
    pub const FORCE: u32 = 1;
    /// `UCS_MEMORY_TYPE_HOST`.
    pub const HOST: c_int = 0;
}

/// `ucp_tag_recv_info_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Received {
    pub tag: u64,
    pub length: usize,
}

/// `ucp_transport_entry_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct TransportEntry {
    pub transport: *const c_char,
    pub device: *const c_char,
}

/// `ucp_ep_attr_t`, of which only the transports are asked for. The room in between is that of a name and two addresses.
#[repr(C)]
pub(super) struct EndpointAttributes {
    pub field_mask: u64,
    pub between: [u64; 36],
    pub entries: *mut TransportEntry,
    pub num_entries: c_uint,
    pub entry_size: usize,
    pub user_data: Handle,
}

impl EndpointAttributes {
    pub const TRANSPORTS: u64 = 1 << 3;
}

// As a C compiler lays out the header's structures.
const _: () = {
    assert!(size_of::<Params>() == 88 && offset_of!(Params, tag_sender_mask) == 40);
    assert!(offset_of!(Params, estimated_num_eps) == 56 && offset_of!(Params, name) == 72);
    assert!(size_of::<WorkerParams>() == 200 && offset_of!(WorkerParams, thread_mode) == 8);
    assert!(size_of::<EndpointParams>() == 104 && offset_of!(EndpointParams, err_mode) == 16);
    assert!(offset_of!(EndpointParams, err_callback) == 24 && offset_of!(EndpointParams, err_argument) == 32);
    assert!(size_of::<RequestParam>() == 96 && offset_of!(RequestParam, datatype) == 24);
    assert!(offset_of!(RequestParam, memory_type) == 48);
    assert!(size_of::<EndpointAttributes>() == 328 && offset_of!(EndpointAttributes, entries) == 296);
    assert!(size_of::<TransportEntry>() == 16 && size_of::<Received>() == 16);
};

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// UCX's functions, under their names without `ucp_`.
        pub(super) struct Functions { $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl Functions {
            /// # Safety
            /// The library is UCX, so that the signatures are those of its header.
            unsafe fn load(library: &Library) -> Result<Functions, String> {
                Ok(Functions { $($name: {
                    // SAFETY: promised by the caller.
                    *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                        .map_err(|_| format!("has no {}; UCX 1.12 or newer has", $symbol))?
                },)* })
            }
        }
    };
}

functions! {
    get_version = "ucp_get_version" (*mut c_uint, *mut c_uint, *mut c_uint);
    status_string = "ucs_status_string" (Status) -> *const c_char;
    config_read = "ucp_config_read" (*const c_char, *const c_char, *mut Handle) -> Status;
    config_modify = "ucp_config_modify" (Handle, *const c_char, *const c_char) -> Status;
    config_release = "ucp_config_release" (Handle);
    init_version = "ucp_init_version" (c_uint, c_uint, *const Params, Handle, *mut Handle) -> Status;
    cleanup = "ucp_cleanup" (Handle);
    worker_create = "ucp_worker_create" (Handle, *const WorkerParams, *mut Handle) -> Status;
    worker_destroy = "ucp_worker_destroy" (Handle);
    worker_get_address = "ucp_worker_get_address" (Handle, *mut Handle, *mut usize) -> Status;
    worker_release_address = "ucp_worker_release_address" (Handle, Handle);
    worker_get_efd = "ucp_worker_get_efd" (Handle, *mut c_int) -> Status;
    worker_arm = "ucp_worker_arm" (Handle) -> Status;
    worker_progress = "ucp_worker_progress" (Handle) -> c_uint;
    ep_create = "ucp_ep_create" (Handle, *const EndpointParams, *mut Handle) -> Status;
    ep_close_nbx = "ucp_ep_close_nbx" (Handle, *const RequestParam) -> Handle;
    ep_query = "ucp_ep_query" (Handle, *mut EndpointAttributes) -> Status;
    tag_send_sync_nbx = "ucp_tag_send_sync_nbx" (Handle, *const c_void, usize, u64, *const RequestParam) -> Handle;
    tag_recv_nbx = "ucp_tag_recv_nbx" (Handle, *mut c_void, usize, u64, u64, *const RequestParam) -> Handle;
    request_check_status = "ucp_request_check_status" (Handle) -> Status;
    tag_recv_request_test = "ucp_tag_recv_request_test" (Handle, *mut Received) -> Status;
    request_cancel = "ucp_request_cancel" (Handle, Handle);
    request_free = "ucp_request_free" (Handle);
}

/// A loaded library. It stays loaded: its modules and threads cannot be unloaded.
pub(super) struct Abi {
    pub functions: Functions,
    _library: std::mem::ManuallyDrop<Library>,
}

impl Abi {
    /// Loads the library at a path, or one that the system's loader finds by name.
    ///
    /// # Errors
    /// The loader's, or the function that is missing.
    pub fn load(path: &Path) -> Result<Abi, String> {
        // SAFETY: the constructors of UCX run. They read its variables and are safe to run in any process.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| {
            std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
        })?;
        // SAFETY: a library of this name is UCX, or the user says so.
        let functions = unsafe { Functions::load(&library)? };
        Ok(Abi { functions, _library: std::mem::ManuallyDrop::new(library) })
    }
}
