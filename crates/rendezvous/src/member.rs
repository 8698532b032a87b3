//! The exchange on all ranks but 0: connect to rank 0, send the blob, receive all blobs.
use paceline_os::event::{PollFd, PollFlags};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};
use paceline_transport::waiting::{Reports, START_TIMEOUT};

use super::blobs::{blobs_of, longest};
use super::call::{Answered, Call, Missed};
use super::frame::{Broken, Frame, Reader, Writer};
use super::secret::{Secret, random_bytes};
use super::wait::{MAY_RETURN, keep_alive, wait};
use super::wire::{ConnectionKind, Hello, Stranger};
use super::{address, text};

/// A rank 0 with another secret or version may belong to the previous run, which is about to end. After this time it
/// counts as ours, and its secret will not change.
const PATIENCE: Duration = Duration::from_secs(3);
/// Rank 0 has the same deadline, and knows better which rank is missing.
const TO_HEAR_WHY: Duration = Duration::from_secs(1);
/// Rank 0 reports who is missing. If it is stopped itself, the ranks before this one say so.
const SPEAKERS: u32 = 3;
/// Pauses between attempts. The longest is short for a person, and long enough when a thousand ranks call one acceptor.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Why an attempt failed.
enum Failure {
    /// A retry cannot help.
    Final(RunError),
    /// Rank 0 was not reached.
    Missed(Missed),
    /// Its host was not found.
    Unknown(String),
    /// The connection to rank 0 was lost.
    Lost(String),
    /// The deadline passed first, so the outcome is unknown.
    Cut,
}

struct Member<'a> {
    rank: u32,
    size: u32,
    address: &'a str,
    secret: &'a Secret,
    blob: &'a [u8],
    deadline: Instant,
}

/// Runs the exchange on a rank other than 0.
pub fn run(
    rank: u32,
    size: u32,
    address: &str,
    secret: &Secret,
    blob: &[u8],
    deadline: Instant,
) -> Result<Vec<Vec<u8>>> {
    let began = Instant::now();
    // A malformed address stays malformed.
    address::split(address)?;
    let member = Member { rank, size, address, secret, blob, deadline };
    let instance = random_bytes()?;
    let mut pause = Pause::new();
    let mut reason = format!("rank 0 ({address}) does not answer");
    // Since when every attempt has failed for a reason with its own time limit.
    let (mut refused, mut lost) = (None, None);
    let limit = deadline.saturating_duration_since(began);
    let mut reports = Reports::new(began, limit, START_TIMEOUT);
    for attempt in 0.. {
        let attempt_began = Instant::now();
        let failure = match member.attempt(attempt, instance, &mut reports) {
            Ok(blobs) => return Ok(blobs),
            Err(Failure::Final(error)) => return Err(error),
            Err(failure) => failure,
        };
        let now = Instant::now();
        match &failure {
            Failure::Missed(missed) => reason = missed.describe(0, address),
            Failure::Unknown(why) | Failure::Lost(why) => reason.clone_from(why),
            Failure::Final(_) | Failure::Cut => {}
        }
        if !is_lasting(&failure) {
            refused = None;
        } else if now >= *refused.get_or_insert(now) + PATIENCE {
            return Err(RunError::Failed(format!("rank {rank}: {reason}")));
        }
        if matches!(failure, Failure::Lost(_)) && (lost.is_none() || now > attempt_began + MAY_RETURN) {
            lost = Some((now, reason.clone()));
        }
        if let Some((since, why)) = &lost
            && now >= *since + MAY_RETURN
        {
            return Err(RunError::Failed(format!("rank {rank}: {why}")));
        }
        reports.report(now, |waited| {
            let waited = text::seconds(waited);
            format!("rank {rank} of {size} has not reached rank 0 at {address} within {waited}; last: {reason}")
        });
        pause.sleep(deadline);
        if Instant::now() >= deadline {
            let waited = text::seconds(limit);
            let message =
                format!("rank {rank} of {size} could not reach rank 0 at {address} within {waited}; last: {reason}");
            return Err(RunError::Failed(message).with_remedy("the output of rank 0, or a longer {start_timeout}"));
        }
    }
    unreachable!("attempts without end")
}

/// Whether the failure depends on how the ranks were started.
fn is_lasting(failure: &Failure) -> bool {
    matches!(failure, Failure::Missed(Missed::Stranger(Stranger::WrongSecret(_) | Stranger::OtherVersion(_))))
}

