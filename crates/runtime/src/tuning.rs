//! Tunes the algorithm for each message size, by measurement when a communicator is created.
use paceline_engine::Submission;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::sync::{Arc, Mutex};
use paceline_os::time::{Duration, Instant};
use paceline_schedule::{ChunkBytes, Topology};
use paceline_transport::error::Result;
use paceline_transport::header::Collective;

use crate::communicator::{CollectiveRequest, Communicator};
use crate::selection::{Algorithm, AlgorithmSelection, BuiltAlgorithm, KIB};

/// A measured size, the size up to which its winner is used, and the candidates.
type Trial = (u64, u64, Vec<Algorithm>);

/// Sizes at which candidates are measured.
const TRIALS: usize = 4;

fn trials(ranks: u32, zero_copy: bool) -> [Trial; TRIALS] {
    let doubling = |cut| Algorithm::new("recursive-doubling", Some(cut));
    let halving = |cut| Algorithm::new("halving-doubling", Some(cut));
    let ring = |cut| Algorithm::new("ring", Some(cut));
    let copied = |algorithm| Algorithm { zero_copy: false, ..algorithm };
    let (whole, parts) = (ChunkBytes::Whole, |kib: u64| ChunkBytes::Size(kib * KIB));
    let tiny = vec![doubling(whole), copied(halving(whole))];
    let small = vec![doubling(whole), copied(halving(whole)), halving(parts(32)), ring(ChunkBytes::PerWorker)];
    let mut large = vec![copied(halving(parts(64))), copied(halving(parts(128))), copied(ring(parts(64)))];
    let mut huge = vec![copied(halving(parts(128))), copied(ring(parts(128)))];
    if ranks == 2 {
        // Whole vectors are exchanged, which between two ranks moves no more data than halves.
        large.push(copied(doubling(parts(64))));
    }
    if zero_copy {
        large.extend([halving(parts(512)), ring(parts(512))]);
        huge.extend([halving(parts(512)), halving(parts(1024)), ring(parts(512))]);
    } else {
        large.extend([copied(halving(parts(512))), copied(ring(parts(128)))]);
        huge.extend([copied(halving(parts(512))), copied(ring(parts(64)))]);
    }
    [
        (4 * KIB, 12 * KIB, tiny),
        (64 * KIB, 192 * KIB, small),
        (1024 * KIB, 2048 * KIB, large),
        (4096 * KIB, u64::MAX, huge),
    ]
}

/// The fastest candidates in earlier communicators of the same shape, and how long this rank has measured in all.
#[derive(Default)]
pub(crate) struct Tuned(Mutex<Measured>);

#[derive(Default)]
struct Measured {
    winners: Vec<(Topology, [usize; TRIALS])>,
    spent: Duration,
}

/// How long a job measures, in all. On a slow network, or with many shapes of communicators, the rest is not worth it.
const BUDGET: Duration = Duration::from_secs(2);

/// The candidate for a size that is too large to be measured within the budget: one that sends the fewest bytes.
fn unmeasured(algorithms: &[Arc<BuiltAlgorithm>], ranks: u32) -> usize {
    let wanted = if ranks.is_power_of_two() { "halving-doubling" } else { "ring" };
    let cut = |built: &Arc<BuiltAlgorithm>| !matches!(built.algorithm.cut, Some(ChunkBytes::Whole));
    let of = |name: &str| algorithms.iter().position(|built| built.algorithm.strategy == name && cut(built));
    of(wanted).or_else(|| of("halving-doubling")).unwrap_or(0)
}

