//! Messages in flight, by rank, each in a buffer of its own that nobody else looks at while UCX may.
//!
//! A message is a fragment preceded by its header. Sends are synchronous: each completes when a receive has matched it. So
//! a slow rank holds back its senders, and nothing piles up in UCX's memory. Receives of a rank complete in any order, but
//! match in the order of their slots.
use std::io;
use std::time::{Duration, Instant};

use super::calls::{Called, Endpoint, Request, Worker};
use paceline_transport::channel::Sink;
use paceline_transport::header::{FragmentHeader, HEADER_BYTES};

/// Payload of a fragment: as over TCP and MPI.
pub(super) const FRAGMENT: usize = 128 << 10;
/// Most and least messages in flight to and from a rank.
const MOST_DEPTH: usize = 8;
const LEAST_DEPTH: usize = 2;
/// Most bytes for the buffers of all receives when there are many ranks.
const BUFFERS: usize = 256 << 20;
/// How long the end may take: what is on its way, then canceled receives.
const ENDING: Duration = Duration::from_secs(1);
/// The first message of each rank.
const GREETING: [u8; 8] = *b"paceline";

/// A buffer, and the operation of UCX on it.
struct Slot {
    buffer: Box<[u8]>,
    request: Option<Request>,
    /// Of a receive that is complete: its bytes.
    came: Option<usize>,
}

impl Slot {
    fn new() -> Slot {
        // The system allocates only pages that are used.
        Slot { buffer: vec![0; HEADER_BYTES + FRAGMENT].into_boxed_slice(), request: None, came: None }
    }
}

/// Messages to and from one rank.
struct PeerMessages {
    endpoint: Endpoint,
    /// Tags of what is sent and received.
    tags: (u64, u64),
    outgoing: Vec<Slot>,
    incoming: Vec<Slot>,
    /// Fragments sent and taken so far; modulo the depth, the slot of the next one.
    sent: usize,
    taken: usize,
    front: Option<FragmentHeader>,
    /// The last fragment found no room.
    refused: bool,
    lost: Option<String>,
}

/// Messages to and from all ranks.
pub(super) struct Messages {
    worker: Worker,
    peers: Vec<Option<PeerMessages>>,
    /// The rank that looked last: each turn looks at the ranks in order, and lets UCX work once.
    looked: usize,
    armed: bool,
}

fn broken(why: &str) -> io::Error {
    io::Error::other(why)
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer sent an invalid fragment")
}

impl PeerMessages {
    /// Whether the next message is there.
    fn arrived(&mut self, worker: &mut Worker) -> bool {
        let place = self.taken % self.incoming.len();
        let slot = &mut self.incoming[place];
        let tested = slot.request.and_then(|request| worker.test_receive(request));
        match tested {
            None => {}
            Some(Ok(bytes)) => (slot.request, slot.came) = (None, Some(bytes)),
            Some(Err(why)) => {
                slot.request = None;
                self.lost.get_or_insert(why);
            }
        }
        slot.came.is_some()
    }

    /// Whether an outgoing slot is free.
    fn is_idle(&mut self, worker: &mut Worker, place: usize) -> bool {
        let slot = &mut self.outgoing[place];
        let Some(request) = slot.request else { return true };
        let tested = worker.test(request);
        if let Some(Err(why)) = &tested {
            self.lost.get_or_insert_with(|| why.clone());
        }
        if tested.is_some() {
            slot.request = None;
        }
        slot.request.is_none()
    }

    fn all_idle(&mut self, worker: &mut Worker) -> bool {
        // Each is tested: those that are complete are freed.
        (0..self.outgoing.len()).filter(|&place| !self.is_idle(worker, place)).count() == 0
    }

    fn note_loss(&mut self, worker: &Worker) {
        if let Some(status) = self.endpoint.lost()
            && self.lost.is_none()
        {
            self.lost = Some(worker.text(status));
        }
    }

    /// Whether anything can be sent. Who sent something and then left has done its part: a loss is an error only when
    /// nothing is left to read.
    ///
    /// # Errors
    /// The connection is lost.
    fn takes(&mut self, worker: &mut Worker) -> io::Result<bool> {
        match self.lost.clone() {
            None => Ok(true),
            Some(_) if self.front.is_some() || self.arrived(worker) => Ok(false),
            Some(why) => Err(broken(&why)),
        }
    }

