//! All-reduce in the network: the ranks of a node add first, then a tree of switches adds the sums of the nodes as they
//! stream through it, and the result comes back down the same tree.
//!
//! R. Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)", COMHPC 2016; pieces that stream through the
//! tree are those of its second generation (R. Graham et al., "Scalable Hierarchical Aggregation and Reduction Protocol
//! streaming-aggregation hardware design and evaluation", ISC 2020). Reduction inside the node is that of
//! `hierarchical`, as in NCCL's CollNet.
//!
//! A node sends each byte once and receives it once, where a ring sends it 2(N-1)/N times. The leaves of the tree are
//! the racks' switches, its root the spine; between them stand those of the pods, if there are any. A switch that takes
//! fewer children than it has (its radix) becomes several, one level more. Up and down are separate roles of a switch,
//! because its ports are full duplex: a piece on its way down never waits for one on its way up.
use crate::chunk::Chunk;
use crate::note::Note;
use crate::plan::{Entry, Inside, Knob, Knobs, PlanError, Topology};
use crate::schedule::{Link, Links, Roles, Schedule, Stand, SwitchPlace, Volume};
use crate::step::{Bucket, Op, Peers, Piece, Step, at};
use crate::strategies::node::{NodePart, hops};
use crate::strategies::tree;

pub(crate) const SHARP: Entry = Entry {
    name: "sharp",
    aliases: &["collnet"],
    summary: "intra-node reduction, then in-network aggregation (SHARP)",
    knobs: &[Knob::Chunk, Knob::Inside, Knob::Aggregation],
    build,
    halves: None,
};

fn build(topology: &Topology, knobs: &Knobs) -> Result<Box<dyn Schedule>, PlanError> {
    let streamed = match tree::DEFAULT_CHUNK {
        Chunk::Elements(most) => most,
        Chunk::Whole | Chunk::PerWorker => u64::MAX,
    };
    let fits = topology.switch_memory.map_or(u64::MAX, |memory| (memory / SUMS_IN_MEMORY).max(1));
    if topology.switch_memory == Some(0) {
        return Err(PlanError::new("switch.memory: a sum of one element does not fit")
            .remedy("\"memory\": \"10MB\" in the cluster's switch"));
    }
    let tree = switches(topology);
    Ok(Box::new(Sharp {
        levels: tree.last().map_or(0, |root| root.level),
        leaves: leaves(&tree, topology.nodes()),
        tree,
        topology: topology.clone(),
        inside: knobs.inside,
        cut: knobs.chunk.map_or(Cut::Streamed(streamed.min(fits)), Cut::Given),
        shortened: knobs.chunk.is_none() && fits < streamed,
    }))
}

/// Sums that a switch must hold so that one arrives and another leaves while two wait for contributions that are under
/// way.
const SUMS_IN_MEMORY: u64 = 4;

/// How buckets are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// As the user wants.
    Given(Chunk),
    /// Pieces of at most this many elements, as many for each rank of a node.
    Streamed(u64),
}

/// A switch of the tree. Leaves come first, the root last; children of a switch have consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Switch {
    /// The first child: a node if the switch is a leaf, otherwise a switch.
    first: u32,
    children: u32,
    leaf: bool,
    /// The switch above; its own number if it is the root.
    parent: u32,
    /// Edges to the nodes below, at most.
    level: u32,
    stand: Stand,
}

/// Contributors below a level of switches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Below {
    Nodes,
    Switches,
    /// Switches of another level of the network, and at least one switch is needed.
    Racks,
}

/// Adds switches above `count` neighbors from `first` on until one is left.
fn join(all: &mut Vec<Switch>, mut first: u32, mut count: u32, mut below: Below, radix: u32, stand: Stand) {
    while count > 1 || below != Below::Switches {
        let leaf = below == Below::Nodes;
        let groups = count.div_ceil(radix);
        let each = count.div_ceil(groups);
        let start = all.len() as u32;
        for group in 0..count.div_ceil(each) {
            let (first, children) = (first + group * each, each.min(count - group * each));
            let highest = if leaf {
                0
            } else {
                (first..first + children).map(|child| all[child as usize].level).max().unwrap_or(0)
            };
            all.push(Switch { first, children, leaf, parent: 0, level: highest + 1, stand });
        }
        (first, count, below) = (start, all.len() as u32 - start, Below::Switches);
    }
}

/// Adds switches above each of these parts, of neighbors from `first` on; the first of their highest ones, which follow all
/// others, so that they are neighbors.
fn join_each(
    all: &mut Vec<Switch>,
    mut first: u32,
    parts: &[u32],
    below: Below,
    radix: u32,
    stand: impl Fn(u32) -> Stand,
) -> u32 {
    let mut tops = Vec::with_capacity(parts.len());
    for (part, &size) in (0u32..).zip(parts) {
        join(all, first, size, below, radix, stand(part));
        first += size;
        tops.extend(all.pop());
    }
    let first = all.len() as u32;
    all.extend(tops);
    first
}

