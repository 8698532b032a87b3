//! The all-reduce of the underlying library: for each size, NCCL's choice between one ring over all ranks and trees.
//!
//! NCCL chooses with its own model of the time (crate `paceline-nccl`), here that of [`Rates::nccl`] for the protocols LL
//! (8-byte stores with a flag, low latency, a fraction of the bandwidth), LL128 and Simple. NVLS and PAT, which are not
//! messages between ranks, are left out. A tree is a chain inside each node
//! and a double binary tree between the nodes (S. Jeaugey, "Massively scale your deep learning training with NCCL 2.4",
//! 2019). A reduce-scatter and an all-gather are always a ring.
use paceline_nccl::{Algorithm, Choice, Group, Kind, Machine, Release};

use crate::chunk::Chunk;
use crate::collective::Collective;
use crate::plan::{Entry, Inside, Knob, Knobs, PlanError, Rates, Topology};
use crate::schedule::{Least, Links, Roles, Schedule, Volume};
use crate::step::{Bucket, Step, at};
use crate::strategies::node::{NodePart, hops};
use crate::strategies::ring;
use crate::strategies::tree::{self, TreePart};

pub(crate) const NATIVE: Entry = Entry {
    name: "native",
    aliases: &["nccl"],
    summary: "NCCL's choice: trees for small buckets, a ring for large ones",
    knobs: &[Knob::Rates],
    build: |topology, knobs| build(Collective::AllReduce, topology, knobs),
    halves: Some(build),
};

fn build(collective: Collective, topology: &Topology, knobs: &Knobs) -> Result<Box<dyn Schedule>, PlanError> {
    let rates = knobs.rates.unwrap_or_default();
    let trees = collective == Collective::AllReduce;
    Ok(Box::new(Native {
        topology: topology.clone(),
        rates,
        ring: ring::build(collective, topology, &Knobs::default(), false)?,
        ring_from: if trees { ring_from(topology, rates) / rates.element } else { 0 },
    }))
}

fn kind(collective: Collective) -> Kind {
    match collective {
        Collective::AllReduce => Kind::AllReduce,
        Collective::ReduceScatter => Kind::ReduceScatter,
        Collective::AllGather => Kind::AllGather,
    }
}

fn machine(topology: &Topology, rates: Rates) -> Machine {
    Machine::of_rates(topology.ranks_per_node, rates.inside as f64, rates.between as f64)
}

fn group(topology: &Topology) -> Group {
    Group::new(topology.workers, topology.ranks_per_node)
}

/// NCCL's choice; trees only for an all-reduce.
fn choose(nccl: Release, collective: Collective, topology: &Topology, machine: &Machine, bytes: u64) -> Choice {
    nccl.ring_or_tree(kind(collective), bytes, group(topology), machine)
}

/// The size in bytes from which it is the ring: the first power of two above the last size for which it is a tree,
/// because NCCL's tables go by powers of two.
fn ring_from(topology: &Topology, rates: Rates) -> u64 {
    let machine = machine(topology, rates);
    let choice = |log: &u32| choose(rates.nccl, Collective::AllReduce, topology, &machine, 1 << log);
    let is_tree = |log: &u32| choice(log).0 == Algorithm::Tree;
    if topology.workers < 2 { 0 } else { (6..=40).rev().find(is_tree).map_or(0, |log| 2 << log) }
}

struct Native {
    topology: Topology,
    rates: Rates,
    ring: Box<dyn Schedule>,
    /// The same in elements.
    ring_from: u64,
}

const TO_ROOT: u16 = tree::SLOTS;
const FROM_ROOT: u16 = tree::SLOTS + 1;

impl Native {
    fn is_ring(&self, bucket: &Bucket) -> bool {
        bucket.len >= self.ring_from
    }

    fn tree_lanes(&self, bucket: &Bucket) -> u32 {
        tree::DEFAULT_CHUNK.count(bucket.len, self.topology.workers)
    }

