//! The state of one worker.
use paceline_model::{Cluster, Trace};

use crate::options::Options;
use crate::path::Chain;
use crate::plan_run::Progress;
use crate::planning::pace;
use crate::random::{Random, normal_order_statistic};
use crate::run_types::Mark;

pub(crate) struct Worker<C> {
    /// The recorded worker whose behavior it copies.
    pub recorded: usize,
    pub iteration: u32,
    /// When its model's computation last ended, or the iteration began.
    pub since: u64,
    /// Factors of all computation and of the backward pass in this iteration.
    pub factor: f64,
    pub backward_factor: f64,
    /// The factor of its plan, if that is another recorded worker's.
    pub pace: f64,
    straggler: f64,
    spread: f64,
    random: Random,
    /// Picoseconds of computation since measuring began.
    pub busy: u64,
    /// The beginning of the run of computation in which it is.
    pub run: Mark<C>,
    /// How far it is in its plan.
    pub progress: Progress,
    /// Of its last two iterations, by parity.
    pub moments: [Moments; 2],
}

/// When a worker came to the parts of an iteration, in picoseconds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Moments {
    /// Which iteration, from 1; 0: none yet.
    pub iteration: u32,
    pub began: u64,
    /// When its last new parameter of the iteration before arrived, if it waits for them one by one.
    pub pulled: u64,
    /// When its backward pass began and ended.
    pub backward: u64,
    pub backward_end: u64,
}

impl<C> Worker<C> {
    /// Those of the iteration in which it is.
    pub fn now(&mut self) -> &mut Moments {
        &mut self.moments[self.iteration as usize & 1]
    }
}

/// Seed of the fixed shuffle that makes workers differ: any constant will do, but it must not change.
pub(crate) const SHUFFLE_SEED: u64 = 0x70ac_e11e;

/// Seed of the fixed shuffle of the library's spread: not that of the trace's, whose slowest worker is another.
const SPREAD_SEED: u64 = 0x5eed_0022;

/// All workers of a simulation.
pub(crate) fn workers<C: Chain>(trace: &Trace, cluster: &Cluster, options: &Options) -> Vec<Worker<C>> {
    let last = f64::from(options.workers.max(2) - 1);
    let shuffled = Random::new(SHUFFLE_SEED).permutation(options.workers);
    let slowdowns = slowdowns(cluster, options);
    (0..options.workers)
        .map(|rank| {
            Worker {
                recorded: rank as usize % trace.workers.len(),
                iteration: 0,
                since: 0,
                factor: 1.0,
                backward_factor: 1.0,
                pace: 1.0,
                straggler: slowdowns[rank as usize],
                spread: 1.0 + trace.backward_spread * f64::from(shuffled[rank as usize]) / last,
                // Streams of neighboring seeds and ranks must not overlap, so both are hashed before use.
                random: Random::new(options.seed.wrapping_mul(0xd134_2543_de82_ef95) ^ (u64::from(rank) << 32)),
                busy: 0,
                run: Mark::default(),
                progress: Progress::default(),
                moments: [Moments::default(); 2],
            }
        })
        .collect()
}

/// Workers that all have the plan of the first recorded one; others are slower or faster than it.
pub(crate) fn followers<C: Chain>(trace: &Trace, cluster: &Cluster, options: &Options) -> Vec<Worker<C>> {
    let mut workers = workers(trace, cluster, options);
    for worker in &mut workers {
        worker.pace = pace(trace, std::mem::take(&mut worker.recorded));
    }
    workers
}

/// How much longer each rank computes than the plan: forward and optimizer, and backward.
pub(crate) fn factors(trace: &Trace, cluster: &Cluster, options: &Options) -> Vec<(f64, f64)> {
    let mut workers = workers::<()>(trace, cluster, options);
    workers
        .iter_mut()
        .map(|worker| {
            worker.pace = pace(trace, worker.recorded);
            worker.vary(cluster);
            (worker.factor, worker.backward_factor)
        })
        .collect()
}

/// By how much the computation of each rank takes longer than the trace's in every iteration.
pub(crate) fn slowdowns(cluster: &Cluster, options: &Options) -> Vec<f64> {
    let workers = options.workers;
    let mut factors = vec![1.0; workers as usize];
    if cluster.gpus_per_node > 1 {
        // A GPU that is alone on the last node shares nothing.
        let alone = (workers % cluster.gpus_per_node == 1).then(|| workers - 1);
        for (rank, factor) in (0..workers).zip(&mut factors) {
            *factor *= if Some(rank) == alone { 1.0 } else { 1.0 + cluster.node_contention };
        }
    }
    if options.spread > 0.0 && workers > 1 {
        let places = Random::new(SPREAD_SEED).permutation(workers);
        for (place, factor) in places.into_iter().zip(&mut factors) {
            *factor *= (options.spread * normal_order_statistic(place, workers)).exp();
        }
    }
    for &(rank, slower) in &cluster.stragglers {
        factors[rank as usize] *= slower;
    }
    factors
}

impl<C> Worker<C> {
    /// Draws this iteration's factors.
    pub fn vary(&mut self, cluster: &Cluster) {
        let noise = cluster.jitter.map_or(1.0, |jitter| self.random.log_normal(jitter.sigma));
        self.factor = self.straggler * noise * self.pace;
        self.backward_factor = self.factor * self.spread;
    }
}
