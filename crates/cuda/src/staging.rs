//! Copies a caller's device memory to the host, and the result back, in the order of the caller's stream.
//!
//! Work queued on the caller's stream before the call completes before the copy reads memory; work queued after
//! [`Staged::end`] starts after the result is written. In between the stream goes on. The copies run on two streams of their
//! own, so that a copy to the host, the exchange between hosts and a copy back overlap.
#![allow(unsafe_code, reason = "the caller's promise about its memory is passed on to the driver")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::device::{CallerStream, Device, Event, Stream};
use crate::error::CudaError;
use crate::pinned::{Pinned, Pool};

/// Page-locked memory that is kept although nothing uses it.
const IDLE_BYTES: usize = 256 << 20;

/// Device memory of a caller: an address and bytes.
pub type Region = (u64, u64);

/// Memory that an operation reads and writes, in order.
#[derive(Clone, Copy, Debug)]
pub struct Copies<'a> {
    /// Memory to send.
    pub reads: &'a [Region],
    /// Where results go.
    pub writes: &'a [Region],
    /// Results take the place of what is sent, on the host and on the device.
    pub in_place: bool,
}

/// Copies made so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations.
    pub operations: u64,
    /// Bytes from the device to the host.
    pub to_host: u64,
    /// Bytes from the host to the device.
    pub to_device: u64,
    /// Operations that waited for an earlier one's result, because they use the same memory.
    pub ordered: u64,
}

/// The streams and the memory of a device, for all operations of a job.
pub struct Stage {
    device: Arc<Device>,
    inwards: Stream,
    outwards: Stream,
    pool: Arc<Pool>,
    /// Results under way to the device: where they are written, and when they are.
    flights: Mutex<Vec<(Vec<Region>, Arc<Event>)>>,
    /// Operations, bytes to the host, bytes to the device, operations that waited.
    counters: [AtomicU64; 4],
}

impl Stage {
    /// The streams of a device.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Stage>, CudaError> {
        Ok(Arc::new(Stage {
            device: device.clone(),
            inwards: Stream::new(device)?,
            outwards: Stream::new(device)?,
            pool: Pool::new(device, IDLE_BYTES),
            flights: Mutex::default(),
            counters: Default::default(),
        }))
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Copies made so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let [operations, to_host, to_device, ordered] =
            [0, 1, 2, 3].map(|index: usize| self.counters[index].load(Ordering::Relaxed));
        Counters { operations, to_host, to_device, ordered }
    }

    /// Prepares an operation: once the caller's stream has come here, its memory may be read. Nothing is copied yet.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// The stream exists. The regions are device memory of this device, valid until [`Staged::end`] has returned and the
    /// stream has passed that point, or the operation has been given up and the streams have ended.
    pub unsafe fn begin(self: &Arc<Stage>, stream: CallerStream, copies: &Copies<'_>) -> Result<Staged, CudaError> {
        let bytes = |regions: &[Region]| regions.iter().map(|region| region.1).sum::<u64>() as usize;
        let input = self.pool.take(bytes(copies.reads).max(if copies.in_place { bytes(copies.writes) } else { 0 }))?;
        let output = (!copies.in_place).then(|| self.pool.take(bytes(copies.writes))).transpose()?;
        // SAFETY: promised by the caller.
        let ordered = unsafe { self.follow(&self.inwards, stream, &[copies.reads, copies.writes])? };
        self.counters[0].fetch_add(1, Ordering::Relaxed);
        self.counters[3].fetch_add(u64::from(ordered), Ordering::Relaxed);
        Ok(Staged {
            stage: self.clone(),
            stream,
            reads: copies.reads.to_vec(),
            writes: copies.writes.to_vec(),
            read: Mutex::new(0),
            written: Mutex::new(0),
            input: Arc::new(input),
            output: output.map(Arc::new),
            done: Arc::new(Event::new(&self.device)?),
        })
    }
}

impl Stage {
    /// Makes a stream of ours wait for the caller's stream and for pending writes to any of these regions; returns whether there
    /// are such writes.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// The caller's stream exists, and is of this device.
    pub unsafe fn follow(&self, ours: &Stream, caller: CallerStream, regions: &[&[Region]]) -> Result<bool, CudaError> {
        let reached = Event::new(&self.device)?;
        // SAFETY: promised by the caller.
        unsafe { reached.record_in(caller.raw())? };
        ours.wait_for(&reached)?;
        let mut ordered = false;
        self.flights.lock().retain(|(writes, event)| {
            if event.happened().unwrap_or(true) {
                return false;
            }
            if regions.iter().any(|regions| overlap(writes, regions)) {
                ordered = true;
                // A stream that has failed is noticed by whoever waits.
                let _ = ours.wait_for(event);
            }
            true
        });
        Ok(ordered)
    }

    /// A result is under way into these regions until the event: what begins later waits for it.
    pub fn lands(&self, writes: &[Region], done: &Arc<Event>) {
        self.flights.lock().push((writes.to_vec(), done.clone()));
    }
}

