//! Safe wrappers of UCX's functions: a library, a worker with its context, endpoints and requests.
//!
//! A worker is used by one thread at a time: whoever has it mutably. Requests are addresses in UCX until they are freed.
#![allow(unsafe_code, reason = "calls into the library; the requirements of each are stated beside it")]
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::Mutex;

use super::abi::{
    Abi, BUSY, EndpointAttributes, EndpointParams, FEATURE_TAG, FEATURE_WAKEUP, Functions, Handle, IN_PROGRESS,
    LAST_ERROR, OK, Params, Received, RequestParam, Status, TransportEntry, WorkerParams,
};
use super::find::{candidates, is_loaded};
use paceline_transport::error::{Result, RunError};

/// The oldest version with all that is called: the first that tells an endpoint's transports.
const OLDEST: (u32, u32) = (1, 12);
/// UCX reads these when it is loaded. It would otherwise catch signals of the process, start a thread for a file system of
/// its own, and print to standard output what errors of operations say anyway.
const QUIET: [(&str, &str); 4] =
    [("UCX_HANDLE_ERRORS", "none"), ("UCX_DEBUG_SIGNO", "0"), ("UCX_VFS_ENABLE", "n"), ("UCX_LOG_LEVEL", "fatal")];
/// Most transports of an endpoint that are listed.
const MOST_TRANSPORTS: usize = 64;
/// How to get a UCX.
const GET_ONE: &str =
    "pip install libucx-cu12, or the host's (apt install libucx0), or {ucx_library=/path/libucp.so.0}";

/// Errors are UCX's text.
pub(super) type Called<T> = std::result::Result<T, String>;

/// The library that this process has loaded.
pub struct Library {
    functions: Functions,
    /// Path or name under which it was found.
    pub path: PathBuf,
    /// `1.22.0`.
    pub version: String,
    /// The path that the user gave.
    named: Option<String>,
}

static LOADED: Mutex<Option<Arc<Library>>> = Mutex::new(None);

/// The library that a job over UCX uses; the first call loads it. `named`: the user's path of a file or its folder.
/// `package`: a folder that is tried after the system's.
///
/// # Errors
/// There is none, or none that is new enough; the message lists what was tried.
pub fn library(named: Option<&str>, package: Option<&str>) -> Result<Arc<Library>> {
    let mut loaded = LOADED.lock();
    if let Some(library) = &*loaded {
        if named.is_some() && named != library.named.as_deref() {
            let error = format!("this process has already loaded {}", library.path.display());
            return Err(RunError::Setting("ucx_library", error).with_remedy("drop {ucx_library}, or another process"));
        }
        return Ok(library.clone());
    }
    if !is_loaded() {
        for (name, value) in QUIET.iter().filter(|(name, _)| std::env::var_os(name).is_none()) {
            // SAFETY: a C library's own constructors have no other channel. This is once in a process, while a job begins:
            // other threads that change or read the environment at that very moment would race with any setenv.
            unsafe { std::env::set_var(name, value) };
        }
    }
    let mut tried = Vec::new();
    for path in candidates(named, package) {
        match load(&path) {
            Ok((functions, version)) => {
                let made = Arc::new(Library { functions, path, version, named: named.map(String::from) });
                *loaded = Some(made.clone());
                return Ok(made);
            }
            Err(why) if why.contains(&*path.to_string_lossy()) => tried.push(why),
            Err(why) => tried.push(format!("{}: {why}", path.display())),
        }
    }
    let tried = tried.join("; ");
    Err(match named {
        Some(_) => RunError::Setting("ucx_library", format!("no UCX that can be used: {tried}"))
            .with_remedy("the path of libucp.so.0, or of its folder"),
        None => RunError::Setting("transport", format!("ucx: no UCX found (tried: {tried})")).with_remedy(GET_ONE),
    })
}

fn load(path: &std::path::Path) -> Called<(Functions, String)> {
    let functions = Abi::load(path)?.functions;
    let (mut major, mut minor, mut release) = (0, 0, 0);
    // SAFETY: pointers to local numbers.
    unsafe { (functions.get_version)(&raw mut major, &raw mut minor, &raw mut release) };
    if major != OLDEST.0 || minor < OLDEST.1 {
        return Err(format!("is UCX {major}.{minor}.{release}; Paceline needs 1.{} or newer 1.x", OLDEST.1));
    }
    Ok((functions, format!("{major}.{minor}.{release}")))
}

