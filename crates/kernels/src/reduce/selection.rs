//! Selects the kernels for this machine.
use super::avx2::Avx2;
use super::path::{self, Kernels, Scale};
use super::portable::Portable;
use crate::dtype::{Dtype, ReduceOp};

/// The kernels for this machine.
pub fn best(dtype: Dtype, op: ReduceOp) -> Kernels {
    match Avx2::detect() {
        Some(path) => path::kernels(&path, dtype, op),
        None => path::kernels(&Portable, dtype, op),
    }
}

/// Like [`best`].
pub fn best_scale(dtype: Dtype) -> Scale {
    match Avx2::detect() {
        Some(path) => path::scale(&path, dtype),
        None => path::scale(&Portable, dtype),
    }
}
