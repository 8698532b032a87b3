//! How buckets are cut into messages.
use serde::{Deserialize, Serialize};

use crate::step::{Bucket, Piece};

/// How a bucket is cut into messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// One message.
    Whole,
    /// As many nearly equal pieces as there are workers.
    PerWorker,
    /// Pieces of this many elements.
    Elements(u64),
}

impl Chunk {
    /// Number of pieces, none of them empty; 0 for an empty bucket.
    #[must_use]
    pub fn count(self, len: u64, workers: u32) -> u32 {
        match self {
            Chunk::Whole => u32::from(len > 0),
            Chunk::PerWorker => len.min(u64::from(workers)) as u32,
            Chunk::Elements(size) => u32::try_from(len.div_ceil(size)).unwrap_or(u32::MAX),
        }
    }

    /// Piece `index` of the bucket.
    #[must_use]
    pub fn piece(self, bucket: &Bucket, workers: u32, index: u32) -> Piece {
        match self {
            Chunk::Whole => bucket.whole(),
            Chunk::PerWorker => bucket.whole().part(index, self.count(bucket.len, workers)),
            Chunk::Elements(size) => {
                let off = u64::from(index) * size;
                Piece { off, len: size.min(bucket.len - off) }
            }
        }
    }

    /// Decides which rank a lane starts at: with one piece per rank, by piece, otherwise by bucket.
    #[must_use]
    pub fn turn(self, bucket: &Bucket, lane: u32) -> u32 {
        match self {
            Chunk::PerWorker => lane,
            Chunk::Whole | Chunk::Elements(_) => lane.wrapping_add(bucket.id),
        }
    }
}

/// How a bucket is cut into messages, in bytes as users write it: `whole`, `per-worker` or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChunkBytes {
    /// One message.
    Whole,
    /// One piece per worker.
    PerWorker,
    /// Pieces of this many bytes.
    #[serde(untagged)]
    Size(u64),
}

impl ChunkBytes {
    /// The same in elements of this many bytes; `None` if a piece has no whole element.
    #[must_use]
    pub fn in_elements(self, element_bytes: u64) -> Option<Chunk> {
        match self {
            ChunkBytes::Whole => Some(Chunk::Whole),
            ChunkBytes::PerWorker => Some(Chunk::PerWorker),
            ChunkBytes::Size(bytes) => Some(Chunk::Elements(bytes / element_bytes)).filter(|_| bytes >= element_bytes),
        }
    }
}
