//! The fluid network: messages between the same two roles share one connection, one after the other, and connections
//! share every link max-min fairly, which long-lived TCP flows approximate.
//!
//! Rates change only when a flow begins or ends; in between, progress is linear. All events of one moment are handled
//! before rates are computed, so that an incast of many simultaneous messages costs one solution.
use std::collections::{HashMap, VecDeque};

use paceline_schedule::Peers;

use crate::event::{Event, EventKind};
use crate::event_queue::EventQueue;
use crate::network::maxmin::Solver;
use crate::network::topology::{NONE, NetworkLinks, STAGES};
use crate::observer::Observer;
use crate::path::{Chain, Part};

struct Flow<C> {
    links: Vec<u32>,
    left: f64,
    /// Bytes per picosecond.
    rate: f64,
    started: u64,
    latency: u64,
    /// Receivers, if it is a multicast.
    to: Option<Peers>,
    event: Event<C>,
}

/// Key of a connection, whose messages stay in order; with receivers, if it is a multicast.
type Line<C> = VecDeque<(Event<C>, Option<Peers>)>;

pub(crate) struct Fluid<C> {
    flows: Vec<Flow<C>>,
    /// Messages that wait for an earlier one on the same connection.
    waiting: HashMap<(u32, u32), Line<C>>,
    solver: Solver,
    rates: Vec<f64>,
    settled: u64,
    generation: u64,
    resolve_asked: bool,
}

/// Connection of a sender's multicasts.
const ALL: u32 = u32::MAX;

impl<C: Chain> Fluid<C> {
    pub fn new() -> Self {
        Fluid {
            flows: Vec::new(),
            waiting: HashMap::new(),
            solver: Solver::default(),
            rates: Vec::new(),
            settled: 0,
            generation: 0,
            resolve_asked: false,
        }
    }

    /// A message leaves its sender, now or after earlier ones on its connection.
    pub fn send(&mut self, wires: &NetworkLinks, events: &mut EventQueue<C>, event: Event<C>, to: Option<Peers>) {
        let connection = (event.from(), if to.is_some() { ALL } else { event.to() });
        if let Some(line) = self.waiting.get_mut(&connection) {
            line.push_back((event, to));
            return;
        }
        self.waiting.insert(connection, VecDeque::new());
        self.start(wires, events, event, to, event.time);
    }

    fn start(
        &mut self,
        wires: &NetworkLinks,
        events: &mut EventQueue<C>,
        mut event: Event<C>,
        to: Option<Peers>,
        now: u64,
    ) {
        self.settle(now);
        let (mut links, mut latency) = (Vec::with_capacity(STAGES), 0);
        for receiver in to.unwrap_or(Peers::one(event.to())).iter() {
            let route = wires.route(event.from(), receiver);
            latency = latency.max(route.latency);
            for link in route.links.into_iter().filter(|&link| link != NONE) {
                if !links.contains(&link) {
                    links.push(link);
                }
            }
        }
        event.chain.add(Part::Latency, latency + wires.overhead, 0);
        let first = links.first().map_or(Part::Latency, |&link| wires.links[link as usize].part);
        event.chain.add(first, now - event.time, now - event.time);
        // The fixed cost of a message delays it; it uses no share of a link.
        let latency = latency + wires.overhead;
        self.flows.push(Flow { links, left: event.bytes as f64, rate: 0.0, started: now, latency, to, event });
        self.ask(events, now);
    }

    fn ask(&mut self, events: &mut EventQueue<C>, now: u64) {
        if !std::mem::replace(&mut self.resolve_asked, true) {
            events.push(Event::at_worker(now, EventKind::Resolve, 0, C::default()));
        }
    }

    /// Progress since rates were last computed.
    fn settle(&mut self, now: u64) {
        if now > self.settled {
            let passed = (now - self.settled) as f64;
            self.flows.iter_mut().for_each(|flow| flow.left -= flow.rate * passed);
            self.settled = now;
        }
    }

    /// Computes rates and the time at which the next flow ends.
    pub fn resolve(&mut self, wires: &NetworkLinks, events: &mut EventQueue<C>, now: u64) {
        self.resolve_asked = false;
        self.settle(now);
        self.generation += 1;
        let list = self.flows.iter().map(|flow| flow.links.as_slice());
        let capacity = |link: u32| 1.0 / wires.links[link as usize].ps_per_byte;
        self.solver.solve(capacity, list, wires.links.len(), &mut self.rates);
        let mut next = f64::INFINITY;
        for (flow, &rate) in self.flows.iter_mut().zip(&self.rates) {
            flow.rate = rate;
            next = next.min((flow.left / rate).max(0.0));
        }
        if next.is_finite() {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive time")]
            let time = now + next.ceil() as u64;
            events
                .push(Event { bytes: self.generation, ..Event::at_worker(time, EventKind::FlowEnd, 0, C::default()) });
        }
    }

    /// Delivers the flows that have ended, and starts the messages that waited for them.
    pub fn flow_end<O: Observer>(
        &mut self,
        wires: &mut NetworkLinks,
        events: &mut EventQueue<C>,
        observer: &mut O,
        end: &Event<C>,
    ) {
        if end.bytes != self.generation {
            return;
        }
        let now = end.time;
        self.settle(now);
        // Half a byte: more than the rounding of a picosecond at the fastest rate that units allow.
        let (ended, flows): (Vec<_>, Vec<_>) = std::mem::take(&mut self.flows).into_iter().partition(|f| f.left < 0.5);
        self.flows = flows;
        self.ask(events, now);
        for flow in ended {
            self.deliver(wires, events, observer, &flow, now);
            let connection = (flow.event.from(), if flow.to.is_some() { ALL } else { flow.event.to() });
            let next = self.waiting.get_mut(&connection).and_then(VecDeque::pop_front);
            if let Some((event, to)) = next {
                self.start(wires, events, event, to, now);
            } else {
                self.waiting.remove(&connection);
            }
        }
    }

    fn deliver<O: Observer>(
        &mut self,
        wires: &mut NetworkLinks,
        events: &mut EventQueue<C>,
        observer: &mut O,
        flow: &Flow<C>,
        now: u64,
    ) {
        let mut event = flow.event;
        // Time on the wire is attributed to the link that limited it, which is the one with the least spare rate.
        let slowest = |link: &u32| {
            let users = self.flows.iter().filter(|other| other.links.contains(link)).count();
            (users as f64 + 1.0) * wires.links[*link as usize].ps_per_byte
        };
        let bottleneck = flow.links.iter().copied().max_by(|a, b| slowest(a).total_cmp(&slowest(b)));
        for &link in &flow.links {
            let wire = &mut wires.links[link as usize];
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive time")]
            let alone = (event.bytes as f64 * wire.ps_per_byte + 0.5) as u64;
            wire.busy += alone;
            observer.link(link, flow.started, now, event.inst, event.from(), event.to());
        }
        if let Some(link) = bottleneck {
            let wire = &wires.links[link as usize];
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive time")]
            let alone = (event.bytes as f64 * wire.ps_per_byte) as u64;
            let spent = now - flow.started;
            event.chain.add(wire.part, spent, spent.saturating_sub(alone));
        }
        for receiver in flow.to.unwrap_or(Peers::one(event.to())).iter() {
            events.push(Event { time: now + flow.latency, dst: receiver as u16, kind: EventKind::Delivered, ..event });
        }
    }
}
