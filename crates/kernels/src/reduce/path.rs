//! An implementation of the kernels: one per kind of machine.
use super::block::{Bfloat16Pair, Block, Float16};
use super::op::{Max, Min, Op, Product, Sum};
use crate::dtype::{Dtype, ReduceOp};

/// `dst = dst op src`. Panics unless both have the same length, a whole number of elements.
pub type Kernel = fn(&mut [u8], &[u8]);

/// `dst = dst op src`, then `out = dst`: arguments in the order dst, out, src. Panics unless all have the same length,
/// a whole number of elements.
pub type Kernel3 = fn(&mut [u8], &mut [u8], &[u8]);

/// `data = data * factor`.
pub type Scale = fn(&mut [u8], f64);

/// Kernels that are selected together.
pub struct Kernels {
    pub combine: Kernel,
    pub combine_and_copy: Kernel3,
}

/// The loops, compiled for one kind of machine. A value of an implementation proves that this machine is of that kind.
pub trait Path {
    /// Combines blocks.
    fn kernels<const N: usize, B: Block<N>, O: Op>(&self) -> Kernels;

    /// Multiplies blocks.
    fn scale<const N: usize, B: Block<N>>(&self) -> Scale;

    /// Combines binary16, for which some machines have special instructions.
    fn kernels_float16<O: Op>(&self) -> Kernels {
        self.kernels::<2, Float16, O>()
    }

    /// Multiplies binary16.
    fn scale_float16(&self) -> Scale {
        self.scale::<2, Float16>()
    }
}

/// The kernels of one implementation.
pub fn kernels(path: &impl Path, dtype: Dtype, op: ReduceOp) -> Kernels {
    match op {
        ReduceOp::Sum => of_op::<Sum>(path, dtype),
        ReduceOp::Min => of_op::<Min>(path, dtype),
        ReduceOp::Max => of_op::<Max>(path, dtype),
        ReduceOp::Product => of_op::<Product>(path, dtype),
    }
}

fn of_op<O: Op>(path: &impl Path, dtype: Dtype) -> Kernels {
    match dtype {
        Dtype::Float32 => path.kernels::<4, f32, O>(),
        Dtype::Float64 => path.kernels::<8, f64, O>(),
        Dtype::Float16 => path.kernels_float16::<O>(),
        Dtype::Bfloat16 => path.kernels::<4, Bfloat16Pair, O>(),
        Dtype::Int32 => path.kernels::<4, i32, O>(),
        Dtype::Int64 => path.kernels::<8, i64, O>(),
        Dtype::Uint8 => path.kernels::<1, u8, O>(),
    }
}

/// Like [`kernels`].
pub fn scale(path: &impl Path, dtype: Dtype) -> Scale {
    match dtype {
        Dtype::Float32 => path.scale::<4, f32>(),
        Dtype::Float64 => path.scale::<8, f64>(),
        Dtype::Float16 => path.scale_float16(),
        Dtype::Bfloat16 => path.scale::<4, Bfloat16Pair>(),
        Dtype::Int32 => path.scale::<4, i32>(),
        Dtype::Int64 => path.scale::<8, i64>(),
        Dtype::Uint8 => path.scale::<1, u8>(),
    }
}
