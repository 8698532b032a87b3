//! Receives datagrams: those of the job's ranks go to their streams, others are counted.
use std::io::{ErrorKind, IoSliceMut};

use paceline_os::net::RecvMeta;

use super::Multicast;
use super::datagram::payload;
use super::port::COMES_AT_ONCE;

/// Buffers per receive call, each of which may get several datagrams, and calls per turn.
const BUFFERS: usize = 4;
const LOOK: u32 = 4;

/// Buffers that the system fills.
pub(super) fn buffers() -> Vec<Vec<u8>> {
    vec![vec![0; COMES_AT_ONCE]; BUFFERS]
}

impl Multicast {
    /// Receives datagrams.
    pub(super) fn receive(&mut self) {
        let mut buffers = std::mem::take(&mut self.buffers);
        for _ in 0..LOOK {
            let mut found = [RecvMeta::default(); BUFFERS];
            let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
            match self.port.receive(&mut slices, &mut found) {
                Ok(count) => {
                    for (buffer, found) in buffers.iter().zip(&found[..count]) {
                        buffer[..found.len].chunks(found.stride.max(1)).for_each(|datagram| self.came(datagram));
                    }
                    if count < BUFFERS && self.disturber.is_none() {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.release(true);
                    break;
                }
            }
        }
        self.buffers = buffers;
    }

    fn came(&mut self, datagram: &[u8]) {
        let Some(disturber) = &mut self.disturber else { return self.accept(datagram) };
        disturber.pass();
        for _ in 0..disturber.times(datagram) {
            self.accept(datagram);
        }
        self.release(false);
    }

    fn release(&mut self, quiet: bool) {
        while let Some(datagram) = self.disturber.as_mut().and_then(|disturber| disturber.release(quiet)) {
            self.accept(&datagram);
        }
    }

    /// Passes a datagram to its stream, if it has one.
    fn accept(&mut self, datagram: &[u8]) {
        let Some(head) = self.key.read(datagram).filter(|head| head.header.bytes as usize <= self.payload) else {
            self.counters.strangers += 1;
            return;
        };
        if head.sender == self.me {
            return;
        }
        let stream = self.comes_from.get(&(head.sender, head.header.group));
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
        stream.put(head.number, head.header, head.last, payload(datagram), self.spare.pop().unwrap_or_default());
        self.counters.received += 1;
        self.moved(head.sender, datagram.len());
    }
}
