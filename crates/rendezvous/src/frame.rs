//! Authenticated messages on an authenticated connection, without blocking.
//!
//! A frame is kind (1 byte), length (8, big-endian), payload, MAC (32). The MAC can be checked only when the frame is
//! complete, so the length is checked against what the receiver expects, and memory is allocated as bytes arrive.
use std::io::{self, ErrorKind, Read, Write};

use paceline_os::sync::Arc;

use super::proof::Session;
use super::wire::PROOF;

const HEADER: usize = 9;
/// Longest reason of an abort.
const MAX_REASON: usize = 4096;
/// Most memory allocated ahead of the bytes.
const STEP: usize = 64 << 10;

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// One blob or all blobs, depending on what the reader was created for.
    Wanted(Vec<u8>),
    /// The sender gives up for this reason.
    Abort(String),
}

impl Frame {
    /// Kind of a rank's blob.
    pub const BLOB: u8 = 1;
    /// Kind of all ranks' blobs.
    pub const GATHERED: u8 = 2;
    /// Kind of an abort.
    pub const ABORT: u8 = 3;
}

/// Why no frame can be read.
#[derive(Debug)]
pub enum Broken {
    /// The connection ended.
    Closed,
    /// The connection failed.
    Io(io::Error),
    /// Unexpected kind, too long, or wrong MAC.
    Forged,
}

/// Reads one frame.
pub struct Reader {
    kind: u8,
    limit: usize,
    bytes: Vec<u8>,
    filled: usize,
}

impl Reader {
    /// Reads a frame of this kind with at most `limit` bytes, or an abort.
    pub fn new(kind: u8, limit: usize) -> Reader {
        Reader { kind, limit, bytes: Vec::new(), filled: 0 }
    }

    /// Reads what has arrived. `None` if the frame is not complete.
    pub fn read(&mut self, stream: &mut impl Read, session: &mut Session) -> Result<Option<Frame>, Broken> {
        loop {
            let length = self.length()?;
            if self.filled == length {
                return self.take(session).map(Some);
            }
            self.bytes.resize(length.min(self.filled + STEP), 0);
            match stream.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Err(Broken::Closed),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Broken::Io(error)),
            }
        }
    }

    /// Length of the frame as far as it is known: at first only of its header.
    fn length(&self) -> Result<usize, Broken> {
        let Some(header) = self.bytes[..self.filled].first_chunk::<HEADER>() else { return Ok(HEADER) };
        let limit = match header[0] {
            Frame::ABORT => MAX_REASON,
            kind if kind == self.kind => self.limit,
            _ => return Err(Broken::Forged),
        };
        let length = header[1..].iter().fold(0, |length: u64, byte| length << 8 | u64::from(*byte));
        match usize::try_from(length) {
            Ok(length) if length <= limit => Ok(HEADER + length + PROOF),
            _ => Err(Broken::Forged),
        }
    }

    fn take(&mut self, session: &mut Session) -> Result<Frame, Broken> {
        let (header, rest) = self.bytes.split_at(HEADER);
        let (payload, mac) = rest.split_at(rest.len() - PROOF);
        if !session.verify(header, payload, mac) {
            return Err(Broken::Forged);
        }
        let kind = header[0];
        self.filled = 0;
        let mut payload = std::mem::take(&mut self.bytes);
        payload.drain(..HEADER);
        payload.truncate(payload.len() - PROOF);
        Ok(if kind == Frame::ABORT { Frame::Abort(one_line(&payload)) } else { Frame::Wanted(payload) })
    }
}

/// A reason comes from another rank, so control characters must not reach the terminal.
fn one_line(reason: &[u8]) -> String {
    String::from_utf8_lossy(reason).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Writes one frame. Several writers may share a payload.
pub struct Writer {
    header: [u8; HEADER],
    payload: Arc<[u8]>,
    mac: [u8; PROOF],
    sent: usize,
}

impl Writer {
    /// Signs the payload as the next frame of the session.
    pub fn new(kind: u8, payload: Arc<[u8]>, session: &mut Session) -> Writer {
        let mut header = [kind; HEADER];
        header[1..].copy_from_slice(&(payload.len() as u64).to_be_bytes());
        let mac = session.sign(&header, &payload);
        Writer { header, payload, mac, sent: 0 }
    }

    /// An abort with this reason.
    pub fn abort(reason: &str, session: &mut Session) -> Writer {
        let end = (0..=reason.len().min(MAX_REASON)).rev().find(|&at| reason.is_char_boundary(at));
        Writer::new(Frame::ABORT, reason.as_bytes()[..end.unwrap_or(0)].into(), session)
    }

    /// Writes as much as there is room for. Returns true once all is written.
    pub fn write(&mut self, stream: &mut impl Write) -> io::Result<bool> {
        loop {
            let mut skip = self.sent;
            let mut rest: &[u8] = &[];
            for part in [&self.header[..], &self.payload, &self.mac] {
                if skip < part.len() {
                    rest = &part[skip..];
                    break;
                }
                skip -= part.len();
            }
            if rest.is_empty() {
                return Ok(true);
            }
            match stream.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::proof::{End, Transcript};
    use super::super::secret::Secret;
    use super::super::wire::{CHALLENGE, HELLO};
    use super::*;

    fn sessions() -> (Session, Session) {
        let transcript = Transcript::new(&[1; HELLO], &[2; CHALLENGE]);
        let secret = Secret::from_text("the secret of the job").unwrap();
        (transcript.session(&secret, End::Caller), transcript.session(&secret, End::Host))
    }

    fn written(mut writer: Writer) -> Vec<u8> {
        let mut bytes = Vec::new();
        assert!(writer.write(&mut bytes).unwrap());
        bytes
    }

    #[test]
    fn frames_arrive_once_in_order_unchanged() {
        let (mut caller, mut host) = sessions();
        let payload: Vec<u8> = (0..200_000_u32).map(|i| i as u8).collect();
        let first = written(Writer::new(Frame::BLOB, payload.clone().into(), &mut caller));
        let second = written(Writer::abort("no\nmore", &mut caller));
        let mut reader = Reader::new(Frame::BLOB, payload.len());
        assert_eq!(reader.read(&mut &first[..], &mut host).unwrap(), Some(Frame::Wanted(payload)));
        assert_eq!(reader.read(&mut &second[..], &mut host).unwrap(), Some(Frame::Abort("no more".into())));
        assert!(matches!(reader.read(&mut &second[..], &mut host), Err(Broken::Forged)), "a replay");
        let (mut caller, _) = sessions();
        let own = written(Writer::abort("no", &mut caller));
        assert!(matches!(Reader::new(1, 9).read(&mut &own[..], &mut caller), Err(Broken::Forged)), "a reflection");
        for at in 0..own.len() {
            let (_, mut host) = sessions();
            let mut changed = own.clone();
            changed[at] ^= 1;
            // A changed length may also make the reader wait for bytes that never arrive.
            let outcome = Reader::new(1, 9).read(&mut &changed[..], &mut host);
            assert!(matches!(outcome, Err(Broken::Forged | Broken::Closed)), "byte {at}");
        }
    }

    #[test]
    fn a_huge_length_takes_no_memory() {
        let (_, mut host) = sessions();
        let mut header = [0xff; 100];
        header[0] = Frame::BLOB;
        let mut reader = Reader::new(Frame::BLOB, 64 << 10);
        assert!(matches!(reader.read(&mut &header[..], &mut host), Err(Broken::Forged)));
        assert!(reader.bytes.capacity() <= STEP);
    }
}
