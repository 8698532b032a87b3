//! The channel to a rank of the same host: a ring of slots in its segment, and one in ours.
//!
//! A slot has a state word: n + 1 once the n-th fragment stands in it. The reader counts what it has given back in the
//! ring's head; the writer looks there only when it believes the ring to be full, or waits for what it has lent. So a
//! fragment costs one transfer of the slot's cache lines, and nothing else is shared.
//!
//! The slot of a lent fragment holds an address instead of a payload. The writer may revoke it until the slot is given
//! back; the reader looks after it has copied, and what it has copied from a revoked fragment does not count: its
//! owner's operation has failed, and the memory may have been anybody's meanwhile.
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::bell::Ringer;
use super::peer::PeerMemory;
use super::segment::{RING_HEAD, RING_READS, SLOT_HEAD, SLOTS, Segment};
use crate::channel::{Channel, Sink, Ticket};
use crate::header::{FragmentHeader, HEADER_BYTES};

/// In a slot's head: behind the state what the fragment is, then the header.
const KIND_AT: usize = 4;
const HEADER_AT: usize = 8;
const INLINE: u32 = 0;
const LENT: u32 = 1;
const REVOKED: u32 = 2;
/// Most bytes of a fragment that is lent: what the reader copies in one go, before it looks at others.
const LARGEST_LENT: usize = crate::channel::LARGEST_FRAGMENT;
/// What is combined is copied in parts of so many bytes, which stay in the cache between.
const PART: usize = 64 << 10;

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
    /// The front's header, decoded once.
    front: Option<FragmentHeader>,
    /// The peer's memory, if it can be read.
    memory: Option<PeerMemory>,
    /// A part of a lent fragment.
    part: Vec<u8>,
}

impl ShmChannel {
    /// `mine` and `theirs` are the numbers of the two ranks on the host.
    #[must_use]
    pub fn new(own: Arc<Segment>, mine: u32, peer: Arc<Segment>, theirs: u32, ringer: Ringer) -> ShmChannel {
        let (outgoing_ring, incoming_ring) = (peer.ring(mine), own.ring(theirs));
        let (fragment, memory) = (own.fragment().min(peer.fragment()), peer.memory);
        own.map.word(incoming_ring + RING_READS).store(u32::from(memory.is_some()), Ordering::Release);
        ShmChannel {
            outgoing: peer,
            outgoing_ring,
            incoming: own,
            incoming_ring,
            peer: ringer,
            fragment,
            written: 0,
            returned: 0,
            read: 0,
            front: None,
            memory,
            part: Vec::new(),
        }
    }

    fn slot(ring: usize, fragment: usize, number: u32) -> usize {
        ring + RING_HEAD + (number % SLOTS) as usize * (SLOT_HEAD + fragment)
    }

    /// The next slot to write, if there is room.
    fn room(&mut self) -> Option<usize> {
        if self.written.wrapping_sub(self.returned) == SLOTS {
            self.look_for_returns();
        }
        let room = self.written.wrapping_sub(self.returned) < SLOTS;
        room.then(|| Self::slot(self.outgoing_ring, self.fragment, self.written))
    }

    fn look_for_returns(&mut self) {
        self.returned = self.outgoing.map.word(self.outgoing_ring).load(Ordering::Acquire);
    }

    fn publish(&mut self, slot: usize, header: &FragmentHeader, kind: u32, payload: &[u8]) {
        self.outgoing.map.write(slot + SLOT_HEAD, payload);
        self.outgoing.map.write(slot + HEADER_AT, &header.encode());
        self.outgoing.map.word(slot + KIND_AT).store(kind, Ordering::Relaxed);
        self.written = self.written.wrapping_add(1);
        self.outgoing.map.word(slot).store(self.written, Ordering::Release);
        self.peer.ring();
    }

    /// The front's slot is the writer's again. `waited_for`: the writer may sleep until then.
    fn give_back(&mut self, waited_for: bool) {
        self.front = None;
        // A writer that sleeps for want of room has filled the last slot; one that has lent waits for its return.
        let last = Self::slot(self.incoming_ring, self.fragment, self.read.wrapping_add(SLOTS - 1));
        let full = self.incoming.map.word(last).load(Ordering::Relaxed) == self.read.wrapping_add(SLOTS);
        self.read = self.read.wrapping_add(1);
        self.incoming.map.word(self.incoming_ring).store(self.read, Ordering::Release);
        if full || waited_for {
            self.peer.ring();
        }
    }

    /// Hands over the fragment that stands in the slot.
    fn show(&self, slot: usize, bytes: usize, sink: Sink<'_>) -> bool {
        let payload = self.incoming.map.bytes(slot + SLOT_HEAD, bytes);
        match sink {
            Sink::Into(to) => paceline_kernels::reduce::copy(to, payload),
            Sink::Show(show) => show(0, payload),
            Sink::Drop => {}
        }
        true
    }

