//! Multiplies a buffer by a factor, which turns a sum into an average.
use super::path;
use crate::dtype::Dtype;

/// `data = data * factor`. Panics unless `data` is a whole number of elements; unaligned data is fine.
///
/// `float32` is multiplied by the factor rounded to `float32`, as are `float16` and `bfloat16`, which are then rounded
/// to nearest; the product of an integer is computed as `float64`, rounded toward zero and clamped to the type's range.
/// The `f64` nearest to 1/n, for an integer n, divides an integer by n exactly and rounds toward zero, as in an
/// average.
/// A factor of 1 leaves every bit as it is.
pub fn scale(dtype: Dtype, data: &mut [u8], factor: f64) {
    if factor != 1.0 {
        path::best_scale(dtype)(data, factor);
    }
}
