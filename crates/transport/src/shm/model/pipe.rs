//! A modeled pipe: a sleeper that nobody wakes is a deadlock, which loom reports.
use std::io;
use std::sync::Arc;

use loom::sync::{Condvar, Mutex};

/// An end of a pipe.
#[derive(Clone)]
pub struct OwnedFd(Arc<(Mutex<usize>, Condvar)>);

/// Has no effect.
pub struct PipeFlags;

impl PipeFlags {
    pub const CLOEXEC: PipeFlags = PipeFlags;
    pub const NONBLOCK: PipeFlags = PipeFlags;
}

impl std::ops::BitOr for PipeFlags {
    type Output = PipeFlags;

    fn bitor(self, _: PipeFlags) -> PipeFlags {
        self
    }
}

impl OwnedFd {
    /// Sleeps until the pipe holds something.
    #[cfg(test)]
    pub fn wait(&self) {
        let (held, filled) = &*self.0;
        let mut held = held.lock().unwrap();
        while *held == 0 {
            held = filled.wait(held).unwrap();
        }
    }
}

/// Both ends.
pub fn pipe_with(_: PipeFlags) -> io::Result<(OwnedFd, OwnedFd)> {
    let pipe = OwnedFd(Arc::new((Mutex::new(0), Condvar::new())));
    Ok((pipe.clone(), pipe))
}

/// Takes what the pipe holds, never waiting.
pub fn read(pipe: &OwnedFd, to: &mut [u8]) -> io::Result<usize> {
    let mut held = pipe.0.0.lock().unwrap();
    let taken = (*held).min(to.len());
    *held -= taken;
    Ok(taken)
}

/// Adds bytes.
pub fn write(pipe: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    *pipe.0.0.lock().unwrap() += bytes.len();
    pipe.0.1.notify_all();
    Ok(bytes.len())
}
