//! Sends from a process to itself: a worker that is also a server or a switch exchanges messages between its own roles.
//!
//! Each pair of roles has its own bounded queue, just as separate processes would have a channel each. In a shared
//! queue, messages of one role would wait behind those that another role cannot take yet. A worker that fills the queue
//! for a switch would keep the switch from passing on its sum, and until it does, the switch takes nothing more.
use std::collections::VecDeque;

use crate::channel::Sink;
use crate::header::FragmentHeader;

/// Bounded queues of copies.
pub struct Loopback {
    /// Largest payload of a fragment, bytes.
    fragment: usize,
    /// Most fragments in a queue.
    fragments: usize,
    /// A process has a handful of roles: searching the few queues is faster than hashing.
    queues: Vec<Queue>,
    /// Fragments in all queues.
    held: usize,
    spare: Vec<Vec<u8>>,
}

/// Communicator, sender and receiver.
type Roles = (u32, u16, u16);

#[derive(Default)]
struct Queue {
    /// `None` after the communicator has been freed: the next pair of roles reuses the queue.
    roles: Option<Roles>,
    fragments: VecDeque<(FragmentHeader, Vec<u8>)>,
}

impl Loopback {
    /// No queues yet; each will hold `fragments` fragments of at most `fragment` bytes.
    #[must_use]
    pub fn new(fragment: usize, fragments: usize) -> Loopback {
        Loopback { fragment, fragments, queues: Vec::new(), held: 0, spare: Vec::new() }
    }

    fn queue(&mut self, roles: Roles) -> &mut VecDeque<(FragmentHeader, Vec<u8>)> {
        let roles = if paceline_os::mutant("one loopback queue") { (roles.0, 0, 0) } else { roles };
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

    /// Queues a copy of the fragment; `false` if its queue is full.
    pub fn send(&mut self, header: &FragmentHeader, payload: &[u8]) -> bool {
        let (most, spare) = (self.fragments, self.spare.pop());
        let queue = self.queue((header.group, header.from, header.to));
        if queue.len() >= most {
            paceline_os::reached!("loopback: queue full");
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

    /// Upper bound on the indices of queues in use.
    #[must_use]
    pub fn queues(&self) -> usize {
        if self.held == 0 { 0 } else { self.queues.len() }
    }

    /// The header of a queue's next fragment.
    #[must_use]
    pub fn front(&self, queue: usize) -> Option<FragmentHeader> {
        self.queues.get(queue)?.fragments.front().map(|(header, _)| *header)
    }

    /// Takes the next fragment of a queue.
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
        // At most as many as were ever queued at once.
        self.spare.push(payload);
        true
    }

    /// Frees the queues of a communicator and drops their contents.
    pub fn forget(&mut self, group: u32) {
        for queue in self.queues.iter_mut().filter(|queue| queue.roles.is_some_and(|(of, ..)| of == group)) {
            self.held -= queue.fragments.len();
            *queue = Queue::default();
        }
    }

    /// Largest payload of a fragment, bytes.
    #[must_use]
    pub fn fragment(&self) -> usize {
        self.fragment
    }
}
