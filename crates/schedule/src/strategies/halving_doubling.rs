//! Recursive halving and doubling: a reduce-scatter by vector halving, an all-gather by vector doubling.
//!
//! R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004. Moves as few bytes as a ring in 2
//! log2(W) hops. If the number of workers is not a power of two, they are folded by halves (ibid., section 4, carried
//! one step further): with P the largest power of two, workers g and g+P form a pair that acts as one. The pair first
//! splits the vector: the *keeper* g adds the half that it keeps in the first halving, the *helper* g+P the half that
//! it gives away. So folding costs S/2B at the start and at the end instead of S/B, and no element is sent twice.
//!
//! Of an all-reduce, the first halving is between neighbors, and who holds which part in the middle does not matter. In
//! the halves, worker r owns shard r, and parts are neighboring shards: the first halving is between the lower and the
//! upper half of the workers, pairs are neighbors (as in MPICH's `MPI_Reduce_scatter_block`), and the keeper hands the
//! helper its shard at the end of a reduce-scatter, and takes it at the start of an all-gather. By default a message is all
//! that one worker has for another; with smaller pieces, lanes are binomial trees to the owner of each piece of a shard.
use crate::chunk::Chunk;
use crate::collective::{Collective, ShardLanes, shard, shards};
use crate::plan::{Entry, Knob, Knobs, PlanError, Topology};
use crate::schedule::{Link, Roles, Schedule, Volume};
use crate::step::{Bucket, Op, Peers, Piece, Step, at};

pub(crate) const HALVING_DOUBLING: Entry = Entry {
    name: "halving-doubling",
    aliases: &["rabenseifner"],
    summary: "reduce-scatter by halving, all-gather by doubling",
    knobs: &[Knob::Chunk],
    build: |topology, knobs| build(Collective::AllReduce, topology, knobs),
    halves: Some(build),
};

#[expect(clippy::unnecessary_wraps, reason = "the signature of all builders")]
fn build(collective: Collective, topology: &Topology, knobs: &Knobs) -> Result<Box<dyn Schedule>, PlanError> {
    let (workers, chunk) = (topology.workers, knobs.chunk.unwrap_or(Chunk::Whole));
    Ok(Box::new(HalvingDoubling { collective, workers, chunk }))
}

struct HalvingDoubling {
    collective: Collective,
    workers: u32,
    chunk: Chunk,
}

impl HalvingDoubling {
    /// Groups of one or two workers, their logarithm, and how many have two.
    fn core(&self) -> (u32, u32, u32) {
        let phases = self.workers.ilog2();
        (1 << phases, phases, self.workers - (1 << phases))
    }

    fn is_all_reduce(&self) -> bool {
        self.collective == Collective::AllReduce
    }

    fn group(&self, role: u32) -> u32 {
        let (core, _, extras) = self.core();
        match self.collective {
            Collective::AllReduce => role % core,
            Collective::ReduceScatter | Collective::AllGather if role < 2 * extras => role / 2,
            Collective::ReduceScatter | Collective::AllGather => role - extras,
        }
    }

    /// The role that acts for a group.
    fn keeper(&self, group: u32) -> u32 {
        if self.is_all_reduce() { group } else { group + group.min(self.core().2) }
    }

    /// The role that gives away the half that a group does not keep, and receives it back.
    fn helper(&self, group: u32) -> u32 {
        let (core, _, extras) = self.core();
        match (group < extras, self.is_all_reduce()) {
            (false, _) => self.keeper(group),
            (true, true) => group + core,
            (true, false) => self.keeper(group) + 1,
        }
    }

    /// The group with which halving `k` is made.
    fn partner(&self, group: u32, k: u32) -> u32 {
        let phases = self.core().1;
        group ^ (1 << if self.is_all_reduce() { k } else { phases - 1 - k })
    }

    /// The elements of a lane that a group holds after `k` halvings.
    fn kept(&self, bucket: &Bucket, lane: Piece, group: u32, k: u32) -> Piece {
        if self.is_all_reduce() {
            return (0..k).fold(lane, |piece, level| piece.half(group >> level & 1 == 1));
        }
        let together = self.core().1 - k;
        let first = group >> together << together;
        let ranks = [first, first + (1 << together)].map(|group| self.keeper(group));
        shards(bucket, self.workers, ranks[0], ranks[1] - ranks[0]).shared(lane)
    }

    /// Whether a lane is all of a bucket or of a piece of it, not a piece of one shard.
    fn has_all_shards(&self) -> bool {
        self.is_all_reduce() || self.chunk == Chunk::Whole
    }

    fn shard_lanes(&self) -> ShardLanes {
        ShardLanes { chunk: self.chunk, workers: self.workers }
    }

    /// The elements of a lane.
    fn piece(&self, bucket: &Bucket, lane: u32) -> Piece {
        match (self.is_all_reduce(), self.has_all_shards()) {
            (true, _) => self.chunk.piece(bucket, self.workers, lane),
            (false, true) => bucket.whole(),
            (false, false) => self.shard_lanes().piece(bucket, lane),
        }
    }
}

impl Schedule for HalvingDoubling {
    fn collective(&self) -> Collective {
        self.collective
    }

    fn roles(&self) -> Roles {
        Roles { workers: self.workers, servers: 0, switches: 0 }
    }

    fn lanes(&self, bucket: &Bucket) -> u32 {
        match (self.is_all_reduce(), self.has_all_shards()) {
            (true, _) => self.chunk.count(bucket.len, self.workers),
            (false, true) => u32::from(bucket.len > 0),
            (false, false) => self.shard_lanes().count(bucket),
        }
    }

