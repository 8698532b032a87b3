//! Parameter servers: workers push gradients, servers add them and send the result back.
//!
//! M. Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014. The variants with support
//! in the network are those of M. A. Chang et al., "How to Train your DNN: The Network Operator Edition": the servers
//! multicast, the switch aggregates the workers' gradients, or both. An aggregation of more workers than the switch's
//! radix becomes several switches, each of which sends a partial sum.
//!
//! Servers only add; the optimizer runs on the workers. A push without gradient (`pull_only`) is an empty message.
use super::placed::Placed;
use crate::plan::{Distribution, Entry, Knob, Knobs, PlanError, Topology};
use crate::schedule::{Link, Roles, Schedule, Volume};
use crate::step::{Bucket, Op, Peers, Step, at};

const COMMON: [Knob; 4] = [Knob::Servers, Knob::Placement, Knob::Chunk, Knob::Pull];

macro_rules! entry {
    ($name:literal, $summary:literal, $multicast:literal, $aggregation:literal, [$($knob:ident),*]) => {
        Entry {
            name: $name,
            aliases: &[],
            summary: $summary,
            knobs: &[COMMON[0], COMMON[1], COMMON[2], COMMON[3], $(Knob::$knob),*],
            build: |topology, knobs| build(topology, knobs, $multicast, $aggregation),
            halves: None,
        }
    };
}

pub(crate) const PS: Entry = entry!("ps", "parameter servers", false, false, [Distribution]);
pub(crate) const PS_MULTICAST: Entry =
    entry!("ps-multicast", "parameter servers, switch multicast of results", true, false, [Multicast]);
pub(crate) const PS_AGGREGATION: Entry =
    entry!("ps-aggregation", "parameter servers, in-network aggregation", false, true, [Distribution, Aggregation]);
pub(crate) const PS_MULTICAST_AGGREGATION: Entry = entry!(
    "ps-multicast-aggregation",
    "parameter servers, in-network aggregation and multicast",
    true,
    true,
    [Multicast, Aggregation]
);

fn build(
    topology: &Topology,
    knobs: &Knobs,
    multicast: bool,
    aggregation: bool,
) -> Result<Box<dyn Schedule>, PlanError> {
    // A multicast reaches all workers at once, so there is no order among them to choose.
    let block = knobs.distribution == Distribution::Block && !multicast;
    if block && !knobs.barrier {
        return Err(PlanError::about(
            "distribution",
            "block needs the barrier, as it sends everything to one worker before the next",
        )
        .remedy("{distribution=round-robin}"));
    }
    let group = topology.switch_radix.unwrap_or(u32::MAX).min(topology.workers);
    Ok(Box::new(Ps {
        workers: topology.workers,
        placed: Placed::new(topology, knobs)?,
        switches: if aggregation { topology.workers.div_ceil(group) } else { 0 },
        group,
        multicast,
        block,
        barrier: knobs.barrier,
    }))
}

struct Ps {
    workers: u32,
    placed: Placed,
    switches: u32,
    /// Workers aggregated by one switch.
    group: u32,
    multicast: bool,
    block: bool,
    barrier: bool,
}

const PUSH: u16 = 0;
const PULL: u16 = 1;

impl Ps {
    fn pieces(&self, bucket: &Bucket) -> u32 {
        self.placed.pieces(bucket)
    }

    /// The server of a piece, as a role.
    fn owner(&self, bucket: &Bucket, index: u32) -> u32 {
        self.workers + self.placed.server(bucket, index)
    }

    /// In block distribution, lane w * pieces + p carries piece p to worker w, and lane p (w = 0) also carries the
    /// pushes, so that after the barrier everything for worker 0 can be released before anything for worker 1.
    fn split(&self, bucket: &Bucket, lane: u32) -> (u32, u32) {
        if self.block { (lane / self.pieces(bucket), lane % self.pieces(bucket)) } else { (0, lane) }
    }

    fn worker(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let (target, index) = self.split(bucket, lane);
        let (owner, piece) = (self.owner(bucket, index), self.placed.piece(bucket, index));
        if target == 0 {
            let to = if self.switches > 0 { self.workers + self.placed.servers + role / self.group } else { owner };
            at!(pc, Step::Send { to: Peers::one(to), multicast: false, slot: PUSH, piece: bucket.pushed(piece) });
        }
        if !self.block || target == role {
            at!(pc, Step::Recv { from: Peers::one(owner), slot: PULL, op: Op::Assign, piece });
        }
        Step::Done
    }

