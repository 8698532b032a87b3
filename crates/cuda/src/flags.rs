//! Counters in memory that the processes of a host share, and that their devices reach: streams wait for them and write them.
#![allow(unsafe_code, reason = "memory that several processes map, and that devices write")]
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use paceline_os::fd::{AsFd, AsRawFd, OwnedFd};
use paceline_os::fs::{FallocateFlags, MemfdFlags, fallocate, fstat, memfd_create};
use paceline_os::mm::{MapFlags, ProtFlags, mmap, munmap};
use paceline_os::process::{id, open_descriptor};

use crate::abi::{Address, REGISTER_MAPPED, REGISTER_PORTABLE};
use crate::device::Device;
use crate::error::CudaError;

/// Each counter is alone in its cache line.
const STRIDE: usize = 64;
/// The file grows by pages of so many counters.
const OF_PAGE: usize = 64;
/// Where in the first counter's line the token is by which a peer knows that it has opened the right file.
const TOKEN: usize = 16;
const TOKEN_BYTES: usize = 16;

/// Where peers on the same host find the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagsAddress {
    /// Process id of the owner.
    pub pid: u32,
    /// The owner's file descriptor.
    pub fd: i32,
    /// A random number in the file.
    pub token: [u8; TOKEN_BYTES],
}

impl FlagsAddress {
    /// Bytes of an address in a message.
    pub const BYTES: usize = 24;

    /// For a message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.pid.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.fd.to_le_bytes());
        bytes[8..].copy_from_slice(&self.token);
        bytes
    }

    /// From a message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> FlagsAddress {
        let [p0, p1, p2, p3, f0, f1, f2, f3, token @ ..] = *bytes;
        FlagsAddress { pid: u32::from_le_bytes([p0, p1, p2, p3]), fd: i32::from_le_bytes([f0, f1, f2, f3]), token }
    }
}

/// Counters, all 0 in the beginning. The process that made them keeps the file open, so that peers can open it, until it drops
/// them; each process's mapping stays valid whatever the others do.
pub struct Flags {
    map: Mapping,
    count: usize,
    /// The device that reaches them, and the address at which it does.
    registered: OnceLock<(Arc<Device>, Address)>,
    _file: OwnedFd,
}

impl Flags {
    /// Makes counters.
    ///
    /// # Errors
    /// Not enough memory, or a system without `memfd_create`.
    pub fn create(count: usize) -> io::Result<(Flags, FlagsAddress)> {
        let file = memfd_create("paceline-flags", MemfdFlags::CLOEXEC)?;
        let bytes = size(count);
        fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
        let map = Mapping::new(&file, bytes)?;
        let mut token = [0; TOKEN_BYTES];
        paceline_os::random::fill(&mut token).map_err(io::Error::other)?;
        map.token().iter().zip(token.as_chunks().0).for_each(|(word, bytes)| {
            word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
        });
        let address = FlagsAddress { pid: id(), fd: file.as_raw_fd(), token };
        Ok((Flags { map, count, registered: OnceLock::new(), _file: file }, address))
    }

