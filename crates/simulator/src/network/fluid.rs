//! The fluid network: messages between the same two roles share one connection, one after the other, and connections
//! share every link max-min fairly, which long-lived TCP flows approximate.
//!
//! Rates change only when a flow begins or ends; in between, progress is linear. All events of one moment are handled
//! before rates are computed, so that an incast of many simultaneous messages costs one solution, and a message that
//! follows another on its connection costs none.
//!
//! Nothing is updated before it is needed. Flows on the same path get the same rate, so a path counts what each of its
//! flows has carried so far (its *service*), and a flow ends when that count reaches a value known at its start: a new
//! rate concerns the path, not its flows. Only the first end of each path is an event.
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use paceline_model::cluster::Routing;
use paceline_schedule::Peers;

use crate::event::{Event, EventKind};
use crate::event_queue::EventQueue;
use crate::network::sharing::Sharing;
use crate::network::topology::{NONE, NetworkLinks};
use crate::observer::Observer;
use crate::path::{Chain, Part};

/// Receivers, if it is a multicast.
type Receivers = Option<Peers>;

/// Messages between two roles, or all multicasts of one, which stay in order.
struct Connection<C> {
    busy: bool,
    waiting: VecDeque<(Event<C>, Receivers)>,
    to: Receivers,
    /// [`NONE`] if it crosses no link.
    path: u32,
    latency: u64,
}

/// A message on its way.
struct Flow<C> {
    /// The service at which it ends.
    ends: f64,
    number: u64,
    connection: u32,
    started: u64,
    event: Event<C>,
}

// The heap of the standard library has the greatest first.
impl<C> Ord for Flow<C> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.ends.total_cmp(&self.ends).then(other.number.cmp(&self.number))
    }
}

impl<C> PartialOrd for Flow<C> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<C> PartialEq for Flow<C> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<C> Eq for Flow<C> {}

/// No event is planned.
const NEVER: u64 = u64::MAX;

/// The flows on one path.
struct Line<C> {
    flows: BinaryHeap<Flow<C>>,
    /// Bytes that a flow would have carried that has been there since the path was last idle.
    service: f64,
    /// When `service` was brought up to date.
    settled: u64,
    /// Bytes per picosecond of each flow.
    rate: f64,
    /// When the first flow ends.
    end: u64,
    /// The next event about the path: not later than `end`.
    planned: u64,
    /// It is among the lines whose end must be computed.
    unplanned: bool,
}

impl<C> Line<C> {
    fn settle(&mut self, now: u64) {
        if self.flows.is_empty() {
            self.service = 0.0;
        } else {
            self.service += self.rate * (now - self.settled) as f64;
        }
        self.settled = now;
    }
}

pub(crate) struct Fluid<C> {
    sharing: Sharing,
    connections: Vec<Connection<C>>,
    by_roles: HashMap<(u32, u32), u32>,
    /// By path.
    lines: Vec<Line<C>>,
    unplanned: Vec<u32>,
    /// Empty, kept for its memory.
    ended: Vec<Flow<C>>,
    flows: u64,
    resolve_asked: bool,
    /// Routes depend on the flows of each link, which are counted only then.
    adaptive: bool,
    load: Vec<u32>,
}

/// Connection of a sender's multicasts.
const ALL: u32 = u32::MAX;

impl<C: Chain> Fluid<C> {
    pub fn new(wires: &NetworkLinks) -> Self {
        Fluid {
            sharing: Sharing::new(wires.links.iter().map(|link| 1.0 / link.ps_per_byte)),
            connections: Vec::new(),
            by_roles: HashMap::new(),
            lines: Vec::new(),
            unplanned: Vec::new(),
            ended: Vec::new(),
            flows: 0,
            resolve_asked: false,
            adaptive: wires.fabric.as_ref().is_some_and(|fabric| fabric.routing == Routing::Adaptive),
            load: vec![0; wires.links.len()],
        }
    }

    /// A message leaves its sender, now or after earlier ones on its connection.
    pub fn send(&mut self, wires: &NetworkLinks, events: &mut EventQueue<C>, event: Event<C>, to: Receivers) {
        let roles = (event.from(), if to.is_some() { ALL } else { event.to() });
        let connection = match self.by_roles.get(&roles) {
            Some(&connection) => connection,
            None => {
                let connection = self.connections.len() as u32;
                let (path, latency) = self.path(wires, &event, to);
                self.connections.push(Connection { busy: false, waiting: VecDeque::new(), to, path, latency });
                self.by_roles.insert(roles, connection);
                connection
            }
        };
        let state = &mut self.connections[connection as usize];
        if std::mem::replace(&mut state.busy, true) {
            state.waiting.push_back((event, to));
        } else {
            let now = event.time;
            self.start(wires, events, event, connection, to, now);
        }
    }

