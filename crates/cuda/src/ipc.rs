//! Sharing of device memory between the processes of a host, by CUDA IPC.
//!
//! The driver shares whole allocations, and takes tens to hundreds of microseconds to name one and to open it. Both sides
//! remember what they have: the owner by the number that the driver gives each allocation (the address alone would name another
//! allocation after it was freed and allocated anew), the peer by the owner and that number.
#![allow(unsafe_code, reason = "calls into a library that is loaded at run time")]
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::abi::{ALREADY_MAPPED, Address, IPC_PEER_ACCESS, IpcHandle, POINTER_BUFFER};
use crate::device::{Device, Event};
use crate::error::CudaError;

/// Handles that an owner remembers: torch's allocator has some hundred allocations.
const EXPORTS: usize = 1024;
/// Allocations of peers that stay open although nothing uses them: address space, and memory that its owner may have freed.
const IMPORTS: usize = 256;
/// How long a stale mapping, or one at the end of the job, is waited for. What uses it has long begun.
const PATIENCE: Duration = Duration::from_secs(1);

/// A piece of device memory, as a message to a peer of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The driver's name for the allocation.
    pub handle: [u8; 64],
    /// The allocation's number in the owner's process; none is given twice.
    pub id: u64,
    /// Where in the allocation the piece begins, in bytes.
    pub offset: u64,
    /// How long the piece is.
    pub bytes: u64,
}

impl Exported {
    /// Bytes of a message.
    pub const BYTES: usize = 88;

    /// For a message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..64].copy_from_slice(&self.handle);
        for (to, number) in bytes[64..].chunks_exact_mut(8).zip([self.id, self.offset, self.bytes]) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// From a message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Exported {
        let mut handle = [0; 64];
        handle.copy_from_slice(&bytes[..64]);
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        Exported { handle, id: number(64), offset: number(72), bytes: number(80) }
    }
}

/// How often something was remembered, and how often the driver was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Answers from memory.
    pub hits: u64,
    /// Answers from the driver.
    pub misses: u64,
}

/// An allocation of this process.
#[derive(Clone, Copy)]
struct Allocation {
    base: Address,
    bytes: u64,
    handle: [u8; 64],
}

#[derive(Default)]
struct Known {
    by_id: HashMap<u64, Allocation>,
    /// The keys, oldest first.
    order: VecDeque<u64>,
    counters: CacheCounters,
}

impl Known {
    fn get(&mut self, id: u64) -> Option<Allocation> {
        let found = self.by_id.get(&id).copied();
        self.counters.hits += u64::from(found.is_some());
        self.counters.misses += u64::from(found.is_none());
        found
    }

    fn keep(&mut self, id: u64, allocation: Allocation) {
        if self.by_id.insert(id, allocation).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > EXPORTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
    }
}

/// Names this process's device memory for peers.
pub struct Exports {
    device: Arc<Device>,
    cached: bool,
    known: Mutex<Known>,
}

impl Exports {
    /// Of a device. `cached`: remembers handles.
    #[must_use]
    pub fn new(device: &Arc<Device>, cached: bool) -> Exports {
        Exports { device: device.clone(), cached, known: Mutex::default() }
    }

    /// Names memory of this device. It must not be freed before the peers have used it for the last time.
    ///
    /// # Errors
    /// It is no device memory, is longer than its allocation, or cannot be shared; the text says what to do.
    pub fn export(&self, address: u64, bytes: u64) -> Result<Exported, CudaError> {
        let device = &self.device;
        let _entered = device.enter()?;
        let mut id = 0_u64;
        // SAFETY: the attribute is of this size; the address need not be valid.
        let asked = unsafe {
            let to = (&raw mut id).cast::<c_void>();
            (device.driver.call.pointer_get_attribute)(to, POINTER_BUFFER, address)
        };
        device.check("cuPointerGetAttribute", asked).map_err(|CudaError(text)| {
            CudaError(format!("{text} for address {address:#x}, which is no device memory that can be shared"))
        })?;
        let known = self.known.lock().get(id).filter(|_| self.cached);
        let allocation = match known {
            Some(allocation) => allocation,
            None => {
                let allocation = self.ask(address)?;
                if self.cached {
                    self.known.lock().keep(id, allocation);
                }
                allocation
            }
        };
        match address.checked_sub(allocation.base) {
            Some(offset) if offset.checked_add(bytes).is_some_and(|end| end <= allocation.bytes) => {
                Ok(Exported { handle: allocation.handle, id, offset, bytes })
            }
            _ => Err(CudaError(format!(
                "{device:?}: {bytes} bytes at {address:#x} are not within one allocation ({} bytes at {:#x}), and only one \
                 can be shared; run with `--cuda host`",
                allocation.bytes, allocation.base
            ))),
        }
    }

