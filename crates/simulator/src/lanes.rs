//! Where every role stands in every lane of every bucket.
//!
//! A lane's state is its program counter and how many messages have come for each of its slots, 16 bits each. It
//! exists from the first message or the issue of the bucket at the role until the bucket is done there; the memory is
//! used again for the next one.

/// A program counter of a lane that has ended.
pub(crate) const DONE: u16 = u16::MAX;
/// Set in the program counter of a lane that waits at the barrier.
pub(crate) const AT_BARRIER: u16 = 0x8000;

#[derive(Default)]
struct Block {
    state: Vec<u16>,
    lanes_left: u32,
    issued: bool,
}

/// What came of a message's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The bucket has not been issued at this role.
    Early,
    /// The lane may be able to go on.
    Now,
}

pub(crate) struct Lanes {
    blocks: Vec<Block>,
    /// Instances: two per bucket, for neighbouring iterations.
    instances: usize,
    /// Of a lane: program counter and slots.
    width: usize,
    spare: Vec<Vec<u16>>,
}

impl Lanes {
    pub fn new(roles: u32, buckets: usize, slots: u16) -> Lanes {
        let instances = 2 * buckets;
        let mut blocks = Vec::new();
        blocks.resize_with(roles as usize * instances, Block::default);
        Lanes { blocks, instances, width: 1 + slots as usize, spare: Vec::new() }
    }

    #[inline]
    fn block(&mut self, role: u32, inst: u32, lanes: u32) -> &mut Block {
        let block = &mut self.blocks[role as usize * self.instances + inst as usize];
        if block.state.is_empty() {
            block.state = self.spare.pop().unwrap_or_default();
            block.state.resize(lanes as usize * self.width, 0);
            block.lanes_left = lanes;
        }
        block
    }

    /// Counts a message.
    #[inline]
    pub fn arrive(&mut self, role: u32, inst: u32, lanes: u32, lane: u32, slot: u16) -> Arrival {
        let at = lane as usize * self.width + 1 + slot as usize;
        let block = self.block(role, inst, lanes);
        block.state[at] += 1;
        if block.issued { Arrival::Now } else { Arrival::Early }
    }

    /// The bucket's lanes may begin.
    pub fn issue(&mut self, role: u32, inst: u32, lanes: u32) {
        self.block(role, inst, lanes).issued = true;
    }

    /// Program counter and slots of a lane of a live block.
    #[inline]
    pub fn lane(&mut self, role: u32, inst: u32, lane: u32) -> &mut [u16] {
        let at = lane as usize * self.width;
        &mut self.blocks[role as usize * self.instances + inst as usize].state[at..at + self.width]
    }

    /// A lane has ended; whether it was the last one, whose block is then gone.
    #[inline]
    pub fn finish(&mut self, role: u32, inst: u32) -> bool {
        let block = &mut self.blocks[role as usize * self.instances + inst as usize];
        block.lanes_left -= 1;
        if block.lanes_left > 0 {
            return false;
        }
        block.issued = false;
        let mut state = std::mem::take(&mut block.state);
        state.clear();
        // A few thousand spare blocks serve any steady state; more would only hold memory.
        if self.spare.len() < 4096 {
            self.spare.push(state);
        }
        true
    }
}
