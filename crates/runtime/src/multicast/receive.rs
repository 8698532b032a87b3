//! Receiving datagrams: those of the job's ranks go into their streams, others are counted.
use std::io::ErrorKind;

use super::Multicast;
use super::datagram::OVERHEAD;

/// Datagrams that are received in one look.
const LOOK: u32 = 64;

impl Multicast {
    /// Receives datagrams.
    pub(super) fn receive(&mut self) {
        let Some(receiver) = self.port.receiver.take() else { return };
        for _ in 0..LOOK {
            match receiver.recv(&mut self.next) {
                Ok(length) => self.came(length),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.release(true);
                    break;
                }
            }
        }
        self.port.receiver = Some(receiver);
    }

    /// A datagram of this length is in `next`.
    fn came(&mut self, length: usize) {
        let Some(disturber) = &mut self.disturber else { return self.accept(length) };
        disturber.pass();
        let datagram = self.next[..length].to_vec();
        for _ in 0..disturber.times(&datagram) {
            self.next[..length].copy_from_slice(&datagram);
            self.accept(length);
        }
        self.release(false);
    }

    fn release(&mut self, quiet: bool) {
        while let Some(datagram) = self.disturber.as_mut().and_then(|disturber| disturber.release(quiet)) {
            self.next[..datagram.len()].copy_from_slice(&datagram);
            self.accept(datagram.len());
        }
    }

    /// Puts it into its stream, if it belongs to one.
    fn accept(&mut self, length: usize) {
        let datagram = &self.next[..length];
        let Some(head) = self.key.read(datagram).filter(|head| head.tag.bytes as usize <= self.payload) else {
            self.counters.strangers += 1;
            return;
        };
        if head.sender == self.me {
            return;
        }
        let stream = self.comes_from.get(&(head.sender, head.tag.group));
        let Some(stream) = stream.and_then(|&index| self.incoming[index].as_mut()) else {
            self.counters.others += 1;
            return;
        };
        if !stream.lacks(head.number) {
            self.counters.repeated += 1;
            return;
        }
        if !self.key.signed(datagram) {
            self.counters.strangers += 1;
            return;
        }
        let mut memory = self.spare.pop().unwrap_or_default();
        memory.resize(self.payload + OVERHEAD + 1, 0);
        let datagram = std::mem::replace(&mut self.next, memory);
        stream.put(head.number, head.tag, head.last, datagram);
        self.counters.received += 1;
    }
}
