//! Handles what other ranks report about their streams and ours.
use super::Multicast;
use super::control::ControlMessage;
use super::incoming::Incoming;
use crate::header::HEADER_BYTES;

impl Multicast {
    /// Reads the control messages of a rank.
    pub(super) fn read_control(&mut self, rank: u32) {
        let Some(mut control) = self.controls[rank as usize].take() else { return };
        let result = control.read(HEADER_BYTES + self.payload, |group, message| self.dispatch(rank, group, &message));
        self.controls[rank as usize] = Some(control);
        if let Err(error) = result {
            self.lost.push((rank, error));
            self.bury();
        }
    }

    fn dispatch(&mut self, rank: u32, group: u32, message: &ControlMessage<'_>) {
        // How far a receiver is, and repairs.
        self.moved(rank, 1);
        match *message {
            ControlMessage::Open { role } => self.open(rank, group, role),
            ControlMessage::Sent { below } => {
                if let Some(stream) = self.stream_from(rank, group) {
                    stream.sent(below);
                }
            }
            ControlMessage::Repair { number, last, body } => {
                let memory = self.spare.pop().unwrap_or_default();
                match self.stream_from(rank, group).filter(|stream| stream.lacks(number)) {
                    Some(stream) => stream.repaired(number, last, body, memory),
                    None => self.keep(memory),
                }
            }
            ControlMessage::Taken { .. } | ControlMessage::Missing { .. } | ControlMessage::Enough => {
                let index = self.sends_to.get(&group);
                let Some(stream) = index.and_then(|&index| self.outgoing[index].as_mut()) else { return };
                match *message {
                    ControlMessage::Taken { below } => stream.taken(rank, below),
                    ControlMessage::Missing { from, below } => self.counters.lost += stream.lacks(rank, from, below),
                    _ => stream.without(rank),
                }
            }
        }
    }

    fn stream_from(&mut self, rank: u32, group: u32) -> Option<&mut Incoming> {
        self.comes_from.get(&(rank, group)).and_then(|&index| self.incoming[index].as_mut())
    }

    /// A rank opens a stream. Streams of groups that are gone are refused.
    fn open(&mut self, rank: u32, group: u32, role: u32) {
        if self.gone.contains(&group) {
            paceline_os::reached!("multicast: stream of a destroyed communicator refused");
            self.refused.push((rank, group));
        } else if !self.comes_from.contains_key(&(rank, group)) {
            self.comes_from.insert((rank, group), self.incoming.len());
            self.incoming.push(Some(Incoming::new(rank, group, role, self.window)));
        }
    }
}
