//! Tests the kernels against plain arithmetic, one element at a time.
use std::panic::catch_unwind;

use half::{bf16, f16};
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_kernels::reduce::{copy, copy_streaming, kernel, kernel_and_copy, scale};
use proptest::prelude::*;

/// Applies a macro with `f32`, ... to elements of a type chosen at run time.
macro_rules! per_type {
    ($dtype:expr, $float:ident, $integer:ident, $($more:expr),*) => {
        match $dtype {
            Dtype::Float32 => $float!(f32, f32, f32::from_bits(0x7fc0_0000), |x| x, |x| x, $($more),*),
            Dtype::Float64 => $float!(f64, f64, f64::from_bits(0x7ff8 << 48), |x| x, |x| x, $($more),*),
            Dtype::Float16 => $float!(f16, f32, f16::from_bits(0x7e00), f16::to_f32, f16::from_f32, $($more),*),
            Dtype::Bfloat16 => $float!(bf16, f32, bf16::from_bits(0x7fc0), bf16::to_f32, bf16::from_f32, $($more),*),
            Dtype::Int32 => $integer!(i32, $($more),*),
            Dtype::Int64 => $integer!(i64, $($more),*),
            Dtype::Uint8 => $integer!(u8, $($more),*),
        }
    };
}

/// The expected result for one element.
fn combined(dtype: Dtype, op: ReduceOp, a: &[u8], b: &[u8]) -> Vec<u8> {
    macro_rules! float {
        ($element:ty, $wide:ty, $nan:expr, $widen:expr, $narrow:expr, $a:expr, $b:expr) => {{
            let widen: fn($element) -> $wide = $widen;
            let narrow: fn($wide) -> $element = $narrow;
            let a = widen(<$element>::from_ne_bytes($a.try_into().unwrap()));
            let b = widen(<$element>::from_ne_bytes($b.try_into().unwrap()));
            let result = match op {
                ReduceOp::Sum => a + b,
                ReduceOp::Product => a * b,
                _ if a.is_nan() || b.is_nan() => <$wide>::NAN,
                // -0 is less than +0.
                ReduceOp::Min if a < b || (a == b && a.is_sign_negative()) => a,
                ReduceOp::Max if a > b || (a == b && a.is_sign_positive()) => a,
                ReduceOp::Min | ReduceOp::Max => b,
            };
            (if result.is_nan() { $nan } else { narrow(result) }).to_ne_bytes().to_vec()
        }};
    }
    macro_rules! integer {
        ($element:ty, $a:expr, $b:expr) => {{
            let a = <$element>::from_ne_bytes($a.try_into().unwrap());
            let b = <$element>::from_ne_bytes($b.try_into().unwrap());
            let result = match op {
                ReduceOp::Sum => a.wrapping_add(b),
                ReduceOp::Product => a.wrapping_mul(b),
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
            };
            result.to_ne_bytes().to_vec()
        }};
    }
    per_type!(dtype, float, integer, a, b)
}

/// As [`combined`].
fn scaled(dtype: Dtype, a: &[u8], factor: f64) -> Vec<u8> {
    macro_rules! float {
        ($element:ty, $wide:ty, $nan:expr, $widen:expr, $narrow:expr, $a:expr) => {{
            let widen: fn($element) -> $wide = $widen;
            let narrow: fn($wide) -> $element = $narrow;
            let result = widen(<$element>::from_ne_bytes($a.try_into().unwrap())) * (factor as $wide);
            (if result.is_nan() { $nan } else { narrow(result) }).to_ne_bytes().to_vec()
        }};
    }
    macro_rules! integer {
        ($element:ty, $a:expr) => {{
            let a = <$element>::from_ne_bytes($a.try_into().unwrap());
            // An average: the exact quotient, toward zero.
            let ranks = (2..100).find(|&ranks| 1.0 / ranks as f64 == factor);
            let result = ranks.map_or((a as f64 * factor) as $element, |ranks| (i128::from(a) / ranks) as $element);
            result.to_ne_bytes().to_vec()
        }};
    }
    if factor == 1.0 { a.to_vec() } else { per_type!(dtype, float, integer, a) }
}

