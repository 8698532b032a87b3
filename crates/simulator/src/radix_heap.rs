//! The event queue: a monotone radix heap.
//!
//! R. K. Ahuja, K. Mehlhorn, J. B. Orlin, R. E. Tarjan, "Faster algorithms for the shortest path problem", JACM 37
//! (1990). The bucket of an event is the highest bit in which its time differs from the current time; a bucket is
//! redistributed when the time reaches it. Events with the same time are in one bucket and keep their order, so the
//! queue is stable: ties, which are frequent in synchronous training, come out first in, first out, at no extra cost (a
//! binary heap needs sequence numbers and takes three times as long).

/// An element of the queue knows its time.
pub(crate) trait Timed: Copy {
    /// In picoseconds.
    fn time(&self) -> u64;
}

pub(crate) struct RadixHeap<E> {
    now: u64,
    /// Bucket b > 0 holds events whose time differs from `now` in bit b-1 and no higher one.
    buckets: [Vec<E>; 65],
    /// The next event of bucket 0.
    next: usize,
    /// Bit b-1: bucket b > 0 is not empty.
    occupied: u64,
}

impl<E: Timed> RadixHeap<E> {
    pub fn new() -> Self {
        RadixHeap { now: 0, buckets: std::array::from_fn(|_| Vec::new()), next: 0, occupied: 0 }
    }

    /// Adds an event.
    ///
    /// # Panics
    /// In debug builds, if its time is before that of the last event taken: time never runs backward.
    #[inline]
    pub fn push(&mut self, event: E) {
        debug_assert!(event.time() >= self.now, "an event at {} after {}", event.time(), self.now);
        self.place(event);
    }

    #[inline]
    fn place(&mut self, event: E) {
        let bucket = (64 - (event.time() ^ self.now).leading_zeros()) as usize;
        if bucket > 0 {
            self.occupied |= 1 << (bucket - 1);
        }
        self.buckets[bucket].push(event);
    }

    /// Takes the earliest event; at equal times, the one added first.
    #[inline]
    pub fn pop(&mut self) -> Option<E> {
        if self.next == self.buckets[0].len() && !self.refill() {
            return None;
        }
        let event = self.buckets[0][self.next];
        self.next += 1;
        Some(event)
    }

    /// Whether no event is left at the time of the last one taken.
    #[inline]
    pub fn is_moment_over(&self) -> bool {
        self.next == self.buckets[0].len()
    }

    /// Moves the earliest events to bucket 0.
    fn refill(&mut self) -> bool {
        self.buckets[0].clear();
        self.next = 0;
        if self.occupied == 0 {
            return false;
        }
        let bucket = self.occupied.trailing_zeros() as usize + 1;
        self.occupied &= self.occupied - 1;
        let mut events = std::mem::take(&mut self.buckets[bucket]);
        self.now = events.iter().map(Timed::time).min().expect("an occupied bucket is not empty");
        for &event in &events {
            self.place(event);
        }
        // Keeps the allocation for reuse.
        events.clear();
        if self.buckets[bucket].capacity() == 0 {
            self.buckets[bucket] = events;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct At(u64, usize);
    impl Timed for At {
        fn time(&self) -> u64 {
            self.0
        }
    }

    proptest! {
        #[test]
        fn comes_out_sorted_and_stable(steps in prop::collection::vec((0u64..50, any::<bool>()), 0..300)) {
            let (mut queue, mut model) = (RadixHeap::new(), Vec::<At>::new());
            let mut now = 0;
            for (number, (delay, pop)) in steps.into_iter().enumerate() {
                let event = At(now + delay * delay * 1000, number);
                queue.push(event);
                let at = model.partition_point(|e| e.0 <= event.0);
                model.insert(at, event);
                if pop {
                    let first = model.remove(0);
                    now = first.0;
                    prop_assert_eq!(queue.pop(), Some(first));
                }
            }
            for event in model {
                prop_assert_eq!(queue.pop(), Some(event));
            }
            prop_assert!(queue.pop().is_none());
        }
    }
}
