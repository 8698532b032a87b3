//! Memory in which oneCCL reduces: a copy, as an abandoned call may go on to write.
//!
//! The 16-bit types are widened to float32, reduced, and rounded once.
use std::ffi::c_void;

use half::{bf16, f16};
use paceline_kernels::dtype::Dtype;
use paceline_transport::space::Space;

/// Elements on their own.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    element: usize,
}

impl Buffer {
    /// A copy of a space's elements.
    pub fn of(space: &mut Space, dtype: Dtype) -> Buffer {
        let wide = is_narrow(dtype);
        let element = if wide { size_of::<f32>() } else { dtype.size() };
        let mut bytes = Vec::with_capacity(space.len() as usize * element);
        space.for_each(|run| {
            if wide {
                bytes.extend(run.as_chunks().0.iter().flat_map(|&narrow| widen(dtype, narrow).to_ne_bytes()));
            } else {
                bytes.extend_from_slice(run);
            }
        });
        Buffer { bytes, element }
    }

    /// The type of the copy's elements.
    pub fn dtype(dtype: Dtype) -> Dtype {
        if is_narrow(dtype) { Dtype::Float32 } else { dtype }
    }

    /// Where it begins, and its elements.
    pub fn memory(&mut self) -> (*mut c_void, usize) {
        (self.bytes.as_mut_ptr().cast(), self.bytes.len() / self.element)
    }

    /// Writes the elements into the space.
    pub fn copy_back(self, dtype: Dtype, space: &mut Space) {
        let Buffer { mut bytes, .. } = self;
        if is_narrow(dtype) {
            bytes = bytes.as_chunks().0.iter().flat_map(|&wide| narrow(dtype, f32::from_ne_bytes(wide))).collect();
        }
        space.zip(0, &bytes, <[u8]>::copy_from_slice);
    }
}

fn is_narrow(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Float16 | Dtype::Bfloat16)
}

fn widen(dtype: Dtype, bytes: [u8; 2]) -> f32 {
    if dtype == Dtype::Bfloat16 { bf16::from_ne_bytes(bytes).to_f32() } else { f16::from_ne_bytes(bytes).to_f32() }
}

fn narrow(dtype: Dtype, value: f32) -> [u8; 2] {
    if dtype == Dtype::Bfloat16 { bf16::from_f32(value).to_ne_bytes() } else { f16::from_f32(value).to_ne_bytes() }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a space of the tests' own memory")]
mod tests {
    use super::*;

    #[test]
    fn every_type_comes_back_as_it_was_from_several_runs() {
        for dtype in Dtype::ALL {
            let element = dtype.size();
            let mut runs: Vec<Vec<u8>> = [3, 5].map(|count| (0..count * element).map(|at| at as u8).collect()).into();
            let before = runs.clone();
            let mut space = Space::new(element);
            for run in &mut runs {
                // SAFETY: the runs live as long as the space.
                unsafe { space.push(run.as_mut_ptr(), (run.len() / element) as u64) };
            }
            let mut buffer = Buffer::of(&mut space, dtype);
            assert_eq!(buffer.memory().1, 8, "{dtype:?}");
            buffer.copy_back(dtype, &mut space);
            assert_eq!(runs, before, "{dtype:?}");
        }
    }
}
