//! Memory of a device, for what is neither the caller's nor a peer's.
#![allow(unsafe_code, reason = "calls into a library that is loaded at run time")]
use std::sync::Arc;

use crate::abi::Address;
use crate::device::Device;
use crate::error::CudaError;

/// Device memory, which the driver frees when this is dropped; it then waits for all that the device still does.
pub struct DeviceMemory {
    device: Arc<Device>,
    address: Address,
    bytes: u64,
}

impl DeviceMemory {
    /// Where it begins: a multiple of 256.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How large it is.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: allocated by `Device::memory`.
            unsafe { (self.device.driver.call.mem_free)(self.address) };
        }
    }
}

impl Device {
    /// Allocates memory, with any contents. It can be shared by [`crate::Exports`].
    ///
    /// # Errors
    /// The device has not so much left.
    pub fn memory(self: &Arc<Device>, bytes: u64) -> Result<DeviceMemory, CudaError> {
        let _entered = self.enter()?;
        let mut address: Address = 0;
        // The driver refuses to allocate nothing.
        let allocated = bytes.max(1) as usize;
        // SAFETY: a pointer to a local.
        let status = unsafe { (self.driver.call.mem_alloc)(&raw mut address, allocated) };
        self.check("cuMemAlloc_v2", status)
            .map_err(|CudaError(text)| CudaError(format!("{text} for {bytes} bytes of device memory")))?;
        Ok(DeviceMemory { device: self.clone(), address, bytes })
    }
}
