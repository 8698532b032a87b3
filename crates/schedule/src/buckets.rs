//! Groups gradients into buckets.
//!
//! Gradients are fused in the order in which they become ready, as in DDP (S. Li et al., "PyTorch Distributed:
//! Experiences on accelerating data parallel training", VLDB 2020, section 3.2.3): a bucket takes gradients until it
//! has at least the given size, so it may exceed it by up to one gradient. The first bucket is smaller, so that the
//! network starts early.

/// Bytes of the first bucket if larger ones follow: DDP's `_DEFAULT_FIRST_BUCKET_BYTES`.
pub const FIRST_BUCKET_BYTES: u64 = 1024 * 1024;

/// Groups gradients (given by their bytes, in ready order) into buckets: non-empty ranges of that order. If `size` is
/// `None`, every gradient is its own bucket.
#[must_use]
pub fn fuse(gradient_bytes: &[u64], size: Option<u64>) -> Vec<std::ops::Range<usize>> {
    let Some(size) = size else {
        return (0..gradient_bytes.len()).map(|i| i..i + 1).collect();
    };
    let mut buckets = Vec::new();
    let (mut start, mut held) = (0, 0);
    for (i, bytes) in gradient_bytes.iter().enumerate() {
        held += bytes;
        let limit = if buckets.is_empty() { size.min(FIRST_BUCKET_BYTES) } else { size };
        if held >= limit {
            buckets.push(start..i + 1);
            (start, held) = (i + 1, 0);
        }
    }
    if start < gradient_bytes.len() {
        buckets.push(start..gradient_bytes.len());
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_size_is_a_bucket_per_gradient() {
        assert_eq!(fuse(&[3, 4], None), [0..1, 1..2]);
        assert!(fuse(&[], None).is_empty());
    }

    #[test]
    fn a_bucket_closes_when_it_has_the_size() {
        let mb = 1_000_000;
        // The first bucket closes at 1 MiB, the next at 25 MB, the rest is left over.
        assert_eq!(fuse(&[mb, mb, 20 * mb, 4 * mb, 2 * mb, mb], Some(25 * mb)), [0..2, 2..5, 5..6]);
        assert_eq!(fuse(&[1, 1, 1], Some(2)), [0..2, 2..3]);
    }
}
