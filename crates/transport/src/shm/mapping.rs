//! A memory-mapped file that other processes map too.
#![allow(unsafe_code, reason = "mapping memory, and views into memory that several processes share")]
use std::ptr::NonNull;

use paceline_os::fd::AsFd;
use paceline_os::mm::{MapFlags, ProtFlags, mmap, munmap};
use paceline_os::sync::atomic::AtomicU32;

/// Shared memory; unmapped when dropped.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address range. The protocol of the ring decides who may access which part: a slot belongs to the
// writer until a release store publishes it, then to the reader until a release store returns it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes.
    pub fn new(file: impl AsFd, len: usize) -> std::io::Result<Mapping> {
        // SAFETY: a new mapping at an address the system chooses aliases nothing.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or_else(|| std::io::Error::other("mmap gave address 0"))?;
        Ok(Mapping { base, len })
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "{offset}+{len} is outside of the segment");
        // SAFETY: inside the mapping by the assertion.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The address of a byte in this process.
    pub fn address(&self, offset: usize) -> u64 {
        self.at(offset, 1) as u64
    }

    /// The word at a multiple of 4.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: inside, aligned (the mapping begins at a page), and only ever used as an atomic.
        unsafe { &*self.at(offset, 4).cast::<AtomicU32>() }
    }

    /// A view of bytes that the protocol has given to us.
    pub fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: inside the mapping; the peer does not write a published slot. A peer that breaks the protocol holds
        // the job's secret and could send wrong numbers anyway; bytes have no invalid values.
        unsafe { std::slice::from_raw_parts(self.at(offset, len), len) }
    }

    /// Writes bytes to a part that the protocol has given to us.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: inside the mapping, and no overlap: `bytes` is the caller's memory or the stack.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset, bytes.len()), bytes.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no view outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
