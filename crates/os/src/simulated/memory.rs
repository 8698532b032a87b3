//! Anonymous files and their mappings: one allocation, which all processes of the world share.
#![allow(unsafe_code, reason = "mapping memory keeps its unsafe signature; here it only hands out an address")]
use std::ffi::c_void;

pub use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::{Errno, Result};
pub use rustix::mm::{MapFlags, ProtFlags};

use super::fd::{AsFd, OwnedFd};
use super::poll::Kind;
use super::world::with;

/// An anonymous file. Words, so that it is aligned as a page is, as far as atomics need it.
#[derive(Default)]
pub(super) struct Anonymous {
    words: Vec<u64>,
    bytes: usize,
}

/// Metadata of a file.
pub struct Stat {
    /// Bytes.
    pub st_size: i64,
}

/// A new anonymous file.
///
/// # Errors
/// None.
pub fn memfd_create(_name: &str, _flags: MemfdFlags) -> Result<OwnedFd> {
    Ok(with(|world| {
        world.anonymous.push(Anonymous::default());
        let file = world.anonymous.len() - 1;
        world.open(Kind::Anonymous(file))
    }))
}

/// Reserves its memory; once.
///
/// # Errors
/// It is not an anonymous file.
pub fn fallocate(fd: impl AsFd, _flags: FallocateFlags, _offset: u64, bytes: u64) -> Result<()> {
    with(|world| {
        let Some(Kind::Anonymous(file)) = world.kind(fd.as_fd().number()) else { return Err(Errno::BADF) };
        let words = (bytes as usize).div_ceil(8);
        world.anonymous[file] = Anonymous { words: vec![0; words], bytes: bytes as usize };
        Ok(())
    })
}

/// Its size.
///
/// # Errors
/// It is not an anonymous file.
pub fn fstat(fd: impl AsFd) -> Result<Stat> {
    with(|world| match world.kind(fd.as_fd().number()) {
        Some(Kind::Anonymous(file)) => Ok(Stat { st_size: world.anonymous[file].bytes as i64 }),
        _ => Err(Errno::BADF),
    })
}

/// The address of its memory, which lives as long as the world.
///
/// # Errors
/// It is not an anonymous file, or is too short.
///
/// # Safety
/// As for mmap(2).
pub unsafe fn mmap(
    _at: *mut c_void,
    bytes: usize,
    _protection: ProtFlags,
    _flags: MapFlags,
    fd: impl AsFd,
    _offset: u64,
) -> Result<*mut c_void> {
    with(|world| {
        let Some(Kind::Anonymous(file)) = world.kind(fd.as_fd().number()) else { return Err(Errno::BADF) };
        let file = &mut world.anonymous[file];
        if bytes > file.bytes { Err(Errno::INVAL) } else { Ok(file.words.as_mut_ptr().cast()) }
    })
}

/// Does nothing: see `mmap`.
///
/// # Errors
/// None.
///
/// # Safety
/// As for munmap(2).
pub unsafe fn munmap(_at: *mut c_void, _bytes: usize) -> Result<()> {
    Ok(())
}
