//! One connection that carries whole fragments and never blocks.
use std::io::{self, ErrorKind, IoSlice};

use paceline_os::net::TcpStream;

use super::FRAGMENT;
use super::socket::Socket;
use crate::channel::Sink;
use crate::header::{FragmentHeader, HEADER_BYTES};

/// Bytes read along with a header, so that a small message costs one system call; the rest of a large one is read
/// directly to its destination.
const READ_AHEAD: usize = 16 << 10;

pub(super) struct Stream {
    pub socket: Socket,
    /// The rest of the last fragment, which the system did not accept. It is copied so that the fragment's memory is released at
    /// once.
    rest: Vec<u8>,
    written: usize,
    /// The system accepted less than it was given.
    full: bool,
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    front: Option<FragmentHeader>,
    /// Bytes received of the front fragment's payload, in the sink or in the buffer.
    received: usize,
    collected: Vec<u8>,
    collects: bool,
}

impl Stream {
    pub fn new(socket: TcpStream) -> io::Result<Stream> {
        Ok(Stream {
            socket: Socket::new(socket)?,
            rest: Vec::new(),
            written: 0,
            full: false,
            ahead: vec![0; READ_AHEAD].into(),
            start: 0,
            end: 0,
            front: None,
            received: 0,
            collected: Vec::new(),
            collects: false,
        })
    }

    /// Whether the sender waits for room.
    pub fn full(&self) -> bool {
        self.full
    }

    /// Bytes received of the front fragment's payload.
    pub fn arrived(&self) -> usize {
        if self.front.is_some() { self.received } else { 0 }
    }

    pub fn flush(&mut self) -> io::Result<bool> {
        while self.written < self.rest.len() {
            let sent = self.socket.write(&[IoSlice::new(&self.rest[self.written..])])?;
            if sent == 0 {
                return Ok(false);
            }
            self.written += sent;
        }
        self.rest.clear();
        (self.written, self.full) = (0, false);
        Ok(true)
    }

    pub fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> io::Result<bool> {
        if !self.rest.is_empty() && !self.flush()? {
            return Ok(false);
        }
        let head = header.encode();
        let sent = self.socket.write(&[IoSlice::new(&head), IoSlice::new(payload)])?;
        self.full = sent < HEADER_BYTES + payload.len();
        if sent == 0 {
            return Ok(false);
        }
        if self.full {
            paceline_os::reached!("tcp: fragment accepted in part");
            self.rest.extend_from_slice(&head[sent.min(HEADER_BYTES)..]);
            self.rest.extend_from_slice(&payload[sent.saturating_sub(HEADER_BYTES)..]);
        }
        Ok(true)
    }

    pub fn front(&mut self) -> io::Result<Option<FragmentHeader>> {
        if self.front.is_some() {
            return Ok(self.front);
        }
        if self.end - self.start < HEADER_BYTES {
            self.ahead.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            self.end += self.socket.read(&mut self.ahead[self.end..])?;
            if self.end < HEADER_BYTES {
                return Ok(None);
            }
        }
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(&self.ahead[self.start..self.start + HEADER_BYTES]);
        self.start += HEADER_BYTES;
        let header = FragmentHeader::decode(&bytes).filter(|header| header.bytes as usize <= FRAGMENT);
        let header =
            header.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "the peer sent an invalid fragment"))?;
        (self.front, self.received) = (Some(header), 0);
        self.collects = false;
        Ok(self.front)
    }

    pub fn take(&mut self, sink: Sink<'_>) -> io::Result<bool> {
        let Some(header) = self.front else { return Ok(false) };
        let bytes = header.bytes as usize;
        let complete = match sink {
            Sink::Into(to) => {
                if std::mem::take(&mut self.collects) {
                    to[..self.received].copy_from_slice(&self.collected[..self.received]);
                }
                self.read_into(to)?
            }
            Sink::Drop => return self.take(Sink::Show(&mut |_, _| {})),
            Sink::Show(show) => {
                if self.received == 0 && self.end - self.start >= bytes {
                    show(0, &self.ahead[self.start..self.start + bytes]);
                    self.start += bytes;
                    true
                } else {
                    let mut collected = std::mem::take(&mut self.collected);
                    if collected.len() < bytes {
                        collected.resize(bytes, 0);
                    }
                    let result = self.read_into(&mut collected[..bytes]);
                    (self.collected, self.collects) = (collected, true);
                    let complete = result?;
                    if complete {
                        show(0, &self.collected[..bytes]);
                    }
                    complete
                }
            }
        };
        if complete {
            self.front = None;
        }
        Ok(complete)
    }

    /// Continues to fill `to`, which must be the same memory at each call for a fragment.
    fn read_into(&mut self, to: &mut [u8]) -> io::Result<bool> {
        let ready = (self.end - self.start).min(to.len() - self.received);
        to[self.received..self.received + ready].copy_from_slice(&self.ahead[self.start..self.start + ready]);
        self.start += ready;
        self.received += ready;
        if self.received < to.len() {
            self.received += self.socket.read(&mut to[self.received..])?;
        }
        Ok(self.received == to.len())
    }
}
