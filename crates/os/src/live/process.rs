//! This process, and others of the host.
#![allow(unsafe_code, reason = "descriptors are replaced behind the back of their owners, which live on in the parent")]
use std::fmt::Arguments;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
pub use rustix::process::Pid;
pub use std::process::id;

/// The name of this host.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Identifies this boot of this machine, its process namespace and its network namespace. Ranks of one machine with
/// separate networks are meant to use them (`paceline emulate`).
#[must_use]
pub fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = |kind| std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
    format!("{} {} {}", boot.trim(), namespace("pid").display(), namespace("net").display())
}

/// Opens the file behind another process's descriptor; without blocking, if it is a pipe.
///
/// # Errors
/// The process has ended, belongs to another user, or is in another namespace.
pub fn open_descriptor(pid: u32, fd: i32, read: bool) -> io::Result<OwnedFd> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let path = format!("/proc/{pid}/fd/{fd}");
    Ok(OpenOptions::new().read(read).write(true).custom_flags(flags).open(path)?.into())
}

/// The number by which the kernel knows a process.
#[inline]
#[must_use]
pub fn kernel_id(pid: i32) -> i32 {
    pid
}

/// Redirects these descriptors of a forked child to /dev/null, so that the connections end when the parent ends. They
/// stay open: otherwise other files would get their numbers, and their owners would close those.
pub fn release(descriptors: &[i32]) {
    let Ok(null) = File::open("/dev/null") else { return };
    for &fd in descriptors {
        // SAFETY: the number belongs to a socket that the engine keeps open, or did when the process was forked; this
        // temporary owner does not close it.
        let mut owner = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let _ = rustix::io::dup2(&null, &mut owner);
    }
}

/// Writes a line to standard error, if it is open.
pub fn report(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}
