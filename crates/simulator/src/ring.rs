//! A ring of identical workers, without events.
//!
//! In a ring all-reduce, a piece goes round all workers in rank order, twice; once in a reduce-scatter or all-gather. Where every hop has links of its own and all
//! workers have the same plan, some slower than others, a hop is one queue: each message leaves when it has arrived and the one before it has left,
//! max(arrival, free) + time on the link, and it arrives in the order in which it left. So the simulation is a circle of
//! queues in which every message is one addition and one comparison: no events, no programs, no states of lanes. ResNet-200
//! in 611 buckets over 256 workers has 80 million messages.
//!
//! The result is that of the event loop, to the picosecond and including the rounding of the critical path; only the
//! order of two events at one moment has to be known to say so. A worker's own pieces and those that arrive in the same
//! picosecond come in the order in which their events would have been added, which is the order of the causes; if those
//! too have happened in the same picosecond, the event loop decides ([`run`] gives up).
use std::collections::{HashMap, VecDeque};

use paceline_model::{Cluster, Trace};
use paceline_schedule::{Collective, Step};

use crate::network::fifo::transmission;
use crate::network::topology::{NONE, NetworkLinks};
use crate::options::{Network, Options};
use crate::path::{Chain, Part};
use crate::plan_run::{Passes, PlanRun};
use crate::planning::Factors;
use crate::run_types::{Mark, Prepared};
use crate::worker::{Moments, workers};

/// A piece on its way round: small, because there may be millions of moves of each of many thousands.
#[derive(Clone, Copy)]
struct Token {
    /// At the worker in whose queue it is.
    arrival: u64,
    /// Its number among the pieces of all buckets.
    piece: u32,
    /// Its place among the sizes of pieces.
    size: u16,
    /// Hops that it has still to make.
    left: u16,
}

/// The pieces of a bucket, by the worker at which they start, then in the order of lanes.
struct Pieces(Vec<Piece>);

struct Piece {
    origin: u32,
    /// Among the pieces of all buckets.
    number: u32,
    /// Its place among sizes.
    size: u16,
}

impl Pieces {
    /// Those that start at a worker.
    fn of(&self, worker: u32) -> &[Piece] {
        let from = self.0.partition_point(|it| it.origin < worker);
        let to = self.0.partition_point(|it| it.origin <= worker);
        &self.0[from..to]
    }
}

/// The one piece whose chain of causes is followed, to a worker.
struct Followed<C> {
    piece: u32,
    worker: usize,
    chain: C,
    /// The chain of its last arrival there.
    arrived: C,
}