impl Library {
    fn text(&self, status: Status) -> String {
        // SAFETY: it returns a text of the library for any number.
        let text = unsafe { CStr::from_ptr((self.functions.status_string)(status)) };
        text.to_string_lossy().into_owned()
    }

    fn check(&self, what: &str, status: Status) -> Called<()> {
        if status == OK { Ok(()) } else { Err(format!("{what}: {}", self.text(status))) }
    }
}

/// An operation under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request(Handle);

/// An endpoint: the connection to one other worker.
pub(super) struct Endpoint {
    handle: Handle,
    /// The status that UCX reports when the other side is lost; its address is known to UCX.
    lost: Box<AtomicI32>,
}

// SAFETY: these are addresses in UCX, used only through a worker, by one thread at a time.
unsafe impl Send for Request {}
// SAFETY: as above.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// The status with which UCX gave the other side up.
    pub fn lost(&self) -> Option<Status> {
        Some(self.lost.load(Ordering::Relaxed)).filter(|&status| status != OK)
    }
}

unsafe extern "C" fn on_error(argument: *mut c_void, _endpoint: Handle, status: Status) {
    // SAFETY: the argument is the box of an `Endpoint`, which outlives its connection: see `Worker::close`.
    unsafe { &*argument.cast::<AtomicI32>() }.store(status, Ordering::Relaxed);
}

/// A worker of UCX with a context of its own. Dropping it frees nothing: see `destroy`.
pub(super) struct Worker {
    library: Arc<Library>,
    context: Handle,
    handle: Handle,
}

// SAFETY: created with UCS_THREAD_MODE_SERIALIZED; all calls take it mutably.
unsafe impl Send for Worker {}

impl Worker {
    /// A worker for about `peers` endpoints. `settings`: UCX's, by their names without `UCX_`; they override variables.
    pub fn new(library: &Arc<Library>, peers: usize, settings: &[(&str, &str)]) -> Called<Worker> {
        let functions = &library.functions;
        let mut config = null_mut();
        // SAFETY: null stands for the variables' usual prefix and for no file. Each object is made before it is used.
        unsafe { library.check("ucp_config_read", (functions.config_read)(null(), null(), &raw mut config))? };
        let modify = |(name, value): &(&str, &str)| {
            let texts = (CString::new(*name), CString::new(*value));
            let (Ok(key), Ok(text)) = texts else { return Err(format!("UCX_{name} has a zero byte")) };
            // SAFETY: texts that end with a zero.
            let status = unsafe { (functions.config_modify)(config, key.as_ptr(), text.as_ptr()) };
            library.check(&format!("UCX_{name}={value}"), status)
        };
        let modified = settings.iter().try_for_each(modify);
        let params = Params {
            field_mask: Params::FEATURES
                | Params::REQUEST_SIZE
                | Params::TAG_SENDER_MASK
                | Params::MT_WORKERS_SHARED
                | Params::ESTIMATED_NUM_EPS,
            features: FEATURE_TAG | FEATURE_WAKEUP,
            request_size: 0,
            request_init: null_mut(),
            request_cleanup: null_mut(),
            tag_sender_mask: u64::MAX,
            mt_workers_shared: 0,
            estimated_num_eps: peers,
            estimated_num_ppn: 0,
            name: null(),
            node_local_id: 0,
        };
        let mut context = null_mut();
        let made = modified.and_then(|()| {
            // SAFETY: the mask names the fields that are set.
            let status =
                unsafe { (functions.init_version)(OLDEST.0, OLDEST.1, &raw const params, config, &raw mut context) };
            library.check("ucp_init", status)
        });
        // SAFETY: made above; a context has copied what it needs.
        unsafe { (functions.config_release)(config) };
        made?;
        let params = WorkerParams {
            field_mask: WorkerParams::THREAD_MODE,
            thread_mode: WorkerParams::SERIALIZED,
            rest: [0; 23],
        };
        let mut handle = null_mut();
        // SAFETY: as above.
        let status = unsafe { (functions.worker_create)(context, &raw const params, &raw mut handle) };
        library.check("ucp_worker_create", status).inspect_err(|_| {
            // SAFETY: it has no worker.
            unsafe { (functions.cleanup)(context) };
        })?;
        Ok(Worker { library: library.clone(), context, handle })
    }