    /// How often a handle was remembered.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        self.known.lock().counters
    }

    /// The context is current.
    fn ask(&self, address: Address) -> Result<Allocation, CudaError> {
        let device = &self.device;
        let call = &device.driver.call;
        let (mut base, mut bytes, mut handle): (Address, usize, IpcHandle) = (0, 0, IpcHandle([0; 64]));
        // SAFETY: pointers to locals; the driver checks the address.
        unsafe {
            let found = (call.address_range)(&raw mut base, &raw mut bytes, address);
            device.check("cuMemGetAddressRange_v2", found)?;
            let named = (call.ipc_get_handle)(&raw mut handle, base);
            device.check("cuIpcGetMemHandle", named).map_err(|CudaError(text)| {
                CudaError(format!(
                    "{text}: the memory at {base:#x} cannot be shared with other processes. Likely it is of \
                     expandable segments (take `expandable_segments:True` out of PYTORCH_CUDA_ALLOC_CONF) or of a memory pool \
                     (cuMemAllocAsync, `backend:cudaMallocAsync`); or run with `--cuda host`"
                ))
            })?;
        }
        Ok(Allocation { base, bytes: bytes as u64, handle: handle.0 })
    }
}

/// A user of an open allocation, which is closed only after its end.
trait Use {
    /// Whether it is over.
    fn over(&self) -> bool;
}

impl Use for Event {
    fn over(&self) -> bool {
        // After an error of the context nothing runs any more.
        self.happened().unwrap_or(true)
    }
}

/// A peer's allocation that this process has opened.
struct Opened<U> {
    owner: u32,
    id: u64,
    handle: [u8; 64],
    /// Its address here.
    base: Address,
    /// The addresses in it that `open` has returned and `retire` has not had.
    held: Vec<Address>,
    /// Uses that have been submitted, and may not be over.
    until: Vec<Arc<U>>,
    /// When it was opened last, by a count of opens.
    last: u64,
    /// Not to be found again: closed as soon as it can be.
    stale: bool,
}

impl<U: Use> Opened<U> {
    fn idle(&mut self) -> bool {
        self.until.retain(|until| !until.over());
        self.held.is_empty() && self.until.is_empty()
    }
}

/// The allocations that are open. Knows nothing of the driver.
struct Table<U> {
    entries: Vec<Opened<U>>,
    opens: u64,
    counters: CacheCounters,
}

impl<U: Use> Table<U> {
    fn new() -> Table<U> {
        Table { entries: Vec::new(), opens: 0, counters: CacheCounters::default() }
    }

    /// The address of a piece, if its allocation is open.
    fn find(&mut self, owner: u32, piece: &Exported) -> Option<Address> {
        self.opens += 1;
        let opens = self.opens;
        let found = self.entries.iter_mut().find(|entry| !entry.stale && (entry.owner, entry.id) == (owner, piece.id));
        let address = found.map(|entry| {
            let address = entry.base + piece.offset;
            entry.last = opens;
            entry.held.push(address);
            address
        });
        self.counters.hits += u64::from(address.is_some());
        self.counters.misses += u64::from(address.is_none());
        address
    }

    /// Remembers an allocation; returns the piece's address.
    fn insert(&mut self, owner: u32, piece: &Exported, base: Address, cached: bool) -> Address {
        let (address, last) = (base + piece.offset, self.opens);
        let (held, until) = (vec![address], Vec::new());
        self.entries.push(Opened {
            owner,
            id: piece.id,
            handle: piece.handle,
            base,
            held,
            until,
            last,
            stale: !cached,
        });
        address
    }

