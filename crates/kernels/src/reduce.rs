//! Arithmetic on buffers: combine two, scale one, copy one.
//!
//! Buffers are bytes, because they come from other processes and other languages, and may have any alignment. The
//! result of an operation depends only on the values, never on the machine's vector width or the address of a buffer:
//!
//! - `float16` and `bfloat16` are combined as binary32 and rounded to nearest, ties to even;
//! - a sum or product is rounded after every operation (nothing is contracted into a fused multiply-add);
//! - every NaN result is the same: quiet, positive, no payload. Otherwise a compiler that swaps the operands of an
//!   addition would choose which payload wins.
mod avx2;
mod block;
mod copy;
mod narrow;
mod number;
mod op;
mod path;
mod portable;
mod scale;
mod selection;
#[cfg(test)]
mod tests;

use crate::dtype::{Dtype, ReduceOp};

pub use copy::{copy, copy_streaming};
pub use path::{Kernel, Kernel3};
pub use scale::scale;

/// The fastest kernel that this machine can run. Look it up once per operation, not once per chunk.
#[must_use]
pub fn kernel(dtype: Dtype, op: ReduceOp) -> Kernel {
    selection::best(dtype, op).combine
}

/// Like [`kernel`], for a rank that reduces and forwards: one pass over memory instead of two.
#[must_use]
pub fn kernel_and_copy(dtype: Dtype, op: ReduceOp) -> Kernel3 {
    selection::best(dtype, op).combine_and_copy
}