/// The tree over the nodes; empty if there is a single node.
fn switches(topology: &Topology) -> Vec<Switch> {
    let nodes = topology.nodes();
    if nodes < 2 {
        return Vec::new();
    }
    let radix = topology.switch_radix.unwrap_or(u32::MAX);
    let racks = topology.racks.as_deref().unwrap_or(std::slice::from_ref(&nodes));
    let in_rack = |rack| if topology.racks.is_some() { Stand::Rack(rack) } else { Stand::Top };
    let mut all = Vec::new();
    let mut first = join_each(&mut all, 0, racks, Below::Nodes, radix, in_rack);
    let mut count = racks.len() as u32;
    if let Some(pods) = topology.pods.as_deref().filter(|_| count > 1) {
        first = join_each(&mut all, first, pods, Below::Racks, radix, Stand::Pod);
        count = pods.len() as u32;
    }
    join(&mut all, first, count, Below::Switches, radix, Stand::Top);
    for number in 0..all.len() {
        let Switch { first, children, leaf, .. } = all[number];
        all[number].parent = all[number].parent.max(if number + 1 == all.len() { number as u32 } else { 0 });
        if !leaf {
            (first..first + children).for_each(|child| all[child as usize].parent = number as u32);
        }
    }
    all
}

/// The leaf above each node.
fn leaves(tree: &[Switch], nodes: u32) -> Vec<u32> {
    let mut all = vec![0; nodes as usize];
    for (number, switch) in (0u32..).zip(tree).filter(|(_, switch)| switch.leaf) {
        all[switch.first as usize..(switch.first + switch.children) as usize].fill(number);
    }
    all
}

struct Sharp {
    topology: Topology,
    inside: Inside,
    cut: Cut,
    /// The switches' memory made the pieces smaller.
    shortened: bool,
    tree: Vec<Switch>,
    /// The leaf above each node.
    leaves: Vec<u32>,
    /// Levels of switches; 0 on a single node.
    levels: u32,
}

const TO_OWNER: u16 = 0;
const UP: u16 = 1;
const DOWN: u16 = 2;
const FROM_OWNER: u16 = 3;

fn send(to: Peers, slot: u16, piece: Piece) -> Step {
    // Copies leave through different ports at the same time, so this is no multicast of one link.
    Step::Send { to, multicast: false, slot, piece }
}

impl Sharp {
    /// Ranks of a node that send to the switch, each its own pieces: as many as every node has.
    fn shards(&self) -> u32 {
        match self.inside {
            Inside::Root => 1,
            Inside::Ring => self.topology.ranks_on(self.topology.nodes() - 1),
        }
    }

    fn most_ranks(&self) -> u32 {
        self.topology.ranks_per_node.min(self.topology.workers)
    }

    /// Pieces that `Chunk::PerWorker` cuts.
    fn per_worker(&self) -> u32 {
        self.topology.nodes() * self.shards()
    }

    fn piece(&self, bucket: &Bucket, lane: u32) -> Piece {
        match self.cut {
            Cut::Given(chunk) => chunk.piece(bucket, self.per_worker(), lane),
            Cut::Streamed(_) => bucket.whole().part(lane, self.lanes(bucket)),
        }
    }

    /// The position in its node of the rank that sends a lane to the switch.
    fn shard(&self, bucket: &Bucket, lane: u32) -> u32 {
        match self.cut {
            Cut::Given(chunk) => chunk.turn(bucket, lane) % self.shards(),
            Cut::Streamed(_) => lane % self.shards(),
        }
    }

    /// The role of a switch on the way up.
    fn up(&self, number: u32) -> u32 {
        self.topology.workers + number
    }

    /// The role of a switch on the way down; the root turns round.
    fn down(&self, number: u32) -> u32 {
        let count = self.tree.len() as u32;
        self.topology.workers + if number + 1 == count { number } else { count + number }
    }

    /// The children of a switch: nodes' ranks, or switches by their roles.
    fn children(&self, switch: &Switch, shard: u32, role: impl Fn(u32) -> u32) -> Peers {
        let Topology { ranks_per_node, .. } = self.topology;
        if switch.leaf {
            let first = switch.first * ranks_per_node + shard;
            Peers { first, count: switch.children, stride: ranks_per_node, wrap: u32::MAX, base: 0 }
        } else {
            Peers::range(role(switch.first), switch.children)
        }
    }

