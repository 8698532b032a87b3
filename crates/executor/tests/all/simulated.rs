//! Ranks in one thread, over channels in memory. A seed determines whose executor runs when, what has arrived by then,
//! and who is late. Failures are reproducible, and an operation that hangs is found at once, without a clock.
//!
//! A [`World`] has an executor for each rank. [`World::run`] takes a [`Task`] list for each rank and plays one event
//! after another: a rank begins its next task, an executor makes progress, a fragment arrives. As in a process, an
//! executor is driven only while it has operations in flight, and queues unexpected fragments only when it finds
//! nothing else to do. When nothing can happen any more, late ranks begin. Then executors force blocking fragments into
//! the queue, as they do after a time without progress. If that does not help either, the operation hangs.
#![allow(unsafe_code, reason = "a zero-copy send is an address")]
use std::collections::VecDeque;
use std::fmt::Write;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use paceline_executor::handle::Handle;
use paceline_executor::{Executor, Limits, Wires};
use paceline_transport::channel::{Channel, SendTicket, Sink};
use paceline_transport::header::FragmentHeader;
use proptest::prelude::{Rng, RngExt};
use proptest::test_runner::{RngAlgorithm, TestRng};

/// Payload of a fragment: a copy, or an address and a length.
enum Payload {
    Copied(Vec<u8>),
    Borrowed(usize, usize),
}

impl Payload {
    fn bytes(&self) -> &[u8] {
        match *self {
            Payload::Copied(ref bytes) => bytes,
            // SAFETY: the sender keeps the memory until the fragment was taken, or cancels before.
            Payload::Borrowed(address, len) => unsafe { std::slice::from_raw_parts(address as *const u8, len) },
        }
    }
}

/// The path between two ranks, in one direction.
#[derive(Default)]
struct InMemoryLink {
    /// In transit.
    sent: VecDeque<(FragmentHeader, Payload)>,
    /// Visible to the receiver; of the last one perhaps only the header.
    arrived: VecDeque<(FragmentHeader, Payload)>,
    torn: bool,
    /// Fragments so far.
    taken: u32,
}

impl InMemoryLink {
    fn held(&self) -> usize {
        self.sent.len() + self.arrived.len()
    }

    /// The number of the next fragment.
    fn next(&self) -> u32 {
        self.taken + self.held() as u32
    }

    fn moves(&self) -> bool {
        self.torn || !self.sent.is_empty()
    }

    /// Delivers the rest of a torn fragment, or the next one; `torn`: only its header.
    fn arrive(&mut self, torn: bool) {
        if self.torn {
            self.torn = false;
        } else if let Some(fragment) = self.sent.pop_front() {
            self.arrived.push_back(fragment);
            self.torn = torn;
        }
    }
}

type SharedLink = Arc<Mutex<InMemoryLink>>;

fn locked(link: &SharedLink) -> MutexGuard<'_, InMemoryLink> {
    link.lock().expect("a channel panicked")
}

/// A rank's end of the two links to a peer.
struct Memory {
    outgoing: SharedLink,
    incoming: SharedLink,
    network: Network,
    rng: TestRng,
    refused: bool,
}

impl Memory {
    /// The number of the fragment, if there is room.
    fn put(&mut self, header: &FragmentHeader, payload: impl FnOnce() -> Payload) -> Option<u32> {
        let mut link = locked(&self.outgoing);
        let number = link.next();
        let room = link.held() < self.network.fragments;
        // As if the peer made room just afterwards: the next lane that asks is not refused.
        self.refused = room && !self.refused && self.rng.next_u32().is_multiple_of(4);
        (room && !self.refused).then(|| {
            link.sent.push_back((*header, payload()));
            number
        })
    }
}

impl Channel for Memory {
    fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool> {
        assert!(payload.len() <= self.network.fragment && payload.len() == header.bytes as usize);
        Ok(self.put(header, || Payload::Copied(payload.to_vec())).is_some())
    }

    fn zero_copy_limit(&self) -> usize {
        self.network.zero_copy
    }

