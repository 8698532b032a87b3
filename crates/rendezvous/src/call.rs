//! Makes a connection, without blocking, until both sides are authenticated.
use std::io::{self, ErrorKind, Read, Write};

use paceline_os::event::{PollFd, PollFlags};
use paceline_os::io::Errno;
use paceline_os::net::{Domain, Socket, SocketAddr, TcpStream, Type};
use paceline_os::time::{Duration, Instant};

use super::handshake::{Answer, Calling};
use super::proof::Session;
use super::secret::Secret;
use super::text;
use super::wait::prepare;
use super::wire::{Hello, Stranger, Verdict};

/// Time limit for an attempt. Longer than a host's for a handshake, because the call may first wait in the host's
/// queue; and the kernel retransmits a lost SYN after 1 s and 3 s.
pub const LIMIT: Duration = Duration::from_secs(10);

/// A call in progress.
pub struct Call {
    stream: TcpStream,
    address: SocketAddr,
    since: Instant,
    calling: Calling,
    connected: bool,
}

/// An authenticated connection.
pub struct Answered {
    pub stream: TcpStream,
    pub session: Session,
}

/// Why a call failed.
#[derive(Debug)]
pub enum Missed {
    /// A network error, or nothing listens there: the error text.
    Network(String),
    /// This process may open no more files.
    OwnLimit(String),
    /// A stranger answered.
    Stranger(Stranger),
    /// The host belongs to the job and refuses this rank.
    Refused(Verdict),
}

impl Missed {
    fn network(error: &io::Error) -> Missed {
        match Errno::from_io_error(error) {
            Some(Errno::MFILE) => Missed::OwnLimit(
                "this process has too many open files to connect to the other ranks; raise its limit (ulimit -n)"
                    .into(),
            ),
            Some(Errno::NFILE) => Missed::OwnLimit(
                "this host has too many open files to connect to the other ranks; raise its limit (sysctl fs.file-max)"
                    .into(),
            ),
            _ => Missed::Network(text::plain(error)),
        }
    }

    /// An error message about rank `host` at `address`.
    pub fn describe(&self, host: u32, address: &str) -> String {
        let who = format!("rank {host} ({address})");
        match self {
            Missed::Network(why) => format!("{who}: {why}"),
            Missed::OwnLimit(why) => why.clone(),
            Missed::Stranger(stranger) => stranger.describe(address),
            Missed::Refused(Verdict::OtherJob) => format!("{who} belongs to another run of the job"),
            Missed::Refused(Verdict::OtherWorld) => format!("{who} was given another world size; is WORLD_SIZE wrong?"),
            Missed::Refused(Verdict::OtherStreams) => {
                format!("{who} was told of another number of data streams between it and this rank")
            }
            Missed::Refused(_) => format!("{address} is a rank of the job, but not rank {host}"),
        }
    }
}

impl Call {
    /// Begins to connect.
    pub fn begin(address: SocketAddr, secret: &Secret, hello: &Hello) -> Result<Call, Missed> {
        let begin = || {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec().nonblocking(), None)?;
            match socket.connect(&address.into()) {
                Err(error) if Errno::from_io_error(&error) != Some(Errno::INPROGRESS) => return Err(error),
                _ => {}
            }
            let stream = TcpStream::from(socket);
            prepare(&stream)?;
            Ok(stream)
        };
        let stream = begin().map_err(|error| Missed::network(&error))?;
        let calling = Calling::new(secret.clone(), hello);
        Ok(Call { stream, address, since: Instant::now(), calling, connected: false })
    }

    /// The descriptor and events to poll.
    pub fn fd(&self) -> PollFd<'_> {
        PollFd::new(&self.stream, if self.connected { PollFlags::IN } else { PollFlags::OUT })
    }

    /// When it times out.
    pub fn until(&self) -> Instant {
        self.since + LIMIT
    }

    /// Makes progress without waiting. `None` if it is not complete.
    pub fn work(&mut self) -> Result<Option<Session>, Missed> {
        if !self.connected && !self.connect()? {
            return self.waits();
        }
        loop {
            match self.stream.read(self.calling.space()) {
                Ok(0) => return Err(Missed::Network("closed the connection during the handshake".into())),
                Ok(count) => match self.calling.receive(count).map_err(Missed::Stranger)? {
                    Answer::More => {}
                    Answer::Challenge(proof) => self.send(&proof)?,
                    Answer::Verdict(Verdict::Welcome, session) => return Ok(Some(session)),
                    Answer::Verdict(verdict, _) => return Err(Missed::Refused(verdict)),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.waits(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Missed::network(&error)),
            }
        }
    }

    /// The connection, once [`work`](Call::work) has returned its session.
    pub fn answered(self, session: Session) -> Answered {
        Answered { stream: self.stream, session }
    }

    /// Whether the socket is connected; if so, sends the hello.
    fn connect(&mut self) -> Result<bool, Missed> {
        if let Some(error) = self.stream.take_error().map_err(|error| Missed::network(&error))? {
            return Err(Missed::network(&error));
        }
        match self.stream.peer_addr() {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
            Err(error) => return Err(Missed::network(&error)),
        }
        // Connecting to a local port on which nothing listens, by chance from that very port, connects a socket to
        // itself (simultaneous open, RFC 9293 3.5), and blocks the port for its listener.
        if self.stream.local_addr().is_ok_and(|own| own == self.address) {
            return Err(Missed::network(&ErrorKind::ConnectionRefused.into()));
        }
        self.connected = true;
        let hello = self.calling.hello();
        self.send(&hello).map(|()| true)
    }

    fn send(&mut self, message: &[u8]) -> Result<(), Missed> {
        match self.stream.write(message) {
            Ok(count) if count == message.len() => Ok(()),
            Ok(_) => Err(Missed::Network("does not accept data".into())),
            Err(error) => Err(Missed::network(&error)),
        }
    }

    fn waits<T>(&self) -> Result<Option<T>, Missed> {
        if Instant::now() < self.until() {
            return Ok(None);
        }
        Err(Missed::Network(if self.connected { "does not complete the handshake" } else { "does not answer" }.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_this_process_is_not_blamed_on_the_other_rank() {
        for (errno, remedy) in [(Errno::MFILE, "(ulimit -n)"), (Errno::NFILE, "(sysctl fs.file-max)")] {
            let missed = Missed::network(&errno.into());
            let text = missed.describe(0, "host:1");
            assert!(
                matches!(missed, Missed::OwnLimit(_)) && text.ends_with(remedy) && !text.contains("rank 0"),
                "{text}"
            );
        }
        let refused = Missed::network(&Errno::CONNREFUSED.into());
        assert_eq!(refused.describe(0, "host:1"), "rank 0 (host:1): connection refused");
    }
}
