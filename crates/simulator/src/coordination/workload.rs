//! Trace and cluster in the model's terms.
use paceline_model::{Cluster, Trace};

use super::collective::{Collective, copies_ms};
use super::constants::Constants;
use crate::options::SimulationError;

/// A gradient that is reduced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tensor {
    /// From the start of the iteration, in a process that nothing delays, ms.
    pub ready: f64,
    pub bytes: u64,
}

/// Tensors that are reduced as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fused {
    pub tensors: usize,
    pub bytes: u64,
}

/// What one process does in an iteration.
pub(super) struct Workload {
    /// In the order in which they are ready.
    pub tensors: Vec<Tensor>,
    /// Forward and backward pass, ms.
    pub compute: f64,
    /// After the last sum, ms.
    pub optimizer: f64,
    /// Bytes up to which tensors are fused.
    pub threshold: u64,
}

impl Workload {
    /// Without overlap all gradients are handed over at the end of the backward pass, as XLA's compiled steps do.
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

    /// The buckets of some tensors that are ready at once: neighbours, up to the threshold.
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

    /// An iteration of one node that nothing delays, ms: the published shares of contention are shares of such.
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
