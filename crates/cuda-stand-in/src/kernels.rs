//! Modules, and what the kernels `combine_<op>_<type>` of Paceline compute.
//!
//! A module is PTX, of which only the entries' names are read.
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use half::{bf16, f16};
use parking_lot::Mutex;

use crate::driver::{
    ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, MISALIGNED_ADDRESS, NOT_FOUND, NOT_SUPPORTED, SUCCESS,
    break_context, fault_in_context, is_broken,
};
use crate::memory::reach;
use crate::random::Random;
use crate::stream::submit;

/// Bytes of each source that are read before the results are written, and after which a kernel may sleep.
const BLOCK: usize = 64 << 10;
/// The longest sleep between two blocks, in microseconds.
const LONGEST_US: u64 = 50;
/// Threads of a block, at most.
const THREADS: u64 = 1024;

/// A kernel's only parameter.
#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    to: [u64; 8],
    from: [u64; 8],
    elements: u64,
    factor: f64,
    targets: u32,
    sources: u32,
    scaled: u32,
    unused: u32,
}

const _: () = assert!(size_of::<Arguments>() == 160);

#[derive(Default)]
struct Loaded {
    /// The entries of each module.
    modules: HashMap<usize, Vec<String>>,
    /// The module and the name of each function.
    functions: HashMap<usize, (usize, String)>,
    made: usize,
}

static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut Loaded) -> T) -> T {
    act(LOADED.lock().get_or_insert_default())
}

