//! The all-reduce of the underlying library: for each size, NCCL's choice between one ring over all ranks and trees.
//!
//! NCCL chooses with its own model of the time, latency + bytes / bandwidth, and the figures of its
//! `src/graph/tuning.cc` ([`RELEASE`]), for the protocols LL (8-byte stores with a flag, low latency, a quarter of the
//! bandwidth) and Simple. LL128 is left out: it is enabled only for NVLink machines of two generations. A tree is a chain inside each node and a double binary tree between the nodes (S. Jeaugey,
//! "Massively scale your deep learning training with NCCL 2.4", 2019). A reduce-scatter and an all-gather are always a ring.
use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::collective::Collective;
use crate::plan::{Chunk, Entry, Inside, Knob, Knobs, PlanError, Rates, Topology};
use crate::schedule::{Least, Links, Roles, Schedule, Volume};
use crate::step::{Bucket, Step, at};
use crate::strategies::node::{NodePart, hops};
use crate::strategies::ring;
use crate::strategies::tree::{self, TreePart};

pub(crate) const NATIVE: Entry = Entry {
    name: "native",
    aliases: &["nccl"],
    summary: "NCCL's choice: trees for small buckets, one ring over all ranks for large ones",
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

/// How ranks are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Tree,
    Ring,
}

/// The protocol: how bytes are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Ll,
    Simple,
}

/// A combination of algorithm and protocol: `tuning.cc` has a line for each.
type Way = (Algorithm, Protocol);

const WAYS: [Way; 4] = [
    (Algorithm::Tree, Protocol::Ll),
    (Algorithm::Tree, Protocol::Simple),
    (Algorithm::Ring, Protocol::Ll),
    (Algorithm::Ring, Protocol::Simple),
];

/// NCCL's release whose figures are used. Its successors choose by the generation of the GPU, which a plan does not know.
const RELEASE: &str = "2.8";

/// The figures, from the file in which `paceline.catalog.nccl` has those of a later release.
static FIGURES: LazyLock<Figures> = LazyLock::new(|| {
    let mut tables: Tables = serde_json::from_str(include_str!("../../../../python/paceline/catalog/nccl-tuning.json"))
        .expect("a valid table");
    tables.releases.remove(RELEASE).expect("the table of the release")
});

#[derive(Deserialize)]
struct Tables {
    releases: HashMap<String, Figures>,
}

#[derive(Deserialize)]
struct Figures {
    base_us: ByAlgorithm,
    step_us: ByLink,
    tree_share_by_size: SharesBySize,
}

/// Microseconds of LL, LL128 and Simple.
#[derive(Deserialize)]
struct ByAlgorithm {
    tree: [Option<f64>; 3],
    ring: [Option<f64>; 3],
}

impl ByAlgorithm {
    fn of(&self, (algorithm, protocol): Way) -> f64 {
        let us = if algorithm == Algorithm::Tree { &self.tree } else { &self.ring };
        us[if protocol == Protocol::Ll { 0 } else { 2 }].expect("figures of LL and Simple")
    }
}

/// `hwLat`, microseconds per step. That of (tree, Simple) includes the time of a 256 kB chunk.
#[derive(Deserialize)]
struct ByLink {
    nvlink: ByAlgorithm,
    pci: ByAlgorithm,
    net: ByAlgorithm,
}

/// `treeCorrectionFactor`: the fraction of its bandwidth that a tree achieves, for 64 B, 128 B, … 128 MB.
#[derive(Deserialize)]
struct SharesBySize {
    #[serde(rename = "LL")]
    ll: Vec<f64>,
    #[serde(rename = "Simple")]
    simple: Vec<f64>,
}

/// `baseLat`, microseconds before the first byte of an all-reduce moves.
fn base_us(way: Way) -> f64 {
    FIGURES.base_us.of(way)
}

/// Steps inside a node take longer under LL if there are several nodes.
const LL_INSIDE: f64 = 1.8;

fn tree_share(protocol: Protocol, bytes: u64) -> f64 {
    let SharesBySize { ll, simple } = &FIGURES.tree_share_by_size;
    let shares = if protocol == Protocol::Ll { ll } else { simple };
    shares.get((bytes >> 6).checked_ilog2().unwrap_or(0) as usize).copied().unwrap_or(1.0)
}

/// Above the rate of a PCI Express 3.0 x16 slot, GPUs are assumed to be connected by NVLink. Bytes/s.
const PCI_MOST: u64 = 16_000_000_000;

