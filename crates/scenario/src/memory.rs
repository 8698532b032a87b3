//! Figures of a lowered scenario: its messages, and the memory of a GPU.
use paceline_iteration::IterationOptions;
use paceline_model::Trace;
use paceline_simulator::bucket_tensors;
use paceline_simulator::iteration::{Memory, memory_of};

use crate::lower::Lowered;
use crate::plan;
use crate::scenario::{Parallel, ScenarioError};

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
        apart_bytes: share(memory.apart_bytes),
        state_bytes: share(memory.state_bytes),
    }
}