    /// The path of a message, to all its receivers, and the latency to the farthest.
    fn path(&mut self, wires: &NetworkLinks, event: &Event<C>, to: Receivers) -> (u32, u64) {
        let (mut links, mut latency) = (Vec::new(), 0);
        for receiver in to.unwrap_or(Peers::one(event.to())).iter() {
            let is_copy = to.is_some();
            let route =
                if is_copy { wires.route_of_copy(event.from(), receiver) } else { wires.route(event.from(), receiver) };
            let load = |link: u32| f64::from(self.load[link as usize]) * wires.links[link as usize].ps_per_byte;
            let middle = if is_copy { None } else { wires.middle(event.from(), receiver, event.message(), load) };
            let mut far = route.latency;
            let [own, out, up, down, into, host] = route.links;
            let mut all = vec![own, out, up, down];
            if let Some((fabric, middle)) = middle {
                all.extend((0..middle.len).map(|at| fabric.link(middle, at)));
                far += fabric.latency(middle);
                fabric.forget((event.from(), receiver), event.message());
            }
            all.extend([into, host]);
            latency = latency.max(far);
            for link in all.into_iter().filter(|&link| link != NONE) {
                if !links.contains(&link) {
                    links.push(link);
                }
            }
        }
        if links.is_empty() {
            return (NONE, latency);
        }
        let path = self.sharing.path(&links);
        while self.lines.len() <= path as usize {
            self.lines.push(Line {
                flows: BinaryHeap::new(),
                service: 0.0,
                settled: 0,
                rate: 0.0,
                end: NEVER,
                planned: NEVER,
                unplanned: false,
            });
        }
        (path, latency)
    }

    fn start(
        &mut self,
        wires: &NetworkLinks,
        events: &mut EventQueue<C>,
        mut event: Event<C>,
        connection: u32,
        to: Receivers,
        now: u64,
    ) {
        if self.adaptive || self.connections[connection as usize].to != to {
            let (path, latency) = self.path(wires, &event, to);
            let state = &mut self.connections[connection as usize];
            (state.to, state.path, state.latency) = (to, path, latency);
        }
        let Connection { path, latency, .. } = self.connections[connection as usize];
        event.chain.add(Part::Latency, latency + wires.overhead, 0);
        if path == NONE {
            Self::arrive(wires, events, latency, to, event, now);
            self.next(wires, events, connection, now);
            return;
        }
        if now > event.time {
            let first = self.sharing.links(path).next().unwrap_or_default();
            event.chain.add(wires.links[first as usize].part, now - event.time, now - event.time);
        }
        self.sharing.add(path);
        if self.adaptive {
            self.sharing.links(path).for_each(|link| self.load[link as usize] += 1);
        }
        self.flows += 1;
        let line = &mut self.lines[path as usize];
        line.settle(now);
        let ends = line.service + event.bytes as f64;
        line.flows.push(Flow { ends, number: self.flows, connection, started: now, event });
        self.plan(events, path, now);
    }

    /// The connection is free: its next message leaves.
    fn next(&mut self, wires: &NetworkLinks, events: &mut EventQueue<C>, connection: u32, now: u64) {
        let state = &mut self.connections[connection as usize];
        match state.waiting.pop_front() {
            Some((event, to)) => self.start(wires, events, event, connection, to, now),
            None => state.busy = false,
        }
    }

    /// The first end of a path must be computed when all events of this moment have been handled.
    fn plan(&mut self, events: &mut EventQueue<C>, path: u32, now: u64) {
        if !std::mem::replace(&mut self.lines[path as usize].unplanned, true) {
            self.unplanned.push(path);
        }
        if !std::mem::replace(&mut self.resolve_asked, true) {
            events.push(Event::at_worker(now, EventKind::Resolve, 0, C::default()));
        }
    }

