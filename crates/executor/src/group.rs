//! The operations of a communicator, in their order.
use std::collections::{HashMap, VecDeque};

use paceline_transport::error::{Naming, RunError};
use paceline_transport::header::{Collective, FragmentHeader};

use super::barrier;
use super::call::Past;
use super::group_view::GroupView;
use super::lane::{State, ZeroCopySend};
use super::offload;
use super::operation::{BarrierMessage, Depth, Operation, OperationSpec, Part, PointToPoint, Stage};
use super::step;
use super::unexpected::UnexpectedQueue;
use super::wires::Wires;
use crate::handle::{Completion, Failure};
use crate::program::SendRecv;

/// How a fragment relates to this group.
pub(super) enum Found {
    /// Its operation has completed or failed.
    Past,
    /// Its operation has not begun here.
    Later,
    /// Its operation is in flight.
    InFlight(At),
}

/// Identifies an operation in flight.
#[derive(Clone, Copy)]
pub(super) enum At {
    /// In the order: index, part, lane.
    Op(usize, usize, u32),
    /// Index among the sends and receives.
    PointToPoint(usize),
}

/// Whether an operation that was submitted is running: it may have to wait for earlier ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    NotYet,
    Yes,
}

struct Slot {
    operation: Option<Operation>,
    bytes: u64,
    opened: bool,
}

pub(super) struct Group {
    pub id: u32,
    ranks: Vec<u32>,
    me: u32,
    /// Number of the first operation in `ops`.
    base: u32,
    ops: VecDeque<Slot>,
    point_to_point: Vec<Operation>,
    /// Numbers of sends and receives so far, by rank in the group, tag, and whether sent.
    counters: HashMap<(u32, u32, bool), u32>,
    past: Past,
    broken: Option<RunError>,
    depth: Depth,
    /// Bytes of operations that may begin before the oldest has completed.
    ahead: u64,
    /// Whether operations have belonged to training steps. Only then is the end of a step looked for.
    steps: bool,
    /// Datagrams that have come for it, also those that wait for an earlier one.
    datagrams: u64,
    /// How messages call its operations.
    pub naming: Naming,
}

impl Group {
    pub fn new(id: u32, ranks: Vec<u32>, me: u32, depth: Depth, ahead: u64) -> Group {
        let mut naming = Naming::of_new("world", &ranks);
        naming.begin(0);
        let (base, ops, point_to_point, counters, broken) = (0, VecDeque::new(), Vec::new(), HashMap::new(), None);
        let (past, steps, datagrams) = (Past::default(), false, 0);
        Group {
            id,
            ranks,
            me,
            base,
            ops,
            point_to_point,
            counters,
            past,
            broken,
            depth,
            ahead,
            steps,
            datagrams,
            naming,
        }
    }

    pub fn busy(&self) -> bool {
        !self.ops.is_empty() || !self.point_to_point.is_empty()
    }

    /// Whether the group is idle and has not failed.
    pub fn whole(&self) -> bool {
        !self.busy() && self.broken.is_none()
    }

    /// Begins an operation, unless another rank has called a different one and its fragments have been queued. They might
    /// never be looked at again: the operation may not wait for that rank.
    pub fn begin(
        &mut self,
        spec: OperationSpec,
        unexpected: &UnexpectedQueue,
        completions: &mut Vec<Completion>,
    ) -> Result<(), RunError> {
        if let Some(error) = &self.broken {
            spec.handle.fail(error.clone());
            completions.push(Completion { handle: spec.handle, group: self.id, seq: None, keep: spec.keep });
            return Ok(());
        }
        if let Some(PointToPoint { peer, tag, sends }) = spec.point_to_point {
            let number = peer.map(|peer| self.next_number(peer, tag, sends));
            number.into_iter().for_each(|number| spec.handle.set_transfer(number));
            let seq = number.unwrap_or(0);
            self.point_to_point.push(Operation::new(seq, spec, self.depth));
            return Ok(());
        }
        let bytes = spec.signature.count * spec.signature.dtype.size() as u64;
        let seq = self.base.wrapping_add(self.ops.len() as u32);
        self.steps |= spec.step.is_some();
        let operation = Operation::new(seq, spec, self.depth);
        let queued = unexpected.of_operation(self.id, seq);
        let stranger = queued.filter(|header| operation.expects(header) != header.signature).min_by_key(|h| h.from);
        let view = GroupView { group: self.id, ranks: &self.ranks, naming: &self.naming };
        let error = stranger.map(|header| operation.mismatch(header, &view));
        self.ops.push_back(Slot { operation: Some(operation), bytes, opened: false });
        error.map_or(Ok(()), Err)
    }

