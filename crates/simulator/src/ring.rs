//! A ring of identical workers, without events.
//!
//! In a ring all-reduce, a piece goes round all workers in rank order, twice; once in a reduce-scatter or all-gather. Where every hop has links of its own and all
//! workers compute alike, a hop is one queue: each message leaves when it has arrived and the one before it has left,
//! max(arrival, free) + time on the link, and it arrives in the order in which it left. So the simulation is a circle of
//! queues in which every message is one addition and one comparison: no events, no programs, no states of lanes. ResNet-200
//! in 611 buckets over 256 workers has 80 million messages.
//!
//! The result is that of the event loop, to the picosecond and including the rounding of the critical path; only the
//! order of two events at one moment has to be known to say so. A worker's own pieces and those that arrive in the same
//! picosecond come in the order in which their events would have been added, which is the order of the causes; if those
//! too have happened in the same picosecond, the event loop decides ([`run`] gives up).
use std::collections::VecDeque;

use paceline_model::{Cluster, Trace};
use paceline_schedule::{Collective, Step};

use crate::network::fifo::transmission;
use crate::network::topology::{NONE, NetworkLinks};
use crate::options::{Network, Options};
use crate::path::{Chain, Part};
use crate::plan_run::Passes;
use crate::prepare::Prepared;
use crate::simulation::Mark;

/// A piece on its way round.
#[derive(Clone, Copy)]
struct Token<C> {
    /// At the worker in whose queue it is.
    arrival: u64,
    bytes: u64,
    /// Hops that it has still to make.
    left: u32,
    chain: C,
}

/// From a worker to the next.
struct Hop {
    ps_per_byte: f64,
    latency: u64,
    first: Part,
    last: Part,
    /// When the last message has left.
    free: u64,
    messages: u64,
    /// Picoseconds of transmission, without the messages' fixed costs.
    busy: u64,
    links: Vec<u32>,
}

/// What the event loop would have measured.
pub(crate) struct Ringed<C> {
    pub end: Mark<C>,
    /// Picoseconds of computation of each worker.
    pub busy: Vec<u64>,
}

struct Circle<C> {
    hops: Vec<Hop>,
    queues: Vec<VecDeque<Token<C>>>,
    /// The largest buffer that was emptied.
    spare: VecDeque<Token<C>>,
    overhead: u64,
    /// For each worker, the last message that completed a piece there: its arrival, when its head arrived, and its chain.
    last: Vec<(u64, u64, C)>,
}

/// Two events happened in the same picosecond for causes of the same picosecond.
struct Ambiguous;

/// Simulates the iterations, if the workers form such a ring.
pub(crate) fn run<C: Chain>(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    prepared: &Prepared,
    wires: &mut NetworkLinks,
    iterations: usize,
) -> Option<Ringed<C>> {
    let roles = prepared.schedule.roles();
    let alike = prepared.workers.len() == 1
        && trace.backward_spread == 0.0
        && options.spread == 0.0
        && cluster.node_contention == 0.0
        && cluster.jitter.is_none()
        && cluster.stragglers.iter().all(|&(_, factor)| factor == 1.0);
    let links_of_its_own = cluster.racks.is_none()
        && cluster.fabric.is_none()
        && cluster.degraded.is_empty()
        && cluster.host_bandwidth.is_none()
        && cluster.reduction_bandwidth.is_none();
    if !(alike && links_of_its_own) || options.network != Network::Fifo || !options.barrier || roles.workers < 2 {
        return None;
    }
    let passes = prepared.workers[0].passes()?;
    let pieces = pieces(prepared)?;
    let mut circle = Circle::<C>::new(wires, roles.workers);
    if pieces.iter().flatten().any(|&(_, bytes)| circle.hops.iter().any(|hop| hop.time(bytes) == 0)) {
        return None;
    }
    let mut end = Mark { time: 0, chain: C::default() };
    for _ in 0..iterations {
        end = circle.iteration(prepared, &passes, &pieces, &end).ok()?;
    }
    for hop in &circle.hops {
        for &link in &hop.links {
            wires.links[link as usize].busy += hop.busy;
        }
        wires.links[hop.links[0] as usize].busy += hop.messages * circle.overhead;
    }
    let compute = passes.forward.0 + passes.backward.0 + passes.optimizer.0;
    Some(Ringed { end, busy: vec![compute * iterations as u64; roles.workers as usize] })
}

/// For each bucket its pieces, in the order of lanes: the worker at which each starts, and its bytes.
fn pieces(prepared: &Prepared) -> Option<Vec<Vec<(u32, u64)>>> {
    let schedule = prepared.schedule.as_ref();
    let of_bucket = |bucket| {
        (0..schedule.lanes(bucket)).map(|lane| {
            let origin = schedule.ring_origin(bucket, lane)?;
            match schedule.step(bucket, origin, lane, 0) {
                Step::Send { piece, .. } => Some((origin, piece.len * prepared.element_bytes)),
                _ => None,
            }
        })
    };
    prepared.buckets.iter().map(|bucket| of_bucket(bucket).collect()).collect()
}

impl Hop {
    #[inline]
    fn time(&self, bytes: u64) -> u64 {
        transmission(bytes, self.ps_per_byte)
    }
}