    /// Marks what the owner must have freed, because it has another allocation now under the same handle, or because that has
    /// been opened at the same address. Returns whether there is any.
    fn supersede(&mut self, owner: u32, piece: &Exported, base: Option<Address>) -> bool {
        let mut any = false;
        for entry in &mut self.entries {
            let same = entry.handle == piece.handle || Some(entry.base) == base;
            if entry.owner == owner && entry.id != piece.id && same {
                entry.stale = true;
                any = true;
            }
        }
        any
    }

    /// Marks all allocations of an owner: it has freed one of them, and nobody knows which.
    fn distrust(&mut self, owner: u32) {
        self.entries.iter_mut().filter(|entry| entry.owner == owner).for_each(|entry| entry.stale = true);
    }

    /// Takes out what is to be closed now: what is stale, and the oldest beyond `most`; only what nothing uses.
    fn surplus(&mut self, most: usize) -> Vec<Address> {
        let mut closed = Vec::new();
        self.entries.retain_mut(|entry| {
            let close = entry.stale && entry.idle();
            if close {
                closed.push(entry.base);
            }
            !close
        });
        if self.entries.len() > most {
            self.entries.sort_by_key(|entry| entry.last);
            let mut more = self.entries.len() - most;
            self.entries.retain_mut(|entry| {
                let close = more > 0 && entry.idle();
                if close {
                    more -= 1;
                    closed.push(entry.base);
                }
                !close
            });
        }
        closed
    }

    /// These addresses are used up to this event.
    fn retire(&mut self, addresses: &[Address], until: &Arc<U>) {
        for address in addresses {
            // The one that has been held longest, of several that are at the same address.
            let holder = |entry: &&mut Opened<U>| entry.held.contains(address);
            let Some(entry) = self.entries.iter_mut().find(holder) else { continue };
            if let Some(at) = entry.held.iter().position(|held| held == address) {
                entry.held.swap_remove(at);
            }
            if !entry.until.iter().any(|known| Arc::ptr_eq(known, until)) {
                // Of what is over, a cache entry that is used again and again would gather more and more.
                entry.until.retain(|known| !known.over());
                entry.until.push(until.clone());
            }
        }
    }
}

/// Opens device memory of peers.
pub struct Imports {
    device: Arc<Device>,
    cached: bool,
    table: Mutex<Table<Event>>,
}

impl Imports {
    /// For a device. `cached`: allocations stay open for the next use; otherwise each is closed after its use.
    #[must_use]
    pub fn new(device: &Arc<Device>, cached: bool) -> Imports {
        Imports { device: device.clone(), cached, table: Mutex::new(Table::new()) }
    }

    /// The address here of a piece of a peer's memory. It stays valid until it has been passed to [`Imports::retire`], once for
    /// each call of `open`, and that event has happened. `owner`: which peer it is, by a number that means the same process
    /// always.
    ///
    /// # Errors
    /// The devices cannot reach each other, the owner has ended or is in another container, or has freed memory that is in use
    /// here; the text says what to do.
    pub fn open(&self, owner: u32, piece: &Exported) -> Result<u64, CudaError> {
        if let Some(address) = self.table.lock().find(owner, piece) {
            return Ok(address);
        }
        let _entered = self.device.enter()?;
        let begun = Instant::now();
        loop {
            let mut table = self.table.lock();
            table.supersede(owner, piece, None);
            self.close(&table.surplus(IMPORTS));
            // As long as the old allocation is open, the driver may take the new one for it.
            if !table.supersede(owner, piece, None) {
                if let Some(base) = self.ask(owner, piece)? {
                    if !table.supersede(owner, piece, Some(base)) {
                        let address = table.insert(owner, piece, base, self.cached);
                        self.close(&table.surplus(IMPORTS));
                        return Ok(address);
                    }
                    self.close(&[base]);
                } else {
                    // Small allocations share a block of the driver's. What is open of it has been freed since, and lies in
                    // the way of what was allocated in its place with another size, and so another handle.
                    table.distrust(owner);
                }
            }
            drop(table);
            if begun.elapsed() > PATIENCE {
                return Err(CudaError(format!(
                    "{:?}: rank {owner} has freed, and allocated anew, memory that is still in use here; memory of an operation \
                     must stay allocated until the operation has ended",
                    self.device
                )));
            }
            std::thread::yield_now();
        }
    }