/// Edge values of a type.
fn special(dtype: Dtype) -> Vec<Vec<u8>> {
    macro_rules! float {
        ($element:ty, $wide:ty, $nan:expr, $widen:expr, $narrow:expr,) => {{
            let narrow: fn($wide) -> $element = $narrow;
            let one_up = <$element>::from_bits(narrow(1.0).to_bits() + 1);
            let values = [
                $nan,
                -$nan,
                <$element>::from_bits($nan.to_bits() | 1),
                <$element>::INFINITY,
                <$element>::NEG_INFINITY,
                // A signaling NaN.
                <$element>::from_bits(<$element>::INFINITY.to_bits() | 1),
                <$element>::MAX,
                <$element>::MIN,
                <$element>::MIN_POSITIVE,
                <$element>::from_bits(1),
                one_up,
                -<$element>::from_bits(1),
                narrow(0.0),
                narrow(-0.0),
                narrow(1.0),
                narrow(-1.0),
                narrow(0.5),
                narrow(3.0),
            ];
            values.into_iter().map(|value| value.to_ne_bytes().to_vec()).collect()
        }};
    }
    macro_rules! integer {
        ($element:ty,) => {{
            let (min, max) = (<$element>::MIN, <$element>::MAX);
            let values = [min, max, min + 1, max - 1, 0, 1, 2, max / 2, max / 2 + 1, (0 as $element).wrapping_sub(1)];
            values.into_iter().map(|value| value.to_ne_bytes().to_vec()).collect()
        }};
    }
    per_type!(dtype, float, integer,)
}

/// Some elements: random bits, every fourth special.
fn elements(dtype: Dtype, count: usize, mut seed: u64) -> Vec<u8> {
    let special = special(dtype);
    let mut element = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match seed >> 62 {
            0 => special[(seed >> 32) as usize % special.len()].clone(),
            _ => (seed ^ (seed >> 29)).to_ne_bytes()[..dtype.size()].to_vec(),
        }
    };
    (0..count).flat_map(|_| element()).collect()
}

/// Bytes around a buffer, which must survive.
const MARGIN: usize = 64;

/// Runs on a copy of `bytes` at some offset in a page, and checks that nothing outside of it was changed.
fn at(offset: usize, bytes: &[u8], run: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut memory = vec![0xa5; offset + bytes.len() + MARGIN];
    let inner = offset..offset + bytes.len();
    memory[inner.clone()].copy_from_slice(bytes);
    run(&mut memory[inner.clone()]);
    let result = memory[inner.clone()].to_vec();
    memory[inner].fill(0xa5);
    assert!(memory.iter().all(|&byte| byte == 0xa5));
    result
}

