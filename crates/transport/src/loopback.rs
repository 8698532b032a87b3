//! From a process to itself: a worker that is also a server or a switch talks to its own roles.
//!
//! Each pair of roles has a bounded queue of its own, as processes apart would have a channel each. In one queue for all,
//! what a role sends would wait behind what another one may not take yet: a worker that fills the queue for a switch would
//! keep the switch from passing on its sum, without which it takes nothing more.
use std::collections::VecDeque;

use crate::channel::Sink;
use crate::header::FragmentHeader;

/// Bounded queues of copies.
pub struct Loopback {
    /// Most payload bytes of a fragment.
    fragment: usize,
    /// Most fragments of a queue.
    fragments: usize,
    /// A process plays a handful of roles: looking through the few queues is faster than hashing.
    queues: Vec<Queue>,
    /// Fragments of all queues.
    held: usize,
    spare: Vec<Vec<u8>>,
}

/// Communicator, sender and receiver.
type Roles = (u32, u16, u16);

#[derive(Default)]
struct Queue {
    /// None after the communicator is gone: the next pair of roles takes the queue over.
    roles: Option<Roles>,
    fragments: VecDeque<(FragmentHeader, Vec<u8>)>,
}

impl Loopback {
    /// No queues yet; `fragments` of at most `fragment` bytes from one role to another.
    #[must_use]
    pub fn new(fragment: usize, fragments: usize) -> Loopback {
        Loopback { fragment, fragments, queues: Vec::new(), held: 0, spare: Vec::new() }
    }

    fn queue(&mut self, roles: Roles) -> &mut VecDeque<(FragmentHeader, Vec<u8>)> {
        let of = |roles| move |queue: &Queue| queue.roles == roles;
        let found = self.queues.iter().position(of(Some(roles))).or_else(|| self.queues.iter().position(of(None)));
        let number = found.unwrap_or_else(|| {
            self.queues.push(Queue::default());
            self.queues.len() - 1
        });
        let queue = &mut self.queues[number];
        queue.roles = Some(roles);
        &mut queue.fragments
    }

    /// Takes a copy of the fragment, or refuses it because its queue is full (`false`).
    pub fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> bool {
        let (most, spare) = (self.fragments, self.spare.pop());
        let queue = self.queue((header.group, header.from, header.to));
        if queue.len() >= most {
            self.spare.extend(spare);
            return false;
        }
        let mut copy = spare.unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(payload);
        queue.push_back((*header, copy));
        self.held += 1;
        true
    }

    /// Queues that may hold something are numbered below this.
    #[must_use]
    pub fn queues(&self) -> usize {
        if self.held == 0 { 0 } else { self.queues.len() }
    }

    /// The header of a queue's next fragment.
    #[must_use]
    pub fn front(&self, queue: usize) -> Option<FragmentHeader> {
        self.queues.get(queue)?.fragments.front().map(|(header, _)| *header)
    }

    /// Takes it.
    pub fn take(&mut self, queue: usize, sink: Sink<'_>) -> bool {
        let Some((_, payload)) = self.queues.get_mut(queue).and_then(|queue| queue.fragments.pop_front()) else {
            return false;
        };
        self.held -= 1;
        match sink {
            Sink::Into(to) => to.copy_from_slice(&payload),
            Sink::Show(show) => show(0, &payload),
            Sink::Drop => {}
        }
        // As many as were ever held at once, and no more are ever made.
        self.spare.push(payload);
        true
    }

    /// A communicator is gone, and what was sent in it.
    pub fn forget(&mut self, group: u32) {
        for queue in self.queues.iter_mut().filter(|queue| queue.roles.is_some_and(|(of, ..)| of == group)) {
            self.held -= queue.fragments.len();
            *queue = Queue::default();
        }
    }

    /// Payload bytes of a fragment.
    #[must_use]
    pub fn fragment(&self) -> usize {
        self.fragment
    }
}
