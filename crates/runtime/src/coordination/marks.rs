//! Numbers that travel with a planned bucket, by which all ranks learn at once what was not as planned on one of them.
use super::output::Output;
use paceline_kernels::dtype::Dtype;

/// Of one bucket: a number that says whether something was out of order, then one for each tensor that says whether a
/// rank had none. They are added up with the tensors, so that 0 says that it was so nowhere.
pub(super) struct Marks {
    memory: Output,
    width: usize,
    elements: u64,
}

impl Marks {
    /// `absent` are places of tensors in the bucket.
    pub fn new(dtype: Dtype, tensors: usize, irregular: bool, absent: impl Iterator<Item = usize>) -> Marks {
        let (width, elements) = (dtype.size(), tensors + 1);
        let mut bytes = vec![0; width * elements];
        let mut mark = |at: usize| bytes[at * width..(at + 1) * width].copy_from_slice(one(dtype));
        if irregular {
            mark(0);
        }
        absent.for_each(|place| mark(place + 1));
        Marks { memory: Output::with(&bytes), width, elements: elements as u64 }
    }

    /// Where they are, and how many.
    pub fn memory(&self) -> (usize, u64) {
        (self.memory.address(), self.elements)
    }

    /// Once the bucket is over: whether something was out of order on some rank.
    pub fn irregular(&self) -> bool {
        self.marked(0)
    }

    /// Once the bucket is over: whether some rank had no such tensor.
    pub fn absent(&self, place: usize) -> bool {
        self.marked(place + 1)
    }

    fn marked(&self, at: usize) -> bool {
        self.memory.copy()[at * self.width..(at + 1) * self.width].iter().any(|&byte| byte != 0)
    }
}

/// The number 1, little-endian as all machines that this runs on.
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
