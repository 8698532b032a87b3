//! The composition of the critical path.
//!
//! Every event carries the composition of its chain of causes. An event has one cause, the latest, so at the end of an
//! iteration the chain behind the last event *is* the critical path, and nothing needs to be stored or searched.

/// A part of the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Compute,
    WorkerEgress,
    WorkerIngress,
    ServerEgress,
    ServerIngress,
    IntraNode,
    /// Or, with a fabric, the links next to the nodes' switches.
    RackUplink,
    Host,
    Reduction,
    /// The upper links of a fabric.
    Global,
    Latency,
}

/// Number of parts.
pub(crate) const COUNT: usize = 11;

/// Names of the parts, in order, as in the JSON; a fabric has its own for its links.
pub(crate) const PARTS: [&str; COUNT] = [
    "compute",
    "worker egress",
    "worker ingress",
    "server egress",
    "server ingress",
    "inside the node",
    "rack uplink",
    "host copies",
    "additions",
    "global link",
    "latency",
];

/// Carried by every event. `()` carries nothing and costs nothing.
pub(crate) trait Chain: Copy + Default {
    /// Adds time to a part; `queued` of it was spent waiting for others.
    fn add(&mut self, part: Part, picoseconds: u64, queued: u64);
    /// Seconds of each part, and how much of it was queueing.
    fn parts(&self) -> Option<([f32; COUNT], f32)>;
}

impl Chain for () {
    #[inline]
    fn add(&mut self, _: Part, _: u64, _: u64) {}
    fn parts(&self) -> Option<([f32; COUNT], f32)> {
        None
    }
}

/// Seconds per part in single precision, because it is only displayed and every event carries it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Composition {
    parts: [f32; COUNT],
    queued: f32,
}

impl Chain for Composition {
    #[inline]
    fn add(&mut self, part: Part, picoseconds: u64, queued: u64) {
        self.parts[part as usize] += picoseconds as f32 * 1e-12;
        self.queued += queued as f32 * 1e-12;
    }
    fn parts(&self) -> Option<([f32; COUNT], f32)> {
        Some((self.parts, self.queued))
    }
}
