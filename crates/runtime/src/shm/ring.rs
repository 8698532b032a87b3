//! The channel to a rank of the same host: a ring of slots in its segment, and one in ours.
//!
//! A slot has a state word: n + 1 once the n-th fragment stands in it. The reader counts what it has given back in the
//! ring's head; the writer looks there only when it believes the ring to be full. So a fragment costs one transfer of
//! the slot's cache lines, and nothing else is shared.
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bell::Ringer;
use super::segment::{RING_HEAD, SLOT_HEAD, SLOTS, Segment};
use crate::channel::{Channel, Sink};
use crate::tag::{TAG_BYTES, Tag};

const TAG_AT: usize = 8;

/// Both directions between this rank and a peer on the host.
pub struct ShmChannel {
    outgoing: Arc<Segment>,
    outgoing_ring: usize,
    incoming: Arc<Segment>,
    incoming_ring: usize,
    peer: Ringer,
    fragment: usize,
    /// Fragments written, and how many of them are known to be given back.
    written: u32,
    returned: u32,
    /// Fragments read.
    read: u32,
    /// The front's tag, decoded once.
    front: Option<Tag>,
}

impl ShmChannel {
    /// `mine` and `theirs` are the numbers of the two ranks on the host.
    #[must_use]
    pub fn new(own: Arc<Segment>, mine: u32, peer: Arc<Segment>, theirs: u32, ringer: Ringer) -> ShmChannel {
        ShmChannel {
            outgoing_ring: peer.ring(mine),
            incoming_ring: own.ring(theirs),
            fragment: own.fragment().min(peer.fragment()),
            outgoing: peer,
            incoming: own,
            peer: ringer,
            written: 0,
            returned: 0,
            read: 0,
            front: None,
        }
    }

    fn slot(ring: usize, fragment: usize, number: u32) -> usize {
        ring + RING_HEAD + (number % SLOTS) as usize * (SLOT_HEAD + fragment)
    }
}

impl Channel for ShmChannel {
    fn send(&mut self, tag: &Tag, payload: &[u8]) -> io::Result<bool> {
        if self.written.wrapping_sub(self.returned) == SLOTS {
            self.returned = self.outgoing.map.word(self.outgoing_ring).load(Ordering::Acquire);
            if self.written.wrapping_sub(self.returned) == SLOTS {
                return Ok(false);
            }
        }
        assert!(payload.len() <= self.fragment);
        let slot = Self::slot(self.outgoing_ring, self.fragment, self.written);
        self.outgoing.map.write(slot + SLOT_HEAD, payload);
        self.outgoing.map.write(slot + TAG_AT, &tag.encode());
        self.written = self.written.wrapping_add(1);
        self.outgoing.map.word(slot).store(self.written, Ordering::Release);
        self.peer.ring();
        Ok(true)
    }

    fn front(&mut self) -> io::Result<Option<Tag>> {
        if self.front.is_none() {
            let slot = Self::slot(self.incoming_ring, self.fragment, self.read);
            if self.incoming.map.word(slot).load(Ordering::Acquire) != self.read.wrapping_add(1) {
                return Ok(None);
            }
            let mut bytes = [0; TAG_BYTES];
            bytes.copy_from_slice(self.incoming.map.bytes(slot + TAG_AT, TAG_BYTES));
            let tag = Tag::decode(&bytes).filter(|tag| tag.bytes as usize <= self.fragment);
            self.front = Some(tag.ok_or_else(|| io::Error::other("shared memory holds what is no fragment"))?);
        }
        Ok(self.front)
    }

    fn take(&mut self, sink: Sink<'_>) -> io::Result<bool> {
        let Some(tag) = self.front.take() else { return Ok(false) };
        let slot = Self::slot(self.incoming_ring, self.fragment, self.read);
        let payload = self.incoming.map.bytes(slot + SLOT_HEAD, tag.bytes as usize);
        match sink {
            Sink::Into(to) => crate::reduce::copy(to, payload),
            Sink::Show(show) => show(payload),
        }
        // A writer that sleeps for want of room has filled the last slot; one that sleeps for another reason stays so.
        let last = Self::slot(self.incoming_ring, self.fragment, self.read.wrapping_add(SLOTS - 1));
        let full = self.incoming.map.word(last).load(Ordering::Relaxed) == self.read.wrapping_add(SLOTS);
        self.read = self.read.wrapping_add(1);
        self.incoming.map.word(self.incoming_ring).store(self.read, Ordering::Release);
        if full {
            self.peer.ring();
        }
        Ok(true)
    }

    fn fragment(&self) -> usize {
        self.fragment
    }

    fn name(&self) -> &'static str {
        "shm"
    }
}
