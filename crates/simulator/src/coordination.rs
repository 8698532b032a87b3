//! Forecasts of training with a coordinator (Horovod's background thread) at any scale: one process per GPU, each with
//! a few cores that its input pipeline, graph scheduling and coordinator share.
//!
//! A coordinator decides which tensors make up a bucket, and when it is exchanged; buckets are exchanged one at a time,
//! each for as long as the event simulation of this bucket alone takes. Differences between processes are drawn at
//! random (late wake-ups, preemptions); their joint effect follows. S. Pumma, D. Buono, F. Checconi, X. Que,
//! W. Feng, "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning", describe the cause, four
//! remedies and their measurements; docs/explanation/coordinator-model.md describes the model.
//!
//! | module | holds |
//! | --- | --- |
//! | [`constants`] | every constant with unit, value and source |
//! | `draws` | late wake-ups and preemptions: only processes that have any are drawn |
//! | `cycles` | coordinators that wait for each other in every cycle |
//! | `policy`, `policies` | what a coordinator is to the model, and all of them, one per file |
//! | `workload` | trace and cluster in the model's terms |
//! | `collective` | copies and the exchange of a bucket |
//! | `iteration` | one iteration |
//! | `timeline` | draws one |
//! | `coordinated` | a run |
mod collective;
pub mod constants;
mod coordinated;
mod cycles;
mod draws;
mod iteration;
mod policies;
mod policy;
mod timeline;
mod workload;

use paceline_coordinator::PolicyKind;

pub use constants::Constants;
pub(crate) use coordinated::coordinate;
pub use coordinated::unreachable;

/// How ready tensors are coordinated.
#[derive(Clone, Debug, PartialEq)]
pub struct Coordination {
    /// The coordinator's policy.
    pub coordinator: PolicyKind,
    /// How long pipeline and scheduling are both active; `None`: the constants' share of an iteration on one node.
    pub contention_s: Option<f64>,
    /// Nodes of the training step's graph; `None`: the constants' nodes for every tensor.
    pub graph_nodes: Option<f64>,
    /// Constants of the model.
    pub constants: Constants,
}

impl Coordination {
    /// This coordinator with the constants measured on Summit.
    #[must_use]
    pub fn new(coordinator: PolicyKind) -> Coordination {
        Coordination { coordinator, contention_s: None, graph_nodes: None, constants: Constants::default() }
    }
}

/// A coordinator's effect on an iteration. The parts, with the computation of one worker alone, add up to it; they are
/// averaged over processes and iterations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coordinated {
    /// The policy.
    pub coordinator: PolicyKind,
    /// Waiting until a collective begins: ranks that are not ready, late wake-ups, cycles, agreement.
    pub coordinator_s: f64,
    /// Copies to and from the fusion buffer.
    pub copy_s: f64,
    /// Inside the collective: the network, and processes that arrive later than others.
    pub collective_s: f64,
    /// Mean lateness of the latest process; the waiting for it is included in the parts.
    pub latest_s: f64,
    /// How long input pipeline and scheduling are both active.
    pub contention_s: f64,
}
