//! Combines device memory by kernels, which the driver compiles from PTX for its device.
//!
//! `kernels/combine.cu` says what they compute; `kernels/build.py` makes the PTX.
#![allow(unsafe_code, reason = "kernels are launched over the caller's memory")]
use std::ffi::{CString, c_int, c_void};

use paceline_kernels::dtype::{Dtype, ReduceOp};

use crate::abi::{MULTIPROCESSORS, Opaque};
use crate::device::{Device, Module, Stream};
use crate::error::CudaError;

/// PTX in zlib's format: 175 kB for 1 MB.
const COMPRESSED: &[u8] = include_bytes!("../kernels/combine.ptx.zlib");
/// `THREADS` of combine.cu.
const THREADS: u32 = 512;
/// `BLOCKS` of combine.cu: what a multiprocessor surely runs at once. Each block then goes over its part of the memory.
const BLOCKS: u32 = 2;
/// Bytes that a thread loads at once.
const VECTOR: u64 = 16;
/// The most targets, and the most sources, of one kernel.
const MOST: usize = 8;

/// A combination: `to[..] = (from[0] op from[1] op ...) * factor`, element by element.
///
/// The arithmetic is that of [`paceline_kernels::reduce`], but for `float16` and `bfloat16`, which are rounded once, after all
/// sources and the factor. A target may be a source; apart from that, targets overlap nothing. Memory whose addresses are
/// alike modulo 16 is several times as fast.
#[derive(Clone, Copy, Debug)]
pub struct Combine<'a> {
    /// Device addresses of the targets, 1 to 8, which all become the same.
    pub to: &'a [u64],
    /// Device addresses of the sources, 1 to 8, in the order in which they are combined.
    pub from: &'a [u64],
    /// Elements of each.
    pub elements: u64,
    /// Their type.
    pub dtype: Dtype,
    /// How they are combined.
    pub op: ReduceOp,
    /// The result is multiplied by it, as [`paceline_kernels::reduce::scale()`] does; 1 is as good as none.
    pub factor: Option<f64>,
}

/// The twin of `CombineArguments` in combine.cu.
#[repr(C)]
#[derive(Clone, Debug, PartialEq)]
struct Arguments {
    to: [u64; MOST],
    from: [u64; MOST],
    elements: u64,
    factor: f64,
    targets: u32,
    sources: u32,
    scaled: u32,
    unused: u32,
}

const _: () = assert!(size_of::<Arguments>() == 160);

impl Combine<'_> {
    /// Arguments of the kernel, if they are valid.
    fn arguments(&self) -> Result<Arguments, String> {
        let (targets, sources) = (self.to.len(), self.from.len());
        if !(1..=MOST).contains(&targets) || !(1..=MOST).contains(&sources) {
            return Err(format!("{sources} sources and {targets} targets; a kernel takes 1 to {MOST} of each"));
        }
        let size = self.dtype.size() as u64;
        if let Some(address) = self.to.iter().chain(self.from).find(|address| !address.is_multiple_of(size)) {
            return Err(format!("address {address:#x} is no multiple of {size}, which {} needs", self.dtype.name()));
        }
        let eight = |addresses: &[u64]| {
            let mut all = [0; MOST];
            all[..addresses.len()].copy_from_slice(addresses);
            all
        };
        let factor = self.factor.filter(|&factor| factor != 1.0);
        Ok(Arguments {
            to: eight(self.to),
            from: eight(self.from),
            elements: self.elements,
            factor: factor.unwrap_or(1.0),
            targets: targets as u32,
            sources: sources as u32,
            scaled: u32::from(factor.is_some()),
            unused: 0,
        })
    }

    /// Blocks of threads, on a device with so many multiprocessors.
    fn blocks(&self, multiprocessors: u32) -> u32 {
        let mut addresses = self.to.iter().chain(self.from).map(|address| address % VECTOR);
        let first = addresses.next();
        let alike = addresses.all(|address| Some(address) == first);
        let work = if alike { (self.elements * self.dtype.size() as u64).div_ceil(VECTOR) } else { self.elements };
        let most = u64::from(BLOCKS * multiprocessors.max(1));
        work.div_ceil(u64::from(THREADS)).clamp(1, most) as u32
    }
}

/// `combine_sum_f32`.
fn name(op: ReduceOp, dtype: Dtype) -> String {
    let dtype = match dtype {
        Dtype::Float32 => "f32",
        Dtype::Float64 => "f64",
        Dtype::Float16 => "f16",
        Dtype::Bfloat16 => "bf16",
        Dtype::Int32 => "i32",
        Dtype::Int64 => "i64",
        Dtype::Uint8 => "u8",
    };
    format!("combine_{}_{dtype}", op.name())
}

/// The PTX, with a zero at the end, as the driver wants it.
///
/// # Panics
/// `combine.ptx.zlib` is damaged.
fn ptx() -> Vec<u8> {
    let mut ptx = miniz_oxide::inflate::decompress_to_vec_zlib(COMPRESSED).expect("build.py wrote it");
    ptx.push(0);
    ptx
}

