//! A job's messages over MPI: for each other rank, a few receives that are always posted and as many sends.
//!
//! A message is a fragment preceded by its header. Sends are synchronous (`MPI_Issend`): each completes when a receive
//! has matched it. So a slow rank holds back its senders, and nothing piles up in the library's memory, as it would
//! with small messages that are sent eagerly. And when all sends have completed, everything has arrived.
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::abi::Handle;
use super::calls::Mpi;
use super::channel::MpiChannel;
use super::collective::{Collectives, abandoned};
use super::requests::Requests;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_transport::channel::{Channel, Sink};
use paceline_transport::header::{FragmentHeader, HEADER_BYTES};
use paceline_transport::offload::{DeviceCall, Offload, OffloadTicket};
use paceline_transport::space::Space;

/// Payload of a fragment: as over TCP. Larger ones are not faster, and smaller ones need more handshakes.
pub(super) const FRAGMENT: usize = 128 << 10;
/// Most and least messages in flight to and from a rank.
const MOST_DEPTH: usize = 8;
const LEAST_DEPTH: usize = 2;
/// Most bytes for the buffers of all receives when there are many ranks.
const BUFFERS: usize = 256 << 20;
/// An idle thread sleeps for this fraction of the time since the last message, so that it delays the next by no more
/// than that fraction; at most for the last constant, at which polling takes less than a hundredth of a core.
const NAP_PART: u32 = 8;
const LEAST_NAP: Duration = Duration::from_micros(50);
const MOST_NAP: Duration = Duration::from_millis(2);
/// How long canceled receives may take to complete.
const CANCELS: Duration = Duration::from_secs(1);

/// Messages that have arrived, in the order of their slots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    Nothing,
    Bytes(usize),
}

/// Messages to and from one rank.
struct PeerMessages {
    /// Fragments sent and taken so far; modulo the depth, the slot of the next one.
    sent: usize,
    taken: usize,
    came: Vec<Came>,
    front: Option<FragmentHeader>,
    lost: Option<String>,
    under_way: usize,
}

/// Messages to and from all ranks, shared by the channels and the port. Only the MPI thread locks it.
pub(super) struct Messages {
    requests: Requests,
    depth: usize,
    me: usize,
    peers: Vec<PeerMessages>,
}

/// This process's end of a job's messages.
pub struct Port {
    messages: Arc<Mutex<Messages>>,
    collectives: Collectives,
    mpi: Arc<Mpi>,
    comm: Handle,
    /// When a message last arrived or completed.
    since: Instant,
}

fn broken(why: &str) -> io::Error {
    io::Error::other(why)
}

impl Port {
    /// For a job of all MPI ranks. Collective.
    pub(super) fn open(mpi: &Arc<Mpi>) -> Result<Port, String> {
        let (me, size) = mpi.place()?;
        let comm = mpi.duplicate(mpi.world())?;
        let bytes = HEADER_BYTES + FRAGMENT;
        let depth = (BUFFERS / bytes / size as usize).clamp(LEAST_DEPTH, MOST_DEPTH);
        let requests = Requests::new(mpi, comm, 2 * depth * size as usize, bytes);
        let came = vec![Came::Nothing; depth];
        let peer = || PeerMessages { sent: 0, taken: 0, came: came.clone(), front: None, lost: None, under_way: 0 };
        let peers = (0..size).map(|_| peer()).collect();
        let mut messages = Messages { requests, depth, me: me as usize, peers };
        for rank in (0..size as usize).filter(|&rank| rank != me as usize) {
            for place in 0..depth {
                messages.post(rank, place)?;
            }
        }
        let messages = Arc::new(Mutex::new(messages));
        Ok(Port { messages, collectives: Collectives::new(mpi), mpi: mpi.clone(), comm, since: Instant::now() })
    }

    /// The channel to a rank.
    #[must_use]
    pub fn channel(&self, rank: u32) -> Box<dyn Channel> {
        Box::new(MpiChannel { messages: self.messages.clone(), rank: rank as usize })
    }
}

impl Offload for Port {
    fn progress(&mut self) -> bool {
        if abandoned() {
            return false;
        }
        let any = self.messages.lock().test();
        if any {
            self.since = Instant::now();
        }
        any
    }

    fn nap(&self) -> Duration {
        (self.since.elapsed() / NAP_PART).clamp(LEAST_NAP, MOST_NAP)
    }

    fn join(&mut self, group: u32, ranks: &[u32], duplicates: usize) -> Result<(), String> {
        self.collectives.join(self.comm, group, ranks, duplicates)
    }

    fn inherit(&mut self, from: u32, to: u32) {
        self.collectives.inherit(from, to);
    }

    fn part(&mut self, group: u32) {
        self.collectives.part(group);
    }

    fn all_reduce(&mut self, group: u32, kind: (Dtype, ReduceOp), space: &mut Space) -> Result<OffloadTicket, String> {
        self.since = Instant::now();
        self.collectives.begin(group, kind, space)
    }

    fn on_device(&mut self, group: u32, call: &DeviceCall) -> Result<OffloadTicket, String> {
        self.since = Instant::now();
        self.collectives.begin_on_device(group, call)
    }

    fn done(&mut self, ticket: &OffloadTicket, space: &mut Space) -> Result<bool, String> {
        self.collectives.over(ticket, space)
    }

