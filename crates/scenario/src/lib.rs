//! What a forecast asks, and what that means for a simulation. [`Scenario::lowered`] is the only place in which a
//! library on a channel becomes rates, costs and buckets; forecasts, plans, replays and jobs on one network all pass
//! through it.
//!
//! | module | holds |
//! | --- | --- |
//! | this one | the scenario: what was asked, by whom it is carried out |
//! | [`given`] | the options that users give |
//! | [`library`] | the habits and costs of a communication library |
//! | [`channel`] | what libraries get of a link over TCP and RDMA |
//! | `lower` | the scenario as a cluster and options of the simulator |
//! | `plan` | the options of an iteration's plan |
pub mod channel;
pub mod given;
pub mod library;
mod lower;
mod plan;

use paceline_iteration::{Compression, IterationOptions};
use paceline_model::{DocumentError, Trace};
use paceline_nccl::Calibration;
use paceline_schedule::{Entry, Refusal};
use paceline_simulator::bucket_tensors;
use paceline_simulator::coordination::Coordination;
use paceline_simulator::iteration::{Memory, memory_of};

pub use channel::Channels;
pub use given::{BucketSize, Given, ShardedBy};
pub use library::{Habits, Library, Servers};
pub use lower::Lowered;

/// Why a scenario cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// A setting, or several together.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The cluster, with what the library's processes cost.
    #[error("{0}")]
    Cluster(#[from] DocumentError),
}

/// How a model from a configuration is divided between GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// GPUs that share every layer of a data-parallel rank.
    pub tensor: u32,
    /// Stages of the pipeline.
    pub pipeline: u32,
    /// Microbatches of an iteration, with a pipeline.
    pub microbatches: u32,
    /// Data-parallel ranks that have a part each of the experts.
    pub expert_ranks: u32,
}

impl Default for Parallel {
    fn default() -> Parallel {
        Parallel { tensor: 1, pipeline: 1, microbatches: 1, expert_ranks: 1 }
    }
}

/// A forecast to make, beside what is computed and the cluster.
#[derive(Clone)]
pub struct Scenario {
    /// The strategy.
    pub strategy: &'static Entry,
    /// Ranks that train.
    pub workers: u32,
    /// The library whose habits and costs it has.
    pub library: Library,
    /// The given options; they win over the library's.
    pub given: Given,
    /// How gradients are compressed, and what that costs; `None`: not at all.
    pub compression: Option<Compression>,
    /// How ready tensors are coordinated; `None`: a bucket starts on a rank when it is complete there.
    pub coordination: Option<Coordination>,
    /// How the model is divided.
    pub parallel: Parallel,
    /// The constants of channels.
    pub channels: Channels,
    /// The constants of NCCL's times.
    pub calibration: Calibration,
}

/// A simulation of more messages takes over a second: what tries several leaves it out.
pub const LONG: u64 = 6_000_000;

impl Lowered {
    /// Whether its iteration is other than that of its trace, whatever NCCL's collectives take: sharded, accumulated,
    /// compressed, or not exchanged each time.
    #[must_use]
    pub fn has_plan(&self) -> bool {
        self.options.iteration.as_ref().is_some_and(|iteration| !iteration.is_plain())
    }

    /// About how many messages a simulation has at most: a ring's; few of a plan, timed by collective.
    #[must_use]
    pub fn most_messages(&self, trace: &Trace) -> u64 {
        let workers = u64::from(self.options.workers);
        if self.options.is_planned() {
            return workers;
        }
        2 * workers * workers * bucket_tensors(trace, self.options.bucket_size).len() as u64
    }

    /// The peak on the GPU of the stage that needs most, as if exchanges took no time.
    ///
    /// # Errors
    /// Options that do not fit.
    pub fn memory_of_stages(&self, stages: &[&Trace], parallel: Parallel) -> Result<Memory, ScenarioError> {
        let mut options = self.options.clone();
        if parallel.microbatches > 1 {
            // The trace is that of the last microbatch, which finds the gradients of the others.
            let iteration = options.iteration.take().unwrap_or_else(|| plan::plain(&options));
            options.iteration = Some(IterationOptions { accumulated: true, ..iteration });
        }
        let mut most = Memory::default();
        for trace in stages {
            let own = of_gpu(memory_of(trace, &options)?, parallel.tensor);
            if own.peak_bytes > most.peak_bytes {
                most = own;
            }
        }
        Ok(most)
    }
}

/// The memory of one GPU, from that of a data-parallel rank's stage: tensor-parallel GPUs share the state evenly.
#[must_use]
pub fn of_gpu(memory: Memory, tensor: u32) -> Memory {
    let share = |bytes: u64| bytes.div_ceil(u64::from(tensor));
    Memory {
        peak_bytes: share(memory.peak_bytes),
        parameters_bytes: share(memory.parameters_bytes),
        gradients_bytes: share(memory.gradients_bytes),
        optimizer_bytes: share(memory.optimizer_bytes),
        gathered_bytes: share(memory.gathered_bytes),
        communication_bytes: share(memory.communication_bytes),
        activations_bytes: memory.activations_bytes.map(share),
    }
}
