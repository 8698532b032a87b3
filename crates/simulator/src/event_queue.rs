//! The future events, in order of time.
//!
//! A link's messages reach its far end in the order in which they entered, so only the first of each link needs to be
//! in the event queue; the others wait behind it in a ring buffer. The queue then holds one small item per link instead
//! of every message in flight, which with a parameter server can be tens of thousands. Events that belong to no link
//! are kept in a slab.
use std::collections::VecDeque;

use crate::event::Event;
use crate::path::Chain;
use crate::radix_heap::{RadixHeap, Timed};

#[derive(Clone, Copy)]
struct Item {
    time: u64,
    /// A link, or a slab index if `LOOSE` is set.
    index: u32,
}

impl Timed for Item {
    #[inline]
    fn time(&self) -> u64 {
        self.time
    }
}

const LOOSE: u32 = 1 << 31;

pub(crate) struct EventQueue<C> {
    queue: RadixHeap<Item>,
    links: Vec<VecDeque<Event<C>>>,
    slab: Vec<Event<C>>,
    free: Vec<u32>,
}

impl<C: Chain> EventQueue<C> {
    pub fn new(links: usize) -> Self {
        EventQueue {
            queue: RadixHeap::new(),
            links: (0..links).map(|_| VecDeque::new()).collect(),
            slab: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Adds an event at its time.
    pub fn push(&mut self, event: Event<C>) {
        let time = event.time;
        let place = if let Some(place) = self.free.pop() {
            self.slab[place as usize] = event;
            place
        } else {
            self.slab.push(event);
            self.slab.len() as u32 - 1
        };
        self.queue.push(Item { time, index: place | LOOSE });
    }

    /// Adds a message that leaves a link at its time, not before those that entered the link earlier.
    #[inline]
    pub fn push_behind(&mut self, link: u32, event: Event<C>) {
        let line = &mut self.links[link as usize];
        match line.back() {
            None => {
                self.queue.push(Item { time: event.time, index: link });
                line.push_back(event);
            }
            Some(last) if last.time <= event.time => line.push_back(event),
            // The path behind the link is shorter, so this message overtakes.
            Some(_) => self.push(event),
        }
    }

    /// Whether no event is left at the time of the last one taken.
    pub fn is_moment_over(&self) -> bool {
        self.queue.is_moment_over()
    }

    /// The next event; one of kind `Nothing` if there is none. (The memory layout of an optional event would make every
    /// copy of it stall.)
    #[inline]
    pub fn pop(&mut self) -> Event<C> {
        let Some(item) = self.queue.pop() else { return Event::nothing() };
        if item.index & LOOSE != 0 {
            let place = item.index & !LOOSE;
            self.free.push(place);
            return self.slab[place as usize];
        }
        let line = &mut self.links[item.index as usize];
        let event = line[0];
        line.pop_front();
        if let Some(next) = line.front() {
            self.queue.push(Item { time: next.time, index: item.index });
        }
        event
    }
}
