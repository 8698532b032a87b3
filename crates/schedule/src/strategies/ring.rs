//! Ring all-reduce: W-1 hops that add (a reduce-scatter), W-1 hops that distribute the sum (an all-gather).
//!
//! P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009).
//! Lane j is piece j; it starts at one worker and makes 2(W-1) hops. With one piece per worker, piece j starts at
//! worker j, and all links are busy all the time; with whole buckets, bucket p starts at worker p mod W.
//! `ring-multicast` replaces the second round: the worker that completes a piece multicasts it (M. A. Chang et al.,
//! "How to Train your DNN: The Network Operator Edition").
//!
//! Of a reduce-scatter, the piece of shard r starts at worker r+1, so that its sum is complete at worker r, where it
//! starts in an all-gather. A shard is one piece, unless it is to be cut into smaller ones.
//!
//! `baidu-ring` is the ring that Baidu introduced to deep learning (A. Gibiansky, "Bringing HPC Techniques to Deep
//! Learning", 2017; repository baidu-research/baidu-allreduce): one piece per worker, every tensor separately, over
//! MPI's point-to-point messages, without a coordinator. Here it is the ring with these defaults; its callers handle
//! the rest.
use crate::chunk::Chunk;
use crate::collective::{Collective, ShardLanes};
use crate::plan::{Entry, Knob, Knobs, PlanError, Topology};
use crate::schedule::{Link, Links, Roles, Schedule, Volume};
use crate::step::{Bucket, Op, Peers, Piece, Step, at};

pub(crate) const RING: Entry = Entry {
    name: "ring",
    aliases: &["ring-reduce", "baidu-ring"],
    summary: "ring: reduce-scatter in W-1 hops, all-gather in W-1",
    knobs: &[Knob::Chunk],
    build: |topology, knobs| build(Collective::AllReduce, topology, knobs, false),
    halves: Some(|collective, topology, knobs| build(collective, topology, knobs, false)),
};

pub(crate) const RING_MULTICAST: Entry = Entry {
    name: "ring-multicast",
    aliases: &[],
    summary: "ring whose all-gather is a switch multicast",
    knobs: &[Knob::Chunk, Knob::Multicast],
    build: |topology, knobs| build(Collective::AllReduce, topology, knobs, true),
    halves: None,
};

#[expect(clippy::unnecessary_wraps, reason = "the signature of all builders")]
pub(crate) fn build(
    collective: Collective,
    topology: &Topology,
    knobs: &Knobs,
    multicast: bool,
) -> Result<Box<dyn Schedule>, PlanError> {
    Ok(Box::new(Ring {
        collective,
        workers: topology.workers,
        nodes: topology.nodes(),
        chunk: knobs.chunk.unwrap_or(Chunk::PerWorker),
        multicast,
    }))
}

struct Ring {
    collective: Collective,
    workers: u32,
    nodes: u32,
    chunk: Chunk,
    multicast: bool,
}

/// The worker at which a lane of a ring over `size` starts.
pub(crate) fn origin(chunk: Chunk, bucket: &Bucket, lane: u32, size: u32) -> u32 {
    match chunk {
        Chunk::PerWorker => lane % size,
        Chunk::Whole | Chunk::Elements(_) => (bucket.id % size + lane % size) % size,
    }
}

/// One member's part of a ring all-reduce of one piece, or of one half of it; also used between the nodes of a hierarchy.
pub(crate) struct RingPart {
    /// Members.
    pub size: u32,
    /// Hops from the worker where the lane starts.
    pub position: u32,
    /// Previous and next role in the ring.
    pub prev: u32,
    pub next: u32,
    /// Slots of the first and the second round.
    pub reduce: u16,
    pub spread: u16,
    pub piece: Piece,
}

impl RingPart {
    /// Step `pc` of a collective, or the remainder of `pc` after the ring's last step.
    pub fn step(&self, collective: Collective, mut pc: u32) -> Result<Step, u32> {
        if collective.reduces() {
            match self.reduce(pc) {
                Err(left) => pc = left,
                step => return step,
            }
        }
        if collective.gathers() { self.spread(pc) } else { Err(pc) }
    }

    /// The sum is complete at the last member.
    fn reduce(&self, mut pc: u32) -> Result<Step, u32> {
        if self.position > 0 {
            at!(pc, self.recv(self.reduce, Op::Reduce));
        }
        if self.position + 1 < self.size {
            at!(pc, self.send(self.reduce));
        }
        Err(pc)
    }

    /// The complete sum starts at the last member; the one before it need not forward it.
    fn spread(&self, mut pc: u32) -> Result<Step, u32> {
        if self.position + 1 < self.size {
            at!(pc, self.recv(self.spread, Op::Assign));
        }
        if self.size > 1 && self.position + 2 != self.size {
            at!(pc, self.send(self.spread));
        }
        Err(pc)
    }

    fn recv(&self, slot: u16, op: Op) -> Result<Step, u32> {
        Ok(Step::Recv { from: Peers::one(self.prev), slot, op, piece: self.piece })
    }

    fn send(&self, slot: u16) -> Result<Step, u32> {
        Ok(Step::Send { to: Peers::one(self.next), multicast: false, slot, piece: self.piece })
    }
}

impl Ring {
    /// Times round the ring.
    fn rounds(&self) -> u64 {
        u64::from(self.collective.reduces()) + u64::from(self.collective.gathers())
    }

