//! Broadcast down a binomial tree, in pieces, so that all levels work at the same time.
use paceline_schedule::{Op, Peers, Piece, Step};

use super::{Program, chunks, lane_count};

/// Sends the root's elements to all ranks, in place.
pub struct Broadcast {
    /// Number of ranks.
    pub size: u32,
    /// The rank with the elements.
    pub root: u32,
    /// Number of elements.
    pub len: u64,
    /// Elements per piece.
    pub chunk: u64,
}

impl Program for Broadcast {
    fn lanes(&self) -> u32 {
        if self.size > 1 { lane_count(chunks(self.len, self.chunk)) } else { 0 }
    }

    fn step(&self, role: u32, lane: u32, pc: u32) -> Step {
        let off = u64::from(lane) * self.chunk;
        let piece = Piece { off, len: self.chunk.min(self.len - off) };
        // Positions are counted from the root: the parent lacks the lowest set bit, children have one more bit below
        // it.
        let place = (role + self.size - self.root) % self.size;
        let rank = |place: u32| (place + self.root) % self.size;
        let below = if place == 0 { self.size.next_power_of_two() } else { place & place.wrapping_neg() };
        let mut left = pc;
        if place > 0 {
            if left == 0 {
                return Step::Recv { from: Peers::one(rank(place - below)), slot: 0, op: Op::Assign, piece };
            }
            left -= 1;
        }
        let mut bit = below / 2;
        while bit > 0 {
            if place + bit < self.size {
                if left == 0 {
                    return Step::Send { to: Peers::one(rank(place + bit)), multicast: false, slot: 0, piece };
                }
                left -= 1;
            }
            bit /= 2;
        }
        Step::Done
    }
}
