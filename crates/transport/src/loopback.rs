//! From a process to itself: a worker that is also a server or a switch talks to its own roles.
//!
//! Each pair of roles has a bounded queue of its own, as processes apart would have a channel each. In one queue for all,
//! what a role sends would wait behind what another one may not take yet: a worker that fills the queue for a switch would
//! keep the switch from passing on its sum, without which it takes nothing more.
use std::collections::{HashMap, VecDeque};

use crate::channel::Sink;
use crate::tag::Tag;

/// Bounded queues of copies.
pub struct Loopback {
    /// Most payload bytes of a fragment.
    fragment: usize,
    /// Most fragments of a queue.
    fragments: usize,
    queues: Vec<VecDeque<(Tag, Vec<u8>)>>,
    /// By communicator, sender and receiver.
    numbers: HashMap<(u32, u16, u16), usize>,
    /// Numbers of queues whose communicator is gone.
    free: Vec<usize>,
    /// Fragments of all queues.
    held: usize,
    spare: Vec<Vec<u8>>,
}

impl Loopback {
    /// No queues yet; `fragments` of at most `fragment` bytes from one role to another.
    #[must_use]
    pub fn new(fragment: usize, fragments: usize) -> Loopback {
        let (queues, numbers, free, spare) = (Vec::new(), HashMap::new(), Vec::new(), Vec::new());
        Loopback { fragment, fragments, queues, numbers, free, held: 0, spare }
    }

    fn queue(&mut self, tag: &Tag) -> &mut VecDeque<(Tag, Vec<u8>)> {
        let (queues, free) = (&mut self.queues, &mut self.free);
        let number = self.numbers.entry((tag.group, tag.from, tag.to)).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                queues.push(VecDeque::new());
                queues.len() - 1
            })
        });
        &mut self.queues[*number]
    }

    /// Takes a copy of the fragment, or refuses it because its queue is full (`false`).
    pub fn send(&mut self, tag: &Tag, payload: &[u8]) -> bool {
        let most = self.fragments;
        if self.queue(tag).len() >= most {
            return false;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(payload);
        self.queue(tag).push_back((*tag, copy));
        self.held += 1;
        true
    }

    /// Queues that may hold something are numbered below this.
    #[must_use]
    pub fn queues(&self) -> usize {
        if self.held == 0 { 0 } else { self.queues.len() }
    }

    /// The tag of a queue's next fragment.
    #[must_use]
    pub fn front(&self, queue: usize) -> Option<Tag> {
        self.queues.get(queue)?.front().map(|(tag, _)| *tag)
    }

    /// Takes it.
    pub fn take(&mut self, queue: usize, sink: Sink<'_>) -> bool {
        let Some((_, payload)) = self.queues.get_mut(queue).and_then(VecDeque::pop_front) else { return false };
        self.held -= 1;
        match sink {
            Sink::Into(to) => to.copy_from_slice(&payload),
            Sink::Show(show) => show(0, &payload),
            Sink::Drop => {}
        }
        if self.spare.len() < self.fragments {
            self.spare.push(payload);
        }
        true
    }

    /// A communicator is gone, and what was sent in it.
    pub fn forget(&mut self, group: u32) {
        let (queues, free, held) = (&mut self.queues, &mut self.free, &mut self.held);
        self.numbers.retain(|&(of, ..), number| {
            if of == group {
                *held -= queues[*number].len();
                queues[*number].clear();
                free.push(*number);
            }
            of != group
        });
    }

    /// Payload bytes of a fragment.
    #[must_use]
    pub fn fragment(&self) -> usize {
        self.fragment
    }
}
