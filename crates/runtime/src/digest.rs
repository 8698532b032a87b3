//! A digest for values that ranks compare.

/// FNV-1a (G. Fowler, L. C. Noll, P. Vo): the same on all ranks for the same bytes.
pub(crate) fn digest(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