    /// The error for a fragment of an operation that is complete, if its sender called a different one.
    pub fn late(&self, header: &FragmentHeader) -> Option<RunError> {
        if self.broken.is_some() || header.signature.collective == Collective::SendRecv {
            return None;
        }
        self.past.mismatch(header, &GroupView { group: self.id, ranks: &self.ranks, naming: &self.naming })
    }

    fn next_number(&mut self, peer: u32, tag: u32, sends: bool) -> u32 {
        let counter = self.counters.entry((peer, tag, sends)).or_default();
        *counter = counter.wrapping_add(1);
        *counter - 1
    }

    /// The operation that a fragment is for. Binds a receive from any rank to the sender.
    pub fn find(&mut self, header: &FragmentHeader) -> Found {
        if self.broken.is_some() {
            return Found::Past;
        }
        if header.signature.collective == Collective::SendRecv {
            return self.find_point_to_point(header);
        }
        let index = header.seq.wrapping_sub(self.base);
        if index > u32::MAX / 2 {
            return Found::Past;
        }
        let Some(slot) = self.ops.get(index as usize) else { return Found::Later };
        let Some(operation) = &slot.operation else { return Found::Past };
        match operation.parts.iter().position(|part| part.role == u32::from(header.to)) {
            Some(part) => Found::InFlight(At::Op(index as usize, part, header.lane)),
            None => Found::InFlight(At::Op(index as usize, usize::MAX, header.lane)),
        }
    }

    /// Whether the operation is running, if the fragment is for a role through which sums stream.
    pub fn streams(&self, header: &FragmentHeader) -> Option<Opened> {
        let slot = self.ops.get(header.seq.wrapping_sub(self.base) as usize)?;
        let part = slot.operation.as_ref()?.parts.iter().find(|part| part.role == u32::from(header.to))?;
        let opened = if slot.opened { Opened::Yes } else { Opened::NotYet };
        part.space.window().map(|_| opened)
    }

    fn find_point_to_point(&mut self, header: &FragmentHeader) -> Found {
        let from = u32::from(header.from);
        let exactly = Some(PointToPoint { peer: Some(from), tag: header.lane, sends: false });
        let bound = |operation: &Operation| operation.point_to_point == exactly && operation.seq == header.seq;
        if let Some(index) = self.point_to_point.iter().position(bound) {
            return Found::InFlight(At::PointToPoint(index));
        }
        let next = self.counters.get(&(from, header.lane, false)).copied().unwrap_or(0);
        let open = |operation: &Operation| operation.is_receive_from_anybody() && operation.lane_name(0) == header.lane;
        match self.point_to_point.iter().position(open) {
            Some(index) if header.seq == next => {
                self.bind(index, from, header.lane);
                Found::InFlight(At::PointToPoint(index))
            }
            _ => Found::Later,
        }
    }

    fn bind(&mut self, index: usize, from: u32, tag: u32) {
        paceline_os::reached!("executor: receive from any rank finds its sender");
        let seq = self.next_number(from, tag, false);
        let operation = &mut self.point_to_point[index];
        operation.seq = seq;
        operation.point_to_point = Some(PointToPoint { peer: Some(from), tag, sends: false });
        operation.program = Box::new(SendRecv { peer: from, sends: false, len: operation.signature.count });
        operation.handle.source.store(from, paceline_os::sync::atomic::Ordering::Relaxed);
        operation.handle.set_transfer(seq);
    }