    /// Computes rates and the times at which flows end.
    pub fn resolve(&mut self, events: &mut EventQueue<C>, now: u64) {
        if !events.is_moment_over() {
            events.push(Event::at_worker(now, EventKind::Resolve, 0, C::default()));
            return;
        }
        self.resolve_asked = false;
        for &path in self.sharing.resolve() {
            let line = &mut self.lines[path as usize];
            line.settle(now);
            if !std::mem::replace(&mut line.unplanned, true) {
                self.unplanned.push(path);
            }
        }
        while let Some(path) = self.unplanned.pop() {
            let line = &mut self.lines[path as usize];
            line.unplanned = false;
            let Some(flow) = line.flows.peek() else { continue };
            line.rate = self.sharing.rate(path);
            let left = (flow.ends - line.service).max(0.0);
            // To the nearest picosecond: equal flows with different rounding errors end together.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive time")]
            let time = (left / line.rate + 0.5) as u64;
            line.end = now + time;
            // An end that is put off is looked at when the event for the old one is due.
            if line.end < line.planned {
                line.planned = line.end;
                events.push(Self::end_of(path, line.end));
            }
        }
    }

    fn end_of(path: u32, time: u64) -> Event<C> {
        Event { inst: path, ..Event::at_worker(time, EventKind::FlowEnd, 0, C::default()) }
    }

    /// Delivers the flows of a path that have ended, and starts the messages that waited for them.
    pub fn flow_end<O: Observer>(
        &mut self,
        wires: &mut NetworkLinks,
        events: &mut EventQueue<C>,
        observer: &mut O,
        event: &Event<C>,
    ) {
        let (path, now) = (event.inst, event.time);
        let line = &mut self.lines[path as usize];
        if line.planned != now {
            return;
        }
        if line.end > now {
            line.planned = line.end;
            events.push(Self::end_of(path, line.end));
            return;
        }
        (line.planned, line.end) = (NEVER, NEVER);
        line.settle(now);
        // Ends are rounded to a picosecond.
        let until = line.service + line.rate;
        let mut ended = std::mem::take(&mut self.ended);
        while line.flows.peek().is_some_and(|flow| flow.ends <= until) {
            ended.extend(line.flows.pop());
        }
        for flow in ended.drain(..) {
            self.sharing.remove(path);
            if self.adaptive {
                self.sharing.links(path).for_each(|link| self.load[link as usize] -= 1);
            }
            self.deliver(wires, events, observer, path, &flow, now);
            self.next(wires, events, flow.connection, now);
        }
        self.ended = ended;
        self.plan(events, path, now);
    }

