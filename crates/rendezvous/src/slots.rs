//! The slots of a mesh's streams, and which are filled.
use paceline_os::net::{SocketAddr, TcpStream};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};

use super::mesh::Mesh;
use super::wait::keep_alive;
use super::wire::{ConnectionKind, Hello, Verdict};

/// A rank whose control stream ended may call again within this time: the answer to it may have been lost.
pub const MAY_RETURN: Duration = Duration::from_secs(2);

/// An authenticated stream.
pub struct Held {
    pub stream: TcpStream,
    pub address: SocketAddr,
    /// Identifies the process that made the connection.
    pub instance: [u8; 16],
    pub attempt: u32,
}

/// All streams of a rank, by peer.
pub struct Slots {
    rank: usize,
    control: Vec<Option<Held>>,
    data: Vec<Vec<Option<Held>>>,
    left: Vec<Option<Instant>>,
    /// Ranks whose control stream holds a message: they have joined the job, and may have left it since.
    joined: Vec<bool>,
    /// The process of each rank, from whichever of its streams came first.
    instances: Vec<Option<([u8; 16], SocketAddr)>>,
    missing: usize,
}

impl Slots {
    /// Empty slots for this many data streams to each peer.
    pub fn new(rank: u32, streams: &[u32]) -> Slots {
        let none = |count: &u32| (0..*count).map(|_| None).collect::<Vec<Option<Held>>>();
        let world = streams.len();
        Slots {
            rank: rank as usize,
            control: (0..world).map(|_| None).collect(),
            data: streams.iter().map(none).collect(),
            left: vec![None; world],
            joined: vec![false; world],
            instances: vec![None; world],
            missing: world - 1 + streams.iter().map(|&count| count as usize).sum::<usize>(),
        }
    }

    /// Number of missing streams.
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// Ranks to which a stream is missing.
    pub fn missing_peers(&self) -> Vec<u32> {
        let is_missing = |peer: &usize| {
            *peer != self.rank && (self.control[*peer].is_none() || self.data[*peer].iter().any(Option::is_none))
        };
        (0..self.control.len()).filter(is_missing).map(|peer| u32::try_from(peer).unwrap_or(u32::MAX)).collect()
    }

    /// Puts a stream in its slot, which must exist. A later attempt of the same process replaces an earlier one, whose
    /// welcome it did not receive.
    pub fn put(&mut self, peer: u32, kind: ConnectionKind, index: u32, held: Held) -> Result<()> {
        let rank = peer as usize;
        let (_, first) = *self.instances[rank].get_or_insert((held.instance, held.address));
        if self.instances[rank].is_some_and(|(instance, _)| instance != held.instance) {
            return Err(RunError::Failed(format!(
                "rank {peer} came twice: from {} and from {}; is WORLD_SIZE or RANK wrong?",
                first.ip(),
                held.address.ip()
            )));
        }
        let slot = match kind {
            ConnectionKind::Data => &mut self.data[rank][index as usize],
            ConnectionKind::Control | ConnectionKind::Exchange => &mut self.control[rank],
        };
        match slot {
            Some(old) if old.attempt > held.attempt => return Ok(()),
            Some(_) => {}
            None => self.missing -= 1,
        }
        if kind == ConnectionKind::Control {
            // Best effort: the job's own heartbeats notice a dead host too, but later.
            let _ = keep_alive(&held.stream);
            self.left[rank] = None;
        }
        *slot = Some(held);
        Ok(())
    }

    /// Control streams to watch: their end means that a rank died.
    pub fn watched(&self) -> impl Iterator<Item = (u32, &TcpStream)> {
        let ranks = (0..).zip(&self.control).zip(self.left.iter().zip(&self.joined));
        ranks.filter_map(|((peer, held), state)| match (held, state) {
            (Some(held), (None, false)) => Some((peer, &held.stream)),
            _ => None,
        })
    }

    /// The control stream to this rank has ended. If it holds a message, the rank had met all others: it has done its part
    /// of the job, and its goodbye says so.
    pub fn leaves(&mut self, peer: u32) {
        let rank = peer as usize;
        let spoke = |held: &Held| held.stream.peek(&mut [0]).is_ok_and(|count| count > 0);
        if self.control[rank].as_ref().is_some_and(spoke) {
            self.joined[rank] = true;
        } else {
            self.left[rank] = Some(Instant::now());
        }
    }

    /// A rank that left and did not come back.
    pub fn gone(&self, now: Instant) -> Option<(u32, SocketAddr)> {
        let gone = |left: &Option<Instant>| left.is_some_and(|left| now >= left + MAY_RETURN);
        let peer = self.left.iter().position(gone)?;
        Some((u32::try_from(peer).ok()?, self.control[peer].as_ref()?.address))
    }

    /// When [`gone`](Slots::gone) would next return a rank, if none comes back.
    pub fn next_gone(&self) -> Option<Instant> {
        self.left.iter().flatten().map(|left| *left + MAY_RETURN).min()
    }

    /// The streams, blocking again. All must be connected.
    pub fn into_mesh(self) -> Result<Mesh> {
        let stream = |held: Held| {
            held.stream
                .set_nonblocking(false)
                .map(|()| held.stream)
                .map_err(|error| RunError::Failed(format!("a connection cannot be set up: {error}")))
        };
        let control = self.control.into_iter().map(|held| held.map(stream).transpose()).collect::<Result<_>>()?;
        let data = self.data.into_iter().map(|held| held.into_iter().flatten().map(stream).collect::<Result<_>>());
        Ok(Mesh { control, data: data.collect::<Result<_>>()? })
    }
}

/// The verdict on a caller that knows the secret, but may still be wrong about everything else.
pub fn judge(hello: &Hello, rank: u32, streams: &[u32], job: [u8; 16]) -> Verdict {
    let expected = streams.get(hello.from as usize).copied();
    match hello.kind {
        ConnectionKind::Exchange => Verdict::WrongTarget,
        _ if hello.job != job => Verdict::OtherJob,
        _ if hello.to != rank => Verdict::WrongTarget,
        _ if hello.world as usize != streams.len() => Verdict::OtherWorld,
        _ if hello.from <= rank => Verdict::WrongTarget,
        _ if Some(hello.streams) != expected => Verdict::OtherStreams,
        ConnectionKind::Control if hello.index == 0 => Verdict::Welcome,
        ConnectionKind::Data if hello.index < hello.streams => Verdict::Welcome,
        _ => Verdict::WrongTarget,
    }
}
