//! Control messages between the two ends of a multicast, over a TCP connection of their own: what the receiver has taken,
//! what it lacks, and repairs. The connection is reliable, so nothing is sent twice.
use std::io::{self, ErrorKind, Read, Write};

use paceline_os::event::{PollFd, PollFlags};
use paceline_os::net::TcpStream;

/// Layout: kind (4 bytes), group (4), two numbers (8 each); a repair is followed by its body.
const HEAD: usize = 24;
/// Queued bytes above which no repair is added.
const ENOUGH: usize = 128 << 10;
/// Bytes read at once.
const STEP: usize = 64 << 10;

/// A message about the sender's stream for a group.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ControlMessage<'a> {
    /// From the sender: announces a stream, and the role of the receiver.
    Open { role: u32 },
    /// From the receiver: it has taken all datagrams below this number.
    Taken { below: u64 },
    /// From the receiver: these datagrams are missing.
    Missing { from: u64, below: u64 },
    /// From the sender: it has sent all datagrams below this number.
    Sent { below: u64 },
    /// From the sender: a missing datagram as header and payload, and whether it ends its message.
    Repair { number: u64, last: bool, body: &'a [u8] },
    /// From the receiver: it wants no more of this stream.
    Enough,
}

impl ControlMessage<'_> {
    fn head(&self, group: u32) -> [u8; HEAD] {
        let (kind, a, b): (u32, u64, u64) = match *self {
            ControlMessage::Open { role } => (0, role.into(), 0),
            ControlMessage::Taken { below } => (1, below, 0),
            ControlMessage::Missing { from, below } => (2, from, below),
            ControlMessage::Sent { below } => (3, below, 0),
            ControlMessage::Repair { number, last, body } => (4, number, (body.len() as u64) << 1 | u64::from(last)),
            ControlMessage::Enough => (5, 0, 0),
        };
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[4..8].copy_from_slice(&group.to_le_bytes());
        head[8..16].copy_from_slice(&a.to_le_bytes());
        head[16..].copy_from_slice(&b.to_le_bytes());
        head
    }
}

/// Parses the first message: its group, the message, its length. `None` if it is incomplete.
fn parse(bytes: &[u8], longest: usize) -> io::Result<Option<(u32, ControlMessage<'_>, usize)>> {
    let wrong = || io::Error::new(ErrorKind::InvalidData, "the peer sent an invalid multicast control message");
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap_or_default());
    let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default());
    let (group, a, b) = (u32_at(4), u64_at(8), u64_at(16));
    let message = match u32_at(0) {
        0 => ControlMessage::Open { role: u32::try_from(a).map_err(|_| wrong())? },
        1 => ControlMessage::Taken { below: a },
        2 => ControlMessage::Missing { from: a, below: b },
        3 => ControlMessage::Sent { below: a },
        4 => {
            let length = usize::try_from(b >> 1).map_err(|_| wrong())?;
            if length > longest {
                return Err(wrong());
            }
            let Some(body) = bytes.get(HEAD..HEAD + length) else { return Ok(None) };
            return Ok(Some((group, ControlMessage::Repair { number: a, last: b & 1 == 1, body }, HEAD + length)));
        }
        5 => ControlMessage::Enough,
        _ => return Err(wrong()),
    };
    Ok(Some((group, message, HEAD)))
}

/// A control connection to one rank. Never blocks.
pub(super) struct ControlConnection {
    socket: TcpStream,
    /// The first `filled` bytes are an incomplete message.
    incoming: Vec<u8>,
    filled: usize,
    outgoing: Vec<u8>,
    written: usize,
}

impl ControlConnection {
    pub fn new(socket: TcpStream) -> io::Result<ControlConnection> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(ControlConnection { socket, incoming: Vec::new(), filled: 0, outgoing: Vec::new(), written: 0 })
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Sends a message, or queues it until there is room.
    pub fn write(&mut self, group: u32, message: &ControlMessage<'_>) -> io::Result<()> {
        self.outgoing.extend_from_slice(&message.head(group));
        if let ControlMessage::Repair { body, .. } = message {
            self.outgoing.extend_from_slice(body);
        }
        self.flush()
    }

    /// Whether a repair should wait.
    pub fn busy(&self) -> bool {
        self.outgoing.len() - self.written > ENOUGH
    }

    /// Whether bytes are queued.
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

    /// Passes each received message to `handle`. Bodies have at most `longest` bytes.
    pub fn read(&mut self, longest: usize, mut handle: impl FnMut(u32, ControlMessage<'_>)) -> io::Result<()> {
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
        while let Some((group, message, length)) = parse(&self.incoming[at..self.filled], longest)? {
            handle(group, message);
            at += length;
        }
        self.incoming.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    /// Adds the socket to poll if bytes are queued.
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
    fn messages_arrive_as_they_were_sent() {
        let body = [1, 2, 3];
        let messages = [
            ControlMessage::Open { role: 7 },
            ControlMessage::Taken { below: u64::MAX },
            ControlMessage::Missing { from: 3, below: 9 },
            ControlMessage::Sent { below: 5 },
            ControlMessage::Repair { number: 6, last: true, body: &body },
            ControlMessage::Enough,
        ];
        for message in messages {
            let mut bytes = message.head(11).to_vec();
            if let ControlMessage::Repair { body, .. } = message {
                bytes.extend(body);
            }
            assert_eq!(parse(&bytes, 3).unwrap(), Some((11, message, bytes.len())));
            assert_eq!(parse(&bytes[..bytes.len() - 1], 3).unwrap(), None);
        }
        let long = ControlMessage::Repair { number: 6, last: true, body: &body };
        assert!(parse(&long.head(11), 2).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_messages_or_none(mut bytes in vec(any::<u8>(), 0..80)) {
            bytes.iter_mut().take(1).for_each(|kind| *kind %= 7);
            bytes.iter_mut().skip(1).take(3).for_each(|kind| *kind = 0);
            if let Ok(Some((_, _, length))) = parse(&bytes, 40) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
