//! A job's messages as its channels share them, with what a sleeper polls.
use std::io;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::messages::Messages;

/// The messages, and descriptors that a sleeper polls.
pub(super) struct Shared {
    /// `None` once they have ended.
    messages: Mutex<Option<Messages>>,
    /// Readable when an armed worker has something to do.
    pub descriptor: OwnedFd,
    /// Always readable.
    pub ready: OwnedFd,
    /// A forked child must not touch what belongs to its parent.
    process: u32,
}

impl Shared {
    pub fn new(messages: Messages, descriptor: OwnedFd) -> io::Result<Shared> {
        let ready = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Shared { messages: Mutex::new(Some(messages)), descriptor, ready, process: std::process::id() })
    }

    pub fn with<T>(&self, run: impl FnOnce(&mut Messages) -> T) -> T {
        run(self.messages.lock().as_mut().expect("they end when the last channel is dropped"))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(messages) = self.messages.get_mut().take() else { return };
        if self.process == std::process::id() { messages.end() } else { std::mem::forget(messages) }
    }
}
