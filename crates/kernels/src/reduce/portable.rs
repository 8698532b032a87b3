//! The loops. Here they are compiled for the oldest machine that the build supports, elsewhere for newer ones.
use super::block::Block;
use super::op::Op;
use super::path::{Kernels, Path, Scale};

/// Bytes to combine before copying them: whole blocks, and three times as many fit any L1 cache.
const PIECE: usize = 4096;

/// Runs anywhere.
pub struct Portable;

impl Path for Portable {
    fn kernels<const N: usize, B: Block<N>, O: Op>(&self) -> Kernels {
        Kernels { combine: combine::<N, B, O>, combine_and_copy: combine_and_copy::<N, B, O> }
    }

    fn scale<const N: usize, B: Block<N>>(&self) -> Scale {
        scale::<N, B>
    }
}

#[inline(always)]
pub fn combine<const N: usize, B: Block<N>, O: Op>(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len());
    let (dst, dst_rest) = blocks_mut::<N, B>(dst);
    let (src, src_rest) = src.as_chunks();
    for (dst, src) in dst.iter_mut().zip(src) {
        *dst = B::combine::<O>(*dst, *src);
    }
    if !dst_rest.is_empty() {
        let last = B::combine::<O>(padded(dst_rest), padded(src_rest));
        dst_rest.copy_from_slice(&last[..dst_rest.len()]);
    }
}

/// In pieces that are combined and then copied while they are in the L1 cache. One loop that stores to both
/// destinations would also be a single pass, but a core that alternates between two destinations stores at half the
/// speed.
#[inline(always)]
pub fn combine_and_copy<const N: usize, B: Block<N>, O: Op>(dst: &mut [u8], out: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len());
    assert_eq!(out.len(), src.len());
    for ((dst, out), src) in dst.chunks_mut(PIECE).zip(out.chunks_mut(PIECE)).zip(src.chunks(PIECE)) {
        combine::<N, B, O>(dst, src);
        out.copy_from_slice(dst);
    }
}

#[inline(always)]
pub fn scale<const N: usize, B: Block<N>>(data: &mut [u8], factor: f64) {
    let (blocks, rest) = blocks_mut::<N, B>(data);
    for block in blocks {
        *block = B::scale(*block, factor);
    }
    if !rest.is_empty() {
        let last = B::scale(padded(rest), factor);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Whole blocks and the rest.
#[inline(always)]
fn blocks_mut<const N: usize, B: Block<N>>(bytes: &mut [u8]) -> (&mut [[u8; N]], &mut [u8]) {
    assert_eq!(bytes.len() % B::ELEMENT, 0, "a whole number of elements");
    bytes.as_chunks_mut()
}

/// A block that begins with these bytes and is padded with zeros.
#[inline(always)]
fn padded<const N: usize>(rest: &[u8]) -> [u8; N] {
    let mut block = [0; N];
    block[..rest.len()].copy_from_slice(rest);
    block
}
