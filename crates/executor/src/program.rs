//! Programs of ranks in an operation, in the vocabulary of the schedules.
//!
//! An all-reduce is a strategy's schedule. The other operations are programs of their own over the same steps, so that
//! one executor runs them all. Elements are counted over the operation's whole
//! [`Space`](paceline_transport::space::Space): input and output may be different parts of it.
mod barrier;
mod broadcast;
mod direct;
mod exchange;
mod native;
mod reduce;

use std::ops::Range;

pub use barrier::Barrier;
pub use broadcast::Broadcast;
pub use direct::{DirectAllGather, DirectAllReduce, DirectReduceScatter};
pub use exchange::{Exchange, SendRecv};
pub use native::{Native, OffloadRequest};
use paceline_os::sync::Arc;
use paceline_schedule::{Bucket, Op, Piece, Schedule, Step};
pub use reduce::{Reduce, ReduceScatter};

/// The steps of a role, by lane and program counter, as in a [`Schedule`].
pub trait Program: Send {
    /// Number of lanes. A role may have no part in some of them.
    fn lanes(&self) -> u32;

    /// Step `pc` of `role` in `lane`.
    fn step(&self, role: u32, lane: u32, pc: u32) -> Step;

    /// Number of lanes of this role that reach the barrier.
    fn barriers(&self, _role: u32) -> u32 {
        0
    }

    /// Number of roles, if there can be a barrier.
    fn roles(&self) -> u32 {
        0
    }

    /// The roles that are servers.
    fn servers(&self) -> Range<u32> {
        0..0
    }

    /// Elements that go from one role to another, one of which this process plays; `None` if that follows from what all
    /// ranks agree on.
    fn passes(&self, _from: u32, _to: u32) -> Option<u64> {
        None
    }

    /// Whether sums stream through this role in bounded memory, one lane at a time.
    fn streams(&self, _role: u32) -> bool {
        false
    }

    /// Request to the offload library once all lanes are done.
    fn offload(&self) -> Option<OffloadRequest> {
        None
    }

    /// Whether the receive at `pc` produces the final result at `role`, which is then only copied.
    fn completes(&self, _role: u32, _lane: u32, _pc: u32) -> bool {
        false
    }
}

/// A strategy's schedule of one bucket.
pub struct Scheduled {
    /// The strategy.
    pub schedule: Arc<dyn Schedule>,
    /// The bucket to synchronize.
    pub bucket: Bucket,
}

impl Program for Scheduled {
    fn lanes(&self) -> u32 {
        self.schedule.lanes(&self.bucket)
    }

    fn step(&self, role: u32, lane: u32, pc: u32) -> Step {
        self.schedule.step(&self.bucket, role, lane, pc)
    }

    fn barriers(&self, role: u32) -> u32 {
        self.schedule.barriers(&self.bucket, role)
    }

    fn roles(&self) -> u32 {
        self.schedule.roles().total()
    }

    fn servers(&self) -> Range<u32> {
        let roles = self.schedule.roles();
        roles.workers..roles.workers + roles.servers
    }

    fn streams(&self, role: u32) -> bool {
        role >= self.servers().end
    }

    /// The role that combines last receives nothing of the piece afterwards. A switch does so if nobody combines again
    /// what it sends: neither a server nor a switch above it.
    fn completes(&self, role: u32, lane: u32, pc: u32) -> bool {
        let Step::Recv { op: Op::Reduce | Op::AssignThenReduce, piece, .. } = self.step(role, lane, pc) else {
            return false;
        };
        if role >= self.servers().end {
            let Step::Send { to, slot: sent, .. } = self.step(role, lane, pc + 1) else { return false };
            let steps = (0..).map(|pc| self.step(to.get(0), lane, pc)).take_while(|step| *step != Step::Done);
            let mut ops = steps.filter_map(|step| match step {
                Step::Recv { slot, op, .. } if slot == sent => Some(op),
                _ => None,
            });
            return ops.next() == Some(Op::Assign);
        }
        let later = (pc + 1..).map(|pc| self.step(role, lane, pc)).take_while(|step| *step != Step::Done);
        let mut received =
            later.filter_map(|step| if let Step::Recv { piece, .. } = step { Some(piece) } else { None });
        received.all(|other| other.apart(piece))
    }
}

/// Number of pieces of at most `size` elements.
fn chunks(len: u64, size: u64) -> u64 {
    len.div_ceil(size)
}

/// Part `index` of a piece that is cut every `chunk` elements, if it has so many.
fn part(piece: Piece, index: u64, chunk: u64) -> Option<Piece> {
    let from = index * chunk;
    (from < piece.len).then(|| Piece { off: piece.off + from, len: chunk.min(piece.len - from) })
}

/// Limits a lane count to 31 bits: one of the 32 bits is reserved.
fn lane_count(lanes: u64) -> u32 {
    lanes.min(u64::from(u32::MAX / 2)) as u32
}
