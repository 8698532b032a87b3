//! The memory of an operation: the caller's buffers, treated as one in order, and scratch memory.
#![allow(unsafe_code, reason = "the caller's buffers come as addresses; here, and only here, they become slices")]

/// A contiguous piece of memory; `start` counts elements from the beginning of the space.
struct Segment {
    start: u64,
    elements: u64,
    address: *mut u8,
}

/// A space of elements over one or more pieces of memory.
pub struct Space {
    segments: Vec<Segment>,
    element: usize,
    /// Memory owned by the space.
    scratch: Vec<Box<[u8]>>,
    /// For a window: elements that it can hold, and elements of the space.
    window: Option<(u64, u64)>,
}

// SAFETY: the addresses are used by one thread at a time, the one that drives the executor; the caller of `push`
// promises that nothing else accesses the memory meanwhile.
unsafe impl Send for Space {}

impl Space {
    /// An empty space of elements of this many bytes.
    #[must_use]
    pub fn new(element: usize) -> Space {
        Space { segments: Vec::with_capacity(1), element, scratch: Vec::new(), window: None }
    }

    /// A space of `elements` with memory for only `shown` of them at a time: elements whose distance is a multiple of
    /// `shown` share their memory. It is allocated at the first use.
    #[must_use]
    pub fn windowed(element: usize, elements: u64, shown: u64) -> Space {
        Space { window: Some((shown.min(elements), elements)), ..Space::new(element) }
    }

    /// Elements with memory, if not all have some.
    #[must_use]
    pub fn window(&self) -> Option<u64> {
        self.window.map(|(shown, _)| shown)
    }

    /// Appends a buffer of the caller.
    ///
    /// # Safety
    /// `elements` elements at `address` can be read and written. Nothing else writes them (or reads elements that this
    /// operation writes) until the operation has completed.
    pub unsafe fn push(&mut self, address: *mut u8, elements: u64) {
        let start = self.len();
        if elements > 0 {
            self.segments.push(Segment { start, elements, address });
        }
    }

    /// Appends zeroed memory owned by the space.
    pub fn push_scratch(&mut self, elements: u64) {
        let mut memory = vec![0u8; elements as usize * self.element].into_boxed_slice();
        let address = memory.as_mut_ptr();
        self.scratch.push(memory);
        // SAFETY: the box lives as long as the space and does not move.
        unsafe { self.push(address, elements) };
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.window.map_or_else(|| self.segments.last().map_or(0, |s| s.start + s.elements), |(_, all)| all)
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes per element.
    #[must_use]
    pub fn element(&self) -> usize {
        self.element
    }

    /// Contiguous memory from element `off` to the end of its piece, at most `len` elements. Panics if out of bounds.
    pub fn run(&mut self, off: u64, len: u64) -> &mut [u8] {
        if len == 0 {
            return &mut [];
        }
        let off = match self.window {
            Some((shown, all)) => {
                assert!(off < all, "element {off} is outside of the operation's memory");
                if self.segments.is_empty() {
                    self.window = None; // so that the memory is appended at the real length
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
        // SAFETY: within the piece by the assertion; `push` promised that it is valid and exclusive.
        unsafe { std::slice::from_raw_parts_mut(segment.address.add(inside as usize * self.element), length) }
    }

    /// Calls `f` with each contiguous piece of these elements and the matching bytes of `payload`.
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

    /// Copies elements within the space, for the part of an operation that stays on this rank.
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

    /// Copies the elements of another space to the beginning of this one.
    pub fn copy_from(&mut self, other: &mut Space) {
        let mut off = 0;
        other.for_each(|run| {
            self.zip(off, run, <[u8]>::copy_from_slice);
            off += (run.len() / self.element) as u64;
        });
    }

    /// All pieces, in order.
    pub fn for_each(&mut self, mut f: impl FnMut(&mut [u8])) {
        let (mut off, len) = (0, self.len());
        while off < len {
            let run = self.run(off, len - off);
            f(run);
            off += (run.len() / self.element) as u64;
        }
    }
}
