//! All-gather of blobs through rank 0.
use paceline_os::time::Instant;
use paceline_transport::error::{Result, RunError};

use super::blobs::MAX_BLOB;
use super::secret::Secret;
use super::{member, root};

/// Largest world: ports, files and memory run out earlier.
const MAX_WORLD: u32 = 1 << 16;

/// All-gather of small blobs among `size` ranks: every rank gets all of them, in rank order.
///
/// Rank 0 listens at `address` ("host:port") while this runs; the others connect, and retry until the deadline. Blobs
/// are exchanged only between authenticated ranks, and are authenticated. If rank 0 fails, it tells the others, and all
/// return the same error.
///
/// Returns by the deadline or up to a second later, because a rank waits that long for rank 0 to say who is missing.
///
/// # Errors
/// [`RunError::Usage`] if `address` is malformed or cannot be listened on, `rank` is not in the world, or the blob is
/// longer than [`MAX_BLOB`]. [`RunError::Failed`] if ranks are missing at the deadline, a rank connects twice or with
/// another world size, a rank leaves and does not return, or rank 0 or this rank has another secret.
pub fn exchange(
    rank: u32,
    size: u32,
    address: &str,
    secret: &Secret,
    blob: &[u8],
    deadline: Instant,
) -> Result<Vec<Vec<u8>>> {
    if size > MAX_WORLD {
        return Err(RunError::Usage(format!("a world of {size} ranks is too large; at most {MAX_WORLD}")));
    }
    if rank >= size {
        return Err(RunError::Usage(format!(
            "there is no rank {rank} in a world of {size}; are RANK and WORLD_SIZE right?"
        )));
    }
    if blob.len() > MAX_BLOB {
        let length = blob.len();
        return Err(RunError::Usage(format!("a blob of {length} bytes is too long to exchange; at most {MAX_BLOB}")));
    }
    match (rank, size) {
        (0, 1) => Ok(vec![blob.to_vec()]),
        (0, _) => root::run(size, address, secret, blob, deadline),
        _ => member::run(rank, size, address, secret, blob, deadline),
    }
}
