//! Double binary tree, pipelined: two trees over all workers. Every worker is an inner node of at most one, so that
//! each sends and receives its share of half of the pieces up and down each tree.
//!
//! P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
//! Computing 35 (2009); NCCL uses the same trees (S. Jeaugey, "Massively scale your deep learning training with NCCL
//! 2.4", 2019). Latency grows with log W, and the bandwidth is close to a ring's once many pieces are in flight.
use crate::chunk::Chunk;
use crate::plan::{Entry, Knob};
use crate::schedule::{Link, Links, Roles, Schedule, Volume};
use crate::step::{Bucket, Op, Peers, Piece, Step, at};

pub(crate) const TREE: Entry = Entry {
    name: "tree",
    aliases: &["double-binary-tree"],
    summary: "double binary tree, pipelined: reduce up, broadcast down",
    knobs: &[Knob::Chunk],
    build: |topology, knobs| {
        Ok(Box::new(Tree {
            workers: topology.workers,
            one_per_node: topology.ranks_per_node == 1,
            chunk: knobs.chunk.unwrap_or(DEFAULT_CHUNK),
        }))
    },
    halves: None,
};

/// A tree needs pieces to be a pipeline. 128 Ki elements are 512 KiB of float32, the size of NCCL's slices
/// (`NCCL_BUFFSIZE` 4 MiB in `NCCL_STEPS` 8).
pub(super) const DEFAULT_CHUNK: Chunk = Chunk::Elements(128 * 1024);

struct Tree {
    workers: u32,
    one_per_node: bool,
    chunk: Chunk,
}

/// A rank's position in a tree.
#[derive(Debug, Default, PartialEq, Eq)]
struct Position {
    parent: Option<u32>,
    children: [Option<u32>; 2],
    /// Which child of its parent it is.
    index: u16,
}

/// Slots of a member: sums of two children, and the result.
pub(super) const SLOTS: u16 = 3;

/// One member's part in summing a piece over a tree; also used between the nodes of `native`.
pub(super) struct TreePart<R> {
    place: Position,
    pub piece: Piece,
    /// The role of a member.
    role: R,
}

impl<R: Fn(u32) -> u32> TreePart<R> {
    /// The position of member `position` of `size`, in the first or the second tree.
    pub fn new(position: u32, size: u32, second: bool, piece: Piece, role: R) -> TreePart<R> {
        TreePart { place: place(position, size, second), piece, role }
    }

    /// Step `pc`, or the remainder of `pc` after the tree's last step.
    pub fn step(&self, mut pc: u32) -> Result<Step, u32> {
        let (Position { parent, children, index }, piece) = (&self.place, self.piece);
        let peer = |member: u32| Peers::one((self.role)(member));
        for (slot, child) in (0..).zip(children) {
            if let Some(child) = *child {
                at!(pc, Ok(Step::Recv { from: peer(child), slot, op: Op::Reduce, piece }));
            }
        }
        if let Some(parent) = *parent {
            at!(pc, Ok(Step::Send { to: peer(parent), multicast: false, slot: *index, piece }));
            at!(pc, Ok(Step::Recv { from: peer(parent), slot: 2, op: Op::Assign, piece }));
        }
        for child in children.iter().flatten() {
            at!(pc, Ok(Step::Send { to: peer(*child), multicast: false, slot: 2, piece }));
        }
        Err(pc)
    }
}

/// Edges from the deepest leaf of the first tree to its root: that leaf is below the largest power of two.
pub(super) fn depth(size: u32) -> u64 {
    if size < 2 { 0 } else { u64::from(size.next_power_of_two().ilog2()) }
}

/// The first tree: 0 is the root with one child; the others stand in order, odd ranks are leaves. The parent of
/// ..x10..0 is ..100..0 or ..x1000 - its lowest bit is cleared and the next one set, if that rank exists.
fn parent(rank: u32, size: u32) -> Option<u32> {
    if rank == 0 {
        return None;
    }
    let bit = rank & rank.wrapping_neg();
    let up = (rank ^ bit) | (bit << 1);
    Some(if up < size { up } else { rank ^ bit })
}

fn children(rank: u32, size: u32) -> [Option<u32>; 2] {
    if rank == 0 {
        return [(size > 1).then(|| size.next_power_of_two() / 2), None];
    }
    let mut bit = (rank & rank.wrapping_neg()) / 2;
    if bit == 0 {
        return [None, None];
    }
    let left = rank - bit;
    while bit > 0 && rank + bit >= size {
        bit /= 2;
    }
    [Some(left), (bit > 0).then_some(rank + bit)]
}

