//! What the two ends of a multicast say to each other over a connection of their own: how far the receiver is, what it
//! lacks, and what it lacked. It is reliable, so that nothing is said twice.
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use rustix::event::{PollFd, PollFlags};

/// Kind (4), group (4), two numbers (8 each); behind a repair its body.
const HEAD: usize = 24;
/// Bytes waiting for room above which no repair is begun.
const ENOUGH: usize = 128 << 10;
/// Read at once.
const STEP: usize = 64 << 10;

/// A message about the sender's stream for a group.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Note<'a> {
    /// From the sender: there will be a stream; what the receiver's role is.
    Open { role: u32 },
    /// From the receiver: all below were taken.
    Taken { below: u64 },
    /// From the receiver: these have not come.
    Missing { from: u64, below: u64 },
    /// From the sender: all below were sent.
    Sent { below: u64 },
    /// From the sender: what had not come: header and payload; whether its message ends with it.
    Repair { number: u64, last: bool, body: &'a [u8] },
    /// From the receiver: it wants no more.
    Enough,
}

impl Note<'_> {
    fn head(&self, group: u32) -> [u8; HEAD] {
        let (kind, a, b): (u32, u64, u64) = match *self {
            Note::Open { role } => (0, role.into(), 0),
            Note::Taken { below } => (1, below, 0),
            Note::Missing { from, below } => (2, from, below),
            Note::Sent { below } => (3, below, 0),
            Note::Repair { number, last, body } => (4, number, (body.len() as u64) << 1 | u64::from(last)),
            Note::Enough => (5, 0, 0),
        };
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[4..8].copy_from_slice(&group.to_le_bytes());
        head[8..16].copy_from_slice(&a.to_le_bytes());
        head[16..].copy_from_slice(&b.to_le_bytes());
        head
    }
}

/// The first note in these bytes, its group and its length; none if it has not come wholly.
fn parse(bytes: &[u8], longest: usize) -> io::Result<Option<(u32, Note<'_>, usize)>> {
    let wrong = || io::Error::new(ErrorKind::InvalidData, "the peer sent what is no message about a multicast");
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap_or_default());
    let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default());
    let (group, a, b) = (u32_at(4), u64_at(8), u64_at(16));
    let note = match u32_at(0) {
        0 => Note::Open { role: u32::try_from(a).map_err(|_| wrong())? },
        1 => Note::Taken { below: a },
        2 => Note::Missing { from: a, below: b },
        3 => Note::Sent { below: a },
        4 => {
            let length = usize::try_from(b >> 1).map_err(|_| wrong())?;
            if length > longest {
                return Err(wrong());
            }
            let Some(body) = bytes.get(HEAD..HEAD + length) else { return Ok(None) };
            return Ok(Some((group, Note::Repair { number: a, last: b & 1 == 1, body }, HEAD + length)));
        }
        5 => Note::Enough,
        _ => return Err(wrong()),
    };
    Ok(Some((group, note, HEAD)))
}

/// A connection to one rank; nothing blocks.
pub(super) struct Link {
    socket: TcpStream,
    /// What has come and is no whole note yet are its first `filled` bytes.
    incoming: Vec<u8>,
    filled: usize,
    outgoing: Vec<u8>,
    written: usize,
}

impl Link {
    pub fn new(socket: TcpStream) -> io::Result<Link> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Link { socket, incoming: Vec::new(), filled: 0, outgoing: Vec::new(), written: 0 })
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Sends a note, or keeps it until there is room.
    pub fn write(&mut self, group: u32, note: &Note<'_>) -> io::Result<()> {
        self.outgoing.extend_from_slice(&note.head(group));
        if let Note::Repair { body, .. } = note {
            self.outgoing.extend_from_slice(body);
        }
        self.flush()
    }

    /// Whether a repair should wait.
    pub fn busy(&self) -> bool {
        self.outgoing.len() - self.written > ENOUGH
    }

    /// Whether something waits for room.
    pub fn full(&self) -> bool {
        self.written < self.outgoing.len()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        while self.full() {
            match self.socket.write(&self.outgoing[self.written..]) {
                Ok(sent) => self.written += sent,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if self.written > ENOUGH {
                        self.outgoing.drain(..self.written);
                        self.written = 0;
                    }
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        self.outgoing.clear();
        self.written = 0;
        Ok(())
    }

    /// Hands out the notes that have come. A body has at most `longest` bytes.
    pub fn read(&mut self, longest: usize, mut handle: impl FnMut(u32, Note<'_>)) -> io::Result<()> {
        if self.incoming.len() < self.filled + STEP {
            self.incoming.resize(self.filled + STEP, 0);
        }
        match self.socket.read(&mut self.incoming[self.filled..]) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed")),
            Ok(count) => self.filled += count,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(()),
            Err(e) => return Err(e),
        }
        let mut at = 0;
        while let Some((group, note, length)) = parse(&self.incoming[at..self.filled], longest)? {
            handle(group, note);
            at += length;
        }
        self.incoming.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    /// What becomes writable when something waits for room.
    pub fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.full() {
            fds.push(PollFd::new(&self.socket, PollFlags::OUT));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn notes_come_as_they_were_said() {
        let body = [1, 2, 3];
        let notes = [
            Note::Open { role: 7 },
            Note::Taken { below: u64::MAX },
            Note::Missing { from: 3, below: 9 },
            Note::Sent { below: 5 },
            Note::Repair { number: 6, last: true, body: &body },
            Note::Enough,
        ];
        for note in notes {
            let mut bytes = note.head(11).to_vec();
            if let Note::Repair { body, .. } = note {
                bytes.extend(body);
            }
            assert_eq!(parse(&bytes, 3).unwrap(), Some((11, note, bytes.len())));
            assert_eq!(parse(&bytes[..bytes.len() - 1], 3).unwrap(), None);
        }
        let long = Note::Repair { number: 6, last: true, body: &body };
        assert!(parse(&long.head(11), 2).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_notes_or_none(mut bytes in vec(any::<u8>(), 0..80)) {
            bytes.iter_mut().take(1).for_each(|kind| *kind %= 7);
            bytes.iter_mut().skip(1).take(3).for_each(|kind| *kind = 0);
            if let Ok(Some((_, _, length))) = parse(&bytes, 40) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
