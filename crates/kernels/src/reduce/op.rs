//! Reduction operations as types, so that a loop is compiled for each.
use super::number::Number;
use crate::dtype::ReduceOp;

/// An operation known at compile time.
pub trait Op {
    /// The operation as a value.
    const OP: ReduceOp;

    /// Combines two values.
    #[inline(always)]
    fn apply<T: Number>(a: T, b: T) -> T {
        match Self::OP {
            ReduceOp::Sum => a.sum(b),
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
            ReduceOp::Product => a.product(b),
        }
    }
}

/// [`ReduceOp::Sum`].
pub struct Sum;
/// [`ReduceOp::Min`].
pub struct Min;
/// [`ReduceOp::Max`].
pub struct Max;
/// [`ReduceOp::Product`].
pub struct Product;

impl Op for Sum {
    const OP: ReduceOp = ReduceOp::Sum;
}

impl Op for Min {
    const OP: ReduceOp = ReduceOp::Min;
}

impl Op for Max {
    const OP: ReduceOp = ReduceOp::Max;
}

impl Op for Product {
    const OP: ReduceOp = ReduceOp::Product;
}
