//! The bytes of elements and the numbers they represent.
use super::narrow;
use super::number::Number;
use super::op::Op;

/// The unit of a loop: an element, or a few that are better handled together. Loops require no alignment and need to
/// know nothing else about elements. They end with a block that is padded with zeros, so that every element takes the
/// same path.
pub trait Block<const BYTES: usize> {
    /// Bytes of one element.
    const ELEMENT: usize;

    /// Combines each element with its counterpart.
    fn combine<O: Op>(a: [u8; BYTES], b: [u8; BYTES]) -> [u8; BYTES];

    /// Multiplies each element.
    fn scale(a: [u8; BYTES], factor: f64) -> [u8; BYTES];
}

macro_rules! block {
    ($block:ty, $number:ty, $bytes:literal, $load:expr, $store:expr) => {
        impl Block<$bytes> for $block {
            const ELEMENT: usize = $bytes;

            #[inline(always)]
            fn combine<O: Op>(a: [u8; $bytes], b: [u8; $bytes]) -> [u8; $bytes] {
                $store(O::apply($load(a), $load(b)))
            }

            #[inline(always)]
            fn scale(a: [u8; $bytes], factor: f64) -> [u8; $bytes] {
                // The conversion of the factor is hoisted out of the loop.
                $store($load(a).scale(<$number>::factor(factor)))
            }
        }
    };
}

/// IEEE 754 binary16.
pub struct Float16;

block!(f32, f32, 4, f32::from_ne_bytes, |wide: f32| {
    let bits = if wide.is_nan() { 0x7fc0_0000 } else { wide.to_bits() };
    bits.to_ne_bytes()
});
block!(f64, f64, 8, f64::from_ne_bytes, |wide: f64| {
    let bits = if wide.is_nan() { 0x7ff8_0000_0000_0000 } else { wide.to_bits() };
    bits.to_ne_bytes()
});
block!(i32, i32, 4, i32::from_ne_bytes, i32::to_ne_bytes);
block!(i64, i64, 8, i64::from_ne_bytes, i64::to_ne_bytes);
block!(u8, u8, 1, u8::from_ne_bytes, u8::to_ne_bytes);
block!(Float16, f32, 2, |bytes| narrow::widen_float16(u16::from_ne_bytes(bytes)), |wide| narrow::narrow_float16(wide)
    .to_ne_bytes());

/// Two bfloat16 values in one word. Widening and narrowing them takes shifts and masks, whereas single values would
/// have to be moved between vectors of 16 and of 32 bits.
pub struct Bfloat16Pair;

impl Block<4> for Bfloat16Pair {
    const ELEMENT: usize = 2;

    #[inline(always)]
    fn combine<O: Op>(a: [u8; 4], b: [u8; 4]) -> [u8; 4] {
        let (a, b) = (narrow::widen_bfloat16_pair(a), narrow::widen_bfloat16_pair(b));
        narrow::narrow_bfloat16_pair([O::apply(a[0], b[0]), O::apply(a[1], b[1])])
    }

    #[inline(always)]
    fn scale(a: [u8; 4], factor: f64) -> [u8; 4] {
        let (a, factor) = (narrow::widen_bfloat16_pair(a), f32::factor(factor));
        narrow::narrow_bfloat16_pair([a[0].scale(factor), a[1].scale(factor)])
    }
}