    /// Opens a peer's counters, of which there are `count`.
    ///
    /// # Errors
    /// The peer is in another namespace, belongs to another user, or has ended; or these are not the counters it announced.
    pub fn open(address: &FlagsAddress, count: usize) -> io::Result<Flags> {
        let file = open_descriptor(address.pid, address.fd, true)?;
        let bytes = size(count);
        let foreign = || io::Error::other("this is not the memory of counters that the rank announced");
        // In another pid namespace, the same numbers may refer to another process and another file.
        if u64::try_from(fstat(&file)?.st_size) != Ok(bytes as u64) {
            return Err(foreign());
        }
        let map = Mapping::new(&file, bytes)?;
        let token = map.token().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        if token.as_flattened() != address.token {
            return Err(foreign());
        }
        Ok(Flags { map, count, registered: OnceLock::new(), _file: file })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Lets a device reach them; once is enough.
    ///
    /// # Errors
    /// The driver's error, or another device of this process reaches them already.
    pub fn register(&self, device: &Arc<Device>) -> Result<(), CudaError> {
        let _entered = device.enter()?;
        let call = &device.driver.call;
        if self.registered.get().is_none() {
            let host = self.map.base.as_ptr().cast::<c_void>();
            let mut address: Address = 0;
            // SAFETY: the mapping is of this size, and outlives the registration.
            let registered = unsafe { (call.host_register)(host, self.map.bytes, REGISTER_PORTABLE | REGISTER_MAPPED) };
            device.check("cuMemHostRegister_v2", registered).map_err(|CudaError(text)| {
                CudaError(format!("{text} for counters that processes share; run with `--cuda host`"))
            })?;
            // SAFETY: a pointer to a local; the memory has been registered.
            let found = unsafe { (call.host_device_address)(&raw mut address, host, 0) };
            let found = device.check("cuMemHostGetDevicePointer_v2", found);
            if found.is_err() || self.registered.set((device.clone(), address)).is_err() {
                // SAFETY: registered above, by this call, and used by nobody.
                unsafe { (call.host_unregister)(host) };
            }
            found?;
        }
        match self.registered.get() {
            Some((other, _)) if !Arc::ptr_eq(other, device) => {
                Err(CudaError(format!("{device:?}: {other:?} of this process has registered these counters")))
            }
            _ => Ok(()),
        }
    }

    /// A counter's address on the device.
    ///
    /// # Panics
    /// There is no such counter, or no device has been registered.
    #[must_use]
    pub fn at(&self, index: usize) -> u64 {
        assert!(index < self.count, "counter {index} of {}", self.count);
        let registered = self.registered.get().map(|&(_, address)| address + (index * STRIDE) as u64);
        assert!(registered.is_some(), "Flags::register comes before Flags::at");
        registered.unwrap_or(0)
    }

    /// A counter's value; what was written before it is seen from now on.
    ///
    /// # Panics
    /// There is no such counter.
    #[must_use]
    pub fn read(&self, index: usize) -> u32 {
        self.counter(index).load(Ordering::Acquire)
    }

    /// Sets a counter; who sees it sees what this process wrote before.
    ///
    /// # Panics
    /// There is no such counter.
    pub fn write(&self, index: usize, value: u32) {
        self.counter(index).store(value, Ordering::Release);
    }

    fn counter(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count, "counter {index} of {}", self.count);
        self.map.word(index * STRIDE)
    }
}

impl Drop for Flags {
    fn drop(&mut self) {
        if let Some((device, _)) = self.registered.take()
            && let Ok(_entered) = device.enter()
        {
            // SAFETY: registered by `register`. The driver waits for what still uses it.
            unsafe { (device.driver.call.host_unregister)(self.map.base.as_ptr().cast()) };
        }
    }
}

fn size(count: usize) -> usize {
    count.div_ceil(OF_PAGE).max(1) * OF_PAGE * STRIDE
}

/// Shared memory; unmapped when dropped.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: all access is through atomics.
unsafe impl Send for Mapping {}
// SAFETY: likewise.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: impl AsFd, bytes: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the system chooses aliases nothing.
        let base = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave address 0"))?;
        Ok(Mapping { base, bytes })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes);
        // SAFETY: inside, aligned (the mapping begins at a page), and only ever used as an atomic.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    fn token(&self) -> [&AtomicU32; TOKEN_BYTES / 4] {
        [0, 4, 8, 12].map(|offset| self.word(TOKEN + offset))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no view outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_survives_a_message(pid: u32, fd: i32, token: [u8; 16]) {
            let address = FlagsAddress { pid, fd, token };
            prop_assert_eq!(FlagsAddress::from_bytes(&address.to_bytes()), address);
        }
    }

    #[test]
    fn an_address_is_little_endian() {
        let bytes = FlagsAddress { pid: 0x0102, fd: 3, token: [9; 16] }.to_bytes();
        assert_eq!(bytes[..8], [2, 1, 0, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[8..], [9; 16]);
    }

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let (mine, address) = Flags::create(65).unwrap();
        let theirs = Flags::open(&address, 65).unwrap();
        assert_eq!((theirs.count(), theirs.map.bytes), (65, 2 * 4096));
        for index in 0..65 {
            assert_eq!(theirs.read(index), 0);
            mine.write(index, index as u32 + 1);
        }
        theirs.write(0, u32::MAX);
        assert_eq!((mine.read(0), mine.read(1), theirs.read(64)), (u32::MAX, 2, 65));
        // The token has survived the first counter.
        assert!(Flags::open(&address, 65).is_ok());
        drop(mine);
        assert_eq!(theirs.read(64), 65);
    }

    #[test]
    fn other_memory_than_was_announced_is_refused() {
        let (_mine, address) = Flags::create(64).unwrap();
        let refused = |address: FlagsAddress, count| Flags::open(&address, count).err().map(|error| error.to_string());
        let foreign = Some("this is not the memory of counters that the rank announced".to_string());
        assert_eq!(refused(address, 65), foreign, "another size");
        assert_eq!(refused(FlagsAddress { token: [7; 16], ..address }, 64), foreign);
        assert!(refused(FlagsAddress { fd: -1, ..address }, 64).is_some());
    }

    #[test]
    #[should_panic(expected = "counter 3 of 3")]
    fn there_is_no_counter_beyond_the_last() {
        let _ = Flags::create(3).unwrap().0.read(3);
    }
}