    fn worker(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let Topology { ranks_per_node, .. } = self.topology;
        let (shard, piece) = (self.shard(bucket, lane), self.piece(bucket, lane));
        let node = role / ranks_per_node;
        let base = node * ranks_per_node;
        let (owner, size, slots) = (base + shard, self.topology.ranks_on(node), (TO_OWNER, FROM_OWNER));
        let part = NodePart { base, size, owner, inside: self.inside, up: piece, down: piece, slots };
        if role != owner {
            return part.member(role, pc);
        }
        if let Some(gather) = part.gather() {
            at!(pc, gather);
        }
        if self.levels > 0 {
            let leaf = self.leaves[node as usize];
            at!(pc, send(Peers::one(self.up(leaf)), UP, piece));
            at!(pc, Step::Recv { from: Peers::one(self.down(leaf)), slot: DOWN, op: Op::Assign, piece });
        }
        if let Some(give) = part.give() {
            at!(pc, give);
        }
        Step::Done
    }

    fn switch(&self, bucket: &Bucket, number: u32, lane: u32, mut pc: u32) -> Step {
        let (count, shard, piece) = (self.tree.len() as u32, self.shard(bucket, lane), self.piece(bucket, lane));
        let switch = &self.tree[(number % count) as usize];
        if number < count {
            let from = self.children(switch, shard, |child| self.up(child));
            at!(pc, Step::Recv { from, slot: UP, op: Op::AssignThenReduce, piece });
        } else {
            let from = Peers::one(self.down(switch.parent));
            at!(pc, Step::Recv { from, slot: DOWN, op: Op::Assign, piece });
        }
        if number + 1 < count {
            at!(pc, send(Peers::one(self.up(switch.parent)), UP, piece));
        } else {
            at!(pc, send(self.children(switch, shard, |child| self.down(child)), DOWN, piece));
        }
        Step::Done
    }
}

impl Schedule for Sharp {
    fn roles(&self) -> Roles {
        let switches = (2 * self.tree.len() as u32).saturating_sub(1);
        Roles { workers: self.topology.workers, servers: 0, switches }
    }

    fn switch_place(&self, number: u32) -> SwitchPlace {
        let count = self.tree.len() as u32;
        let id = number % count;
        let Switch { parent, level, stand, .. } = self.tree[id as usize];
        let parent = (id + 1 < count).then_some(parent);
        SwitchPlace { id, parent, level, levels: self.levels, stand }
    }

    fn lanes(&self, bucket: &Bucket) -> u32 {
        match self.cut {
            Cut::Given(chunk) => chunk.count(bucket.len, self.per_worker()),
            Cut::Streamed(most) => {
                let shards = u64::from(self.shards());
                let pieces = bucket.len.div_ceil(most).next_multiple_of(shards).min(bucket.len);
                u32::try_from(pieces).unwrap_or(u32::MAX)
            }
        }
    }

    fn slots(&self) -> u16 {
        4
    }

    fn senders(&self) -> u32 {
        self.tree.iter().map(|switch| switch.children).max().unwrap_or(1).max(self.most_ranks())
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, pc: u32) -> Step {
        match role.checked_sub(self.topology.workers) {
            None => self.worker(bucket, role, lane, pc),
            Some(number) => self.switch(bucket, number, lane, pc),
        }
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        let (workers, nodes) = (u64::from(self.topology.workers), u64::from(self.topology.nodes()));
        let lanes = u64::from(self.lanes(bucket));
        let inside = 2 * (workers - nodes);
        let (up, between) = match self.tree.len() as u64 {
            0 => (0, 0),
            switches => (nodes, switches - 1),
        };
        Volume {
            messages: lanes * (inside + 2 * up + 2 * between),
            worker_elements: bucket.len * (inside + up),
            server_elements: 0,
            switch_elements: bucket.len * (up + 2 * between),
            hops: if lanes == 0 { 0 } else { hops(self.most_ranks(), self.inside) + 2 * u64::from(self.levels) },
        }
    }

    /// The bytes through one NIC, S/B, and the first piece once more through each further link of the way up and down:
    /// (S + (2D-1)c)/B + a for D levels and pieces of c.
    fn closed_form(&self, bucket: &Bucket, link: Link) -> Option<f64> {
        if self.topology.ranks_per_node > 1 || bucket.len == 0 || self.levels == 0 {
            return None;
        }
        let longest = self.piece(bucket, 0).len as f64;
        let moved = bucket.len as f64 + f64::from(2 * self.levels - 1) * longest;
        Some(moved * link.s_per_element + link.latency_s)
    }