    fn server(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let (target, index) = self.split(bucket, lane);
        if self.owner(bucket, index) != role {
            return Step::Done;
        }
        let piece = self.placed.piece(bucket, index);
        if target == 0 {
            let from = match self.switches {
                0 => Peers::range(0, self.workers),
                count => Peers::range(self.workers + self.placed.servers, count),
            };
            at!(pc, Step::Recv { from, slot: PUSH, op: Op::AssignThenReduce, piece: bucket.pushed(piece) });
        }
        if self.barrier {
            at!(pc, Step::Barrier);
        }
        let to = if self.block { Peers::one(target) } else { Peers::range(0, self.workers) };
        at!(pc, Step::Send { to, multicast: self.multicast, slot: PULL, piece });
        Step::Done
    }

    fn switch(&self, bucket: &Bucket, number: u32, lane: u32, mut pc: u32) -> Step {
        let (target, index) = self.split(bucket, lane);
        if target == 0 {
            let piece = bucket.pushed(self.placed.piece(bucket, index));
            let first = number * self.group;
            let from = Peers::range(first, self.group.min(self.workers - first));
            at!(pc, Step::Recv { from, slot: PUSH, op: Op::AssignThenReduce, piece });
            let to = Peers::one(self.owner(bucket, index));
            at!(pc, Step::Send { to, multicast: false, slot: PUSH, piece });
        }
        Step::Done
    }
}

impl Schedule for Ps {
    fn roles(&self) -> Roles {
        Roles { workers: self.workers, servers: self.placed.servers, switches: self.switches }
    }

    fn lanes(&self, bucket: &Bucket) -> u32 {
        self.pieces(bucket).saturating_mul(if self.block { self.workers } else { 1 })
    }

    fn slots(&self) -> u16 {
        2
    }

    fn senders(&self) -> u32 {
        self.workers
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, pc: u32) -> Step {
        if role < self.workers {
            self.worker(bucket, role, lane, pc)
        } else if role < self.workers + self.placed.servers {
            self.server(bucket, role, lane, pc)
        } else {
            self.switch(bucket, role - self.workers - self.placed.servers, lane, pc)
        }
    }

    fn barriers(&self, bucket: &Bucket, role: u32) -> u32 {
        if !self.barrier || role < self.workers || role >= self.workers + self.placed.servers {
            return 0;
        }
        self.placed.owned(bucket, role - self.workers) * if self.block { self.workers } else { 1 }
    }

    fn release_group(&self, bucket: &Bucket, lane: u32) -> u32 {
        self.split(bucket, lane).0
    }

    fn held(&self, bucket: &Bucket, elements: &mut [u64]) {
        self.placed.held(bucket, elements);
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        let (workers, switches) = (u64::from(self.workers), u64::from(self.switches));
        let pieces = u64::from(self.pieces(bucket));
        let pushed = if bucket.pull_only { 0 } else { bucket.len };
        let copies = if self.multicast { 1 } else { workers };
        Volume {
            messages: pieces * (workers + switches + copies),
            worker_elements: workers * pushed,
            switch_elements: switches * pushed,
            server_elements: copies * bucket.len,
            hops: if pieces == 0 { 0 } else { 2 + u64::from(switches > 0) },
        }
    }

    /// One server and whole tensors: W S/B + a in (S/B + a to the switch, which is two half latencies away, and
    /// G S/B for G partial sums out of it), W S/B + a out (S/B + a with multicast). The incast of the pushes and the
    /// pulls together is the well-known 2 W S/B.
    fn closed_form(&self, bucket: &Bucket, link: Link) -> Option<f64> {
        if self.placed.servers != 1 || !self.placed.has_whole_buckets() || bucket.len == 0 {
            return None;
        }
        let once = bucket.len as f64 * link.s_per_element;
        let all = f64::from(self.workers) * once;
        let push = match (bucket.pull_only, self.switches) {
            (true, _) => 0.0,
            (false, 0) => all,
            (false, count) => once + f64::from(count) * once,
        };
        Some(push + if self.multicast { once } else { all } + 2.0 * link.latency_s)
    }
}
