//! The blobs of all ranks as rank 0 sends them.
use paceline_os::sync::Arc;

/// Longest blob: enough to describe a rank, and small enough that rank 0 can hold thousands.
pub const MAX_BLOB: usize = 64 << 10;

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
