//! Messages under way, each with the memory it owns: while MPI may touch it, nobody else can.
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
    /// `count` of them, with so many bytes each. The system gives memory for what is used of it.
    pub fn new(mpi: &Arc<Mpi>, comm: Handle, count: usize, bytes: usize) -> Requests {
        let buffers = (0..count).map(|_| vec![0u8; bytes].into_boxed_slice()).collect();
        Requests { handles: vec![mpi.none(); count], buffers, results: Results::default(), mpi: mpi.clone(), comm }
    }

    /// Whether nothing is under way in this place.
    pub fn idle(&self, at: usize) -> bool {
        self.handles[at] == self.mpi.none()
    }

    pub fn any(&self) -> bool {
        (0..self.handles.len()).any(|at| !self.idle(at))
    }

    /// Its buffer. Panics while something is under way.
    pub fn buffer(&mut self, at: usize) -> &mut [u8] {
        assert!(self.idle(at), "a buffer belongs to MPI while its message is under way");
        &mut self.buffers[at]
    }

    /// Begins to send the first bytes of a buffer to a rank.
    ///
    /// # Errors
    /// What MPI says.
    pub fn send(&mut self, at: usize, bytes: usize, rank: u32) -> Result<(), String> {
        let buffer = &self.buffer(at)[..bytes];
        let (address, length) = (buffer.as_ptr(), buffer.len());
        // SAFETY: the buffer is in a box that is not touched while the request is under way, and `drop` lets it be.
        self.handles[at] = unsafe { self.mpi.send(address, length, rank, self.comm)? };
        Ok(())
    }

    /// Begins to receive into a buffer from a rank.
    ///
    /// # Errors
    /// What MPI says.
    pub fn receive(&mut self, at: usize, rank: u32) -> Result<(), String> {
        let buffer = self.buffer(at);
        let (address, length) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: as in `send`.
        self.handles[at] = unsafe { self.mpi.receive(address, length, rank, self.comm)? };
        Ok(())
    }

    /// Has MPI go on; tells of each message that is over its place and its bytes.
    pub fn test(&mut self, over: impl FnMut(Option<usize>, Result<usize, String>)) {
        self.mpi.test_some(&mut self.results, &mut self.handles, over);
    }

    /// Takes a receive back.
    pub fn cancel(&mut self, at: usize) {
        if !self.idle(at) {
            self.mpi.cancel(&mut self.handles[at]);
        }
    }
}

impl Drop for Requests {
    /// What MPI may still touch stays.
    fn drop(&mut self) {
        for (at, buffer) in std::mem::take(&mut self.buffers).into_iter().enumerate() {
            if !self.idle(at) {
                std::mem::forget(buffer);
            }
        }
    }
}