/// From a worker to the next.
struct Hop {
    /// Which of the rates of hops it has.
    rate: usize,
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

/// Measurements that the event loop would have made.
pub(crate) struct Ringed<C> {
    pub end: Mark<C>,
    /// Picoseconds of computation of each worker.
    pub busy: Vec<u64>,
    /// Of each worker in the last iteration, from its beginning.
    pub moments: Vec<Moments>,
}

struct Circle {
    hops: Vec<Hop>,
    /// For each rate of hops, the time on the link of each size of pieces.
    times: Vec<Vec<u64>>,
    queues: Vec<VecDeque<Token>>,
    /// The largest buffer that was emptied.
    spare: VecDeque<Token>,
    overhead: u64,
    /// The bucket of each piece.
    bucket_of: Vec<u32>,
    buckets: usize,
    /// By worker and bucket: whether its own gradients are ready, to which it adds what arrives. And for each worker, of how
    /// many buckets they are not, and what waits for that.
    is_ready: Vec<bool>,
    not_ready: Vec<usize>,
    early: Vec<Vec<Token>>,
    /// For each worker, the last message that completed a piece there: its arrival, when its head arrived, and its piece.
    last: Vec<(u64, u64, u32)>,
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
    // Each worker is as fast in one iteration as in the next.
    let alike = trace.workers.len() == 1 && cluster.jitter.is_none();
    let links_of_its_own = cluster.racks.is_none()
        && cluster.fabric.is_none()
        && cluster.degraded.is_empty()
        && cluster.host_bandwidth.is_none()
        && cluster.reduction_bandwidth.is_none();
    if !(alike && links_of_its_own) || options.network != Network::Fifo || !options.barrier || roles.workers < 2 {
        return None;
    }
    let passes = prepared.workers.iter().map(PlanRun::passes).collect::<Option<Vec<_>>>()?;
    let (pieces, sizes) = pieces(prepared)?;
    let mut circle = Circle::new(wires, roles.workers, &sizes, &pieces);
    if circle.times.iter().flatten().any(|&time| time == 0) {
        return None;
    }
    let rounds = if prepared.schedule.collective() == Collective::AllReduce { 2 } else { 1 };
    let hops = u16::try_from(rounds * (roles.workers - 1)).ok()?;
    let paces: Vec<Pace> = workers::<()>(trace, cluster, options)
        .iter_mut()
        .map(|worker| {
            worker.vary(cluster);
            Pace::of(&passes[worker.plan], worker.factors)
        })
        .collect();
    let ready = ready(&paces);
    let follows = C::default().parts().is_some();
    let mut end = Mark { time: 0, chain: C::default() };
    for _ in 0..iterations {
        let before = circle.free();
        let mut ended = circle.iteration::<C>(&paces, &ready, &pieces, hops, &end, None).ok()?;
        // Only the chain of the piece that ends the iteration is wanted, and by now it is known which that is.
        if let (true, Some(_)) = (follows, ended.by) {
            circle.rewind(&before);
            ended = circle.iteration(&paces, &ready, &pieces, hops, &end, ended.by).ok()?;
        }
        end = ended.mark;
    }
    for hop in &circle.hops {
        for &link in &hop.links {
            wires.links[link as usize].busy += hop.busy;
        }
        wires.links[hop.links[0] as usize].busy += hop.messages * circle.overhead;
    }
    let compute = |pace: &Pace<'_>| (pace.forward + pace.backward + pace.optimizer) * iterations as u64;
    let moments = paces.iter().map(|pace| Moments {
        iteration: 1,
        backward: pace.forward,
        backward_end: pace.forward + pace.backward,
        ..Moments::default()
    });
    Some(Ringed { end, busy: paces.iter().map(compute).collect(), moments: moments.collect() })
}

/// How long the passes of a worker take, in picoseconds.
struct Pace<'a> {
    passes: &'a Passes,
    forward: u64,
    backward: u64,
    optimizer: u64,
    backward_factor: f64,
}

impl Pace<'_> {
    fn of(passes: &Passes, factors: Factors) -> Pace<'_> {
        Pace {
            passes,
            forward: passes.forward.scaled(factors.forward).0,
            backward: passes.backward.scaled(factors.backward).0,
            optimizer: passes.optimizer.scaled(factors.optimizer).0,
            backward_factor: factors.backward,
        }
    }
}

/// A worker sends pieces of its own.
struct Ready {
    /// From the start of the iteration; and when that was planned, because that decides what comes first at one moment.
    time: u64,
    planned: u64,
    worker: u32,
    bucket: u32,
}

