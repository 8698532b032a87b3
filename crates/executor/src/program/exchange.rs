//! Direct exchange between all ranks: all-to-all, and with it all-gather, gather and scatter.
//!
//! In lane (c, k) a rank sends piece c to the rank k further and receives piece c from the rank k before. All pairs are
//! busy at all times, and nothing is forwarded.
use paceline_schedule::{Op, Peers, Piece, Step};

use super::{Program, chunks, lane_count, part};

/// Pieces that this rank sends to and receives from each rank.
pub struct Exchange {
    /// This rank.
    pub me: u32,
    /// By rank; empty if nothing is sent.
    pub sends: Vec<Piece>,
    /// By rank; empty if nothing is received.
    pub recvs: Vec<Piece>,
    /// Elements per piece.
    pub chunk: u64,
}

impl Program for Exchange {
    fn lanes(&self) -> u32 {
        let longest = self.sends.iter().chain(&self.recvs).map(|piece| piece.len).max().unwrap_or(0);
        lane_count(chunks(longest, self.chunk) * (self.sends.len() as u64 - 1))
    }

    fn passes(&self, from: u32, to: u32) -> Option<u64> {
        let piece = if from == self.me { self.sends.get(to as usize) } else { self.recvs.get(from as usize) };
        piece.map(|piece| piece.len)
    }

    fn step(&self, _role: u32, lane: u32, mut pc: u32) -> Step {
        let size = self.sends.len() as u32;
        let (index, distance) = (u64::from(lane / (size - 1)), 1 + lane % (size - 1));
        let (next, before) = ((self.me + distance) % size, (self.me + size - distance) % size);
        if let Some(piece) = part(self.sends[next as usize], index, self.chunk) {
            if pc == 0 {
                return Step::Send { to: Peers::one(next), multicast: false, slot: 0, piece };
            }
            pc -= 1;
        }
        match part(self.recvs[before as usize], index, self.chunk) {
            Some(piece) if pc == 0 => Step::Recv { from: Peers::one(before), slot: 0, op: Op::Assign, piece },
            _ => Step::Done,
        }
    }
}

/// One message from one rank to another.
pub struct SendRecv {
    /// The other rank.
    pub peer: u32,
    /// Whether this rank sends.
    pub sends: bool,
    /// Number of elements.
    pub len: u64,
}

impl Program for SendRecv {
    fn lanes(&self) -> u32 {
        1
    }

    fn step(&self, _role: u32, _lane: u32, pc: u32) -> Step {
        let (peer, piece) = (Peers::one(self.peer), Piece { off: 0, len: self.len });
        match (pc, self.sends) {
            (0, true) => Step::Send { to: peer, multicast: false, slot: 0, piece },
            (0, false) => Step::Recv { from: peer, slot: 0, op: Op::Assign, piece },
            _ => Step::Done,
        }
    }
}
