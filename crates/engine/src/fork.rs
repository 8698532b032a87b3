//! What a child process forked from a rank must release.
#![allow(unsafe_code, reason = "descriptors are replaced behind the back of their owners, which live on in the parent")]
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};

/// Redirects these descriptors to /dev/null, so that the connections end when the parent ends. They stay open:
/// otherwise other files would get their numbers, and their owners would close those.
pub(crate) fn release(descriptors: &[i32]) {
    let Ok(null) = File::open("/dev/null") else { return };
    for &fd in descriptors {
        // SAFETY: the number belongs to a socket that the engine keeps open, or did when the process was forked; this
        // temporary owner does not close it.
        let mut owner = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let _ = rustix::io::dup2(&null, &mut owner);
    }
}