    /// Takes the front fragment of a rank if it is wanted now.
    pub fn deliver(&mut self, at: At, header: &FragmentHeader, rank: u32, wires: &mut Wires) -> Result<bool, RunError> {
        let view = GroupView { group: self.id, ranks: &self.ranks, naming: &self.naming };
        let (operation, part, lane) = match at {
            At::Op(index, part, lane) => match &mut self.ops[index].operation {
                Some(operation) => (operation, part, lane),
                None => return Ok(false),
            },
            At::PointToPoint(index) => (&mut self.point_to_point[index], 0, 0),
        };
        if operation.expects(header) != header.signature || part == usize::MAX {
            return Err(operation.mismatch(header, &view));
        }
        step::deliver(operation, part, header, lane, (rank, &view), wires)
    }

    /// Advances the lane that has just received something.
    pub fn advance(
        &mut self,
        at: At,
        wires: &mut Wires,
        unexpected: &mut UnexpectedQueue,
        completions: &mut Vec<Completion>,
    ) -> Result<(), RunError> {
        let view = GroupView { group: self.id, ranks: &self.ranks, naming: &self.naming };
        match at {
            At::Op(index, part, lane) => {
                if let Some(operation) = &mut self.ops[index].operation {
                    step::advance(operation, part, lane, &view, wires, unexpected)?;
                    if operation.parts[part].shift() {
                        let opened = operation.parts[part].first + operation.parts[part].lanes.len() as u32 - 1;
                        step::advance(operation, part, opened, &view, wires, unexpected)?;
                    }
                }
                self.settle(index, completions);
            }
            At::PointToPoint(index) => {
                step::advance(&mut self.point_to_point[index], 0, 0, &view, wires, unexpected)?;
                self.point_to_point[index].parts[0].shift();
            }
        }
        Ok(())
    }

    /// Does what can be done now; returns whether anything was.
    pub fn run(
        &mut self,
        wires: &mut Wires,
        unexpected: &mut UnexpectedQueue,
        completions: &mut Vec<Completion>,
    ) -> Result<bool, RunError> {
        if !self.busy() {
            return Ok(false);
        }
        let mut any = false;
        self.datagrams = wires.multicast().map_or(0, |multicast| multicast.came_for(self.id));
        let (mut lanes, mut ahead, mut earlier) = (0, 0, false);
        let order = if self.steps { self.order() } else { None };
        for at in 0..self.ops.len() {
            let index = order.as_ref().map_or(at, |order| order[at]);
            let Slot { operation, bytes, opened } = &mut self.ops[index];
            if index > 0 {
                ahead += if *opened { *bytes } else { 0 };
            }
            let Some(operation) = operation else { continue };
            // Operations that wait for others of their step must not keep those from beginning.
            if !*opened && operation.step.is_none() && (lanes >= self.depth.lanes || ahead > self.ahead) {
                paceline_os::reached!("executor: operation waits for earlier ones");
                break;
            }
            *opened = true;
            let view = GroupView { group: self.id, ranks: &self.ranks, naming: &self.naming };
            for part in 0..operation.parts.len() {
                any |= barrier::take_unexpected(operation, part, &view, unexpected);
                any |= run_part(operation, part, &view, wires, unexpected)?;
                lanes += operation.parts[part].lanes.len();
            }
            if operation.step.is_none() {
                any |= meet(operation, &view, wires, |part| part.barriers > 0 && part.parked == part.barriers);
            }
            if !matches!(operation.offload, Stage::Done) {
                any |= offload::advance(operation, self.id, &self.ranks, earlier, wires)?;
                earlier |= matches!(operation.offload, Stage::Waits(_));
            }
            any |= self.settle(index, completions);
        }
        any |= self.steps && self.meet_steps(wires);
        while self.ops.front().is_some_and(|slot| slot.operation.is_none()) {
            self.ops.pop_front();
            self.base = self.base.wrapping_add(1);
        }
        if !self.point_to_point.is_empty() {
            any |= self.run_point_to_point(wires, unexpected, completions)?;
        }
        Ok(any)
    }

