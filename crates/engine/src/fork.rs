//! What a child process that was forked from a rank must let go of.
#![allow(unsafe_code, reason = "descriptors are replaced behind the back of their owners, which live on in the parent")]
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};

/// Lets these descriptors of this process point to /dev/null, so that the connections end when the parent ends. They
/// stay open, so that nothing else gets their numbers before their owners, which never run here, would close them.
pub(crate) fn release(descriptors: &[i32]) {
    let Ok(null) = File::open("/dev/null") else { return };
    for &fd in descriptors {
        // SAFETY: the number is a socket's that the engine keeps open, or was when the process was forked; it is not closed by this
        // temporary owner.
        let mut owner = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let _ = rustix::io::dup2(&null, &mut owner);
    }
}