/// Measures the candidates for each size and selects the fastest, unless the user named a strategy. Collective.
pub(crate) fn tune(world: &Communicator, tuned: &Tuned) -> Result<()> {
    if world.selection().lock().settled || world.size() == 1 {
        return Ok(());
    }
    let simple = BuiltAlgorithm::new(Algorithm::new("recursive-doubling", Some(ChunkBytes::Whole)), world.topology())?;
    let use_only = |built: &Arc<BuiltAlgorithm>| world.selection().lock().table = vec![(u64::MAX, built.clone())];
    use_only(&simple);
    // Ranks agree on whether any two of them can send zero-copy. The first rank decides whether such a group has been
    // measured before, because ranks that were in different groups then have different results.
    let mut told = [if world.rank() == 0 { -1.0 } else { -2.0 }; TRIALS + 2];
    told[TRIALS] = f32::from(u8::from(world.ranks().iter().any(|&rank| world.shared.zero_copy[rank as usize])));
    {
        let measured = tuned.0.lock();
        told[TRIALS + 1] = measured.spent.as_secs_f32();
        if world.rank() == 0
            && let Some((_, known)) = measured.winners.iter().find(|(shape, _)| shape == world.topology())
        {
            told[..TRIALS].copy_from_slice(&known.map(|index| index as f32));
        }
    }
    let began = Instant::now();
    all_reduce(world, &mut told, ReduceOp::Max)?;
    let zero_copy = told[TRIALS] > 0.0;
    let mut budget = Budget { spent: told[TRIALS + 1], began, last: None };
    let mut winners = [usize::MAX; TRIALS];
    for (winner, told) in winners.iter_mut().zip(told).filter(|(_, told)| *told >= 0.0) {
        *winner = told as usize;
    }
    let (mut memory, mut table, mut unknown) = (Vec::new(), Vec::new(), None);
    for ((bytes, most, algorithms), winner) in trials(world.size(), zero_copy).into_iter().zip(&mut winners) {
        let algorithms: Vec<_> = algorithms
            .into_iter()
            .map(|algorithm| BuiltAlgorithm::new(algorithm, world.topology()))
            .collect::<Result<_>>()?;
        if *winner >= algorithms.len() {
            if !budget.allows(bytes, algorithms.len()) {
                unknown.get_or_insert(bytes);
                table.push((most, algorithms[unmeasured(&algorithms, world.size())].clone()));
                continue;
            }
            memory.resize((bytes / 4) as usize, 0f32);
            let times = measure(world, &mut memory, &algorithms, (&mut budget, bytes), use_only)?;
            // Zero-copy sends gain more with larger buffers and huge pages than this measurement shows, so they win a
            // near tie.
            let cost = |index: &usize| {
                times[*index] * if algorithms[*index].algorithm.zero_copy { ZERO_COPY_BONUS } else { 1.0 }
            };
            *winner = (0..algorithms.len()).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0);
        }
        table.push((most, algorithms[*winner].clone()));
    }
    if let Some(bytes) = unknown.filter(|_| world.rank() == 0) {
        paceline_os::report!(
            "paceline: a slow network: strategies for messages of {} KiB and more are not measured, which would take \
             longer than {} s; the setting strategy names one",
            bytes / KIB,
            BUDGET.as_secs()
        );
    }
    let mut measured = tuned.0.lock();
    measured.spent += began.elapsed();
    measured.winners.retain(|(shape, _)| shape != world.topology());
    // What was not measured is not in the range of candidates: a later communicator measures it, if it has the time.
    measured.winners.push((world.topology().clone(), winners.map(|winner| winner.min(NOT_MEASURED))));
    *world.selection().lock() = AlgorithmSelection { table, settled: true };
    Ok(())
}

/// Stands for the index of a candidate that is not known; exact as a `f32`.
const NOT_MEASURED: usize = 1000;

/// The rest of the time to measure. All ranks have the same figures, so that all stop alike.
struct Budget {
    /// Seconds before this communicator, on the rank with the most.
    spent: f32,
    began: Instant,
    /// The last size that was measured, the seconds that its fastest candidate took, and those since the beginning.
    last: Option<(u64, f32, f32)>,
}

