//! Messages in flight, each with its own buffer, so that nothing else can access the buffer while MPI may.
#![allow(unsafe_code, reason = "MPI is given addresses of buffers that stay where they are until it is done with them")]
use std::sync::Arc;

use super::abi::Handle;
use super::calls::{Mpi, Results};

/// A fixed number of requests of one communicator, each with a buffer.
pub(super) struct Requests {
    mpi: Arc<Mpi>,
    comm: Handle,
    handles: Vec<Handle>,
    buffers: Vec<Box<[u8]>>,
    results: Results,
}

impl Requests {
    /// Creates `count` requests with buffers of this many bytes. The system allocates only pages that are used.
    pub fn new(mpi: &Arc<Mpi>, comm: Handle, count: usize, bytes: usize) -> Requests {
        let buffers = (0..count).map(|_| vec![0u8; bytes].into_boxed_slice()).collect();
        Requests { handles: vec![mpi.none(); count], buffers, results: Results::default(), mpi: mpi.clone(), comm }
    }

    /// Whether this slot is free.
    pub fn idle(&self, at: usize) -> bool {
        self.handles[at] == self.mpi.none()
    }

    pub fn any(&self) -> bool {
        (0..self.handles.len()).any(|at| !self.idle(at))
    }

    /// Its buffer. Panics while a message is in flight.
    pub fn buffer(&mut self, at: usize) -> &mut [u8] {
        assert!(self.idle(at), "a buffer belongs to MPI while its message is in flight");
        &mut self.buffers[at]
    }

    /// Begins to send the first bytes of a slot's buffer to a rank.
    ///
    /// # Errors
    /// MPI's error.
    pub fn send(&mut self, at: usize, bytes: usize, rank: u32) -> Result<(), String> {
        let buffer = &self.buffer(at)[..bytes];
        let (address, length) = (buffer.as_ptr(), buffer.len());
        // SAFETY: the buffer is boxed and not accessed while the request is in flight, and `drop` leaks it.
        self.handles[at] = unsafe { self.mpi.send(address, length, rank, self.comm)? };
        Ok(())
    }

    /// Begins to receive from a rank into a slot's buffer.
    ///
    /// # Errors
    /// MPI's error.
    pub fn receive(&mut self, at: usize, rank: u32) -> Result<(), String> {
        let buffer = self.buffer(at);
        let (address, length) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: as in `send`.
        self.handles[at] = unsafe { self.mpi.receive(address, length, rank, self.comm)? };
        Ok(())
    }

    /// Lets MPI make progress; reports each completed message with its slot and length.
    pub fn test(&mut self, over: impl FnMut(Option<usize>, Result<usize, String>)) {
        self.mpi.test_some(&mut self.results, &mut self.handles, over);
    }

    /// Cancels a receive.
    pub fn cancel(&mut self, at: usize) {
        if !self.idle(at) {
            self.mpi.cancel(&mut self.handles[at]);
        }
    }
}

impl Drop for Requests {
    /// Leaks buffers that MPI may still access.
    fn drop(&mut self) {
        for (at, buffer) in std::mem::take(&mut self.buffers).into_iter().enumerate() {
            if !self.idle(at) {
                std::mem::forget(buffer);
            }
        }
    }
}
