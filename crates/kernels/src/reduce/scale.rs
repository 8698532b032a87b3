//! Multiplies a buffer by a factor, which turns a sum into an average.
use super::path::Scale;
use super::selection::best_scale;
use crate::dtype::Dtype;

/// `data = data * factor`. Panics unless `data` is a whole number of elements; unaligned data is fine.
///
/// `float32` is multiplied by the factor rounded to `float32`, as are `float16` and `bfloat16`, which are then rounded
/// to nearest; the product of an integer is computed as `float64`, rounded toward zero and clamped to the type's range.
/// The `f64` nearest to 1/n, for an integer n, divides an integer by n exactly and rounds toward zero, as in an
/// average.
/// A factor of 1 leaves every bit as it is.
pub fn scale(dtype: Dtype, data: &mut [u8], factor: f64) {
    if factor == 1.0 {
        return;
    }
    let kernel = best_scale(dtype);
    match (1..=10).find(|&power| factor == f64::from(power).exp2().recip()) {
        Some(power) if dtype == Dtype::Float16 => shrink(data, power as u16, kernel),
        _ => kernel(data, factor),
    }
}

/// Multiplies binary16 by 2^-power: a subtraction from the exponent, at the speed of the memory, where every value of a
/// block is zero or has a normal result.
fn shrink(data: &mut [u8], power: u16, kernel: Scale) {
    let (less, least) = (power << 10, (power + 1) << 10);
    let factor = f64::from(power).exp2().recip();
    let (blocks, rest) = data.as_chunks_mut::<BLOCK>();
    for block in blocks {
        let (mut usual, mut small) = (true, [0; BLOCK]);
        for (to, from) in small.as_chunks_mut().0.iter_mut().zip(block.as_chunks().0) {
            let bits = u16::from_ne_bytes(*from);
            let magnitude = bits & 0x7fff;
            usual &= (magnitude == 0) | ((magnitude >= least) & (magnitude < INFINITY));
            *to = bits.wrapping_sub(if magnitude == 0 { 0 } else { less }).to_ne_bytes();
        }
        if usual { *block = small } else { kernel(block, factor) }
    }
    kernel(rest, factor);
}

const BLOCK: usize = 128;

/// Of binary16.
const INFINITY: u16 = 0x7c00;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_binary16_is_shrunk_as_by_the_kernel() {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        for power in 1..=10 {
            let factor = f64::from(power).exp2().recip();
            // Values of all kinds in a block, and blocks of one kind.
            for stride in [1, 977] {
                let order = |at: usize| all[at * stride % (all.len() / 2) * 2..][..2].to_vec();
                let mut mine: Vec<u8> = (0..all.len() / 2).flat_map(order).collect();
                let mut kernels = mine.clone();
                scale(Dtype::Float16, &mut mine, factor);
                best_scale(Dtype::Float16)(&mut kernels, factor);
                assert!(mine == kernels, "2^-{power}");
            }
        }
    }
}
