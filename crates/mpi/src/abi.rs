//! The MPI functions that are called, and the values of `mpi.h` constants in each library.
//!
//! Two binary interfaces are supported. The *standard ABI* of MPI 5.0 (chapter 20; `mpi_abi.h`) is the same in all
//! libraries that have it: MPICH from 5.0 on. Open MPI 5 has its own, in which a handle is the address of a symbol. In
//! both, a handle is a pointer, a count is an `int`, and a null pointer means that the status is ignored.
#![allow(unsafe_code, reason = "symbols of a library that is loaded at run time become functions here")]
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// Handle of a communicator, datatype, operation, request, group or error handler: a number or an address in the
/// library.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Handle(*mut c_void);

// SAFETY: nothing is read through it here; `calls` asserts who may pass it to the library.
unsafe impl Send for Handle {}

// SAFETY: likewise.
unsafe impl Sync for Handle {}

impl Handle {
    /// Filled in by the library.
    pub const NOTHING: Handle = Handle(std::ptr::null_mut());
}

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// MPI's functions, under their names without `MPI_`.
        pub(super) struct Functions { $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl Functions {
            /// # Safety
            /// The library is an MPI with 32-bit counts and pointers as handles.
            unsafe fn load(library: &Library) -> Result<Functions, String> {
                Ok(Functions { $($name: {
                    // SAFETY: the signature is the standard's, and the caller promises that the library follows it.
                    *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                        .map_err(|_| format!("has no {}", $symbol))?
                },)* })
            }
        }
    };
}

