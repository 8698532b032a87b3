//! Safe wrappers of MPI functions: they return results, and panic on any thread other than MPI's.
#![allow(unsafe_code, reason = "calls into the library; the requirements of each are stated beside it")]
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use super::abi::{Abi, Functions, Handle, IN_PLACE, TEXT_BYTES, UNDEFINED};
use paceline_kernels::dtype::{Dtype, ReduceOp};

thread_local! {
    static IS_THE_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Makes this thread the only one that may call MPI.
pub(super) fn claim_thread() {
    IS_THE_THREAD.set(true);
}

/// Who initialized MPI in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// We did, so we also finalize it.
    Us,
    /// Other code in this process did.
    Others,
}

/// An initialized library.
pub(super) struct Mpi {
    abi: Abi,
}

type Called<T> = Result<T, String>;

/// Converts text written by the library.
fn text(buffer: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(buffer).map(CStr::to_string_lossy).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Mpi {
    pub fn new(abi: Abi) -> Mpi {
        Mpi { abi }
    }

    /// The interface's name.
    pub fn abi(&self) -> &'static str {
        self.abi.name
    }

    /// The functions. Panics on any thread other than MPI's, because in many libraries such a call corrupts memory.
    fn functions(&self) -> &Functions {
        assert!(IS_THE_THREAD.get(), "MPI is called on one thread only");
        &self.abi.functions
    }

    fn check(&self, what: &str, code: c_int) -> Called<()> {
        if code == 0 { Ok(()) } else { Err(format!("{what}: {}", self.describe(code))) }
    }

    fn describe(&self, code: c_int) -> String {
        let mut buffer = vec![0u8; TEXT_BYTES];
        let mut length = 0;
        // SAFETY: the buffer is longer than MPI_MAX_ERROR_STRING.
        let told = unsafe { (self.functions().error_string)(code, buffer.as_mut_ptr().cast(), &raw mut length) };
        if told == 0 { text(&buffer) } else { format!("error {code}") }
    }

    /// Name and version of the library.
    pub fn version(&self) -> String {
        version(self.functions())
    }

    /// Initializes MPI, unless other code in this process already has; returns who did.
    ///
    /// # Errors
    /// MPI has been finalized, or other code initialized it with a thread level that does not let our thread call it.
    pub fn init(&self) -> Called<Owner> {
        let functions = self.functions();
        let (mut begun, mut ended, mut level) = (0, 0, 0);
        // SAFETY: pointers to local ints; these functions may be called before MPI_Init. MPI_Init_thread accepts null
        // for argc and argv.
        unsafe {
            self.check("MPI_Finalized", (functions.finalized)(&raw mut ended))?;
            if ended != 0 {
                return Err("MPI has been finalized in this process and cannot be initialized again".into());
            }
            self.check("MPI_Initialized", (functions.initialized)(&raw mut begun))?;
            if begun != 0 {
                self.check("MPI_Query_thread", (functions.query_thread)(&raw mut level))?;
                if level < self.abi.multiple {
                    return Err(
                        "this process has initialized MPI without MPI_THREAD_MULTIPLE, so other threads must not \
                         call it; initialize it with that level (mpi4py does by default), or let paceline do it"
                            .into(),
                    );
                }
                self.return_errors()?;
                return Ok(Owner::Others);
            }
            let init = (functions.init_thread)(null_mut(), null_mut(), self.abi.funneled, &raw mut level);
            self.check("MPI_Init_thread", init)?;
        }
        if level < self.abi.funneled {
            return Err("it was built without thread support; use a library with MPI_THREAD_FUNNELED".into());
        }
        self.return_errors()?;
        Ok(Owner::Us)
    }

    /// Makes MPI return errors instead of ending the process.
    fn return_errors(&self) -> Called<()> {
        let handles = &self.abi.handles;
        for comm in [handles.comm_world, handles.comm_self] {
            // SAFETY: predefined handles.
            let code = unsafe { (self.functions().comm_set_errhandler)(comm, handles.errors_return) };
            self.check("MPI_Comm_set_errhandler", code)?;
        }
        Ok(())
    }

    /// Finalizes MPI; waits for all ranks.
    pub fn finalize(&self) -> Called<()> {
        // SAFETY: the last call.
        self.check("MPI_Finalize", unsafe { (self.functions().finalize)() })
    }

    pub fn world(&self) -> Handle {
        self.abi.handles.comm_world
    }

    /// `MPI_REQUEST_NULL`.
    pub fn none(&self) -> Handle {
        self.abi.handles.request_null
    }

    /// This process's rank, and the number of ranks.
    pub fn place(&self) -> Called<(u32, u32)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: pointers to local ints.
        unsafe {
            self.check("MPI_Comm_rank", (self.functions().comm_rank)(self.world(), &raw mut rank))?;
            self.check("MPI_Comm_size", (self.functions().comm_size)(self.world(), &raw mut size))?;
        }
        Ok((rank as u32, size as u32))
    }

    /// Duplicates a communicator, so that its messages are separate. Collective.
    pub fn duplicate(&self, comm: Handle) -> Called<Handle> {
        let mut copy = Handle::NOTHING;
        // SAFETY: a pointer to a local.
        self.check("MPI_Comm_dup", unsafe { (self.functions().comm_dup)(comm, &raw mut copy) })?;
        Ok(copy)
    }

    /// Creates a communicator of these ranks of another. Collective over these ranks.
    pub fn create(&self, comm: Handle, ranks: &[u32], tag: c_int) -> Called<Handle> {
        let ranks: Vec<c_int> = ranks.iter().map(|&rank| rank as c_int).collect();
        let (mut all, mut group, mut made) = (Handle::NOTHING, Handle::NOTHING, Handle::NOTHING);
        let functions = self.functions();
        // SAFETY: pointers to locals, and to as many ranks as stated.
        unsafe {
            self.check("MPI_Comm_group", (functions.comm_group)(comm, &raw mut all))?;
            let code = (functions.group_incl)(all, ranks.len() as c_int, ranks.as_ptr(), &raw mut group);
            self.check("MPI_Group_incl", code)?;
            let code = (functions.comm_create_group)(comm, group, tag, &raw mut made);
            self.check("MPI_Comm_create_group", code)?;
            (functions.group_free)(&raw mut group);
            (functions.group_free)(&raw mut all);
        }
        Ok(made)
    }

    /// Frees a communicator.
    pub fn free(&self, mut comm: Handle) {
        // SAFETY: made by `duplicate` or `create`, and not used again.
        unsafe { (self.functions().comm_free)(&raw mut comm) };
    }

    /// Begins to send bytes. Completes when the receiver has matched the message, so that no flow control is needed.
    ///
    /// # Safety
    /// The memory does not change until the request completes.
    pub unsafe fn send(&self, bytes: *const u8, length: usize, rank: u32, comm: Handle) -> Called<Handle> {
        let mut request = Handle::NOTHING;
        let (byte, length) = (self.abi.handles.byte, length as c_int);
        // SAFETY: promised by the caller.
        let code =
            unsafe { (self.functions().issend)(bytes.cast(), length, byte, rank as c_int, 0, comm, &raw mut request) };
        self.check("MPI_Issend", code).map(|()| request)
    }

    /// Begins to receive at most this many bytes.
    ///
    /// # Safety
    /// The memory stays valid and nothing else accesses it until the request completes.
    pub unsafe fn receive(&self, bytes: *mut u8, most: usize, rank: u32, comm: Handle) -> Called<Handle> {
        let mut request = Handle::NOTHING;
        let (byte, most) = (self.abi.handles.byte, most as c_int);
        // SAFETY: promised by the caller.
        let code =
            unsafe { (self.functions().irecv)(bytes.cast(), most, byte, rank as c_int, 0, comm, &raw mut request) };
        self.check("MPI_Irecv", code).map(|()| request)
    }

    /// The completed requests, with the bytes received or why they failed; they become null. `None`: an error that
    /// belongs to none of the requests.
    pub fn test_some(
        &self,
        results: &mut Results,
        requests: &mut [Handle],
        mut over: impl FnMut(Option<usize>, Called<usize>),
    ) {
        let words = self.abi.status_words;
        results.indices.resize(requests.len(), 0);
        results.statuses.resize(requests.len() * words, 0);
        let mut count = 0;
        let (indices, statuses) = (results.indices.as_mut_ptr(), results.statuses.as_mut_ptr());
        // SAFETY: as many requests, indices and statuses as stated.
        let code = unsafe {
            let length = requests.len() as c_int;
            (self.functions().testsome)(length, requests.as_mut_ptr(), &raw mut count, indices, statuses.cast())
        };
        if count == UNDEFINED {
            return;
        }
        for place in 0..count.max(0) as usize {
            let status = &results.statuses[place * words..][..words];
            // The error of a status is only set if the call reports failures.
            let failed = if code == 0 { 0 } else { error_of(status) };
            let result = if failed == 0 { self.count(status) } else { Err(self.describe(failed)) };
            over(Some(results.indices[place] as usize), result);
        }
        if code != 0 && count <= 0 {
            over(None, Err(self.describe(code)));
        }
    }

    fn count(&self, status: &[u64]) -> Called<usize> {
        let mut bytes = 0;
        // SAFETY: the library has filled in this status.
        let code =
            unsafe { (self.functions().get_count)(status.as_ptr().cast(), self.abi.handles.byte, &raw mut bytes) };
        self.check("MPI_Get_count", code)?;
        usize::try_from(bytes).map_err(|_| "MPI_Get_count: not a whole number of bytes".into())
    }

    /// Whether a request has completed; if so, it becomes null.
    pub fn test(&self, request: &mut Handle) -> Called<bool> {
        let mut over = 0;
        // SAFETY: pointers to a request and a local; null is MPI_STATUS_IGNORE.
        let code = unsafe { (self.functions().test)(request, &raw mut over, null_mut()) };
        self.check("MPI_Test", code).map(|()| over != 0)
    }

    /// Cancels a receive. It completes soon after, with or without a message.
    pub fn cancel(&self, request: &mut Handle) {
        // SAFETY: an active request.
        unsafe { (self.functions().cancel)(request) };
    }

    /// MPI's handles of a type and an operation; `None` for a type that some libraries add differently.
    pub fn arithmetic(&self, dtype: Dtype, op: ReduceOp) -> (Option<Handle>, Handle) {
        let handles = &self.abi.handles;
        let dtype = match dtype {
            Dtype::Float32 => Some(handles.float),
            Dtype::Float64 => Some(handles.double),
            Dtype::Int32 => Some(handles.int32),
            Dtype::Int64 => Some(handles.int64),
            // Open MPI's sums of bytes saturate with AVX; ours wrap.
            Dtype::Uint8 | Dtype::Float16 | Dtype::Bfloat16 => None,
        };
        let op = match op {
            ReduceOp::Sum => handles.sum,
            ReduceOp::Min => handles.min,
            ReduceOp::Max => handles.max,
            ReduceOp::Product => handles.prod,
        };
        (dtype, op)
    }

    /// Begins an all-reduce in place.
    ///
    /// # Safety
    /// The address has `count` elements of the type, and nothing else accesses them until the request completes.
    pub unsafe fn all_reduce(
        &self,
        address: *mut u8,
        count: usize,
        (dtype, op): (Handle, Handle),
        comm: Handle,
    ) -> Called<Handle> {
        let mut request = Handle::NOTHING;
        // SAFETY: promised by the caller.
        let code = unsafe {
            let place = address.cast::<c_void>();
            (self.functions().iallreduce)(IN_PLACE, place, count as c_int, dtype, op, comm, &raw mut request)
        };
        self.check("MPI_Iallreduce", code).map(|()| request)
    }

    /// Begins a broadcast of bytes.
    ///
    /// # Safety
    /// The address has so many bytes, and nothing else accesses them until the request completes.
    pub unsafe fn broadcast(&self, address: *mut u8, bytes: usize, root: u32, comm: Handle) -> Called<Handle> {
        let (mut request, byte) = (Handle::NOTHING, self.abi.handles.byte);
        // SAFETY: promised by the caller.
        let code = unsafe {
            (self.functions().ibcast)(address.cast(), bytes as c_int, byte, root as c_int, comm, &raw mut request)
        };
        self.check("MPI_Ibcast", code).map(|()| request)
    }

    /// Begins a reduction to a root, in place. `is_root`: this process is it.
    ///
    /// # Safety
    /// As for `all_reduce`.
    pub unsafe fn reduce(
        &self,
        address: *mut u8,
        count: usize,
        (dtype, op): (Handle, Handle),
        (root, is_root): (u32, bool),
        comm: Handle,
    ) -> Called<Handle> {
        let mut request = Handle::NOTHING;
        let place = address.cast::<c_void>();
        let (from, to) = if is_root { (IN_PLACE, place) } else { (place.cast_const(), null_mut()) };
        // SAFETY: promised by the caller; only the root's result is written.
        let code = unsafe {
            (self.functions().ireduce)(from, to, count as c_int, dtype, op, root as c_int, comm, &raw mut request)
        };
        self.check("MPI_Ireduce", code).map(|()| request)
    }

    /// Begins a reduction of which each rank gets `count` elements.
    ///
    /// # Safety
    /// `to` has `count` elements of the type and `from` as many for each rank; neither is accessed until the request
    /// completes.
    pub unsafe fn reduce_scatter(
        &self,
        (from, to): (*const u8, *mut u8),
        count: usize,
        (dtype, op): (Handle, Handle),
        comm: Handle,
    ) -> Called<Handle> {
        let mut request = Handle::NOTHING;
        // SAFETY: promised by the caller.
        let code = unsafe {
            let (from, to) = (from.cast(), to.cast());
            (self.functions().ireduce_scatter_block)(from, to, count as c_int, dtype, op, comm, &raw mut request)
        };
        self.check("MPI_Ireduce_scatter_block", code).map(|()| request)
    }

    /// Begins to gather this many bytes from each rank, in rank order.
    ///
    /// # Safety
    /// `from` has so many bytes and `to` as many for each rank; neither is accessed until the request completes.
    pub unsafe fn all_gather(&self, (from, to): (*const u8, *mut u8), bytes: usize, comm: Handle) -> Called<Handle> {
        let (mut request, byte) = (Handle::NOTHING, self.abi.handles.byte);
        // SAFETY: promised by the caller.
        let code = unsafe {
            let (from, to, bytes) = (from.cast(), to.cast(), bytes as c_int);
            (self.functions().iallgather)(from, bytes, byte, to, bytes, byte, comm, &raw mut request)
        };
        self.check("MPI_Iallgather", code).map(|()| request)
    }

    /// The answer of `MPIX_Query_cuda_support` or `MPIX_GPU_query_support`; `None`: the library has neither.
    pub fn takes_device_memory(&self) -> Option<(&'static str, bool)> {
        /// `MPIX_GPU_SUPPORT_CUDA`.
        const CUDA: c_int = 0;
        assert!(IS_THE_THREAD.get(), "MPI is called on one thread only");
        let queries = &self.abi.queries;
        if let Some(query) = queries.cuda {
            // SAFETY: MPI is initialized.
            return Some(("MPIX_Query_cuda_support", unsafe { query() } == 1));
        }
        let query = queries.gpu?;
        let mut takes = 0;
        // SAFETY: a pointer to a local.
        let code = unsafe { query(CUDA, &raw mut takes) };
        Some(("MPIX_GPU_query_support", code == 0 && takes != 0))
    }

    /// A hint of `MPI_COMM_WORLD`, if it has that.
    pub fn hint(&self, key: &CStr) -> Called<Option<String>> {
        let (mut info, mut length, mut known) = (Handle::NOTHING, TEXT_BYTES as c_int, 0);
        let mut value = vec![0u8; TEXT_BYTES];
        let functions = self.functions();
        // SAFETY: pointers to locals; the buffer is as long as stated.
        unsafe {
            self.check("MPI_Comm_get_info", (functions.comm_get_info)(self.world(), &raw mut info))?;
            let got = (functions.info_get_string)(
                info,
                key.as_ptr(),
                &raw mut length,
                value.as_mut_ptr().cast(),
                &raw mut known,
            );
            (functions.info_free)(&raw mut info);
            self.check("MPI_Info_get_string", got)?;
        }
        Ok((known != 0).then(|| text(&value)))
    }

    /// Begins to gather one number from each rank.
    ///
    /// # Safety
    /// Both stay valid until the request completes; `all` has an element for each rank.
    pub unsafe fn all_gather_numbers(&self, own: &i64, all: &mut [i64], comm: Handle) -> Called<Handle> {
        let (mut request, number) = (Handle::NOTHING, self.abi.handles.int64);
        // SAFETY: promised by the caller.
        let code = unsafe {
            let all = all.as_mut_ptr().cast();
            (self.functions().iallgather)((&raw const *own).cast(), 1, number, all, 1, number, comm, &raw mut request)
        };
        self.check("MPI_Iallgather", code).map(|()| request)
    }

    /// Begins to gather this many bytes from each rank, concatenated.
    ///
    /// # Safety
    /// All stay valid until the request completes; counts and offsets are within `all`.
    pub unsafe fn all_gather_bytes(
        &self,
        own: &[u8],
        all: &mut [u8],
        (counts, places): (&[c_int], &[c_int]),
        comm: Handle,
    ) -> Called<Handle> {
        let (mut request, byte) = (Handle::NOTHING, self.abi.handles.byte);
        // SAFETY: promised by the caller.
        let code = unsafe {
            let (from, to) = (own.as_ptr().cast(), all.as_mut_ptr().cast());
            let (counts, places, length) = (counts.as_ptr(), places.as_ptr(), own.len() as c_int);
            (self.functions().iallgatherv)(from, length, byte, to, counts, places, byte, comm, &raw mut request)
        };
        self.check("MPI_Iallgatherv", code).map(|()| request)
    }
}

/// Buffers for the results of `test_some`.
#[derive(Default)]
pub(super) struct Results {
    indices: Vec<c_int>,
    statuses: Vec<u64>,
}

/// `MPI_ERROR`: the third `int`.
fn error_of(status: &[u64]) -> c_int {
    let bytes = status[1].to_ne_bytes();
    c_int::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Name and version of a library; may be called before MPI is initialized.
pub(super) fn version(functions: &Functions) -> String {
    let mut buffer = vec![0u8; TEXT_BYTES];
    let mut length = 0;
    // SAFETY: the buffer has MPI_MAX_LIBRARY_VERSION_STRING bytes.
    unsafe { (functions.get_library_version)(buffer.as_mut_ptr().cast::<c_char>(), &raw mut length) };
    let all = CStr::from_bytes_until_nul(&buffer).map(CStr::to_string_lossy).unwrap_or_default().into_owned();
    let first = all.lines().next().unwrap_or_default();
    let first = first.split(',').next().unwrap_or_default().replace("Version:", "");
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}
