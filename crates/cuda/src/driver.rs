//! Finds and loads the driver.
#![allow(unsafe_code, reason = "calls into a library that is loaded at run time")]
use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use parking_lot::Mutex;

use crate::abi::{Functions, SUCCESS, Status};
use crate::error::CudaError;
use crate::library;

/// The name under which the system's loader knows the driver.
const NAME: &str = "libcuda.so.1";

/// The loaded driver. It stays loaded until the process ends.
pub struct Driver {
    pub(crate) call: Functions,
    path: PathBuf,
    version: i32,
    devices: usize,
    _library: Library,
}

/// The driver of this process: there is one.
static LOADED: library::Loaded<Driver> = Mutex::new(None);

impl Driver {
    /// The driver; loaded and initialized by the first call. `named`: the path of the library, in place of the system's.
    ///
    /// # Errors
    /// There is no driver, it is too old or finds no device, or another library is loaded already.
    pub fn get(named: Option<&str>) -> Result<Arc<Driver>, CudaError> {
        library::get(&LOADED, ("cuda_library", named), Driver::load, |driver| &driver.path)
    }

    fn load(named: Option<&str>) -> Result<Driver, CudaError> {
        let path = PathBuf::from(named.unwrap_or(NAME));
        let wrong = |what: String| CudaError(format!("{}: {what}", path.display()));
        // SAFETY: a driver's initializers may run in any process.
        let loaded = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }
            .map_err(|error| library::not_opened(&path, &error, "install NVIDIA's driver, or use CPU tensors"))?;
        // SAFETY: the library bears the driver's name, or the user says that it is one.
        let call = unsafe { Functions::load(&loaded) }.map_err(wrong)?;
        let mut driver = Driver { call, path: path.clone(), version: 0, devices: 0, _library: loaded };
        let mut count: c_int = 0;
        // SAFETY: pointers to locals.
        unsafe {
            driver.check("cuInit", (driver.call.init)(0))?;
            let version = (driver.call.driver_get_version)(&raw mut driver.version);
            driver.check("cuDriverGetVersion", version)?;
            driver.check("cuDeviceGetCount", (driver.call.device_get_count)(&raw mut count))?;
        }
        driver.devices = usize::try_from(count).unwrap_or(0);
        Ok(driver)
    }

    /// `12.8`.
    #[must_use]
    pub fn version(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    /// Where it was loaded from.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// How many devices this process sees.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.devices
    }

    /// An error if the call has failed.
    pub(crate) fn check(&self, call: &str, status: Status) -> Result<(), CudaError> {
        if status == SUCCESS { Ok(()) } else { Err(self.error(call, status)) }
    }

    pub(crate) fn error(&self, call: &str, status: Status) -> CudaError {
        let text = |get: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: the driver sets the pointer to a constant of its own, or to null.
            unsafe {
                let known = get(status, &raw mut text) == SUCCESS && !text.is_null();
                known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        let name = text(self.call.get_error_name).unwrap_or_else(|| format!("error {status}"));
        let why = text(self.call.get_error_string).map_or_else(String::new, |why| format!(" ({why})"));
        CudaError(format!("{call} failed with {name}{why}"))
    }
}
