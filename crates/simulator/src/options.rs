//! The options of a simulation, other than trace and cluster.
use std::sync::Arc;

pub use paceline_iteration::Pull;
use paceline_iteration::{Collective, IterationOptions};
use paceline_model::Time;
use paceline_nccl::Release;
use paceline_schedule::{ChunkBytes, Distribution, Entry, Inside, Placement, look_up};

use crate::coordination::Coordination;
use crate::defaults;
use crate::nccl::NcclTimes;
use crate::offload::Offloaded;
pub use crate::sharing::{Network, SimulationError};

/// The options of one simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Name or alias of a strategy.
    pub strategy: String,
    /// Collective of each bucket; other than all-reduce only for traces without computation.
    pub collective: Collective,
    /// Ranks that train.
    pub workers: u32,
    /// Number of parameter servers; ignored by strategies without servers.
    pub servers: u32,
    /// `None`: the strategy's default.
    pub chunk: Option<ChunkBytes>,
    /// Server of each bucket.
    pub placement: Placement,
    /// Order of the servers' sends.
    pub distribution: Distribution,
    /// Whether an iteration starts on all workers at once.
    pub barrier: bool,
    /// For `async-ps`: a worker begins iteration c when every other has finished iteration c-N-1; `None`: at any time.
    pub staleness: Option<u32>,
    /// For parameter servers.
    pub pull: Pull,
    /// For `hierarchical`.
    pub inside: Inside,
    /// For `native`.
    pub nccl: Release,
    /// `None`: every tensor is its own bucket.
    pub bucket_size: Option<u64>,
    /// How links are shared.
    pub network: Network,
    /// Whether gradients are sent while the backward pass is still running.
    pub overlap: bool,
    /// Factor by which all computation is faster.
    pub compute_speedup: f64,
    /// Factor by which this rank's GPU computes longer. Copies, and the calls of a library, take no longer by it.
    pub slower: f64,
    /// What is copied, or updated on the host, beside the trace's computation.
    pub offloaded: Offloaded,
    /// Time that handing a gradient to the library adds to the backward pass; not with one worker, who hands over nothing.
    pub call: Time,
    /// How long the coordinator of a library takes to agree on a gradient, one after the other, in parallel with the
    /// backward pass; not with one worker.
    pub agreement: Time,
    /// Standard deviation of the logarithm of the workers' computation times. They are the expected order statistics of
    /// a normal distribution, in a fixed shuffle: one iteration shows what an average over many draws does. Not with
    /// one worker.
    pub spread: f64,
    /// Iterations to measure; `None`: 1 with the barrier, 2 without, 500 under a coordinator.
    pub iterations: Option<u32>,
    /// Seed of the workers' random variation.
    pub seed: u64,
    /// How ready tensors are coordinated; `None`: a bucket is issued on a rank when it is complete there.
    pub coordination: Option<Coordination>,
    /// Sharding of the iteration; `None`: nothing is sharded, and buckets of gradients are synchronized as the strategy does.
    pub iteration: Option<IterationOptions>,
    /// For plans: how long their collectives take by NCCL's model, which chooses an algorithm for each; `None`: by the
    /// messages of the strategy.
    pub collectives: Option<Arc<NcclTimes>>,
    /// For plans: the share of its rate that computation loses while a collective runs. Above 0, collectives are single
    /// events.
    pub slowdown: f64,
    /// Whether to follow the critical path (costs about 20 % of the time).
    pub critical_path: bool,
    /// Whether to list every link and worker with its busy time.
    pub detail: bool,
}

impl Options {
    /// The defaults of the command line.
    #[must_use]
    pub fn new(strategy: &str, workers: u32) -> Options {
        Options {
            strategy: strategy.into(),
            collective: Collective::AllReduce,
            workers,
            servers: defaults::SERVERS,
            chunk: None,
            placement: defaults::PLACEMENT,
            distribution: defaults::DISTRIBUTION,
            barrier: defaults::BARRIER,
            staleness: None,
            pull: Pull::Layer,
            inside: defaults::INSIDE,
            nccl: Release::CURRENT,
            bucket_size: None,
            network: defaults::NETWORK,
            overlap: defaults::OVERLAP,
            compute_speedup: defaults::COMPUTE_SPEEDUP,
            slower: 1.0,
            offloaded: Offloaded::default(),
            call: Time::ZERO,
            agreement: Time::ZERO,
            spread: 0.0,
            iterations: None,
            seed: defaults::SEED,
            coordination: None,
            iteration: None,
            collectives: None,
            slowdown: 0.0,
            critical_path: defaults::CRITICAL_PATH,
            detail: defaults::DETAIL,
        }
    }

    /// The strategy.
    ///
    /// # Errors
    /// There is none of this name; the message says which one may be meant.
    pub fn entry(&self) -> Result<&'static Entry, SimulationError> {
        look_up(&self.strategy).map_err(|e| SimulationError::about("strategy", e.to_string()))
    }

    /// Those of a rank whose GPU computes longer by a factor.
    #[must_use]
    pub fn on_slower(&self, factor: f64) -> Options {
        Options { slower: factor * self.slower, ..self.clone() }
    }

    /// Whether all ranks follow one plan, whose steps are watched one by one.
    ///
    /// Otherwise an iteration synchronizes its gradients once, as they were recorded: then any strategy can do so, without
    /// a barrier, too, workers may copy different recorded ones, and the critical path is followed through the network.
    #[must_use]
    pub fn is_planned(&self) -> bool {
        let has_own = self.iteration.as_ref().is_some_and(|iteration| !iteration.is_plain());
        has_own || self.collectives.is_some() || self.slowdown > 0.0
    }
}
