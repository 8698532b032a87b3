//! A digest of what ranks compare.

/// FNV-1a: a number that all ranks compute alike from the same bytes (G. Fowler, L. C. Noll, P. Vo).
pub(crate) fn digest(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
