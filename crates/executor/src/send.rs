//! Sends the fragments of a lane's step: one copy to each receiver, or a single one that the network copies.
use paceline_schedule::{Peers, Piece, Step};

use super::group_view::{GroupView, Shown};
use super::lane::{ALL, Refused, ZeroCopySend};
use super::operation::{Operation, Part};
use super::wires::Wires;
use paceline_transport::header::{EVERYBODY, FragmentHeader};

/// Whether a piece stays unchanged until the peer has read it. If the receive after the send combines into the same piece,
/// two ranks that exchange zero-copy sends would wait for each other.
fn may_send_zero_copy(operation: &Operation, part: usize, number: u32, at: usize, piece: Piece) -> bool {
    let Part { role, lanes, .. } = &operation.parts[part];
    match operation.program.step(*role, number, lanes[at].pc + 1) {
        Step::Recv { piece: into, .. } => into.apart(piece),
        _ => true,
    }
}

/// Where the copies of a message go.
enum Copies {
    /// One copy to each receiver.
    Each(Peers),
    /// One copy on this wire to all other processes, and one to the receiver that this process plays itself.
    Shared(u32, Option<u32>),
}

impl Copies {
    fn new(to: Peers, multicast: bool, view: &GroupView<'_>, wires: &mut Wires) -> Copies {
        let shared = if multicast { wires.cast(view.group, to, |role| view.host(role)) } else { None };
        shared.map_or(Copies::Each(to), |(wire, own)| Copies::Shared(wire, own))
    }

    fn count(&self) -> u32 {
        match self {
            Copies::Each(to) => to.count,
            Copies::Shared(_, own) => 1 + u32::from(own.is_some()),
        }
    }

    /// The receiver of copy `k`, and the wire to it.
    fn get(&self, k: u32, view: &GroupView<'_>) -> (u32, u32) {
        match *self {
            Copies::Each(to) => (to.get(k), view.host(to.get(k))),
            Copies::Shared(_, Some(own)) if k > 0 => (own, view.host(own)),
            Copies::Shared(wire, _) => (EVERYBODY.into(), wire),
        }
    }
}

/// Sends as much of the first `upto` elements of a step's piece as the channels accept. Returns whether anything moved,
/// and whether everything has been sent to all receivers.
pub(super) fn send(
    operation: &mut Operation,
    part: usize,
    number: u32,
    at: usize,
    (to, multicast, slot, piece, upto): (Peers, bool, u16, Piece, u64),
    view: &GroupView<'_>,
    wires: &mut Wires,
) -> (bool, bool) {
    let (seq, lane_name) = (operation.seq, operation.lane_name(number));
    let element = operation.signature.dtype.size();
    let (shown_as, bytes) = (operation.number, piece.len * element as u64);
    let own = operation.parts[part].role;
    let stream = (to.count == 1 && operation.program.streams(to.get(0))).then(|| (view.group, own, to.get(0)));
    if stream.is_some_and(|stream| !wires.enter(stream, (seq, number))) {
        paceline_os::reached!("executor: message waits for another of its stream");
        return (false, false);
    }
    let shown = |to: u32| Shown { out: true, from: own, to, ranks: view.ranks, number: shown_as, bytes };
    let mut any = false;
    let lane = &mut operation.parts[part].lanes[at];
    lane.refused = Refused::Not;
    if let Some(ZeroCopySend { rank, ticket, upto }) = lane.zero_copy {
        if !wires.is_complete(rank, ticket) {
            return (false, false);
        }
        lane.zero_copy = None;
        lane.sent.set(0, upto);
        shown(to.get(0)).moved(&mut lane.sent, 0, None, &wires.timeline);
        operation.count(0, false);
        any = true;
    }
    let copies = Copies::new(to, multicast, view, wires);
    let alone = matches!(copies, Copies::Each(Peers { count: 1, .. }));
    let whole = operation.parts[part].space.window().is_none();
    let zero_copy = operation.zero_copy && alone && whole && may_send_zero_copy(operation, part, number, at, piece);
    let signature = operation.between(own, to.get(0));
    let Part { role, space, lanes, .. } = &mut operation.parts[part];
    let lane = &mut lanes[at];
    for k in 0..copies.count() {
        let (receiver, rank) = copies.get(k, view);
        let most = wires.fragment(rank);
        let mut sent = lane.sent.get(k);
        while sent < upto || (sent == 0 && piece.len == 0) {
            let limit = if zero_copy { wires.zero_copy_limit(rank) } else { 0 };
            let run = space.run(piece.off + sent, (upto - sent).min((most.max(limit) / element) as u64));
            let zero_copy = limit > 0 && run.len() >= wires.zero_copy_min();
            let length = if zero_copy { run.len() } else { run.len().min(most / element * element) };
            let run = &mut run[..length];
            let header = FragmentHeader {
                group: view.group,
                seq,
                lane: lane_name,
                slot,
                from: *role as u16,
                to: receiver as u16,
                bytes: run.len() as u32,
                offset: sent,
                signature,
            };
            let began = Shown::begins(&wires.timeline, sent);
            sent += (run.len() / element) as u64;
            sent = if sent == piece.len { ALL } else { sent };
            if zero_copy {
                let Some(ticket) = wires.send_zero_copy(rank, &header, run) else { break };
                lane.zero_copy = Some(ZeroCopySend { rank, ticket, upto: sent });
                if let Some(began) = began {
                    lane.sent.begin(k, began);
                }
                return (true, false);
            }
            if !wires.send(rank, &header, run, sent == ALL) {
                lane.refused.by(rank);
                break;
            }
            any = true;
            operation.moved.count(header.bytes as usize, wires.is_own(rank));
            lane.sent.set(k, sent);
            shown(receiver).moved(&mut lane.sent, k, began, &wires.timeline);
        }
    }
    let complete = lane.sent.complete() == copies.count();
    if let Some(stream) = stream.filter(|_| complete) {
        wires.leave(stream);
    }
    (any, complete)
}