    fn send_zero_copy(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<Option<SendTicket>> {
        assert!(payload.len() <= self.network.zero_copy && payload.len() == header.bytes as usize);
        Ok(self.put(header, || Payload::Borrowed(payload.as_ptr() as usize, payload.len())).map(SendTicket))
    }

    fn is_complete(&mut self, ticket: SendTicket) -> bool {
        locked(&self.outgoing).taken > ticket.0
    }

    fn cancel(&mut self, ticket: SendTicket) {
        let mut link = locked(&self.outgoing);
        let Some(at) = ticket.0.checked_sub(link.taken).map(|at| at as usize) else { return };
        let arrived = link.arrived.len();
        let payload = if at < arrived { link.arrived.get_mut(at) } else { link.sent.get_mut(at - arrived) };
        if let Some((_, payload)) = payload {
            *payload = Payload::Copied(vec![0; payload.bytes().len()]); // nobody completes an operation with it
        }
    }

    fn front(&mut self) -> io::Result<Option<FragmentHeader>> {
        Ok(locked(&self.incoming).arrived.front().map(|(header, _)| *header))
    }

    fn take(&mut self, sink: Sink<'_>) -> io::Result<bool> {
        let mut link = locked(&self.incoming);
        let torn = link.torn && link.arrived.len() == 1;
        let Some((_, payload)) = link.arrived.front() else { return Ok(false) };
        let payload = payload.bytes();
        match sink {
            // As a socket does: what has come is where it belongs already.
            Sink::Into(to) if torn => to[..payload.len() / 2].copy_from_slice(&payload[..payload.len() / 2]),
            _ if torn => {}
            Sink::Into(to) => to.copy_from_slice(payload),
            Sink::Show(show) => show(0, payload),
            Sink::Drop => {}
        }
        if !torn {
            link.arrived.pop_front();
            link.taken += 1;
        }
        Ok(!torn)
    }

    fn fragment(&self) -> usize {
        self.network.fragment
    }

    fn far(&self) -> bool {
        self.network.far
    }

    fn name(&self) -> &'static str {
        "memory"
    }
}

/// The network of the ranks.
#[derive(Clone, Debug)]
pub struct Network {
    /// Of the order of events.
    pub seed: u64,
    /// Bytes of a fragment, and fragments that a channel holds.
    pub fragment: usize,
    pub fragments: usize,
    /// Most bytes of a zero-copy send, more than of other fragments; 0: no zero-copy sends.
    pub zero_copy: usize,
    /// Whether channels say that a network is between.
    pub far: bool,
    /// Of every executor.
    pub limits: Limits,
}

/// Begins an operation.
pub type Begins = Box<dyn FnOnce(&mut Executor) -> Arc<Handle>>;

/// A rank's next task.
pub struct Task {
    pub begin: Begins,
    /// Not before nothing else happens anywhere.
    pub late: bool,
    /// The rank begins nothing more before it is over.
    pub waits: bool,
}

#[derive(Default)]
struct Progress {
    left: VecDeque<Task>,
    begun: Vec<Arc<Handle>>,
    /// Of these, the one that is waited for.
    awaited: Option<Arc<Handle>>,
}

impl Progress {
    fn busy(&self) -> bool {
        self.begun.iter().any(|handle| !handle.done())
    }

    fn over(&self) -> bool {
        self.left.is_empty() && !self.busy()
    }
}

fn rng(seed: u64) -> TestRng {
    let seed: Vec<u8> = seed.to_le_bytes().iter().copied().cycle().take(32).collect();
    TestRng::from_seed(RngAlgorithm::ChaCha, &seed)
}

/// Steps of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Events.
    pub events: u64,
    /// How often nothing moved until fragments were put aside whatever was held already.
    pub forced: u64,
    /// How often not even that helped, and more of the sums that stream through a process were put aside.
    pub widened: u64,
}

/// Ranks and what is between them.
pub struct World {
    pub executors: Vec<Executor>,
    /// By sender and receiver.
    links: Vec<Vec<SharedLink>>,
    ranks: Vec<Progress>,
    rng: TestRng,
    effort: Effort,
}

impl World {
    /// Without communicators.
    pub fn new(ranks: u32, network: &Network) -> World {
        let links: Vec<Vec<SharedLink>> =
            (0..ranks).map(|_| (0..ranks).map(|_| SharedLink::default()).collect()).collect();
        let channel = |me: usize, peer: usize| -> Option<Box<dyn Channel>> {
            let (outgoing, incoming) = (links[me][peer].clone(), links[peer][me].clone());
            let rng = rng(network.seed.wrapping_add((me * 97 + peer) as u64 + 1));
            let channel = Memory { outgoing, incoming, network: network.clone(), rng, refused: false };
            (me != peer).then(|| Box::new(channel) as Box<dyn Channel>)
        };
        let executors = (0..ranks as usize).map(|me| {
            let channels = (0..ranks as usize).map(|peer| channel(me, peer)).collect();
            Executor::with_limits(Wires::new(me as u32, channels), network.limits)
        });
        let executors = executors.collect();
        let rng = rng(network.seed);
        let ranks = (0..ranks).map(|_| Progress::default()).collect();
        World { executors, links, ranks, rng, effort: Effort::default() }
    }

