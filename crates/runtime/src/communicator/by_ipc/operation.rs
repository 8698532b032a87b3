//! An operation as its caller sees it.
use paceline_cuda::{CallerStream, Region};
use paceline_os::sync::atomic::Ordering;
use paceline_os::time::Instant;
use paceline_transport::error::Result;

use super::{IpcOperation, Told, failed};
use crate::communicator::on_device::Landing;

impl IpcOperation {
    /// Whether the device has the result, or it has failed.
    #[must_use]
    pub fn done(&self) -> bool {
        match &*self.state.lock() {
            Told::NotYet => self.met.result().is_err(),
            Told::All(_) => self.done.happened().unwrap_or(true),
            Told::Failed(_) => true,
        }
    }

    /// Whether all ranks have called it.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.met.done()
    }

    pub(in super::super) fn number(&self) -> u64 {
        self.met.number.load(Ordering::Relaxed)
    }

    /// Waits until all ranks have called it and the stream has been told; what the caller's stream is told from then on sees
    /// the result. `false`: not before this time.
    ///
    /// # Errors
    /// Why it failed.
    pub fn land(&self, until: Option<Instant>) -> Result<bool> {
        loop {
            self.group.tell();
            match &*self.state.lock() {
                Told::All(_) => break,
                Told::Failed(error) => {
                    return Err(self.group.shared.failure_of(self.group.id).unwrap_or_else(|| error.clone()));
                }
                Told::NotYet => {}
            }
            // Those before it come first.
            let first = self.group.under_way.lock().waiting.front().map(|first| first.met.clone());
            let Some(first) = first else { continue };
            if !self.group.shared.wait(&first, until) {
                return Ok(false);
            }
        }
        if self.group.broken.load(Ordering::SeqCst) {
            return Err(self.group.failure());
        }
        self.hold(self.stream)?;
        Ok(true)
    }

    /// Once it has landed: what this stream is told from now on sees the result.
    ///
    /// # Errors
    /// The driver's error.
    pub fn hold(&self, stream: CallerStream) -> Result<()> {
        // SAFETY: it is the caller's.
        unsafe { self.done.hold(stream) }.map_err(failed)
    }
}

impl Landing for IpcOperation {
    fn group(&self) -> Option<u32> {
        Some(self.group.id)
    }

    fn writes_into(&self, regions: &[Region]) -> bool {
        paceline_cuda::overlap(&self.what.writes, regions)
    }

    fn land(&self) -> Result<()> {
        IpcOperation::land(self, None).map(drop)
    }
}