impl Member<'_> {
    fn attempt(
        &self,
        attempt: u32,
        instance: [u8; 16],
        reports: &mut Reports,
    ) -> std::result::Result<Vec<Vec<u8>>, Failure> {
        let (host, port) = address::split(self.address).map_err(Failure::Final)?;
        // Resolved for each attempt: host names may appear while a cluster starts.
        let addresses =
            address::resolve(host, port, self.deadline).map_err(|error| Failure::Unknown(error.to_string()))?;
        let mut last = Failure::Unknown(format!("host {host:?} has no address"));
        for address in addresses {
            let hello = Hello {
                kind: ConnectionKind::Exchange,
                from: self.rank,
                to: 0,
                index: 0,
                world: self.size,
                streams: 0,
                attempt,
                job: [0; 16],
                instance,
                nonce: random_bytes().map_err(Failure::Final)?,
            };
            match self.call(Call::begin(address, self.secret, &hello)) {
                Ok(answered) => return self.converse(answered, reports),
                // Another attempt cannot help, and rank 0 is not to blame.
                Err(Failure::Missed(Missed::OwnLimit(why))) => {
                    return Err(Failure::Final(RunError::Failed(format!("rank {}: {why}", self.rank))));
                }
                // An error that concerns the user matters more than an unreachable second address.
                Err(Failure::Missed(Missed::Network(_)))
                    if matches!(&last, Failure::Missed(Missed::Stranger(_) | Missed::Refused(_))) => {}
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    fn call(&self, call: std::result::Result<Call, Missed>) -> std::result::Result<Answered, Failure> {
        let mut call = call.map_err(Failure::Missed)?;
        loop {
            match call.work() {
                Ok(Some(session)) => return Ok(call.answered(session)),
                Err(missed) => return Err(Failure::Missed(missed)),
                Ok(None) if Instant::now() >= self.deadline => return Err(Failure::Cut),
                Ok(None) => {}
            }
            wait(&mut [call.fd()], call.until().min(self.deadline)).map_err(Failure::Final)?;
        }
    }

    /// Sends the blob and waits for those of all ranks.
    fn converse(&self, answered: Answered, reports: &mut Reports) -> std::result::Result<Vec<Vec<u8>>, Failure> {
        let Answered { mut stream, mut session } = answered;
        // Best effort: without it, a host that vanishes is noticed at the deadline.
        let _ = keep_alive(&stream);
        let until = self.deadline + TO_HEAR_WHY;
        let speaks = self.rank < SPEAKERS;
        let mut writer = Some(Writer::new(Frame::BLOB, self.blob.into(), &mut session));
        let mut reader = Reader::new(Frame::GATHERED, longest(self.size));
        loop {
            if let Some(writing) = &mut writer {
                match writing.write(&mut stream) {
                    Ok(false) => {}
                    // After an error too: rank 0 may have sent its reason before it closed.
                    Ok(true) | Err(_) => writer = None,
                }
            }
            match reader.read(&mut stream, &mut session) {
                Ok(None) => {}
                Ok(Some(Frame::Abort(reason))) => {
                    return Err(Failure::Final(RunError::Failed(reason).with_remedy("the output of rank 0")));
                }
                Ok(Some(Frame::Wanted(bytes))) => {
                    let malformed = || Failure::Lost(format!("rank 0 at {} sent malformed blobs", self.address));
                    return blobs_of(&bytes, self.size).ok_or_else(malformed);
                }
                Err(broken) => {
                    let why = match broken {
                        Broken::Closed => String::new(),
                        Broken::Io(error) => format!(" ({})", text::plain(&error)),
                        Broken::Forged => " (its message had a wrong signature)".into(),
                    };
                    return Err(Failure::Lost(format!("rank 0 at {} left before all had come{why}", self.address)));
                }
            }
            let now = Instant::now();
            if speaks {
                reports.report(now, |waited| {
                    let (rank, size, waited) = (self.rank, self.size, text::seconds(waited));
                    let address = self.address;
                    format!("rank {rank} of {size} has waited {waited} for rank 0 at {address} to hear from all ranks")
                });
            }
            if now >= until {
                let (rank, address, size) = (self.rank, self.address, self.size);
                let message = format!("rank {rank} reached rank 0 at {address}, but not all {size} ranks did in time");
                return Err(Failure::Final(RunError::Failed(message).with_remedy("the output of the other ranks")));
            }
            let flags = if writer.is_some() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            wait(&mut [PollFd::new(&stream, flags)], if speaks { until.min(reports.next()) } else { until })
                .map_err(Failure::Final)?;
        }
    }
}

/// Pauses that double, with random jitter between half and the whole, so that ranks that failed together do not retry
/// together.
pub struct Pause(Duration);

impl Pause {
    pub fn new() -> Pause {
        Pause(FIRST_PAUSE)
    }

    /// The next pause.
    pub fn next(&mut self) -> Duration {
        let longest = self.0;
        self.0 = (longest * 2).min(LONGEST_PAUSE);
        let chance = random_bytes().map_or(0, u16::from_be_bytes);
        longest / 2 + longest * u32::from(chance) / (2 << 16)
    }

    fn sleep(&mut self, deadline: Instant) {
        paceline_os::thread::sleep(self.next().min(deadline.saturating_duration_since(Instant::now())));
    }
}