/// When workers send their pieces, in order.
fn ready(paces: &[Pace<'_>]) -> Vec<Ready> {
    let mut all = Vec::with_capacity(paces.iter().map(|pace| pace.passes.ready.len()).sum());
    for (worker, pace) in (0..).zip(paces) {
        let (mut planned, mut last) = (pace.forward, pace.forward);
        for &(at, bucket) in &pace.passes.ready {
            let time = pace.forward + at.scaled(pace.backward_factor).0;
            if time != last {
                (planned, last) = (last, time);
            }
            all.push(Ready { time, planned, worker, bucket });
        }
    }
    all.sort_by_key(|it| it.time);
    all
}

/// For each bucket its pieces, and the sizes of all pieces in bytes.
fn pieces(prepared: &Prepared) -> Option<(Vec<Pieces>, Vec<u64>)> {
    let schedule = prepared.schedule.as_ref();
    let (mut sizes, mut places) = (Vec::new(), HashMap::new());
    let mut first = 0;
    let mut all = Vec::with_capacity(prepared.buckets.len());
    for bucket in &prepared.buckets {
        let lanes = schedule.lanes(bucket);
        let mut starts = Vec::with_capacity(lanes as usize);
        for lane in 0..lanes {
            let origin = schedule.ring_origin(bucket, lane)?;
            let Step::Send { piece, .. } = schedule.step(bucket, origin, lane, 0) else { return None };
            let bytes = piece.len * prepared.element_bytes;
            let place = *places.entry(bytes).or_insert_with(|| {
                sizes.push(bytes);
                sizes.len() - 1
            });
            starts.push(Piece { origin, number: first + lane, size: u16::try_from(place).ok()? });
        }
        starts.sort_by_key(|it| it.origin);
        all.push(Pieces(starts));
        first = lanes.checked_add(first)?;
    }
    Some((all, sizes))
}

/// How an iteration ended.
struct Ended<C> {
    mark: Mark<C>,
    /// The piece whose arrival at a worker ended it; `None`: a backward pass did.
    by: Option<(u32, usize)>,
}

/// A worker sends nothing of its own.
const NOT_DUE: u64 = u64::MAX;

/// Earlier work of a hop.
type Before = Vec<(u64, u64, u64)>;

impl Circle {
    fn new(wires: &NetworkLinks, workers: u32, sizes: &[u64], pieces: &[Pieces]) -> Circle {
        let mut rates: Vec<f64> = Vec::new();
        let hop = |worker| {
            let route = wires.route(worker, (worker + 1) % workers);
            let links: Vec<u32> = route.links.into_iter().filter(|&link| link != NONE).collect();
            let [first, last] = [links[0], links[links.len() - 1]].map(|link| &wires.links[link as usize]);
            debug_assert!(links.iter().all(|&link| wires.links[link as usize].ps_per_byte == first.ps_per_byte));
            let rate = rates.iter().position(|&it| it == first.ps_per_byte).unwrap_or_else(|| {
                rates.push(first.ps_per_byte);
                rates.len() - 1
            });
            Hop {
                rate,
                latency: route.latency,
                first: first.part,
                last: last.part,
                free: 0,
                messages: 0,
                busy: 0,
                links,
            }
        };
        let hops = (0..workers).map(hop).collect();
        let times = |&rate: &f64| sizes.iter().map(|&bytes| transmission(bytes, rate)).collect();
        Circle {
            hops,
            times: rates.iter().map(times).collect(),
            queues: (0..workers).map(|_| VecDeque::new()).collect(),
            spare: VecDeque::new(),
            overhead: wires.overhead,
            bucket_of: (0..).zip(pieces).flat_map(|(bucket, Pieces(all))| all.iter().map(move |_| bucket)).collect(),
            buckets: pieces.len(),
            is_ready: Vec::new(),
            not_ready: Vec::new(),
            early: (0..workers).map(|_| Vec::new()).collect(),
            last: Vec::new(),
        }
    }

    fn free(&self) -> Before {
        self.hops.iter().map(|hop| (hop.free, hop.messages, hop.busy)).collect()
    }

    fn rewind(&mut self, before: &Before) {
        for (hop, &(free, messages, busy)) in self.hops.iter_mut().zip(before) {
            (hop.free, hop.messages, hop.busy) = (free, messages, busy);
        }
    }

    #[inline]
    fn time(&self, hop: usize, size: u16) -> u64 {
        self.times[self.hops[hop].rate][size as usize]
    }

    /// One iteration from its start, on all workers together, to the end of the last worker's. `follow`: the piece that ends it,
    /// and where, whose chain is wanted.
    fn iteration<C: Chain>(
        &mut self,
        paces: &[Pace],
        ready: &[Ready],
        pieces: &[Pieces],
        hops: u16,
        start: &Mark<C>,
        follow: Option<(u32, usize)>,
    ) -> Result<Ended<C>, Ambiguous> {
        let workers = self.queues.len();
        let after = |from: &Mark<C>, time: u64| {
            let mut chain = from.chain;
            chain.add(Part::Compute, time, 0);
            Mark { time: from.time + time, chain }
        };
        let in_backward = |worker: u32, time: u64| {
            let forward = paces[worker as usize].forward;
            after(&after(start, forward), time - forward)
        };
        let mut followed =
            follow.map(|(piece, worker)| Followed { piece, worker, chain: C::default(), arrived: C::default() });
        self.last = vec![(0, 0, 0); workers];
        self.is_ready = vec![false; workers * self.buckets];
        self.not_ready = vec![self.buckets; workers];
        // When each worker's last own pieces were sent, or its backward pass began.
        let mut planned: Vec<u64> = paces.iter().map(|pace| start.time + pace.forward).collect();
        let mut due = vec![NOT_DUE; workers];
        for moment in ready.chunk_by(|a, b| a.time == b.time) {
            let time = start.time + moment[0].time;
            moment.iter().for_each(|it| due[it.worker as usize] = start.time + it.planned);
            self.advance(time, &due, &mut followed)?;
            for it in moment {
                (due[it.worker as usize], planned[it.worker as usize]) = (NOT_DUE, time);
                for token in self.ready(it, &pieces[it.bucket as usize], time, hops) {
                    if let Some(followed) = followed.as_mut().filter(|it| it.piece == token.piece) {
                        followed.chain = in_backward(it.worker, it.time).chain;
                    }
                    self.forward(it.worker as usize, token, &mut followed);
                }
            }
        }
        self.advance(u64::MAX, &due, &mut followed)?;
        let mut end: Option<Ended<C>> = None;
        for (((arrival, head, piece), planned), (worker, pace)) in
            self.last.iter().copied().zip(planned).zip((0..).zip(paces))
        {
            let backward_end = in_backward(worker, pace.forward + pace.backward);
            // The end of the pass is planned with the last gradients.
            if arrival == backward_end.time && (planned == arrival || head == planned) {
                return Err(Ambiguous);
            }
            let is_last = arrival > backward_end.time || arrival == backward_end.time && head > planned;
            let at = followed.as_ref().filter(|it| (it.piece, it.worker) == (piece, worker as usize));
            let chain = at.map_or(C::default(), |it| it.arrived);
            let sums = if is_last { Mark { time: arrival, chain } } else { backward_end };
            let mark = after(&sums, pace.optimizer);
            // Of several that end together, the first rank.
            if end.as_ref().is_none_or(|end| mark.time > end.mark.time) {
                end = Some(Ended { mark, by: is_last.then_some((piece, worker as usize)) });
            }
        }
        end.ok_or(Ambiguous)
    }

    /// Messages that a worker sends when its gradients of a bucket are ready, in the order of lanes: pieces that start there, and
    /// those that have arrived before.
    fn ready(&mut self, ready: &Ready, pieces: &Pieces, now: u64, hops: u16) -> Vec<Token> {
        let worker = ready.worker as usize;
        self.is_ready[worker * self.buckets + ready.bucket as usize] = true;
        self.not_ready[worker] -= 1;
        let own = pieces.of(ready.worker).iter();
        let mut all: Vec<Token> =
            own.map(|it| Token { arrival: now, piece: it.number, size: it.size, left: hops }).collect();
        let bucket_of = &self.bucket_of;
        let early = self.early[worker].extract_if(.., |it| bucket_of[it.piece as usize] == ready.bucket);
        all.extend(early.map(|it| Token { arrival: now, ..it }));
        all.sort_unstable_by_key(|it| it.piece);
        all
    }

    /// Forwards all messages that arrive before `until`, where workers send pieces of their own by an event that was planned
    /// when `due` says.
    fn advance<C: Chain>(
        &mut self,
        until: u64,
        due: &[u64],
        followed: &mut Option<Followed<C>>,
    ) -> Result<(), Ambiguous> {
        let workers = self.queues.len();
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for (worker, &planned) in due.iter().enumerate() {
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
                        if token.arrival > until || planned == NOT_DUE {
                            break;
                        }
                        // A delivery is planned when the head arrives.
                        let head = until - self.time(before, token.size);
                        if head == planned {
                            return Err(Ambiguous);
                        }
                        if head > planned {
                            break;
                        }
                    }
                    let token = *token;
                    self.queues[worker].pop_front();
                    moved = true;
                    if self.not_ready[worker] > 0 {
                        let bucket = self.bucket_of[token.piece as usize] as usize;
                        if !self.is_ready[worker * self.buckets + bucket] {
                            self.early[worker].push(token);
                            continue;
                        }
                    }
                    self.forward(worker, token, followed);
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
    fn forward<C: Chain>(&mut self, worker: usize, mut token: Token, followed: &mut Option<Followed<C>>) {
        let workers = self.queues.len();
        let next = if worker + 1 == workers { 0 } else { worker + 1 };
        let time = self.time(worker, token.size);
        let hop = &mut self.hops[worker];
        let start = token.arrival.max(hop.free);
        hop.free = start + self.overhead + time;
        hop.messages += 1;
        hop.busy += time;
        if let Some(it) = followed.as_mut().filter(|it| it.piece == token.piece) {
            let queued = start - token.arrival;
            it.chain.add(Part::Latency, hop.latency, 0);
            it.chain.add(hop.first, queued, queued);
            it.chain.add(Part::Latency, self.overhead, 0);
            it.chain.add(hop.last, time, 0);
        }
        token.arrival = hop.free + hop.latency;
        token.left -= 1;
        // The first round ends at the last worker of the piece's, the second at all others. A round alone ends at all of them.
        if usize::from(token.left) < workers {
            self.last[next] = (token.arrival, token.arrival - time, token.piece);
            if let Some(it) = followed.as_mut().filter(|it| (it.piece, it.worker) == (token.piece, next)) {
                it.arrived = it.chain;
            }
        }
        if token.left > 0 {
            self.queues[next].push_back(token);
        }
    }
}
