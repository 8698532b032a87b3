//! The FIFO network: every link carries one message after the other, in the order in which their heads arrive.
//!
//! Forwarding is cut-through: a link forwards the first bit at once, so an idle path costs one transmission time,
//! whatever its length. There is no back-pressure: a queue holds any number of messages. This is the model of M. A.
//! Chang et al., "How to Train your DNN: The Network Operator Edition"; docs/explanation/models.md says when it
//! applies.
use paceline_schedule::Peers;

use crate::event::{Event, EventKind};
use crate::event_queue::EventQueue;
use crate::network::topology::{DOWN, IN, NONE, NetworkLinks, OUT, UP};
use crate::observer::Observer;
use crate::path::{Chain, Part};

/// Picoseconds a message occupies a link.
#[inline]
pub(crate) fn transmission(bytes: u64, ps_per_byte: f64) -> u64 {
    // Sizes and rates are exact in 53 bits, and rounding to a picosecond is the same on every machine.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive time")]
    let time = (bytes as f64 * ps_per_byte + 0.5) as u64;
    time
}

/// Occupies a link from the arrival of the head; returns when the head leaves and when the tail does. `slowest` is the
/// slowest link so far on the path, in picoseconds per byte: the tail cannot arrive faster. The head arrives `early`,
/// in picoseconds, before the event's time, before which the tail cannot leave.
#[inline]
fn occupy<C: Chain, O: Observer>(
    wires: &mut NetworkLinks,
    observer: &mut O,
    link: u32,
    event: &mut Event<C>,
    overhead: u64,
    slowest: f64,
    early: u64,
) -> (u64, u64) {
    let now = event.time;
    let wire = &mut wires.links[link as usize];
    let start = now.saturating_sub(early).max(wire.free);
    let begin = start + overhead;
    let mut end = (begin + transmission(event.bytes, wire.ps_per_byte)).max(now);
    if slowest > wire.ps_per_byte {
        end = end.max(now + transmission(event.bytes, slowest));
    }
    wire.busy += end - start;
    wire.free = end;
    let queued = start.saturating_sub(now);
    event.chain.add(wire.part, queued, queued);
    event.chain.add(Part::Latency, overhead, 0);
    observer.link(link, start, end, event.inst, event.from(), event.to());
    (begin.max(now), end)
}

/// Transmission is counted once, on the last link: with cut-through, all links carry the message at the same time.
#[inline]
fn deliver<C: Chain>(
    wires: &NetworkLinks,
    events: &mut EventQueue<C>,
    link: u32,
    mut event: Event<C>,
    head: u64,
    end: u64,
) {
    event.chain.add(wires.links[link as usize].part, end - head, 0);
    events.push_behind(link, Event { time: end, kind: EventKind::Delivered, ..event });
}

/// Adds a message's contents to the sum, after those that reached the receiver before it.
pub(crate) fn add<C: Chain, O: Observer>(
    wires: &mut NetworkLinks,
    events: &mut EventQueue<C>,
    observer: &mut O,
    mut event: Event<C>,
) {
    let link = wires.adder(event.to());
    let (begin, end) = occupy(wires, observer, link, &mut event, 0, 0.0, 0);
    event.chain.add(wires.links[link as usize].part, end - begin, 0);
    events.push_behind(link, Event { time: end, kind: EventKind::Added, ..event });
}

/// A unicast leaves its sender.
#[inline]
pub(crate) fn send<C: Chain, O: Observer>(
    wires: &mut NetworkLinks,
    events: &mut EventQueue<C>,
    observer: &mut O,
    mut event: Event<C>,
) {
    if wires.uses_fabric(event.from(), event.to()) {
        return send_over_fabric(wires, events, observer, event);
    }
    let (now, route) = (event.time, wires.route(event.from(), event.to()));
    if route.links[OUT as usize] == NONE {
        // From a switch, whose ports are idle or of the next link.
        event.chain.add(Part::Latency, route.latency, 0);
        let stage = route.next(UP).unwrap_or(IN);
        events.push(Event { time: now + route.latency, stage, kind: EventKind::Head, ..event });
        return;
    }
    let overhead = wires.overhead;
    let copies = route.links[0] != NONE;
    let (stage, latency) = if copies { (0, 0) } else { (OUT, route.latency) };
    event.chain.add(Part::Latency, latency, 0);
    let link = route.links[stage as usize];
    let (head, end) = occupy(wires, observer, link, &mut event, overhead, 0.0, 0);
    match route.next(stage + 1) {
        None => deliver(wires, events, link, event, head + latency, end + latency),
        Some(stage) => {
            events.push_behind(link, Event { time: head + latency, stage, kind: EventKind::Head, ..event });
        }
    }
}

/// The same over several switches: the route is decided now.
fn send_over_fabric<C: Chain, O: Observer>(
    wires: &mut NetworkLinks,
    events: &mut EventQueue<C>,
    observer: &mut O,
    mut event: Event<C>,
) {
    let overhead = wires.overhead;
    let place = wires.first_hop(&event);
    event.chain.add(Part::Latency, place.latency, 0);
    let (head, end) = occupy(wires, observer, place.link, &mut event, overhead, 0.0, 0);
    match place.next {
        None => deliver(wires, events, place.link, event, head + place.latency, end + place.latency),
        Some(stage) => {
            let time = head + place.latency;
            events.push_behind(place.link, Event { time, stage, kind: EventKind::Head, ..event });
        }
    }
}

