//! The state of one worker.
use paceline_iteration::Plan;
use paceline_model::{Cluster, Trace};

use crate::offload::Offloaded;
use crate::options::Options;
use crate::path::Chain;
use crate::plan_run::Progress;
use crate::planning::{Factors, duration, pace};
use crate::random::{Random, normal_order_statistic};
use crate::run_types::Mark;

pub(crate) struct Worker<C> {
    /// The recorded worker whose behavior it copies.
    pub recorded: usize,
    pub iteration: u32,
    /// When its model's computation last ended, or the iteration began.
    pub since: u64,
    /// The plan that it follows: that of `recorded` on a GPU as slow as its own.
    pub plan: usize,
    /// By how much it takes longer than that plan in this iteration.
    pub factors: Factors,
    /// The factor of its plan, if that is another recorded worker's.
    pub pace: f64,
    /// By how much its GPU computes longer than others; its plan has that.
    pub slower: f64,
    offloaded: Offloaded,
    slowdown: f64,
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
    let (slowdowns, speeds, slower) = (slowdowns(cluster, options), speeds(cluster), slower(cluster, options.workers));
    (0..options.workers)
        .map(|rank| {
            let (recorded, slower) = (rank as usize % trace.workers.len(), slower[rank as usize]);
            let speed = speeds.iter().position(|&it| it == slower).unwrap_or(0);
            Worker {
                recorded,
                iteration: 0,
                since: 0,
                plan: speed * trace.workers.len() + recorded,
                factors: Factors::default(),
                pace: 1.0,
                slower,
                offloaded: options.offloaded.on_slower(slower),
                slowdown: slowdowns[rank as usize],
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
        worker.plan /= trace.workers.len();
    }
    workers
}

/// By how much GPUs compute longer, each factor once, from that of most, 1: plans are in this order.
pub(crate) fn speeds(cluster: &Cluster) -> Vec<f64> {
    let mut speeds = vec![1.0];
    for &(_, factor) in &cluster.stragglers {
        if !speeds.contains(&factor) {
            speeds.push(factor);
        }
    }
    speeds
}

/// By how much the GPU of each rank computes longer.
pub(crate) fn slower(cluster: &Cluster, workers: u32) -> Vec<f64> {
    let mut factors = vec![1.0; workers as usize];
    for &(rank, slower) in &cluster.stragglers {
        factors[rank as usize] = slower;
    }
    factors
}

/// The rank that computes longest.
pub(crate) struct Slowest {
    pub rank: u32,
    /// By how much its GPU computes longer than others.
    pub slower: f64,
    /// By how much it takes longer than the plan of such a GPU.
    pub factors: Factors,
}

/// The rank that computes longest by a plan, most of which is the backward pass.
pub(crate) fn slowest(plan: &Plan, trace: &Trace, cluster: &Cluster, options: &Options) -> Slowest {
    let mut longest = (0, Slowest { rank: 0, slower: 1.0, factors: Factors::default() });
    for (rank, worker) in (0..).zip(&mut followers::<()>(trace, cluster, options)) {
        let own = worker.vary(cluster);
        let factors = Factors::new(&options.offloaded, worker.slower * own, worker.spread);
        let total = plan.steps.iter().filter_map(|step| duration(&step.work, &factors)).sum::<u64>();
        if total > longest.0 {
            longest = (total, Slowest { rank, slower: worker.slower, factors: worker.factors });
        }
    }
    longest.1
}

/// By how much each rank takes longer in every iteration than its GPU alone would.
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
    factors
}

impl<C> Worker<C> {
    /// Draws this iteration's factors; that of all computation.
    pub fn vary(&mut self, cluster: &Cluster) -> f64 {
        let noise = cluster.jitter.map_or(1.0, |jitter| self.random.log_normal(jitter.sigma));
        let factor = self.slowdown * noise * self.pace;
        self.factors = Factors::new(&self.offloaded, factor, self.spread);
        factor
    }
}