/// Seconds according to NCCL's model.
fn seconds(collective: Collective, topology: &Topology, rates: Rates, way: Way, bytes: u64) -> f64 {
    let (algorithm, protocol) = way;
    let (ranks, nodes) = (f64::from(topology.workers), f64::from(topology.nodes()));
    let (mut inside, between) = steps(rates, way);
    if nodes > 1.0 && protocol == Protocol::Ll {
        inside *= LL_INSIDE;
    }
    let card = if nodes > 1.0 { rates.between } else { rates.inside } as f64;
    let (latency, bandwidth) = match algorithm {
        Algorithm::Ring => {
            let rounds = f64::from(u8::from(collective.reduces()) + u8::from(collective.gathers()));
            let between_steps = rounds * (nodes - 1.0);
            let latency = (rounds * (ranks - 1.0) - between_steps) * inside + between_steps * between;
            let share = if protocol == Protocol::Ll { 0.25 } else { 1.0 };
            // The plateau: above some size, the steps of Simple take longer.
            let longer = protocol == Protocol::Simple && nodes > 1.0 && bytes as f64 >= ranks / 16.0 * 65536.0;
            let all = base_us(way) + latency;
            (if longer { 1.9 * all } else { all }, card * share * ranks / (rounds * (ranks - 1.0)))
        }
        Algorithm::Tree => {
            let latency = 2.0 * ((ranks / nodes).floor() - 1.0) * inside + 2.0 * nodes.log2().floor() * between;
            let share = 0.9 * if protocol == Protocol::Ll { 1.0 / 3.8 } else { 1.0 } * tree_share(protocol, bytes);
            (base_us(way) + latency, card * share * 0.5)
        }
    };
    latency * 1e-6 + bytes as f64 / bandwidth
}

/// Microseconds of a step inside the node and between nodes.
fn steps(rates: Rates, way: Way) -> (f64, f64) {
    let ByLink { nvlink, pci, net } = &FIGURES.step_us;
    (if rates.inside > PCI_MOST { nvlink } else { pci }.of(way), net.of(way))
}

/// NCCL's choice; trees only for an all-reduce.
fn choose(collective: Collective, topology: &Topology, rates: Rates, bytes: u64) -> Way {
    let time = |way: &Way| seconds(collective, topology, rates, *way, bytes);
    let ways = WAYS.into_iter().filter(|way| collective == Collective::AllReduce || way.0 == Algorithm::Ring);
    ways.min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(WAYS[0])
}

/// The size in bytes from which it is the ring: the first power of two above the last size for which it is a tree,
/// because NCCL's tables go by powers of two.
fn ring_from(topology: &Topology, rates: Rates) -> u64 {
    let is_tree = |log: &u32| choose(Collective::AllReduce, topology, rates, 1 << log).0 == Algorithm::Tree;
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
        let (algorithm, protocol) =
            choose(self.collective(), &self.topology, self.rates, bucket.len * self.rates.element);
        // Under Simple, a tree's step is that of a ring plus its chunk's time, which the links account for here.
        let way = if protocol == Protocol::Simple { (Algorithm::Ring, protocol) } else { (algorithm, protocol) };
        let (inside_us, between_us) = steps(self.rates, way);
        Some(Least { between_s: between_us * 1e-6, inside_s: inside_us * 1e-6 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(workers: u32, ranks_per_node: u32) -> Topology {
        Topology { ranks_per_node, ..Topology::flat(workers) }
    }

    /// The output of `NCCL_DEBUG_SUBSYS=TUNING` follows from the same table; here it is computed by hand.
    #[test]
    fn latencies_are_those_of_the_table() {
        let infinite = Rates { between: u64::MAX, inside: u64::MAX, element: 4 };
        let us = |workers, per_node, way| {
            seconds(Collective::AllReduce, &topology(workers, per_node), infinite, way, 64) * 1e6
        };
        let (tree, ring) = ((Algorithm::Tree, Protocol::Ll), (Algorithm::Ring, Protocol::Ll));
        // 4 nodes of 8: chains of 7 steps at 0.52 us times 1.8, a tree of depth 2 at 5 us, both ways.
        assert!((us(32, 8, tree) - (4.4 + 14.0 * 0.52 * 1.8 + 4.0 * 5.0)).abs() < 1e-6);
        // 62 steps, 6 of them between nodes.
        assert!((us(32, 8, ring) - (3.6 + 56.0 * 0.47 * 1.8 + 6.0 * 2.7)).abs() < 1e-6);
        // One node: no factor.
        assert!((us(8, 8, ring) - (3.6 + 14.0 * 0.47)).abs() < 1e-6);
    }

    #[test]
    fn more_ranks_move_the_ring_to_larger_buckets() {
        let from: Vec<u64> = [2, 8, 64, 512].map(|nodes| ring_from(&topology(8 * nodes, 8), Rates::default())).to_vec();
        assert!(from.is_sorted(), "{from:?}");
        assert!(from[3] > from[0], "{from:?}");
        assert_eq!(ring_from(&topology(1, 1), Rates::default()), 0);
    }
}
