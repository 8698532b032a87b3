//! All-gather of blobs through rank 0.
use paceline_os::sync::Arc;
use paceline_os::time::Instant;
use paceline_transport::error::{Result, RunError};

use super::secret::Secret;
use super::{member, root};

/// Longest blob: enough to describe a rank, and small enough that rank 0 can hold thousands.
pub const MAX_BLOB: usize = 64 << 10;
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

/// Longest output of [`bytes_of`] for a world of this size.
pub(super) fn longest(size: u32) -> usize {
    size as usize * (4 + MAX_BLOB)
}

/// All blobs as rank 0 sends them: each is prefixed with its length in 4 bytes.
pub(super) fn bytes_of(blobs: &[Vec<u8>]) -> Arc<[u8]> {
    let mut bytes = Vec::with_capacity(blobs.iter().map(|blob| 4 + blob.len()).sum());
    for blob in blobs {
        bytes.extend(u32::try_from(blob.len()).expect("at most MAX_BLOB").to_be_bytes());
        bytes.extend(blob);
    }
    bytes.into()
}

/// Decodes the blobs of this many ranks; `None` if malformed.
pub(super) fn blobs_of(mut bytes: &[u8], size: u32) -> Option<Vec<Vec<u8>>> {
    let mut blobs = Vec::new();
    for _ in 0..size {
        let (length, rest) = bytes.split_first_chunk()?;
        let (blob, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        blobs.push(blob.to_vec());
        bytes = rest;
    }
    bytes.is_empty().then_some(blobs)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn blobs_are_read_as_written(blobs in vec(vec(any::<u8>(), 0..20), 0..6), cut in any::<prop::sample::Index>()) {
            let bytes = bytes_of(&blobs);
            let size = u32::try_from(blobs.len()).unwrap();
            prop_assert_eq!(blobs_of(&bytes, size), Some(blobs));
            if !bytes.is_empty() {
                prop_assert_eq!(blobs_of(&bytes[..cut.index(bytes.len())], size), None);
            }
        }

        #[test]
        fn any_bytes_are_blobs_or_none(bytes in vec(any::<u8>(), 0..60), size in 0..5_u32) {
            if let Some(blobs) = blobs_of(&bytes, size) {
                prop_assert_eq!(&bytes_of(&blobs)[..], &bytes[..]);
            }
        }
    }
}
