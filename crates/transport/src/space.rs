//! The memory of an operation: the caller's buffers, taken one after the other as if they were one, and scratch.
#![allow(unsafe_code, reason = "the caller's buffers come as addresses; here, and only here, they become slices")]

/// A run of memory; `start` counts elements from the beginning of the space.
struct Segment {
    start: u64,
    elements: u64,
    address: *mut u8,
}

/// A space of elements over one or more runs of memory.
pub struct Space {
    segments: Vec<Segment>,
    element: usize,
    /// Memory that belongs to the space itself.
    scratch: Vec<Box<[u8]>>,
    /// Of a window: elements that it shows, of so many.
    window: Option<(u64, u64)>,
}

// SAFETY: the addresses are used by one thread at a time, the one that drives the executor; `push` has the caller
// promise that nobody else touches the memory meanwhile.
unsafe impl Send for Space {}

impl Space {
    /// An empty space of elements of so many bytes.
    #[must_use]
    pub fn new(element: usize) -> Space {
        Space { segments: Vec::with_capacity(1), element, scratch: Vec::new(), window: None }
    }

    /// A space of `elements` of which memory is had for `shown` at a time: an element shares its memory with those that
    /// are a multiple of `shown` away from it. Memory is taken at the first use.
    #[must_use]
    pub fn windowed(element: usize, elements: u64, shown: u64) -> Space {
        Space { window: Some((shown.min(elements), elements)), ..Space::new(element) }
    }

    /// Elements that memory is had for, if that is not all of them.
    #[must_use]
    pub fn window(&self) -> Option<u64> {
        self.window.map(|(shown, _)| shown)
    }

    /// Appends memory of the caller.
    ///
    /// # Safety
    /// `elements` elements at `address` can be read and written, and nobody else writes them (or reads what this
    /// operation writes) until the operation has finished.
    pub unsafe fn push(&mut self, address: *mut u8, elements: u64) {
        let start = self.len();
        if elements > 0 {
            self.segments.push(Segment { start, elements, address });
        }
    }

    /// Appends memory of its own, zeroed.
    pub fn push_scratch(&mut self, elements: u64) {
        let mut memory = vec![0u8; elements as usize * self.element].into_boxed_slice();
        let address = memory.as_mut_ptr();
        self.scratch.push(memory);
        // SAFETY: the box lives as long as the space and does not move its memory.
        unsafe { self.push(address, elements) };
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.window.map_or_else(|| self.segments.last().map_or(0, |s| s.start + s.elements), |(_, all)| all)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of an element.
    #[must_use]
    pub fn element(&self) -> usize {
        self.element
    }

    /// Contiguous memory from element `off`, at most `len` elements of it: what one segment has. Panics outside.
    pub fn run(&mut self, off: u64, len: u64) -> &mut [u8] {
        if len == 0 {
            return &mut [];
        }
        let off = match self.window {
            Some((shown, all)) => {
                assert!(off < all, "element {off} is outside of the operation's memory");
                if self.segments.is_empty() {
                    self.window = None; // for the length that memory is appended at
                    self.push_scratch(shown);
                    self.window = Some((shown, all));
                }
                off % shown
            }
            None => off,
        };
        let segment = match &self.segments[..] {
            [only] => only,
            all => &all[all.partition_point(|s| s.start + s.elements <= off)],
        };
        let inside = off - segment.start;
        assert!(inside < segment.elements, "element {off} is outside of the operation's memory");
        let length = len.min(segment.elements - inside) as usize * self.element;
        // SAFETY: within the segment by the assertion; `push` promised that it is valid and ours.
        unsafe { std::slice::from_raw_parts_mut(segment.address.add(inside as usize * self.element), length) }
    }

    /// Calls `f` with each contiguous run of these elements and the bytes of `payload` that belong to it.
    pub fn zip(&mut self, off: u64, payload: &[u8], mut f: impl FnMut(&mut [u8], &[u8])) {
        let (mut off, mut rest) = (off, payload);
        while !rest.is_empty() {
            let run = self.run(off, (rest.len() / self.element) as u64);
            let (now, later) = rest.split_at(run.len());
            f(run, now);
            off += (now.len() / self.element) as u64;
            rest = later;
        }
    }

    /// Copies elements within the space, for the part of an operation that stays at its rank.
    pub fn copy_within(&mut self, from: u64, to: u64, len: u64) {
        let mut done = 0;
        while done < len {
            let source = self.run(from + done, len - done);
            let (address, bytes) = (source.as_ptr(), source.len());
            let target = self.run(to + done, (bytes / self.element) as u64);
            let length = target.len();
            // SAFETY: both runs are memory of this space; `copy` allows them to overlap.
            unsafe { std::ptr::copy(address, target.as_mut_ptr(), length) };
            done += (length / self.element) as u64;
        }
    }

    /// Copies the elements of another space over the first of this one.
    pub fn copy_from(&mut self, other: &mut Space) {
        let mut off = 0;
        other.for_each(|run| {
            self.zip(off, run, <[u8]>::copy_from_slice);
            off += (run.len() / self.element) as u64;
        });
    }

    /// All runs, in order.
    pub fn for_each(&mut self, mut f: impl FnMut(&mut [u8])) {
        let (mut off, len) = (0, self.len());
        while off < len {
            let run = self.run(off, len - off);
            f(run);
            off += (run.len() / self.element) as u64;
        }
    }
}
