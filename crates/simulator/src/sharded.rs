//! The part of a result that only a plan has.
use paceline_iteration::{Plan, Sharding};

/// How a plan is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Every message.
    Messages,
    /// Collectives as a whole.
    Collectives,
}

/// Seconds of an iteration in which computation waits for communication, by what it waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExposedBy {
    /// All-gathers of parameters.
    pub all_gather_s: f64,
    /// Reduce-scatters of gradients.
    pub reduce_scatter_s: f64,
    /// All-reduces of gradients or of their shards.
    pub all_reduce_s: f64,
    /// Computation between and after exchanges of compressed gradients.
    pub compression_s: f64,
}

/// A rank's memory at its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The sum of the others.
    pub peak_bytes: u64,
    /// Parameters, or the rank's shard.
    pub parameters_bytes: u64,
    /// Gradients, whole or sharded.
    pub gradients_bytes: u64,
    /// States of the optimizer, with its float32 copy of the parameters.
    pub optimizer_bytes: u64,
    /// Gathered units.
    pub gathered_bytes: u64,
    /// Buffers that FSDP2 copies gathered units out of, and gradients into.
    pub communication_bytes: u64,
    /// `None`: the trace does not say.
    pub activations_bytes: Option<u64>,
    /// The most of each kind at any time, together: what is held if no kind reuses what others have freed.
    pub apart_bytes: u64,
    /// Of it, parameters, gradients and states.
    pub state_bytes: u64,
}

/// The part of a result that only a plan has.
#[derive(Clone, Debug, PartialEq)]
pub struct Sharded {
    /// As users type it: `zero3`, `hsdp:8`.
    pub sharding: String,
    /// Ranks over which the state is sharded.
    pub shard_ranks: u32,
    /// Passes through the model in an iteration.
    pub passes: u32,
    /// Iterations of a round, in the last of which ranks exchange something.
    pub sync_every: u32,
    /// Number of units, or of buckets.
    pub units: u32,
    /// Number of parameters.
    pub parameters: u64,
    /// Waits of computation on the slowest rank.
    pub exposed: ExposedBy,
    /// By how much the slowest rank computes longer than the trace by itself.
    pub straggling_s: f64,
    /// By how much collectives slow down its computation.
    pub slowed_s: f64,
    /// By how much handing gradients over to the library lengthens the backward pass.
    pub calls_s: f64,
    /// A rank's memory.
    pub memory: Memory,
    /// How the plan was executed.
    pub resolution: Resolution,
}

/// Account of the slowest rank's steps.
pub(crate) struct Watched {
    pub exposed: ExposedBy,
    pub straggling_s: f64,
    pub slowed_s: f64,
    pub calls_s: f64,
    pub memory: Memory,
    pub resolution: Resolution,
}

impl Sharded {
    /// This with a share of the difference of its times to those of another.
    pub(crate) fn towards(&self, other: &Sharded, share: f64) -> Sharded {
        let between = |here: f64, there: f64| here + (there - here) * share;
        let (own, their) = (self.exposed, other.exposed);
        Sharded {
            exposed: ExposedBy {
                all_gather_s: between(own.all_gather_s, their.all_gather_s),
                reduce_scatter_s: between(own.reduce_scatter_s, their.reduce_scatter_s),
                all_reduce_s: between(own.all_reduce_s, their.all_reduce_s),
                compression_s: between(own.compression_s, their.compression_s),
            },
            straggling_s: between(self.straggling_s, other.straggling_s),
            slowed_s: between(self.slowed_s, other.slowed_s),
            calls_s: between(self.calls_s, other.calls_s),
            ..self.clone()
        }
    }

    pub(crate) fn new(plan: &Plan, watched: Watched) -> Sharded {
        let Watched { exposed, straggling_s, slowed_s, calls_s, memory, resolution } = watched;
        Sharded {
            sharding: match plan.sharding {
                Sharding::Hsdp => format!("hsdp:{}", plan.shard_ranks),
                other if other.has_groups() && plan.shard_ranks < plan.world => {
                    format!("{}:{}", other.name(), plan.shard_ranks)
                }
                other => other.name().to_owned(),
            },
            shard_ranks: plan.shard_ranks,
            passes: plan.passes,
            sync_every: plan.iterations,
            units: plan.units.iter().filter(|unit| !unit.pull_only).count() as u32,
            parameters: plan.elements(),
            exposed,
            straggling_s,
            slowed_s,
            calls_s,
            memory,
            resolution,
        }
    }
}