    /// Opens an allocation; None if something else is open in its place. The context is current.
    fn ask(&self, owner: u32, piece: &Exported) -> Result<Option<Address>, CudaError> {
        let device = &self.device;
        let mut base: Address = 0;
        // SAFETY: a pointer to a local; the driver checks the handle.
        let opened =
            unsafe { (device.driver.call.ipc_open_handle)(&raw mut base, IpcHandle(piece.handle), IPC_PEER_ACCESS) };
        if opened == ALREADY_MAPPED {
            return Ok(None);
        }
        device.check("cuIpcOpenMemHandle_v2", opened).map_err(|CudaError(text)| {
            CudaError(format!(
                "{text} for memory of rank {owner}: devices need access to each other (`nvidia-smi topo -p2p r`), and \
                 processes one IPC and PID namespace (in containers `--ipc=host --pid=host`); or run with `--cuda host`"
            ))
        })?;
        Ok(Some(base))
    }

    /// These addresses, which [`Imports::open`] returned, are used up to this event, which has been recorded: afterwards their
    /// allocations may be closed. After an operation that has not been submitted, the event may be a new one. Other addresses
    /// are passed over.
    pub fn retire(&self, addresses: &[u64], until: &Arc<Event>) {
        let mut table = self.table.lock();
        table.retire(addresses, until);
        if let Ok(_entered) = self.device.enter() {
            self.close(&table.surplus(IMPORTS));
        }
    }

    /// How often an allocation was open already.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        self.table.lock().counters
    }

    /// The context is current.
    fn close(&self, bases: &[Address]) {
        for &base in bases {
            // SAFETY: opened by `ask`, and closed once for each time: an entry that nothing uses, which `surplus` has taken out
            // of the table, or what has not become an entry. Of several opens at one address the driver keeps count.
            unsafe { (self.device.driver.call.ipc_close_handle)(base) };
        }
    }
}

