//! The channel from a process to itself: a worker that is also a server talks to its own roles.
use std::collections::VecDeque;
use std::io;

use crate::channel::{Channel, Sink};
use crate::tag::Tag;

const FRAGMENT: usize = 64 * 1024;
const SLOTS: usize = 8;

/// A bounded queue of copies.
#[derive(Default)]
pub struct Loopback {
    queue: VecDeque<(Tag, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl Channel for Loopback {
    fn send(&mut self, tag: &Tag, payload: &[u8]) -> io::Result<bool> {
        if self.queue.len() == SLOTS {
            return Ok(false);
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(payload);
        self.queue.push_back((*tag, copy));
        Ok(true)
    }

    fn front(&mut self) -> io::Result<Option<Tag>> {
        Ok(self.queue.front().map(|(tag, _)| *tag))
    }

    fn take(&mut self, sink: Sink<'_>) -> io::Result<bool> {
        let Some((_, payload)) = self.queue.pop_front() else { return Ok(false) };
        match sink {
            Sink::Into(to) => to.copy_from_slice(&payload),
            Sink::Show(show) => show(0, &payload),
            Sink::Drop => {}
        }
        self.spare.push(payload);
        Ok(true)
    }

    fn fragment(&self) -> usize {
        FRAGMENT
    }

    fn name(&self) -> &'static str {
        "self"
    }
}
