//! Status words that travel with a planned bucket, so that all ranks learn at once what deviated from the plan on any
//! rank.
use super::output::Output;
use paceline_kernels::dtype::Dtype;

/// The status words of a bucket: one that says whether anything was out of order, then one per tensor that says whether
/// a rank lacked it. They are summed with the tensors, so 0 means that it happened on no rank.
pub(super) struct StatusWords {
    memory: Output,
    width: usize,
    elements: u64,
}

impl StatusWords {
    /// `absent`: indices of the missing tensors in the bucket.
    pub fn new(dtype: Dtype, tensors: usize, irregular: bool, absent: impl Iterator<Item = usize>) -> StatusWords {
        let (width, elements) = (dtype.size(), tensors + 1);
        let mut bytes = vec![0; width * elements];
        let mut set = |at: usize| bytes[at * width..(at + 1) * width].copy_from_slice(one(dtype));
        if irregular {
            set(0);
        }
        absent.for_each(|place| set(place + 1));
        StatusWords { memory: Output::with(&bytes), width, elements: elements as u64 }
    }

    /// Address and number of words.
    pub fn memory(&self) -> (usize, u64) {
        (self.memory.address(), self.elements)
    }

    /// Whether anything was out of order on some rank; valid once the bucket has completed.
    pub fn irregular(&self) -> bool {
        self.is_set(0)
    }

    /// Whether some rank lacked this tensor; valid once the bucket has completed.
    pub fn absent(&self, place: usize) -> bool {
        self.is_set(place + 1)
    }

    fn is_set(&self, at: usize) -> bool {
        self.memory.copy()[at * self.width..(at + 1) * self.width].iter().any(|&byte| byte != 0)
    }
}

/// The number 1 in this type; little-endian, like all supported machines.
fn one(dtype: Dtype) -> &'static [u8] {
    match dtype {
        Dtype::Float32 => &[0, 0, 0x80, 0x3f],
        Dtype::Float64 => &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f],
        Dtype::Float16 => &[0, 0x3c],
        Dtype::Bfloat16 => &[0x80, 0x3f],
        Dtype::Int32 => &[1, 0, 0, 0],
        Dtype::Int64 => &[1, 0, 0, 0, 0, 0, 0, 0],
        Dtype::Uint8 => &[1],
    }
}