    fn post(&mut self, worker: &mut Worker, place: usize) -> Called<()> {
        #![allow(unsafe_code, reason = "UCX is given a buffer that stays where it is until UCX is done with it")]
        let slot = &mut self.incoming[place];
        slot.came = None;
        // SAFETY: the buffer is boxed, is read only when its request is complete, and `end` leaks it if that never is.
        slot.request = Some(unsafe { worker.receive(&mut slot.buffer, self.tags.1)? });
        Ok(())
    }

    fn begin_to_send(&mut self, worker: &mut Worker, bytes: usize) -> Called<()> {
        #![allow(unsafe_code, reason = "as in `post`")]
        let place = self.sent % self.outgoing.len();
        let slot = &mut self.outgoing[place];
        // SAFETY: as in `post`; the buffer is written only when no request is on it.
        slot.request = unsafe { worker.send(&self.endpoint, &slot.buffer[..bytes], self.tags.0)? };
        self.sent += 1;
        Ok(())
    }
}

impl Messages {
    pub fn new(worker: Worker, size: usize) -> Messages {
        Messages { worker, peers: (0..size).map(|_| None).collect(), looked: 0, armed: false }
    }

    /// Connects to a rank, posts receives for it and greets it. `tags`: of what is sent and received.
    pub fn connect(&mut self, rank: usize, address: &[u8], tags: (u64, u64)) -> Called<()> {
        let endpoint = self.worker.connect(address)?;
        let depth = (BUFFERS / (HEADER_BYTES + FRAGMENT) / self.peers.len()).clamp(LEAST_DEPTH, MOST_DEPTH);
        let slots = || (0..depth).map(|_| Slot::new()).collect();
        let (outgoing, incoming) = (slots(), slots());
        let (sent, taken, front, refused, lost) = (0, 0, None, false, None);
        let made = PeerMessages { endpoint, tags, outgoing, incoming, sent, taken, front, refused, lost };
        // Kept from here on, so that what fails halfway is ended in good order.
        let peer = self.peers[rank].insert(made);
        for place in 0..depth {
            peer.post(&mut self.worker, place)?;
        }
        peer.outgoing[0].buffer[..GREETING.len()].copy_from_slice(&GREETING);
        peer.begin_to_send(&mut self.worker, GREETING.len())
    }

    /// Takes greetings that have arrived; returns the ranks that have not greeted, or not taken ours.
    ///
    /// # Errors
    /// A rank that cannot be reached, and why.
    pub fn greeted(&mut self) -> Result<Vec<u32>, (u32, String)> {
        self.worker.progress();
        let mut missing = Vec::new();
        for (rank, peer) in (0..).zip(&mut self.peers) {
            let Some(peer) = peer else { continue };
            if peer.taken == 0 && peer.arrived(&mut self.worker) {
                let slot = &peer.incoming[0];
                if slot.came != Some(GREETING.len()) || slot.buffer[..GREETING.len()] != GREETING {
                    return Err((rank, "it did not greet".into()));
                }
                peer.taken = 1;
                peer.post(&mut self.worker, 0).map_err(|why| (rank, why))?;
            }
            let taken = peer.all_idle(&mut self.worker);
            peer.note_loss(&self.worker);
            if let Some(why) = &peer.lost {
                return Err((rank, why.clone()));
            }
            if peer.taken == 0 || !taken {
                missing.push(rank);
            }
        }
        Ok(missing)
    }

    /// By rank, the transports that carry its messages; empty for this rank, and where UCX does not say.
    pub fn transports(&mut self) -> Vec<Vec<String>> {
        let Messages { worker, peers, .. } = self;
        peers.iter().map(|peer| peer.as_ref().map_or(Vec::new(), |peer| worker.transports(&peer.endpoint))).collect()
    }

    fn progress(&mut self) {
        self.armed = false;
        self.worker.progress();
    }

    fn peer(&mut self, rank: usize) -> io::Result<(&mut PeerMessages, &mut Worker)> {
        let peer = self.peers[rank].as_mut().ok_or_else(|| broken("it is not connected"))?;
        peer.note_loss(&self.worker);
        Ok((peer, &mut self.worker))
    }