    /// The order to work on operations, if it is not their own: steps whose servers have met go by priority.
    fn order(&self) -> Option<Vec<usize>> {
        let released =
            |operation: &Operation| operation.step.is_some() && operation.parts.iter().any(|part| part.released);
        let operations = || self.ops.iter().map(|slot| slot.operation.as_ref());
        if !operations().flatten().any(released) {
            return None;
        }
        paceline_os::reached!("executor: operations by priority");
        let key = |operation: Option<&Operation>| {
            operation.filter(|operation| released(operation)).and_then(|operation| operation.step)
        };
        let keys: Vec<u32> =
            operations().map(|operation| key(operation).map_or(u32::MAX, |step| step.priority)).collect();
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|&index| keys[index]);
        Some(order)
    }

    /// Handles the last operation of a step: servers that have all their gradients announce it, and all continue once
    /// all have.
    fn meet_steps(&mut self, wires: &mut Wires) -> bool {
        let ends =
            |slot: &Slot| slot.operation.as_ref().is_some_and(|operation| operation.step.is_some_and(|step| step.last));
        let (mut any, mut first) = (false, 0);
        while let Some(last) = (first..self.ops.len()).find(|&index| ends(&self.ops[index])) {
            let of_step = first..last + 1;
            let parts = of_step
                .clone()
                .filter_map(|index| self.ops[index].operation.as_ref())
                .flat_map(|operation| &operation.parts);
            let busy: Vec<u32> = parts.filter(|part| part.parked < part.barriers).map(|part| part.role).collect();
            let view = GroupView { group: self.id, ranks: &self.ranks, naming: &self.naming };
            let mut released = Vec::new();
            if let Some(operation) = &mut self.ops[last].operation {
                let servers = operation.program.servers();
                any |= meet(operation, &view, wires, |part| servers.contains(&part.role) && !busy.contains(&part.role));
                released.extend(operation.parts.iter().filter(|part| part.released).map(|part| part.role));
            }
            let operations = self.ops.range_mut(of_step).filter_map(|slot| slot.operation.as_mut());
            for part in
                operations.filter(|operation| operation.step.is_some()).flat_map(|operation| &mut operation.parts)
            {
                if released.contains(&part.role) && part.lanes.iter().any(|lane| lane.state == State::Parked) {
                    barrier::release(part);
                    any = true;
                }
            }
            if let Some(operation) = &mut self.ops[last].operation {
                // Workers of this process do not take part in the barrier.
                let meeting = &operation.meeting;
                operation.step_released = operation.parts.iter().all(|part| {
                    part.released || (!meeting.contains(&part.role) && !paceline_os::mutant("workers meet"))
                });
            }
            first = last + 1;
        }
        any
    }

    fn run_point_to_point(
        &mut self,
        wires: &mut Wires,
        unexpected: &mut UnexpectedQueue,
        completions: &mut Vec<Completion>,
    ) -> Result<bool, RunError> {
        let mut any = false;
        let mut index = 0;
        while index < self.point_to_point.len() {
            if self.point_to_point[index].is_receive_from_anybody() {
                let tag = self.point_to_point[index].lane_name(0);
                let counters = &self.counters;
                let next = |t: &&FragmentHeader| {
                    t.seq == counters.get(&(u32::from(t.from), t.lane, false)).copied().unwrap_or(0) && t.offset == 0
                };
                let from =
                    unexpected.point_to_point(self.id, self.me as u16, tag).find(next).map(|t| u32::from(t.from));
                match from {
                    Some(from) => self.bind(index, from, tag),
                    None => {
                        index += 1;
                        continue;
                    }
                }
            }
            let view = GroupView { group: self.id, ranks: &self.ranks, naming: &self.naming };
            let operation = &mut self.point_to_point[index];
            any |= run_part(operation, 0, &view, wires, unexpected)?;
            if operation.is_done() {
                let operation = self.point_to_point.remove(index);
                conclude(operation, self.id, None, completions);
            } else {
                if !paceline_os::mutant("transfers do not move") {
                    operation.publish(0);
                }
                index += 1;
            }
        }
        Ok(any)
    }

    /// Completes an operation whose lanes are done.
    fn settle(&mut self, index: usize, completions: &mut Vec<Completion>) -> bool {
        if !self.ops[index].operation.as_ref().is_some_and(Operation::is_done) {
            if let Some(operation) = &self.ops[index].operation {
                operation.publish(self.datagrams);
            }
            return false;
        }
        let Some(operation) = self.ops[index].operation.take() else { return false };
        let seq = operation.seq;
        self.past.remember(operation.call());
        conclude(operation, self.id, Some(seq), completions);
        true
    }

    /// Fails all operations because of an error found here, which the other ranks must be told.
    pub fn give_up(
        &mut self,
        error: RunError,
        wires: &mut Wires,
        unexpected: &mut UnexpectedQueue,
        completions: &mut Vec<Completion>,
    ) -> Failure {
        self.fail(&error, wires, unexpected, completions);
        Failure { group: self.id, error }
    }

    /// Fails all operations.
    pub fn fail(
        &mut self,
        error: &RunError,
        wires: &mut Wires,
        unexpected: &mut UnexpectedQueue,
        completions: &mut Vec<Completion>,
    ) {
        self.broken.get_or_insert_with(|| error.clone());
        let ops =
            self.ops.drain(..).filter_map(|slot| slot.operation).map(|operation| (Some(operation.seq), operation));
        for (seq, mut operation) in ops.chain(self.point_to_point.drain(..).map(|operation| (None, operation))) {
            offload::give_up(&mut operation, wires);
            // The owner may reuse its memory from here on.
            operation.zero_copy_sends().for_each(|ZeroCopySend { rank, ticket, .. }| wires.cancel(rank, ticket));
            operation.handle.fail(error.clone());
            completions.push(Completion { handle: operation.handle, group: self.id, seq, keep: operation.keep });
        }
        unexpected.forget(self.id);
        wires.forget(self.id, true);
    }
}

