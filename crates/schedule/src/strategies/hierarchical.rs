//! Hierarchical all-reduce: inside the node, then between the nodes, then inside the node again.
//!
//! `inside = root`: the node's first rank gathers and adds (the *simple* reduction of the Ray distributed-SGD
//! evaluation), the roots form a ring, and each root sends the sum back. `inside = ring`: a ring reduce-scatter inside
//! the node leaves shard j at one rank, which is in the ring of shard j between the nodes; then a ring all-gather
//! inside the node. With equal nodes, all NICs and all inner links are busy (M. Cho et al., "BlueConnect",
//! MLSys 2019; Horovod's HOROVOD_HIERARCHICAL_ALLREDUCE). The last node may have fewer ranks: shard j is then at rank j
//! mod their number.
use crate::collective::Collective;
use crate::plan::{Chunk, Entry, Inside, Knob, Knobs, PlanError, Topology};
use crate::schedule::{Link, Links, Roles, Schedule, Volume};
use crate::step::{Bucket, Step, at};
use crate::strategies::node::{NodePart, hops};
use crate::strategies::ring::RingPart;

pub(crate) const HIERARCHICAL: Entry = Entry {
    name: "hierarchical",
    aliases: &[],
    summary: "reduction inside the node, ring between nodes",
    knobs: &[Knob::Chunk, Knob::Inside],
    build,
    halves: None,
};

#[expect(clippy::unnecessary_wraps, reason = "the signature of all builders")]
fn build(topology: &Topology, knobs: &Knobs) -> Result<Box<dyn Schedule>, PlanError> {
    Ok(Box::new(Hierarchical {
        topology: topology.clone(),
        inside: knobs.inside,
        chunk: knobs.chunk.unwrap_or(Chunk::PerWorker),
    }))
}

struct Hierarchical {
    topology: Topology,
    inside: Inside,
    chunk: Chunk,
}

const TO_ROOT: u16 = 0;
const REDUCE: u16 = 1;
const SPREAD: u16 = 2;
const FROM_ROOT: u16 = 3;

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

    /// The shard of a lane inside the node, and the node at which its ring between the nodes starts.
    fn shard_and_origin(&self, bucket: &Bucket, lane: u32) -> (u32, u32) {
        let (shards, nodes) = (self.ranks_per_node(), self.topology.nodes());
        let number = self.chunk.turn(bucket, lane);
        match self.inside {
            Inside::Root => (0, number % nodes),
            Inside::Ring => (number % shards, number / shards % nodes),
        }
    }
}

impl Schedule for Hierarchical {
    fn roles(&self) -> Roles {
        Roles { workers: self.topology.workers, servers: 0, switches: 0 }
    }

    fn lanes(&self, bucket: &Bucket) -> u32 {
        self.chunk.count(bucket.len, self.pieces())
    }

    fn slots(&self) -> u16 {
        4
    }

    fn senders(&self) -> u32 {
        self.ranks_per_node()
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let (per_node, nodes) = (self.topology.ranks_per_node, self.topology.nodes());
        let (shard, start) = self.shard_and_origin(bucket, lane);
        let piece = self.chunk.piece(bucket, self.pieces(), lane);
        let node = role / per_node;
        let (base, size) = (node * per_node, self.topology.ranks_on(node));
        let owner_of = |node: u32| node * per_node + shard % self.topology.ranks_on(node);
        let owner = owner_of(node);
        let slots = (TO_ROOT, FROM_ROOT);
        let part = NodePart { base, size, owner, inside: self.inside, up: piece, down: piece, slots };
        if role != owner {
            return part.member(role, pc);
        }
        if let Some(gather) = part.gather() {
            at!(pc, gather);
        }
        let between = RingPart {
            size: nodes,
            position: (node + nodes - start) % nodes,
            prev: owner_of((node + nodes - 1) % nodes),
            next: owner_of((node + 1) % nodes),
            reduce: REDUCE,
            spread: SPREAD,
            piece,
        };
        match between.step(Collective::AllReduce, pc) {
            Ok(step) => return step,
            Err(left) => pc = left,
        }
        if let Some(give) = part.give() {
            at!(pc, give);
        }
        Step::Done
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        let (workers, nodes) = (u64::from(self.topology.workers), u64::from(self.topology.nodes()));
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
        if self.chunk != Chunk::PerWorker || self.inside != Inside::Ring {
            return None;
        }
        let len = bucket.len as f64;
        let piece = |link: Link| len / (ranks * nodes) * link.s_per_element;
        let step = (links.between.latency_s + piece(links.between)).max(ranks * piece(links.between));
        let between = 2.0 * (nodes - 1.0) * step;
        let half = (ranks - 1.0) / ranks * len * links.inside.s_per_element;
        let after = if nodes > 1.0 { (ranks - 1.0) * piece(links.inside) } else { half };
        Some(between + half + after + 2.0 * (ranks - 1.0) * links.inside.latency_s)
    }

    fn note(&self) -> Option<String> {
        match (self.ranks_per_node(), self.topology.nodes()) {
            (_, 1) if self.topology.workers > 1 => {
                Some("hierarchical on a single node has no ring between nodes: only the reduction inside it".into())
            }
            (1, _) => Some("hierarchical with one GPU per node is a ring between the nodes".into()),
            _ => None,
        }
    }
}
