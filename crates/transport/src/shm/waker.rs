//! Wakes a sleeping rank through a pipe, because a sleeper also polls sockets.
//!
//! No wake-up can be lost: the sleeper sets its flag, checks for work once more, then sleeps; the other side publishes, then
//! reads the flag. On both sides a full fence separates the two steps.
#[cfg(not(loom))]
use paceline_os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
#[cfg(not(loom))]
use paceline_os::io::{read, write};
#[cfg(not(loom))]
use paceline_os::pipe::{PipeFlags, pipe_with};
#[cfg(not(loom))]
use paceline_os::process::open_descriptor;
use paceline_os::sync::Arc;
use paceline_os::sync::atomic::{Ordering, fence};

#[cfg(loom)]
use super::model::pipe::{OwnedFd, PipeFlags, pipe_with, read, write};
use super::segment::Segment;

/// The waker of this rank.
pub struct Waker {
    segment: Arc<Segment>,
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Waker {
    /// Creates the pipe.
    ///
    /// # Errors
    /// Too many open files.
    pub fn new(segment: Arc<Segment>) -> std::io::Result<Waker> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Waker { segment, reader, writer })
    }

    #[cfg(loom)]
    pub(super) fn pipe(&self) -> &OwnedFd {
        &self.reader
    }

    /// The descriptor that peers open through `/proc/PID/fd`.
    #[cfg(not(loom))]
    #[must_use]
    pub fn address(&self) -> i32 {
        self.writer.as_raw_fd()
    }

    /// Becomes readable when the rank is woken.
    #[cfg(not(loom))]
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Announces that the owner is about to sleep. The owner must check for work once more after this call.
    pub fn about_to_sleep(&self) {
        self.segment.sleeping().store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Announces that the owner is awake, and drains the pipe.
    pub fn awake(&self) {
        self.segment.sleeping().store(0, Ordering::SeqCst);
        let mut drained = [0u8; 64];
        while read(&self.reader, &mut drained).is_ok_and(|n| n == drained.len()) {}
    }

    /// Wakes the owner from another thread of its process.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.segment.sleeping().load(Ordering::Relaxed) == 1 {
            self.segment.sleeping().store(0, Ordering::Relaxed);
            let _ = write(&self.writer, &[1]);
        }
    }
}

/// Wakes a peer.
#[derive(Clone)]
pub struct PeerWaker {
    segment: Arc<Segment>,
    pipe: Arc<OwnedFd>,
}

impl PeerWaker {
    #[cfg(loom)]
    pub(super) fn of(waker: &Waker) -> PeerWaker {
        PeerWaker { segment: waker.segment.clone(), pipe: Arc::new(waker.writer.clone()) }
    }

    /// Opens the pipe of the peer that owns this segment.
    ///
    /// # Errors
    /// The peer has ended.
    #[cfg(not(loom))]
    pub fn open(segment: Arc<Segment>, pid: u32, fd: i32) -> std::io::Result<PeerWaker> {
        Ok(PeerWaker { segment, pipe: Arc::new(open_descriptor(pid, fd, false)?) })
    }

    /// Wakes the peer if it sleeps. The caller must have published its work before. A full pipe wakes the peer anyway.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.segment.sleeping().load(Ordering::Relaxed) == 1 {
            self.segment.sleeping().store(0, Ordering::Relaxed);
            let _ = write(&*self.pipe, &[1]);
        }
    }
}
