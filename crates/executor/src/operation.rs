//! An operation in flight.
use std::any::Any;
use std::collections::VecDeque;

use paceline_kernels::dtype::Dtype;
use paceline_kernels::reduce::{Kernel, kernel, scale};
use paceline_os::sync::Arc;
use paceline_transport::error::RunError;
use paceline_transport::header::{FragmentHeader, Signature};
use paceline_transport::offload::OffloadTicket;
use paceline_transport::space::Space;
use serde::{Deserialize, Serialize};

use super::Limits;
use super::call::Call;
use super::group_view::GroupView;
use super::lane::{Lane, State, ZeroCopySend};
use crate::handle::Handle;
use crate::program::{OffloadRequest, Program};

/// How much work of a communicator is in flight at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depth {
    /// Lanes of a part.
    pub window: u32,
    /// Lanes of all operations; the oldest operations come first.
    pub lanes: usize,
}

impl Depth {
    /// For ranks that share memory: few lanes, so that what is received, combined and forwarded stays in the cache.
    pub const NEAR: Depth = Depth { window: 8, lanes: 16 };

    /// Over a network: enough to keep links busy while pieces wait for others. A ring of W workers needs W; a tree needs
    /// at least one for every hop up and down.
    pub fn far(ranks: usize) -> Depth {
        Depth { window: (ranks as u32).max(64), lanes: (2 * ranks).max(256) }
    }

    /// Applies the limits.
    pub fn within(self, limits: &Limits) -> Depth {
        Depth { window: self.window.min(limits.window).max(1), lanes: self.lanes.min(limits.lanes) }
    }
}

/// A barrier message; its number is the lane in the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum BarrierMessage {
    /// All lanes of the sender have arrived.
    Arrived = 0,
    /// All lanes of all roles have arrived.
    Release = 1,
}

/// Progress of an offloaded operation.
pub(super) enum Stage {
    /// Waits for the other ranks, or for an earlier operation: the library must be called in the same order on all ranks.
    Waits(OffloadRequest),
    /// Running in the library.
    Runs(OffloadTicket),
    /// Not offloaded, or done.
    Done,
}

/// Work to do once all lanes are done.
#[derive(Clone, Copy, Debug)]
pub struct Finish {
    /// Elements of the first part's space to multiply: offset, length.
    pub scaled: (u64, u64),
    /// The factor.
    pub factor: f64,
}

/// The two ends of a send or receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointToPoint {
    /// The other rank in the group; `None`: a receive from any rank.
    pub peer: Option<u32>,
    /// The user's tag.
    pub tag: u32,
    /// Whether this rank sends.
    pub sends: bool,
}

/// The place of an all-reduce by parameter servers in a training step. Servers meet at the end of each step: none sends
/// a sum of the step before all gradients have reached all servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InStep {
    /// The last all-reduce of the step.
    pub last: bool,
    /// Servers send sums with lower values first.
    pub priority: u32,
}

/// An operation as the caller submits it.
pub struct OperationSpec {
    /// Properties on which all ranks must agree.
    pub signature: Signature,
    /// Program of this process's roles.
    pub program: Box<dyn Program>,
    /// The roles this process plays, with their memory; the worker first.
    pub roles: Vec<(u32, Space)>,
    /// Whether large pieces are sent without a copy.
    pub zero_copy: bool,
    /// For a send or receive.
    pub point_to_point: Option<PointToPoint>,
    /// Its place in a training step.
    pub step: Option<InStep>,
    /// Factor that results are multiplied by as the program completes them.
    pub factor: Option<f64>,
    /// Work at the end.
    pub finish: Option<Finish>,
    /// The user's name for the tensors, or empty.
    pub label: String,
    /// The caller's handle.
    pub handle: Arc<Handle>,
    /// The owner of the memory, kept until the end.
    pub keep: Option<Box<dyn Any + Send>>,
}

