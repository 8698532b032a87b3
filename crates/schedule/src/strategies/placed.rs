//! Which server owns which part of a bucket, for strategies with parameter servers.
use crate::chunk::Chunk;
use crate::plan::{Knobs, Placement, PlanError, Topology};
use crate::step::{Bucket, Piece};

/// How buckets are cut and placed.
#[derive(Clone)]
pub(super) struct Placed {
    /// All workers, for cuts that depend on their number.
    workers: u32,
    pub servers: u32,
    chunk: Chunk,
    placement: Placement,
}

impl Placed {
    /// # Errors
    /// A cut that the placement does not allow, or a server that there is not.
    pub fn new(topology: &Topology, knobs: &Knobs) -> Result<Placed, PlanError> {
        if knobs.placement == Placement::Even && knobs.chunk.is_some() {
            return Err(PlanError::about(
                "chunk",
                "needs whole tensors, and placement even cuts each into servers x workers pieces",
            )
            .remedy("drop {chunk}"));
        }
        if let Placement::Table(table) = &knobs.placement
            && let Some(server) = table.iter().find(|&&server| server >= topology.servers)
        {
            return Err(PlanError::about(
                "placement",
                format!("server {server} must be below the number of servers, {}", topology.servers),
            )
            .remedy(format!("{{servers={}}}", server.saturating_add(1))));
        }
        Ok(Placed {
            workers: topology.workers,
            servers: topology.servers,
            chunk: knobs.chunk.unwrap_or(Chunk::Whole),
            placement: knobs.placement.clone(),
        })
    }

    pub fn pieces(&self, bucket: &Bucket) -> u32 {
        match self.placement {
            Placement::Even => bucket.len.min(u64::from(self.workers) * u64::from(self.servers)) as u32,
            Placement::RoundRobin | Placement::TensorFlow | Placement::Table(_) => {
                self.chunk.count(bucket.len, self.workers)
            }
        }
    }

    pub fn piece(&self, bucket: &Bucket, index: u32) -> Piece {
        match self.placement {
            Placement::Even => bucket.whole().part(index, self.pieces(bucket)),
            Placement::RoundRobin | Placement::TensorFlow | Placement::Table(_) => {
                self.chunk.piece(bucket, self.workers, index)
            }
        }
    }

    /// The server of a piece.
    pub fn server(&self, bucket: &Bucket, index: u32) -> u32 {
        match &self.placement {
            Placement::RoundRobin | Placement::TensorFlow => bucket.id % self.servers,
            Placement::Even => index % self.servers,
            Placement::Table(table) => table[bucket.id as usize],
        }
    }

    /// Pieces of a bucket on a server.
    pub fn owned(&self, bucket: &Bucket, server: u32) -> u32 {
        let pieces = self.pieces(bucket);
        match self.placement {
            Placement::Even => (pieces + self.servers - 1 - server) / self.servers,
            _ if self.server(bucket, 0) == server => pieces,
            _ => 0,
        }
    }

    /// Adds the elements of a bucket to those of the servers that hold them.
    pub fn held(&self, bucket: &Bucket, elements: &mut [u64]) {
        for index in 0..self.pieces(bucket) {
            elements[self.server(bucket, index) as usize] += self.piece(bucket, index).len;
        }
    }

    /// Whether buckets are whole, each on one server.
    pub fn has_whole_buckets(&self) -> bool {
        self.placement != Placement::Even && self.chunk == Chunk::Whole
    }
}
