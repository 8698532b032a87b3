//! Parameter servers sharded over the nodes, after a reduction inside each node.
//!
//! The method of Ray SGD and of Distributed TensorFlow's replicated variables: the ranks of a node add first, then one
//! of them pushes the node's sum, and the server of each piece adds the sums of the nodes and sends the result back.
//! `inside = root`: the node's first rank gathers, adds and pushes (the *simple* reduction of the Ray distributed-SGD
//! evaluation). `inside = ring`: shard j of a bucket is added in a ring and pushed by the node's j-th rank.
//!
//! Every bucket is cut into a piece for each server (and shard), so that all servers share the load; with
//! `Chunk::Whole`, whole buckets are assigned to servers in turn. Servers have their own nodes or are colocated.
use crate::chunk::Chunk;
use crate::note::Note;
use crate::plan::{Entry, Inside, Knob, Knobs, PlanError, Topology};
use crate::schedule::{Roles, Schedule, Volume};
use crate::step::{Bucket, Op, Peers, Piece, Step, at};
use crate::strategies::node::{NodePart, hops};

pub(crate) const SHARDED_PS: Entry = Entry {
    name: "sharded-ps",
    aliases: &[],
    summary: "intra-node reduction, then servers that share each tensor",
    knobs: &[Knob::Servers, Knob::Chunk, Knob::Pull, Knob::Inside],
    build,
    halves: None,
};

#[expect(clippy::unnecessary_wraps, reason = "the signature of all builders")]
fn build(topology: &Topology, knobs: &Knobs) -> Result<Box<dyn Schedule>, PlanError> {
    Ok(Box::new(ShardedPs {
        topology: topology.clone(),
        inside: knobs.inside,
        chunk: knobs.chunk.unwrap_or(Chunk::PerWorker),
        barrier: knobs.barrier,
    }))
}

struct ShardedPs {
    topology: Topology,
    inside: Inside,
    chunk: Chunk,
    barrier: bool,
}

const TO_OWNER: u16 = 0;
const PUSH: u16 = 1;
const PULL: u16 = 2;
const FROM_OWNER: u16 = 3;

impl ShardedPs {
    /// Shards of each server's piece: the number of ranks that every node has.
    fn shards(&self) -> u32 {
        match self.inside {
            Inside::Root => 1,
            Inside::Ring => self.topology.ranks_on(self.topology.nodes() - 1),
        }
    }

    fn pieces(&self) -> u32 {
        self.topology.servers * self.shards()
    }

    fn piece(&self, bucket: &Bucket, lane: u32) -> Piece {
        self.chunk.piece(bucket, self.pieces(), lane)
    }

    /// The role of a lane's server, and the position in its node of the rank that pushes.
    fn server_and_shard(&self, bucket: &Bucket, lane: u32) -> (u32, u32) {
        let number = self.chunk.turn(bucket, lane);
        (self.topology.workers + number % self.topology.servers, number / self.topology.servers % self.shards())
    }

    fn owners(&self, shard: u32) -> Peers {
        let Topology { ranks_per_node, .. } = self.topology;
        Peers { first: shard, count: self.topology.nodes(), stride: ranks_per_node, wrap: u32::MAX, base: 0 }
    }

    fn worker(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let (server, shard) = self.server_and_shard(bucket, lane);
        let node = role / self.topology.ranks_per_node;
        let base = node * self.topology.ranks_per_node;
        let down = self.piece(bucket, lane);
        let up = bucket.pushed(down);
        let (size, slots) = (self.topology.ranks_on(node), (TO_OWNER, FROM_OWNER));
        let part = NodePart { base, size, owner: base + shard, inside: self.inside, up, down, slots };
        if role != part.owner {
            return part.member(role, pc);
        }
        if let Some(gather) = part.gather() {
            at!(pc, gather);
        }
        at!(pc, Step::Send { to: Peers::one(server), multicast: false, slot: PUSH, piece: up });
        at!(pc, Step::Recv { from: Peers::one(server), slot: PULL, op: Op::Assign, piece: down });
        if let Some(give) = part.give() {
            at!(pc, give);
        }
        Step::Done
    }

    fn server(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let (server, shard) = self.server_and_shard(bucket, lane);
        if server != role {
            return Step::Done;
        }
        let (piece, owners) = (self.piece(bucket, lane), self.owners(shard));
        at!(pc, Step::Recv { from: owners, slot: PUSH, op: Op::AssignThenReduce, piece: bucket.pushed(piece) });
        if self.barrier {
            at!(pc, Step::Barrier);
        }
        at!(pc, Step::Send { to: owners, multicast: false, slot: PULL, piece });
        Step::Done
    }
}

impl Schedule for ShardedPs {
    fn roles(&self) -> Roles {
        Roles { workers: self.topology.workers, servers: self.topology.servers, switches: 0 }
    }

    fn lanes(&self, bucket: &Bucket) -> u32 {
        self.chunk.count(bucket.len, self.pieces())
    }

    fn slots(&self) -> u16 {
        4
    }

    fn senders(&self) -> u32 {
        self.topology.nodes().max(self.topology.ranks_per_node.min(self.topology.workers))
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, pc: u32) -> Step {
        if role < self.topology.workers {
            self.worker(bucket, role, lane, pc)
        } else {
            self.server(bucket, role, lane, pc)
        }
    }

    fn barriers(&self, bucket: &Bucket, role: u32) -> u32 {
        if !self.barrier || role < self.topology.workers {
            return 0;
        }
        (0..self.lanes(bucket)).filter(|&lane| self.server_and_shard(bucket, lane).0 == role).count() as u32
    }

    fn held(&self, bucket: &Bucket, elements: &mut [u64]) {
        for lane in 0..self.lanes(bucket) {
            let (server, _) = self.server_and_shard(bucket, lane);
            elements[(server - self.topology.workers) as usize] += self.piece(bucket, lane).len;
        }
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        let (workers, nodes) = (u64::from(self.topology.workers), u64::from(self.topology.nodes()));
        let pushed = if bucket.pull_only { 0 } else { bucket.len };
        let lanes = u64::from(self.lanes(bucket));
        let inside = hops(self.topology.ranks_per_node.min(self.topology.workers), self.inside);
        Volume {
            messages: lanes * 2 * workers,
            // All ranks but a node's owner send inside it, the owner to the server; the same on the way back.
            worker_elements: workers * pushed + (workers - nodes) * bucket.len,
            server_elements: nodes * bucket.len,
            switch_elements: 0,
            hops: if lanes == 0 { 0 } else { inside + 2 },
        }
    }

    fn note(&self) -> Option<Note> {
        let alone = self.topology.ranks_per_node == 1 || self.topology.workers == 1;
        alone.then_some(Note::SharedTensors)
    }
}
