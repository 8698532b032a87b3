//! The options of a forecast as users give them.
use std::str::FromStr;

use paceline_iteration::{Held, Optimizer, Pull, Reshard, Sharding};
use paceline_model::trace::Dtype;
use paceline_schedule::{ChunkBytes, Distribution, Inside, Placement, Refusal};
use paceline_simulator::Network;
use paceline_simulator::offload::Offloaded;

/// Up to which size gradients are fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketSize {
    /// Every tensor is sent by itself.
    None,
    /// Bytes.
    Bytes(u64),
}

/// Sharded parts of the state, and the ranks over which they are sharded: `hsdp:8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardedBy {
    /// The kind of sharding.
    pub sharding: Sharding,
    /// Ranks of a group; `None`: not said.
    pub group: Option<u32>,
}

impl ShardedBy {
    /// Nothing.
    pub const NONE: ShardedBy = ShardedBy { sharding: Sharding::None, group: None };
}

impl FromStr for ShardedBy {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<ShardedBy, Refusal> {
        let unknown = || Refusal::about("sharding", format!("unknown sharding '{text}'")).remedy("{sharding=zero3}");
        let (name, group) = text.split_once(':').map_or((text, None), |(name, group)| (name, Some(group)));
        let all = [Sharding::None, Sharding::Zero1, Sharding::Zero2, Sharding::Zero3, Sharding::Hsdp];
        let sharding = all.into_iter().find(|one| one.name() == name).ok_or_else(unknown)?;
        let group = group.map(str::parse).transpose().map_err(|_| unknown())?;
        Ok(ShardedBy { sharding, group })
    }
}

/// The options; `None`: not given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given {
    /// Number of parameter servers.
    pub servers: Option<u32>,
    /// How a bucket is cut into messages.
    pub chunk: Option<ChunkBytes>,
    /// Server of each bucket.
    pub placement: Option<Placement>,
    /// Order of the servers' sends.
    pub distribution: Option<Distribution>,
    /// When workers wait for parameters.
    pub pull: Option<Pull>,
    /// How the ranks of a node reduce among themselves.
    pub inside: Option<Inside>,
    /// How links are shared.
    pub network: Option<Network>,
    /// Whether an iteration starts on all workers at once.
    pub barrier: Option<bool>,
    /// By how many iterations workers may be apart.
    pub staleness: Option<u32>,
    /// Whether gradients are sent while the backward pass is still running.
    pub overlap: Option<bool>,
    /// Iterations to measure.
    pub iterations: Option<u32>,
    /// Of random variation.
    pub seed: Option<u64>,
    /// Whether to follow the critical path.
    pub critical_path: Option<bool>,
    /// Whether to list every link and worker.
    pub detail: Option<bool>,
    /// Factor by which all computation is faster.
    pub compute_speedup: Option<f64>,
    /// What is offloaded beside the trace's computation.
    pub offloaded: Option<Offloaded>,
    /// Up to which size gradients are fused.
    pub bucket_size: Option<BucketSize>,
    /// Sharded parts of the state.
    pub sharding: Option<ShardedBy>,
    /// Fate of a gathered unit after its forward pass.
    pub reshard_after_forward: Option<Reshard>,
    /// Units that are gathered ahead.
    pub prefetch: Option<u32>,
    /// Passes through the model before the optimizer's step.
    pub accumulate: Option<u32>,
    /// Whether gradients are exchanged after every pass.
    pub accumulate_sync: Option<bool>,
    /// Names of the layers that form a unit.
    pub unit: Option<String>,
    /// Element type of parameters.
    pub param_dtype: Option<Dtype>,
    /// Element type in which gradients are exchanged.
    pub reduce_dtype: Option<Dtype>,
    /// For memory.
    pub optimizer: Option<Optimizer>,
    /// Types of the state, for memory.
    pub held: Option<Held>,
    /// Bytes of temporaries in the optimizer's step, as they were recorded.
    pub update_bytes: Option<u64>,
    /// Bytes of the optimizer's states on the GPU for each parameter.
    pub state_bytes: Option<f64>,
    /// Whether gradients are let go as soon as they are complete.
    pub releases_gradients: Option<bool>,
    /// Whether the host's memory has the parameters.
    pub offloads_parameters: Option<bool>,
    /// Iterations between two exchanges.
    pub sync_every: Option<u32>,
}
