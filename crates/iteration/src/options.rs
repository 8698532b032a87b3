//! A user's choices about an iteration.
use paceline_model::Time;
use paceline_model::trace::Dtype;
use paceline_schedule::{Collective, Refusal};
use serde::{Deserialize, Serialize};

use crate::compression::{Compression, Method};

/// Shards of the model's state that each rank holds, and their exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharding {
    /// Every rank holds everything; gradients are all-reduced (DDP).
    None,
    /// Optimizer states are sharded: gradients are reduce-scattered, updated parameters all-gathered (S. Rajbhandari et
    /// al., "ZeRO: Memory optimizations toward training trillion parameter models", SC 2020, stage 1). Within groups, the
    /// shards of a gradient are all-reduced between them, as with `Hsdp`.
    Zero1,
    /// Gradients, too (stage 2).
    Zero2,
    /// Parameters, too (stage 3): a unit is gathered before it computes and freed afterwards. PyTorch's FSDP.
    Zero3,
    /// As `Zero3` within groups of ranks; the shards of a gradient are all-reduced between the groups.
    Hsdp,
}

impl Sharding {
    /// The name that users type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Sharding::None => "none",
            Sharding::Zero1 => "zero1",
            Sharding::Zero2 => "zero2",
            Sharding::Zero3 => "zero3",
            Sharding::Hsdp => "hsdp",
        }
    }

    /// Whether the state can be sharded over a part of the ranks.
    #[must_use]
    pub fn has_groups(self) -> bool {
        matches!(self, Sharding::Zero1 | Sharding::Zero2 | Sharding::Hsdp)
    }

    /// Whether parameters are sharded.
    #[must_use]
    pub fn gathers_units(self) -> bool {
        matches!(self, Sharding::Zero3 | Sharding::Hsdp)
    }
}

/// Fate of a gathered unit after its forward pass (`reshard_after_forward` of FSDP2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reshard {
    /// It is freed, and gathered again for the backward pass.
    Yes,
    /// It is kept until its backward pass.
    No,
    /// It is sharded over this many neighboring ranks, which gather it again for the backward pass.
    #[serde(untagged)]
    Ranks(u32),
}

/// The optimizer, for the memory of its states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Two moments (Adam, AdamW).
    Adam,
    /// No states.
    Sgd,
    /// One momentum.
    Momentum,
}

impl Optimizer {
    /// Bytes of state per parameter, in the type of the parameters, or in float32 if that has less than 32 bits. Then a
    /// float32 copy of them is kept, too: Adam has 12 bytes (Rajbhandari et al. 2020, section 3.1).
    #[must_use]
    pub fn state_bytes(self, parameters: Dtype) -> u64 {
        let size = parameters.size();
        self.moments() * size.max(4) + if size < 4 { 4 } else { 0 }
    }

    /// Values that it keeps for each parameter.
    fn moments(self) -> u64 {
        match self {
            Optimizer::Adam => 2,
            Optimizer::Momentum => 1,
            Optimizer::Sgd => 0,
        }
    }
}

/// The element types of the state that a rank holds, by a recipe of precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Of parameters; of sharded ones, of the shards.
    pub parameters: Dtype,
    /// Of gradients as they accumulate; of sharded ones, of the shards.
    pub gradients: Dtype,
    /// Of the optimizer's moments.
    pub states: Dtype,
    /// Whether the optimizer has float32 copies of the parameters.
    pub masters: bool,
    /// Bytes of temporaries per parameter in the optimizer's step: of all that a rank updates, and of one tensor at a time.
    pub temporaries: (u64, u64),
}

impl Held {
    /// Whether gradients accumulate in buffers of their own that are never freed: Megatron's `main_grad`.
    #[must_use]
    pub fn has_main_gradients(&self) -> bool {
        self.masters && self.gradients.size() > self.parameters.size()
    }

    /// Bytes of the optimizer's state per parameter.
    #[must_use]
    pub fn state_bytes(&self, optimizer: Optimizer) -> u64 {
        optimizer.moments() * self.states.size() + if self.masters { 4 } else { 0 }
    }
}

/// When workers wait for the parameters that servers send back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pull {
    /// Each forward layer waits for its own parameters, which it updates first; the next iteration begins when the
    /// backward pass has ended.
    Layer,
    /// The iteration waits for all parameters.
    Step,
}

/// How buckets of gradients are exchanged if nothing is sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchanges {
    /// One after the other, as on a stream of NCCL.
    Stream,
    /// Any number at once: each begins when its gradients are ready. Paceline's runtime.
    Background,
    /// The same with parameter servers, which also distribute tensors that have no gradient.
    Servers(Pull),
}

impl Exchanges {
    /// Whether exchanges do not wait for each other.
    #[must_use]
    pub fn are_background(self) -> bool {
        self != Exchanges::Stream
    }

    /// Whether servers add gradients up.
    #[must_use]
    pub fn have_servers(self) -> bool {
        matches!(self, Exchanges::Servers(_))
    }
}

