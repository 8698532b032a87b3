//! The events of the simulation.
use crate::path::Chain;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// The first bit of a message arrives at link `stage` of its route.
    Head,
    /// The same for a multicast: at the sender's NIC, the uplink of its rack, the downlink of another, or a node.
    Multicast,
    /// The same for a rank's copy of a multicast, at the rank's own link.
    Inside,
    /// The last bit has arrived.
    Delivered,
    /// Its contents have been added to the sum.
    Added,
    /// Rates of the fluid network must be computed again.
    Resolve,
    /// A flow of the fluid network may have ended, on path `inst`.
    FlowEnd,
    /// Worker `dst` begins its first iteration.
    Begin,
    /// Worker `dst` finished a task of its plan, `inst`.
    TaskDone,
    /// All servers of the job of worker `dst` know that all updates have arrived at all servers.
    BarrierRelease,
    /// No events are left.
    Nothing,
}

/// An event, most often about a message: small, copied, never allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<C> {
    pub time: u64,
    pub bytes: u64,
    /// Bucket and parity of the iteration: 2 * bucket + parity. Otherwise what the kind says.
    pub inst: u32,
    pub lane: u32,
    /// Roles; 16 bits keep an event in 32 bytes.
    pub src: u16,
    pub dst: u16,
    pub slot: u16,
    pub stage: u8,
    pub kind: EventKind,
    pub chain: C,
}

impl<C: Chain> Event<C> {
    /// The sender.
    #[inline]
    pub fn from(&self) -> u32 {
        u32::from(self.src)
    }

    /// The receiver, or the worker that the event is about.
    #[inline]
    pub fn to(&self) -> u32 {
        u32::from(self.dst)
    }

    /// Tells apart the messages between two roles that are on their way at the same time.
    pub fn message(&self) -> u64 {
        u64::from(self.inst) << 40 ^ u64::from(self.slot) << 34 ^ u64::from(self.lane)
    }

    /// The end of the event queue.
    pub fn nothing() -> Self {
        Event::at_worker(0, EventKind::Nothing, 0, C::default())
    }

    /// An event at a worker that is not a message.
    pub fn at_worker(time: u64, kind: EventKind, worker: u32, chain: C) -> Self {
        let role = worker as u16;
        Event { time, bytes: 0, inst: 0, lane: 0, src: role, dst: role, slot: 0, stage: 0, kind, chain }
    }
}
