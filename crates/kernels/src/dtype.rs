//! Element types and reduction operations.
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::names::{UnknownName, find};

/// Type of the elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Dtype {
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary64.
    Float64,
    /// IEEE 754 binary16.
    Float16,
    /// The upper half of a binary32.
    Bfloat16,
    /// Two's complement.
    Int32,
    /// Two's complement.
    Int64,
    /// Unsigned; also used to move other types without arithmetic.
    Uint8,
}

impl Dtype {
    /// All types, in the order of their numbers.
    pub const ALL: [Dtype; 7] =
        [Dtype::Float32, Dtype::Float64, Dtype::Float16, Dtype::Bfloat16, Dtype::Int32, Dtype::Int64, Dtype::Uint8];

    /// Bytes per element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Dtype::Uint8 => 1,
            Dtype::Float16 | Dtype::Bfloat16 => 2,
            Dtype::Float32 | Dtype::Int32 => 4,
            Dtype::Float64 | Dtype::Int64 => 8,
        }
    }

    /// The name that users write.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Float32 => "float32",
            Dtype::Float64 => "float64",
            Dtype::Float16 => "float16",
            Dtype::Bfloat16 => "bfloat16",
            Dtype::Int32 => "int32",
            Dtype::Int64 => "int64",
            Dtype::Uint8 => "uint8",
        }
    }

    /// The type with this number, which may come from a peer.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Dtype> {
        Dtype::ALL.get(usize::from(code)).copied()
    }

    /// Whether it is a floating-point type.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Dtype::Float32 | Dtype::Float64 | Dtype::Float16 | Dtype::Bfloat16)
    }
}

impl FromStr for Dtype {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Dtype, UnknownName> {
        find(name, &Dtype::ALL, Dtype::name)
    }
}

/// How contributions are combined. An average is a sum that is scaled afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum ReduceOp {
    /// a + b; integers wrap.
    Sum,
    /// The smaller; -0 is less than +0, and a NaN wins.
    Min,
    /// The larger; +0 is greater than -0, and a NaN wins.
    Max,
    /// a * b; integers wrap.
    Product,
}

impl ReduceOp {
    /// All operations, in the order of their numbers.
    pub const ALL: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

    /// The name that users write.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Product => "product",
        }
    }

    /// The operation with this number, which may come from a peer.
    #[must_use]
    pub fn from_code(code: u8) -> Option<ReduceOp> {
        ReduceOp::ALL.get(usize::from(code)).copied()
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<ReduceOp, UnknownName> {
        find(name, &ReduceOp::ALL, ReduceOp::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_name_is_found_by_it_and_written_as_it() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        for op in ReduceOp::ALL {
            assert_eq!(op.name().parse(), Ok(op));
        }
        let error = "average".parse::<ReduceOp>().unwrap_err();
        assert_eq!(error.to_string(), "'average' is not one of sum, min, max, product");
    }
}
