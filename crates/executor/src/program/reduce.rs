//! Direct reduce and reduce-scatter: the owner of a part receives all contributions and combines them in rank order,
//! beginning with its own.
use paceline_schedule::{Op, Peers, Piece, Step};

use super::{Program, chunks, lane_count};

/// Combines all contributions at the root, in place.
pub struct Reduce {
    /// Number of ranks.
    pub size: u32,
    /// The rank that gets the result.
    pub root: u32,
    /// Number of elements.
    pub len: u64,
    /// Elements per piece.
    pub chunk: u64,
}

impl Program for Reduce {
    fn lanes(&self) -> u32 {
        if self.size > 1 { lane_count(chunks(self.len, self.chunk)) } else { 0 }
    }

    fn step(&self, role: u32, lane: u32, pc: u32) -> Step {
        let off = u64::from(lane) * self.chunk;
        let piece = Piece { off, len: self.chunk.min(self.len - off) };
        match (pc, role == self.root) {
            (0, true) => Step::Recv { from: Peers::others(role, self.size), slot: 0, op: Op::Reduce, piece },
            (0, false) => Step::Send { to: Peers::one(self.root), multicast: false, slot: 0, piece },
            _ => Step::Done,
        }
    }
}

/// Combines part j of all contributions at rank j.
pub struct ReduceScatter {
    /// The contribution to each rank.
    pub parts: Vec<Piece>,
    /// The result of this rank, initialised with its own contribution.
    pub own: Piece,
    /// Elements per piece.
    pub chunk: u64,
}

impl Program for ReduceScatter {
    fn lanes(&self) -> u32 {
        let longest = self.parts.iter().map(|piece| piece.len).max().unwrap_or(0);
        if self.parts.len() > 1 { lane_count(chunks(longest, self.chunk)) } else { 0 }
    }

    fn step(&self, role: u32, lane: u32, pc: u32) -> Step {
        let (size, from) = (self.parts.len() as u32, u64::from(lane) * self.chunk);
        let of = |piece: Piece| {
            (from < piece.len).then(|| Piece { off: piece.off + from, len: self.chunk.min(piece.len - from) })
        };
        let mut left = pc;
        for distance in 1..size {
            let to = (role + distance) % size;
            if let Some(piece) = of(self.parts[to as usize]) {
                if left == 0 {
                    return Step::Send { to: Peers::one(to), multicast: false, slot: 0, piece };
                }
                left -= 1;
            }
        }
        match of(self.own) {
            Some(piece) if left == 0 => Step::Recv { from: Peers::others(role, size), slot: 0, op: Op::Reduce, piece },
            _ => Step::Done,
        }
    }
}
