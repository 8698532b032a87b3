//! Hash tables of std are seeded by the system's random numbers, once per thread. With a constant in their place, and a new
//! thread for each schedule, all tables have the same order each time.
#![allow(unsafe_code, reason = "a symbol of the C library is replaced")]

/// Fills the memory with a constant. In place of the C library's function in this program.
///
/// # Safety
/// As for getrandom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(to: *mut u8, bytes: usize, _flags: u32) -> isize {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::write_bytes(to, 0x5a, bytes) };
    bytes as isize
}