    fn slots(&self) -> u16 {
        2 * self.core().1 as u16 + 3
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, mut pc: u32) -> Step {
        let (_, phases, _) = self.core();
        if phases == 0 {
            return Step::Done;
        }
        let lane = self.piece(bucket, lane);
        let send = |to, slot: u32, piece| Step::Send { to: Peers::one(to), multicast: false, slot: slot as u16, piece };
        let recv = |from, slot: u32, op, piece| Step::Recv { from: Peers::one(from), slot: slot as u16, op, piece };
        // A lane of one shard has messages only where its elements are.
        let has = |piece: Piece| self.has_all_shards() || piece.len > 0;
        let held = |group, k| self.kept(bucket, lane, group, k);
        let group = self.group(role);
        let (keeper, helper) = (self.keeper(group), self.helper(group));
        let (is_keeper, is_helper, paired) = (role == keeper, role == helper, keeper != helper);
        let other = self.partner(group, 0);
        let (mine, theirs) = (held(group, 1), held(other, 1));
        // Slots: 0 folds, 1+k is halving k, 1+phases+k is doubling k, 1+2*phases unfolds, 2+2*phases is the helper's shard.
        let (halving, doubling, unfold) = (1, 1 + phases, 1 + 2 * phases);
        let helpers = shard(bucket, self.workers, helper).shared(lane);
        let hands_over = paired && !self.is_all_reduce() && has(helpers);

        if self.collective.reduces() {
            if paired {
                let (partner, give, take) = if is_keeper { (helper, theirs, mine) } else { (keeper, mine, theirs) };
                if has(give) {
                    at!(pc, send(partner, 0, give));
                }
                if has(take) {
                    at!(pc, recv(partner, 0, Op::Reduce, take));
                }
            }
            if is_helper && has(theirs) {
                at!(pc, send(self.keeper(other), halving, theirs));
            }
            if is_keeper {
                if has(mine) {
                    at!(pc, recv(self.helper(other), halving, Op::Reduce, mine));
                }
                for k in 1..phases {
                    let partner = self.partner(group, k);
                    let (give, take) = (held(partner, k + 1), held(group, k + 1));
                    if has(give) {
                        at!(pc, send(self.keeper(partner), halving + k, give));
                    }
                    if has(take) {
                        at!(pc, recv(self.keeper(partner), halving + k, Op::Reduce, take));
                    }
                }
            }
        }
        if hands_over {
            let (from, to) = if self.collective.reduces() { (keeper, helper) } else { (helper, keeper) };
            at!(
                pc,
                if role == from { send(to, unfold + 1, helpers) } else { recv(from, unfold + 1, Op::Assign, helpers) }
            );
        }
        if self.collective.gathers() {
            if is_keeper {
                for k in (1..phases).rev() {
                    let partner = self.partner(group, k);
                    let (give, take) = (held(group, k + 1), held(partner, k + 1));
                    if has(give) {
                        at!(pc, send(self.keeper(partner), doubling + k, give));
                    }
                    if has(take) {
                        at!(pc, recv(self.keeper(partner), doubling + k, Op::Assign, take));
                    }
                }
                if has(mine) {
                    at!(pc, send(self.helper(other), doubling, mine));
                }
            }
            if is_helper && has(theirs) {
                at!(pc, recv(self.keeper(other), doubling, Op::Assign, theirs));
            }
            if paired {
                let (partner, give, take) = if is_keeper { (helper, mine, theirs) } else { (keeper, theirs, mine) };
                if has(give) {
                    at!(pc, send(partner, unfold, give));
                }
                if has(take) {
                    at!(pc, recv(partner, unfold, Op::Assign, take));
                }
            }
        }
        Step::Done
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        let (core, phases, extras) = self.core();
        if self.lanes(bucket) == 0 || phases == 0 {
            return Volume::default();
        }
        // The halves of a pair are exchanged: S per pair and direction of the collective. In halving k the P groups send
        // what they hold, 2^k partitions of the vector into halves: P/2^(k+1) vectors, P/2 + P/4 + … = P-1 in all, and the
        // same amount back.
        let (core, pairs) = (u64::from(core), u64::from(extras));
        let directions = u64::from(self.collective.reduces()) + u64::from(self.collective.gathers());
        let helpers = if self.is_all_reduce() { 0 } else { extras };
        let handed: u64 = (0..helpers).map(|group| shard(bucket, self.workers, self.helper(group)).len).sum();
        let messages = if self.has_all_shards() {
            let lanes = u64::from(self.lanes(bucket));
            lanes * (directions * (core * u64::from(phases) + 2 * pairs) + u64::from(helpers))
        } else {
            // Binomial trees over the groups, an edge for each pair, and one to a helper that is the owner.
            let lanes = self.shard_lanes();
            let to_helpers: u64 = (0..helpers).map(|group| lanes.used_of(bucket, self.helper(group))).sum();
            lanes.used(bucket) * (core - 1 + pairs) + to_helpers
        };
        Volume {
            messages,
            worker_elements: bucket.len * directions * (core - 1 + pairs) + handed,
            hops: directions * u64::from(phases) + if extras > 0 { 2 } else { 0 },
            ..Volume::default()
        }
    }

    /// For a power of two and a length divisible by it: 2 ((P-1)/P S/B + log2(P) a), half of it for each half.
    fn closed_form(&self, bucket: &Bucket, link: Link) -> Option<f64> {
        let (core, phases, extras) = self.core();
        if self.chunk != Chunk::Whole || !bucket.len.is_multiple_of(u64::from(core)) || extras > 0 {
            return None;
        }
        let directions = f64::from(u8::from(self.collective.reduces()) + u8::from(self.collective.gathers()));
        let moved = f64::from(core - 1) / f64::from(core) * bucket.len as f64 * link.s_per_element;
        Some(directions * (moved + f64::from(phases) * link.latency_s))
    }
}