/// The names of PTX's entries; `None`: this is no PTX.
fn entries(text: &str) -> Option<Vec<String>> {
    let code = || text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code().any(|line| line.trim_start().starts_with(".version")).then_some(())?;
    let mut words = code().flat_map(str::split_whitespace);
    let mut names = Vec::new();
    while words.any(|word| word == ".entry") {
        names.extend(words.next().and_then(|word| word.split('(').next()).map(str::to_owned));
    }
    Some(names)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_char) -> c_int {
    let status = fault_in_context("cuModuleLoadData");
    if status != SUCCESS {
        return status;
    }
    // SAFETY: as in cuda.h: PTX ends with a zero.
    let image = unsafe { CStr::from_ptr(image) };
    let Some(entries) = image.to_str().ok().and_then(entries) else { return INVALID_PTX };
    let number = with(|loaded| {
        loaded.made += 16;
        loaded.modules.insert(loaded.made, entries);
        loaded.made
    });
    // SAFETY: as in cuda.h.
    unsafe { *module = number as *mut c_void };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: *mut c_void) -> c_int {
    let module = module as usize;
    let known = with(|loaded| {
        loaded.functions.retain(|_, (of, _)| *of != module);
        loaded.modules.remove(&module).is_some()
    });
    if known { fault_in_context("cuModuleUnload") } else { INVALID_HANDLE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> c_int {
    let status = fault_in_context("cuModuleGetFunction");
    if status != SUCCESS {
        return status;
    }
    // SAFETY: as in cuda.h.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let made = with(|loaded| {
        let entries = loaded.modules.get(&(module as usize)).ok_or(INVALID_HANDLE)?;
        if !entries.contains(&name) {
            return Err(NOT_FOUND);
        }
        loaded.made += 16;
        loaded.functions.insert(loaded.made, (module as usize, name));
        Ok(loaded.made)
    });
    match made {
        Ok(number) => {
            // SAFETY: as in cuda.h.
            unsafe { *function = number as *mut c_void };
            SUCCESS
        }
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared: c_uint,
    stream: *mut c_void,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    static LAUNCHES: AtomicU64 = AtomicU64::new(0);
    let Some((_, name)) = with(|loaded| loaded.functions.get(&(function as usize)).cloned()) else {
        return INVALID_HANDLE;
    };
    let Some((op, run)) = kernel(&name) else { return NOT_SUPPORTED };
    let threads = [block_x, block_y, block_z].map(u64::from).iter().product::<u64>();
    if grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > THREADS {
        return INVALID_VALUE;
    }
    if parameters.is_null() || !extra.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the kernel's only parameter, as in cuda.h, which is copied before this returns.
    let arguments = unsafe { (*parameters).cast::<Arguments>().read_unaligned() };
    // A device would read beyond its parameters.
    if !(1..=8).contains(&arguments.sources) || arguments.targets > 8 {
        return INVALID_VALUE;
    }
    let number = LAUNCHES.fetch_add(1, Ordering::Relaxed);
    submit("cuLaunchKernel", stream, move || {
        // Other numbers than those of streams, whose handles are small.
        run(op, &arguments, &mut Random::new(1 << 48 | number)).unwrap_or_else(break_context);
    })
}

#[derive(Clone, Copy)]
enum Op {
    Sum,
    Min,
    Max,
    Product,
}

/// How a type's kernels run; an error ends the context.
type Run = fn(Op, &Arguments, &mut Random) -> Result<(), c_int>;

/// The operation and the loop of the kernel `combine_<op>_<type>`.
fn kernel(name: &str) -> Option<(Op, Run)> {
    let (op, kind) = name.strip_prefix("combine_")?.split_once('_')?;
    let op = match op {
        "sum" => Op::Sum,
        "min" => Op::Min,
        "max" => Op::Max,
        "product" => Op::Product,
        _ => return None,
    };
    let run: Run = match kind {
        "f32" => run::<f32>,
        "f64" => run::<f64>,
        "f16" => run::<f16>,
        "bf16" => run::<bf16>,
        "i32" => run::<i32>,
        "i64" => run::<i64>,
        "u8" => run::<u8>,
        _ => return None,
    };
    Some((op, run))
}

/// Every target becomes the combination of the sources; or why the context ends.
fn run<T: Element>(op: Op, arguments: &Arguments, random: &mut Random) -> Result<(), c_int> {
    let elements = arguments.elements as usize;
    if elements == 0 {
        return Ok(());
    }
    let reach = |addresses: &[u64]| -> Result<Vec<*mut T>, c_int> {
        let bytes = elements.checked_mul(size_of::<T>()).ok_or(ILLEGAL_ADDRESS)?;
        let one = |&address: &u64| match reach(address, bytes) {
            None => Err(ILLEGAL_ADDRESS),
            Some(_) if !address.is_multiple_of(size_of::<T>() as u64) => Err(MISALIGNED_ADDRESS),
            Some(at) => Ok(at.cast::<T>()),
        };
        addresses.iter().map(one).collect()
    };
    let to = reach(&arguments.to[..arguments.targets as usize])?;
    let from = reach(&arguments.from[..arguments.sources as usize])?;
    let factor = (arguments.scaled != 0).then(|| T::Wide::factor(arguments.factor));
    let block = BLOCK / size_of::<T>();
    let mut starts: Vec<usize> = (0..elements).step_by(block).collect();
    random.shuffle(&mut starts);
    for start in starts {
        let count = block.min(elements - start);
        // SAFETY: `reach` has found all elements, at addresses that are aligned. They are copied, because other processes may
        // change them meanwhile if a wait is missing.
        let read = |at: &*mut T| unsafe {
            let mut values = Vec::<T>::with_capacity(count);
            std::ptr::copy_nonoverlapping(at.add(start).cast_const(), values.as_mut_ptr(), count);
            values.set_len(count);
            values
        };
        let sources: Vec<Vec<T>> = from.iter().map(read).collect();
        let results = match (&sources[..], factor) {
            // Every bit stays as it is.
            ([only], None) => only.clone(),
            _ => (0..count).map(|at| combine(op, &sources, at, factor)).collect(),
        };
        for at in &to {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(results.as_ptr(), at.add(start), count) };
        }
        if is_broken() {
            return Ok(());
        }
        if random.next().is_multiple_of(2) && elements > block {
            std::thread::sleep(Duration::from_micros(random.next() % LONGEST_US));
        }
    }
    Ok(())
}

