//! Direct reduce and reduce-scatter: the owner of a part receives all contributions and combines them in rank order,
//! beginning with its own.
use paceline_schedule::{Op, Peers, Piece, Step};

use super::{Program, chunks, lane_count, part};

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

/// Combines part j of all contributions at rank j. Each piece of a part has a lane of its own, in which all others send it
/// and wait for nobody: were it one lane for the pieces of all parts, each rank would send before it receives, and where a
/// transport takes the bytes only once the peer asks for them, all would wait in a circle.
pub struct ReduceScatter {
    /// The contribution to each rank.
    pub parts: Vec<Piece>,
    /// The result of this rank, initialized with its own contribution.
    pub own: Piece,
    /// Elements per piece.
    pub chunk: u64,
}

impl Program for ReduceScatter {
    fn lanes(&self) -> u32 {
        let longest = self.parts.iter().map(|piece| piece.len).max().unwrap_or(0);
        let size = self.parts.len() as u64;
        if size > 1 { lane_count(chunks(longest, self.chunk) * size) } else { 0 }
    }

    fn step(&self, role: u32, lane: u32, pc: u32) -> Step {
        let size = self.parts.len() as u32;
        let owner = lane % size;
        let whole = if role == owner { self.own } else { self.parts[owner as usize] };
        let Some(piece) = part(whole, u64::from(lane / size), self.chunk).filter(|_| pc == 0) else {
            return Step::Done;
        };
        if role == owner {
            Step::Recv { from: Peers::others(role, size), slot: 0, op: Op::Reduce, piece }
        } else {
            Step::Send { to: Peers::one(owner), multicast: false, slot: 0, piece }
        }
    }
}