/// The part of one role.
pub(super) struct Part {
    pub role: u32,
    pub space: Space,
    pub total: u32,
    /// Number of the first lane in `lanes`.
    pub first: u32,
    pub lanes: VecDeque<Lane>,
    /// Most lanes in flight at once.
    window: u32,
    /// Lanes that reach the barrier, and how many wait there.
    pub barriers: u32,
    pub parked: u32,
    /// The other roles have been told that all of them have arrived.
    pub announced: bool,
    pub released: bool,
    /// No lane can advance until a fragment arrives: none could when this many unexpected fragments had been queued.
    /// Cleared when more are queued or something else changes.
    pub settled: Option<u64>,
}

impl Part {
    pub fn is_done(&self) -> bool {
        self.first == self.total
    }

    /// Drops finished lanes and opens new ones; returns whether it opened any.
    pub fn shift(&mut self) -> bool {
        while self.lanes.front().is_some_and(|lane| lane.state == State::Done) {
            self.lanes.pop_front();
            self.first += 1;
        }
        let wanted = self.window.min(self.total - self.first);
        let opened = (self.lanes.len() as u32) < wanted;
        if opened {
            self.settled = None;
        }
        while (self.lanes.len() as u32) < wanted {
            self.lanes.push_back(Lane::default());
        }
        opened
    }
}

pub(super) struct Operation {
    pub seq: u32,
    pub signature: Signature,
    pub program: Box<dyn Program>,
    pub kernel: Kernel,
    pub parts: Vec<Part>,
    pub zero_copy: bool,
    pub point_to_point: Option<PointToPoint>,
    pub step: Option<InStep>,
    pub factor: Option<f64>,
    finish: Option<Finish>,
    pub label: String,
    /// Number in the timeline.
    pub number: u64,
    pub handle: Arc<Handle>,
    pub keep: Option<Box<dyn Any + Send>>,
    /// Fragments and bytes sent and received.
    pub moved: Movement,
    /// Bytes of the last fragment that has arrived only in part.
    pub arriving: u64,
    /// Roles that meet at the barrier.
    pub meeting: Vec<u32>,
    /// Of the barrier: roles that have arrived (at the role that counts), and messages still to be sent.
    pub arrived: u32,
    pub barrier_messages: Vec<(u32, BarrierMessage)>,
    /// For the last operation of a step: the lanes at the barrier have been released.
    pub step_released: bool,
    pub offload: Stage,
}

/// Movement of an operation: one for each fragment and each byte sent or received.
#[derive(Clone, Copy, Default)]
pub(super) struct Movement {
    /// To and from other ranks.
    others: u64,
    /// To and from this process itself, which is no evidence that others are there.
    within: u64,
}

impl Movement {
    pub fn count(&mut self, bytes: usize, own: bool) {
        let own = own && !paceline_os::mutant("what goes to itself moves");
        *(if own { &mut self.within } else { &mut self.others }) += 1 + bytes as u64;
    }
}

impl Operation {
    pub fn new(seq: u32, spec: OperationSpec, depth: Depth) -> Operation {
        let OperationSpec {
            signature,
            program,
            roles,
            zero_copy,
            point_to_point,
            step,
            factor,
            finish,
            label,
            handle,
            keep,
        } = spec;
        let total = program.lanes();
        let mut meeting: Vec<u32> = (0..program.roles()).filter(|&role| program.barriers(role) > 0).collect();
        // If lanes wait for each other at a barrier, all of them must be in flight, at every role.
        let window = if meeting.is_empty() { depth.window } else { total };
        let parts = roles
            .into_iter()
            .map(|(role, space)| {
                let barriers = program.barriers(role);
                // Sums stream through a window one lane at a time.
                let window = if space.window().is_some() { 1 } else { window };
                let (lanes, first, parked) = (VecDeque::with_capacity(total.min(window) as usize), 0, 0);
                let (announced, released) = (false, false);
                let settled = None;
                Part { role, space, total, first, lanes, window, barriers, parked, announced, released, settled }
            })
            .collect();
        if let Some(step) = step {
            // Servers meet once per step, at its last operation, whether they have a part in it or not.
            meeting = if step.last { program.servers().collect() } else { Vec::new() };
        }
        let number = handle.number.load(paceline_os::sync::atomic::Ordering::Relaxed);
        let kernel = kernel(signature.dtype, signature.op);
        let (moved, arriving, arrived, barrier_messages) = (Movement::default(), 0, 0, Vec::new());
        let offload = program.offload().map_or(Stage::Done, Stage::Waits);
        Operation {
            seq,
            signature,
            program,
            kernel,
            parts,
            zero_copy,
            point_to_point,
            step,
            factor,
            finish,
            label,
            number,
            handle,
            keep,
            moved,
            arriving,
            meeting,
            arrived,
            barrier_messages,
            step_released: false,
            offload,
        }
    }

