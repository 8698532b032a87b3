//! Reduction and distribution inside a node, shared by the strategies that reduce inside the node first.
use crate::collective::Collective;
use crate::plan::Inside;
use crate::step::{Op, Peers, Piece, Step, at};

/// The path of a piece inside a node of `size` ranks from `base` on: to its owner and back.
pub(super) struct NodePart {
    pub base: u32,
    pub size: u32,
    /// The rank at which the node's sum is complete.
    pub owner: u32,
    pub inside: Inside,
    /// The elements to add; empty if there are none.
    pub up: Piece,
    /// The elements sent back.
    pub down: Piece,
    /// Slots for the path to the owner and back.
    pub slots: (u16, u16),
}

impl NodePart {
    fn members(&self) -> Peers {
        Peers::range(self.base + 1, self.size - 1)
    }

    /// In the ring inside the node the owner comes last, so that it has the complete sum.
    fn next(&self, role: u32) -> Peers {
        Peers::one(self.base + (role - self.base + 1) % self.size)
    }

    fn prev(&self, role: u32) -> Peers {
        Peers::one(self.base + (role - self.base + self.size - 1) % self.size)
    }

    fn send(to: Peers, slot: u16, piece: Piece) -> Step {
        Step::Send { to, multicast: false, slot, piece }
    }

    /// Step `pc` of a rank that is not the owner, in both halves.
    pub fn member(&self, role: u32, pc: u32) -> Step {
        self.member_of(Collective::AllReduce, role, pc).unwrap_or(Step::Done)
    }

    /// Step `pc` of a rank that is not the owner, or the remainder of `pc` after its last step.
    pub fn member_of(&self, collective: Collective, role: u32, mut pc: u32) -> Result<Step, u32> {
        if collective.reduces() {
            match self.first_reduce(role, pc) {
                Err(left) => pc = left,
                step => return step,
            }
        }
        if collective.gathers() { self.then_spread(role, pc) } else { Err(pc) }
    }

    fn hops_after_start(&self, role: u32) -> u32 {
        (role + self.size - self.owner - 1) % self.size
    }

    fn first_reduce(&self, role: u32, mut pc: u32) -> Result<Step, u32> {
        let slot = self.slots.0;
        if self.inside == Inside::Root {
            at!(pc, Ok(Self::send(Peers::one(self.owner), slot, self.up)));
            return Err(pc);
        }
        if self.hops_after_start(role) > 0 {
            at!(pc, Ok(Step::Recv { from: self.prev(role), slot, op: Op::Reduce, piece: self.up }));
        }
        at!(pc, Ok(Self::send(self.next(role), slot, self.up)));
        Err(pc)
    }

    fn then_spread(&self, role: u32, mut pc: u32) -> Result<Step, u32> {
        let (slot, piece) = (self.slots.1, self.down);
        let from = if self.inside == Inside::Root { Peers::one(self.owner) } else { self.prev(role) };
        at!(pc, Ok(Step::Recv { from, slot, op: Op::Assign, piece }));
        if self.inside == Inside::Ring && self.hops_after_start(role) + 2 < self.size {
            at!(pc, Ok(Self::send(self.next(role), slot, piece)));
        }
        Err(pc)
    }

    /// The owner's first step, unless it is alone.
    pub fn gather(&self) -> Option<Step> {
        let from = if self.inside == Inside::Root { self.members() } else { self.prev(self.owner) };
        (self.size > 1).then_some(Step::Recv { from, slot: self.slots.0, op: Op::Reduce, piece: self.up })
    }

    /// The owner's last step, unless it is alone.
    pub fn give(&self) -> Option<Step> {
        let to = if self.inside == Inside::Root { self.members() } else { self.next(self.owner) };
        (self.size > 1).then_some(Self::send(to, self.slots.1, self.down))
    }
}

/// The longest chain of messages inside a node of this many ranks, both ways.
pub(super) fn hops(ranks: u32, inside: Inside) -> u64 {
    match (ranks, inside) {
        (1, _) => 0,
        (_, Inside::Root) => 2,
        (most, Inside::Ring) => 2 * (u64::from(most) - 1),
    }
}