    /// The same, and the ways to and from the owner inside the node of one piece; or the links inside the node, each of
    /// which carries (m-1)/m of the bucket for the reduction and as much for the result. `None` where these take long
    /// enough for reduction and result to wait for each other.
    fn closed_form_on_nodes(&self, bucket: &Bucket, links: Links) -> Option<f64> {
        if self.inside != Inside::Ring || bucket.len == 0 {
            return None;
        }
        let (ranks, len) = (f64::from(self.most_ranks()), bucket.len as f64);
        let longest = self.piece(bucket, 0).len as f64;
        let way = (ranks - 1.0) * (longest * links.inside.s_per_element + links.inside.latency_s);
        let between = match self.levels {
            0 => 0.0,
            levels => {
                (len + f64::from(2 * levels - 1) * longest) * links.between.s_per_element + links.between.latency_s
            }
        };
        let inside = 2.0 * (ranks - 1.0) / ranks * len * links.inside.s_per_element;
        if self.levels > 0 && inside > 0.15 * between {
            return None;
        }
        Some((between + 2.0 * way).max(inside))
    }

    fn note(&self) -> Option<Note> {
        let nodes = self.topology.nodes();
        if nodes == 1 {
            let alone = self.topology.workers == 1;
            return (!alone).then_some(Note::NoSwitch);
        }
        let has_several = |parts: &Option<std::sync::Arc<[u32]>>| parts.as_ref().is_some_and(|parts| parts.len() > 1);
        let natural = match (has_several(&self.topology.racks), has_several(&self.topology.pods)) {
            (false, _) => 1,
            (true, false) => 2,
            (true, true) => 3,
        };
        let radix = self.topology.switch_radix.filter(|_| self.levels > natural);
        let levels = radix.map(|radix| (radix, self.levels));
        let pieces = match self.cut {
            Cut::Streamed(most) if self.shortened => Some((most, SUMS_IN_MEMORY)),
            _ => None,
        };
        (levels.is_some() || pieces.is_some()).then_some(Note::SwitchLimits { levels, pieces })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(nodes: u32, nodes_per_rack: Option<u32>, switch_radix: Option<u32>) -> Vec<u32> {
        let topology = Topology { switch_radix, ..Topology::flat(nodes) }.in_racks(nodes_per_rack);
        switches(&topology).iter().map(|switch| switch.level).collect()
    }

    #[test]
    fn racks_and_radix_make_levels() {
        assert!(levels(1, None, None).is_empty());
        assert_eq!(levels(8, None, None), [1]);
        assert_eq!(levels(8, Some(8), None), [1]);
        assert_eq!(levels(8, Some(4), None), [1, 1, 2]);
        assert_eq!(levels(8, None, Some(4)), [1, 1, 2]);
        // Two racks of two leaves each, the switches of three racks, two levels of spines; the last rack has one node.
        assert_eq!(levels(9, Some(4), Some(2)), [1, 1, 1, 1, 2, 2, 1, 3, 2, 4]);
    }

    #[test]
    fn pods_have_switches_of_their_own() {
        let stands = |nodes, per_rack, per_pod| {
            let topology = Topology::flat(nodes).in_racks(Some(per_rack)).in_pods(Some(per_pod));
            switches(&topology).iter().map(|switch| (switch.level, switch.stand)).collect::<Vec<_>>()
        };
        let (rack, pod) = (|number| (1, Stand::Rack(number)), |number| (2, Stand::Pod(number)));
        // A single rack needs none, a single pod nothing above it; a pod of one rack has one of its own.
        assert_eq!(stands(4, 4, 2), [rack(0)]);
        assert_eq!(stands(8, 4, 2), [rack(0), rack(1), pod(0)]);
        assert_eq!(stands(12, 4, 2), [rack(0), rack(1), rack(2), pod(0), pod(1), (3, Stand::Top)]);
    }

    #[test]
    fn every_switch_but_the_root_has_a_parent_above_it() {
        for nodes in 2..40 {
            for (per_rack, per_pod) in [
                (None, None),
                (Some(1), None),
                (Some(3), None),
                (Some(8), None),
                (Some(2), Some(3)),
                (Some(1), Some(1)),
            ] {
                for radix in [None, Some(2), Some(5)] {
                    let topology = Topology { switch_radix: radix, ..Topology::flat(nodes) };
                    let all = switches(&topology.in_racks(per_rack).in_pods(per_pod));
                    let (root, rest) = all.split_last().unwrap();
                    assert_eq!(root.parent as usize, rest.len());
                    let mut children = vec![0; all.len()];
                    for (number, switch) in rest.iter().enumerate() {
                        assert!(switch.parent as usize > number && all[switch.parent as usize].level > switch.level);
                        children[switch.parent as usize] += 1;
                    }
                    let leaves = all.iter().filter(|switch| switch.leaf).map(|switch| switch.children).sum::<u32>();
                    assert_eq!(leaves, nodes);
                    for (switch, counted) in all.iter().zip(children).filter(|(switch, _)| !switch.leaf) {
                        assert_eq!(switch.children, counted);
                        assert!(radix.is_none_or(|radix| switch.children <= radix));
                    }
                }
            }
        }
    }
}