    /// Copies a lent fragment; `false` if it was revoked.
    fn fetch(&mut self, slot: usize, bytes: usize, sink: Sink<'_>) -> io::Result<bool> {
        let kind = self.incoming.map.word(slot + KIND_AT);
        if kind.load(Ordering::Acquire) == REVOKED && !matches!(sink, Sink::Drop) {
            return Ok(false);
        }
        let memory = self.memory.ok_or_else(|| io::Error::other("the peer lends memory that cannot be read"))?;
        let address = self.incoming.map.bytes(slot + SLOT_HEAD, size_of::<u64>());
        let address = address.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
        let copied = match sink {
            Sink::Into(to) => memory.read(address, to),
            Sink::Show(show) => {
                self.part.resize(PART, 0);
                (0..bytes).step_by(PART).try_for_each(|at| {
                    let part = &mut self.part[..PART.min(bytes - at)];
                    memory.read(address + at as u64, part)?;
                    show(at, part);
                    Ok(())
                })
            }
            Sink::Drop => return Ok(true),
        };
        // What was read is no newer than this: the owner revokes before it uses the memory again.
        fence(Ordering::SeqCst);
        let revoked = kind.load(Ordering::Acquire) == REVOKED;
        match copied {
            _ if revoked => Ok(false),
            Ok(()) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl Drop for ShmChannel {
    /// However a connection ends: what the peer has not read yet it must not count.
    fn drop(&mut self) {
        self.look_for_returns();
        let out = self.written.wrapping_sub(self.returned).min(SLOTS);
        for number in (0..out).map(|back| self.written.wrapping_sub(1 + back)) {
            let slot = Self::slot(self.outgoing_ring, self.fragment, number);
            let kind = self.outgoing.map.word(slot + KIND_AT);
            let _ = kind.compare_exchange(LENT, REVOKED, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
}

impl Channel for ShmChannel {
    fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool> {
        assert!(payload.len() <= self.fragment);
        let Some(slot) = self.room() else { return Ok(false) };
        self.publish(slot, header, INLINE, payload);
        Ok(true)
    }

    fn lends(&self) -> usize {
        let reads = self.outgoing.map.word(self.outgoing_ring + RING_READS).load(Ordering::Acquire);
        if reads == 1 { LARGEST_LENT } else { 0 }
    }

    fn lend(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<Option<Ticket>> {
        assert!(payload.len() <= LARGEST_LENT);
        let Some(slot) = self.room() else { return Ok(None) };
        let ticket = Ticket(self.written);
        self.publish(slot, header, LENT, &(payload.as_ptr() as u64).to_le_bytes());
        Ok(Some(ticket))
    }

    fn returned(&mut self, ticket: Ticket) -> bool {
        // Fewer than `SLOTS` are not given back: what is not among those before `written` is.
        let out = |returned: u32, written: u32| ticket.0.wrapping_sub(returned) < written.wrapping_sub(returned);
        if out(self.returned, self.written) {
            self.look_for_returns();
        }
        !out(self.returned, self.written)
    }

    fn revoke(&mut self, ticket: Ticket) {
        if !self.returned(ticket) {
            let slot = Self::slot(self.outgoing_ring, self.fragment, ticket.0);
            self.outgoing.map.word(slot + KIND_AT).store(REVOKED, Ordering::SeqCst);
        }
    }

    fn front(&mut self) -> io::Result<Option<FragmentHeader>> {
        // What was revoked nobody gets, and it must not keep others from what stands behind it.
        let kind = |slot: usize| self.incoming.map.word(slot + KIND_AT).load(Ordering::Relaxed);
        let slot = Self::slot(self.incoming_ring, self.fragment, self.read);
        let here = |slot: usize| self.incoming.map.word(slot).load(Ordering::Acquire) == self.read.wrapping_add(1);
        if here(slot) && kind(slot) == REVOKED {
            self.give_back(true);
            return self.front();
        }
        if self.front.is_none() {
            if !here(slot) {
                return Ok(None);
            }
            let most = if kind(slot) == INLINE { self.fragment } else { LARGEST_LENT };
            let mut bytes = [0; HEADER_BYTES];
            bytes.copy_from_slice(self.incoming.map.bytes(slot + HEADER_AT, HEADER_BYTES));
            let header = FragmentHeader::decode(&bytes).filter(|header| header.bytes as usize <= most);
            self.front = Some(header.ok_or_else(|| io::Error::other("shared memory holds what is no fragment"))?);
        }
        Ok(self.front)
    }

    fn take(&mut self, sink: Sink<'_>) -> io::Result<bool> {
        let Some(header) = self.front else { return Ok(false) };
        let slot = Self::slot(self.incoming_ring, self.fragment, self.read);
        let inline = self.incoming.map.word(slot + KIND_AT).load(Ordering::Relaxed) == INLINE;
        let taken = if inline {
            self.show(slot, header.bytes as usize, sink)
        } else {
            self.fetch(slot, header.bytes as usize, sink)?
        };
        if taken {
            self.give_back(!inline);
        }
        Ok(taken)
    }

    fn fragment(&self) -> usize {
        self.fragment
    }

    fn name(&self) -> &'static str {
        "shm"
    }
}
