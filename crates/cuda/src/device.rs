//! A device's primary context, its streams, events and memory.
#![allow(unsafe_code, reason = "calls into a library that is loaded at run time")]
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_char, c_uint, c_void};
use std::sync::Arc;

use paceline_kernels::dtype::{Dtype, ReduceOp};
use parking_lot::Mutex;

use crate::abi::{
    self, Address, DeviceNumber, EVENT_DISABLE_TIMING, MEMORY_OF_DEVICE, NOT_READY, Opaque, POINTER_DEVICE,
    POINTER_MEMORY_TYPE, STREAM_NON_BLOCKING, SUCCESS, WAIT_AT_LEAST, WRITE_AFTER_ALL,
};
use crate::driver::Driver;
use crate::error::CudaError;

/// A stream of the caller: a `CUstream`; 0 (or 1) is the legacy default stream, 2 that of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerStream(pub u64);

impl CallerStream {
    pub(crate) fn raw(self) -> Opaque {
        self.0 as Opaque
    }
}

/// The kernels of a device, compiled by its driver.
pub(crate) struct Module {
    pub raw: Opaque,
    pub multiprocessors: u32,
    /// By operation and type, once they have been used.
    pub functions: [[Option<Opaque>; Dtype::ALL.len()]; ReduceOp::ALL.len()],
}

impl Module {
    /// The device's context is current, and no kernel runs.
    pub(crate) fn unload(&self, device: &Device) {
        // SAFETY: loaded by `load`.
        unsafe { (device.driver.call.module_unload)(self.raw) };
    }
}

/// The devices of this process by their numbers: as there is one driver, there is one of each.
static OPEN: Mutex<BTreeMap<u32, Arc<Device>>> = Mutex::new(BTreeMap::new());

impl Driver {
    /// A device by its number in this process (`CUDA_VISIBLE_DEVICES` decides which those are).
    ///
    /// # Errors
    /// There is no such device, or its context cannot be had.
    pub fn device(self: &Arc<Driver>, ordinal: u32) -> Result<Arc<Device>, CudaError> {
        let count = self.devices();
        if ordinal as usize >= count {
            return Err(CudaError(format!("cuda:{ordinal}: this process sees {count} devices")));
        }
        let mut open = OPEN.lock();
        if let Some(device) = open.get(&ordinal) {
            return Ok(device.clone());
        }
        let device = Arc::new(Device::open(self.clone(), ordinal)?);
        open.insert(ordinal, device.clone());
        Ok(device)
    }
}

/// A device with its primary context: that of torch and of CUDA's runtime in this process.
pub struct Device {
    pub(crate) driver: Arc<Driver>,
    ordinal: u32,
    pub(crate) number: DeviceNumber,
    context: Opaque,
    name: String,
    /// Loaded when they are used first.
    pub(crate) kernels: Mutex<Option<Module>>,
}

// SAFETY: a context may be current in several threads at once, and the driver is thread-safe.
unsafe impl Send for Device {}
// SAFETY: likewise.
unsafe impl Sync for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuda:{} ({})", self.ordinal, self.name)
    }
}

impl Device {
    fn open(driver: Arc<Driver>, ordinal: u32) -> Result<Device, CudaError> {
        let (mut number, mut context): (DeviceNumber, Opaque) = (0, std::ptr::null_mut());
        let mut name = [0 as c_char; 128];
        // SAFETY: pointers to locals of these sizes.
        unsafe {
            driver.check("cuDeviceGet", (driver.call.device_get)(&raw mut number, ordinal.cast_signed()))?;
            let named = (driver.call.device_get_name)(name.as_mut_ptr(), name.len() as i32, number);
            driver.check("cuDeviceGetName", named)?;
            let retained = (driver.call.primary_context_retain)(&raw mut context, number);
            driver.check("cuDevicePrimaryCtxRetain", retained)?;
        }
        let name = name.iter().map(|&c| c.cast_unsigned()).take_while(|&c| c != 0).collect();
        let name = String::from_utf8(name).unwrap_or_default();
        Ok(Device { driver, ordinal, number, context, name, kernels: Mutex::new(None) })
    }