fn combine<T: Element>(op: Op, sources: &[Vec<T>], at: usize, factor: Option<Factor>) -> T {
    let (first, others) = (sources[0][at].widen(), &sources[1..]);
    let value = others.iter().fold(first, |value, source| value.apply(op, source[at].widen()));
    T::narrow(factor.map_or(value, |factor| value.scale(factor)))
}

/// An element as it is stored.
trait Element: Copy {
    /// The type in which elements are combined.
    type Wide: Number;

    fn widen(self) -> Self::Wide;
    fn narrow(value: Self::Wide) -> Self;
}

macro_rules! element {
    ($($kind:ty, $wide:ty, $widen:expr, $narrow:expr;)*) => {
        $(impl Element for $kind {
            type Wide = $wide;

            fn widen(self) -> $wide {
                $widen(self)
            }

            fn narrow(value: $wide) -> $kind {
                $narrow(value)
            }
        })*
    };
}

// A result that is no number is always the same one.
element! {
    f32, f32, |value| value, |value: f32| if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value };
    f64, f64, |value| value, |value: f64| if value.is_nan() { f64::from_bits(0x7ff8 << 48) } else { value };
    f16, f32, f16::to_f32, |value: f32| if value.is_nan() { f16::from_bits(0x7e00) } else { f16::from_f32(value) };
    bf16, f32, bf16::to_f32, |value: f32| if value.is_nan() { bf16::from_bits(0x7fc0) } else { bf16::from_f32(value) };
    i32, i32, |value| value, |value| value;
    i64, i64, |value| value, |value| value;
    u8, u8, |value| value, |value| value;
}

/// A factor as it is used.
#[derive(Clone, Copy)]
enum Factor {
    One,
    Times(f64),
    /// Of an integer.
    Over(i64),
}

/// The arithmetic of crates/kernels/src/reduce.
trait Number: Copy {
    fn apply(self, op: Op, other: Self) -> Self;
    fn factor(factor: f64) -> Factor;
    fn scale(self, factor: Factor) -> Self;
}

macro_rules! float {
    ($($kind:ty)*) => {
        $(impl Number for $kind {
            fn apply(self, op: Op, other: Self) -> Self {
                match op {
                    Op::Sum => self + other,
                    Op::Product => self * other,
                    Op::Min | Op::Max if self.is_nan() || other.is_nan() => <$kind>::NAN,
                    // -0.0 is less than 0.0.
                    Op::Min => if self.total_cmp(&other).is_le() { self } else { other },
                    Op::Max => if self.total_cmp(&other).is_ge() { self } else { other },
                }
            }

            fn factor(factor: f64) -> Factor {
                Factor::Times(factor)
            }

            fn scale(self, factor: Factor) -> Self {
                match factor {
                    Factor::Times(factor) => self * factor as $kind,
                    Factor::One | Factor::Over(_) => self,
                }
            }
        })*
    };
}

macro_rules! integer {
    ($($kind:ty)*) => {
        $(impl Number for $kind {
            fn apply(self, op: Op, other: Self) -> Self {
                match op {
                    Op::Sum => self.wrapping_add(other),
                    Op::Product => self.wrapping_mul(other),
                    Op::Min => self.min(other),
                    Op::Max => self.max(other),
                }
            }

            /// The `f64` nearest to 1/n means a division by n.
            fn factor(factor: f64) -> Factor {
                let whole = (1.0 / factor).round();
                match factor {
                    1.0 => Factor::One,
                    _ if (2.0..=f64::from(u32::MAX)).contains(&whole) && 1.0 / whole == factor => {
                        Factor::Over(whole as i64)
                    }
                    _ => Factor::Times(factor),
                }
            }

            fn scale(self, factor: Factor) -> Self {
                match factor {
                    Factor::One => self,
                    Factor::Times(factor) => (self as f64 * factor) as $kind,
                    Factor::Over(whole) => (i128::from(self) / i128::from(whole)) as $kind,
                }
            }
        })*
    };
}

float!(f32 f64);
integer!(i32 i64 u8);