/// The head of a unicast is at the next link.
#[inline]
pub(crate) fn head<C: Chain, O: Observer>(
    wires: &mut NetworkLinks,
    events: &mut EventQueue<C>,
    observer: &mut O,
    mut event: Event<C>,
) {
    let place = wires.hop(&event);
    let early =
        if wires.cuts_through(event.from()) { transmission(event.bytes, wires.links[0].ps_per_byte) } else { 0 };
    let (head, end) = occupy(wires, observer, place.link, &mut event, 0, place.slowest, early);
    event.chain.add(Part::Latency, place.latency, 0);
    match place.next {
        None => deliver(wires, events, place.link, event, head + place.latency, end + place.latency),
        Some(stage) => events.push_behind(place.link, Event { time: head + place.latency, stage, ..event }),
    }
}

/// A multicast leaves its sender: it occupies the sender's link once, one copy goes to each rack, it occupies the link
/// of each receiving node once, and inside a node there is a copy for each rank.
pub(crate) fn multicast<C: Chain, O: Observer>(
    wires: &mut NetworkLinks,
    events: &mut EventQueue<C>,
    observer: &mut O,
    mut event: Event<C>,
    to: Peers,
) {
    let (overhead, home) = (wires.overhead, wires.node(event.from()));
    let mut sent: Option<Event<C>> = None;
    for receiver in to.iter().filter(|&receiver| wires.node(receiver) == home).collect::<Vec<_>>() {
        // The sender's link inside the node is occupied once, however many copies there are.
        let copy = sent.unwrap_or_else(|| {
            let route = wires.route(event.from(), receiver);
            let mut copy = event;
            let (head, _) = occupy(wires, observer, route.links[OUT as usize], &mut copy, overhead, 0.0, 0);
            copy.chain.add(Part::Latency, route.latency, 0);
            Event { time: head + route.latency, kind: EventKind::Inside, ..copy }
        });
        sent = Some(copy);
        events.push(Event { dst: receiver as u16, ..copy });
    }
    let Some(away) = to.iter().find(|&receiver| wires.node(receiver) != home) else { return };
    event = Event { dst: away as u16, kind: EventKind::Multicast, ..event };
    let own = wires.route(event.from(), away).links[0];
    if own == NONE {
        leave(wires, events, observer, event, overhead);
    } else {
        let (head, _) = occupy(wires, observer, own, &mut event, overhead, 0.0, 0);
        events.push_behind(own, Event { time: head, stage: OUT, ..event });
    }
}

/// The head of a multicast is at its sender's NIC.
fn leave<C: Chain, O: Observer>(
    wires: &mut NetworkLinks,
    events: &mut EventQueue<C>,
    observer: &mut O,
    mut event: Event<C>,
    overhead: u64,
) {
    let (home, away) = (wires.node(event.from()), event.to());
    let route = wires.route(event.from(), away);
    let (head, _) = occupy(wires, observer, route.links[OUT as usize], &mut event, overhead, 0.0, 0);
    let latency = route.latency + wires.switch_latency();
    event.chain.add(Part::Latency, latency, 0);
    let event = Event { time: head + latency, ..event };
    let near = wires.ranks_reached(event.from(), wires.rack(home));
    for rank in near.into_iter().filter(|&rank| wires.node(rank) != home) {
        events.push(Event { dst: rank as u16, stage: IN, ..event });
    }
    // The server's own rack may have no workers at all.
    if let Some(other) = wires.racks_reached(event.from()).into_iter().find(|&rack| rack != wires.rack(home)) {
        let rank = wires.ranks_reached(event.from(), other).first().copied().unwrap_or(away);
        events.push(Event { dst: rank as u16, stage: UP, ..event });
    }
}

/// The head of a multicast is at its sender's NIC, the uplink of its rack, the downlink of another rack, or a node.
pub(crate) fn multicast_head<C: Chain, O: Observer>(
    wires: &mut NetworkLinks,
    events: &mut EventQueue<C>,
    observer: &mut O,
    mut event: Event<C>,
) {
    if event.stage == OUT {
        leave(wires, events, observer, event, 0);
        return;
    }
    let place = wires.copy_at_stage(event.from(), event.to(), event.stage);
    let (head, end) = occupy(wires, observer, place.link, &mut event, 0, place.slowest, 0);
    let latency = if event.stage == IN { 0 } else { wires.switch_latency() };
    event.chain.add(Part::Latency, latency, 0);
    let next = Event { time: head + latency, ..event };
    match event.stage {
        UP => {
            let home = wires.rack(wires.node(event.from()));
            for rack in wires.racks_reached(event.from()).into_iter().filter(|&rack| rack != home) {
                let first = wires.ranks_reached(event.from(), rack).first().copied();
                events.push(Event { dst: first.map_or(event.dst, |rank| rank as u16), stage: DOWN, ..next });
            }
        }
        DOWN => {
            let rack = wires.rack(wires.node(event.to()));
            for rank in wires.ranks_reached(event.from(), rack) {
                events.push(Event { dst: rank as u16, stage: IN, ..next });
            }
        }
        _ if wires.ranks_of(event.to()).len() == 1 && !wires.copies => {
            deliver(wires, events, place.link, event, head, end);
        }
        _ => {
            for rank in wires.ranks_of(event.to()) {
                events.push(Event { dst: rank as u16, kind: EventKind::Inside, ..next });
            }
        }
    }
}

/// The head of a copy is at a rank's own link.
pub(crate) fn inside<C: Chain, O: Observer>(
    wires: &mut NetworkLinks,
    events: &mut EventQueue<C>,
    observer: &mut O,
    mut event: Event<C>,
) {
    let (link, before) = wires.last(event.from(), event.to());
    let (head, end) = occupy(wires, observer, link, &mut event, 0, before, 0);
    deliver(wires, events, link, event, head, end);
}