    pub fn send(&mut self, rank: usize, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool> {
        let (peer, worker) = self.peer(rank)?;
        let place = peer.sent % peer.outgoing.len();
        peer.refused = !peer.is_idle(worker, place);
        if !peer.takes(worker)? || peer.refused {
            return Ok(false);
        }
        let bytes = HEADER_BYTES + payload.len();
        let message = &mut peer.outgoing[place].buffer[..bytes];
        message[..HEADER_BYTES].copy_from_slice(&header.encode());
        message[HEADER_BYTES..].copy_from_slice(payload);
        peer.begin_to_send(worker, bytes).map_err(|why| broken(&why))?;
        Ok(true)
    }

    /// Whether the rank has received everything.
    pub fn flushed(&mut self, rank: usize) -> io::Result<bool> {
        let (peer, worker) = self.peer(rank)?;
        let all = peer.all_idle(worker);
        Ok(peer.takes(worker)? && all)
    }

    pub fn front(&mut self, rank: usize) -> io::Result<Option<FragmentHeader>> {
        if rank <= self.looked {
            self.progress();
        }
        self.looked = rank;
        let (peer, worker) = self.peer(rank)?;
        if peer.front.is_some() {
            return Ok(peer.front);
        }
        if !peer.arrived(worker) {
            return peer.takes(worker).map(|_| None);
        }
        let slot = &peer.incoming[peer.taken % peer.incoming.len()];
        let header = slot.buffer.first_chunk().and_then(FragmentHeader::decode);
        let header = header.filter(|header| slot.came == Some(HEADER_BYTES + header.bytes as usize));
        peer.front = Some(header.ok_or_else(invalid)?);
        Ok(peer.front)
    }

    pub fn take(&mut self, rank: usize, sink: Sink<'_>) -> io::Result<bool> {
        let (peer, worker) = self.peer(rank)?;
        let Some(header) = peer.front.take() else { return Ok(false) };
        let place = peer.taken % peer.incoming.len();
        let payload = &peer.incoming[place].buffer[HEADER_BYTES..HEADER_BYTES + header.bytes as usize];
        match sink {
            Sink::Into(to) => to.copy_from_slice(payload),
            Sink::Show(show) => show(0, payload),
            Sink::Drop => {}
        }
        peer.taken += 1;
        if peer.lost.is_none() {
            peer.post(worker, place).map_err(|why| broken(&why))?;
        } else {
            peer.incoming[place].came = None;
        }
        Ok(true)
    }

    /// Prepares for sleep until UCX's descriptor is readable; `false`: there is something to do for this rank already.
    pub fn about_to_sleep(&mut self, rank: usize, blocked: bool) -> bool {
        let Some(peer) = &mut self.peers[rank] else { return true };
        let arrives = !blocked && peer.front.is_none() && peer.arrived(&mut self.worker);
        let place = peer.sent % peer.outgoing.len();
        let room = peer.refused && peer.is_idle(&mut self.worker, place);
        if arrives || room {
            return false;
        }
        // Whatever arrives from now on makes the descriptor readable, for all ranks.
        self.armed = self.armed || self.worker.arm();
        self.armed
    }

    /// Ends all connections. What UCX may still access is left to it.
    pub fn end(self) {
        let Messages { mut worker, mut peers, .. } = self;
        let mut all: Vec<&mut PeerMessages> = peers.iter_mut().flatten().collect();
        let mut closing = Vec::new();
        let until = Instant::now() + ENDING;
        while Instant::now() < until && !all.iter_mut().all(|peer| peer.lost.is_some() || peer.all_idle(&mut worker)) {
            worker.progress();
            all.iter_mut().for_each(|peer| peer.note_loss(&worker));
        }
        for peer in &mut all {
            for request in peer.incoming.iter().filter_map(|slot| slot.request) {
                worker.cancel(request);
            }
            let at_once = peer.lost.is_some() || !peer.all_idle(&mut worker);
            closing.extend(worker.close(&peer.endpoint, at_once).ok().flatten());
        }
        let until = Instant::now() + ENDING;
        loop {
            worker.progress();
            closing.retain(|&request| worker.test(request).is_none());
            let mut idle = true;
            for peer in &mut all {
                idle &= peer.all_idle(&mut worker);
                for slot in peer.incoming.iter_mut().filter(|slot| slot.request.is_some()) {
                    if slot.request.and_then(|request| worker.test_receive(request)).is_some() {
                        slot.request = None;
                    }
                    idle &= slot.request.is_none();
                }
            }
            if idle && closing.is_empty() {
                worker.destroy();
                return;
            }
            if Instant::now() > until {
                std::mem::forget((worker, peers));
                return;
            }
        }
    }
}
