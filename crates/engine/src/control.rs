//! Messages between the monitors of two ranks: short, each preceded by its length.
use std::io::{self, ErrorKind, Read, Write};

use paceline_os::net::Socket;
use paceline_transport::channel::LONGEST_CONTROL_MESSAGE;
use serde::{Deserialize, Serialize};

use super::ledger::{Answer, Called, Done};
use super::orders::Order;
use super::progress::{OperationId, Progress};

/// From one monitor to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// The first message: the sender is connected to all ranks.
    Ready,
    /// The sender begins to leave: it calls nothing more, and completes what it has called.
    Leaving(Called),
    /// The sender leaves.
    Bye(Goodbye),
    /// A communicator has failed. `cause`: what happened first, where `why` may only say what followed from it.
    Abort { group: u32, why: String, remedy: Option<String>, cause: Option<String> },
    /// Asks how far the receiver is with this operation.
    Ask { group: u32, id: OperationId },
    /// The answer to [`Self::Ask`]; also sent without one, about an operation that takes long.
    Tell { group: u32, id: OperationId, answer: Answer, progress: Progress },
    /// The coordinator of a communicator has begun a cycle.
    Invite { group: u32, cycle: u64 },
    /// To a server: an all-reduce that the workers have begun.
    Serve(Order),
    /// Asks for any answer.
    Ping(u64),
    /// The answer, with the same number.
    Pong(u64),
}

/// The last message of a rank that leaves.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Goodbye {
    /// By communicator: what it has done there. Of the messages sent, those to the receiver of this.
    pub done: Vec<(u32, Done)>,
    /// Some of what it sent to the receiver of this may be lost.
    pub undelivered: bool,
    /// Why its first communicator failed, if any has: that is why it leaves.
    pub cause: Option<String>,
    /// Which rank was gone before it, if any: that may be the reason.
    pub after: Option<Departure>,
}

/// A rank that is gone, and how: "has left the job", or "died (connection closed)".
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Departure {
    pub rank: u32,
    pub how: String,
}

impl Departure {
    pub fn left(rank: u32) -> Departure {
        Departure { rank, how: "has left the job".to_owned() }
    }

    /// It died, as far as `how` can be seen from here.
    pub fn died(rank: u32, how: &str) -> Departure {
        Departure { rank, how: format!("died ({how})") }
    }
}

/// A control connection: over TCP, or to the gRPC thread. Never blocks.
pub(super) struct Control {
    pub socket: Socket,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Control {
    pub fn new(socket: Socket) -> io::Result<Control> {
        socket.set_nonblocking(true)?;
        Ok(Control { socket, incoming: Vec::new(), outgoing: Vec::new() })
    }

    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        let text = serde_json::to_vec(message).map_err(io::Error::other)?;
        self.outgoing.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.outgoing.extend_from_slice(&text);
        self.flush()
    }

    /// Whether bytes wait for room.
    pub fn full(&self) -> bool {
        !self.outgoing.is_empty()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match self.socket.write(&self.outgoing) {
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => {
                    // Nobody will read it any more.
                    self.outgoing.clear();
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// The messages that have arrived, and whether the connection has ended.
    pub fn receive(&mut self) -> (Vec<Message>, Option<String>) {
        let mut end = None;
        let mut buffer = [0; 4096];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => end = Some("connection closed".to_owned()),
                Ok(n) => {
                    self.incoming.extend_from_slice(&buffer[..n]);
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => end = Some(format!("connection broke: {e}")),
            }
            break;
        }
        let (mut messages, mut at) = (Vec::new(), 0);
        while let Some(head) = self.incoming.get(at..at + 4) {
            let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if length > LONGEST_CONTROL_MESSAGE {
                end = Some("it sent an invalid message".into());
                break;
            }
            let Some(text) = self.incoming.get(at + 4..at + 4 + length) else { break };
            match serde_json::from_slice(text) {
                Ok(message) => messages.push(message),
                Err(e) => {
                    end = Some(format!("it sent an invalid message: {e}"));
                    break;
                }
            }
            at += 4 + length;
        }
        self.incoming.drain(..at);
        (messages, end)
    }
}
