//! All that the runtime's crates use of the operating system: time, threads, locks, sockets, pipes, shared memory.
//!
//! The runtime reaches the system only through this crate, under the names that std, `parking_lot`, rustix and socket2 give
//! to things: all of it is re-exports.
//!
//! | module | holds |
//! | --- | --- |
//! | [`time`] | instants, durations, the monotonic clock |
//! | [`thread`] | threads, sleeping, cores |
//! | [`sync`] | locks, condition variables, atomics |
//! | [`fd`], [`io`], [`event`], [`pipe`] | descriptors, and waiting for them |
//! | [`net`] | sockets |
//! | [`fs`], [`mm`] | anonymous files, and mapping them |
//! | [`process`] | this process, and others of the host |
//! | [`random`] | unpredictable bytes |
#[cfg(not(feature = "simulated"))]
mod live;
#[cfg(not(feature = "simulated"))]
pub use live::*;
#[cfg(feature = "simulated")]
mod simulated;
#[cfg(feature = "simulated")]
pub use simulated::*;

/// Counts that a branch was taken: simulations print which were.
#[cfg(feature = "simulated")]
#[macro_export]
macro_rules! reached {
    ($name:literal) => {
        $crate::world::count($name)
    };
}

/// Counts that a branch was taken, in simulations. Nothing here.
#[cfg(not(feature = "simulated"))]
#[macro_export]
macro_rules! reached {
    ($name:literal) => {};
}

/// Writes a line to standard error. Not `eprintln!`, which panics where standard error is closed.
#[macro_export]
macro_rules! report {
    ($($part:tt)*) => { $crate::process::report(format_args!($($part)*)) };
}