    fn has_piece_per_worker(&self) -> bool {
        match self.collective {
            Collective::AllReduce => self.chunk == Chunk::PerWorker,
            Collective::ReduceScatter | Collective::AllGather => !matches!(self.chunk, Chunk::Elements(_)),
        }
    }

    fn shards(&self) -> ShardLanes {
        ShardLanes { chunk: self.chunk, workers: self.workers }
    }

    /// The worker at which the lane starts to be added, and its piece. The sum is complete at the worker before.
    fn start_and_piece(&self, bucket: &Bucket, lane: u32) -> (u32, Piece) {
        if self.collective == Collective::AllReduce {
            let start = origin(self.chunk, bucket, lane, self.workers);
            return (start, self.chunk.piece(bucket, self.workers, lane));
        }
        let shards = self.shards();
        ((shards.owner(bucket, lane) + 1) % self.workers, shards.piece(bucket, lane))
    }
}

impl Schedule for Ring {
    fn collective(&self) -> Collective {
        self.collective
    }

    fn roles(&self) -> Roles {
        Roles { workers: self.workers, servers: 0, switches: 0 }
    }

    fn lanes(&self, bucket: &Bucket) -> u32 {
        match self.collective {
            Collective::AllReduce => self.chunk.count(bucket.len, self.workers),
            Collective::ReduceScatter | Collective::AllGather => self.shards().count(bucket),
        }
    }

    fn slots(&self) -> u16 {
        2
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let workers = self.workers;
        let (start, piece) = self.start_and_piece(bucket, lane);
        if piece.len == 0 {
            return Step::Done;
        }
        let part = RingPart {
            size: workers,
            position: if role >= start { role - start } else { role + workers - start },
            prev: if role == 0 { workers - 1 } else { role - 1 },
            next: if role + 1 == workers { 0 } else { role + 1 },
            reduce: 0,
            spread: 1,
            piece,
        };
        if !self.multicast || workers == 1 {
            return part.step(self.collective, pc).unwrap_or(Step::Done);
        }
        let last = workers - 1;
        if part.position > 0 {
            at!(pc, Step::Recv { from: Peers::one(part.prev), slot: 0, op: Op::Reduce, piece });
        }
        if part.position == last {
            at!(pc, Step::Send { to: Peers::others(role, workers), multicast: true, slot: 1, piece });
        } else {
            at!(pc, Step::Send { to: Peers::one(part.next), multicast: false, slot: 0, piece });
            let root = if start == 0 { last } else { start - 1 };
            at!(pc, Step::Recv { from: Peers::one(root), slot: 1, op: Op::Assign, piece });
        }
        Step::Done
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        let hops = u64::from(self.workers) - 1;
        let rounds = match (hops, self.multicast) {
            (0, _) => return Volume::default(),
            (_, true) => hops + 1,
            (_, false) => self.rounds() * hops,
        };
        let lanes = match self.collective {
            Collective::AllReduce => u64::from(self.lanes(bucket)),
            Collective::ReduceScatter | Collective::AllGather => self.shards().used(bucket),
        };
        Volume {
            messages: lanes * rounds,
            worker_elements: bucket.len * rounds,
            hops: if lanes == 0 { 0 } else { rounds },
            ..Volume::default()
        }
    }

    fn ring_origin(&self, bucket: &Bucket, lane: u32) -> Option<u32> {
        let (start, piece) = self.start_and_piece(bucket, lane);
        // An all-gather starts where a reduce-scatter ends.
        let first = if self.collective.reduces() { start } else { (start + self.workers - 1) % self.workers };
        (!self.multicast && piece.len > 0).then_some(first)
    }

    /// With one piece per worker of equal size: 2(W-1)(S/WB + a), half of it for each half. With multicast, the second round is one message's
    /// latency and W-1 pieces into each worker, (W-1)S/WB + a; the piece that ends it was the last to be sent.
    fn closed_form(&self, bucket: &Bucket, link: Link) -> Option<f64> {
        let workers = u64::from(self.workers);
        if !self.has_piece_per_worker() || !bucket.len.is_multiple_of(workers) {
            return None;
        }
        let hop = (bucket.len / workers) as f64 * link.s_per_element;
        let hops = (workers - 1) as f64;
        Some(match (self.workers, self.multicast) {
            (1, _) => 0.0,
            (_, false) => self.rounds() as f64 * hops * (hop + link.latency_s),
            (_, true) => 2.0 * hops * hop + (hops + 1.0) * link.latency_s,
        })
    }

    /// Every link forwards 2(W-1) pieces, W-1 in each half. Either the slowest link is always busy, or all wait for a piece to go round
    /// the ring, where as many hops leave a node as there are nodes.
    fn closed_form_on_nodes(&self, bucket: &Bucket, links: Links) -> Option<f64> {
        if !self.has_piece_per_worker() || self.multicast {
            return None;
        }
        let (workers, nodes) = (f64::from(self.workers), f64::from(self.nodes));
        let hop = |link: Link| link.latency_s + bucket.len as f64 / workers * link.s_per_element;
        let leaving = if nodes > 1.0 { nodes } else { 0.0 };
        let round = leaving * hop(links.between) + (workers - leaving) * hop(links.inside);
        let between = if nodes > 1.0 { links.between.s_per_element } else { 0.0 };
        let inside = if workers > nodes { links.inside.s_per_element } else { 0.0 };
        let busiest = bucket.len as f64 * between.max(inside);
        Some(self.rounds() as f64 * (workers - 1.0) / workers * round.max(busiest))
    }
}
