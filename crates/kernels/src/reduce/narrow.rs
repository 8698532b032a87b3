//! Conversions between binary32 and the 16-bit types, without branches or tables, so that loops over them can be
//! vectorized on any machine.

/// Exact. Words are in native byte order: which half comes first does not matter as long as they are put back.
#[inline(always)]
pub fn widen_bfloat16_pair(bytes: [u8; 4]) -> [f32; 2] {
    let word = u32::from_ne_bytes(bytes);
    [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
}

/// Rounds to nearest, ties to even; all NaNs become the same one.
#[inline(always)]
pub fn narrow_bfloat16_pair(values: [f32; 2]) -> [u8; 4] {
    let word = join(values.map(round_bfloat16));
    // Replacing NaNs in both halves at once takes fewer instructions than in each one.
    let nan = join(values.map(|value| if value.is_nan() { u32::MAX } else { 0 }));
    ((word & !nan) | (nan & 0x7fc0_7fc0)).to_ne_bytes()
}

/// The word with these two upper halves.
#[inline(always)]
fn join(halves: [u32; 2]) -> u32 {
    (halves[0] >> 16) | (halves[1] & 0xffff_0000)
}

/// A binary32 whose upper half is the result, unless it is a NaN.
#[inline(always)]
fn round_bfloat16(value: f32) -> u32 {
    let bits = value.to_bits();
    // Adds just under half a unit of the upper part, and slightly more if that part is odd, so that a tie rounds up
    // only then. A carry out of the fraction raises the exponent, up to infinity, as required.
    bits.wrapping_add(0x7fff + ((bits >> 16) & 1))
}

/// Exact, except that a signaling NaN becomes quiet.
#[inline(always)]
pub fn widen_float16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    // The exponent bias is 15 in binary16 and 127 in binary32. Adding 224 to the exponent maps the largest, 31, to 255
    // and so infinity to infinity; the multiplication removes the excess of 112 from finite values.
    let normal = f32::from_bits((magnitude << 13) + (224 << 23)) * TWO_TO_MINUS_112;
    // The fraction of a subnormal counts units of 2^-24: it is put at the end of 0.5, which has the same unit.
    let subnormal = f32::from_bits(magnitude | 0.5f32.to_bits()) - 0.5;
    let value = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | value.to_bits())
}

/// Rounds to nearest, ties to even; all NaNs become the same one.
#[inline(always)]
pub fn narrow_float16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    // Too large values become infinite in the first step; the others end up 2^2 times as large.
    let magnitude = f32::from_bits(bits & 0x7fff_ffff) * TWO_TO_112 * TWO_TO_MINUS_110;
    // The machine rounds: adding a power of two whose last bit has the weight of the result's last bit drops the lower
    // bits. Below the normal range (2^-14) that power stays the same, which produces subnormals.
    let exponent = (bits & 0x7f80_0000).max(0x3880_0000);
    let shifted = (f32::from_bits(exponent + (15 << 23)) + magnitude).to_bits();
    // A carry out of the fraction is still in the sum, hence one bit more than the fraction has.
    let rounded = ((shifted >> 13) & 0x7c00) + (shifted & 0x0fff);
    (if value.is_nan() { 0x7e00 } else { sign | rounded }) as u16
}

const TWO_TO_112: f32 = f32::from_bits((127 + 112) << 23);
const TWO_TO_MINUS_110: f32 = f32::from_bits((127 - 110) << 23);
const TWO_TO_MINUS_112: f32 = f32::from_bits((127 - 112) << 23);
