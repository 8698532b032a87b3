//! Executes the steps of a lane and receives their fragments.
use paceline_schedule::{Op, Peers, Piece, Step};

use super::barrier;
use super::group_view::{GroupView, Shown};
use super::lane::{ALL, Lane, State};
use super::operation::{Operation, Part};
use super::send::send;
use super::unexpected::{Key, UnexpectedQueue};
use super::wires::Wires;
use crate::timeline::Timeline;
use paceline_kernels::dtype::Dtype;
use paceline_kernels::reduce::{Kernel, scale};
use paceline_transport::channel::Sink;
use paceline_transport::error::RunError;
use paceline_transport::header::{FragmentHeader, Signature};
use paceline_transport::space::Space;

/// The next piece that a lane can take from the sender with index `peer`.
struct Wanted {
    peer: u32,
    piece: Piece,
    assign: bool,
    /// Factor for the result, if this contribution completes it.
    factor: Option<f64>,
    got: u64,
    /// Elements that may be combined now; the rest must wait until more has arrived from other senders or has been
    /// forwarded.
    room: u64,
    /// Elements of the piece that may be written.
    limit: u64,
}

/// A receive of a program.
struct Receive {
    from: Peers,
    slot: u16,
    op: Op,
    piece: Piece,
    /// Elements of the piece that may be overwritten.
    limit: u64,
    pc: u32,
}

/// The receive that a lane is at, or the one after the send it is at. With the latter, two ranks that exchange pieces
/// can each receive while they still send, as long as nothing unsent is overwritten.
fn receive_at(operation: &Operation, role: u32, number: u32, lane: &Lane) -> Option<Receive> {
    let found = |from, slot, op, piece, limit, pc| Some(Receive { from, slot, op, piece, limit, pc });
    match operation.program.step(role, number, lane.pc) {
        Step::Recv { from, slot, op, piece } => found(from, slot, op, piece, u64::MAX, lane.pc),
        Step::Send { to, piece: outgoing, .. } if to.count == 1 => {
            let Step::Recv { from, slot, op, piece } = operation.program.step(role, number, lane.pc + 1) else {
                return None;
            };
            let limit = match (piece.apart(outgoing), piece == outgoing) {
                (true, _) => u64::MAX,
                (false, true) => lane.sent.get(0),
                (false, false) => return None,
            };
            found(from, slot, op, piece, limit, lane.pc + 1)
        }
        _ => None,
    }
}

fn wanted(operation: &Operation, part: &Part, number: u32, lane: &Lane, header: &FragmentHeader) -> Option<Wanted> {
    let role = part.role;
    let Receive { from, slot, op, piece, limit, pc } = receive_at(operation, role, number, lane)?;
    if slot != header.slot {
        return None;
    }
    let peer = if from.count == 1 {
        (from.first % from.wrap == u32::from(header.from)).then_some(0)?
    } else {
        from.position(u32::from(header.from))?
    };
    let got = lane.got.get(peer);
    if got != header.offset {
        return None;
    }
    // Contributions are combined in the order of the senders, element by element, so that sums do not depend on arrival
    // order.
    let ahead = match (peer, part.space.window()) {
        (0, Some(window)) => forwarded(operation, role, number, lane, piece).saturating_add(window).min(limit),
        (0, None) => limit,
        _ => lane.got.get(peer - 1).min(limit),
    };
    let room = if ahead == ALL { ALL } else { ahead.saturating_sub(got) };
    let assign = op == Op::Assign || (op == Op::AssignThenReduce && peer == 0);
    let last = peer + 1 == from.count;
    let factor = operation.factor.filter(|_| last && operation.program.completes(role, number, pc));
    Some(Wanted { peer, piece, assign, factor, got, room, limit: piece.len })
}

/// Elements of a streaming piece that have been forwarded to every receiver.
fn forwarded(operation: &Operation, role: u32, number: u32, lane: &Lane, piece: Piece) -> u64 {
    let receivers = match operation.program.step(role, number, lane.pc + 1) {
        Step::Send { to, .. } => to.count,
        _ => 1,
    };
    (0..receivers).map(|receiver| lane.sent.get(receiver)).min().unwrap_or(0).min(piece.len)
}

/// How to combine a fragment with what is already there.
struct Combine {
    /// First element.
    off: u64,
    assign: bool,
    factor: Option<f64>,
    kernel: Kernel,
    dtype: Dtype,
}

impl Combine {
    fn new(operation: &Operation, wanted: &Wanted, header: &FragmentHeader) -> Combine {
        let (assign, factor) = (wanted.assign, wanted.factor);
        Combine {
            off: wanted.piece.off + header.offset,
            assign,
            factor,
            kernel: operation.kernel,
            dtype: header.signature.dtype,
        }
    }

