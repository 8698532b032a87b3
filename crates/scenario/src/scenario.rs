//! A forecast to make.
use paceline_iteration::Compression;
use paceline_model::DocumentError;
use paceline_nccl::Calibration;
use paceline_schedule::{Entry, Refusal};
use paceline_simulator::coordination::Coordination;

use crate::channel::Channels;
use crate::given::Given;
use crate::library::Library;

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
