//! NCCL, loaded at run time: communicators that are made without blocking, and that can be aborted.
//!
//! The interface is that of `nccl.h` from 2.18 on. A communicator never blocks the host: what it has not finished is asked for
//! with [`NcclComm::ready`].
#![allow(unsafe_code, reason = "calls into a library that is loaded at run time")]
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};
use parking_lot::Mutex;

use crate::abi::Opaque;
use crate::device::{CallerStream, Device, Event, Stream};
use crate::error::CudaError;
use crate::library::{self, functions};

/// The name under which the system's loader, or torch's wheels, know it.
const NAME: &str = "libnccl.so.2";
/// `RTLD_NOLOAD`: only if it is loaded already.
const NOLOAD: c_int = 4;
/// The oldest that is known to have all that is called.
const OLDEST: c_int = 2_18_00;
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
/// `NCCL_UNIQUE_ID_BYTES`.
pub const ID_BYTES: usize = 128;

/// Identity shared by ranks that make a communicator together.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; ID_BYTES]);

/// The beginning of `ncclConfig_t`: NCCL takes its defaults for what is beyond `size`.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    /// So that no padding is read.
    cga_cluster_size: c_int,
}

/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;

/// Type of elements, by NCCL's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs, reason = "their names say it")]
pub enum NcclType {
    Uint8 = 1,
    Int32 = 2,
    Int64 = 4,
    Float16 = 6,
    Float32 = 7,
    Float64 = 8,
    Bfloat16 = 9,
}

/// How elements are combined, by NCCL's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs, reason = "their names say it")]
pub enum NcclOp {
    Sum = 0,
    Product = 1,
    Max = 2,
    Min = 3,
    Average = 4,
}

