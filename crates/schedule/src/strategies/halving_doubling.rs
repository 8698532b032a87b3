//! Recursive halving and doubling: a reduce-scatter by vector halving, an all-gather by vector doubling.
//!
//! R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004. Moves as few bytes as a ring in 2
//! log2(W) hops. If the number of workers is not a power of two, they are folded by halves (ibid., section 4, carried
//! one step further): with P the largest power of two, workers g and g+P form a pair that acts as one. The pair first
//! splits the vector: the *keeper* g adds the half that it keeps in the first halving, the *helper* g+P the half that
//! it gives away. So folding costs S/2B at the start and at the end instead of S/B, and no element is sent twice.
use crate::plan::{Chunk, Entry, Knob};
use crate::schedule::{Link, Roles, Schedule, Volume};
use crate::step::{Bucket, Op, Peers, Piece, Step, at};

pub(crate) const HALVING_DOUBLING: Entry = Entry {
    name: "halving-doubling",
    aliases: &["rabenseifner"],
    summary: "recursive halving (reduce-scatter), then doubling (all-gather)",
    knobs: &[Knob::Chunk],
    build: |topology, knobs| {
        Ok(Box::new(HalvingDoubling { workers: topology.workers, chunk: knobs.chunk.unwrap_or(Chunk::Whole) }))
    },
    halves: None,
};

struct HalvingDoubling {
    workers: u32,
    chunk: Chunk,
}

/// Whether group `g` keeps the upper half in halving `k`.
fn keeps_upper(group: u32, k: u32) -> bool {
    group >> k & 1 == 1
}

/// The elements of group `g` after `k` halvings.
fn kept(whole: Piece, group: u32, k: u32) -> Piece {
    (0..k).fold(whole, |piece, level| piece.half(keeps_upper(group, level)))
}

impl HalvingDoubling {
    fn core(&self) -> (u32, u32, u32) {
        let phases = self.workers.ilog2();
        (1 << phases, phases, self.workers - (1 << phases))
    }

    /// The role that gives away the half that group `g` does not keep, and receives it back.
    fn helper(&self, group: u32) -> u32 {
        let (core, _, extras) = self.core();
        if group < extras { group + core } else { group }
    }
}

impl Schedule for HalvingDoubling {
    fn roles(&self) -> Roles {
        Roles { workers: self.workers, servers: 0, switches: 0 }
    }

    fn lanes(&self, bucket: &Bucket) -> u32 {
        self.chunk.count(bucket.len, self.workers)
    }

    fn slots(&self) -> u16 {
        2 * self.core().1 as u16 + 2
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let (core, phases, _) = self.core();
        let whole = self.chunk.piece(bucket, self.workers, lane);
        let send = |to, slot: u32, piece| Step::Send { to: Peers::one(to), multicast: false, slot: slot as u16, piece };
        let recv = |from, slot: u32, op, piece| Step::Recv { from: Peers::one(from), slot: slot as u16, op, piece };
        if phases == 0 {
            return Step::Done;
        }
        let group = role % core;
        let (keeper, helper, paired) = (group, self.helper(group), self.helper(group) != group);
        let (is_keeper, is_helper) = (role == keeper, role == helper);
        let upper = keeps_upper(group, 0);
        let (mine, theirs) = (whole.half(upper), whole.half(!upper));
        let other = group ^ 1;
        // Slots: 0 folds, 1+k is halving k, 1+phases+k is doubling k, 1+2*phases unfolds.
        let (halving, doubling, unfold) = (1, 1 + phases, 1 + 2 * phases);

        if paired {
            let (partner, give, take) = if is_keeper { (helper, theirs, mine) } else { (keeper, mine, theirs) };
            at!(pc, send(partner, 0, give));
            at!(pc, recv(partner, 0, Op::Reduce, take));
        }
        if is_helper {
            at!(pc, send(other, halving, theirs));
        }
        if is_keeper {
            at!(pc, recv(self.helper(other), halving, Op::Reduce, mine));
            for k in 1..phases {
                let (partner, held) = (group ^ (1 << k), keeps_upper(group, k));
                at!(pc, send(partner, halving + k, kept(whole, group, k).half(!held)));
                at!(pc, recv(partner, halving + k, Op::Reduce, kept(whole, group, k).half(held)));
            }
            for k in (1..phases).rev() {
                let (partner, held) = (group ^ (1 << k), keeps_upper(group, k));
                at!(pc, send(partner, doubling + k, kept(whole, group, k).half(held)));
                at!(pc, recv(partner, doubling + k, Op::Assign, kept(whole, group, k).half(!held)));
            }
            at!(pc, send(self.helper(other), doubling, mine));
        }
        if is_helper {
            at!(pc, recv(other, doubling, Op::Assign, theirs));
        }
        if paired {
            let (partner, give, take) = if is_keeper { (helper, mine, theirs) } else { (keeper, theirs, mine) };
            at!(pc, send(partner, unfold, give));
            at!(pc, recv(partner, unfold, Op::Assign, take));
        }
        Step::Done
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        let (core, phases, extras) = self.core();
        let lanes = u64::from(self.lanes(bucket));
        if lanes == 0 || phases == 0 {
            return Volume::default();
        }
        // Both halves of a pair are exchanged twice: 2S per pair. In halving k the P groups send what they hold, 2^k
        // partitions of the vector into halves: P/2^(k+1) vectors, P/2 + P/4 + … = P-1 in all, and the same amount
        // back.
        let pairs = u64::from(extras);
        Volume {
            messages: lanes * (2 * u64::from(core) * u64::from(phases) + 4 * pairs),
            worker_elements: bucket.len * (2 * (u64::from(core) - 1) + 2 * pairs),
            hops: 2 * u64::from(phases) + if extras > 0 { 2 } else { 0 },
            ..Volume::default()
        }
    }

    /// For a power of two and a length divisible by it: 2 ((P-1)/P S/B + log2(P) a).
    fn closed_form(&self, bucket: &Bucket, link: Link) -> Option<f64> {
        let (core, phases, extras) = self.core();
        if self.chunk != Chunk::Whole || !bucket.len.is_multiple_of(u64::from(core)) || extras > 0 {
            return None;
        }
        let moved = 2.0 * f64::from(core - 1) / f64::from(core) * bucket.len as f64 * link.s_per_element;
        Some(moved + 2.0 * f64::from(phases) * link.latency_s)
    }
}
