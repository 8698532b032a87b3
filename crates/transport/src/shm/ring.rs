//! The channel to a rank of the same host: a ring of slots in its segment, and one in ours.
//!
//! A slot has a state word: n + 1 once it holds the n-th fragment. The reader counts released slots in the head of the ring;
//! the writer reads that count only when the ring seems full or a zero-copy send is pending. So a fragment costs one transfer
//! of the slot's cache lines, and nothing else is shared.
//!
//! For a zero-copy send, the slot holds an address instead of a payload. The writer may cancel it until the slot is
//! released. The reader checks for that after copying and discards what it copied from a canceled fragment: the operation of
//! the owner has failed, and the memory may have been reused.
use std::io;

use paceline_os::sync::Arc;
use paceline_os::sync::atomic::{Ordering, fence};

use super::peer::PeerMemory;
use super::segment::{RING_HEAD, RING_READS, SLOT_HEAD, SLOTS, Segment};
use super::waker::PeerWaker;
use crate::channel::{Channel, SendTicket, Sink};
use crate::header::{FragmentHeader, HEADER_BYTES};

/// Layout of a slot: the state, the kind of fragment, the header.
const KIND_AT: usize = 4;
const HEADER_AT: usize = 8;
const INLINE: u32 = 0;
const ZERO_COPY: u32 = 1;
const CANCELED: u32 = 2;
/// Largest zero-copy send: the reader copies it in one go, before it serves other channels.
const LARGEST_ZERO_COPY: usize = crate::channel::LARGEST_FRAGMENT;
/// Payloads to combine are copied in parts of this size, which stay in the cache in between.
const PART: usize = 64 << 10;

/// Both directions between this rank and a peer on the host.
pub struct ShmChannel {
    outgoing: Arc<Segment>,
    outgoing_ring: usize,
    incoming: Arc<Segment>,
    incoming_ring: usize,
    peer: PeerWaker,
    fragment: usize,
    /// Fragments written, and how many of them are known to be released.
    written: u32,
    released: u32,
    /// Fragments read.
    read: u32,
    /// Header of the fragment at the front, decoded once.
    front: Option<FragmentHeader>,
    /// The peer's memory, if it can be read.
    memory: Option<PeerMemory>,
    /// Buffer for a part of a zero-copy fragment.
    part: Vec<u8>,
}

