//! Hierarchical all-reduce: inside the node, then between the nodes, then inside the node again.
//!
//! `inside = root`: the node's first rank gathers and adds (the *simple* reduction of the Ray distributed-SGD
//! evaluation), the roots form a ring, and each root sends the sum back. `inside = ring`: a ring reduce-scatter inside
//! the node leaves shard j at one rank, which is in the ring of shard j between the nodes; then a ring all-gather
//! inside the node. With equal nodes, all NICs and all inner links are busy (M. Cho et al., "BlueConnect",
//! MLSys 2019; Horovod's HOROVOD_HIERARCHICAL_ALLREDUCE). The last node may have fewer ranks: shard j is then at rank j
//! mod their number.
//!
//! A reduce-scatter ends where the all-reduce has its sums: the ring of shard r between the nodes ends at the owner's node,
//! at the rank with the owner's position. An all-gather starts there. With `inside = root` the sum is at the root of that
//! node, which hands it to the owner, or takes it from there.
use crate::chunk::Chunk;
use crate::collective::{Collective, ShardLanes, shard};
use crate::note::Note;
use crate::plan::{Entry, Inside, Knob, Knobs, PlanError, Topology};
use crate::schedule::{Link, Links, Roles, Schedule, Volume};
use crate::step::{Bucket, Op, Peers, Piece, Step, at};
use crate::strategies::node::{NodePart, hops};
use crate::strategies::ring::RingPart;

pub(crate) const HIERARCHICAL: Entry = Entry {
    name: "hierarchical",
    aliases: &[],
    summary: "intra-node reduction, ring between nodes",
    knobs: &[Knob::Chunk, Knob::Inside],
    build: |topology, knobs| build(Collective::AllReduce, topology, knobs),
    halves: Some(build),
};

#[expect(clippy::unnecessary_wraps, reason = "the signature of all builders")]
fn build(collective: Collective, topology: &Topology, knobs: &Knobs) -> Result<Box<dyn Schedule>, PlanError> {
    Ok(Box::new(Hierarchical {
        collective,
        topology: topology.clone(),
        inside: knobs.inside,
        chunk: knobs.chunk.unwrap_or(Chunk::PerWorker),
    }))
}

struct Hierarchical {
    collective: Collective,
    topology: Topology,
    inside: Inside,
    chunk: Chunk,
}

const TO_ROOT: u16 = 0;
const REDUCE: u16 = 1;
const SPREAD: u16 = 2;
const FROM_ROOT: u16 = 3;
const HAND_OVER: u16 = 4;

/// The path of a lane.
struct Route {
    piece: Piece,
    /// The position in each node of the rank that holds the node's sum.
    shard: u32,
    /// The node at which the ring between the nodes starts.
    start: u32,
    /// The rank that holds the sum in the end, in a reduce-scatter or all-gather.
    owner: Option<u32>,
}

impl Hierarchical {
    /// Most ranks on any node.
    fn ranks_per_node(&self) -> u32 {
        self.topology.ranks_per_node.min(self.topology.workers)
    }

    /// Pieces that `Chunk::PerWorker` cuts: one per node and shard, so that no link idles.
    fn pieces(&self) -> u32 {
        match self.inside {
            Inside::Root => self.topology.nodes(),
            Inside::Ring => self.topology.nodes() * self.ranks_per_node(),
        }
    }

    fn shard_lanes(&self) -> ShardLanes {
        ShardLanes { chunk: self.chunk, workers: self.topology.workers }
    }

    fn route(&self, bucket: &Bucket, lane: u32) -> Route {
        let (shards, nodes) = (self.ranks_per_node(), self.topology.nodes());
        if self.collective == Collective::AllReduce {
            let number = self.chunk.turn(bucket, lane);
            let (shard, start) = match self.inside {
                Inside::Root => (0, number % nodes),
                Inside::Ring => (number % shards, number / shards % nodes),
            };
            return Route { piece: self.chunk.piece(bucket, self.pieces(), lane), shard, start, owner: None };
        }
        let lanes = self.shard_lanes();
        let owner = lanes.owner(bucket, lane);
        let (node, position) = (owner / self.topology.ranks_per_node, owner % self.topology.ranks_per_node);
        let shard = if self.inside == Inside::Root { 0 } else { position };
        Route { piece: lanes.piece(bucket, lane), shard, start: (node + 1) % nodes, owner: Some(owner) }
    }

