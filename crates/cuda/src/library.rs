//! Libraries that are loaded at run time, one of each kind in a process.
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::CudaError;

/// The symbols of a library as functions of a struct `Functions`, with `Functions::load`; `$needs`: what has all of them.
macro_rules! functions {
    ($needs:literal; $($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The library's functions that are called, by short names.
        pub(crate) struct Functions { $(pub $name: unsafe extern "C" fn($($argument),*) -> std::ffi::c_int,)* }

        impl Functions {
            /// # Safety
            /// The library is what its name says, so that the signatures are those of its header.
            pub unsafe fn load(library: &libloading::os::unix::Library) -> Result<Functions, String> {
                Ok(Functions { $($name: {
                    // SAFETY: promised by the caller.
                    *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                        .map_err(|_| format!("has no {}; Paceline needs {}", $symbol, $needs))?
                },)* })
            }
        }
    };
}
pub(crate) use functions;

/// The library of a kind that this process has loaded, or why it could not be.
pub(crate) type Loaded<T> = Mutex<Option<Result<Arc<T>, CudaError>>>;

/// The library that `loaded` holds; loaded by the first call. `named`: its path, as `setting` gives it; `path` returns that
/// from which one was loaded.
pub(crate) fn get<T>(
    loaded: &Loaded<T>,
    (setting, named): (&str, Option<&str>),
    load: impl FnOnce(Option<&str>) -> Result<T, CudaError>,
    path: impl Fn(&T) -> &Path,
) -> Result<Arc<T>, CudaError> {
    let library = loaded.lock().get_or_insert_with(|| load(named).map(Arc::new)).clone()?;
    match named {
        Some(wanted) if path(&library) != Path::new(wanted) => Err(CudaError(format!(
            "{setting}: this process has loaded {} already, and cannot load {wanted}",
            path(&library).display()
        ))),
        _ => Ok(library),
    }
}

/// A library that could not be opened; `remedy`: what to do.
pub(crate) fn not_opened(path: &Path, error: &libloading::Error, remedy: &str) -> CudaError {
    let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    CudaError(format!("{}: cannot be loaded ({why}); {remedy}", path.display()))
}