    fn deliver<O: Observer>(
        &self,
        wires: &mut NetworkLinks,
        events: &mut EventQueue<C>,
        observer: &mut O,
        path: u32,
        flow: &Flow<C>,
        now: u64,
    ) {
        let mut event = flow.event;
        let alone = |ps_per_byte: f64| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive time")]
            let alone = (event.bytes as f64 * ps_per_byte + 0.5) as u64;
            alone
        };
        for link in self.sharing.links(path) {
            let wire = &mut wires.links[link as usize];
            wire.busy += alone(wire.ps_per_byte);
            observer.link(link, flow.started, now, event.inst, event.from(), event.to());
        }
        // Time on the wire is attributed to the link that limits the path.
        let wire = &wires.links[self.sharing.bottleneck(path) as usize];
        let spent = now - flow.started;
        event.chain.add(wire.part, spent, spent.saturating_sub(alone(wire.ps_per_byte)));
        let Connection { latency, to, .. } = self.connections[flow.connection as usize];
        Self::arrive(wires, events, latency, to, event, now);
    }

    /// The fixed cost of a message delays it; it uses no share of a link.
    fn arrive(
        wires: &NetworkLinks,
        events: &mut EventQueue<C>,
        latency: u64,
        to: Receivers,
        event: Event<C>,
        now: u64,
    ) {
        let time = now + latency + wires.overhead;
        for receiver in to.unwrap_or(Peers::one(event.to())).iter() {
            events.push(Event { time, dst: receiver as u16, kind: EventKind::Delivered, ..event });
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_model::cluster::Racks;
    use paceline_model::{Cluster, Rate, Time};
    use paceline_schedule::Roles;
    use proptest::prelude::*;

    use super::*;
    use crate::network::maxmin::Solver;

    /// A message: when it leaves, from where to where, and its bytes.
    type Sent = (u64, u32, u32, u64);

    fn wires(cluster: &Cluster, workers: u32) -> NetworkLinks {
        NetworkLinks::new(cluster, Roles { workers, servers: 0, switches: 0 }, true, 7).unwrap()
    }

    /// Arrival of each message, in seconds.
    fn arrivals(wires: &mut NetworkLinks, messages: &[Sent]) -> Vec<f64> {
        let mut events = EventQueue::new(wires.links.len());
        let mut fluid = Fluid::<()>::new(wires);
        for (number, &(time, from, to, bytes)) in (0..).zip(messages) {
            let event = Event::at_worker(time, EventKind::Head, 0, ());
            events.push(Event { bytes, lane: number, src: from as u16, dst: to as u16, ..event });
        }
        let mut arrivals = vec![f64::NAN; messages.len()];
        loop {
            let event = events.pop();
            match event.kind {
                EventKind::Head => fluid.send(wires, &mut events, event, None),
                EventKind::Resolve => fluid.resolve(&mut events, event.time),
                EventKind::FlowEnd => fluid.flow_end(wires, &mut events, &mut (), &event),
                EventKind::Delivered => arrivals[event.lane as usize] = event.time as f64 * 1e-12,
                _ => return arrivals,
            }
        }
    }

    /// The same without any of the above: every rate is solved anew after every change.
    fn solved_anew(wires: &NetworkLinks, messages: &[Sent]) -> Vec<f64> {
        let mut waiting: Vec<usize> = (0..messages.len()).collect();
        waiting.sort_by_key(|&m| messages[m].0);
        let mut active: Vec<(usize, f64)> = Vec::new();
        let mut arrivals = vec![f64::NAN; messages.len()];
        let (mut now, mut solver, mut rates) = (0.0, Solver::default(), Vec::new());
        let links = |m: usize| -> Vec<u32> {
            wires.route(messages[m].1, messages[m].2).links.into_iter().filter(|&link| link != NONE).collect()
        };
        loop {
            // A connection carries one message at a time.
            waiting.retain(|&m| {
                let (time, from, to, bytes) = messages[m];
                let free = !active.iter().any(|&(other, _)| (messages[other].1, messages[other].2) == (from, to));
                let starts = time as f64 <= now && free;
                if starts {
                    active.push((m, bytes as f64));
                }
                !starts
            });
            let routes: Vec<_> = active.iter().map(|&(m, _)| links(m)).collect();
            let capacity = |link: u32| 1.0 / wires.links[link as usize].ps_per_byte;
            solver.solve(capacity, routes.iter().map(Vec::as_slice), wires.links.len(), &mut rates);
            let leaves = waiting.iter().map(|&m| messages[m].0 as f64).filter(|&time| time > now);
            let ends = active.iter().zip(&rates).map(|((_, left), rate)| now + left / rate);
            let next = leaves.chain(ends).fold(f64::INFINITY, f64::min);
            if next == f64::INFINITY {
                return arrivals;
            }
            for ((_, left), rate) in active.iter_mut().zip(&rates) {
                *left -= rate * (next - now);
            }
            now = next;
            active.retain(|&(m, left)| {
                if left < 1e-6 {
                    arrivals[m] = (now + wires.route(messages[m].1, messages[m].2).latency as f64) * 1e-12;
                }
                left >= 1e-6
            });
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// Messages arrive when they would if all rates were solved anew at every change.
        #[test]
        fn messages_arrive_as_if_solved_anew(
            workers in 2u32..14,
            gpus_per_node in 1u32..4,
            racks in prop::option::of((1u32..4, 1.0f64..6.0)),
            messages in prop::collection::vec((0u64..40, 0u32..14, 1u32..14, 1u64..100), 1..80),
            unit in prop::sample::select(vec![1_000u64, 7_919, 1_000_000]),
        ) {
            let cluster = Cluster {
                bandwidth: Rate(10e9),
                intra_bandwidth: Rate(30e9),
                latency: Time(3_000_000),
                gpus_per_node,
                racks: racks.map(|(nodes_per_rack, oversubscription)| Racks { nodes_per_rack, oversubscription }),
                ..Cluster::default()
            };
            let messages: Vec<Sent> = messages
                .into_iter()
                .map(|(time, from, distance, size)| {
                    let from = from % workers;
                    (time * unit * 400, from, (from + 1 + distance % (workers - 1).max(1)) % workers, size * unit)
                })
                .filter(|&(_, from, to, _)| from != to)
                .collect();
            let mut wires = wires(&cluster, workers);
            let expected = solved_anew(&wires, &messages);
            // Times of events are whole picoseconds, and a message waits for those before it on its connection.
            let rounding = 1e-12 * messages.len() as f64;
            for (ours, theirs) in arrivals(&mut wires, &messages).into_iter().zip(expected) {
                prop_assert!((ours - theirs).abs() <= 1e-6 * theirs + rounding, "{ours} {theirs}");
            }
        }
    }
}
