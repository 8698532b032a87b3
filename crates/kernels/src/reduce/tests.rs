//! Tests of internals: all implementations give the same bits, and the conversions are right for every value.
use half::{bf16, f16};
use proptest::prelude::*;

use super::avx2::Avx2;
use super::narrow::{narrow_bfloat16_pair, narrow_float16, widen_bfloat16_pair, widen_float16};
use super::path::{self, Kernels};
use super::portable::Portable;
use super::scale;
use crate::dtype::{Dtype, ReduceOp};

/// Random bits; every fourth byte pair is that of a NaN, an infinity or a zero in some type.
fn bytes(len: usize, mut seed: u64) -> Vec<u8> {
    let special = [0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7c00, 0x7e01, 0xfff0, 0x7ff8, 0x0001, 0x7f7f];
    let mut pair = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (seed >> 40) as u16;
        if seed >> 62 == 0 { special[usize::from(bits) % special.len()] } else { bits }
    };
    (0..len.div_ceil(2)).flat_map(|_| pair().to_ne_bytes()).take(len).collect()
}

fn run(kernels: &Kernels, a: &[u8], b: &[u8]) -> [Vec<u8>; 3] {
    let (mut dst, mut dst3, mut out) = (a.to_vec(), a.to_vec(), vec![0; a.len()]);
    (kernels.combine)(&mut dst, b);
    (kernels.combine_and_copy)(&mut dst3, &mut out, b);
    [dst, dst3, out]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_way_gives_the_same_bits(
        count in 0..300usize,
        offset in 0..40usize,
        seed: u64,
        factor in prop_oneof![any::<f64>(), (1..100u32).prop_map(|whole| 1.0 / f64::from(whole))],
    ) {
        let Some(avx2) = Avx2::detect() else { return Ok(()) };
        for dtype in Dtype::ALL {
            let len = offset + count * dtype.size();
            let (a, b) = (&bytes(len, seed)[offset..], &bytes(len, !seed)[offset..]);
            for op in ReduceOp::ALL {
                let wide = run(&path::kernels(&avx2, dtype, op), a, b);
                prop_assert_eq!(&wide[0], &wide[1]);
                prop_assert_eq!(&wide[0], &wide[2]);
                prop_assert_eq!(wide, run(&path::kernels(&Portable, dtype, op), a, b));
            }
            let (mut wide, mut portable) = (a.to_vec(), a.to_vec());
            path::scale(&avx2, dtype)(&mut wide, factor);
            path::scale(&Portable, dtype)(&mut portable, factor);
            prop_assert_eq!(wide, portable);
        }
    }
}

proptest! {
    #[test]
    fn an_average_of_integers_is_the_quotient_toward_zero(
        // Exact quotients, their neighbors, and random values.
        values in prop::collection::vec((any::<i64>(), -1..=1i64, any::<bool>()), 1..40),
        ranks in prop_oneof![2..5000i64, Just(i64::from(u32::MAX))],
    ) {
        let values = values.into_iter().map(|(value, near, whole)| {
            if whole { (value / ranks * ranks).saturating_add(near) } else { value }
        });
        let factor = 1.0 / ranks as f64;
        for value in values {
            let mut wide = value.to_ne_bytes();
            scale(Dtype::Int64, &mut wide, factor);
            prop_assert_eq!(i64::from_ne_bytes(wide), value / ranks);
            let mut narrow = (value as i32).to_ne_bytes();
            scale(Dtype::Int32, &mut narrow, factor);
            prop_assert_eq!(i64::from(i32::from_ne_bytes(narrow)), i64::from(value as i32) / ranks);
            let mut byte = [value as u8];
            scale(Dtype::Uint8, &mut byte, factor);
            prop_assert_eq!(i64::from(byte[0]), i64::from(value as u8) / ranks);
        }
    }

    #[test]
    fn a_multiple_of_integers_is_cut_toward_zero(value: i32, factor in -4.0..4.0f64) {
        let mut scaled = value.to_ne_bytes();
        scale(Dtype::Int32, &mut scaled, factor);
        // As Horovod's `ScaleBufferCPUImpl`: the product as a double, converted; out of range it is undefined there.
        let expected = (f64::from(value) * factor).trunc().clamp(f64::from(i32::MIN), f64::from(i32::MAX));
        prop_assert!((f64::from(i32::from_ne_bytes(scaled)) - expected).abs() < 0.5);
    }
}

/// The upper and the lower half of a pair, which must not influence each other.
fn narrow_bfloat16(value: f32) -> [u16; 2] {
    let halves = |values| {
        let word = u32::from_ne_bytes(narrow_bfloat16_pair(values));
        [(word >> 16) as u16, word as u16]
    };
    [halves([f32::NAN, value])[0], halves([value, f32::MAX])[1]]
}

fn check_narrow(value: f32) {
    let (expected16, expected_b16) = match value.is_nan() {
        true => (0x7e00, 0x7fc0),
        false => (f16::from_f32(value).to_bits(), bf16::from_f32(value).to_bits()),
    };
    assert_eq!(narrow_float16(value), expected16, "{value:e}");
    assert_eq!(narrow_bfloat16(value), [expected_b16; 2], "{value:e}");
}

#[test]
fn sixteen_bits_widen_exactly() {
    for bits in 0..=u16::MAX {
        let (wide, expected) = (widen_float16(bits), f16::from_bits(bits).to_f32());
        assert!(wide.to_bits() == expected.to_bits() || wide.is_nan() && expected.is_nan(), "{bits:04x}");
        let pair = widen_bfloat16_pair((u32::from(bits) << 16 | u32::from(!bits)).to_ne_bytes());
        assert_eq!(pair.map(f32::to_bits), [u32::from(!bits) << 16, u32::from(bits) << 16]);
    }
}

#[test]
fn rounding_is_to_nearest_even() {
    // Every 16-bit value, the midpoint between it and the next, and the closest values on either side.
    for bits in 0..=u16::MAX {
        let float16 = widen_float16(bits).to_bits();
        let bfloat16 = u32::from(bits) << 16;
        // Below the normal range of binary16 the midpoint is elsewhere: half of the smallest value away.
        let subnormal = (widen_float16(bits).abs() + 2f32.powi(-25)).to_bits();
        for middle in [float16, float16 + (1 << 12), bfloat16, bfloat16 + (1 << 15), subnormal] {
            for near in [middle.wrapping_sub(1), middle, middle + 1] {
                check_narrow(f32::from_bits(near));
            }
        }
    }
    // And a sample of all values.
    for bits in (0..=u32::MAX).step_by(9973) {
        check_narrow(f32::from_bits(bits));
    }
}
