//! Dissemination barrier: in round k every rank notifies the rank 2^k further, so after log2 W rounds every rank knows,
//! directly or through others, that all have arrived (D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier
//! synchronization", 1988).
use paceline_schedule::{Op, Peers, Piece, Step};

use super::Program;

/// Messages without payload.
pub struct Barrier {
    /// Number of ranks.
    pub size: u32,
}

impl Program for Barrier {
    fn lanes(&self) -> u32 {
        u32::from(self.size > 1)
    }

    fn step(&self, role: u32, _lane: u32, pc: u32) -> Step {
        let (round, size) = (pc / 2, self.size);
        if round >= u32::BITS || 1u64 << round >= u64::from(size) {
            return Step::Done;
        }
        let (distance, slot, piece) = (1 << round, round as u16, Piece { off: 0, len: 0 });
        if pc.is_multiple_of(2) {
            Step::Send { to: Peers::one((role + distance) % size), multicast: false, slot, piece }
        } else {
            Step::Recv { from: Peers::one((role + size - distance) % size), slot, op: Op::Assign, piece }
        }
    }
}
