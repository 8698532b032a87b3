//! Accepts connections: many handshakes at once, none of which can block another.
use std::io::{ErrorKind, Read, Write};

use paceline_os::event::{PollFd, PollFlags};
use paceline_os::io::Errno;
use paceline_os::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};

use super::address::plain;
use super::handshake::{Caller, Host, Received};
use super::proof::Session;
use super::secret::{Secret, random_bytes};
use super::stranger_log::StrangerLog;
use super::wait::prepare;
use super::wire::{Hello, Stranger, Verdict};

/// Time limit for a handshake.
const LIMIT: Duration = Duration::from_secs(5);
/// Most handshakes at a time. Beyond this, the oldest gives way to the next.
const MOST: usize = 64;
/// Even so, a silent connection is kept at least this long, while new ones wait in the kernel's queue: all ranks may
/// call at once, and must not push each other out. A rank sends its hello with the connection, so a caller that is
/// silent for longer than a scheduling delay is not a rank.
const KEPT_SILENT: Duration = Duration::from_millis(20);
/// The same for callers that have sent a hello: a few round trips within a data center, or one around the world. It is
/// halved with each full set of callers pushed out, down to an eighth, until a rank arrives: by then most callers are
/// not ranks.
const KEPT: Duration = Duration::from_millis(150);

/// A listener and its handshakes in progress.
pub struct Acceptor {
    listener: TcpListener,
    secret: Secret,
    /// Oldest first.
    guests: Vec<Guest>,
    /// Callers pushed out after their hello since the last rank arrived.
    pushed_out: usize,
    /// Log of strangers' deeds.
    pub strangers: StrangerLog,
}

struct Guest {
    stream: TcpStream,
    address: SocketAddr,
    since: Instant,
    host: Host,
}

/// An authenticated rank.
pub struct Arrival {
    pub stream: TcpStream,
    pub address: SocketAddr,
    pub hello: Hello,
    pub session: Session,
    /// The verdict it was sent. Its connection is usable only after `Welcome`.
    pub verdict: Verdict,
}

enum Progress {
    Waits,
    Left,
    Stranger(Stranger),
    Proven(Box<Caller>),
}

impl Acceptor {
    /// Takes a non-blocking listener.
    pub fn new(listener: TcpListener, rank: u32, secret: Secret) -> Acceptor {
        Acceptor { listener, secret, guests: Vec::new(), pushed_out: 0, strangers: StrangerLog::new(rank) }
    }