/// The options of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct IterationOptions {
    /// Sharded parts of the state.
    pub sharding: Sharding,
    /// Ranks of a group, over which the state is sharded; every group holds all of it. `None`: all ranks are one group.
    pub group: Option<u32>,
    /// For sharded parameters. The root unit is always kept, as in FSDP2.
    pub reshard_after_forward: Reshard,
    /// Units that are gathered ahead in the forward pass. `None`: 1 if parameters are sharded. With `Zero1` and `Zero2`,
    /// `None` gathers the updated parameters in the optimizer's step, and a number during the next forward pass.
    pub prefetch: Option<u32>,
    /// Units that are gathered ahead in the backward pass: FSDP2 gathers one.
    pub backward_prefetch: u32,
    /// Passes through the model before the optimizer's step.
    pub accumulate: u32,
    /// Whether gradients are exchanged after every pass. `None`: if gradients are sharded, because a rank has no room
    /// for all of them.
    pub synchronize: Option<bool>,
    /// Names of the layers that form a unit, such as `transformer.h.*`; `None`: blocks, as they are found.
    pub unit: Option<String>,
    /// Bytes of a bucket without units; `None`: every tensor is its own.
    pub bucket_size: Option<u64>,
    /// Ranks that have a part each of the experts of a model, neighboring ones: tensors of experts ([`is_of_experts`]) are a
    /// rank's own, and exchanged with those only that have the same part. 1: every rank has all experts.
    pub expert_parallel: u32,
    /// Element type of parameters; `None`: that of the trace's gradients.
    pub param_dtype: Option<Dtype>,
    /// Element type in which gradients are exchanged; `None`: that of the trace's gradients.
    pub reduce_dtype: Option<Dtype>,
    /// For memory. `None`: what the trace says, or else Adam.
    pub optimizer: Option<Optimizer>,
    /// Types of the state, for memory. `None`: those that follow from `param_dtype`: what has 16 bits has float32 copies, or
    /// shards in float32.
    pub held: Option<Held>,
    /// Bytes of temporaries in the optimizer's step of all parameters, as they were recorded.
    pub update_bytes: u64,
    /// Bytes of the optimizer's states on the GPU for each parameter, float32 copies included. `None`: those of `optimizer`.
    pub state_bytes: Option<f64>,
    /// Whether a gradient is let go as soon as it is complete: its copy in the host's memory is used instead, or the
    /// optimizer's step is part of the backward pass.
    pub releases_gradients: bool,
    /// Whether the host's memory has the parameters, of which the GPU has the gathered units.
    pub offloads_parameters: bool,
    /// Whether gradients are exchanged while the backward pass is still running.
    pub overlap: bool,
    /// Whether the trace is the last of several passes, of which it has the others as time, as in a pipeline: what is
    /// kept of gradients exists from the beginning.
    pub accumulated: bool,
    /// How gradients are compressed.
    pub compression: Compression,
    /// Iterations of a round, in the last of which ranks exchange how their parameters have changed, after the
    /// optimizer's step (local SGD; DiLoCo, A. Douillard et al., 2023). 1: gradients are exchanged in every iteration.
    pub sync_every: u32,
    /// Time that handing a gradient to the library adds to a backward pass that exchanges gradients.
    pub call: Time,
    /// How long the library's coordinator takes to agree on a gradient, one after the other, beside that pass.
    pub agreement: Time,
    /// How buckets of gradients are exchanged if nothing is sharded.
    pub exchanges: Exchanges,
    /// Collective of buckets that are not compressed; other than all-reduce only for exchanges alone.
    pub collective: Collective,
    /// The recorded worker whose computation it is, where buckets are in the background; otherwise the first one.
    pub recorded: usize,
    /// Whether a worker hands over its buckets in the order of the first recorded one, which real ranks have to agree on.
    pub common_order: bool,
}

impl IterationOptions {
    /// The defaults of the command line.
    #[must_use]
    pub fn new(sharding: Sharding) -> IterationOptions {
        IterationOptions {
            sharding,
            group: None,
            reshard_after_forward: Reshard::Yes,
            prefetch: None,
            backward_prefetch: 1,
            accumulate: 1,
            synchronize: None,
            unit: None,
            bucket_size: Some(DEFAULT_BUCKET),
            expert_parallel: 1,
            param_dtype: None,
            reduce_dtype: None,
            optimizer: None,
            held: None,
            update_bytes: 0,
            state_bytes: None,
            releases_gradients: false,
            offloads_parameters: false,
            overlap: true,
            accumulated: false,
            compression: Compression::NONE,
            sync_every: 1,
            call: Time::ZERO,
            agreement: Time::ZERO,
            exchanges: Exchanges::Stream,
            collective: Collective::AllReduce,
            recorded: 0,
            common_order: false,
        }
    }
}

impl IterationOptions {
    /// Whether it is the iteration of a trace as it was recorded: gradients are synchronized once, as they are, and nothing
    /// is sharded.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let every = self.compression.method == Method::None && self.sync_every == 1;
        let whole = self.sharding == Sharding::None && self.expert_parallel == 1;
        whole && self.accumulate == 1 && self.reduce_dtype.is_none() && every
    }

    /// The choice that makes it another iteration than the recorded one, for messages: a sharding, or the first such option.
    #[must_use]
    pub fn asked(&self) -> &'static str {
        match self.sharding {
            Sharding::None if self.expert_parallel > 1 => "expert-parallel",
            Sharding::None if self.accumulate > 1 => "accumulate",
            Sharding::None if self.sync_every > 1 => "sync-every",
            Sharding::None if self.compression.method != Method::None => "compression",
            sharding => sharding.name(),
        }
    }
}

/// Whether a tensor of this name belongs to experts of a mixture: a part of its path is `experts`.
#[must_use]
pub fn is_of_experts(tensor: &str) -> bool {
    tensor.split('.').any(|part| part == "experts")
}

/// Bytes of a bucket: DDP's `bucket_cap_mb`.
pub const DEFAULT_BUCKET: u64 = 25 * 1024 * 1024;

/// Why there is no such plan; the message names the option and says what to do.
pub type IterationError = Refusal;
