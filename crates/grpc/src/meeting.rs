//! Which ranks have connected so far, and which errors and strangers were seen meanwhile.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;

use super::gauge::Gauge;
use super::listener::Offer;
use super::token::{Contract, StreamKind};
use paceline_rendezvous::{StrangerLog, plain, text};
use paceline_transport::error::RunError;

/// Most ranks in a message for which it says why they were not reached.
const SHOWN: usize = 3;

/// State of a stream to a rank.
pub enum Event {
    /// Both ends have proved that they know the secret.
    Met(u32),
    /// It has ended in both directions.
    Ended(u32),
    /// It can never be established.
    Failed(RunError),
}

pub struct Meeting {
    pub rank: u32,
    /// Ranks that train; servers and the switch come after them.
    pub workers: u32,
    /// By rank.
    pub offers: Vec<Offer>,
    key: [u8; 32],
    events: UnboundedSender<Event>,
    pub gauge: Arc<Gauge>,
    strangers: Mutex<StrangerLog>,
    /// By rank: why the last call to it failed.
    missed: Mutex<Vec<Option<String>>>,
}

impl Meeting {
    pub fn new(
        rank: u32,
        workers: u32,
        offers: Vec<Offer>,
        key: [u8; 32],
        events: UnboundedSender<Event>,
        gauge: Arc<Gauge>,
    ) -> Arc<Meeting> {
        let (strangers, missed) = (Mutex::new(StrangerLog::new(rank)), Mutex::new(vec![None; offers.len()]));
        Arc::new(Meeting { rank, workers, offers, key, events, gauge, strangers, missed })
    }

    /// Which of two ranks is called: the server by a worker, and between equals the lower rank.
    pub fn is_host(&self, peer: u32) -> bool {
        let helps = |rank: u32| rank >= self.workers;
        if helps(self.rank) == helps(peer) { self.rank < peer } else { helps(self.rank) }
    }

    /// The shared knowledge of both ends of a call; `None` if there is no such rank.
    pub fn contract(&self, kind: StreamKind, caller: u32, host: u32) -> Option<Contract> {
        let offer = |rank: u32| Some((rank, self.offers.get(rank as usize)?));
        Some(Contract::new(&self.key, kind, offer(caller)?, offer(host)?))
    }

    pub fn met(&self, peer: u32) {
        self.tell(Event::Met(peer));
    }

    pub fn failed(&self, error: RunError) {
        self.tell(Event::Failed(error));
    }

    fn tell(&self, event: Event) {
        // The receiver is gone when the job has ended.
        let _ = self.events.send(event);
    }

    /// Records the behavior of a stranger.
    pub fn log_stranger(&self, ip: IpAddr, what: &str) {
        let text = format!("{ip} made {what}");
        self.strangers.lock().add(ip, text, true);
    }

    /// Records why a rank was not reached; the caller tries again.
    pub fn missed(&self, peer: u32, why: String) {
        self.missed.lock()[peer as usize] = Some(why);
    }

    /// `rank 3 (10.0.0.7)`.
    pub fn describe(&self, peer: u32) -> String {
        format!("rank {peer} ({})", plain(self.offers[peer as usize].address).ip())
    }

    /// That these ranks have not connected within this time, and why.
    pub fn late(&self, missing: &[u32], waited: Duration) -> String {
        let (called, calling): (Vec<u32>, Vec<u32>) = missing.iter().partition(|&&peer| !self.is_host(peer));
        let missed = self.missed.lock();
        let mut parts = Vec::new();
        if !called.is_empty() {
            let why = |&peer: &u32| {
                let why = missed[peer as usize].as_deref().unwrap_or("no answer yet");
                format!("{}: {why}", self.describe(peer))
            };
            let mut reasons: Vec<String> = called.iter().take(SHOWN).map(why).collect();
            if called.len() > SHOWN {
                reasons.push(format!("nor {}", text::ranks(&called[SHOWN..])));
            }
            parts.push(format!("could not call {} ({})", text::ranks(&called), reasons.join("; ")));
        }
        if !calling.is_empty() {
            let own = self.offers[self.rank as usize].address;
            parts.push(format!("was not called by {} at {own}", text::ranks(&calling)));
        }
        let strangers = self.strangers.lock().describe();
        let (rank, world, waited) = (self.rank, self.offers.len(), text::seconds(waited));
        format!("rank {rank} of {world} {} over gRPC within {waited}{strangers}", parts.join(" and "))
    }
}

/// Reports, when dropped, that a stream has ended.
pub struct Ended {
    meeting: Arc<Meeting>,
    peer: u32,
}

impl Ended {
    pub fn new(meeting: &Arc<Meeting>, peer: u32) -> Ended {
        Ended { meeting: meeting.clone(), peer }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.meeting.tell(Event::Ended(self.peer));
    }
}

/// A deadline on the clock of the gRPC thread.
pub fn until(deadline: Instant) -> tokio::time::Instant {
    tokio::time::Instant::from_std(deadline)
}
