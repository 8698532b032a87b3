//! Stacks of coroutines, used again: a world has dozens of threads, and a search runs millions of worlds.
#![allow(unsafe_code, reason = "memory for stacks, with a guard page")]
use std::num::NonZeroUsize;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use corosensei::stack::{Stack, StackPointer};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

/// Enough for the runtime's deepest calls in an unoptimized build. Pages that are not touched cost nothing.
const BYTES: usize = 512 << 10;
const GUARD: usize = 4096;

/// A stack of the pool; the world that took it gives it back when no coroutine runs on it any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct PooledStack {
    limit: usize,
}

// SAFETY: the lowest page is a guard page, and the rest is larger than the least size.
unsafe impl Stack for PooledStack {
    fn base(&self) -> StackPointer {
        NonZeroUsize::new(self.limit + BYTES).expect("a mapping is not at address 0")
    }

    fn limit(&self) -> StackPointer {
        NonZeroUsize::new(self.limit).expect("a mapping is not at address 0")
    }
}

static POOL: Mutex<Vec<PooledStack>> = Mutex::new(Vec::new());

pub(super) fn take_stack() -> PooledStack {
    let pooled = POOL.lock().unwrap_or_else(PoisonError::into_inner).pop();
    pooled.unwrap_or_else(|| {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the system chooses aliases nothing; the guard page is part of it.
        let base = unsafe {
            let base = mmap_anonymous(null_mut(), BYTES, flags, MapFlags::PRIVATE | MapFlags::NORESERVE)
                .expect("memory for a stack");
            mprotect(base, GUARD, MprotectFlags::empty()).expect("a guard page");
            base
        };
        PooledStack { limit: base as usize }
    })
}

pub(super) fn give_back(stacks: Vec<PooledStack>) {
    POOL.lock().unwrap_or_else(PoisonError::into_inner).extend(stacks);
}