/// The second tree is the first one mirrored (even W) or shifted by one (odd W), so that inner nodes become leaves.
fn place(rank: u32, size: u32, second: bool) -> Position {
    let mapped = |rank: u32, back: bool| match (second, size.is_multiple_of(2), back) {
        (false, ..) => rank,
        (true, true, _) => size - 1 - rank,
        (true, false, false) => (rank + size - 1) % size,
        (true, false, true) => (rank + 1) % size,
    };
    let own = mapped(rank, false);
    let up = parent(own, size);
    let index = up.map_or(0, |up| u16::from(children(up, size)[1] == Some(own)));
    Position {
        parent: up.map(|up| mapped(up, true)),
        children: children(own, size).map(|child| child.map(|child| mapped(child, true))),
        index,
    }
}

/// With both trees busy, a NIC takes this many times as long as for all elements in one direction. Each NIC sends and
/// receives them twice (an inner node of one tree is a leaf of the other); the rest is pieces on their way up waiting
/// for those on their way down, fitted to the event simulation on 4 to 1,024 nodes.
const BOTH_TREES: f64 = 2.4;

/// Seconds for `len` elements in pieces through two trees over `nodes`: the first piece's latency, in which every inner
/// node sends or receives two pieces one after the other, and then one piece after another.
pub(super) fn seconds(len: u64, piece: u64, nodes: u32, link: Link) -> f64 {
    let (piece, levels) = (piece.min(len) as f64 * link.s_per_element, depth(nodes) as f64);
    let rest = len as f64 * link.s_per_element - piece;
    match nodes {
        0 | 1 => 0.0,
        // One edge per tree, in opposite directions.
        2 => 2.0 * (link.latency_s + piece) + rest,
        _ => 2.0 * levels * link.latency_s + 2.0 * (2.0 * levels - 1.0) * piece + BOTH_TREES * rest,
    }
}

impl Tree {
    fn piece(&self, bucket: &Bucket, lane: u32) -> Piece {
        match self.chunk {
            // One half for each tree.
            Chunk::Whole => bucket.whole().part(lane, self.lanes(bucket)),
            chunk => chunk.piece(bucket, self.workers, lane),
        }
    }
}

impl Schedule for Tree {
    fn roles(&self) -> Roles {
        Roles { workers: self.workers, servers: 0, switches: 0 }
    }

    fn lanes(&self, bucket: &Bucket) -> u32 {
        match self.chunk {
            Chunk::Whole => bucket.len.min(2) as u32,
            chunk => chunk.count(bucket.len, self.workers),
        }
    }

    fn slots(&self) -> u16 {
        SLOTS
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, pc: u32) -> Step {
        let piece = self.piece(bucket, lane);
        TreePart::new(role, self.workers, (bucket.id ^ lane) & 1 == 1, piece, |rank| rank)
            .step(pc)
            .unwrap_or(Step::Done)
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        let edges = u64::from(self.workers) - 1;
        let lanes = u64::from(self.lanes(bucket));
        Volume {
            messages: 2 * edges * lanes,
            worker_elements: 2 * edges * bucket.len,
            hops: if lanes == 0 { 0 } else { 2 * depth(self.workers) },
            ..Volume::default()
        }
    }

    /// For ranks with a NIC each: if several share one, which messages cross it depends on how ranks and trees are
    /// aligned.
    fn closed_form_on_nodes(&self, bucket: &Bucket, links: Links) -> Option<f64> {
        let Chunk::Elements(piece) = self.chunk else { return None };
        self.one_per_node.then(|| seconds(bucket.len, piece, self.workers, links.between))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_trees_span_all_ranks_and_share_no_inner_node() {
        for size in 1..200 {
            let mut inner = vec![0; size as usize];
            for second in [false, true] {
                let mut roots = 0;
                for rank in 0..size {
                    let here = place(rank, size, second);
                    for child in here.children.into_iter().flatten() {
                        assert_eq!(place(child, size, second).parent, Some(rank), "{size} {rank}");
                    }
                    if let Some(parent) = here.parent {
                        assert!(place(parent, size, second).children.contains(&Some(rank)), "{size} {rank}");
                    } else {
                        roots += 1;
                    }
                    // The root has one child, as a leaf has one parent: it does not count as inner.
                    inner[rank as usize] += u32::from(here.parent.is_some() && here.children[0].is_some());
                }
                assert_eq!(roots, 1, "{size}");
            }
            assert!(inner.iter().all(|&n| n <= 1), "{size}: {inner:?}");
        }
    }
}
