//! Page-locked host memory, which devices read and write directly; used again, because the system takes milliseconds to
//! lock it.
#![allow(unsafe_code, reason = "the driver's memory becomes slices and addresses here")]
use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::HOST_PORTABLE;
use crate::device::{Device, Event};
use crate::error::CudaError;

/// The smallest piece.
const LEAST: usize = 4 << 10;

/// A piece of page-locked memory.
struct Block {
    device: Arc<Device>,
    address: *mut u8,
    bytes: usize,
}

// SAFETY: it is memory; who may touch it is decided by its owner.
unsafe impl Send for Block {}
// SAFETY: likewise.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: allocated by `Pool::take`. The driver waits for copies that still use it.
            unsafe { (self.device.driver.call.host_free)(self.address.cast::<c_void>()) };
        }
    }
}

/// Page-locked memory of a device, by sizes that are powers of two.
pub struct Pool {
    device: Arc<Device>,
    /// Pieces, each with an event after which nothing uses it any more.
    free: Mutex<Vec<(Block, Option<Arc<Event>>)>>,
    most: usize,
}

impl Pool {
    /// An empty pool that keeps at most so many bytes that are not in use.
    #[must_use]
    pub fn new(device: &Arc<Device>, most: usize) -> Arc<Pool> {
        Arc::new(Pool { device: device.clone(), free: Mutex::new(Vec::new()), most })
    }

    /// Memory of at least this many bytes, with any contents.
    ///
    /// # Errors
    /// The driver has none.
    pub fn take(self: &Arc<Pool>, bytes: usize) -> Result<Pinned, CudaError> {
        let bytes = bytes.next_power_of_two().max(LEAST);
        let idle = |event: &Option<Arc<Event>>| event.as_ref().is_none_or(|event| event.happened().unwrap_or(false));
        let mut free = self.free.lock();
        if let Some(index) = free.iter().position(|(block, event)| block.bytes == bytes && idle(event)) {
            let (block, _) = free.swap_remove(index);
            return Ok(Pinned { pool: self.clone(), block: Some(block), until: Mutex::new(None) });
        }
        drop(free);
        let _entered = self.device.enter()?;
        let mut address: *mut c_void = std::ptr::null_mut();
        // SAFETY: a pointer to a local.
        let got = unsafe { (self.device.driver.call.host_alloc)(&raw mut address, bytes, HOST_PORTABLE) };
        self.device.check("cuMemHostAlloc", got).map_err(|CudaError(text)| {
            CudaError(format!(
                "{text} for {bytes} bytes of page-locked memory; `ulimit -l` or the host's memory limits it"
            ))
        })?;
        let block = Block { device: self.device.clone(), address: address.cast(), bytes };
        Ok(Pinned { pool: self.clone(), block: Some(block), until: Mutex::new(None) })
    }

    fn give(&self, block: Block, until: Option<Arc<Event>>) {
        let mut free = self.free.lock();
        // What was used last is wanted again; the oldest go.
        let mut kept: usize = free.iter().map(|(block, _)| block.bytes).sum::<usize>() + block.bytes;
        free.push((block, until));
        let mut gone = 0;
        while kept > self.most {
            kept -= free[gone].0.bytes;
            gone += 1;
        }
        let gone: Vec<_> = free.drain(..gone).collect();
        drop(free);
        // Outside of the lock: the driver may wait.
        drop(gone);
    }
}

/// Page-locked memory in use. It returns to its pool.
pub struct Pinned {
    pool: Arc<Pool>,
    block: Option<Block>,
    until: Mutex<Option<Arc<Event>>>,
}

impl Pinned {
    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.block.as_ref().map_or(std::ptr::null_mut(), |block| block.address)
    }

    /// Once it is given back, it is used again only after this event.
    pub(crate) fn used_until(&self, event: Arc<Event>) {
        *self.until.lock() = Some(event);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.give(block, self.until.lock().take());
        }
    }
}