    /// `NVIDIA H100 80GB HBM3`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Identity of the device, the same in every process and different from all others.
    ///
    /// # Errors
    /// The driver's error.
    pub fn uuid(&self) -> Result<[u8; 16], CudaError> {
        let mut uuid = [0; 16];
        // SAFETY: a pointer to a local of the driver's size.
        let asked = unsafe { (self.driver.call.device_get_uuid)(&raw mut uuid, self.number) };
        self.check("cuDeviceGetUuid_v2", asked).map(|()| uuid)
    }

    /// Makes its context current in this thread until the guard is dropped; then the one before is again.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, CudaError> {
        // SAFETY: the context is retained as long as the device exists.
        let pushed = unsafe { (self.driver.call.context_push)(self.context) };
        self.check("cuCtxPushCurrent_v2", pushed).map(|()| Entered(self))
    }

    /// Makes its context current in this thread for good: for libraries that look for one whenever they are called.
    ///
    /// # Errors
    /// The driver's error.
    pub fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the driver keeps its devices, and with them their contexts, until the process ends.
        let set = unsafe { (self.driver.call.context_set)(self.context) };
        self.check("cuCtxSetCurrent", set)
    }

    pub(crate) fn check(&self, call: &str, status: abi::Status) -> Result<(), CudaError> {
        if status == SUCCESS {
            return Ok(());
        }
        let CudaError(text) = self.driver.error(call, status);
        Err(CudaError(format!("cuda:{}: {text}", self.ordinal)))
    }

    /// The device on which memory lies; `None`: in host memory, or unknown to the driver.
    ///
    /// # Errors
    /// The driver's error.
    pub fn of(driver: &Driver, address: u64) -> Result<Option<u32>, CudaError> {
        let (mut kind, mut ordinal): (c_uint, i32) = (0, 0);
        // SAFETY: the attributes have these sizes; the address need not be valid.
        unsafe {
            let asked =
                (driver.call.pointer_get_attribute)((&raw mut kind).cast::<c_void>(), POINTER_MEMORY_TYPE, address);
            if asked != SUCCESS || kind != MEMORY_OF_DEVICE {
                return Ok(None);
            }
            let pointer = (&raw mut ordinal).cast::<c_void>();
            driver.check(
                "cuPointerGetAttribute",
                (driver.call.pointer_get_attribute)(pointer, POINTER_DEVICE, address),
            )?;
        }
        Ok(u32::try_from(ordinal).ok())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(kernels) = self.kernels.get_mut().take()
            && let Ok(_entered) = self.enter()
        {
            kernels.unload(self);
        }
        // SAFETY: retained in `open`.
        unsafe { (self.driver.call.primary_context_release)(self.number) };
    }
}

/// The context is current.
pub(crate) struct Entered<'a>(&'a Device);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped: Opaque = std::ptr::null_mut();
        // SAFETY: pushed by `enter` in this thread: the guard is not `Send`, because it borrows a raw pointer's owner.
        unsafe { (self.0.driver.call.context_pop)(&raw mut popped) };
    }
}

/// A stream of ours, without implicit order with any other.
pub struct Stream {
    pub(crate) device: Arc<Device>,
    pub(crate) raw: Opaque,
    /// By address: the number for which it was last told to wait there.
    awaited: Mutex<HashMap<u64, u32>>,
}

