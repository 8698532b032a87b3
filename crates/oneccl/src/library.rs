//! The library and the parts of its C interface that are called; declarations by its documented signatures
//! (<https://uxlfoundation.github.io/oneCCL/>).
#![allow(unsafe_code, reason = "functions of a library that is loaded at run time")]
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};

/// The name under which the system's loader knows it.
const NAME: &str = "libccl.so.2";
/// Loaded beside it: its engine for CPUs looks for them by name only.
const PARTS: [&str; 4] = ["libccl.so.1", "libfabric.so.1", "libhwloc.so.15", "libccl_legacy_cpu.so"];
/// Bytes of a job's identifier.
const IDENTIFIER: usize = 4096;
/// No library needs so many others.
const MOST_NEEDED: usize = 64;

/// A job's identifier, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Identifier([u8; IDENTIFIER]);

pub(crate) type Communicator = *mut c_void;

type GetIdentifier = unsafe extern "C" fn(*mut Identifier) -> c_int;
type InitRank = unsafe extern "C" fn(*mut Communicator, usize, Identifier, c_int) -> c_int;
type AllReduce =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, c_int, Communicator, *mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(Communicator) -> c_int;

/// oneCCL in this process.
pub struct Library {
    get_identifier: GetIdentifier,
    init_rank: InitRank,
    all_reduce: AllReduce,
    destroy: Destroy,
    path: PathBuf,
}

/// The one that this process has loaded.
static LOADED: Mutex<Option<Arc<Library>>> = Mutex::new(None);

impl Library {
    /// Loads it, once in a process. `named`: its file, else the system's.
    ///
    /// # Errors
    /// It cannot be loaded, lacks a function, or another has been loaded.
    pub fn get(named: Option<&str>) -> Result<Arc<Library>, String> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let path = PathBuf::from(named.unwrap_or(NAME));
        if let Some(library) = &*loaded {
            return if library.path == path {
                Ok(library.clone())
            } else {
                Err(format!("this process has loaded {} already", library.path.display()))
            };
        }
        let library = Arc::new(Library::load(path)?);
        *loaded = Some(library.clone());
        Ok(library)
    }

    fn load(path: PathBuf) -> Result<Library, String> {
        let main = open(&path, &mut 0)?;
        if let Some(folder) = path.parent().filter(|folder| folder.is_absolute()) {
            for part in PARTS.map(|part| folder.join(part)).iter().filter(|part| part.exists()) {
                // It stays loaded with the process, as the library does.
                std::mem::forget(open(part, &mut 0)?);
            }
        }
        // SAFETY: the signatures are those of the library's documentation.
        let library = unsafe {
            Library {
                get_identifier: *main.get(b"onecclGetUniqueId\0").map_err(|_| lacks(&path, "onecclGetUniqueId"))?,
                init_rank: *main.get(b"onecclCommInitRank\0").map_err(|_| lacks(&path, "onecclCommInitRank"))?,
                all_reduce: *main.get(b"onecclAllReduce\0").map_err(|_| lacks(&path, "onecclAllReduce"))?,
                destroy: *main.get(b"onecclCommDestroy\0").map_err(|_| lacks(&path, "onecclCommDestroy"))?,
                path,
            }
        };
        std::mem::forget(main);
        Ok(library)
    }

    /// A new identifier, without the zeros at its end. The rank that calls this serves the others' meeting.
    ///
    /// # Errors
    /// The library's.
    pub fn identifier(&self) -> Result<Vec<u8>, String> {
        let mut made = Identifier([0; IDENTIFIER]);
        // SAFETY: the function writes an identifier.
        check("onecclGetUniqueId", unsafe { (self.get_identifier)(&raw mut made) })?;
        let used = made.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Ok(made.0[..used].to_vec())
    }

    /// Waits for all ranks.
    pub(crate) fn init_rank(&self, identifier: &[u8], rank: u32, size: u32) -> Result<Communicator, String> {
        let mut whole = Identifier([0; IDENTIFIER]);
        let Some(begin) = whole.0.get_mut(..identifier.len()) else {
            return Err(format!("an identifier of {} bytes, more than {IDENTIFIER}", identifier.len()));
        };
        begin.copy_from_slice(identifier);
        let mut made = std::ptr::null_mut();
        // SAFETY: the function writes a communicator.
        check("onecclCommInitRank", unsafe { (self.init_rank)(&raw mut made, size as usize, whole, rank as c_int) })?;
        Ok(made)
    }

    /// Reduces in place, and waits until that is done.
    ///
    /// # Safety
    /// The communicator is one of this library's; the memory has `count` elements of the type.
    pub(crate) unsafe fn all_reduce(
        &self,
        memory: *mut c_void,
        count: usize,
        (dtype, op): (c_int, c_int),
        communicator: Communicator,
    ) -> Result<(), String> {
        let no_stream = std::ptr::null_mut();
        // SAFETY: promised by the caller.
        let code = unsafe { (self.all_reduce)(memory, memory, count, dtype, op, communicator, no_stream) };
        check("onecclAllReduce", code)
    }

    /// # Safety
    /// The communicator is one of this library's, and is not used afterwards.
    pub(crate) unsafe fn destroy(&self, communicator: Communicator) -> bool {
        // SAFETY: promised by the caller.
        unsafe { (self.destroy)(communicator) == 0 }
    }
}

/// Opens a library; what it needs is taken from its folder, where the loader does not find it.
fn open(path: &Path, needed: &mut usize) -> Result<Loaded, String> {
    loop {
        // SAFETY: oneCCL, its parts and what they need run their own initialization.
        let error = match unsafe { Loaded::open(Some(path), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => return Ok(library),
            Err(error) => error,
        };
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        let missing = why.split(": ").next().filter(|name| !name.contains('/'));
        let beside = path.parent().zip(missing).map(|(folder, name)| folder.join(name)).filter(|one| one.is_absolute());
        *needed += 1;
        match beside.filter(|one| *needed < MOST_NEEDED && one.exists()) {
            Some(one) => std::mem::forget(open(&one, needed)?),
            None => return Err(format!("{}: cannot be loaded ({why})", path.display())),
        }
    }
}

fn lacks(path: &Path, symbol: &str) -> String {
    format!("{}: has no {symbol}; Paceline needs oneCCL 2022 or later", path.display())
}

/// The documented results.
const RESULTS: [&str; 13] = [
    "success",
    "error",
    "system error",
    "internal error",
    "invalid argument",
    "invalid usage",
    "in progress",
    "failure of a GPU",
    "failure of a CPU",
    "no memory of the CPU",
    "no memory of the GPU",
    "exception in the plugin",
    "not implemented",
];

fn check(function: &str, code: c_int) -> Result<(), String> {
    match usize::try_from(code).ok().and_then(|place| RESULTS.get(place)) {
        Some(&"success") => Ok(()),
        Some(why) => Err(format!("oneCCL: {function}: {why}")),
        None => Err(format!("oneCCL: {function}: result {code}")),
    }
}
