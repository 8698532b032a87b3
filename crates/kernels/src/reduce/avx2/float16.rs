//! Binary16 arithmetic with the machine's conversion instructions, which the compiler does not use in a loop over
//! `u16`.
#![allow(unsafe_code, reason = "a trait's methods cannot require features")]
use std::arch::x86_64::{
    __m256, _CMP_EQ_OQ, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_set_epi64x,
    _mm256_add_ps, _mm256_and_ps, _mm256_blendv_ps, _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_max_ps,
    _mm256_min_ps, _mm256_mul_ps, _mm256_or_ps, _mm256_set1_ps,
};

use super::super::block::Block;
use super::super::op::Op;
use crate::dtype::ReduceOp;

/// Eight values. Only for the loops of `Avx2`.
pub struct Float16x8;

impl Block<16> for Float16x8 {
    const ELEMENT: usize = 2;

    #[inline(always)]
    fn combine<O: Op>(a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
        // SAFETY: only used where an `Avx2` exists, so the machine has the features.
        unsafe { combine::<O>(a, b) }
    }

    #[inline(always)]
    fn scale(a: [u8; 16], factor: f64) -> [u8; 16] {
        // SAFETY: as above.
        unsafe { scale(a, factor as f32) }
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn combine<O: Op>(a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
    let (a, b) = (widen(a), widen(b));
    narrow(match O::OP {
        ReduceOp::Sum => _mm256_add_ps(a, b),
        ReduceOp::Product => _mm256_mul_ps(a, b),
        // If either is NaN, the instruction returns `b`. Equal values differ at most in the sign of zero.
        ReduceOp::Min => {
            let smaller = select(is_nan(a), a, _mm256_min_ps(a, b));
            select(_mm256_cmp_ps::<_CMP_EQ_OQ>(a, b), _mm256_or_ps(a, b), smaller)
        }
        ReduceOp::Max => {
            let larger = select(is_nan(a), a, _mm256_max_ps(a, b));
            select(_mm256_cmp_ps::<_CMP_EQ_OQ>(a, b), _mm256_and_ps(a, b), larger)
        }
    })
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn scale(a: [u8; 16], factor: f32) -> [u8; 16] {
    narrow(_mm256_mul_ps(widen(a), _mm256_set1_ps(factor)))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen(bytes: [u8; 16]) -> __m256 {
    let (words, _) = bytes.as_chunks();
    _mm256_cvtph_ps(_mm_set_epi64x(i64::from_le_bytes(words[1]), i64::from_le_bytes(words[0])))
}

/// Rounds to nearest, ties to even; all NaNs become the same one.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow(wide: __m256) -> [u8; 16] {
    let wide = select(is_nan(wide), _mm256_set1_ps(f32::from_bits(0x7fc0_0000)), wide);
    let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&_mm_cvtsi128_si64(narrow).to_le_bytes());
    bytes[8..].copy_from_slice(&_mm_extract_epi64::<1>(narrow).to_le_bytes());
    bytes
}

#[inline]
#[target_feature(enable = "avx2")]
fn is_nan(value: __m256) -> __m256 {
    _mm256_cmp_ps::<_CMP_UNORD_Q>(value, value)
}

#[inline]
#[target_feature(enable = "avx2")]
fn select(mask: __m256, yes: __m256, no: __m256) -> __m256 {
    _mm256_blendv_ps(no, yes, mask)
}
