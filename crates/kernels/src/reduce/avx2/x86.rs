//! Copies of the portable loops that the compiler vectorizes with AVX2, and the ordinary functions that call them.
#![allow(unsafe_code, reason = "code for a machine that the build does not assume can only be called in this way")]
use super::super::block::Block;
use super::super::op::Op;
use super::super::path::{Kernels, Path, Scale};
use super::super::portable;
use super::float16::Float16x8;

/// Proof that this machine has AVX2 and F16C: [`Avx2::detect`] is the only source.
pub struct Avx2(());

impl Avx2 {
    /// Detects the features (the standard library caches the answer).
    pub fn detect() -> Option<Avx2> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")).then_some(Avx2(()))
    }
}

impl Path for Avx2 {
    fn kernels<const N: usize, B: Block<N>, O: Op>(&self) -> Kernels {
        Kernels {
            // SAFETY: `self` exists, so the machine has the features.
            combine: |dst, src| unsafe { combine::<N, B, O>(dst, src) },
            // SAFETY: as above.
            combine_and_copy: |dst, out, src| unsafe { combine_and_copy::<N, B, O>(dst, out, src) },
        }
    }

    fn scale<const N: usize, B: Block<N>>(&self) -> Scale {
        // SAFETY: as above.
        |data, factor| unsafe { scale::<N, B>(data, factor) }
    }

    fn kernels_float16<O: Op>(&self) -> Kernels {
        self.kernels::<16, Float16x8, O>()
    }

    fn scale_float16(&self) -> Scale {
        self.scale::<16, Float16x8>()
    }
}

#[target_feature(enable = "avx2,f16c")]
fn combine<const N: usize, B: Block<N>, O: Op>(dst: &mut [u8], src: &[u8]) {
    portable::combine::<N, B, O>(dst, src);
}

#[target_feature(enable = "avx2,f16c")]
fn combine_and_copy<const N: usize, B: Block<N>, O: Op>(dst: &mut [u8], out: &mut [u8], src: &[u8]) {
    portable::combine_and_copy::<N, B, O>(dst, out, src);
}

#[target_feature(enable = "avx2,f16c")]
fn scale<const N: usize, B: Block<N>>(data: &mut [u8], factor: f64) {
    portable::scale::<N, B>(data, factor);
}
