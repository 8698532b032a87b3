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
mod live;
pub use live::*;

/// Writes a line to standard error. Not `eprintln!`, which panics where standard error is closed.
#[macro_export]
macro_rules! report {
    ($($part:tt)*) => { $crate::process::report(format_args!($($part)*)) };
}
