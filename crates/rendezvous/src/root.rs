//! The exchange on rank 0: it waits for all ranks and sends them all blobs, or tells those that came why it failed.
use std::io::{ErrorKind, Read};

use paceline_os::event::{PollFd, PollFlags};
use paceline_os::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use paceline_os::sync::Arc;
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};
use paceline_transport::waiting::{Reports, START_TIMEOUT};

use super::acceptor::{Acceptor, Arrival};
use super::blobs::{MAX_BLOB, bytes_of};
use super::frame::{Frame, Reader, Writer};
use super::listener::listen;
use super::proof::Session;
use super::secret::Secret;
use super::wait::{MAY_RETURN, keep_alive, wait};
use super::wire::{ConnectionKind, Hello, Verdict};
use super::{address, text};

/// Time limit for telling the ranks why the exchange failed.
const FAREWELL: Duration = Duration::from_secs(1);
/// The remedy if ranks have not come.
const MISSING: &str = "the output of the missing ranks, or a longer {start_timeout}";

/// A rank that has connected.
struct Member {
    stream: TcpStream,
    address: SocketAddr,
    hello: Hello,
    session: Session,
    reader: Reader,
    blob: Option<Vec<u8>>,
    left: Option<Instant>,
}

struct Root<'a> {
    address: &'a str,
    size: u32,
    began: Instant,
    deadline: Instant,
    reports: Reports,
    acceptor: Acceptor,
    /// By rank; `None` for rank 0.
    members: Vec<Option<Member>>,
}

/// Runs the exchange on rank 0.
pub fn run(size: u32, address: &str, secret: &Secret, blob: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
    let began = Instant::now();
    let acceptor = Acceptor::new(open(address, deadline)?, 0, secret.clone());
    let members = (0..size).map(|_| None).collect();
    let reports = Reports::new(began, deadline.saturating_duration_since(began), START_TIMEOUT);
    let mut root = Root { address, size, began, deadline, reports, acceptor, members };
    // Ranks that have connected are told why it failed. After this point each is receiving the answer and cannot be
    // told.
    root.gather().inspect_err(|error| root.abort(&error.to_string()))?;
    let others = root.members.iter_mut().flatten().map(|member| member.blob.take().unwrap_or_default());
    let blobs: Vec<Vec<u8>> = std::iter::once(blob.to_vec()).chain(others).collect();
    root.tell(&bytes_of(&blobs)).map(|()| blobs)
}

/// How long a port may be in use before it counts as taken by another program.
const PORT_IN_PASSING: Duration = Duration::from_secs(1);

/// A listener at the first of the host's addresses that this machine has.
fn open(address: &str, deadline: Instant) -> Result<TcpListener> {
    let (host, port) = address::split(address)?;
    let until = deadline.min(address::longest_look_up());
    let addresses = address::resolve(host, port, until)
        .map_err(|error| RunError::Usage(format!("rank 0 cannot listen on {address}: {error}")))?;
    let mut refused = String::new();
    for candidate in addresses {
        match listen_soon(candidate, deadline) {
            Ok(listener) => return Ok(listener),
            Err(error) => {
                refused = address::cannot_listen(address, &error);
                // The other ranks would reach that listener instead.
                if error.kind() == ErrorKind::AddrInUse {
                    break;
                }
            }
        }
    }
    Err(RunError::Usage(refused))
}

/// Retries for a moment: other ranks call until rank 0 listens, and one may have been given this very port to call
/// from.
fn listen_soon(address: SocketAddr, deadline: Instant) -> std::io::Result<TcpListener> {
    let until = deadline.min(Instant::now() + PORT_IN_PASSING);
    loop {
        match listen(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                paceline_os::thread::sleep(Duration::from_millis(20));
            }
            other => return other.map(|(listener, _)| listener),
        }
    }
}