impl Budget {
    /// Whether so many candidates can be measured for messages of this size: each at least twice, as fast as the smaller
    /// messages were. The smallest are always measured, unless nothing is left.
    fn allows(&self, bytes: u64, candidates: usize) -> bool {
        let limit = BUDGET.as_secs_f32();
        match self.last {
            None => self.spent < limit,
            Some((smaller, fastest, since)) => {
                // The latency is part of what a small message takes.
                let growth = (bytes / smaller) as f32 * 0.5;
                self.spent + since + 2.0 * candidates as f32 * fastest * growth < limit
            }
        }
    }
}

/// Measuring time per candidate, spread over several rounds so that a brief disturbance of the machine affects only
/// one.
const LONG_ENOUGH_S: f32 = 0.010;
const TURNS: usize = 5;
/// A candidate slower than this is measured only once: on a slow network, tuning would delay the start.
const SLOW_S: f32 = 0.02;
/// Factor on the time of an algorithm with zero-copy sends.
const ZERO_COPY_BONUS: f32 = 0.9;
/// Candidates that first took this many times as long as the fastest are dropped.
const HOPELESS: f32 = 3.0;

/// The time of each algorithm on the slowest rank: the median of the rounds' medians. All ranks get the same figures.
fn measure(
    world: &Communicator,
    memory: &mut [f32],
    algorithms: &[Arc<BuiltAlgorithm>],
    (budget, bytes): (&mut Budget, u64),
    use_only: impl Fn(&Arc<BuiltAlgorithm>),
) -> Result<Vec<f32>> {
    let once = |memory: &mut [f32]| {
        let begin = Instant::now();
        all_reduce(world, memory, ReduceOp::Sum).map(|()| begin.elapsed().as_secs_f32())
    };
    let agree = |times: &mut [f32]| {
        // The input does not depend on the algorithm.
        use_only(&algorithms[0]);
        all_reduce(world, times, ReduceOp::Max)
    };
    let mut first = Vec::with_capacity(algorithms.len());
    for algorithm in algorithms {
        use_only(algorithm);
        let cold = once(memory)?;
        first.push(cold.min(once(memory)?));
    }
    // The last figure: how long it has taken so far.
    first.push(budget.began.elapsed().as_secs_f32());
    agree(&mut first)?;
    let since = first.pop().unwrap_or(0.0);
    let fastest = first.iter().copied().fold(f32::INFINITY, f32::min);
    budget.last = Some((bytes, fastest, since));
    if budget.spent + since > BUDGET.as_secs_f32() {
        return Ok(first);
    }
    let mut turns: Vec<Vec<f32>> = first.iter().map(|_| Vec::new()).collect();
    for _ in 0..TURNS {
        for (index, algorithm) in algorithms.iter().enumerate() {
            if first[index] > (HOPELESS * fastest).min(SLOW_S) {
                continue;
            }
            use_only(algorithm);
            let runs = (LONG_ENOUGH_S / TURNS as f32 / first[index].max(1e-7)).clamp(1.0, 100.0) as usize;
            let mut times = (0..runs).map(|_| once(memory)).collect::<Result<Vec<_>>>()?;
            turns[index].push(median(&mut times));
        }
    }
    let mut times: Vec<f32> = first
        .iter()
        .zip(&mut turns)
        .map(|(&first, turns)| if turns.is_empty() { first } else { median(turns) })
        .collect();
    agree(&mut times)?;
    Ok(times)
}

fn median(times: &mut [f32]) -> f32 {
    times.sort_unstable_by(f32::total_cmp);
    times[times.len() / 2]
}

#[allow(unsafe_code, reason = "the memory is a slice that lives until the operation is over")]
fn all_reduce(world: &Communicator, memory: &mut [f32], op: ReduceOp) -> Result<()> {
    let inputs = [(memory.as_mut_ptr() as usize, memory.len() as u64)];
    let request = CollectiveRequest {
        collective: Collective::AllReduce,
        dtype: Dtype::Float32,
        op,
        inputs: &inputs,
        ..CollectiveRequest::default()
    };
    // SAFETY: borrowed exclusively until the wait below returns, and it returns only after the operation has completed.
    let handle = unsafe { world.submit(&request, None, Submission::default())? };
    world.wait(&handle, None).map(drop)
}