fn check_kernels(dtype: Dtype, op: ReduceOp, a: &[u8], b: &[u8], offsets: [usize; 3]) {
    let size = dtype.size();
    let expected: Vec<u8> = a.chunks(size).zip(b.chunks(size)).flat_map(|(a, b)| combined(dtype, op, a, b)).collect();
    at(offsets[1], b, |b| {
        let result = at(offsets[0], a, |dst| kernel(dtype, op)(dst, b));
        assert_eq!(result, expected, "{dtype:?} {op:?}");
        let mut passed_on = Vec::new();
        let result = at(offsets[0], a, |dst| {
            passed_on = at(offsets[2], &vec![0; dst.len()], |out| kernel_and_copy(dtype, op)(dst, out, b));
        });
        assert_eq!(result, expected, "{dtype:?} {op:?}");
        assert_eq!(passed_on, expected, "{dtype:?} {op:?}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn kernels(count in 0..300usize, offsets in [0..70usize, 0..70usize, 0..70usize], seed: u64) {
        for dtype in Dtype::ALL {
            let (a, b) = (elements(dtype, count, seed), elements(dtype, count, !seed));
            for op in ReduceOp::ALL {
                check_kernels(dtype, op, &a, &b, offsets);
            }
        }
    }

    #[test]
    fn scaling(
        count in 0..300usize,
        offset in 0..70usize,
        seed: u64,
        factor in prop_oneof![
            any::<f64>(), -2.0..2.0, Just(1.0), Just(1.0 / 3.0), Just(1.0 / 49.0), Just(0.0), Just(f64::NAN), Just(1e300)
        ],
    ) {
        for dtype in Dtype::ALL {
            let a = elements(dtype, count, seed);
            let expected: Vec<u8> = a.chunks(dtype.size()).flat_map(|a| scaled(dtype, a, factor)).collect();
            let result = at(offset, &a, |data| scale(dtype, data, factor));
            prop_assert_eq!(result, expected, "{:?}", dtype);
        }
    }

    #[test]
    fn copies(len in prop_oneof![0..300usize, 260_000..270_000usize], from in 0..70usize, to in 0..70usize, seed: u64) {
        let src = elements(Dtype::Uint8, len, seed);
        at(from, &src, |src| {
            assert_eq!(at(to, &vec![0; len], |dst| copy(dst, src)), src);
            assert_eq!(at(to, &vec![0; len], |dst| copy_streaming(dst, src)), src);
        });
    }
}

#[test]
fn special_values_meet_each_other() {
    for dtype in Dtype::ALL {
        let special = special(dtype);
        let (a, b): (Vec<_>, Vec<_>) =
            special.iter().flat_map(|a| special.iter().map(move |b| (&a[..], &b[..]))).unzip();
        for op in ReduceOp::ALL {
            check_kernels(dtype, op, &a.concat(), &b.concat(), [0, 0, 0]);
        }
    }
}

#[test]
fn long_buffers_with_ragged_ends() {
    for dtype in Dtype::ALL {
        // Around the number of bytes that are combined before they are copied.
        for len in [4096 - 8, 4096, 4096 + 8, 3 * 4096 + 24] {
            let (a, b) = (elements(dtype, len / dtype.size(), 1), elements(dtype, len / dtype.size(), 2));
            check_kernels(dtype, ReduceOp::Sum, &a, &b, [dtype.size(), 0, 2 * dtype.size()]);
        }
    }
}

#[test]
fn all_values_of_sixteen_bits() {
    for (dtype, infinity, nan) in [(Dtype::Float16, 0x7c00, 0x7e00), (Dtype::Bfloat16, 0x7f80, 0x7fc0)] {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        // What comes back where nothing is added.
        let expected: Vec<u8> =
            (0..=u16::MAX).flat_map(|bits| if bits & 0x7fff > infinity { nan } else { bits }.to_ne_bytes()).collect();
        for op in [ReduceOp::Min, ReduceOp::Max] {
            let mut dst = all.clone();
            kernel(dtype, op)(&mut dst, &all);
            assert_eq!(dst, expected);
        }
        // And combined with some other value.
        for step in [1, 7919, 30011] {
            let others: Vec<u8> =
                (0..=u16::MAX).flat_map(|bits| bits.wrapping_mul(step).rotate_left(3).to_ne_bytes()).collect();
            for op in ReduceOp::ALL {
                check_kernels(dtype, op, &all, &others, [0, 0, 0]);
            }
        }
    }
}

#[test]
fn a_factor_of_one_leaves_payloads() {
    let mut data = 0x7f80_0001_u32.to_ne_bytes();
    scale(Dtype::Float32, &mut data, 1.0);
    assert_eq!(u32::from_ne_bytes(data), 0x7f80_0001);
}

#[test]
fn wrong_lengths_are_refused() {
    for dtype in Dtype::ALL {
        let size = dtype.size();
        let sum = kernel(dtype, ReduceOp::Sum);
        let sum3 = kernel_and_copy(dtype, ReduceOp::Sum);
        let buffer = |elements: usize| vec![0; elements * size];
        catch_unwind(|| sum(&mut buffer(3), &buffer(2))).unwrap_err();
        catch_unwind(|| sum3(&mut buffer(3), &mut buffer(3), &buffer(4))).unwrap_err();
        catch_unwind(|| sum3(&mut buffer(3), &mut buffer(2), &buffer(3))).unwrap_err();
        if size > 1 {
            catch_unwind(|| sum(&mut vec![0; 3 * size + 1], &vec![0; 3 * size + 1])).unwrap_err();
            catch_unwind(|| scale(dtype, &mut vec![0; 3 * size + 1], 2.0)).unwrap_err();
        }
    }
    catch_unwind(|| copy(&mut [0; 3], &[0; 2])).unwrap_err();
    catch_unwind(|| copy_streaming(&mut [0; 3], &[0; 2])).unwrap_err();
}

/// Two ranks that exchange values combine them in opposite order.
#[test]
fn the_order_of_two_values_does_not_matter() {
    let values = [0.0f32, -0.0, 1.0, -1.0, f32::NAN, -f32::NAN, f32::from_bits(0x7fc0_1234), f32::INFINITY];
    for dtype in [Dtype::Float32, Dtype::Float64, Dtype::Float16, Dtype::Bfloat16] {
        let bytes = |value: f32| match dtype {
            Dtype::Float32 => value.to_ne_bytes().to_vec(),
            Dtype::Float64 => f64::from(value).to_ne_bytes().to_vec(),
            Dtype::Float16 => half::f16::from_f32(value).to_ne_bytes().to_vec(),
            _ => half::bf16::from_f32(value).to_ne_bytes().to_vec(),
        };
        // Long enough for whole vectors and a rest.
        let pairs: Vec<(f32, f32)> = values.iter().flat_map(|&a| values.map(|b| (a, b))).collect();
        let left: Vec<u8> = pairs.iter().flat_map(|&(a, _)| bytes(a)).collect();
        let right: Vec<u8> = pairs.iter().flat_map(|&(_, b)| bytes(b)).collect();
        for op in ReduceOp::ALL {
            let (mut one, mut other) = (left.clone(), right.clone());
            kernel(dtype, op)(&mut one, &right);
            kernel(dtype, op)(&mut other, &left);
            assert_eq!(one, other, "{} {}", dtype.name(), op.name());
        }
    }
}
