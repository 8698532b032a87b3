//! Recursive doubling (the butterfly): whole pieces are exchanged with worker i XOR 2^k, k = 0, 1, …
//!
//! R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19
//! (2005), section 4.5. Best for small messages. If W is not a power of two, the workers beyond the largest power P
//! first send their vector to a partner, and receive the sum from it at the end.
use crate::chunk::Chunk;
use crate::plan::{Entry, Knob};
use crate::schedule::{Link, Roles, Schedule, Volume};
use crate::step::{Bucket, Op, Peers, Step, at};

pub(crate) const RECURSIVE_DOUBLING: Entry = Entry {
    name: "recursive-doubling",
    aliases: &["butterfly", "butterfly-mixing"],
    summary: "exchange of whole tensors with worker i XOR 2^k",
    knobs: &[Knob::Chunk],
    build: |topology, knobs| {
        Ok(Box::new(RecursiveDoubling { workers: topology.workers, chunk: knobs.chunk.unwrap_or(Chunk::Whole) }))
    },
    halves: None,
};

struct RecursiveDoubling {
    workers: u32,
    chunk: Chunk,
}

impl RecursiveDoubling {
    /// Largest power of two up to W, its logarithm, and the number of workers beyond it.
    fn core(&self) -> (u32, u32, u32) {
        let phases = self.workers.ilog2();
        (1 << phases, phases, self.workers - (1 << phases))
    }
}

impl Schedule for RecursiveDoubling {
    fn roles(&self) -> Roles {
        Roles { workers: self.workers, servers: 0, switches: 0 }
    }

    fn lanes(&self, bucket: &Bucket) -> u32 {
        self.chunk.count(bucket.len, self.workers)
    }

    fn slots(&self) -> u16 {
        self.core().1 as u16 + 2
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let (core, phases, extras) = self.core();
        let piece = self.chunk.piece(bucket, self.workers, lane);
        let send = |to, slot: u32| Step::Send { to: Peers::one(to), multicast: false, slot: slot as u16, piece };
        let recv = |from, slot: u32, op| Step::Recv { from: Peers::one(from), slot: slot as u16, op, piece };
        let (fold, unfold) = (0, phases + 1);
        if role >= core {
            at!(pc, send(role - core, fold));
            at!(pc, recv(role - core, unfold, Op::Assign));
            return Step::Done;
        }
        if role < extras {
            at!(pc, recv(role + core, fold, Op::Reduce));
        }
        if pc < 2 * phases {
            let (phase, partner) = (pc / 2, role ^ (1 << (pc / 2)));
            return if pc.is_multiple_of(2) { send(partner, phase + 1) } else { recv(partner, phase + 1, Op::Reduce) };
        }
        pc -= 2 * phases;
        if role < extras {
            at!(pc, send(role + core, unfold));
        }
        Step::Done
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        let (core, phases, extras) = self.core();
        let sends = u64::from(core) * u64::from(phases) + 2 * u64::from(extras);
        let lanes = u64::from(self.lanes(bucket));
        let hops = u64::from(phases) + if extras > 0 { 2 } else { 0 };
        Volume {
            messages: lanes * sends,
            worker_elements: bucket.len * sends,
            hops: if lanes == 0 { 0 } else { hops },
            ..Volume::default()
        }
    }

    /// With whole buckets and W a power of two, log2(W) (S/B + a).
    fn closed_form(&self, bucket: &Bucket, link: Link) -> Option<f64> {
        if self.chunk != Chunk::Whole || !self.workers.is_power_of_two() {
            return None;
        }
        let hop = bucket.len as f64 * link.s_per_element + link.latency_s;
        Some(self.volume(bucket).hops as f64 * hop)
    }
}
