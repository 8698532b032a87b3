//! The memory of aggregating switches.
//!
//! A sum needs memory in each switch of its tree, from its first contribution until the result has left it: as with
//! SHARP, buffers are reserved in the whole tree before anything is sent. If a switch has none left, a message
//! waits at its sender, and blocks all messages behind it: the link to the switch is lossless, as with SHARP (R. Graham
//! et al., "Scalable Hierarchical Aggregation Protocol", COMHPC 2016). All workers send in the same order, so open sums
//! get their contributions before anything that waits for memory: there is no deadlock.
use std::collections::{HashMap, VecDeque};

use crate::event::Event;

pub(crate) struct Memory<C> {
    capacity: u64,
    /// Bytes in use in every switch.
    used: u64,
    /// By operation and lane: the switches that have got something from workers and have not given the result.
    open: HashMap<(u32, u32), Vec<u32>>,
    waiting: Vec<VecDeque<Event<C>>>,
}

impl<C: Copy> Memory<C> {
    pub fn new(capacity: u64, workers: u32) -> Self {
        let waiting = (0..workers).map(|_| VecDeque::new()).collect();
        Memory { capacity, used: 0, open: HashMap::new(), waiting }
    }

    fn fits(&mut self, event: &Event<C>, switch: u32) -> bool {
        let sum = (event.inst, event.lane);
        match self.open.get_mut(&sum) {
            Some(switches) if switches.contains(&switch) => {}
            Some(switches) => switches.push(switch),
            None if self.used + event.bytes > self.capacity => return false,
            None => {
                self.used += event.bytes;
                self.open.insert(sum, vec![switch]);
            }
        }
        true
    }

    /// Whether a worker may send this to the switch now; if not, the message is kept.
    pub fn admit(&mut self, event: Event<C>, switch: u32) -> bool {
        let line = usize::from(event.src);
        if self.waiting[line].is_empty() && self.fits(&event, switch) {
            return true;
        }
        self.waiting[line].push_back(event);
        false
    }

    /// A switch has given its result to a worker or server. If all have, the memory is free. Returns the messages that
    /// may be sent now; `switch_of` is the switch that a message is for.
    pub fn release(&mut self, result: &Event<C>, switch: u32, switch_of: impl Fn(&Event<C>) -> u32) -> Vec<Event<C>> {
        let sum = (result.inst, result.lane);
        let Some(switches) = self.open.get_mut(&sum) else { return Vec::new() };
        switches.retain(|&other| other != switch);
        if !switches.is_empty() {
            return Vec::new();
        }
        self.open.remove(&sum);
        self.used -= result.bytes;
        let mut admitted = Vec::new();
        for line in 0..self.waiting.len() {
            while let Some(&event) = self.waiting[line].front() {
                if !self.fits(&event, switch_of(&event)) {
                    break;
                }
                self.waiting[line].pop_front();
                admitted.push(event);
            }
        }
        admitted
    }
}