    /// Plays until all tasks of all ranks are over, or says what hangs. `patient`: nothing is forced while somebody late
    /// has not begun.
    pub fn run(&mut self, tasks: Vec<Vec<Task>>, patient: bool) -> Result<Effort, String> {
        self.effort = Effort::default();
        for (rank, tasks) in self.ranks.iter_mut().zip(tasks) {
            rank.left.extend(tasks);
        }
        let mut idle = 0;
        while !self.ranks.iter().all(Progress::over) {
            self.effort.events += 1;
            idle = if self.play_any() { 0 } else { idle + 1 };
            if idle > 4 * self.ranks.len() {
                idle = 0;
                // Twice, for channels refuse once what they take then.
                if !self.play_first() && !self.play_first() && !self.play_last(patient) {
                    return Err(self.describe());
                }
            }
        }
        Ok(self.effort)
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.rng.next_u32().is_multiple_of(one_in)
    }

    fn any_rank(&mut self) -> usize {
        self.rng.random_range(0..self.ranks.len())
    }

    /// An event of those that can happen, or perhaps cannot; whether it did.
    fn play_any(&mut self) -> bool {
        let rank = self.any_rank();
        match self.rng.next_u32() % 8 {
            0 => self.begin(rank, false),
            1..4 => {
                let (from, to) = (self.any_rank(), rank);
                let mut any = false;
                for _ in 0..self.rng.random_range(1..4) {
                    let torn = self.chance(4);
                    let mut link = locked(&self.links[from][to]);
                    any |= link.moves();
                    link.arrive(torn);
                }
                any
            }
            _ => {
                let moved = self.progress(rank);
                // Whoever finds nothing to do looks some more times before it copies.
                moved || (self.chance(3) && self.queue_unexpected(rank))
            }
        }
    }

    /// Whatever can happen; whether anything can.
    fn play_first(&mut self) -> bool {
        for link in self.links.iter().flatten() {
            let mut link = locked(link);
            if link.moves() {
                link.arrive(false);
                return true;
            }
        }
        let ranks = 0..self.ranks.len();
        ranks.clone().any(|rank| self.begin(rank, false))
            || ranks.clone().any(|rank| self.progress(rank))
            || ranks.clone().any(|rank| self.queue_unexpected(rank))
    }

    /// Plays an event that happens only after idle time.
    fn play_last(&mut self, patient: bool) -> bool {
        let first = if patient { 0 } else { self.any_rank() };
        let mut ranks: Vec<usize> = (0..self.ranks.len()).collect();
        ranks.rotate_left(first);
        let force_first = !patient && self.chance(2);
        if !force_first && ranks.iter().any(|&rank| self.begin(rank, true)) {
            return true;
        }
        // As whoever drives does: all that is in the way, and of sums more each time.
        for &rank in ranks.iter().filter(|&&rank| self.ranks[rank].busy()) {
            if self.executors[rank].queue_unexpected(true) {
                self.effort.forced += 1;
                return true;
            }
        }
        if ranks.iter().any(|&rank| self.begin(rank, true)) {
            return true;
        }
        let mut widened = false;
        for &rank in ranks.iter().filter(|&&rank| self.ranks[rank].busy()) {
            widened |= self.executors[rank].queue_unexpected_streams();
        }
        self.effort.widened += u64::from(widened);
        widened
    }

    fn begin(&mut self, rank: usize, late: bool) -> bool {
        let Progress { left, begun, awaited } = &mut self.ranks[rank];
        if awaited.as_ref().is_some_and(|handle| !handle.done()) {
            return false;
        }
        if left.front().is_none_or(|task| task.late != late) {
            return false;
        }
        let Some(task) = left.pop_front() else { return false };
        let handle = (task.begin)(&mut self.executors[rank]);
        *awaited = task.waits.then(|| handle.clone());
        begun.push(handle);
        true
    }

    fn progress(&mut self, rank: usize) -> bool {
        let executor = &mut self.executors[rank];
        let moved = (self.ranks[rank].busy() || executor.wires().unflushed()) && executor.progress();
        assert!(executor.failures.is_empty(), "{:?}", executor.failures);
        moved
    }

    fn queue_unexpected(&mut self, rank: usize) -> bool {
        self.ranks[rank].busy() && self.executors[rank].queue_unexpected(false)
    }

    /// Where everything stands.
    fn describe(&self) -> String {
        let mut text = format!("operations hang, {:?}\n", self.effort);
        for (rank, Progress { left, begun, .. }) in self.ranks.iter().enumerate() {
            let over: Vec<_> = begun.iter().map(|handle| handle.done()).collect();
            let _ = writeln!(text, "rank {rank}: over {over:?}, not begun {}", left.len());
        }
        for (from, links) in self.links.iter().enumerate() {
            for (to, link) in links.iter().enumerate() {
                let link = locked(link);
                if let Some((header, _)) = link.arrived.front() {
                    let _ = writeln!(text, "{from} -> {to}: {} fragments, first {header:?}", link.held());
                }
            }
        }
        text
    }
}
