//! What happens at a moment.
use crate::path::Chain;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first bit of a message is at link `stage` of its route.
    Head,
    /// The same of a multicast, at the uplink of its rack, the downlink of another, or a node.
    Multicast,
    /// The same, at a rank's own link, for a copy made inside the node.
    Inside,
    /// The last bit is there.
    Delivered,
    /// Rates of the fluid network are to be computed anew.
    Resolve,
    /// A flow of the fluid network may have ended; `bytes` is the generation of the rates.
    FlowEnd,
    /// Worker `dst` finished a forward layer, or all of them.
    LayerDone,
    /// Worker `dst` has gradients to send.
    GradientReady,
    /// Worker `dst` finished its backward pass.
    BackwardDone,
    /// Worker `dst` finished its optimiser's step.
    OptimizerDone,
    /// All servers know that all have all updates.
    BarrierRelease,
}

/// An event, most often of a message: small, copied, never allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<C> {
    pub time: u64,
    /// When the message's last bit has left the links before.
    pub tail: u64,
    pub bytes: u64,
    pub src: u32,
    pub dst: u32,
    /// Bucket and parity of the iteration: 2 * bucket + parity.
    pub inst: u32,
    pub lane: u32,
    pub slot: u16,
    pub stage: u8,
    pub kind: Kind,
    pub chain: C,
}

impl<C: Chain> Event<C> {
    /// Something at a worker that is no message.
    pub fn at_worker(time: u64, kind: Kind, worker: u32, chain: C) -> Self {
        Event { time, tail: 0, bytes: 0, src: worker, dst: worker, inst: 0, lane: 0, slot: 0, stage: 0, kind, chain }
    }
}
