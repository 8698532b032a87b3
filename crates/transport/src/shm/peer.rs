//! The memory of another process.
#![allow(unsafe_code, reason = "a system call that rustix does not have")]
use std::io;

use paceline_os::process::kernel_id;

/// Length of the random token in a segment's header.
pub(super) const TOKEN_BYTES: usize = 16;

/// A process whose memory this one may read: it has the same user, and nothing forbids it (Yama's `ptrace_scope`, a
/// container's system-call filter).
///
/// Every read also reads its token: a program that replaced this one, or reused its process id, does not have it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerMemory {
    pid: i32,
    token_at: u64,
    token: [u8; TOKEN_BYTES],
}

fn part(address: usize, length: usize) -> libc::iovec {
    libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length }
}

impl PeerMemory {
    /// Tries to read the token at its known address.
    pub fn probe(pid: u32, token_at: u64, token: [u8; TOKEN_BYTES]) -> Option<PeerMemory> {
        let peer = PeerMemory { pid: i32::try_from(pid).ok()?, token_at, token };
        peer.read(token_at, &mut [0; TOKEN_BYTES]).is_ok().then_some(peer)
    }

    /// Copies from the process.
    ///
    /// # Errors
    /// The process has ended (ESRCH), has nothing at the address (EFAULT), or runs another program.
    pub fn read(self, address: u64, to: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < to.len() {
            let rest = &mut to[done..];
            let length = rest.len();
            let pid = kernel_id(self.pid);
            let mut token = [0; TOKEN_BYTES];
            let local = [part(rest.as_mut_ptr() as usize, length), part(token.as_mut_ptr() as usize, TOKEN_BYTES)];
            let from = address.wrapping_add(done as u64) as usize;
            let remote = [part(from, length), part(self.token_at as usize, TOKEN_BYTES)];
            // SAFETY: the kernel writes only `rest` and `token`, and checks the other process's addresses itself.
            let copied = unsafe { libc::process_vm_readv(pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
            match usize::try_from(copied) {
                Err(_) => return Err(io::Error::last_os_error()),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(all) if all == length + TOKEN_BYTES && token == self.token => done = to.len(),
                Ok(all) if all >= length => return Err(io::Error::other("the process runs another program")),
                Ok(some) => done += some,
            }
        }
        Ok(())
    }
}
