//! The memory of another process.
#![allow(unsafe_code, reason = "a system call that rustix does not have")]
use std::io;

/// A process whose memory this one may read, as the system sees it: the same user, and no rule against it (Yama's
/// `ptrace_scope`, a container's filter of system calls).
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerMemory {
    pid: i32,
}

impl PeerMemory {
    /// Tries it with bytes that are known to stand there.
    pub fn probe(pid: u32, address: u64, bytes: &[u8]) -> Option<PeerMemory> {
        let peer = PeerMemory { pid: i32::try_from(pid).ok()? };
        let mut found = vec![0; bytes.len()];
        (peer.read(address, &mut found).is_ok() && found == bytes).then_some(peer)
    }

    /// Copies from the process.
    ///
    /// # Errors
    /// The process has ended (ESRCH), or has nothing there (EFAULT).
    pub fn read(self, address: u64, to: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < to.len() {
            let rest = &mut to[done..];
            let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let from = address.wrapping_add(done as u64) as usize;
            let remote = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: rest.len() };
            // SAFETY: the kernel writes `rest` alone, and checks the other process's addresses itself.
            let copied = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
            match copied {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more if more > 0 => done += more.cast_unsigned(),
                _ => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }
}