functions! {
    init_thread = "MPI_Init_thread" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    initialized = "MPI_Initialized" (*mut c_int);
    finalized = "MPI_Finalized" (*mut c_int);
    query_thread = "MPI_Query_thread" (*mut c_int);
    finalize = "MPI_Finalize" ();
    get_library_version = "MPI_Get_library_version" (*mut c_char, *mut c_int);
    error_string = "MPI_Error_string" (c_int, *mut c_char, *mut c_int);
    comm_rank = "MPI_Comm_rank" (Handle, *mut c_int);
    comm_size = "MPI_Comm_size" (Handle, *mut c_int);
    comm_dup = "MPI_Comm_dup" (Handle, *mut Handle);
    comm_free = "MPI_Comm_free" (*mut Handle);
    comm_group = "MPI_Comm_group" (Handle, *mut Handle);
    comm_create_group = "MPI_Comm_create_group" (Handle, Handle, c_int, *mut Handle);
    comm_set_errhandler = "MPI_Comm_set_errhandler" (Handle, Handle);
    group_incl = "MPI_Group_incl" (Handle, c_int, *const c_int, *mut Handle);
    group_free = "MPI_Group_free" (*mut Handle);
    issend = "MPI_Issend" (*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    irecv = "MPI_Irecv" (*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    testsome = "MPI_Testsome" (c_int, *mut Handle, *mut c_int, *mut c_int, *mut c_void);
    test = "MPI_Test" (*mut Handle, *mut c_int, *mut c_void);
    cancel = "MPI_Cancel" (*mut Handle);
    get_count = "MPI_Get_count" (*const c_void, Handle, *mut c_int);
    iallreduce = "MPI_Iallreduce" (*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle);
    ibcast = "MPI_Ibcast" (*mut c_void, c_int, Handle, c_int, Handle, *mut Handle);
    ireduce = "MPI_Ireduce" (*const c_void, *mut c_void, c_int, Handle, Handle, c_int, Handle, *mut Handle);
    ireduce_scatter_block = "MPI_Ireduce_scatter_block" (
        *const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle
    );
    comm_get_info = "MPI_Comm_get_info" (Handle, *mut Handle);
    info_get_string = "MPI_Info_get_string" (Handle, *const c_char, *mut c_int, *mut c_char, *mut c_int);
    info_free = "MPI_Info_free" (*mut Handle);
    iallgather = "MPI_Iallgather" (*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle, *mut Handle);
    iallgatherv = "MPI_Iallgatherv" (
        *const c_void, c_int, Handle, *mut c_void, *const c_int, *const c_int, Handle, Handle, *mut Handle
    );
}

/// Predefined handles.
pub(super) struct Handles {
    pub comm_world: Handle,
    pub comm_self: Handle,
    pub errors_return: Handle,
    pub request_null: Handle,
    pub byte: Handle,
    pub float: Handle,
    pub double: Handle,
    pub int32: Handle,
    pub int64: Handle,
    pub sum: Handle,
    pub min: Handle,
    pub max: Handle,
    pub prod: Handle,
}

/// Functions that are no part of the standard: they say whether the library takes the memory of CUDA devices.
pub(super) struct Queries {
    /// `MPIX_Query_cuda_support`, of Open MPI and MPICH.
    pub cuda: Option<unsafe extern "C" fn() -> c_int>,
    /// `MPIX_GPU_query_support`, of MPICH: a kind of device, and the answer.
    pub gpu: Option<unsafe extern "C" fn(c_int, *mut c_int) -> c_int>,
}

impl Queries {
    fn load(library: &Library) -> Queries {
        // SAFETY: the signatures are those of both libraries' headers.
        unsafe {
            Queries {
                cuda: library.get(b"MPIX_Query_cuda_support\0").ok().map(|function| *function),
                gpu: library.get(b"MPIX_GPU_query_support\0").ok().map(|function| *function),
            }
        }
    }
}

/// A loaded library.
pub(super) struct Abi {
    /// The name of its interface, for messages.
    pub name: &'static str,
    pub functions: Functions,
    pub queries: Queries,
    pub handles: Handles,
    /// `MPI_THREAD_FUNNELED`, `MPI_THREAD_MULTIPLE`.
    pub funneled: c_int,
    pub multiple: c_int,
    /// `sizeof(MPI_Status)`, in words of 8 bytes. In both the third `int` is `MPI_ERROR`.
    pub status_words: usize,
}

/// The name of Open MPI's interface.
pub(super) const OPEN_MPI: &str = "Open MPI";
/// Buffer size: at least `MPI_MAX_LIBRARY_VERSION_STRING` and `MPI_MAX_ERROR_STRING` of both.
pub(super) const TEXT_BYTES: usize = 8192;
/// `MPI_UNDEFINED` in both.
pub(super) const UNDEFINED: c_int = -32766;
/// `MPI_IN_PLACE` in both.
pub(super) const IN_PLACE: *const c_void = std::ptr::without_provenance(1);

impl Abi {
    /// Loads the library with this path or name.
    ///
    /// # Errors
    /// It cannot be loaded, or lacks a function.
    pub fn load(path: &Path) -> Result<Abi, String> {
        // The modules that Open MPI loads look for its symbols in the global name space.
        // SAFETY: loading runs only the library's own initialization; the user or the launcher named it.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|e| plain(&e))?;
        // It stays loaded: its threads and exit handlers may run until the process ends.
        let library: &'static Library = Box::leak(Box::new(library));
        let queries = Queries::load(library);
        if let Some(handles) = open_mpi(library) {
            // SAFETY: Open MPI's types are pointers and ints.
            let functions = unsafe { Functions::load(library)? };
            let name = OPEN_MPI;
            return Ok(Abi { name, functions, queries, handles, funneled: 1, multiple: 3, status_words: 3 });
        }
        if !has_standard_abi(library) {
            return Err("has neither the standard ABI of MPI 5 nor Open MPI's; use libmpi_abi.so.1 of MPICH 5 or \
                        newer, or libmpi.so.40 of Open MPI 5"
                .into());
        }
        // SAFETY: it reports the standard ABI, whose types are pointers and ints.
        let functions = unsafe { Functions::load(library)? };
        let (name, handles) = ("standard", standard());
        Ok(Abi { name, functions, queries, handles, funneled: 1024, multiple: 4096, status_words: 4 })
    }
}

/// The first line of the loader's message.
fn plain(error: &libloading::Error) -> String {
    std::error::Error::source(error)
        .map_or_else(|| error.to_string(), ToString::to_string)
        .lines()
        .next()
        .unwrap_or_default()
        .into()
}

/// `MPI_Abi_get_version` returns -1 where handles are not the standard's (MPI 5.0, 20.2): in MPICH's libmpi.so.12.
fn has_standard_abi(library: &Library) -> bool {
    type GetVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    // SAFETY: the signature is the standard's; it may be called at any time.
    unsafe {
        let Ok(get) = library.get::<GetVersion>(b"MPI_Abi_get_version\0") else { return false };
        let (mut major, mut minor) = (-1, -1);
        get(&raw mut major, &raw mut minor) == 0 && major >= 1
    }
}

/// `mpi_abi.h` of MPI 5.0, appendix A.
fn standard() -> Handles {
    let handle = |number: usize| Handle(std::ptr::without_provenance_mut(number));
    Handles {
        comm_world: handle(0x101),
        comm_self: handle(0x102),
        errors_return: handle(0x143),
        request_null: handle(0x180),
        byte: handle(0x247),
        float: handle(0x210),
        double: handle(0x214),
        int32: handle(0x250),
        int64: handle(0x258),
        sum: handle(0x21),
        min: handle(0x22),
        max: handle(0x23),
        prod: handle(0x24),
    }
}

/// Addresses of Open MPI's variables (`OMPI_PREDEFINED_GLOBAL` in its `mpi.h`). `None` if it is another library.
fn open_mpi(library: &Library) -> Option<Handles> {
    let address = |symbol: &[u8]| {
        // SAFETY: only its address is taken.
        unsafe { library.get::<*mut c_void>(symbol) }.ok().map(|found| Handle(found.as_raw_ptr()))
    };
    Some(Handles {
        comm_world: address(b"ompi_mpi_comm_world\0")?,
        comm_self: address(b"ompi_mpi_comm_self\0")?,
        errors_return: address(b"ompi_mpi_errors_return\0")?,
        request_null: address(b"ompi_request_null\0")?,
        byte: address(b"ompi_mpi_byte\0")?,
        float: address(b"ompi_mpi_float\0")?,
        double: address(b"ompi_mpi_double\0")?,
        int32: address(b"ompi_mpi_int32_t\0")?,
        int64: address(b"ompi_mpi_int64_t\0")?,
        sum: address(b"ompi_mpi_op_sum\0")?,
        min: address(b"ompi_mpi_op_min\0")?,
        max: address(b"ompi_mpi_op_max\0")?,
        prod: address(b"ompi_mpi_op_prod\0")?,
    })
}