    /// Combines a part of the fragment; `at` is its first byte.
    fn part(&self, space: &mut Space, at: usize, payload: &[u8]) {
        let off = self.off + (at / space.element()) as u64;
        space.zip(off, payload, |to, from| {
            if self.assign {
                to.copy_from_slice(from)
            } else {
                (self.kernel)(to, from)
            }
            self.complete(to);
        });
    }

    /// Scales elements that are complete.
    fn complete(&self, run: &mut [u8]) {
        if let Some(factor) = self.factor {
            scale(self.dtype, run, factor);
        }
    }
}

/// Counts the elements of a fragment that has been combined.
fn count(lane: &mut Lane, wanted: &Wanted, elements: u64) {
    let now = wanted.got + elements;
    lane.got.set(wanted.peer, if now == wanted.limit { ALL } else { now });
}

fn received<'a>(header: &FragmentHeader, piece: Piece, number: u64, view: &GroupView<'a>) -> Shown<'a> {
    let bytes = piece.len * header.signature.dtype.size() as u64;
    Shown { out: false, from: header.from.into(), to: header.to.into(), ranks: view.ranks, number, bytes }
}

/// Checks the bounds of a fragment, which a peer chose.
fn fits(wanted: &Wanted, header: &FragmentHeader, signature: &Signature) -> Result<u64, RunError> {
    let size = signature.dtype.size() as u32;
    let elements = u64::from(header.bytes / size);
    let inside = header.bytes.is_multiple_of(size)
        && wanted.got.checked_add(elements).is_some_and(|end| end <= wanted.limit)
        && (elements > 0 || wanted.limit == 0);
    if inside {
        Ok(elements)
    } else {
        Err(RunError::Failed(format!(
            "{}: received {} bytes at element {} of a piece of {} elements, which do not fit",
            signature.describe(),
            header.bytes,
            header.offset,
            wanted.limit
        )))
    }
}

