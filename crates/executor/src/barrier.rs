//! The barrier of an operation: its messages, and the lanes that wait in it.
use super::group_view::GroupView;
use super::lane::State;
use super::operation::{BarrierMessage, Operation, Part};
use super::unexpected::{Key, UnexpectedQueue};

/// Slot of barrier messages; programs have far fewer slots.
pub(super) const SLOT: u16 = u16::MAX;

/// Takes barrier messages that arrived before the operation began here.
pub(super) fn take_unexpected(
    operation: &mut Operation,
    part: usize,
    view: &GroupView<'_>,
    unexpected: &mut UnexpectedQueue,
) -> bool {
    let (mut any, to) = (false, operation.parts[part].role as u16);
    if unexpected.is_empty() || !operation.meets(&operation.parts[part]) {
        return false;
    }
    for kind in [BarrierMessage::Arrived, BarrierMessage::Release] {
        for from in 0..operation.program.roles() as u16 {
            let (group, seq, lane, slot) = (view.group, operation.seq, kind as u32, SLOT);
            while unexpected.pop(&Key { group, seq, lane, slot, from, to, point_to_point: false }, 0, 0).is_some() {
                paceline_os::reached!("executor: barrier message came before its operation");
                any |= receive(operation, part, lane);
            }
        }
    }
    any
}

/// Handles a barrier message.
pub(super) fn receive(operation: &mut Operation, part: usize, kind: u32) -> bool {
    if kind == BarrierMessage::Arrived as u32 {
        operation.arrived += 1;
    } else if operation.step.is_some() {
        operation.parts[part].released = true; // and the step's operations are released together
    } else {
        release(&mut operation.parts[part]);
    }
    true
}

pub(super) fn release(part: &mut Part) {
    part.released = true;
    part.settled = None;
    for lane in part.lanes.iter_mut().filter(|lane| lane.state == State::Parked) {
        lane.state = State::Running;
        lane.pc += 1;
    }
}