    /// Adds what to poll.
    pub fn fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>, now: Instant) {
        if self.guests.len() < MOST || self.victim(now).is_some() {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        fds.extend(self.guests.iter().map(|guest| PollFd::new(&guest.stream, PollFlags::IN)));
    }

    /// The next time limit.
    pub fn next_event(&self, now: Instant) -> Option<Instant> {
        let late = self.guests.first().map(|guest| guest.since + LIMIT);
        if self.guests.len() < MOST || self.victim(now).is_some() {
            return late;
        }
        self.guests.iter().map(|guest| guest.since + self.kept(guest)).min()
    }

    /// Makes progress without waiting. `judge` returns the verdict on a caller that knows the secret.
    pub fn work(&mut self, judge: impl Fn(&Hello) -> Verdict) -> Result<Vec<Arrival>> {
        let mut arrivals = Vec::new();
        // Callers whose bytes have arrived are served before others may push them out.
        self.serve(&judge, &mut arrivals);
        if self.accept()? {
            self.serve(&judge, &mut arrivals);
        }
        Ok(arrivals)
    }

    fn serve(&mut self, judge: &impl Fn(&Hello) -> Verdict, arrivals: &mut Vec<Arrival>) {
        let now = Instant::now();
        for mut guest in std::mem::take(&mut self.guests) {
            let ip = plain(guest.address).ip();
            match guest.advance() {
                Progress::Waits if now < guest.since + LIMIT => self.guests.push(guest),
                Progress::Waits if guest.host.is_spoken_to() => {
                    self.strangers.add(ip, format!("{ip} did not complete its handshake"), false);
                }
                Progress::Waits => self.strangers.add(ip, format!("{ip} connected and said nothing"), false),
                Progress::Left => {}
                Progress::Stranger(stranger) => {
                    self.strangers.add(ip, stranger.describe(&ip.to_string()), stranger.is_paceline());
                    let farewell = guest.host.farewell(stranger);
                    guest.part(&farewell);
                }
                Progress::Proven(caller) => {
                    self.pushed_out = 0;
                    let verdict = judge(&caller.hello);
                    let message = caller.verdict(verdict);
                    if verdict != Verdict::Welcome {
                        guest.part(&message);
                    } else if !guest.send(&message) {
                        continue;
                    }
                    let session = caller.session();
                    let Guest { stream, address, .. } = guest;
                    arrivals.push(Arrival { stream, address: plain(address), hello: caller.hello, session, verdict });
                }
            }
        }
    }

    /// Accepts waiting connections, at most as many as there is room for. The rest follow in the next round, after
    /// these have been served.
    fn accept(&mut self) -> Result<bool> {
        let mut any = false;
        for _ in 0..MOST {
            let now = Instant::now();
            if self.guests.len() >= MOST {
                let Some(victim) = self.victim(now) else { break };
                let victim = self.guests.remove(victim);
                self.pushed_out += usize::from(victim.host.is_greeted());
            }
            match self.listener.accept() {
                Ok((stream, address)) => {
                    // A connection that was already reset cannot be set up; ignore it.
                    if prepare(&stream).is_ok() {
                        let host = Host::new(self.secret.clone(), random_bytes()?);
                        self.guests.push(Guest { stream, address, since: now, host });
                        any = true;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::MFILE | Errno::NFILE) => {
                        return Err(RunError::Failed(
                            "too many open files to accept the other ranks; raise the limit (ulimit -n)".into(),
                        ));
                    }
                    Some(Errno::NOMEM | Errno::NOBUFS) => {
                        return Err(RunError::Failed(format!("cannot accept the other ranks: {error}")));
                    }
                    // accept(2): an error of the pending connection itself; ignore it.
                    _ => {}
                },
            }
        }
        Ok(any)
    }

    /// The handshake that gives way to the next connection if there is no room.
    fn victim(&self, now: Instant) -> Option<usize> {
        let may_go = |guest: &Guest| now >= guest.since + self.kept(guest);
        let silent = self.guests.iter().position(|guest| !guest.host.is_greeted() && may_go(guest));
        silent.or_else(|| self.guests.iter().position(may_go))
    }

    fn kept(&self, guest: &Guest) -> Duration {
        let housefuls = (self.pushed_out / MOST).min(3);
        if guest.host.is_greeted() { KEPT / (1 << housefuls) } else { KEPT_SILENT }
    }
}

impl Guest {
    fn advance(&mut self) -> Progress {
        loop {
            match self.stream.read(self.host.space()) {
                Ok(0) => return Progress::Left,
                Ok(count) => match self.host.receive(count) {
                    Ok(Received::More) => {}
                    Ok(Received::Hello(challenge)) if self.send(&challenge) => {}
                    Ok(Received::Hello(_)) => return Progress::Left,
                    Ok(Received::Proven(caller)) => return Progress::Proven(caller),
                    Err(stranger) => return Progress::Stranger(stranger),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Progress::Waits,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Progress::Left,
            }
        }
    }

    /// A handshake message fits the empty buffer of a new socket as a whole; otherwise the connection is broken.
    fn send(&mut self, message: &[u8]) -> bool {
        self.stream.write(message).is_ok_and(|count| count == message.len())
    }

    /// Sends this as the last message. Unread bytes are read first, because closing a socket with unread bytes discards
    /// what it sent.
    fn part(&mut self, message: &[u8]) {
        if self.send(message) && self.stream.shutdown(Shutdown::Write).is_ok() {
            let _ = self.stream.read(&mut [0; 1024]);
        }
    }
}
