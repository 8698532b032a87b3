//! A rank's segment: a header, then a ring for each rank of the host.
#[cfg(not(loom))]
use paceline_os::fd::{AsRawFd, OwnedFd};
#[cfg(not(loom))]
use paceline_os::fs::{FallocateFlags, MemfdFlags, fallocate, fstat, memfd_create};
#[cfg(not(loom))]
use paceline_os::process::{id, open_descriptor};
#[cfg(not(loom))]
use paceline_os::sync::Arc;
use paceline_os::sync::atomic::AtomicU32;
use serde::{Deserialize, Serialize};

use super::mapping::Mapping;
use super::peer::PeerMemory;

/// Slots in a ring.
pub(super) const SLOTS: u32 = if cfg!(loom) { 2 } else { 8 };
/// Bytes before a slot's payload: its state and the header.
pub(super) const SLOT_HEAD: usize = 64;
/// A ring begins with the number of slots that its reader has released, alone in its cache lines ...
pub(super) const RING_HEAD: usize = 128;
/// ... followed by 1 if the reader can read the writer's memory.
pub(super) const RING_READS: usize = 64;
const HEAD: usize = 4096;
/// Offset of the owner's sleep flag.
const SLEEPING: usize = 128;
/// Offset of the core on which the owner waits.
const WAITS_ON: usize = 192;
#[cfg(not(loom))]
/// Offset of the token by which a peer knows that it has opened the right file.
const TOKEN: usize = 64;
/// Bytes of all rings of a segment; with many ranks, fragments become smaller.
const RINGS_BYTES: usize = 16 << 20;
const LARGEST_FRAGMENT: usize = 64 << 10;
const SMALLEST_FRAGMENT: usize = 4 << 10;

/// Where peers on the same host find a segment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SegmentAddress {
    /// Process id of the owner.
    pub pid: u32,
    /// The owner's file descriptor.
    pub fd: i32,
    /// Number of ranks, and so of rings.
    pub ranks: u32,
    /// A random number in the segment's header.
    pub token: [u8; 16],
    /// The token's address in the owner's memory; 0: the owner's memory must not be read.
    pub token_at: u64,
}

/// A segment, this rank's own or a peer's.
pub struct Segment {
    pub(super) map: Mapping,
    ranks: u32,
    /// The owner's memory, if it can be read.
    pub(super) memory: Option<PeerMemory>,
}

impl Segment {
    /// A segment in modeled memory; its owner's memory can be read if `readable`.
    #[cfg(loom)]
    pub(super) fn modeled(ranks: u32, readable: bool) -> Segment {
        let slots = (0..ranks as usize).flat_map(|writer| {
            let ring = HEAD + writer * ring_bytes(ranks);
            (0..SLOTS as usize).map(move |slot| ring + RING_HEAD + slot * (SLOT_HEAD + fragment(ranks)))
        });
        let heads = (0..ranks as usize).map(|writer| HEAD + writer * ring_bytes(ranks));
        let words = heads.flat_map(|head| [head, head + RING_READS]).chain([SLEEPING, WAITS_ON]);
        Segment { map: Mapping::modeled(words, slots), ranks, memory: readable.then_some(PeerMemory) }
    }

    /// Creates this rank's segment, with a ring for each of `ranks` ranks of the host. The file stays open so that
    /// peers can open it; it may be closed once all have.
    ///
    /// # Errors
    /// Not enough memory, or a system without `memfd_create`.
    #[cfg(not(loom))]
    pub fn create(ranks: u32) -> std::io::Result<(Arc<Segment>, OwnedFd, SegmentAddress)> {
        let file = memfd_create("paceline", MemfdFlags::CLOEXEC)?;
        let bytes = size(ranks);
        fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
        let map = Mapping::new(&file, bytes)?;
        let mut token = [0; 16];
        paceline_os::random::fill(&mut token).map_err(std::io::Error::other)?;
        map.write(TOKEN, &token);
        let (pid, fd, token_at) = (id(), file.as_raw_fd(), map.address(TOKEN));
        let address = SegmentAddress { pid, fd, ranks, token, token_at };
        Ok((Arc::new(Segment { map, ranks, memory: None }), file, address))
    }

    /// Opens a peer's segment.
    ///
    /// # Errors
    /// The peer is in another namespace, belongs to another user, or has ended.
    #[cfg(not(loom))]
    pub fn open(address: &SegmentAddress) -> std::io::Result<Arc<Segment>> {
        let file = open_descriptor(address.pid, address.fd, true)?;
        let bytes = size(address.ranks);
        let foreign = || std::io::Error::other("this is not the segment that the rank announced");
        // In another pid namespace, the same numbers may refer to another process and another file.
        if fstat(&file)?.st_size != bytes as i64 {
            return Err(foreign());
        }
        let map = Mapping::new(&file, bytes)?;
        if map.bytes(TOKEN, 16) != address.token {
            return Err(foreign());
        }
        let memory = match address.token_at {
            0 => None,
            token_at => PeerMemory::probe(address.pid, token_at, address.token),
        };
        Ok(Arc::new(Segment { map, ranks: address.ranks, memory }))
    }

    /// 1 while the owner sleeps and must be woken.
    #[must_use]
    pub fn sleeping(&self) -> &AtomicU32 {
        self.map.word(SLEEPING)
    }

    /// The core on which the owner waits, plus 1; 0 while it does not.
    #[must_use]
    pub fn waits_on(&self) -> &AtomicU32 {
        self.map.word(WAITS_ON)
    }

    /// Whether the memory of the owner can be read.
    #[must_use]
    pub fn readable(&self) -> bool {
        self.memory.is_some()
    }

    /// Payload of a slot.
    #[must_use]
    pub fn fragment(&self) -> usize {
        fragment(self.ranks)
    }

    /// Offset of the ring that this rank of the host writes to.
    pub(super) fn ring(&self, writer: u32) -> usize {
        assert!(writer < self.ranks);
        HEAD + writer as usize * ring_bytes(self.ranks)
    }
}

fn fragment(ranks: u32) -> usize {
    let fair = RINGS_BYTES / (ranks.max(1) as usize * SLOTS as usize);
    // A power of two, so that fragments hold whole elements of any type.
    let fair = if fair.is_power_of_two() { fair } else { fair.next_power_of_two() / 2 };
    fair.clamp(SMALLEST_FRAGMENT, LARGEST_FRAGMENT)
}

fn ring_bytes(ranks: u32) -> usize {
    RING_HEAD + SLOTS as usize * (SLOT_HEAD + fragment(ranks))
}

#[cfg(not(loom))]
fn size(ranks: u32) -> usize {
    HEAD + ranks as usize * ring_bytes(ranks)
}