/// A call of a communicator: addresses on the device, and elements. Buffers of one collective go as one.
#[derive(Clone, Copy, Debug)]
pub enum NcclCall<'a> {
    /// In place: address and elements of each buffer.
    AllReduce(&'a [(u64, u64)], NcclOp),
    /// In place, from this rank.
    Broadcast(&'a [(u64, u64)], u32),
    /// In place at this rank.
    Reduce(&'a [(u64, u64)], NcclOp, u32),
    /// From, to, elements of each rank.
    AllGather(u64, u64, u64),
    /// From, to, elements of each rank.
    ReduceScatter(u64, u64, u64, NcclOp),
}

functions! {
    "NCCL 2.18 or later";
    get_version = "ncclGetVersion" (*mut c_int);
    get_unique_id = "ncclGetUniqueId" (*mut UniqueId);
    init = "ncclCommInitRankConfig" (*mut Opaque, c_int, UniqueId, c_int, *mut Config);
    get_async_error = "ncclCommGetAsyncError" (Opaque, *mut c_int);
    abort = "ncclCommAbort" (Opaque);
    group_start = "ncclGroupStart" ();
    group_end = "ncclGroupEnd" ();
    all_reduce = "ncclAllReduce" (u64, u64, usize, c_int, c_int, Opaque, Opaque);
    broadcast = "ncclBroadcast" (u64, u64, usize, c_int, c_int, Opaque, Opaque);
    reduce = "ncclReduce" (u64, u64, usize, c_int, c_int, c_int, Opaque, Opaque);
    all_gather = "ncclAllGather" (u64, u64, usize, c_int, Opaque, Opaque);
    reduce_scatter = "ncclReduceScatter" (u64, u64, usize, c_int, c_int, Opaque, Opaque);
}

/// The loaded library.
pub struct Nccl {
    call: Functions,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    version: c_int,
    path: PathBuf,
    _library: Loaded,
}

/// The library of this process: there is one.
static LOADED: library::Loaded<Nccl> = Mutex::new(None);

impl Nccl {
    /// The library; loaded by the first call. `named`: its path, in place of one that is loaded already (torch's) or the
    /// system's.
    ///
    /// # Errors
    /// There is none, it is too old, or another is loaded already.
    pub fn get(named: Option<&str>) -> Result<Arc<Nccl>, CudaError> {
        library::get(&LOADED, ("nccl_library", named), Nccl::load, |nccl| &nccl.path)
    }

    fn load(named: Option<&str>) -> Result<Nccl, CudaError> {
        let path = PathBuf::from(named.unwrap_or(NAME));
        let wrong = |what: String| CudaError(format!("{}: {what}", path.display()));
        let open = |flags| {
            // SAFETY: NCCL's initializers may run in any process.
            unsafe { Loaded::open(Some(&path), flags) }
        };
        let loaded = match named {
            Some(_) => open(RTLD_NOW | RTLD_GLOBAL),
            None => open(RTLD_NOW | NOLOAD).or_else(|_| open(RTLD_NOW | RTLD_GLOBAL)),
        }
        .map_err(|error| {
            library::not_opened(&path, &error, "install NCCL (torch's CUDA wheels bring it), or leave out --cuda nccl")
        })?;
        // SAFETY: the library bears NCCL's name, or the user says that it is one.
        let (call, error_string) = unsafe {
            let call = Functions::load(&loaded).map_err(wrong)?;
            let error_string = loaded
                .get(b"ncclGetErrorString\0")
                .map_err(|_| wrong("has no ncclGetErrorString; is it NCCL?".into()))?;
            (call, *error_string)
        };
        let mut nccl = Nccl { call, error_string, version: 0, path: path.clone(), _library: loaded };
        // SAFETY: a pointer to a local.
        let status = unsafe { (nccl.call.get_version)(&raw mut nccl.version) };
        nccl.check("ncclGetVersion", status)?;
        if nccl.version < OLDEST {
            return Err(wrong(format!("is NCCL {}; Paceline needs 2.18 or later", nccl.version())));
        }
        Ok(nccl)
    }

    /// `2.30.7`.
    #[must_use]
    pub fn version(&self) -> String {
        Nccl::spelled(self.version)
    }

    /// `23007`, as `ncclGetVersion` counts.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.version
    }

    /// Such a number as people write it.
    #[must_use]
    pub fn spelled(version: i32) -> String {
        format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
    }

    /// A new number for a communicator, made by one of its ranks.
    ///
    /// # Errors
    /// NCCL's error.
    pub fn unique_id(&self) -> Result<UniqueId, CudaError> {
        let mut id = UniqueId([0; ID_BYTES]);
        // SAFETY: a pointer to a local.
        let status = unsafe { (self.call.get_unique_id)(&raw mut id) };
        self.check("ncclGetUniqueId", status).map(|()| id)
    }

    fn check(&self, call: &str, status: c_int) -> Result<(), CudaError> {
        if status == SUCCESS || status == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: NCCL returns a constant of its own.
        let text = unsafe {
            let text = (self.error_string)(status);
            if text.is_null() { format!("error {status}") } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        Err(CudaError(format!("{call} failed: {text} (set NCCL_DEBUG=WARN for more)")))
    }
}

/// A communicator of NCCL, with a stream of its own.
pub struct NcclComm {
    nccl: Arc<Nccl>,
    device: Arc<Device>,
    stream: Stream,
    /// Null once it has been aborted.
    raw: Mutex<Opaque>,
    /// It is to be aborted: whoever holds the lock lets go of it.
    ending: AtomicBool,
}

// SAFETY: NCCL's calls on a communicator are made under the lock; `abort` may be called at any time.
unsafe impl Send for NcclComm {}
// SAFETY: likewise.
unsafe impl Sync for NcclComm {}

impl NcclComm {
    /// Begins to make a communicator. It may be used once [`ready`](NcclComm::ready) says so.
    ///
    /// # Errors
    /// NCCL's error.
    pub fn begin(
        nccl: &Arc<Nccl>,
        device: &Arc<Device>,
        id: &UniqueId,
        (rank, size): (u32, u32),
    ) -> Result<NcclComm, CudaError> {
        let stream = Stream::new(device)?;
        let _entered = device.enter()?;
        let mut config = Config {
            size: std::mem::size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST.cast_unsigned(),
            blocking: 0,
            cga_cluster_size: UNDEFINED,
        };
        let mut raw: Opaque = std::ptr::null_mut();
        // SAFETY: pointers to locals; NCCL copies the configuration.
        let status =
            unsafe { (nccl.call.init)(&raw mut raw, size.cast_signed(), *id, rank.cast_signed(), &raw mut config) };
        nccl.check("ncclCommInitRankConfig", status)?;
        let (nccl, device, ending) = (nccl.clone(), device.clone(), AtomicBool::new(false));
        Ok(NcclComm { nccl, device, stream, raw: Mutex::new(raw), ending })
    }

    /// Whether it has finished what was asked of the host.
    ///
    /// # Errors
    /// An error of NCCL, also one of the network or of another rank; or it has been aborted.
    pub fn ready(&self) -> Result<bool, CudaError> {
        let raw = self.raw.lock();
        self.state(*raw)
    }

    fn state(&self, raw: Opaque) -> Result<bool, CudaError> {
        if raw.is_null() || self.ending.load(Ordering::SeqCst) {
            return Err(CudaError("the NCCL communicator was aborted".into()));
        }
        let mut state = SUCCESS;
        // SAFETY: the communicator exists.
        let status = unsafe { (self.nccl.call.get_async_error)(raw, &raw mut state) };
        self.nccl.check("ncclCommGetAsyncError", status)?;
        self.nccl.check("NCCL", state)?;
        Ok(state == SUCCESS)
    }

    /// Ends it at once, also on the device: a stream that waits for a rank that is gone goes on.
    pub fn abort(&self) {
        self.ending.store(true, Ordering::SeqCst);
        // No call blocks, so nobody holds the lock for long.
        let raw = std::mem::replace(&mut *self.raw.lock(), std::ptr::null_mut());
        if let Ok(_entered) = self.device.enter()
            && !raw.is_null()
        {
            // SAFETY: the communicator exists, and is not used any more.
            unsafe { (self.nccl.call.abort)(raw) };
        }
    }

    /// Begins a collective once the caller's stream has come here; `done` happens when it has ended.
    ///
    /// # Errors
    /// NCCL's error, or the driver's.
    ///
    /// # Safety
    /// The stream exists; the memory is valid until `done` has happened or the communicator has been aborted. All ranks
    /// begin the same.
    pub unsafe fn submit(
        &self,
        stream: CallerStream,
        call: &NcclCall<'_>,
        dtype: NcclType,
        done: &Event,
    ) -> Result<(), CudaError> {
        let (nccl, raw) = (&self.nccl.call, self.raw.lock());
        while !self.state(*raw)? {
            std::thread::yield_now();
        }
        let reached = Event::new(&self.device)?;
        let _entered = self.device.enter()?;
        // SAFETY: promised by the caller; the communicator exists as long as the lock is held.
        unsafe {
            reached.record_in(stream.raw())?;
            self.stream.wait_for(&reached)?;
            let (kind, on) = (dtype as c_int, self.stream.raw);
            let check = |name: &str, status| self.nccl.check(name, status);
            check("ncclGroupStart", (nccl.group_start)())?;
            match *call {
                NcclCall::AllReduce(buffers, op) => {
                    for &(at, count) in buffers {
                        let begun = (nccl.all_reduce)(at, at, count as usize, kind, op as c_int, *raw, on);
                        check("ncclAllReduce", begun)?;
                    }
                }
                NcclCall::Broadcast(buffers, root) => {
                    for &(at, count) in buffers {
                        let begun = (nccl.broadcast)(at, at, count as usize, kind, root.cast_signed(), *raw, on);
                        check("ncclBroadcast", begun)?;
                    }
                }
                NcclCall::Reduce(buffers, op, root) => {
                    for &(at, count) in buffers {
                        let root = root.cast_signed();
                        let begun = (nccl.reduce)(at, at, count as usize, kind, op as c_int, root, *raw, on);
                        check("ncclReduce", begun)?;
                    }
                }
                NcclCall::AllGather(from, to, count) => {
                    check("ncclAllGather", (nccl.all_gather)(from, to, count as usize, kind, *raw, on))?;
                }
                NcclCall::ReduceScatter(from, to, count, op) => {
                    let begun = (nccl.reduce_scatter)(from, to, count as usize, kind, op as c_int, *raw, on);
                    check("ncclReduceScatter", begun)?;
                }
            }
            check("ncclGroupEnd", (nccl.group_end)())?;
        }
        while !self.state(*raw)? {
            std::thread::yield_now();
        }
        done.record(&self.stream)
    }
}

impl Drop for NcclComm {
    fn drop(&mut self) {
        self.abort();
    }
}
