//! A virtual world in place of the system.
pub mod fd;
mod memory;
pub mod net;
mod pipe_ends;
mod poll;
pub mod process;
mod random_bits;
mod stack;
mod stream;
pub mod sync;
pub mod thread;
pub mod time;
mod udp;
pub mod world;

pub use random_bits::Chance;
pub use world::{limit, mutant};

/// Reading and writing descriptors.
pub mod io {
    pub use super::pipe_ends::{read, write};
    pub use rustix::io::Errno;
}

/// Waiting for descriptors.
pub mod event {
    pub use super::poll::{PollFd, epoll, poll};
    pub use rustix::event::{PollFlags, Timespec};
}

/// Pipes.
pub mod pipe {
    pub use super::pipe_ends::{PipeFlags, pipe_with};
}

/// Anonymous files.
pub mod fs {
    pub use super::memory::{FallocateFlags, MemfdFlags, fallocate, fstat, memfd_create};
}

/// Mapping files into memory.
pub mod mm {
    pub use super::memory::{MapFlags, ProtFlags, mmap, munmap};
}

/// Bytes of the world's chance.
pub mod random {
    use super::world::with;

    /// Never made.
    pub type Error = std::convert::Infallible;

    /// Fills it.
    ///
    /// # Errors
    /// None.
    pub fn fill(bytes: &mut [u8]) -> Result<(), std::io::Error> {
        with(|world| {
            for part in bytes.chunks_mut(8) {
                let bits = world.chance().bits().to_le_bytes();
                part.copy_from_slice(&bits[..part.len()]);
            }
        });
        Ok(())
    }
}