impl Root<'_> {
    fn gather(&mut self) -> Result<()> {
        loop {
            if self.members.iter().skip(1).all(|member| member.as_ref().is_some_and(|m| m.blob.is_some())) {
                return Ok(());
            }
            let now = Instant::now();
            if now >= self.deadline {
                let missing = self.missing(self.deadline.saturating_duration_since(self.began));
                return Err(RunError::Failed(missing).with_remedy(MISSING));
            }
            let mut reports = self.reports;
            reports.report(now, |waited| format!("rank 0: {}", self.missing(waited)));
            self.reports = reports;
            self.has_returned(now)?;
            let ready = self.sleep(now)?;
            // Members first: one that left makes room for its successor.
            for rank in ready {
                self.read(rank);
            }
            for arrival in self.acceptor.work(judge_exchange)? {
                self.admit(arrival)?;
            }
        }
    }

    /// Ranks whose sockets are readable.
    fn sleep(&self, now: Instant) -> Result<Vec<usize>> {
        let here: Vec<(usize, &Member)> = (self.members.iter().enumerate())
            .filter_map(|(rank, member)| Some((rank, member.as_ref()?)))
            .filter(|(_, member)| member.left.is_none())
            .collect();
        let mut fds: Vec<PollFd> = here.iter().map(|(_, member)| PollFd::new(&member.stream, PollFlags::IN)).collect();
        self.acceptor.fds(&mut fds, now);
        let returns = self.members.iter().flatten().filter_map(|member| Some(member.left? + MAY_RETURN));
        let until =
            returns.chain(self.acceptor.next_event(now)).chain([self.reports.next()]).fold(self.deadline, Instant::min);
        wait(&mut fds, until)?;
        Ok(here.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|((rank, _), _)| *rank).collect())
    }

    fn read(&mut self, rank: usize) {
        let Some(member) = &mut self.members[rank] else { return };
        match member.reader.read(&mut member.stream, &mut member.session) {
            Ok(None) => {}
            Ok(Some(Frame::Wanted(blob))) if member.blob.is_none() => member.blob = Some(blob),
            // The end of the stream, or bytes that no rank sends: the connection is no longer usable.
            Ok(Some(_)) | Err(_) => {
                member.left = Some(Instant::now());
                member.blob = None;
            }
        }
    }

    fn admit(&mut self, arrival: Arrival) -> Result<()> {
        let Arrival { address, hello, verdict, .. } = &arrival;
        if *verdict != Verdict::Welcome {
            return Ok(());
        }
        let rank = hello.from;
        let ip = address.ip();
        let size = self.size;
        let mut fatal = None;
        if hello.world != size {
            let world = hello.world;
            fatal = Some(format!(
                "rank {rank} ({ip}) was given a world of {world} ranks and rank 0 one of {size}; is WORLD_SIZE wrong?"
            ));
        } else if rank == 0 {
            let own = self.address;
            fatal = Some(format!("rank 0 came twice: at {own} and from {ip}; is WORLD_SIZE or RANK wrong?"));
        } else if rank >= size {
            fatal = Some(format!("rank {rank} ({ip}) is not in a world of {size}; is WORLD_SIZE or RANK wrong?"));
        } else if let Some(old) = &self.members[rank as usize] {
            if old.hello.instance == hello.instance {
                if old.hello.attempt > hello.attempt {
                    return Ok(());
                }
            } else if old.left.is_none() {
                let first = old.address.ip();
                fatal =
                    Some(format!("rank {rank} came twice: from {first} and from {ip}; is WORLD_SIZE or RANK wrong?"));
            }
        }
        let member = Member::new(arrival);
        match fatal {
            None => self.members[rank as usize] = Some(member),
            // It is told together with the others.
            Some(reason) => {
                self.members.push(Some(member));
                return Err(RunError::Failed(reason));
            }
        }
        Ok(())
    }

    fn has_returned(&self, now: Instant) -> Result<()> {
        match self.members.iter().flatten().find(|member| member.left.is_some_and(|left| now >= left + MAY_RETURN)) {
            Some(Member { hello, address, .. }) => Err(RunError::Failed(format!(
                "rank {} ({}) left before all ranks had come; its own message says why",
                hello.from,
                address.ip()
            ))),
            None => Ok(()),
        }
    }

    /// Which ranks have not come within this time.
    fn missing(&self, waited: Duration) -> String {
        let here = |rank: &u32| self.members[*rank as usize].as_ref().is_some_and(|member| member.blob.is_some());
        let missing: Vec<u32> = (1..self.size).filter(|rank| !here(rank)).collect();
        let mut message = format!(
            "{} of {} {} not come within {} to {}",
            text::ranks(&missing),
            self.size,
            if missing.len() == 1 { "has" } else { "have" },
            text::seconds(waited),
            self.address,
        );
        for member in self.members.iter().flatten().filter(|member| member.left.is_some()) {
            message += &format!("; rank {} ({}) came and left", member.hello.from, member.address.ip());
        }
        message + &self.acceptor.strangers.describe()
    }

    fn tell(&mut self, blobs: &Arc<[u8]>) -> Result<()> {
        let unheard =
            self.send(self.deadline, |member| Writer::new(Frame::GATHERED, Arc::clone(blobs), &mut member.session))?;
        if unheard.is_empty() {
            return Ok(());
        }
        Err(RunError::Failed(format!(
            "{} came, but left before receiving the addresses of the others",
            text::ranks(&unheard)
        )))
    }

    /// Tells all connected ranks, and for a moment those that still connect, because they would otherwise retry until
    /// their deadline. Errors are ignored: the exchange has failed already.
    fn abort(&mut self, reason: &str) {
        let until = Instant::now() + FAREWELL;
        let _ = self.send(until, |member| Writer::abort(reason, &mut member.session));
        while self.members.iter().skip(1).any(Option::is_none) && Instant::now() < until {
            let mut fds = Vec::new();
            self.acceptor.fds(&mut fds, Instant::now());
            let next = self.acceptor.next_event(Instant::now()).map_or(until, |next| next.min(until));
            let Ok(arrivals) = wait(&mut fds, next).and_then(|()| self.acceptor.work(judge_exchange)) else { break };
            for mut member in
                arrivals.into_iter().filter(|arrival| arrival.verdict == Verdict::Welcome).map(Member::new)
            {
                // It fits the empty buffer of a new connection.
                let _ = Writer::abort(reason, &mut member.session).write(&mut member.stream);
                let rank = member.hello.from as usize;
                match self.members.get_mut(rank) {
                    Some(place @ None) => *place = Some(member),
                    _ => self.members.push(Some(member)),
                }
            }
        }
        for member in self.members.iter_mut().flatten().filter(|member| member.left.is_none()) {
            drain(&mut member.stream, until);
        }
    }

    /// Sends a frame to all connected ranks. Returns those that had not taken it by the deadline.
    fn send(&mut self, until: Instant, frame: impl Fn(&mut Member) -> Writer) -> Result<Vec<u32>> {
        let mut sending: Vec<(&mut Member, Writer)> = (self.members.iter_mut().flatten())
            .filter(|member| member.left.is_none())
            .map(|member| {
                let writer = frame(member);
                (member, writer)
            })
            .collect();
        let mut unheard = Vec::new();
        loop {
            sending.retain_mut(|(member, writer)| match writer.write(&mut member.stream) {
                Ok(done) => !done,
                Err(_) => {
                    unheard.push(member.hello.from);
                    false
                }
            });
            if sending.is_empty() {
                return Ok(unheard);
            }
            if Instant::now() >= until {
                unheard.extend(sending.iter().map(|(member, _)| member.hello.from));
                return Ok(unheard);
            }
            let mut fds: Vec<PollFd> =
                sending.iter().map(|(member, _)| PollFd::new(&member.stream, PollFlags::OUT)).collect();
            wait(&mut fds, until)?;
        }
    }
}

impl Member {
    fn new(arrival: Arrival) -> Member {
        let Arrival { stream, address, hello, session, .. } = arrival;
        // Best effort: without it, a host that vanishes is noticed at the deadline.
        let _ = keep_alive(&stream);
        let reader = Reader::new(Frame::BLOB, MAX_BLOB);
        Member { stream, address, hello, session, reader, blob: None, left: None }
    }
}

/// Reads until the other side has closed, which it does after receiving the message: closing a socket with unread bytes
/// would discard what was written to it.
fn drain(stream: &mut TcpStream, until: Instant) {
    let _ = stream.shutdown(Shutdown::Write);
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(1..) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                let _ = wait(&mut [PollFd::new(stream, PollFlags::IN)], until);
            }
            Ok(0) | Err(_) => return,
        }
    }
}

/// Other kinds belong to a mesh.
fn judge_exchange(hello: &Hello) -> Verdict {
    if hello.kind == ConnectionKind::Exchange && hello.to == 0 { Verdict::Welcome } else { Verdict::WrongTarget }
}