// SAFETY: the driver is thread-safe.
unsafe impl Send for Stream {}
// SAFETY: likewise.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(device: &Arc<Device>) -> Result<Stream, CudaError> {
        let _entered = device.enter()?;
        let mut raw: Opaque = std::ptr::null_mut();
        // SAFETY: a pointer to a local.
        let made = unsafe { (device.driver.call.stream_create)(&raw mut raw, STREAM_NON_BLOCKING) };
        device.check("cuStreamCreate", made)?;
        Ok(Stream { device: device.clone(), raw, awaited: Mutex::default() })
    }

    /// The stream as that of a caller.
    #[must_use]
    pub fn caller(&self) -> CallerStream {
        CallerStream(self.raw as u64)
    }

    /// Makes later work wait for the event.
    ///
    /// # Errors
    /// The driver's error.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        wait_event(&self.device, self.raw, event)
    }

    /// Whether an error has ended the stream's context.
    ///
    /// # Errors
    /// That error.
    pub fn healthy(&self) -> Result<(), CudaError> {
        let _entered = self.device.enter()?;
        // SAFETY: the stream exists.
        let status = unsafe { (self.device.driver.call.stream_query)(self.raw) };
        if status == NOT_READY { Ok(()) } else { self.device.check("cuStreamQuery", status) }
    }

    /// Copies device memory to the host.
    ///
    /// # Safety
    /// Both are valid for these bytes until the stream has passed the copy.
    pub(crate) unsafe fn to_host(&self, to: *mut u8, from: Address, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: promised by the caller.
        let status = unsafe { (self.device.driver.call.copy_to_host)(to.cast(), from, bytes, self.raw) };
        self.device.check("cuMemcpyDtoHAsync_v2", status)
    }

    /// Copies host memory to the device.
    ///
    /// # Safety
    /// As for `to_host`.
    pub(crate) unsafe fn to_device(&self, to: Address, from: *const u8, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: promised by the caller.
        let status = unsafe { (self.device.driver.call.copy_to_device)(to, from.cast(), bytes, self.raw) };
        self.device.check("cuMemcpyHtoDAsync_v2", status)
    }

    /// Copies device memory, of this device or of one that it reaches.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// Both are valid for these bytes until the stream has passed the copy, and do not overlap.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        let _entered = self.device.enter()?;
        // SAFETY: promised by the caller.
        let status = unsafe { (self.device.driver.call.copy_on_device)(to, from, bytes as usize, self.raw) };
        self.device.check("cuMemcpyDtoDAsync_v2", status)
    }

    /// Makes later work wait until the number at this address, a multiple of 4, is at least `least`: cyclically, so that up to
    /// 2^31 - 1 more is enough. An error does not end the wait; dropping the stream does.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// The address is one that [`crate::Flags::at`] gave, or device memory, valid until the stream has passed the wait.
    pub unsafe fn wait_value(&self, address: u64, least: u32) -> Result<(), CudaError> {
        let _entered = self.device.enter()?;
        // SAFETY: promised by the caller.
        let status = unsafe { (self.device.driver.call.stream_wait_value)(self.raw, address, least, WAIT_AT_LEAST) };
        self.device.check("cuStreamWaitValue32_v2", status)?;
        self.awaited.lock().insert(address, least);
        Ok(())
    }

    /// Ends its waits for numbers that have not come. Whoever should write them may be gone, and memory cannot be unregistered
    /// while a stream waits for a number in it.
    fn release(&self) {
        let awaited = self.awaited.lock();
        // SAFETY: the stream exists.
        if awaited.is_empty() || unsafe { (self.device.driver.call.stream_query)(self.raw) } != NOT_READY {
            return;
        }
        let Ok(other) = Stream::new(&self.device) else { return };
        for (&address, &least) in &*awaited {
            // SAFETY: the stream's waits need the address, which is therefore valid. Nobody else reads the number.
            let _ = unsafe { other.write_value(address, least) };
        }
    }

    /// Once the stream has come here, this number is written to an address, a multiple of 4. Whoever sees it sees all that the
    /// stream has written before, on whatever device.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// As for [`Stream::wait_value`]; and the number at this address is this stream's to write.
    pub unsafe fn write_value(&self, address: u64, value: u32) -> Result<(), CudaError> {
        let _entered = self.device.enter()?;
        // SAFETY: promised by the caller.
        let status = unsafe { (self.device.driver.call.stream_write_value)(self.raw, address, value, WRITE_AFTER_ALL) };
        self.device.check("cuStreamWriteValue32_v2", status)
    }

    /// Calls a function on a thread of the driver once the stream has come here. It must not call the driver, and not
    /// block. It is not called if the context has failed.
    ///
    /// # Errors
    /// The driver's error; the function is then not called.
    pub fn call(&self, function: Box<dyn FnOnce() + Send>) -> Result<(), CudaError> {
        unsafe extern "C" fn run(data: *mut c_void) {
            // SAFETY: made by `into_raw` below, and passed here once.
            let function = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
            // Unwinding into the driver would end the process.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(function));
        }
        let _entered = self.device.enter()?;
        let data = Box::into_raw(Box::new(function)).cast::<c_void>();
        // SAFETY: `run` takes what `data` is.
        let status = unsafe { (self.device.driver.call.launch_host_function)(self.raw, run, data) };
        self.device.check("cuLaunchHostFunc", status).inspect_err(|_| {
            // SAFETY: the driver has refused it, and does not call it.
            drop(unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) });
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter() {
            self.release();
            // SAFETY: made by `new`. What it has still to do is done.
            unsafe { (self.device.driver.call.stream_destroy)(self.raw) };
        }
    }
}

