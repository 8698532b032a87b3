//! Modeled memory of a segment: its words are loom's atomics, and each slot says when it is read while it may be written.
#![allow(unsafe_code, reason = "plain memory behind cells that check who may access it")]
use std::collections::BTreeMap;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU32;

/// Bytes of a slot's header and payload.
const SLOT: usize = 256;

/// Memory of a segment.
pub(in crate::shm) struct Mapping {
    words: BTreeMap<usize, AtomicU32>,
    /// By offset of the slot.
    slots: BTreeMap<usize, UnsafeCell<[u8; SLOT]>>,
}

// SAFETY: as for mapped memory: the protocol of the ring decides who may access a slot, and the cells check it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory with words at these offsets, and slots at those; each begins with two words.
    pub fn modeled(words: impl Iterator<Item = usize>, slots: impl Iterator<Item = usize>) -> Mapping {
        let slots: BTreeMap<_, _> = slots.map(|at| (at, UnsafeCell::new([0; SLOT]))).collect();
        let in_slots = slots.keys().flat_map(|&at| [at, at + 4]);
        let words = words.chain(in_slots).map(|at| (at, AtomicU32::new(0))).collect();
        Mapping { words, slots }
    }

    fn slot(&self, offset: usize, len: usize) -> (&UnsafeCell<[u8; SLOT]>, usize) {
        let (start, slot) = self.slots.range(..=offset).next_back().expect("the offset of a slot");
        assert!(offset - start + len <= SLOT);
        (slot, offset - start)
    }

    pub fn word(&self, offset: usize) -> &AtomicU32 {
        &self.words[&offset]
    }

    pub fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        let (slot, at) = self.slot(offset, len);
        // SAFETY: inside the slot; the cell has just checked that nobody writes.
        slot.with(|bytes| unsafe { std::slice::from_raw_parts(bytes.cast::<u8>().add(at), len) })
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let (slot, at) = self.slot(offset, bytes.len());
        // SAFETY: as in `bytes`.
        slot.with_mut(|to| unsafe { to.cast::<u8>().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) });
    }
}