/// Whether any of these share memory.
#[must_use]
pub fn overlap(some: &[Region], others: &[Region]) -> bool {
    some.iter().any(|&(a, many)| others.iter().any(|&(b, more)| a < b + more && b < a + many))
}

/// An operation whose memory is on the host meanwhile.
pub struct Staged {
    stage: Arc<Stage>,
    stream: CallerStream,
    reads: Vec<Region>,
    writes: Vec<Region>,
    /// Bytes that copies have been submitted for, in either direction.
    read: Mutex<u64>,
    written: Mutex<u64>,
    input: Arc<Pinned>,
    output: Option<Arc<Pinned>>,
    done: Arc<Event>,
}

impl Staged {
    /// Whether any of these regions is written by it.
    #[must_use]
    pub fn writes_into(&self, regions: &[Region]) -> bool {
        overlap(&self.writes, regions)
    }

    /// Where the host finds what is sent.
    #[must_use]
    pub fn input(&self) -> *mut u8 {
        self.input.address()
    }

    /// Where the host writes the result.
    #[must_use]
    pub fn output(&self) -> *mut u8 {
        self.output.as_ref().unwrap_or(&self.input).address()
    }

    /// The host's memory, for whoever uses it.
    #[must_use]
    pub fn memory(&self) -> (Arc<Pinned>, Option<Arc<Pinned>>) {
        (self.input.clone(), self.output.clone())
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.stage.device
    }

    /// Copies what is sent up to this byte, and then calls `ready` on a thread of the driver; it must be quick. If the
    /// context fails, `ready` is never called: [`Staged::healthy`] says so.
    ///
    /// # Errors
    /// The driver's error.
    pub fn read(&self, upto: u64, ready: Box<dyn FnOnce() + Send>) -> Result<(), CudaError> {
        let stage = &self.stage;
        let _entered = stage.device.enter()?;
        let mut done = self.read.lock();
        for (address, at, bytes) in pieces(&self.reads, *done, upto) {
            // SAFETY: `begin` promised the device's memory; the host's is of this size, and is kept by `self` or by the
            // operation, whoever ends last.
            unsafe { stage.inwards.to_host(self.input().add(at as usize), address, bytes as usize)? };
            stage.counters[1].fetch_add(bytes, Ordering::Relaxed);
        }
        *done = upto.max(*done);
        // Whatever becomes of the operation: the memory is not used again before the copy has ended.
        let copied = Arc::new(Event::new(&stage.device)?);
        copied.record(&stage.inwards)?;
        self.input.used_until(copied);
        stage.inwards.call(ready)
    }

    /// Copies the result up to this byte to the device. Call it once the host has it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn write(&self, upto: u64) -> Result<(), CudaError> {
        let stage = &self.stage;
        let _entered = stage.device.enter()?;
        let mut done = self.written.lock();
        for (address, at, bytes) in pieces(&self.writes, *done, upto) {
            // SAFETY: as for `read`.
            unsafe { stage.outwards.to_device(address, self.output().add(at as usize), bytes as usize)? };
            stage.counters[2].fetch_add(bytes, Ordering::Relaxed);
        }
        *done = upto.max(*done);
        self.done.record(&stage.outwards)?;
        self.input.used_until(self.done.clone());
        if let Some(output) = &self.output {
            output.used_until(self.done.clone());
        }
        Ok(())
    }

    /// The whole result has been submitted with `write`: what the caller's stream is told from now on sees it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn end(&self) -> Result<(), CudaError> {
        self.stage.lands(&self.writes, &self.done);
        self.hold(self.stream)
    }

    /// Makes this stream wait for the result. Only after `end`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn hold(&self, stream: CallerStream) -> Result<(), CudaError> {
        // SAFETY: `begin` promised that the stream exists.
        unsafe { self.done.hold(stream) }
    }

    /// Whether the context is alive.
    ///
    /// # Errors
    /// Why it is not.
    pub fn healthy(&self) -> Result<(), CudaError> {
        self.stage.inwards.healthy()
    }
}

/// The pieces of regions from one byte of all to another: device address, byte, bytes.
fn pieces(regions: &[Region], from: u64, upto: u64) -> Vec<(u64, u64, u64)> {
    let mut found = Vec::new();
    let mut start = 0;
    for &(address, bytes) in regions {
        let (begin, end) = (from.max(start), upto.min(start + bytes));
        if begin < end {
            found.push((address + (begin - start), begin, end - begin));
        }
        start += bytes;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_bytes_between_two_points() {
        let regions = [(100, 10), (500, 20)];
        assert_eq!(pieces(&regions, 0, 30), [(100, 0, 10), (500, 10, 20)]);
        assert_eq!(pieces(&regions, 4, 12), [(104, 4, 6), (500, 10, 2)]);
        assert_eq!(pieces(&regions, 10, 10), []);
        assert_eq!(pieces(&regions, 25, 99), [(515, 25, 5)]);
    }

    #[test]
    fn memory_overlaps_if_a_byte_is_shared() {
        assert!(overlap(&[(0, 8)], &[(7, 1)]));
        assert!(!overlap(&[(0, 8), (20, 4)], &[(8, 12)]));
        assert!(!overlap(&[], &[(0, 100)]));
    }
}
