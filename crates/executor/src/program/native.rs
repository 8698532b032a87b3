//! Operations that the offload library runs. All ranks first meet at a barrier whose messages carry each rank's signature
//! of the operation. That reports mismatched calls, and it keeps the wait for a missing rank where an operation can still be
//! abandoned. MPI can do neither.
use paceline_os::sync::Arc;
use paceline_schedule::Step;
use paceline_transport::offload::DeviceCall;

use super::{Barrier, Program};

/// Request to the library once all ranks have met.
#[derive(Clone)]
pub enum OffloadRequest {
    /// Create a communicator for the group, and this many duplicates for later groups of the same ranks.
    Join(usize),
    /// All-reduce the memory of the operation.
    AllReduce,
    /// Run a collective on the memory of a device.
    OnDevice(Arc<DeviceCall>),
}

/// A barrier, then a call of the library.
pub struct Native {
    /// Where all ranks meet.
    pub barrier: Barrier,
    /// The request that follows.
    pub then: OffloadRequest,
}

impl Program for Native {
    fn lanes(&self) -> u32 {
        self.barrier.lanes()
    }

    fn step(&self, role: u32, lane: u32, pc: u32) -> Step {
        self.barrier.step(role, lane, pc)
    }

    fn offload(&self) -> Option<OffloadRequest> {
        Some(self.then.clone())
    }
}
