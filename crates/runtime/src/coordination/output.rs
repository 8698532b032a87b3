//! Memory for results whose size is known late, and for what ranks that have joined put in.
#![allow(unsafe_code, reason = "an operation writes it while others hold references to its owner")]
use std::cell::UnsafeCell;

/// Zeroed memory, aligned for every dtype, which an operation writes through its address.
pub struct Output {
    /// Whole words.
    words: UnsafeCell<Box<[u64]>>,
    bytes: usize,
}

// SAFETY: the memory is only reached through its address: by the operation until it is over, and then by the caller.
unsafe impl Send for Output {}
// SAFETY: likewise.
unsafe impl Sync for Output {}

impl Output {
    /// So many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Output {
        Output { words: UnsafeCell::new(vec![0u64; bytes.div_ceil(8)].into_boxed_slice()), bytes }
    }

    /// Where it begins; valid as long as the owner.
    #[must_use]
    pub fn address(&self) -> usize {
        // SAFETY: no reference to the words is made; the box does not move them.
        unsafe { (*self.words.get()).as_mut_ptr() as usize }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A copy of what it holds, once nobody writes it any more.
    pub(super) fn copy(&self) -> Vec<u8> {
        // SAFETY: the memory is valid for `bytes`, and the operation that wrote it is over.
        unsafe { std::slice::from_raw_parts(self.address() as *const u8, self.bytes) }.to_vec()
    }

    /// With these bytes in it.
    pub(super) fn with(bytes: &[u8]) -> Output {
        let output = Output::new(bytes.len());
        // SAFETY: the memory is new, and as long.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), output.address() as *mut u8, bytes.len()) };
        output
    }
}