    /// The first rank of each node of several hands a sum to its owner, or takes it.
    fn hands_over(&self) -> bool {
        self.collective != Collective::AllReduce && self.inside == Inside::Root && self.ranks_per_node() > 1
    }

    fn is_root(&self, rank: u32) -> bool {
        rank.is_multiple_of(self.topology.ranks_per_node)
    }
}

impl Hierarchical {
    /// Seconds of one half of a bucket in pieces of these elements. The ranks of a node take turns at its NIC. A
    /// reduce-scatter first adds the pieces for all nodes round each node, in rounds of a piece for every node; an
    /// all-gather distributes pieces inside while others arrive, and then the last one.
    fn half_on_nodes(&self, piece: f64, links: Links) -> f64 {
        let (ranks, nodes) = (f64::from(self.ranks_per_node()), f64::from(self.topology.nodes()));
        let [on_nic, on_link] = [links.between, links.inside].map(|link| piece * link.s_per_element);
        let (far, near, hops) = (links.between.latency_s, links.inside.latency_s, ranks - 1.0);
        let of_nic = if ranks > 1.0 && nodes > 1.0 { (nodes - 1.0) * ranks * on_nic + far } else { 0.0 };
        let between = ((nodes - 1.0) * (far + on_nic)).max(of_nic);
        if hops == 0.0 {
            return between;
        }
        let all = nodes * on_link;
        if self.collective.reduces() {
            return between + (hops * all + near).max(hops * (near + on_link) + all - on_link);
        }
        (between + hops * on_link).max(hops * all) + hops * near
    }

    /// Every worker but one sends a piece on its way to the owner, and every worker but one receives it from there; a
    /// root's hand-over comes on top of the way to the owner, and replaces the last message from there.
    fn volume_of_half(&self, bucket: &Bucket) -> Volume {
        let (lanes, workers, nodes) = (self.shard_lanes(), self.topology.workers, self.topology.nodes());
        if workers == 1 || bucket.len == 0 {
            return Volume::default();
        }
        let edges = u64::from(workers - 1);
        let (mut messages, mut elements) = (lanes.used(bucket) * edges, bucket.len * edges);
        let reduces = self.collective.reduces();
        for owner in (0..workers).filter(|&owner| self.hands_over() && reduces && !self.is_root(owner)) {
            messages += lanes.used_of(bucket, owner);
            elements += shard(bucket, workers, owner).len;
        }
        let inside = match (self.ranks_per_node(), self.inside) {
            (1, _) => 0,
            (ranks, Inside::Ring) => u64::from(ranks) - 1,
            // In a node of two, nobody is left to whom a root could send what it has taken.
            (2, Inside::Root) if nodes == 1 && !reduces => 1,
            (_, Inside::Root) => 1 + u64::from(lanes.owners(bucket) > 1),
        };
        Volume { messages, worker_elements: elements, hops: inside + u64::from(nodes) - 1, ..Volume::default() }
    }
}

impl Schedule for Hierarchical {
    fn collective(&self) -> Collective {
        self.collective
    }

    fn roles(&self) -> Roles {
        Roles { workers: self.topology.workers, servers: 0, switches: 0 }
    }

    fn lanes(&self, bucket: &Bucket) -> u32 {
        match self.collective {
            Collective::AllReduce => self.chunk.count(bucket.len, self.pieces()),
            Collective::ReduceScatter | Collective::AllGather => self.shard_lanes().count(bucket),
        }
    }

    fn slots(&self) -> u16 {
        5
    }