    /// Its address, for other workers.
    pub fn address(&mut self) -> Called<Vec<u8>> {
        let (functions, mut address, mut length) = (&self.library.functions, null_mut(), 0);
        // SAFETY: UCX sets both; the bytes are copied before they are released.
        unsafe {
            let status = (functions.worker_get_address)(self.handle, &raw mut address, &raw mut length);
            self.library.check("ucp_worker_get_address", status)?;
            let bytes = std::slice::from_raw_parts(address.cast::<u8>(), length).to_vec();
            (functions.worker_release_address)(self.handle, address);
            Ok(bytes)
        }
    }

    /// A descriptor that becomes readable when an armed worker has something to do.
    pub fn descriptor(&mut self) -> Called<OwnedFd> {
        let mut number = -1;
        // SAFETY: UCX sets it. It belongs to the worker; the copy may outlive it.
        unsafe {
            let status = (self.library.functions.worker_get_efd)(self.handle, &raw mut number);
            self.library.check("ucp_worker_get_efd", status)?;
            BorrowedFd::borrow_raw(number).try_clone_to_owned().map_err(|error| error.to_string())
        }
    }

    /// Lets UCX work; returns whether anything happened.
    pub fn progress(&mut self) -> bool {
        // SAFETY: the worker exists.
        unsafe { (self.library.functions.worker_progress)(self.handle) != 0 }
    }

    /// Prepares for sleep; `false`: there is something to do.
    pub fn arm(&mut self) -> bool {
        // SAFETY: the worker exists.
        let status = unsafe { (self.library.functions.worker_arm)(self.handle) };
        status != BUSY
    }

    /// Begins a connection to the worker with this address.
    pub fn connect(&mut self, address: &[u8]) -> Called<Endpoint> {
        let lost = Box::new(AtomicI32::new(OK));
        let params = EndpointParams {
            field_mask: EndpointParams::REMOTE_ADDRESS | EndpointParams::ERR_MODE | EndpointParams::ERR_HANDLER,
            address: address.as_ptr().cast(),
            err_mode: EndpointParams::PEER,
            err_callback: Some(on_error),
            err_argument: (&raw const *lost).cast_mut().cast(),
            rest: [0; 8],
        };
        let mut handle = null_mut();
        // SAFETY: the mask names the fields that are set. The address is a worker's, of the same version of Paceline, from a
        // rank that has proved that it belongs to the job.
        let status = unsafe { (self.library.functions.ep_create)(self.handle, &raw const params, &raw mut handle) };
        self.library.check("ucp_ep_create", status)?;
        Ok(Endpoint { handle, lost })
    }

    /// The transports that carry an endpoint's messages, with their devices: `tcp/eth0`. Empty if UCX does not say.
    pub fn transports(&mut self, endpoint: &Endpoint) -> Vec<String> {
        let mut entries = [TransportEntry { transport: null(), device: null() }; MOST_TRANSPORTS];
        let mut attributes = EndpointAttributes {
            field_mask: EndpointAttributes::TRANSPORTS,
            between: [0; 36],
            entries: entries.as_mut_ptr(),
            num_entries: MOST_TRANSPORTS as u32,
            entry_size: size_of::<TransportEntry>(),
            user_data: null_mut(),
        };
        // SAFETY: UCX fills in no more entries than there are, of this size, with texts that live as long as the endpoint.
        unsafe {
            if (self.library.functions.ep_query)(endpoint.handle, &raw mut attributes) != OK {
                return Vec::new();
            }
            let text = |text: *const c_char| match text.is_null() {
                true => "?".into(),
                false => CStr::from_ptr(text).to_string_lossy(),
            };
            let known = &entries[..MOST_TRANSPORTS.min(attributes.num_entries as usize)];
            let mut all: Vec<String> =
                known.iter().map(|entry| format!("{}/{}", text(entry.transport), text(entry.device))).collect();
            all.sort();
            all.dedup();
            all
        }
    }

