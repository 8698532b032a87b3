//! Memory for results whose size is not known in advance, and for the zeros of ranks that have joined.
#![allow(unsafe_code, reason = "an operation writes it while others hold references to its owner")]
use std::cell::UnsafeCell;

/// Zeroed memory, aligned for every dtype, which an operation writes through its address.
pub struct Output {
    /// Whole words, for the alignment.
    words: UnsafeCell<Box<[u64]>>,
    bytes: usize,
}

// SAFETY: the memory is only accessed through its address: by the operation until it completes, then by the caller.
unsafe impl Send for Output {}
// SAFETY: likewise.
unsafe impl Sync for Output {}

impl Output {
    /// Allocates this many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Output {
        Output { words: UnsafeCell::new(vec![0u64; bytes.div_ceil(8)].into_boxed_slice()), bytes }
    }

    /// The address; valid as long as the owner.
    #[must_use]
    pub fn address(&self) -> usize {
        // SAFETY: no reference to the words is created; the box does not move them.
        unsafe { (*self.words.get()).as_mut_ptr() as usize }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A copy of the contents. The operation must have completed.
    pub(super) fn copy(&self) -> Vec<u8> {
        // SAFETY: the memory is valid for `bytes`, and the operation that wrote it has completed.
        unsafe { std::slice::from_raw_parts(self.address() as *const u8, self.bytes) }.to_vec()
    }

    /// Allocates a copy of these bytes.
    pub(super) fn with(bytes: &[u8]) -> Output {
        let output = Output::new(bytes.len());
        // SAFETY: the memory is new and at least as long.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), output.address() as *mut u8, bytes.len()) };
        output
    }
}
