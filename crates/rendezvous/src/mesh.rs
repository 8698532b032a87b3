//! The connections of a job: a full mesh, in which the lower of two ranks accepts and the higher one calls.
//!
//! All calls of a rank and all incoming handshakes run concurrently, in one thread.
use std::collections::VecDeque;

use paceline_os::event::{PollFd, PollFlags};
use paceline_os::net::{SocketAddr, TcpStream};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};
use paceline_transport::waiting::{Reports, START_TIMEOUT};

use super::acceptor::{Acceptor, Arrival};
use super::call::{Call, Missed};
use super::listener::Listener;
use super::member::Pause;
use super::secret::{Secret, random_bytes};
use super::slots::{Held, Slots, judge};
use super::wait::wait;
use super::wire::{ConnectionKind, Hello, Verdict};
use super::{address, text};

/// Most data streams to one peer: 64 that share the data, and one for multicasts.
pub const MAX_STREAMS: u32 = 65;
/// Most concurrent calls: enough to hide the round trip, few enough not to fill the other ranks' acceptors.
const CALLS: usize = 16;
/// Most peers in a message for which it says why they were not reached.
const SHOWN: usize = 3;

/// A rank's streams to all others, by rank. They block. All have `TCP_NODELAY`, and control streams also
/// `SO_KEEPALIVE`.
#[derive(Debug)]
pub struct Mesh {
    /// One to every peer; `None` to itself.
    pub control: Vec<Option<TcpStream>>,
    /// As many as requested. The i-th of one rank is connected to the i-th of the other.
    pub data: Vec<Vec<TcpStream>>,
}

impl Mesh {
    /// No streams, for this many ranks that are connected by other means.
    #[must_use]
    pub fn of_none(size: u32) -> Mesh {
        let (control, data) = (0..size).map(|_| (None, Vec::new())).unzip();
        Mesh { control, data }
    }
}

/// A stream that this rank must connect.
struct Want {
    kind: ConnectionKind,
    to: u32,
    index: u32,
    attempt: u32,
    pause: Pause,
    not_before: Instant,
}

struct Weaver<'a> {
    rank: u32,
    own_address: SocketAddr,
    peers: &'a [SocketAddr],
    streams: &'a [u32],
    secret: &'a Secret,
    job: [u8; 16],
    instance: [u8; 16],
    acceptor: Acceptor,
    slots: Slots,
    waiting: VecDeque<Want>,
    calls: Vec<(Want, Call)>,
    /// Why the last call to each peer failed.
    last: Vec<Option<String>>,
    began: Instant,
    deadline: Instant,
    reports: Reports,
}

/// Connects every rank to every other. All ranks call it with the same `peers`, the listeners' addresses by rank, and
/// the same `job`, drawn by rank 0. `streams` is the number of data streams to each peer and must be the same on both
/// sides: 0 to itself and to peers that are reached by other means. The listener is closed when this returns.
///
/// # Errors
/// [`RunError::Usage`] if the arguments are inconsistent. [`RunError::Failed`] if peers were not reached by the
/// deadline, or a peer has another number of streams or ranks, connects twice or leaves meanwhile.
pub fn connect_mesh(
    rank: u32,
    listener: Listener,
    peers: &[SocketAddr],
    streams: &[u32],
    secret: &Secret,
    job: [u8; 16],
    deadline: Instant,
) -> Result<Mesh> {
    check(rank, peers, streams)?;
    let now = Instant::now();
    let own_address = listener.address();
    let acceptor = Acceptor::new(listener.socket, rank, secret.clone());
    let slots = Slots::new(rank, streams);
    // The next lower rank first, so that not all ranks begin with rank 0; control streams first, because they reveal a
    // death.
    let wants = |kind: ConnectionKind, count: fn(u32) -> u32| {
        (0..rank).rev().flat_map(move |to| (0..count(streams[to as usize])).map(move |index| (kind, to, index)))
    };
    let want = |(kind, to, index)| Want { kind, to, index, attempt: 0, pause: Pause::new(), not_before: now };
    let waiting =
        wants(ConnectionKind::Control, |_| 1).chain(wants(ConnectionKind::Data, |count| count)).map(want).collect();
    let mut weaver = Weaver {
        rank,
        own_address,
        peers,
        streams,
        secret,
        job,
        instance: random_bytes()?,
        acceptor,
        slots,
        waiting,
        calls: Vec::new(),
        last: vec![None; peers.len()],
        began: now,
        deadline,
        reports: Reports::new(now, deadline.saturating_duration_since(now), START_TIMEOUT),
    };
    weaver.weave()?;
    weaver.slots.into_mesh()
}

