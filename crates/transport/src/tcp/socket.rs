//! A socket that is called only when it may be readable or writable.
use std::io::{self, ErrorKind, IoSlice, Read, Write};

use paceline_os::net::TcpStream;
use paceline_os::sync::Arc;

use crate::readiness::Ready;
use crate::traffic::Traffic;

pub(super) struct Socket {
    stream: TcpStream,
    /// A `ReadySet` reports changes; without one, every call asks the system.
    joined: bool,
    /// A read may return data.
    readable: bool,
    /// A write may find room.
    writable: bool,
    /// The set reports the end of a connection once, perhaps before all data has been read.
    ended: bool,
    traffic: Arc<Traffic>,
}

/// Bytes moved; 0 if it would block. An interrupted call is repeated, because nothing would report it.
fn unblocked(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl Socket {
    pub fn new(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Socket { stream, joined: false, readable: true, writable: true, ended: false, traffic: Arc::default() })
    }

    pub fn count(&mut self, traffic: &Arc<Traffic>) {
        self.traffic = traffic.clone();
    }

    /// Bytes written that the peer's system has not acknowledged: SIOCOUTQ, tcp(7).
    pub fn unacknowledged(&self) -> usize {
        paceline_os::net::unacknowledged(&self.stream).unwrap_or(0)
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub fn joined(&self) -> bool {
        self.joined
    }

    /// From now on, a `ReadySet` reports changes.
    pub fn join(&mut self) {
        self.joined = true;
    }

    pub fn report(&mut self, ready: Ready) {
        self.ended |= ready.ended;
        self.readable |= ready.read || self.ended;
        self.writable |= ready.write || self.ended;
    }

    /// Reads bytes; 0 if there are none.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !self.readable {
            return Ok(0);
        }
        let read = unblocked(|| match (&self.stream).read(into) {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed")),
            other => other,
        })?;
        // Less than requested is all there is: another call would return nothing.
        self.readable = !self.joined || self.ended || read == into.len();
        self.traffic.receive(read);
        Ok(read)
    }

    /// Writes these parts, in order. Returns the bytes written, 0 if there is no room.
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.writable {
            return Ok(0);
        }
        let written = unblocked(|| (&self.stream).write_vectored(parts))?;
        self.writable = !self.joined || self.ended || written == parts.iter().map(|part| part.len()).sum::<usize>();
        self.traffic.send(written);
        Ok(written)
    }
}
