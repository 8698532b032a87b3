//! The memory of an aggregating switch.
//!
//! A partial sum needs memory from its first contribution until the sum has been sent. If there is none, a message
//! waits at its sender, and blocks all messages behind it: the link to the switch is lossless, as with SHARP (R. Graham
//! et al., "Scalable Hierarchical Aggregation Protocol", COMHPC 2016). All workers send in the same order, so open sums
//! get their contributions before anything that waits for memory: there is no deadlock.
use std::collections::{HashSet, VecDeque};

use crate::event::Event;

pub(crate) struct Memory<C> {
    capacity: u64,
    used: u64,
    open: HashSet<(u32, u32, u32)>,
    waiting: Vec<VecDeque<Event<C>>>,
}

impl<C: Copy> Memory<C> {
    pub fn new(capacity: u64, workers: u32) -> Self {
        let waiting = (0..workers).map(|_| VecDeque::new()).collect();
        Memory { capacity, used: 0, open: HashSet::new(), waiting }
    }

    fn fits(&mut self, event: &Event<C>) -> bool {
        let sum = (u32::from(event.dst), event.inst, event.lane);
        if !self.open.contains(&sum) {
            if self.used + event.bytes > self.capacity {
                return false;
            }
            self.used += event.bytes;
            self.open.insert(sum);
        }
        true
    }

    /// Whether a worker may send this to the switch now; if not, the message is kept.
    pub fn admit(&mut self, event: Event<C>) -> bool {
        let line = usize::from(event.src);
        if self.waiting[line].is_empty() && self.fits(&event) {
            return true;
        }
        self.waiting[line].push_back(event);
        false
    }

    /// A sum has been sent and its memory is free. Returns the messages that may be sent now.
    pub fn release(&mut self, switch: u32, inst: u32, lane: u32, bytes: u64) -> Vec<Event<C>> {
        if self.open.remove(&(switch, inst, lane)) {
            self.used -= bytes;
        }
        let mut admitted = Vec::new();
        for line in 0..self.waiting.len() {
            while let Some(&event) = self.waiting[line].front() {
                if !self.fits(&event) {
                    break;
                }
                self.waiting[line].pop_front();
                admitted.push(event);
            }
        }
        admitted
    }
}
