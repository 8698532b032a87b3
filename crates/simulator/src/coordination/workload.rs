//! Converts trace and cluster to the quantities of the model.
use paceline_model::{Cluster, Trace};

use super::collective::{Collective, copies_ms};
use super::constants::Constants;
use crate::options::SimulationError;

/// A gradient that is reduced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tensor {
    /// From the start of the iteration, in a process without delays, ms.
    pub ready: f64,
    pub bytes: u64,
}

/// Tensors that are reduced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fused {
    pub tensors: usize,
    pub bytes: u64,
}

/// The work of one process in an iteration.
pub(super) struct Workload {
    /// Gradients in the order in which they become ready.
    pub tensors: Vec<Tensor>,
    /// Forward and backward pass, ms.
    pub compute: f64,
    /// After the last sum, ms.
    pub optimizer: f64,
    /// Fusion threshold in bytes.
    pub threshold: u64,
}

impl Workload {
    /// Without overlap, all gradients are submitted at the end of the backward pass, as in XLA's compiled steps.
    pub fn new(trace: &Trace, overlap: bool, constants: &Constants) -> Workload {
        let worker = &trace.workers[0];
        let forward = worker.forward_time().seconds() * 1e3;
        let compute = forward + worker.backward.seconds() * 1e3;
        let mut tensors: Vec<Tensor> = worker
            .gradients
            .iter()
            .map(|gradient| Tensor {
                ready: if overlap { forward + gradient.ready.seconds() * 1e3 } else { compute },
                bytes: trace.tensors[gradient.tensor as usize].bytes,
            })
            .filter(|tensor| tensor.bytes > 0)
            .collect();
        tensors.sort_by(|a, b| a.ready.total_cmp(&b.ready));
        Workload {
            tensors,
            compute,
            optimizer: worker.optimizer.seconds() * 1e3,
            threshold: (constants.fusion_mib * 1_048_576.0) as u64,
        }
    }

    /// The buckets of tensors that are ready at the same time: neighbours, up to the threshold.
    pub fn fuse(&self, tensors: &[Tensor]) -> Vec<Fused> {
        let mut buckets: Vec<Fused> = Vec::new();
        for tensor in tensors {
            match buckets.last_mut().filter(|bucket| bucket.bytes + tensor.bytes <= self.threshold) {
                Some(bucket) => {
                    bucket.tensors += 1;
                    bucket.bytes += tensor.bytes;
                }
                None => buckets.push(Fused { tensors: 1, bytes: tensor.bytes }),
            }
        }
        buckets
    }

    /// An iteration on one node without delays, ms: the published shares of contention refer to it.
    pub fn on_one_node(
        &self,
        strategy: &str,
        cluster: &Cluster,
        element_bytes: u64,
        constants: &Constants,
    ) -> Result<f64, SimulationError> {
        let mut collective = Collective::new(strategy, cluster.gpus_per_node, cluster, element_bytes, constants)?;
        let mut sum = self.compute + self.optimizer;
        for bucket in self.fuse(&self.tensors) {
            sum += copies_ms(bucket.tensors, bucket.bytes, constants) + collective.ms(bucket.bytes)?;
        }
        Ok(sum)
    }
}
