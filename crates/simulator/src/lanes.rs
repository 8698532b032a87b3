//! The state of every role in every lane of every bucket.
//!
//! A lane's state is its program counter and the number of messages received for each of its slots: one byte each if no
//! receive waits for more than 255 messages, otherwise two. The states of a bucket are stored together, role by role.
//! Training is synchronous, so all roles work on the same bucket at nearly the same time, and their working set fits in
//! the cache. A bucket's states exist from its first message or issue until all workers have finished it; then the
//! memory is reused.

/// Flag in the program counter of a lane that waits at the barrier.
pub(crate) const AT_BARRIER: u16 = 0x80;

/// The effect of a message's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The bucket has not been issued at this role.
    Early,
    /// The lane may be able to continue.
    Now,
}

/// A role's state in a bucket.
#[derive(Clone, Copy, Default)]
struct Part {
    lanes_left: u32,
    issued: bool,
}

#[derive(Default)]
struct Instance {
    cells: Vec<u8>,
    parts: Vec<Part>,
    lanes: u32,
    /// Workers that have not finished.
    workers_left: u32,
}

pub(crate) struct Lanes {
    instances: Vec<Instance>,
    roles: u32,
    workers: u32,
    /// Cells of a lane: program counter and slots.
    width: usize,
    /// Cells are two bytes wide.
    wide: bool,
    spare: Vec<Instance>,
}

fn is_wide(senders: u32) -> bool {
    senders > 255
}

impl Lanes {
    /// `senders`: the largest number of messages that one receive waits for.
    pub fn new(roles: u32, workers: u32, buckets: usize, slots: u16, senders: u32) -> Lanes {
        let mut instances = Vec::new();
        // Two per bucket, because neighboring iterations may overlap.
        instances.resize_with(2 * buckets, Instance::default);
        Lanes { instances, roles, workers, width: 1 + slots as usize, wide: is_wide(senders), spare: Vec::new() }
    }

    /// Bytes of the states of one bucket.
    pub fn bytes(roles: u32, lanes: u32, slots: u16, senders: u32) -> usize {
        let cells = (roles as usize).saturating_mul(lanes as usize).saturating_mul(1 + slots as usize);
        cells.saturating_mul(if is_wide(senders) { 2 } else { 1 })
    }

    #[inline]
    fn instance(&mut self, inst: u32, lanes: u32) -> &mut Instance {
        if self.instances[inst as usize].lanes == 0 {
            self.open(inst, lanes);
        }
        &mut self.instances[inst as usize]
    }

    #[cold]
    fn open(&mut self, inst: u32, lanes: u32) {
        let mut fresh = self.spare.pop().unwrap_or_default();
        let cells = self.roles as usize * lanes as usize * self.width * if self.wide { 2 } else { 1 };
        fresh.cells.resize(cells, 0);
        fresh.parts.resize(self.roles as usize, Part { lanes_left: lanes, issued: false });
        (fresh.lanes, fresh.workers_left) = (lanes, self.workers);
        self.instances[inst as usize] = fresh;
    }

    #[inline]
    fn cell(&self, instance: &Instance, role: u32, lane: u32, cell: usize) -> usize {
        (role as usize * instance.lanes as usize + lane as usize) * self.width + cell
    }

    #[inline]
    fn get(&self, inst: u32, role: u32, lane: u32, cell: usize) -> u16 {
        let instance = &self.instances[inst as usize];
        let at = self.cell(instance, role, lane, cell);
        if self.wide {
            u16::from_le_bytes([instance.cells[2 * at], instance.cells[2 * at + 1]])
        } else {
            u16::from(instance.cells[at])
        }
    }

    #[inline]
    fn set(&mut self, inst: u32, role: u32, lane: u32, cell: usize, value: u16) {
        let at = self.cell(&self.instances[inst as usize], role, lane, cell);
        let [low, high] = value.to_le_bytes();
        let cells = &mut self.instances[inst as usize].cells;
        if self.wide {
            (cells[2 * at], cells[2 * at + 1]) = (low, high);
        } else {
            debug_assert_eq!(high, 0);
            cells[at] = low;
        }
    }

    /// Counts a received message.
    #[inline]
    pub fn arrive(&mut self, role: u32, inst: u32, lanes: u32, lane: u32, slot: u16) -> Arrival {
        self.instance(inst, lanes);
        let count = self.get(inst, role, lane, 1 + slot as usize) + 1;
        self.set(inst, role, lane, 1 + slot as usize, count);
        if self.instances[inst as usize].parts[role as usize].issued { Arrival::Now } else { Arrival::Early }
    }

    /// Whether a role has begun this bucket in the iteration two before, which some worker has not finished.
    #[inline]
    pub fn is_taken(&self, role: u32, inst: u32) -> bool {
        let instance = &self.instances[inst as usize];
        instance.lanes != 0 && instance.parts[role as usize].issued
    }

    /// The bucket's lanes may begin.
    pub fn issue(&mut self, role: u32, inst: u32, lanes: u32) {
        self.instance(inst, lanes).parts[role as usize].issued = true;
    }

    /// The program counter of a lane.
    #[inline]
    pub fn counter(&self, role: u32, inst: u32, lane: u32) -> u16 {
        self.get(inst, role, lane, 0)
    }

    /// Sets the program counter.
    #[inline]
    pub fn set_counter(&mut self, role: u32, inst: u32, lane: u32, value: u16) {
        self.set(inst, role, lane, 0, value);
    }

    /// Consumes `count` messages of a slot if there are as many.
    #[inline]
    pub fn take(&mut self, role: u32, inst: u32, lane: u32, slot: u16, count: u32) -> bool {
        let complete = u32::from(self.get(inst, role, lane, 1 + slot as usize)) >= count;
        if complete {
            self.set(inst, role, lane, 1 + slot as usize, 0);
        }
        complete
    }

    /// Ends a lane; returns whether it was the role's last one of the bucket.
    #[inline]
    pub fn finish(&mut self, role: u32, inst: u32) -> bool {
        let part = &mut self.instances[inst as usize].parts[role as usize];
        part.lanes_left -= 1;
        let last = part.lanes_left == 0;
        if last && role < self.workers {
            self.worker_done(inst);
        }
        last
    }

    /// When all workers have finished, so have servers and switches, because workers wait for their messages.
    fn worker_done(&mut self, inst: u32) {
        let instance = &mut self.instances[inst as usize];
        instance.workers_left -= 1;
        if instance.workers_left == 0 {
            let mut done = std::mem::take(instance);
            done.cells.clear();
            done.parts.clear();
            self.spare.push(done);
        }
    }
}
