//! Converts trace and cluster to the quantities of the model.
use paceline_iteration::units::handing_over;
use paceline_model::{Cluster, Trace};

use super::collective::{Collective, copies_ms};
use super::constants::Constants;
use super::draws::Draws;
use crate::options::{Options, SimulationError};
use crate::planning::sped_up;
use crate::random::Random;
use crate::worker::{SHUFFLE_SEED, slowdowns, slower};

/// A gradient that is reduced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tensor {
    /// From the start of the iteration until the slowest process without delays has it, ms.
    pub ready: f64,
    pub bytes: u64,
}

/// Tensors that are reduced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fused {
    pub tensors: usize,
    pub bytes: u64,
}

/// The work of the processes in an iteration.
pub(super) struct Workload {
    /// Gradients in the order in which they become ready.
    pub tensors: Vec<Tensor>,
    /// Forward pass of the first worker, ms.
    pub forward: f64,
    /// Forward and backward pass of the first worker, ms.
    pub compute: f64,
    /// After the last sum, ms.
    pub optimizer: f64,
    /// Buckets are no larger than this; `None`: every tensor is its own bucket.
    pub threshold: Option<u64>,
    /// Of all computation: sigma of a log-normal factor.
    jitter: Option<f64>,
}

impl Workload {
    /// Without overlap, all gradients are submitted at the end of the backward pass, as in XLA's compiled steps.
    pub fn new(trace: &Trace, cluster: &Cluster, options: &Options) -> Workload {
        let faster = 1e3 / options.compute_speedup;
        let first = &trace.workers[0];
        let forward = first.forward_time().seconds() * faster;
        let mut tensors: Vec<Tensor> = first
            .gradients
            .iter()
            .map(|gradient| Tensor { ready: 0.0, bytes: trace.tensors[gradient.tensor as usize].bytes })
            .collect();
        let mut place = vec![usize::MAX; trace.tensors.len()];
        first.gradients.iter().enumerate().for_each(|(i, gradient)| place[gradient.tensor as usize] = i);
        for Process { recorded, slower, factor, spread } in slowest(trace, cluster, options) {
            let worker = &trace.workers[recorded];
            let own = sped_up(worker, &options.on_slower(slower));
            let called = handing_over(&own, options.workers, options.call, options.agreement).unwrap_or(own);
            let longer = options.offloaded.forward.slower(slower);
            let forward = worker.forward_time().seconds() * faster * longer * factor;
            for gradient in &called.gradients {
                let Some(tensor) = tensors.get_mut(place[gradient.tensor as usize]) else { continue };
                let backward = if options.overlap { gradient.ready } else { called.backward };
                tensor.ready = tensor.ready.max(forward + backward.seconds() * 1e3 * factor * spread);
            }
        }
        tensors.retain(|tensor| tensor.bytes > 0);
        tensors.sort_by(|a, b| a.ready.total_cmp(&b.ready));
        Workload {
            tensors,
            forward,
            compute: forward + first.backward.seconds() * faster,
            optimizer: first.optimizer.seconds() * faster,
            threshold: options.bucket_size,
            jitter: cluster.jitter.map(|jitter| jitter.sigma),
        }
    }

    /// The buckets of tensors that are ready at the same time: neighbors, up to the threshold.
    pub fn fuse(&self, tensors: &[Tensor]) -> Vec<Fused> {
        let mut buckets: Vec<Fused> = Vec::new();
        for tensor in tensors {
            let fits = |bucket: &&mut Fused| self.threshold.is_some_and(|most| bucket.bytes + tensor.bytes <= most);
            match buckets.last_mut().filter(fits) {
                Some(bucket) => {
                    bucket.tensors += 1;
                    bucket.bytes += tensor.bytes;
                }
                None => buckets.push(Fused { tensors: 1, bytes: tensor.bytes }),
            }
        }
        buckets
    }

    /// Bytes of the largest bucket there can be.
    pub fn largest(&self) -> u64 {
        let all: u64 = self.tensors.iter().map(|tensor| tensor.bytes).sum();
        let one = self.tensors.iter().map(|tensor| tensor.bytes).max().unwrap_or(0);
        self.threshold.map_or(one, |most| most.min(all).max(one))
    }

    /// By which factor the slowest process computes longer in this iteration, because of the cluster's jitter.
    pub fn slower(&self, draws: &mut Draws, processes: u32) -> f64 {
        let Some(sigma) = self.jitter else { return 1.0 };
        (0..processes).map(|_| draws.log_normal(sigma)).fold(0.0, f64::max)
    }

    /// An iteration on one node without delays, ms: the published shares of contention refer to it.
    pub fn on_one_node(
        &self,
        trace: &Trace,
        cluster: &Cluster,
        options: &Options,
        constants: &Constants,
    ) -> Result<f64, SimulationError> {
        let mut collective =
            Collective::new(self.largest(), trace, cluster, options, cluster.gpus_per_node, constants)?;
        let mut sum = self.compute + self.optimizer;
        for bucket in self.fuse(&self.tensors) {
            sum += copies_ms(bucket.tensors, bucket.bytes, constants) + collective.ms(bucket.bytes)?;
        }
        Ok(sum)
    }
}

struct Process {
    recorded: usize,
    /// By how much its GPU computes longer.
    slower: f64,
    /// By how much all its computation, with calls, takes longer than that, and by how much the backward pass does besides.
    factor: f64,
    spread: f64,
}

impl Process {
    fn is_behind(&self, other: &Process) -> bool {
        self.recorded == other.recorded
            && self.slower >= other.slower
            && self.factor >= other.factor
            && self.spread >= other.spread
    }
}

/// The processes that can be the last with a gradient. A process that is slower in nothing than another one never is.
fn slowest(trace: &Trace, cluster: &Cluster, options: &Options) -> Vec<Process> {
    let last = f64::from(options.workers.max(2) - 1);
    let shuffled = Random::new(SHUFFLE_SEED).permutation(options.workers);
    let mut last_ones: Vec<Process> = Vec::new();
    let factors = slower(cluster, options.workers).into_iter().zip(slowdowns(cluster, options));
    for (rank, (slower, factor)) in factors.enumerate() {
        let spread = 1.0 + trace.backward_spread * f64::from(shuffled[rank]) / last;
        let own = Process { recorded: rank % trace.workers.len(), slower, factor, spread };
        if !last_ones.iter().any(|it| it.is_behind(&own)) {
            last_ones.retain(|it| !own.is_behind(it));
            last_ones.push(own);
        }
    }
    last_ones
}
