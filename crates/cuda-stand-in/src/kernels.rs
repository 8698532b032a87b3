//! Modules, and the kernels `combine_<op>_<type>` of crates/cuda/kernels, in Rust: what they compute, not how.
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::time::Duration;

use parking_lot::Mutex;

use crate::driver::{
    ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, SUCCESS, break_context, fault_in_context,
};
use crate::memory::reach;
use crate::stream::{Random, submit};

/// Elements that are combined before the others of a launch, which may sleep in between: so that what is read too early shows.
const BLOCK: usize = 16 << 10;

/// What one kernel takes.
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

#[derive(Default)]
struct Loaded {
    /// By module: its entries.
    modules: HashMap<usize, Vec<String>>,
    functions: HashMap<usize, String>,
    made: usize,
}

static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_char) -> c_int {
    let status = fault_in_context("cuModuleLoadData");
    if status != SUCCESS {
        return status;
    }
    // SAFETY: PTX ends with a zero.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    let name = |part: &str| part.trim_start().split(['(', '\n', ' ']).next().unwrap_or_default().to_owned();
    let entries = text.split(".entry").skip(1).map(name).collect();
    let mut loaded = LOADED.lock();
    let loaded = loaded.get_or_insert_default();
    loaded.made += 16;
    loaded.modules.insert(loaded.made, entries);
    // SAFETY: as in cuda.h.
    unsafe { *module = loaded.made as *mut c_void };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: *mut c_void) -> c_int {
    let known = LOADED.lock().get_or_insert_default().modules.remove(&(module as usize)).is_some();
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
    let mut loaded = LOADED.lock();
    let loaded = loaded.get_or_insert_default();
    let Some(entries) = loaded.modules.get(&(module as usize)) else { return INVALID_HANDLE };
    if !entries.contains(&name) {
        return NOT_FOUND;
    }
    loaded.made += 16;
    loaded.functions.insert(loaded.made, name);
    // SAFETY: as in cuda.h.
    unsafe { *function = loaded.made as *mut c_void };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    blocks: c_uint,
    _: c_uint,
    _: c_uint,
    threads: c_uint,
    _: c_uint,
    _: c_uint,
    _shared: c_uint,
    stream: *mut c_void,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> c_int {
    let name = LOADED.lock().get_or_insert_default().functions.get(&(function as usize)).cloned();
    let Some(name) = name else { return INVALID_HANDLE };
    if blocks == 0 || threads == 0 || threads > 1024 {
        return INVALID_VALUE;
    }
    // SAFETY: the kernel's only parameter, which the driver copies at the launch.
    let arguments = unsafe { **parameters.cast::<*const Arguments>() };
    submit("cuLaunchKernel", stream, move || {
        if combine(&name, &arguments).is_none() {
            break_context(ILLEGAL_ADDRESS);
        }
    })
}

/// `None`: a stray address, or no such kernel.
fn combine(name: &str, arguments: &Arguments) -> Option<()> {
    let (op, kind) = name.strip_prefix("combine_")?.split_once('_')?;
    match kind {
        "f32" => all(arguments, op, |at| at, |value: f32, factor| value * factor as f32, |value| value),
        "f64" => all(arguments, op, |at| at, |value: f64, factor| value * factor, |value| value),
        "f16" => all(arguments, op, of_half, |value: f32, factor| value * factor as f32, to_half),
        "bf16" => all(
            arguments,
            op,
            |bits: u16| f32::from_bits(u32::from(bits) << 16),
            |value: f32, factor| value * factor as f32,
            to_bfloat,
        ),
        "i32" => all(arguments, op, |at| at, |value: i32, factor| (f64::from(value) * factor) as i32, |value| value),
        "i64" => all(arguments, op, |at| at, |value: i64, factor| (value as f64 * factor) as i64, |value| value),
        "u8" => all(arguments, op, |at| at, |value: u8, factor| (f64::from(value) * factor) as u8, |value| value),
        _ => None,
    }
}

fn all<Element: Copy, Value: Number>(
    arguments: &Arguments,
    op: &str,
    widen: impl Fn(Element) -> Value,
    scaled: impl Fn(Value, f64) -> Value,
    narrow: impl Fn(Value) -> Element,
) -> Option<()> {
    let apply = match op {
        "sum" => Value::sum,
        "product" => Value::product,
        "min" => Value::smaller,
        "max" => Value::larger,
        _ => return None,
    };
    let (elements, size) = (arguments.elements as usize, size_of::<Element>());
    let reach = |addresses: &[u64]| -> Option<Vec<*mut Element>> {
        addresses.iter().map(|&at| reach(at, elements * size).map(<*mut u8>::cast)).collect()
    };
    let to = reach(&arguments.to[..arguments.targets as usize])?;
    let from = reach(&arguments.from[..arguments.sources as usize])?;
    let mut random = Random::new(arguments.to[0] ^ arguments.elements);
    for start in (0..elements).step_by(BLOCK) {
        if elements > BLOCK && random.next().is_multiple_of(8) {
            std::thread::sleep(Duration::from_micros(random.next() % 100));
        }
        for index in start..elements.min(start + BLOCK) {
            // SAFETY: `reach` found that many elements.
            let read = |at: &*mut Element| unsafe { at.add(index).read_unaligned() };
            let mut value = widen(read(from.first()?));
            for at in &from[1..] {
                value = apply(value, widen(read(at)));
            }
            if arguments.scaled != 0 {
                value = scaled(value, arguments.factor);
            }
            let narrowed =
                if from.len() == 1 && arguments.scaled == 0 { read(&from[0]) } else { narrow(value.tidied()) };
            // SAFETY: as above.
            to.iter().for_each(|at| unsafe { at.add(index).write_unaligned(narrowed) });
        }
    }
    Some(())
}

trait Number: Copy {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    /// Every NaN is the same.
    fn tidied(self) -> Self {
        self
    }
}

macro_rules! integer {
    ($($kind:ty)*) => { $(impl Number for $kind {
        fn sum(self, other: Self) -> Self { self.wrapping_add(other) }
        fn product(self, other: Self) -> Self { self.wrapping_mul(other) }
        fn smaller(self, other: Self) -> Self { self.min(other) }
        fn larger(self, other: Self) -> Self { self.max(other) }
    })* };
}
integer!(i32 i64 u8);

macro_rules! float {
    ($($kind:ty)*) => { $(impl Number for $kind {
        fn sum(self, other: Self) -> Self { self + other }
        fn product(self, other: Self) -> Self { self * other }
        fn smaller(self, other: Self) -> Self {
            match (self.is_nan(), other.is_nan()) {
                (true, _) => self,
                (_, true) => other,
                _ if self == other => if self.is_sign_negative() { self } else { other },
                _ => if self < other { self } else { other },
            }
        }
        fn larger(self, other: Self) -> Self {
            match (self.is_nan(), other.is_nan()) {
                (true, _) => self,
                (_, true) => other,
                _ if self == other => if self.is_sign_positive() { self } else { other },
                _ => if self > other { self } else { other },
            }
        }
        fn tidied(self) -> Self { if self.is_nan() { <$kind>::NAN.abs() } else { self } }
    })* };
}
float!(f32 f64);

fn of_half(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (u32::from(bits >> 15) << 31, u32::from(bits >> 10 & 31), u32::from(bits & 1023));
    match exponent {
        0 => f32::from_bits(sign | (fraction as f32 * 2f32.powi(-24)).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// To nearest, ties to even.
fn to_half(value: f32) -> u16 {
    let bits = value.to_bits();
    let (sign, size) = ((bits >> 16 & 0x8000) as u16, value.abs());
    if value.is_nan() {
        return 0x7e00;
    }
    if size >= 65520.0 {
        return sign | 0x7c00;
    }
    if size < 2f32.powi(-14) {
        // A multiple of 2^-24; adding 1.5 * 2^23 rounds to a whole number.
        let scaled = size * 2f32.powi(24);
        return sign | ((scaled + 12_582_912.0).to_bits() & 0x7fff) as u16;
    }
    let size = size.to_bits() - (112 << 23);
    let rounded = size + 0xfff + (size >> 13 & 1);
    sign | (rounded >> 13) as u16
}

/// To nearest, ties to even.
fn to_bfloat(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() { 0x7fc0 } else { (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}
