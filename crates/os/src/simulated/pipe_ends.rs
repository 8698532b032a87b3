//! Pipes, as wakers use them: non-blocking.
use std::collections::VecDeque;

use rustix::event::PollFlags;
use rustix::io::{Errno, Result};
pub use rustix::pipe::PipeFlags;

use super::fd::{AsFd, OwnedFd};
use super::poll::{Kind, Watch};
use super::world::{point, with};

/// Bytes that a pipe holds (pipe(7)).
const ROOM: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Pipe {
    bytes: VecDeque<u8>,
    pub readers: usize,
    pub writers: usize,
    pub watch: Watch,
}

impl Pipe {
    pub fn readable(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.bytes.is_empty());
        flags.set(PollFlags::HUP, self.writers == 0);
        flags
    }
}

/// A reader and a writer.
///
/// # Errors
/// None.
pub fn pipe_with(_flags: PipeFlags) -> Result<(OwnedFd, OwnedFd)> {
    Ok(with(|world| {
        world.pipes.push(Pipe { readers: 1, writers: 1, ..Pipe::default() });
        let pipe = world.pipes.len() - 1;
        (world.open(Kind::PipeReader(pipe)), world.open(Kind::PipeWriter(pipe)))
    }))
}

/// Reads from a pipe.
///
/// # Errors
/// EAGAIN: it is empty.
pub fn read<Fd: AsFd>(fd: Fd, into: &mut [u8]) -> Result<usize> {
    point();
    with(|world| {
        world.call();
        let Some(Kind::PipeReader(pipe)) = world.kind(fd.as_fd().number()) else { return Err(Errno::BADF) };
        let pipe = &mut world.pipes[pipe];
        if pipe.bytes.is_empty() {
            return if pipe.writers == 0 { Ok(0) } else { Err(Errno::AGAIN) };
        }
        let count = into.len().min(pipe.bytes.len());
        for byte in &mut into[..count] {
            *byte = pipe.bytes.pop_front().unwrap_or_default();
        }
        Ok(count)
    })
}

/// Writes to a pipe.
///
/// # Errors
/// EAGAIN: it is full. EPIPE: nobody reads it.
pub fn write<Fd: AsFd>(fd: Fd, bytes: &[u8]) -> Result<usize> {
    point();
    with(|world| {
        world.call();
        let Some(Kind::PipeWriter(number)) = world.kind(fd.as_fd().number()) else { return Err(Errno::BADF) };
        let pipe = &mut world.pipes[number];
        if pipe.readers == 0 {
            return Err(Errno::PIPE);
        }
        let count = bytes.len().min(ROOM - pipe.bytes.len());
        if count == 0 {
            return Err(Errno::AGAIN);
        }
        pipe.bytes.extend(&bytes[..count]);
        world.changed(Kind::PipeReader(number));
        Ok(count)
    })
}
