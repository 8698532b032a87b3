//! The collectives of a bucket, and which rank owns which part of it.
//!
//! An all-reduce is a reduce-scatter, after which each rank holds the sum of its shard, and an all-gather, after which
//! all ranks hold all shards (R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations
//! in MPICH", IJHPCA 19, 2005). Sharded data parallelism uses the halves separately (S. Rajbhandari et al., "ZeRO:
//! memory optimizations toward training trillion parameter models", SC 2020).
use serde::{Deserialize, Serialize};

use crate::chunk::Chunk;
use crate::step::{Bucket, Piece};

/// The operation on a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// Every worker ends with the sum of all of the bucket.
    #[default]
    AllReduce,
    /// Every worker ends with the sum of its [`shard`]; the rest of its bucket then holds partial sums.
    ReduceScatter,
    /// Every worker begins with its [`shard`], and ends with all of the bucket.
    AllGather,
}

impl Collective {
    /// All of them.
    pub const ALL: [Collective; 3] = [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather];

    /// Its name, as users type it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all-reduce",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllGather => "all-gather",
        }
    }

    /// Whether contributions are added.
    #[must_use]
    pub fn reduces(self) -> bool {
        self != Collective::AllGather
    }

    /// Whether results are distributed to all workers.
    #[must_use]
    pub fn gathers(self) -> bool {
        self != Collective::ReduceScatter
    }
}

/// The part of a bucket that a worker owns in a reduce-scatter or all-gather: equal shards in rank order, of which the
/// last ones may be shorter or empty, as if the bucket were padded to a multiple of the workers (FSDP's layout, and that
/// of `reduce_scatter_tensor` and `all_gather_into_tensor`).
#[must_use]
pub fn shard(bucket: &Bucket, workers: u32, rank: u32) -> Piece {
    shards(bucket, workers, rank, 1)
}

/// The shards of `count` neighboring workers.
pub(crate) fn shards(bucket: &Bucket, workers: u32, first: u32, count: u32) -> Piece {
    let size = shard_size(bucket, workers);
    let [from, to] = [first, first + count].map(|rank| (u64::from(rank) * size).min(bucket.len));
    Piece { off: from, len: to - from }
}

fn shard_size(bucket: &Bucket, workers: u32) -> u64 {
    bucket.len.div_ceil(u64::from(workers))
}

/// Lanes of one piece of one shard each: row by row, one piece of every shard in a row, so that all workers are busy.
#[derive(Clone, Copy)]
pub(crate) struct ShardLanes {
    pub chunk: Chunk,
    pub workers: u32,
}

impl ShardLanes {
    /// Shards that are not empty.
    pub fn owners(self, bucket: &Bucket) -> u32 {
        if bucket.len == 0 { 0 } else { bucket.len.div_ceil(shard_size(bucket, self.workers)) as u32 }
    }

    /// A piece never crosses the end of a shard.
    fn piece_size(self, bucket: &Bucket) -> u64 {
        match self.chunk {
            Chunk::Whole | Chunk::PerWorker => shard_size(bucket, self.workers),
            Chunk::Elements(size) => size,
        }
    }

    /// Number of lanes; those of the last, shorter shard may be empty.
    pub fn count(self, bucket: &Bucket) -> u32 {
        if bucket.len == 0 {
            return 0;
        }
        let rows = shard_size(bucket, self.workers).div_ceil(self.piece_size(bucket));
        u32::try_from(rows * u64::from(self.owners(bucket))).unwrap_or(u32::MAX)
    }

    /// Number of lanes with elements: those with messages.
    pub fn used(self, bucket: &Bucket) -> u64 {
        match self.owners(bucket) {
            0 => 0,
            owners => u64::from(owners - 1) * self.used_of(bucket, 0) + self.used_of(bucket, owners - 1),
        }
    }

    /// The same of one owner.
    pub fn used_of(self, bucket: &Bucket, owner: u32) -> u64 {
        shard(bucket, self.workers, owner).len.div_ceil(self.piece_size(bucket).max(1))
    }

    /// The owner of a lane's piece.
    pub fn owner(self, bucket: &Bucket, lane: u32) -> u32 {
        lane % self.owners(bucket)
    }

    /// The lane's piece.
    pub fn piece(self, bucket: &Bucket, lane: u32) -> Piece {
        let shard = shard(bucket, self.workers, self.owner(bucket, lane));
        let from = (u64::from(lane / self.owners(bucket)) * self.piece_size(bucket)).min(shard.len);
        Piece { off: shard.off + from, len: self.piece_size(bucket).min(shard.len - from) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(len: u64) -> Bucket {
        Bucket { id: 0, len, pull_only: false }
    }

    #[test]
    fn shards_are_those_of_a_padded_bucket() {
        let of = |len, workers| (0..workers).map(|r| shard(&bucket(len), workers, r).len).collect::<Vec<_>>();
        assert_eq!(of(12, 4), [3, 3, 3, 3]);
        // torch.chunk(torch.arange(10), 4) has these sizes, and that of 5 has three chunks.
        assert_eq!(of(10, 4), [3, 3, 3, 1]);
        assert_eq!(of(5, 4), [2, 2, 1, 0]);
        assert_eq!(of(0, 2), [0, 0]);
    }

    #[test]
    fn lanes_cover_each_shard_once() {
        for workers in 1..9 {
            for len in 0..60 {
                for chunk in [Chunk::Whole, Chunk::PerWorker, Chunk::Elements(1), Chunk::Elements(4)] {
                    let (lanes, bucket) = (ShardLanes { chunk, workers }, bucket(len));
                    let mut covered = vec![0; len as usize];
                    let mut used = 0;
                    for lane in 0..lanes.count(&bucket) {
                        let (piece, own) = (lanes.piece(&bucket, lane), lanes.owner(&bucket, lane));
                        let shard = shard(&bucket, workers, own);
                        assert!(piece.off >= shard.off && piece.off + piece.len <= shard.off + shard.len);
                        covered[piece.off as usize..(piece.off + piece.len) as usize].iter_mut().for_each(|n| *n += 1);
                        used += u64::from(piece.len > 0);
                    }
                    assert!(covered.iter().all(|&n| n == 1), "{workers} {len} {chunk:?}: {covered:?}");
                    assert_eq!(used, lanes.used(&bucket), "{workers} {len} {chunk:?}");
                }
            }
        }
    }
}