fn conclude(mut operation: Operation, group: u32, seq: Option<u32>, completions: &mut Vec<Completion>) {
    operation.conclude();
    operation.handle.finish();
    completions.push(Completion { handle: operation.handle, group, seq, keep: operation.keep });
}

fn run_part(
    operation: &mut Operation,
    part: usize,
    view: &GroupView<'_>,
    wires: &mut Wires,
    unexpected: &mut UnexpectedQueue,
) -> Result<bool, RunError> {
    let mut any = false;
    if operation.parts[part].settled == Some(unexpected.puts) {
        return Ok(false);
    }
    loop {
        any |= operation.parts[part].shift();
        operation.parts[part].settled = Some(unexpected.puts);
        let (first, count) = (operation.parts[part].first, operation.parts[part].lanes.len() as u32);
        for lane in first..first + count {
            if unexpected.is_empty() && operation.parts[part].lanes[(lane - first) as usize].stuck(wires) {
                operation.parts[part].settled = None;
                continue;
            }
            any |= step::advance(operation, part, lane, view, wires, unexpected)?;
        }
        // Lanes in which this role has no part are done at once.
        if !operation.parts[part].lanes.front().is_some_and(|lane| lane.state == State::Done) {
            return Ok(any);
        }
    }
}

/// The barrier: the first role that has one counts arrivals and releases all. `stands`: whether a role of this process
/// has arrived.
fn meet(operation: &mut Operation, view: &GroupView<'_>, wires: &mut Wires, stands: impl Fn(&Part) -> bool) -> bool {
    let Some(&counts) = operation.meeting.first() else { return false };
    let mut any = false;
    for index in 0..operation.parts.len() {
        let part = &mut operation.parts[index];
        if !part.announced && stands(part) {
            part.announced = true;
            operation.barrier_messages.push((counts, BarrierMessage::Arrived));
            any = true;
        }
    }
    if operation.arrived == operation.meeting.len() as u32 {
        operation.arrived += 1;
        operation.barrier_messages.extend(operation.meeting.iter().map(|&role| (role, BarrierMessage::Release)));
        any = true;
    }
    let from = operation.parts.iter().find(|part| operation.meeting.contains(&part.role)).map_or(0, |part| part.role);
    let messages = std::mem::take(&mut operation.barrier_messages);
    for (role, message) in messages {
        let header = FragmentHeader {
            group: view.group,
            seq: operation.seq,
            lane: message as u32,
            slot: barrier::SLOT,
            from: from as u16,
            to: role as u16,
            bytes: 0,
            offset: 0,
            signature: operation.signature,
        };
        if wires.send(view.host(role), &header, &[], true) {
            any = true;
        } else {
            operation.barrier_messages.push((role, message));
        }
    }
    any
}