    /// A fragment has been received.
    pub fn count(&mut self, bytes: usize, own: bool) {
        self.moved.count(bytes, own);
        self.arriving = 0;
    }

    /// Tells the failure detector how far it is. `more`: what has come for its group and cannot be taken yet.
    pub fn publish(&self, more: u64) {
        let Movement { others, within } = self.moved;
        self.handle.moved.store(others + self.arriving + more, paceline_os::sync::atomic::Ordering::Relaxed);
        self.handle.within.store(within, paceline_os::sync::atomic::Ordering::Relaxed);
    }

    pub fn is_done(&self) -> bool {
        let met = self.step.is_none() || self.step_released || !self.parts.iter().any(|part| self.meets(part));
        let done = matches!(self.offload, Stage::Done);
        self.barrier_messages.is_empty() && met && done && self.parts.iter().all(Part::is_done)
    }

    /// Whether this role takes part in the barrier of this operation.
    pub fn meets(&self, part: &Part) -> bool {
        self.meeting.contains(&part.role)
    }

    /// Zero-copy sends that peers have not read yet.
    pub fn zero_copy_sends(&self) -> impl Iterator<Item = ZeroCopySend> {
        self.parts.iter().flat_map(|part| &part.lanes).filter_map(|lane| lane.zero_copy)
    }

    pub fn is_receive_from_anybody(&self) -> bool {
        self.point_to_point.is_some_and(|to| to.peer.is_none())
    }

    /// Signature in the headers of messages between two roles, one of which this process plays.
    pub fn between(&self, from: u32, to: u32) -> Signature {
        let part = self.signature.collective.has_parts().then(|| self.program.passes(from, to)).flatten();
        Signature { count: part.unwrap_or(self.signature.count), ..self.signature }
    }

    /// Signature that a fragment's header must have, if its sender called the same as this process.
    pub fn expects(&self, header: &FragmentHeader) -> Signature {
        self.between(header.from.into(), header.to.into())
    }

    /// The error for two ranks that called different operations.
    pub fn mismatch(&self, header: &FragmentHeader, view: &GroupView<'_>) -> RunError {
        paceline_os::reached!("executor: ranks called different operations");
        self.call().mismatch(&self.expects(header), header, view)
    }

    pub fn call(&self) -> Call {
        let me = self.parts.first().map_or(0, |part| part.role);
        let (servers, point_to_point) = (self.program.servers(), self.point_to_point.is_some());
        Call { seq: self.seq, signature: self.signature, label: self.label.clone(), me, servers, point_to_point }
    }

    /// The lane number in fragment headers.
    pub fn lane_name(&self, lane: u32) -> u32 {
        self.point_to_point.map_or(lane, |to| to.tag)
    }

    /// Scales the result after the last lane.
    pub fn conclude(&mut self) {
        let Some(Finish { scaled: (off, len), factor }) = self.finish else { return };
        let dtype: Dtype = self.signature.dtype;
        let Some(part) = self.parts.first_mut() else { return };
        let mut done = 0;
        while done < len {
            let run = part.space.run(off + done, len - done);
            scale(dtype, run, factor);
            done += (run.len() / dtype.size()) as u64;
        }
    }
}