/// A point in a stream.
pub struct Event {
    device: Arc<Device>,
    raw: Opaque,
}

// SAFETY: the driver is thread-safe.
unsafe impl Send for Event {}
// SAFETY: likewise.
unsafe impl Sync for Event {}

impl Event {
    /// A new event, which has happened.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(device: &Arc<Device>) -> Result<Event, CudaError> {
        let _entered = device.enter()?;
        let mut raw: Opaque = std::ptr::null_mut();
        // SAFETY: a pointer to a local.
        let made = unsafe { (device.driver.call.event_create)(&raw mut raw, EVENT_DISABLE_TIMING) };
        device.check("cuEventCreate", made)?;
        Ok(Event { device: device.clone(), raw })
    }

    /// The point that the stream has been told so far.
    ///
    /// # Errors
    /// The driver's error.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the stream exists.
        unsafe { self.record_in(stream.raw) }
    }

    /// The point that a caller's stream has been told so far.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// The stream exists, and is of this device.
    pub unsafe fn record_at(&self, stream: CallerStream) -> Result<(), CudaError> {
        // SAFETY: promised by the caller.
        unsafe { self.record_in(stream.raw()) }
    }

    /// # Safety
    /// The stream exists, and is of this device.
    pub(crate) unsafe fn record_in(&self, stream: Opaque) -> Result<(), CudaError> {
        let _entered = self.device.enter()?;
        // SAFETY: promised by the caller.
        let status = unsafe { (self.device.driver.call.event_record)(self.raw, stream) };
        self.device.check("cuEventRecord", status)
    }

    /// Whether the stream has come there.
    ///
    /// # Errors
    /// An error of the context.
    pub fn happened(&self) -> Result<bool, CudaError> {
        let _entered = self.device.enter()?;
        // SAFETY: made by `new`.
        let status = unsafe { (self.device.driver.call.event_query)(self.raw) };
        if status == NOT_READY { Ok(false) } else { self.device.check("cuEventQuery", status).map(|()| true) }
    }

    /// Makes later work of a caller's stream wait for the event.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// The stream exists, and is of this device.
    pub unsafe fn hold(&self, stream: CallerStream) -> Result<(), CudaError> {
        wait_event(&self.device, stream.raw(), self)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: made by `new`; the driver frees it once nothing waits for it.
            unsafe { (self.device.driver.call.event_destroy)(self.raw) };
        }
    }
}

fn wait_event(device: &Arc<Device>, stream: Opaque, event: &Event) -> Result<(), CudaError> {
    let _entered = device.enter()?;
    // SAFETY: both exist.
    let status = unsafe { (device.driver.call.stream_wait_event)(stream, event.raw, 0) };
    device.check("cuStreamWaitEvent", status)
}