fn check(rank: u32, peers: &[SocketAddr], streams: &[u32]) -> Result<()> {
    let wrong = |what: String| Err(RunError::Usage(what));
    let world = peers.len();
    if streams.len() != world {
        return wrong(format!("{world} peers, but stream counts for {}", streams.len()));
    }
    match streams.get(rank as usize) {
        None => return wrong(format!("there is no rank {rank} in a world of {world}")),
        Some(0) => {}
        Some(_) => return wrong(format!("rank {rank} cannot have streams to itself")),
    }
    if let Some(peer) = streams.iter().position(|&count| count > MAX_STREAMS) {
        return wrong(format!("{} data streams to rank {peer} are too many; at most {MAX_STREAMS}", streams[peer]));
    }
    match peers.iter().position(|peer| peer.ip().is_unspecified() || peer.port() == 0) {
        Some(peer) if world > 1 => {
            wrong(format!("{} is not an address at which rank {peer} can be reached", peers[peer]))
        }
        _ => Ok(()),
    }
}

impl Weaver<'_> {
    fn weave(&mut self) -> Result<()> {
        while self.slots.missing() > 0 {
            let now = Instant::now();
            if now >= self.deadline {
                let missing = self.missing(self.deadline.saturating_duration_since(self.began));
                return Err(RunError::Failed(missing).with_remedy("{interface=10.0.0.0/24} (the network of the hosts)"));
            }
            let mut reports = self.reports;
            reports.report(now, |waited| self.missing(waited));
            self.reports = reports;
            if let Some((peer, address)) = self.slots.gone(now) {
                paceline_os::reached!("mesh: rank left while others connected");
                return Err(RunError::Failed(format!(
                    "rank {peer} ({}) left while the ranks connected to each other; its own message says why",
                    address.ip()
                )));
            }
            self.begin_calls(now)?;
            self.sleep(now)?;
            self.advance_calls()?;
            let (streams, job, rank) = (self.streams, self.job, self.rank);
            for arrival in self.acceptor.work(|hello| judge(hello, rank, streams, job))? {
                self.admit(arrival)?;
            }
        }
        Ok(())
    }

    fn begin_calls(&mut self, now: Instant) -> Result<()> {
        for _ in 0..self.waiting.len() {
            if self.calls.len() >= CALLS {
                break;
            }
            let Some(want) = self.waiting.pop_front() else { break };
            if want.not_before > now {
                self.waiting.push_back(want);
                continue;
            }
            let hello = Hello {
                kind: want.kind,
                from: self.rank,
                to: want.to,
                index: want.index,
                world: u32::try_from(self.peers.len()).unwrap_or(u32::MAX),
                streams: self.streams[want.to as usize],
                attempt: want.attempt,
                job: self.job,
                instance: self.instance,
                nonce: random_bytes()?,
            };
            match Call::begin(self.peers[want.to as usize], self.secret, &hello) {
                Ok(call) => self.calls.push((want, call)),
                Err(missed) => self.again(want, &missed)?,
            }
        }
        Ok(())
    }

    fn sleep(&mut self, now: Instant) -> Result<()> {
        let mut fds: Vec<PollFd> = self.calls.iter().map(|(_, call)| call.fd()).collect();
        self.acceptor.fds(&mut fds, now);
        let first_watched = fds.len();
        let watched: Vec<(u32, &TcpStream)> = self.slots.watched().collect();
        fds.extend(watched.iter().map(|(_, stream)| PollFd::new(stream, PollFlags::RDHUP)));
        let calls = self.calls.iter().map(|(_, call)| call.until());
        let again = self.waiting.iter().map(|want| want.not_before).filter(|&then| then > now);
        let until = calls
            .chain(again)
            .chain(self.acceptor.next_event(now))
            .chain(self.slots.next_gone())
            .chain([self.reports.next()])
            .fold(self.deadline, Instant::min);
        wait(&mut fds, until)?;
        let left: Vec<u32> = (watched.iter().zip(&fds[first_watched..]))
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|((peer, _), _)| *peer)
            .collect();
        left.into_iter().for_each(|peer| self.slots.leaves(peer));
        Ok(())
    }

    fn advance_calls(&mut self) -> Result<()> {
        for (want, mut call) in std::mem::take(&mut self.calls) {
            match call.work() {
                Ok(None) => self.calls.push((want, call)),
                Ok(Some(session)) => {
                    let stream = call.answered(session).stream;
                    let address = address::plain(self.peers[want.to as usize]);
                    let held = Held { stream, address, instance: self.instance, attempt: want.attempt };
                    self.slots.put(want.to, want.kind, want.index, held)?;
                }
                Err(missed) => self.again(want, &missed)?,
            }
        }
        Ok(())
    }

    /// Schedules another call, unless the verdict would be the same.
    fn again(&mut self, mut want: Want, missed: &Missed) -> Result<()> {
        let why = missed.describe(want.to, &address::plain(self.peers[want.to as usize]).to_string());
        if let Missed::Refused(Verdict::OtherWorld | Verdict::OtherStreams) | Missed::OwnLimit(_) = missed {
            return Err(RunError::Failed(format!("rank {}: {why}", self.rank)));
        }
        paceline_os::reached!("mesh: call repeated");
        self.last[want.to as usize] = Some(why);
        want.attempt += 1;
        want.not_before = Instant::now() + want.pause.next();
        self.waiting.push_back(want);
        Ok(())
    }

    fn admit(&mut self, arrival: Arrival) -> Result<()> {
        let Arrival { stream, address, hello, verdict, .. } = arrival;
        let (rank, from, ip) = (self.rank, hello.from, address.ip());
        let failed = |what: String| Err(RunError::Failed(format!("rank {from} ({ip}) {what}")));
        match verdict {
            Verdict::Welcome => {
                let held = Held { stream, address, instance: hello.instance, attempt: hello.attempt };
                self.slots.put(from, hello.kind, hello.index, held)
            }
            Verdict::OtherWorld => failed(format!(
                "was given a world of {} ranks and rank {rank} one of {}; is WORLD_SIZE wrong?",
                hello.world,
                self.peers.len()
            )),
            Verdict::OtherStreams => failed(format!(
                "was told of {} data streams to rank {rank}, which was told of {}",
                hello.streams, self.streams[from as usize]
            )),
            Verdict::OtherJob => {
                self.acceptor.strangers.add(
                    ip,
                    format!("rank {from} ({ip}) of another run of the job connected"),
                    true,
                );
                Ok(())
            }
            _ => {
                self.acceptor.strangers.add(ip, format!("rank {from} ({ip}) asked for something else"), true);
                Ok(())
            }
        }
    }

    /// Which ranks are not connected after this time, and why.
    fn missing(&self, waited: Duration) -> String {
        let waited = text::seconds(waited);
        let (below, above): (Vec<u32>, Vec<u32>) =
            self.slots.missing_peers().into_iter().partition(|&peer| peer < self.rank);
        let mut reasons = Vec::new();
        for &peer in below.iter().take(SHOWN) {
            reasons.push(self.last[peer as usize].clone().unwrap_or_else(|| {
                format!("rank {peer} ({}): no answer yet", address::plain(self.peers[peer as usize]))
            }));
        }
        if below.len() > SHOWN {
            reasons.push(format!("nor {}", text::ranks(&below[SHOWN..])));
        }
        let mut parts = Vec::new();
        if !below.is_empty() {
            parts.push(format!("could not connect to {} ({})", text::ranks(&below), reasons.join("; ")));
        }
        if !above.is_empty() {
            parts.push(format!("was not called by {} at {}", text::ranks(&above), self.own_address));
        }
        let (rank, world, notes) = (self.rank, self.peers.len(), self.acceptor.strangers.describe());
        format!("rank {rank} of {world} {} within {waited}{notes}", parts.join(" and "))
    }
}