    /// A chain inside the node to the rank that is in the tree between the nodes, and back. The two trees use different
    /// ranks, and thus different NICs if a node has two.
    fn tree_step(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let (per_node, nodes) = (self.topology.ranks_per_node, self.topology.nodes());
        let piece = tree::DEFAULT_CHUNK.piece(bucket, self.topology.workers, lane);
        let second = Chunk::Whole.turn(bucket, lane) & 1;
        let node = role / per_node;
        let owner_of = |node: u32| node * per_node + second % self.topology.ranks_on(node);
        let (base, size, owner) = (node * per_node, self.topology.ranks_on(node), owner_of(node));
        let slots = (TO_ROOT, FROM_ROOT);
        let part = NodePart { base, size, owner, inside: Inside::Ring, up: piece, down: piece, slots };
        if role != owner {
            return part.member(role, pc);
        }
        if let Some(gather) = part.gather() {
            at!(pc, gather);
        }
        match TreePart::new(node, nodes, second == 1, piece, owner_of).step(pc) {
            Ok(step) => return step,
            Err(left) => pc = left,
        }
        if let Some(give) = part.give() {
            at!(pc, give);
        }
        Step::Done
    }
}

impl Schedule for Native {
    fn collective(&self) -> Collective {
        self.ring.collective()
    }

    fn roles(&self) -> Roles {
        self.ring.roles()
    }

    fn lanes(&self, bucket: &Bucket) -> u32 {
        if self.is_ring(bucket) { self.ring.lanes(bucket) } else { self.tree_lanes(bucket) }
    }

    fn slots(&self) -> u16 {
        FROM_ROOT + 1
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, pc: u32) -> Step {
        if self.is_ring(bucket) {
            self.ring.step(bucket, role, lane, pc)
        } else {
            self.tree_step(bucket, role, lane, pc)
        }
    }

    fn ring_origin(&self, bucket: &Bucket, lane: u32) -> Option<u32> {
        if self.is_ring(bucket) { self.ring.ring_origin(bucket, lane) } else { None }
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        if self.is_ring(bucket) {
            return self.ring.volume(bucket);
        }
        let (workers, nodes) = (u64::from(self.topology.workers), u64::from(self.topology.nodes()));
        let lanes = u64::from(self.tree_lanes(bucket));
        // Chains have an edge for each rank of a node but one, trees one for each node but one; all are used both ways.
        let sends = 2 * (workers - nodes) + 2 * (nodes - 1);
        let per_node = self.topology.ranks_per_node.min(self.topology.workers);
        let chain = hops(per_node, Inside::Ring) + 2 * tree::depth(self.topology.nodes());
        Volume {
            messages: lanes * sends,
            worker_elements: bucket.len * sends,
            hops: if lanes == 0 { 0 } else { chain },
            ..Volume::default()
        }
    }

    /// Time of the tree: that of its NICs, or of its chains if they are slower, plus a piece's latency through the
    /// other.
    fn closed_form_on_nodes(&self, bucket: &Bucket, links: Links) -> Option<f64> {
        if self.is_ring(bucket) {
            return self.ring.closed_form_on_nodes(bucket, links);
        }
        let Chunk::Elements(piece) = tree::DEFAULT_CHUNK else { return None };
        let chain = f64::from(self.topology.ranks_per_node.min(self.topology.workers) - 1);
        let len = bucket.len as f64;
        let hop = links.inside.latency_s + len.min(piece as f64) * links.inside.s_per_element;
        let along = 2.0 * chain * hop;
        let inside = if chain > 0.0 { 2.0 * len * links.inside.s_per_element } else { 0.0 };
        let between = tree::seconds(bucket.len, piece, self.topology.nodes(), links.between);
        let over = if between > 0.0 { 2.0 * len * links.between.s_per_element } else { 0.0 };
        Some(between + along + (inside - over).max(0.0))
    }

    fn least_latency(&self, bucket: &Bucket) -> Option<Least> {
        let (machine, nccl) = (machine(&self.topology, self.rates), self.rates.nccl);
        let bytes = bucket.len * self.rates.element;
        let choice = choose(nccl, self.collective(), &self.topology, &machine, bytes);
        let (inside_us, between_us) = nccl.message_us(group(&self.topology), machine.intra_link, choice);
        Some(Least { between_s: between_us * 1e-6, inside_s: inside_us * 1e-6 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(workers: u32, ranks_per_node: u32) -> Topology {
        Topology { ranks_per_node, ..Topology::flat(workers) }
    }

    #[test]
    fn more_ranks_move_the_ring_to_larger_buckets() {
        for &nccl in Release::ALL {
            let rates = Rates { nccl, ..Rates::default() };
            let from: Vec<u64> = [2, 8, 64, 512].map(|nodes| ring_from(&topology(8 * nodes, 8), rates)).to_vec();
            assert!(from.is_sorted(), "{nccl:?} {from:?}");
            assert!(from[3] > from[0], "{nccl:?} {from:?}");
        }
        assert_eq!(ring_from(&topology(1, 1), Rates::default()), 0);
    }
}