impl ShmChannel {
    /// `mine` and `theirs` are the indices of the two ranks on the host.
    #[must_use]
    pub fn new(own: Arc<Segment>, mine: u32, peer: Arc<Segment>, theirs: u32, peer_waker: PeerWaker) -> ShmChannel {
        let (outgoing_ring, incoming_ring) = (peer.ring(mine), own.ring(theirs));
        let (fragment, memory) = (own.fragment().min(peer.fragment()), peer.memory);
        own.map.word(incoming_ring + RING_READS).store(u32::from(memory.is_some()), Ordering::Release);
        ShmChannel {
            outgoing: peer,
            outgoing_ring,
            incoming: own,
            incoming_ring,
            peer: peer_waker,
            fragment,
            written: 0,
            released: 0,
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
        if self.written.wrapping_sub(self.released) == SLOTS {
            self.read_released();
        }
        if self.written.wrapping_sub(self.released) == SLOTS {
            paceline_os::reached!("shm: ring full");
        }
        let room = self.written.wrapping_sub(self.released) < SLOTS;
        room.then(|| Self::slot(self.outgoing_ring, self.fragment, self.written))
    }

    fn read_released(&mut self) {
        self.released = self.outgoing.map.word(self.outgoing_ring).load(Ordering::Acquire);
    }

    fn publish(&mut self, slot: usize, header: &FragmentHeader, kind: u32, payload: &[u8]) {
        self.outgoing.map.write(slot + SLOT_HEAD, payload);
        self.outgoing.map.write(slot + HEADER_AT, &header.encode());
        self.outgoing.map.word(slot + KIND_AT).store(kind, Ordering::Relaxed);
        self.written = self.written.wrapping_add(1);
        self.outgoing.map.word(slot).store(self.written, Ordering::Release);
        self.peer.wake();
    }

    /// Releases the front slot to the writer. `waited_for`: the writer may be sleeping until then.
    fn release(&mut self, waited_for: bool) {
        self.front = None;
        let last = Self::slot(self.incoming_ring, self.fragment, self.read.wrapping_add(SLOTS - 1));
        self.read = self.read.wrapping_add(1);
        self.incoming.map.word(self.incoming_ring).store(self.read, Ordering::Release);
        // A writer that sleeps for lack of room has filled the last slot; one with a zero-copy send waits for its own
        // slot. The writer fills the slot, then looks for room; here it is the other way round, so one of the two sees
        // the other's step.
        fence(Ordering::SeqCst);
        let full = self.incoming.map.word(last).load(Ordering::Relaxed) == self.read.wrapping_add(SLOTS - 1);
        if full || waited_for {
            self.peer.wake();
        }
    }

    /// Delivers a fragment whose payload is in the slot.
    fn show(&self, slot: usize, bytes: usize, sink: Sink<'_>) -> bool {
        let payload = self.incoming.map.bytes(slot + SLOT_HEAD, bytes);
        match sink {
            Sink::Into(to) => paceline_kernels::reduce::copy(to, payload),
            Sink::Show(show) => show(0, payload),
            Sink::Drop => {}
        }
        true
    }

    /// Copies a zero-copy fragment from the peer; `false` if it was canceled.
    fn fetch(&mut self, slot: usize, bytes: usize, sink: Sink<'_>) -> io::Result<bool> {
        let kind = self.incoming.map.word(slot + KIND_AT);
        if kind.load(Ordering::Acquire) == CANCELED && !matches!(sink, Sink::Drop) {
            return Ok(false);
        }
        let memory = self.memory.ok_or_else(|| io::Error::other("the peer offers memory that cannot be read"))?;
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
        // The copy is older than this check, and the owner cancels before it reuses the memory.
        fence(Ordering::SeqCst);
        let canceled = kind.load(Ordering::Acquire) == CANCELED;
        match copied {
            _ if canceled => {
                paceline_os::reached!("shm: send canceled while it was read");
                Ok(false)
            }
            Ok(()) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl Drop for ShmChannel {
    /// Cancels pending sends, however the connection ends: the peer must not use fragments whose memory may be freed.
    fn drop(&mut self) {
        self.read_released();
        let out = self.written.wrapping_sub(self.released).min(SLOTS);
        for number in (0..out).map(|back| self.written.wrapping_sub(1 + back)) {
            let slot = Self::slot(self.outgoing_ring, self.fragment, number);
            let kind = self.outgoing.map.word(slot + KIND_AT);
            let _ = kind.compare_exchange(ZERO_COPY, CANCELED, Ordering::SeqCst, Ordering::Relaxed);
        }
        // As in `cancel`.
        fence(Ordering::SeqCst);
    }
}

impl Channel for ShmChannel {
    fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool> {
        assert!(payload.len() <= self.fragment);
        let Some(slot) = self.room() else { return Ok(false) };
        self.publish(slot, header, INLINE, payload);
        Ok(true)
    }

    fn zero_copy_limit(&self) -> usize {
        let reads = self.outgoing.map.word(self.outgoing_ring + RING_READS).load(Ordering::Acquire);
        if reads == 1 { LARGEST_ZERO_COPY } else { 0 }
    }

    fn send_zero_copy(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<Option<SendTicket>> {
        assert!(payload.len() <= LARGEST_ZERO_COPY);
        let Some(slot) = self.room() else { return Ok(None) };
        let ticket = SendTicket(self.written);
        self.publish(slot, header, ZERO_COPY, &(payload.as_ptr() as u64).to_le_bytes());
        Ok(Some(ticket))
    }

    fn is_complete(&mut self, ticket: SendTicket) -> bool {
        // At most `SLOTS` fragments are outstanding: those just before `written`. All others are complete.
        let out = |released: u32, written: u32| ticket.0.wrapping_sub(released) < written.wrapping_sub(released);
        if out(self.released, self.written) {
            self.read_released();
        }
        !out(self.released, self.written)
    }

    fn cancel(&mut self, ticket: SendTicket) {
        if !self.is_complete(ticket) {
            let slot = Self::slot(self.outgoing_ring, self.fragment, ticket.0);
            self.outgoing.map.word(slot + KIND_AT).store(CANCELED, Ordering::SeqCst);
            // What the caller now writes to its memory must not be seen before that.
            fence(Ordering::SeqCst);
        }
    }

    fn front(&mut self) -> io::Result<Option<FragmentHeader>> {
        // Canceled fragments are skipped, so that they do not block the ones behind them.
        let kind = |slot: usize| self.incoming.map.word(slot + KIND_AT).load(Ordering::Relaxed);
        let slot = Self::slot(self.incoming_ring, self.fragment, self.read);
        let here = |slot: usize| self.incoming.map.word(slot).load(Ordering::Acquire) == self.read.wrapping_add(1);
        if here(slot) && kind(slot) == CANCELED {
            paceline_os::reached!("shm: canceled send skipped");
            self.release(true);
            return self.front();
        }
        if self.front.is_none() {
            if !here(slot) {
                return Ok(None);
            }
            let most = if kind(slot) == INLINE { self.fragment } else { LARGEST_ZERO_COPY };
            let mut bytes = [0; HEADER_BYTES];
            bytes.copy_from_slice(self.incoming.map.bytes(slot + HEADER_AT, HEADER_BYTES));
            let header = FragmentHeader::decode(&bytes).filter(|header| header.bytes as usize <= most);
            self.front = Some(header.ok_or_else(|| io::Error::other("shared memory holds an invalid fragment"))?);
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
            self.release(!inline);
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