impl Drop for Imports {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else { return };
        let begun = Instant::now();
        loop {
            let mut table = self.table.lock();
            for entry in &mut table.entries {
                // Nobody can retire it any more.
                entry.held.clear();
            }
            self.close(&table.surplus(0));
            // What is still used then stays open until the process ends: better than a fault of the device.
            if table.entries.is_empty() || begun.elapsed() > PATIENCE {
                return;
            }
            drop(table);
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Until(AtomicBool);

    impl Until {
        fn ended() -> Arc<Until> {
            Arc::new(Until(AtomicBool::new(true)))
        }
    }

    impl Use for Until {
        fn over(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn piece(handle: u8, id: u64, offset: u64) -> Exported {
        Exported { handle: [handle; 64], id, offset, bytes: 8 }
    }

    proptest! {
        #[test]
        fn a_piece_survives_a_message(handle: [u8; 32], id: u64, offset: u64, bytes: u64) {
            let mut whole = [1; 64];
            whole[16..48].copy_from_slice(&handle);
            let piece = Exported { handle: whole, id, offset, bytes };
            prop_assert_eq!(Exported::from_bytes(&piece.to_bytes()), piece);
        }
    }

    #[test]
    fn a_message_is_little_endian() {
        let bytes = Exported { handle: [7; 64], id: 1, offset: 0x0203, bytes: 4 }.to_bytes();
        assert_eq!(bytes[..64], [7; 64]);
        assert_eq!(bytes[64..], [1, 0, 0, 0, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn the_oldest_handle_is_forgotten() {
        let mut known = Known::default();
        for id in 0..=EXPORTS as u64 {
            known.keep(id, Allocation { base: id, bytes: 1, handle: [0; 64] });
        }
        assert!(known.get(0).is_none());
        assert_eq!(known.get(EXPORTS as u64).map(|allocation| allocation.base), Some(EXPORTS as u64));
        assert_eq!((known.by_id.len(), known.order.len()), (EXPORTS, EXPORTS));
        assert_eq!(known.counters, CacheCounters { hits: 1, misses: 1 });
    }

    #[test]
    fn an_allocation_is_opened_once_for_all_of_its_pieces() {
        let mut table = Table::<Until>::new();
        assert_eq!(table.find(3, &piece(1, 10, 8)), None);
        assert_eq!(table.insert(3, &piece(1, 10, 8), 4096, true), 4104);
        assert_eq!(table.find(3, &piece(1, 10, 64)), Some(4160));
        assert_eq!(table.find(4, &piece(1, 10, 64)), None, "of another owner");
        assert_eq!(table.counters, CacheCounters { hits: 1, misses: 2 });
    }

    #[test]
    fn what_may_be_freed_is_opened_anew_and_closed_after_its_use() {
        let mut table = Table::<Until>::new();
        table.insert(0, &piece(1, 1, 0), 1000, true);
        let used = table.insert(0, &piece(2, 2, 0), 2000, true);
        table.insert(1, &piece(3, 3, 0), 3000, true);
        table.retire(&[1000, 3000], &Until::ended());
        table.distrust(0);
        assert_eq!(table.surplus(IMPORTS), [1000]);
        assert_eq!(table.find(0, &piece(2, 2, 0)), None);
        assert_eq!(table.find(1, &piece(3, 3, 8)), Some(3008), "of another owner");
        table.retire(&[used], &Until::ended());
        assert_eq!(table.surplus(IMPORTS), [2000]);
    }

    #[test]
    fn what_is_used_stays_open() {
        let mut table = Table::<Until>::new();
        for id in 0..4 {
            table.insert(0, &piece(id as u8, id, 0), 1000 * (id + 1), true);
        }
        assert_eq!(table.surplus(1), [], "all are held");
        let (running, ended) = (Arc::<Until>::default(), Until::ended());
        table.retire(&[1000, 2000, 77], &running);
        table.retire(&[3000, 4000], &ended);
        assert_eq!(table.surplus(2), [3000, 4000]);
        assert_eq!(table.surplus(0), []);
        running.0.store(true, Ordering::Relaxed);
        assert_eq!(table.surplus(1), [1000], "the oldest");
        assert_eq!(table.surplus(0), [2000]);
    }

    #[test]
    fn the_one_that_was_opened_longest_ago_goes_first() {
        let mut table = Table::<Until>::new();
        for id in 0..3 {
            assert_eq!(table.find(0, &piece(id as u8, id, 0)), None);
            table.insert(0, &piece(id as u8, id, 0), 1000 * (id + 1), true);
        }
        assert_eq!(table.find(0, &piece(0, 0, 0)), Some(1000));
        table.retire(&[1000, 1000, 2000, 3000], &Until::ended());
        assert_eq!(table.surplus(2), [2000]);
    }

    #[test]
    fn what_is_not_remembered_is_closed_after_its_use() {
        let mut table = Table::<Until>::new();
        let one = piece(1, 10, 0);
        // The driver opens one allocation twice, at one address.
        table.insert(0, &one, 1000, false);
        assert_eq!(table.find(0, &one), None);
        table.insert(0, &one, 1000, false);
        assert_eq!(table.surplus(IMPORTS), []);
        table.retire(&[1000], &Until::ended());
        assert_eq!(table.surplus(IMPORTS), [1000]);
        table.retire(&[1000], &Until::ended());
        assert_eq!(table.surplus(IMPORTS), [1000]);
    }

    #[test]
    fn an_allocation_in_place_of_another_ends_that_one() {
        let mut table = Table::<Until>::new();
        table.insert(0, &piece(1, 10, 0), 1000, true);
        table.insert(1, &piece(1, 10, 0), 2000, true);
        assert!(!table.supersede(0, &piece(1, 10, 64), None), "the same one");
        assert!(table.supersede(0, &piece(1, 11, 0), None));
        assert_eq!(table.find(0, &piece(1, 10, 0)), None);
        assert_eq!(table.surplus(IMPORTS), [], "still held");
        table.retire(&[1000], &Until::ended());
        assert_eq!(table.surplus(IMPORTS), [1000]);
        assert!(table.supersede(1, &piece(9, 12, 0), Some(2000)), "opened where the old one is");
        assert!(!table.supersede(1, &piece(9, 12, 0), Some(3000)));
    }
}