    /// MPI cannot cancel it: from now on MPI is not called, so that it does not access the caller's memory.
    fn abandon(&mut self, ticket: &OffloadTicket) {
        self.collectives.abandon(ticket);
        let mut messages = self.messages.lock();
        for peer in &mut messages.peers {
            peer.lost.get_or_insert_with(|| "a collective of the MPI library was abandoned".into());
        }
    }

    /// Cancels receives and frees communicators. Anything that may still be in flight is leaked.
    fn close(self: Box<Self>) -> bool {
        let Port { messages, collectives, mpi, comm, .. } = *self;
        if abandoned() {
            return false;
        }
        let mut messages = messages.lock();
        messages.cancel();
        let until = Instant::now() + CANCELS;
        while messages.requests.any() && Instant::now() < until {
            messages.requests.test(|_, _| {});
        }
        let whole = !messages.requests.any() && messages.peers.iter().all(|peer| peer.lost.is_none());
        if whole {
            collectives.close();
            mpi.free(comm);
        }
        whole
    }
}

impl Messages {
    /// The request that receives into a slot.
    fn incoming(&self, rank: usize, place: usize) -> usize {
        2 * self.depth * rank + place
    }

    fn outgoing(&self, rank: usize, place: usize) -> usize {
        2 * self.depth * rank + self.depth + place
    }

    fn post(&mut self, rank: usize, place: usize) -> Result<(), String> {
        let at = self.incoming(rank, place);
        self.requests.receive(at, rank as u32)
    }

    fn cancel(&mut self) {
        for rank in (0..self.peers.len()).filter(|&rank| rank != self.me) {
            for place in 0..self.depth {
                let at = self.incoming(rank, place);
                self.requests.cancel(at);
            }
        }
    }

    fn test(&mut self) -> bool {
        if self.peers.len() == 1 {
            return false;
        }
        let (depth, peers, mut any) = (self.depth, &mut self.peers, false);
        self.requests.test(|at, result| {
            any = true;
            match (at, result) {
                (Some(at), Ok(bytes)) => {
                    let (peer, place) = (&mut peers[at / (2 * depth)], at % (2 * depth));
                    match peer.came.get_mut(place) {
                        Some(came) => *came = Came::Bytes(bytes),
                        None => peer.under_way -= 1,
                    }
                }
                (Some(at), Err(why)) => peers[at / (2 * depth)].lost = Some(why),
                (None, Err(why)) => peers.iter_mut().for_each(|peer| peer.lost = Some(why.clone())),
                (None, Ok(_)) => {}
            }
        });
        any
    }

    fn whole(&self, rank: usize) -> io::Result<()> {
        self.peers[rank].lost.as_ref().map_or(Ok(()), |why| Err(broken(why)))
    }

    pub fn send(&mut self, rank: usize, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool> {
        self.whole(rank)?;
        let at = self.outgoing(rank, self.peers[rank].sent % self.depth);
        if !self.requests.idle(at) {
            return Ok(false);
        }
        let message = &mut self.requests.buffer(at)[..HEADER_BYTES + payload.len()];
        message[..HEADER_BYTES].copy_from_slice(&header.encode());
        message[HEADER_BYTES..].copy_from_slice(payload);
        self.requests.send(at, HEADER_BYTES + payload.len(), rank as u32).map_err(|why| broken(&why))?;
        self.peers[rank].sent += 1;
        self.peers[rank].under_way += 1;
        Ok(true)
    }

    pub fn flushed(&self, rank: usize) -> io::Result<bool> {
        self.whole(rank)?;
        Ok(self.peers[rank].under_way == 0)
    }

    pub fn front(&mut self, rank: usize) -> io::Result<Option<FragmentHeader>> {
        if self.peers[rank].front.is_some() {
            return Ok(self.peers[rank].front);
        }
        let place = self.peers[rank].taken % self.depth;
        let Came::Bytes(bytes) = self.peers[rank].came[place] else {
            // Messages that arrived before the connection was lost are still valid.
            return self.whole(rank).map(|()| None);
        };
        let at = self.incoming(rank, place);
        let header = self.requests.buffer(at).first_chunk().and_then(FragmentHeader::decode);
        let header = header.filter(|header| bytes == HEADER_BYTES + header.bytes as usize);
        let header =
            header.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the peer sent an invalid fragment"))?;
        self.peers[rank].front = Some(header);
        Ok(Some(header))
    }

    pub fn take(&mut self, rank: usize, sink: Sink<'_>) -> io::Result<bool> {
        let Some(header) = self.peers[rank].front.take() else { return Ok(false) };
        let place = self.peers[rank].taken % self.depth;
        let at = self.incoming(rank, place);
        let payload = &self.requests.buffer(at)[HEADER_BYTES..HEADER_BYTES + header.bytes as usize];
        match sink {
            Sink::Into(to) => to.copy_from_slice(payload),
            Sink::Show(show) => show(0, payload),
            Sink::Drop => {}
        }
        let peer = &mut self.peers[rank];
        peer.came[place] = Came::Nothing;
        peer.taken += 1;
        if peer.lost.is_none() {
            self.post(rank, place).map_err(|why| broken(&why))?;
        }
        Ok(true)
    }
}

/// The messages, shared with the channels.
pub(super) type SharedMessages = Mutex<Messages>;

pub(super) fn locked(messages: &SharedMessages) -> MutexGuard<'_, Messages> {
    messages.lock()
}
