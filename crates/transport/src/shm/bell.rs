//! Waking a rank that sleeps: a pipe, because a sleeper waits for sockets as well.
//!
//! The order of events on both sides makes a lost wake-up impossible: the sleeper sets its flag, then looks once more,
//! then sleeps; the other publishes, then looks at the flag. A full fence stands between the two on either side.
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use super::segment::Segment;

/// A rank's own bell.
pub struct Bell {
    segment: Arc<Segment>,
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Bell {
    /// Makes the pipe.
    ///
    /// # Errors
    /// Too many open files.
    pub fn new(segment: Arc<Segment>) -> std::io::Result<Bell> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Bell { segment, reader, writer })
    }

    /// The descriptor that peers open through `/proc/PID/fd`.
    #[must_use]
    pub fn address(&self) -> i32 {
        self.writer.as_raw_fd()
    }

    /// What becomes readable when it rings.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Announces that its owner will sleep. The owner must look for work once more after this.
    pub fn about_to_sleep(&self) {
        self.segment.sleeping().store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The owner is awake; empties the pipe.
    pub fn awake(&self) {
        self.segment.sleeping().store(0, Ordering::SeqCst);
        let mut rings = [0u8; 64];
        while rustix::io::read(&self.reader, &mut rings).is_ok_and(|n| n == rings.len()) {}
    }

    /// Another thread of the same process rings.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.segment.sleeping().load(Ordering::Relaxed) == 1 {
            self.segment.sleeping().store(0, Ordering::Relaxed);
            let _ = rustix::io::write(&self.writer, &[1]);
        }
    }
}

/// A peer's bell.
#[derive(Clone)]
pub struct Ringer {
    segment: Arc<Segment>,
    pipe: Arc<File>,
}

impl Ringer {
    /// Opens the pipe of the peer that owns this segment.
    ///
    /// # Errors
    /// The peer has ended.
    pub fn open(segment: Arc<Segment>, pid: u32, fd: i32) -> std::io::Result<Ringer> {
        let flags = OFlags::NONBLOCK.bits() as i32;
        let pipe = OpenOptions::new().write(true).custom_flags(flags).open(format!("/proc/{pid}/fd/{fd}"))?;
        Ok(Ringer { segment, pipe: Arc::new(pipe) })
    }

    /// Wakes the peer if it sleeps. What it is to see was published before. A pipe that is full has rung already.
    #[inline]
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.segment.sleeping().load(Ordering::Relaxed) == 1 {
            self.segment.sleeping().store(0, Ordering::Relaxed);
            let _ = rustix::io::write(&*self.pipe, &[1]);
        }
    }
}