    fn senders(&self) -> u32 {
        self.ranks_per_node()
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let (per_node, nodes) = (self.topology.ranks_per_node, self.topology.nodes());
        let Route { piece, shard, start, owner: last } = self.route(bucket, lane);
        if piece.len == 0 {
            return Step::Done;
        }
        let node = role / per_node;
        let (base, size) = (node * per_node, self.topology.ranks_on(node));
        let holder_of = |node: u32| node * per_node + shard % self.topology.ranks_on(node);
        let holder = holder_of(node);
        let slots = (TO_ROOT, FROM_ROOT);
        let part = NodePart { base, size, owner: holder, inside: self.inside, up: piece, down: piece, slots };
        // The owner in this node, if the node's root holds its sum.
        let owner = last.filter(|&owner| self.hands_over() && !self.is_root(owner) && owner / per_node == node);
        let hand_over = |to| Step::Send { to: Peers::one(to), multicast: false, slot: HAND_OVER, piece };
        let take_over = |from| Step::Recv { from: Peers::one(from), slot: HAND_OVER, op: Op::Assign, piece };
        let (reduces, gathers) = (self.collective.reduces(), self.collective.gathers());
        if role != holder {
            let owns = owner == Some(role);
            if owns && !reduces {
                at!(pc, hand_over(holder));
                return Step::Done;
            }
            match part.member_of(self.collective, role, pc) {
                Ok(step) => return step,
                Err(left) => pc = left,
            }
            if owns {
                at!(pc, take_over(holder));
            }
            return Step::Done;
        }
        if let (true, Some(gather)) = (reduces, part.gather()) {
            at!(pc, gather);
        }
        if let (false, Some(owner)) = (reduces, owner) {
            at!(pc, take_over(owner));
        }
        let between = RingPart {
            size: nodes,
            position: (node + nodes - start) % nodes,
            prev: holder_of((node + nodes - 1) % nodes),
            next: holder_of((node + 1) % nodes),
            reduce: REDUCE,
            spread: SPREAD,
            piece,
        };
        match between.step(self.collective, pc) {
            Ok(step) => return step,
            Err(left) => pc = left,
        }
        match (gathers, owner) {
            (true, None) => {
                if let Some(give) = part.give() {
                    at!(pc, give);
                }
            }
            // The owner has it.
            (true, Some(owner)) => {
                for to in [Peers::range(base + 1, owner - base - 1), Peers::range(owner + 1, base + size - owner - 1)] {
                    if to.count > 0 {
                        at!(pc, Step::Send { to, multicast: false, slot: FROM_ROOT, piece });
                    }
                }
            }
            (false, Some(owner)) => {
                at!(pc, hand_over(owner));
            }
            (false, None) => {}
        }
        Step::Done
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        let (workers, nodes) = (u64::from(self.topology.workers), u64::from(self.topology.nodes()));
        if self.collective != Collective::AllReduce {
            return self.volume_of_half(bucket);
        }
        let lanes = u64::from(self.lanes(bucket));
        // Inside a node of m ranks, m-1 messages go in and m-1 come out, for either method.
        let sends = 2 * (workers - nodes) + 2 * (nodes - 1);
        let inside = hops(self.ranks_per_node(), self.inside);
        Volume {
            messages: lanes * sends,
            worker_elements: bucket.len * sends,
            hops: if lanes == 0 { 0 } else { inside + 2 * (nodes - 1) },
            ..Volume::default()
        }
    }

    /// The rings between nodes of all shards share a NIC: while one waits for its piece, others send. They start as
    /// shards complete, so only half of the traffic inside nodes is before or after them, plus the last piece.
    fn closed_form_on_nodes(&self, bucket: &Bucket, links: Links) -> Option<f64> {
        let (ranks, nodes) = (f64::from(self.ranks_per_node()), f64::from(self.topology.nodes()));
        let fine = match self.collective {
            Collective::AllReduce => self.chunk == Chunk::PerWorker,
            Collective::ReduceScatter | Collective::AllGather => !matches!(self.chunk, Chunk::Elements(_)),
        };
        if !fine || self.inside != Inside::Ring {
            return None;
        }
        let len = bucket.len as f64;
        let piece = |link: Link| len / (ranks * nodes) * link.s_per_element;
        let step = (links.between.latency_s + piece(links.between)).max(ranks * piece(links.between));
        if self.collective != Collective::AllReduce {
            return Some(self.half_on_nodes(len / (ranks * nodes), links));
        }
        let between = 2.0 * (nodes - 1.0) * step;
        let half = (ranks - 1.0) / ranks * len * links.inside.s_per_element;
        let after = if nodes > 1.0 { (ranks - 1.0) * piece(links.inside) } else { half };
        Some(between + half + after + 2.0 * (ranks - 1.0) * links.inside.latency_s)
    }

    fn note(&self) -> Option<Note> {
        match (self.ranks_per_node(), self.topology.nodes()) {
            (_, 1) if self.topology.workers > 1 => Some(Note::NoRing),
            (1, _) => Some(Note::RingOfNodes),
            _ => None,
        }
    }
}
