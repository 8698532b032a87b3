//! Between ranks that all reach each other's memory: every element moves once.
use paceline_schedule::{Op, Peers, Piece, Step};

use super::Program;

/// All-reduce: each owner combines one part of all contributions, beginning with its own, and gives the others the result.
pub struct DirectAllReduce {
    /// Number of ranks.
    pub size: u32,
    /// The ranks that combine: one for each device, as ranks that share one would only wait for each other.
    pub owners: Vec<u32>,
    /// Number of elements.
    pub len: u64,
    /// Parts begin at multiples of so many elements.
    pub align: u64,
}

impl DirectAllReduce {
    fn part(&self, lane: u32) -> Piece {
        let each = self.len.div_ceil(self.owners.len() as u64).next_multiple_of(self.align.max(1));
        let off = (each * u64::from(lane)).min(self.len);
        Piece { off, len: each.min(self.len - off) }
    }
}

impl Program for DirectAllReduce {
    fn lanes(&self) -> u32 {
        if self.size > 1 { self.owners.len() as u32 } else { 0 }
    }

    fn step(&self, role: u32, lane: u32, pc: u32) -> Step {
        let owner = self.owners[lane as usize];
        let (piece, others) = (self.part(lane), Peers::others(owner, self.size));
        match (pc, role == owner) {
            (0 | 1, _) if piece.len == 0 => Step::Done,
            (0, true) => Step::Recv { from: others, slot: 0, op: Op::Reduce, piece },
            (1, true) => Step::Send { to: others, multicast: false, slot: 1, piece },
            (0, false) => Step::Send { to: Peers::one(owner), multicast: false, slot: 0, piece },
            (1, false) => Step::Recv { from: Peers::one(owner), slot: 1, op: Op::Assign, piece },
            _ => Step::Done,
        }
    }

    fn completes(&self, role: u32, lane: u32, _pc: u32) -> bool {
        role == self.owners[lane as usize]
    }
}

/// All-gather of equal shards, only as commands for streams ([`in_stream`](crate::in_stream)): each rank's shard, which
/// follows the whole in its memory, is read once and written to all ranks.
pub struct DirectAllGather {
    /// Number of ranks.
    pub size: u32,
    /// Elements of a shard.
    pub shard: u64,
}

impl Program for DirectAllGather {
    fn lanes(&self) -> u32 {
        self.size
    }

    fn step(&self, role: u32, lane: u32, pc: u32) -> Step {
        let given = Piece { off: u64::from(self.size) * self.shard, len: self.shard };
        let kept = Piece { off: u64::from(lane) * self.shard, len: self.shard };
        match (pc, role == lane) {
            (0, true) => Step::Send { to: all_from(role, self.size), multicast: false, slot: 0, piece: given },
            (1, true) | (0, false) => Step::Recv { from: Peers::one(lane), slot: 0, op: Op::Assign, piece: kept },
            _ => Step::Done,
        }
    }
}

/// Reduce-scatter to equal shards, only as commands for streams ([`in_stream`](crate::in_stream)): each rank combines a part
/// of all contributions, beginning with its own, and writes it behind the whole in its memory.
pub struct DirectReduceScatter {
    /// Number of ranks.
    pub size: u32,
    /// Elements of a shard.
    pub shard: u64,
}

impl Program for DirectReduceScatter {
    fn lanes(&self) -> u32 {
        self.size
    }

    fn step(&self, role: u32, lane: u32, pc: u32) -> Step {
        let part = Piece { off: u64::from(lane) * self.shard, len: self.shard };
        let result = Piece { off: u64::from(self.size) * self.shard, len: self.shard };
        match (pc, role == lane) {
            (0, _) => Step::Send { to: Peers::one(lane), multicast: false, slot: 0, piece: part },
            (1, true) => Step::Recv { from: all_from(role, self.size), slot: 0, op: Op::Assign, piece: result },
            _ => Step::Done,
        }
    }

    fn completes(&self, role: u32, lane: u32, _pc: u32) -> bool {
        role == lane
    }
}

/// All ranks, this one first.
fn all_from(me: u32, size: u32) -> Peers {
    Peers { count: size, first: me, ..Peers::others(me, size) }
}
