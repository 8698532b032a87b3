//! Asynchronous parameter servers: a server applies each worker's gradient when it has arrived, and no worker waits for
//! another, or only for those that are too many iterations behind (stale-synchronous).
//!
//! J. Dean et al., "Large scale distributed deep networks", NIPS 2012. Q. Ho et al., "More effective distributed ML via a stale
//! synchronous parallel parameter server", NIPS 2013.
//!
//! A worker's part is the program of `ps` with one worker: servers hold its gradients' sums until all of them have arrived, and
//! then send it the parameters. The programs of all workers share nothing but the servers' parameters. So there is no sum
//! in the network: a switch that adds would have to hold one worker's gradient until the others' arrive. Nor is there a
//! multicast: an update's parameters sent to all workers are as many bytes out of the server as a pull, and come W times as
//! often to each worker.
use super::placed::Placed;
use crate::plan::{Distribution, Entry, Knob, Knobs, PlanError, Topology};
use crate::schedule::{Link, Roles, Schedule, Volume};
use crate::step::{Bucket, Op, Peers, Step, at};

pub(crate) const ASYNC_PS: Entry = Entry {
    name: "async-ps",
    aliases: &[],
    summary: "parameter servers, asynchronous or stale-synchronous",
    knobs: &[Knob::Servers, Knob::Placement, Knob::Chunk, Knob::Pull, Knob::Distribution, Knob::Staleness],
    build,
    halves: None,
};

fn build(topology: &Topology, knobs: &Knobs) -> Result<Box<dyn Schedule>, PlanError> {
    if knobs.distribution == Distribution::Block && knobs.staleness.is_none() {
        return Err(PlanError::about(
            "distribution",
            "orders what several workers wait for, and without a bound none waits for another",
        )
        .remedy("{staleness=3}, or drop {distribution}"));
    }
    Ok(Box::new(AsyncPs { workers: topology.workers, placed: Placed::new(topology, knobs)?, is_part: false }))
}

struct AsyncPs {
    workers: u32,
    placed: Placed,
    /// Whether it is the part of one worker, which has a barrier of its own.
    is_part: bool,
}

const PUSH: u16 = 0;
const PULL: u16 = 1;

impl Schedule for AsyncPs {
    fn roles(&self) -> Roles {
        Roles { workers: self.workers, servers: self.placed.servers, switches: 0 }
    }

    /// Lane w * pieces + p carries piece p of worker w.
    fn lanes(&self, bucket: &Bucket) -> u32 {
        self.placed.pieces(bucket).saturating_mul(self.workers)
    }

    fn slots(&self) -> u16 {
        2
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let pieces = self.placed.pieces(bucket);
        let (worker, index) = (lane / pieces, lane % pieces);
        let owner = self.workers + self.placed.server(bucket, index);
        let piece = self.placed.piece(bucket, index);
        let pushed = bucket.pushed(piece);
        if role == worker {
            at!(pc, Step::Send { to: Peers::one(owner), multicast: false, slot: PUSH, piece: pushed });
            at!(pc, Step::Recv { from: Peers::one(owner), slot: PULL, op: Op::Assign, piece });
        } else if role == owner {
            at!(pc, Step::Recv { from: Peers::one(worker), slot: PUSH, op: Op::Reduce, piece: pushed });
            if self.is_part {
                at!(pc, Step::Barrier);
            }
            at!(pc, Step::Send { to: Peers::one(worker), multicast: false, slot: PULL, piece });
        }
        Step::Done
    }

    fn barriers(&self, bucket: &Bucket, role: u32) -> u32 {
        if !self.is_part || role < self.workers { 0 } else { self.placed.owned(bucket, role - self.workers) }
    }

    fn part(&self) -> Option<Box<dyn Schedule>> {
        Some(Box::new(AsyncPs { workers: 1, placed: self.placed.clone(), is_part: true }))
    }

    fn held(&self, bucket: &Bucket, elements: &mut [u64]) {
        self.placed.held(bucket, elements);
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        let (workers, pieces) = (u64::from(self.workers), u64::from(self.placed.pieces(bucket)));
        Volume {
            messages: 2 * workers * pieces,
            worker_elements: if bucket.pull_only { 0 } else { workers * bucket.len },
            switch_elements: 0,
            server_elements: workers * bucket.len,
            hops: if pieces == 0 { 0 } else { 2 },
        }
    }

    /// One server and whole tensors: the last of W pushes arrives after W S/B, and the pulls of the others are under way
    /// meanwhile: (W+1) S/B + 2a. Without gradient, all pulls begin together.
    fn closed_form(&self, bucket: &Bucket, link: Link) -> Option<f64> {
        if self.placed.servers != 1 || !self.placed.has_whole_buckets() || bucket.len == 0 {
            return None;
        }
        let once = bucket.len as f64 * link.s_per_element;
        let times = f64::from(self.workers) + if bucket.pull_only { 0.0 } else { 1.0 };
        Some(times * once + 2.0 * link.latency_s)
    }
}