/// Receives the front fragment of a rank's channel if its lane wants it now; returns whether it did.
pub(super) fn deliver(
    operation: &mut Operation,
    part: usize,
    header: &FragmentHeader,
    number: u32,
    (rank, view): (u32, &GroupView<'_>),
    wires: &mut Wires,
) -> Result<bool, RunError> {
    if header.slot == barrier::SLOT {
        return Ok(wires.discard(rank) && barrier::receive(operation, part, header.lane));
    }
    let Some(at) = number.checked_sub(operation.parts[part].first).map(|at| at as usize) else { return Ok(false) };
    let Some(lane) = operation.parts[part].lanes.get(at) else { return Ok(false) };
    if lane.state != State::Running {
        return Ok(false);
    }
    let Some(wanted) = wanted(operation, &operation.parts[part], number, lane, header) else { return Ok(false) };
    let elements = fits(&wanted, header, &operation.signature)?;
    if elements > wanted.room {
        paceline_os::reached!("executor: contribution waits for another");
        return Ok(false);
    }
    let how = Combine::new(operation, &wanted, header);
    let began = Shown::begins(&wires.timeline, header.offset);
    let space = &mut operation.parts[part].space;
    let mut taken = false;
    let run = if wanted.assign { space.run(how.off, elements) } else { &mut [] };
    if wanted.assign && run.len() == header.bytes as usize {
        taken = wires.take(rank, header.bytes, Sink::Into(run));
        if taken {
            how.complete(run);
        }
    } else {
        taken |= wires.take(rank, header.bytes, Sink::Show(&mut |at, payload| how.part(space, at, payload)));
    }
    if taken {
        operation.count(header.bytes as usize, wires.is_own(rank));
        let lane = &mut operation.parts[part].lanes[at];
        count(lane, &wanted, elements);
        let shown = received(header, wanted.piece, operation.number, view);
        shown.moved(&mut lane.got, wanted.peer, began, &wires.timeline);
    } else {
        operation.arriving = wires.arrived(rank) as u64;
    }
    Ok(taken)
}

/// Advances a lane as far as possible; returns whether anything moved.
pub(super) fn advance(
    operation: &mut Operation,
    part: usize,
    number: u32,
    view: &GroupView<'_>,
    wires: &mut Wires,
    unexpected: &mut UnexpectedQueue,
) -> Result<bool, RunError> {
    let role = operation.parts[part].role;
    let Some(at) = number.checked_sub(operation.parts[part].first).map(|at| at as usize) else { return Ok(false) };
    let mut any = false;
    loop {
        let Some(lane) = operation.parts[part].lanes.get_mut(at) else { return Ok(any) };
        if lane.state != State::Running {
            return Ok(any);
        }
        match operation.program.step(role, number, lane.pc) {
            Step::Done => {
                lane.state = State::Done;
                return Ok(true);
            }
            Step::Barrier => {
                lane.state = State::Parked;
                operation.parts[part].parked += 1;
                return Ok(true);
            }
            Step::Send { to, multicast, slot, piece } => {
                any |= take_unexpected(operation, part, number, at, view, unexpected, &wires.timeline)?;
                let what = (to, multicast, slot, piece, piece.len);
                let (moved, complete) = send(operation, part, number, at, what, view, wires);
                any |= moved;
                if !complete {
                    operation.parts[part].settled = None;
                    return Ok(any);
                }
                let lane = &mut operation.parts[part].lanes[at];
                lane.pc += 1;
                lane.sent.clear();
            }
            Step::Recv { from, .. } => {
                if lane.got.complete() < from.count {
                    any |= take_unexpected(operation, part, number, at, view, unexpected, &wires.timeline)?;
                }
                let streams = operation.parts[part].space.window().is_some();
                let passed = if streams { Some(pass_on(operation, part, number, at, view, wires)) } else { None };
                any |= passed.is_some_and(|(moved, _)| moved);
                if streams {
                    operation.parts[part].settled = None;
                }
                let lane = &mut operation.parts[part].lanes[at];
                if lane.got.complete() < from.count || passed.is_some_and(|(_, complete)| !complete) {
                    return Ok(any);
                }
                lane.pc += 1 + u32::from(streams);
                lane.got.clear();
                lane.sent.clear();
                any = true;
            }
        }
    }
}

/// Forwards what has been combined of the receive that a lane is at: the next step sends the same piece. Returns
/// whether anything moved, and whether everything has been forwarded.
fn pass_on(
    operation: &mut Operation,
    part: usize,
    number: u32,
    at: usize,
    view: &GroupView<'_>,
    wires: &mut Wires,
) -> (bool, bool) {
    let Part { role, lanes, .. } = &operation.parts[part];
    let lane = &lanes[at];
    let (Step::Recv { from, .. }, Step::Send { to, multicast, slot, piece }) =
        (operation.program.step(*role, number, lane.pc), operation.program.step(*role, number, lane.pc + 1))
    else {
        return (false, true);
    };
    let combined = lane.got.get(from.count - 1).min(piece.len);
    if lane.sent.complete() == to.count || (combined == 0 && lane.got.complete() < from.count) {
        return (false, lane.sent.complete() == to.count);
    }
    send(operation, part, number, at, (to, multicast, slot, piece, combined), view, wires)
}

/// Combines unexpected fragments for the receive that a lane is at.
fn take_unexpected(
    operation: &mut Operation,
    part: usize,
    number: u32,
    at: usize,
    view: &GroupView<'_>,
    unexpected: &mut UnexpectedQueue,
    timeline: &Timeline,
) -> Result<bool, RunError> {
    if unexpected.is_empty() {
        return Ok(false);
    }
    let role = operation.parts[part].role;
    let lane = &operation.parts[part].lanes[at];
    let Some(Receive { from, slot, .. }) = receive_at(operation, role, number, lane) else { return Ok(false) };
    let mut any = false;
    for sender in from.iter() {
        let key = Key {
            group: view.group,
            seq: operation.seq,
            lane: operation.lane_name(number),
            slot,
            from: sender as u16,
            to: role as u16,
            point_to_point: operation.point_to_point.is_some(),
        };
        while let Some(header) = unexpected.front(&key) {
            if header.signature != operation.expects(header) {
                return Err(operation.mismatch(header, view));
            }
            let (here, lane) = (&operation.parts[part], &operation.parts[part].lanes[at]);
            let Some(wanted) = wanted(operation, here, number, lane, header) else { break };
            // Senders cut messages at different places, so a fragment may fit only in part until more has been
            // forwarded.
            let all = fits(&wanted, header, &operation.signature)?;
            let elements = all.min(wanted.room);
            if elements == 0 && all > 0 {
                break;
            }
            let how = Combine::new(operation, &wanted, header);
            let (shown, began) =
                (received(header, wanted.piece, operation.number, view), Shown::begins(timeline, header.offset));
            let Some((payload, own)) = unexpected.pop(&key, elements, operation.signature.dtype.size()) else { break };
            how.part(&mut operation.parts[part].space, 0, &payload);
            let lane = &mut operation.parts[part].lanes[at];
            count(lane, &wanted, elements);
            shown.moved(&mut lane.got, wanted.peer, began, timeline);
            operation.count(payload.len(), own);
            any = true;
        }
    }
    Ok(any)
}
