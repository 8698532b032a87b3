//! The system itself.
pub mod process;

/// A limit of this name: simulations choose smaller ones.
#[inline]
#[must_use]
pub const fn limit(_name: &str, usual: usize) -> usize {
    usual
}

/// Whether a fault that was mended once is put back: only simulations do that, to show that they would find it.
#[inline]
#[must_use]
pub const fn mutant(_name: &str) -> bool {
    false
}

/// Instants and durations.
pub mod time {
    use rustix::time::{ClockId, Timespec, clock_gettime};
    pub use std::time::{Duration, Instant};

    fn nanoseconds(time: Timespec) -> u64 {
        time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
    }

    /// Nanoseconds on the monotonic clock, which all processes of a host share.
    #[must_use]
    pub fn monotonic() -> u64 {
        nanoseconds(clock_gettime(ClockId::Monotonic))
    }

    /// The time since 1970 (UTC).
    #[must_use]
    pub fn epoch() -> Duration {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Realtime);
        Duration::new(tv_sec.cast_unsigned(), tv_nsec as u32)
    }

    /// CPU time of the calling thread in nanoseconds.
    #[must_use]
    pub fn of_thread() -> u64 {
        nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
    }
}

/// Threads and cores.
pub mod thread {
    pub use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};
    pub use std::hint::spin_loop;
    pub use std::thread::{Builder, JoinHandle, available_parallelism, sleep, spawn, yield_now};

    /// The threads of this process, and those of the processes that it has forked: proc(5), `task` and `children`.
    #[must_use]
    pub fn family() -> Vec<super::process::Pid> {
        let numbers = |folder: &str| -> Vec<i32> {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
        };
        let mut threads = numbers("/proc/self/task");
        for thread in threads.clone() {
            let line = std::fs::read_to_string(format!("/proc/self/task/{thread}/children")).unwrap_or_default();
            let children: Vec<i32> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            threads.extend(children.into_iter().flat_map(|child| numbers(&format!("/proc/{child}/task"))));
        }
        threads.into_iter().filter_map(super::process::Pid::from_raw).collect()
    }

    /// Whether this thread is scheduled by SCHED_FIFO or SCHED_RR: the 41st field of its line in /proc (proc(5)). The
    /// name, which may hold blanks, is the second, in brackets.
    #[must_use]
    pub fn is_real_time() -> bool {
        let line = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
        let policy = line.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(38));
        matches!(policy, Some("1" | "2"))
    }
}

/// Locks, condition variables and atomics.
pub mod sync {
    #[cfg(loom)]
    pub use loom::sync::atomic;
    pub use parking_lot::{Condvar, Mutex, MutexGuard};
    #[cfg(not(loom))]
    pub use std::sync::atomic;
    pub use std::sync::{Arc, OnceLock, Weak, mpsc};
}

/// Descriptors.
pub mod fd {
    pub use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
}

/// Reading and writing descriptors.
pub mod io {
    pub use rustix::io::{Errno, read, write};
}

/// Waiting for descriptors.
pub mod event {
    pub use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
}

/// Pipes.
pub mod pipe {
    pub use rustix::pipe::{PipeFlags, pipe_with};
}

/// Sockets.
pub mod net {
    pub use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
    pub use rustix::net::sockopt;
    pub use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};
    pub use std::net::{
        IpAddr, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream, ToSocketAddrs, UdpSocket,
    };
    pub use std::os::unix::net::UnixStream;

    /// Bytes written that the peer's system has not acknowledged: SIOCOUTQ, tcp(7).
    ///
    /// # Errors
    /// It is no connection.
    #[allow(unsafe_code, reason = "no safe interface offers this ioctl")]
    pub fn unacknowledged(stream: &TcpStream) -> std::io::Result<usize> {
        use rustix::ioctl::{Getter, Opcode, ioctl};
        // asm-generic/ioctls.h, which x86-64 and aarch64 share.
        const SIOCOUTQ: Opcode = 0x5411;
        // SAFETY: this ioctl of a connection writes one int.
        let bytes = unsafe { ioctl(stream, Getter::<SIOCOUTQ, i32>::new()) }?;
        Ok(usize::try_from(bytes).unwrap_or(0))
    }
}

/// Anonymous files.
pub mod fs {
    pub use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fstat, memfd_create};
}

/// Mapping files into memory.
pub mod mm {
    pub use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
}

/// Unpredictable bytes.
pub mod random {
    pub use getrandom::{Error, fill};
}
