//! The caller's view of an operation in flight, and its end.
use std::any::Any;

use paceline_os::sync::Arc;
use paceline_os::sync::Mutex;
use paceline_os::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use paceline_transport::error::{Result, RunError};

const PENDING: u8 = 0;
const FINISHED: u8 = 1;
const FAILED: u8 = 2;

/// Shared by the caller, the executor and the failure detector.
#[derive(Debug, Default)]
pub struct Handle {
    state: AtomicU8,
    error: Mutex<Option<RunError>>,
    /// Grows with each fragment sent and each byte received, which show progress.
    pub moved: AtomicU64,
    /// The same for what this process sends to itself. That shows only that this rank goes on.
    pub within: AtomicU64,
    /// The sender that a receive from any rank was matched with.
    pub(crate) source: AtomicU32,
    /// For a send or receive: its number among those with the same peer and tag, plus one; 0: not known yet.
    pub(crate) transfer: AtomicU64,
    /// Set if the caller wants a notice with this number.
    pub notify: Option<u64>,
    /// Number in the timeline; 0: not recorded.
    pub number: AtomicU64,
}

impl Handle {
    /// A pending operation.
    #[must_use]
    pub fn new(notify: Option<u64>) -> Handle {
        Handle { notify, ..Handle::default() }
    }

    /// Whether it has completed or failed.
    #[inline]
    #[must_use]
    pub fn done(&self) -> bool {
        self.state.load(Ordering::Acquire) != PENDING
    }

    /// The result; `Ok` while pending.
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

    /// The sender of a completed receive.
    #[must_use]
    pub fn source(&self) -> u32 {
        self.source.load(Ordering::Relaxed)
    }

    /// The number of a send or receive among those with the same peer and tag. A receive from any rank has none until it
    /// is matched.
    #[must_use]
    pub fn transfer(&self) -> Option<u32> {
        self.transfer.load(Ordering::Acquire).checked_sub(1).and_then(|number| u32::try_from(number).ok())
    }

    pub(crate) fn set_transfer(&self, number: u32) {
        self.transfer.store(u64::from(number) + 1, Ordering::Release);
    }

    /// Marks the operation as completed.
    pub fn finish(&self) {
        self.state.store(FINISHED, Ordering::Release);
    }

    /// Marks the operation as failed.
    pub fn fail(&self, error: RunError) {
        *self.error.lock() = Some(error);
        self.state.store(FAILED, Ordering::Release);
    }
}

/// A group that has failed.
#[derive(Debug)]
pub struct Failure {
    /// The communicator.
    pub group: u32,
    /// The cause.
    pub error: RunError,
}

/// An operation that has completed or failed.
pub struct Completion {
    /// The caller's handle.
    pub handle: Arc<Handle>,
    /// The communicator.
    pub group: u32,
    /// Its number; `None` for a send or receive.
    pub seq: Option<u32>,
    /// The owner of its memory.
    pub keep: Option<Box<dyn Any + Send>>,
}