    /// Begins to send; complete when the other side has matched it with a receive.
    ///
    /// # Safety
    /// The bytes stay where they are, unchanged, until the request is complete.
    pub unsafe fn send(&mut self, to: &Endpoint, bytes: &[u8], tag: u64) -> Called<Option<Request>> {
        let param = host_memory(0);
        let function = self.library.functions.tag_send_sync_nbx;
        // SAFETY: promised by the caller.
        let answer = unsafe { function(to.handle, bytes.as_ptr().cast(), bytes.len(), tag, &raw const param) };
        self.request("ucp_tag_send_sync_nbx", answer)
    }

    /// Begins to receive what has exactly this tag.
    ///
    /// # Safety
    /// The bytes stay where they are, and nobody else looks at them, until the request is complete.
    pub unsafe fn receive(&mut self, bytes: &mut [u8], tag: u64) -> Called<Request> {
        let param = host_memory(RequestParam::NOT_AT_ONCE);
        let function = self.library.functions.tag_recv_nbx;
        // SAFETY: promised by the caller.
        let answer =
            unsafe { function(self.handle, bytes.as_mut_ptr().cast(), bytes.len(), tag, u64::MAX, &raw const param) };
        self.request("ucp_tag_recv_nbx", answer)?.ok_or_else(|| "ucp_tag_recv_nbx: no request".into())
    }

    fn request(&self, what: &str, answer: Handle) -> Called<Option<Request>> {
        let number = answer as isize;
        match Status::try_from(number) {
            Ok(0) => Ok(None),
            Ok(status) if (LAST_ERROR..0).contains(&status) => Err(format!("{what}: {}", self.library.text(status))),
            _ => Ok(Some(Request(answer))),
        }
    }

    /// Whether a request is complete; if so, it is freed.
    pub fn test(&mut self, request: Request) -> Option<Called<()>> {
        // SAFETY: requests are freed once, when they are complete; callers drop them then.
        let status = unsafe { (self.library.functions.request_check_status)(request.0) };
        (status != IN_PROGRESS).then(|| self.over(request, "message", status))
    }

    /// The same for a receive, with its length.
    pub fn test_receive(&mut self, request: Request) -> Option<Called<usize>> {
        let mut received = Received::default();
        // SAFETY: as in `test`.
        let status = unsafe { (self.library.functions.tag_recv_request_test)(request.0, &raw mut received) };
        (status != IN_PROGRESS).then(|| self.over(request, "receive", status).map(|()| received.length))
    }

    fn over(&mut self, request: Request, what: &str, status: Status) -> Called<()> {
        // SAFETY: it is complete, and not used again.
        unsafe { (self.library.functions.request_free)(request.0) };
        self.library.check(what, status)
    }

    /// Cancels a receive; it completes soon.
    pub fn cancel(&mut self, request: Request) {
        // SAFETY: the request is not complete, or completes with its message.
        unsafe { (self.library.functions.request_cancel)(self.handle, request.0) };
    }

    /// Begins to close an endpoint. `at_once`: without waiting for what is on its way; sends then fail. The endpoint must be
    /// kept until the worker is destroyed, as UCX may still report its loss.
    pub fn close(&mut self, endpoint: &Endpoint, at_once: bool) -> Called<Option<Request>> {
        let mut param = host_memory(RequestParam::FLAGS);
        param.attributes = RequestParam::FLAGS;
        param.flags = if at_once { RequestParam::FORCE } else { 0 };
        // SAFETY: the endpoint exists, and is closed once.
        let answer = unsafe { (self.library.functions.ep_close_nbx)(endpoint.handle, &raw const param) };
        self.request("ucp_ep_close_nbx", answer)
    }

    /// The text of a status.
    pub fn text(&self, status: Status) -> String {
        self.library.text(status)
    }

    /// Frees it. All its requests are complete, and its endpoints closed.
    pub fn destroy(self) {
        // SAFETY: promised by the caller, which is this crate; nothing uses it afterwards.
        unsafe {
            (self.library.functions.worker_destroy)(self.handle);
            (self.library.functions.cleanup)(self.context);
        }
    }
}

/// Parameters of an operation on bytes in the host's memory, so that UCX need not find out where they are.
fn host_memory(attributes: u32) -> RequestParam {
    RequestParam {
        attributes: attributes | RequestParam::MEMORY_TYPE,
        flags: 0,
        request: null_mut(),
        callback: null_mut(),
        datatype: 0,
        user_data: null_mut(),
        reply_buffer: null_mut(),
        memory_type: RequestParam::HOST,
        rest: [0; 5],
    }
}