impl Module {
    /// Takes the driver a second the first time on a machine; it keeps what it has compiled in ~/.nv/ComputeCache. The
    /// device's context is current.
    fn load(device: &Device) -> Result<Module, CudaError> {
        let call = &device.driver.call;
        let (mut raw, mut multiprocessors): (Opaque, c_int) = (std::ptr::null_mut(), 0);
        let ptx = ptx();
        // SAFETY: pointers to locals; the text ends with a zero.
        unsafe {
            let asked = (call.device_get_attribute)(&raw mut multiprocessors, MULTIPROCESSORS, device.number);
            device.check("cuDeviceGetAttribute", asked)?;
            let loaded = (call.module_load_data)(&raw mut raw, ptx.as_ptr().cast::<c_void>());
            device.check("cuModuleLoadData", loaded).map_err(|CudaError(text)| {
                CudaError(format!(
                    "{text}: the driver does not compile Paceline's kernels; they need a device of compute capability 7.0, \
                     and libnvidia-ptxjitcompiler.so.1 beside the driver"
                ))
            })?;
        }
        let multiprocessors = u32::try_from(multiprocessors).unwrap_or(1);
        Ok(Module { raw, multiprocessors, functions: Default::default() })
    }

    fn function(&mut self, device: &Device, op: ReduceOp, dtype: Dtype) -> Result<Opaque, CudaError> {
        let slot = &mut self.functions[op as usize][dtype as usize];
        if let Some(function) = *slot {
            return Ok(function);
        }
        let name = CString::new(name(op, dtype)).map_err(|error| CudaError(error.to_string()))?;
        let mut function: Opaque = std::ptr::null_mut();
        // SAFETY: a pointer to a local, a loaded module, and a text with a zero at its end.
        let found = unsafe { (device.driver.call.module_get_function)(&raw mut function, self.raw, name.as_ptr()) };
        device.check("cuModuleGetFunction", found)?;
        Ok(*slot.insert(function))
    }
}

impl Stream {
    /// Combines device memory once the stream has come here. The first call of a process takes up to some seconds, in which
    /// the driver compiles the kernels, if no earlier process on this machine has done so.
    ///
    /// # Errors
    /// There are no or more than 8 sources or targets, an address is no multiple of the element's size, or the driver's error.
    ///
    /// # Safety
    /// All addresses are memory that this device reaches, valid for `elements` elements until the stream has passed this
    /// point. A target is the same as a source, or overlaps none, nor another target.
    pub unsafe fn combine(&self, combine: &Combine<'_>) -> Result<(), CudaError> {
        let arguments = combine.arguments().map_err(|why| CudaError(format!("{:?}: combine: {why}", self.device)))?;
        if combine.elements == 0 {
            return Ok(());
        }
        if let (&[to], &[from], 0) = (combine.to, combine.from, arguments.scaled) {
            let bytes = combine.elements * combine.dtype.size() as u64;
            // SAFETY: promised by the caller.
            return if to == from { Ok(()) } else { unsafe { self.copy(to, from, bytes) } };
        }
        let device = &self.device;
        let _entered = device.enter()?;
        let (function, blocks) = {
            let mut kernels = device.kernels.lock();
            let module = match &mut *kernels {
                Some(module) => module,
                none => none.insert(Module::load(device)?),
            };
            (module.function(device, combine.op, combine.dtype)?, combine.blocks(module.multiprocessors))
        };
        let mut parameters = [(&raw const arguments).cast_mut().cast::<c_void>()];
        // SAFETY: the kernel has one parameter, of this type, which the driver copies before it returns; the memory is
        // promised by the caller.
        let launched = unsafe {
            (device.driver.call.launch_kernel)(
                function,
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                self.raw,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        device.check("cuLaunchKernel", launched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combine<'a>(to: &'a [u64], from: &'a [u64], elements: u64) -> Combine<'a> {
        Combine { to, from, elements, dtype: Dtype::Float32, op: ReduceOp::Sum, factor: None }
    }

    #[test]
    fn each_kernel_is_in_the_ptx() {
        let ptx = String::from_utf8(ptx()).unwrap();
        for op in ReduceOp::ALL {
            for dtype in Dtype::ALL {
                let entry = format!(".visible .entry {}(", name(op, dtype));
                assert!(ptx.contains(&entry), "{entry}");
            }
        }
    }

    #[test]
    fn the_kernel_is_told_addresses_and_whether_it_scales() {
        let with = |factor| Combine { factor, ..combine(&[32], &[16, 32, 48], 5) }.arguments().unwrap();
        let told = with(Some(0.25));
        assert_eq!((told.to, told.from), ([32, 0, 0, 0, 0, 0, 0, 0], [16, 32, 48, 0, 0, 0, 0, 0]));
        assert_eq!((told.targets, told.sources, told.elements), (1, 3, 5));
        assert_eq!((told.scaled, told.factor), (1, 0.25));
        assert_eq!((with(None).scaled, with(Some(1.0)).scaled), (0, 0));
    }

    #[test]
    fn what_a_kernel_cannot_do_is_refused() {
        let nine = [0; 9];
        assert!(combine(&[], &[0], 1).arguments().is_err());
        assert!(combine(&[0], &[], 1).arguments().is_err());
        assert!(combine(&nine, &[0], 1).arguments().is_err());
        assert!(combine(&[0], &nine, 1).arguments().is_err());
        let error = combine(&[16], &[18], 1).arguments().unwrap_err();
        assert_eq!(error, "address 0x12 is no multiple of 4, which float32 needs");
    }

    #[test]
    fn there_are_blocks_for_the_work_but_no_more_than_the_device_runs() {
        assert_eq!(combine(&[0], &[16], 1).blocks(100), 1);
        assert_eq!(combine(&[0], &[16], 4 * 512).blocks(100), 1);
        assert_eq!(combine(&[0], &[16], 4 * 512 + 1).blocks(100), 2);
        assert_eq!(combine(&[0], &[4], 4 * 512).blocks(100), 4, "element by element");
        assert_eq!(combine(&[4], &[20], 1 << 40).blocks(100), 200);
    }
}