impl<C: Chain> Circle<C> {
    fn new(wires: &NetworkLinks, workers: u32) -> Circle<C> {
        let hop = |worker| {
            let route = wires.route(worker, (worker + 1) % workers);
            let links: Vec<u32> = route.links.into_iter().filter(|&link| link != NONE).collect();
            let [first, last] = [links[0], links[links.len() - 1]].map(|link| &wires.links[link as usize]);
            debug_assert!(links.iter().all(|&link| wires.links[link as usize].ps_per_byte == first.ps_per_byte));
            Hop {
                ps_per_byte: first.ps_per_byte,
                latency: route.latency,
                first: first.part,
                last: last.part,
                free: 0,
                messages: 0,
                busy: 0,
                links,
            }
        };
        Circle {
            hops: (0..workers).map(hop).collect(),
            queues: (0..workers).map(|_| VecDeque::new()).collect(),
            spare: VecDeque::new(),
            overhead: wires.overhead,
            last: Vec::new(),
        }
    }

    /// One iteration from its start, on all workers, to the end of the last worker's.
    fn iteration(
        &mut self,
        prepared: &Prepared,
        worker: &Passes,
        pieces: &[Vec<(u32, u64)>],
        start: &Mark<C>,
    ) -> Result<Mark<C>, Ambiguous> {
        let workers = self.queues.len();
        let rounds = if prepared.schedule.collective() == Collective::AllReduce { 2 } else { 1 };
        let after = |from: &Mark<C>, time: u64| {
            let mut chain = from.chain;
            chain.add(Part::Compute, time, 0);
            Mark { time: from.time + time, chain }
        };
        let backward_start = after(start, worker.forward.0);
        let backward_end = after(&backward_start, worker.backward.0);
        self.last = vec![(0, 0, C::default()); workers];
        let mut planned = backward_start.time;
        let mut ready = worker.ready.as_slice();
        while let Some(&(at, _)) = ready.first() {
            let count = ready.iter().take_while(|(time, _)| *time == at).count();
            let now = after(&backward_start, at.0);
            self.advance(now.time, planned)?;
            for &(_, bucket) in &ready[..count] {
                for &(origin, bytes) in &pieces[bucket as usize] {
                    let left = rounds * (workers as u32 - 1);
                    self.forward(origin as usize, Token { arrival: now.time, bytes, left, chain: now.chain });
                }
            }
            planned = now.time;
            ready = &ready[count..];
        }
        self.advance(u64::MAX, 0)?;
        let mut end: Option<Mark<C>> = None;
        for &(arrival, head, chain) in &self.last {
            // The end of the pass is planned with the last gradients.
            if arrival == backward_end.time && (planned == arrival || head == planned) {
                return Err(Ambiguous);
            }
            let is_last = arrival > backward_end.time || arrival == backward_end.time && head > planned;
            let sums = if is_last { Mark { time: arrival, chain } } else { backward_end };
            let done = after(&sums, worker.optimizer.0);
            // Of several that end together, the first rank.
            if end.as_ref().is_none_or(|end| done.time > end.time) {
                end = Some(done);
            }
        }
        end.ok_or(Ambiguous)
    }

    /// Forwards all messages that arrive before `until`, where each worker sends pieces of its own by an event that was
    /// planned at `planned`.
    fn advance(&mut self, until: u64, planned: u64) -> Result<(), Ambiguous> {
        let workers = self.queues.len();
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for worker in 0..workers {
                let incoming = self.queues[worker].len();
                if incoming == 0 {
                    continue;
                }
                let next = if worker + 1 == workers { 0 } else { worker + 1 };
                // Buffers are handed on, because at times all messages pass from one worker to the next.
                if self.queues[next].capacity() < self.queues[next].len() + incoming
                    && self.spare.capacity() > self.queues[next].capacity()
                {
                    let mut larger = std::mem::take(&mut self.spare);
                    larger.extend(self.queues[next].drain(..));
                    self.queues[next] = larger;
                }
                let before = if worker == 0 { workers - 1 } else { worker - 1 };
                while let Some(token) = self.queues[worker].front() {
                    if token.arrival >= until {
                        if token.arrival > until {
                            break;
                        }
                        // A delivery is planned when the head arrives.
                        let head = until - self.hops[before].time(token.bytes);
                        if head == planned {
                            return Err(Ambiguous);
                        }
                        if head > planned {
                            break;
                        }
                    }
                    let token = *token;
                    self.queues[worker].pop_front();
                    self.forward(worker, token);
                    moved = true;
                }
                if self.queues[worker].is_empty() {
                    let emptied = std::mem::take(&mut self.queues[worker]);
                    if emptied.capacity() > self.spare.capacity() {
                        self.spare = emptied;
                    }
                }
            }
        }
        Ok(())
    }

    /// A message leaves a worker, after those before it.
    #[inline]
    fn forward(&mut self, worker: usize, mut token: Token<C>) {
        let workers = self.queues.len();
        let next = if worker + 1 == workers { 0 } else { worker + 1 };
        let hop = &mut self.hops[worker];
        let start = token.arrival.max(hop.free);
        let time = hop.time(token.bytes);
        let queued = start - token.arrival;
        hop.free = start + self.overhead + time;
        hop.messages += 1;
        hop.busy += time;
        token.chain.add(Part::Latency, hop.latency, 0);
        token.chain.add(hop.first, queued, queued);
        token.chain.add(Part::Latency, self.overhead, 0);
        token.chain.add(hop.last, time, 0);
        token.arrival = hop.free + hop.latency;
        token.left -= 1;
        // The first round ends at the last worker of the piece's, the second at all others. A round alone ends at all of them.
        if token.left < workers as u32 {
            self.last[next] = (token.arrival, token.arrival - time, token.chain);
        }
        if token.left > 0 {
            self.queues[next].push_back(token);
        }
    }
}
