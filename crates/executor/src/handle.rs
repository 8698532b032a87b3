//! The caller's view of an operation in flight.
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use paceline_transport::error::{Result, RunError};
use parking_lot::Mutex;

const PENDING: u8 = 0;
const FINISHED: u8 = 1;
const FAILED: u8 = 2;

/// Shared by the caller, the executor and the monitor.
#[derive(Debug, Default)]
pub struct Handle {
    state: AtomicU8,
    error: Mutex<Option<RunError>>,
    /// Fragments sent and received so far: whether it moves.
    pub moved: AtomicU64,
    /// Of a receive from anybody: from whom.
    pub(crate) source: AtomicU32,
    /// The caller asks for a notice with this number.
    pub notify: Option<u64>,
    /// In the timeline; 0: none is recorded.
    pub number: AtomicU64,
}

impl Handle {
    /// Pending.
    #[must_use]
    pub fn new(notify: Option<u64>) -> Handle {
        Handle { notify, ..Handle::default() }
    }

    /// Whether it is over, well or not.
    #[inline]
    #[must_use]
    pub fn done(&self) -> bool {
        self.state.load(Ordering::Acquire) != PENDING
    }

    /// How it ended; `Ok` while it has not.
    ///
    /// # Errors
    /// Why it failed.
    pub fn result(&self) -> Result<()> {
        if self.state.load(Ordering::Acquire) != FAILED {
            return Ok(());
        }
        let error = self.error.lock().clone();
        Err(error.unwrap_or_else(|| RunError::Failed("the operation failed".into())))
    }

    /// The rank a finished receive came from.
    #[must_use]
    pub fn source(&self) -> u32 {
        self.source.load(Ordering::Relaxed)
    }

    /// It is over, and went well.
    pub fn finish(&self) {
        self.state.store(FINISHED, Ordering::Release);
    }

    /// It has failed.
    pub fn fail(&self, error: RunError) {
        *self.error.lock() = Some(error);
        self.state.store(FAILED, Ordering::Release);
    }
}
