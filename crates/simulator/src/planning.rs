//! The plan of an iteration, and what the parts of a simulation read off it.
use paceline_iteration::{Exchanges, IterationOptions, Method, Plan, Pull, Sharding, Stream, Work, build};
use paceline_model::trace::WorkerTrace;
use paceline_model::{Time, Trace};
use paceline_schedule::Knob;

use crate::options::{Options, SimulationError};

/// The plan that the ranks of a simulation execute; where they copy different recorded workers, that of the first one.
///
/// # Errors
/// Options that contradict each other; the message names the option.
pub fn plan_of(trace: &Trace, options: &Options) -> Result<Plan, SimulationError> {
    planned(&scaled(trace, options), options, &executed(trace, options)?)
}

/// The options of that plan.
pub(crate) fn executed(trace: &Trace, options: &Options) -> Result<IterationOptions, SimulationError> {
    let recorded = || IterationOptions {
        bucket_size: options.bucket_size,
        overlap: options.overlap,
        ..IterationOptions::new(Sharding::None)
    };
    let iteration = options.iteration.clone().unwrap_or_else(recorded);
    Ok(IterationOptions {
        compression: iteration.compression.scaled(1.0 / options.compute_speedup),
        exchanges: exchanges(trace, options, &iteration)?,
        collective: options.collective,
        call: options.call,
        agreement: options.agreement,
        ..iteration
    })
}

/// Paceline's runtime exchanges buckets side by side, and so do servers. NCCL does not, nor do hooks that compress.
fn exchanges(trace: &Trace, options: &Options, iteration: &IterationOptions) -> Result<Exchanges, SimulationError> {
    let on_a_stream = iteration.sharding != Sharding::None
        || iteration.compression.method != Method::None
        || iteration.sync_every > 1
        || options.collectives.is_some()
        || options.slowdown > 0.0;
    Ok(match options.entry()?.uses(Knob::Pull) {
        _ if on_a_stream => Exchanges::Stream,
        // Without computation an iteration is one exchange, and no layer could wait.
        true => Exchanges::Servers(if computes(trace) { options.pull } else { Pull::Step }),
        false => Exchanges::Background,
    })
}

/// The plan with these options of what [`scaled`] returns.
pub(crate) fn planned(
    computed: &Trace,
    options: &Options,
    iteration: &IterationOptions,
) -> Result<Plan, SimulationError> {
    build(computed, options.workers, iteration)
}

/// The trace with the speedup.
pub(crate) fn scaled(trace: &Trace, options: &Options) -> Trace {
    let workers = trace.workers.iter().map(|worker| sped_up(worker, options)).collect();
    Trace { workers, ..trace.clone() }
}

/// A recorded worker with the speedup.
pub(crate) fn sped_up(worker: &WorkerTrace, options: &Options) -> WorkerTrace {
    let faster = 1.0 / options.compute_speedup;
    let mut worker = worker.clone();
    worker.gradients.iter_mut().for_each(|gradient| gradient.ready = gradient.ready.scaled(faster));
    worker.backward = worker.backward.scaled(faster);
    worker.forward.iter_mut().for_each(|layer| layer.duration = layer.duration.scaled(faster));
    worker.optimizer = worker.optimizer.scaled(faster);
    worker
}

/// Whether an iteration is more than an exchange.
pub(crate) fn computes(trace: &Trace) -> bool {
    trace.workers.iter().any(|worker| worker.compute_time() != Time::ZERO)
}

/// How much longer a recorded worker computes than the first one, whose plan all ranks have.
pub(crate) fn pace(trace: &Trace, recorded: usize) -> f64 {
    let [own, first] = [recorded, 0].map(|worker| trace.workers[worker].compute_time().seconds());
    if first > 0.0 { own / first } else { 1.0 }
}

/// Picoseconds of a step of computation on a rank; `None`: it is an exchange.
pub(crate) fn duration(work: &Work, (factor, backward): (f64, f64)) -> Option<u64> {
    match *work {
        Work::Forward { duration_ps }
        | Work::Optimizer { duration_ps }
        | Work::Compress { duration_ps }
        | Work::Decompress { duration_ps }
        | Work::OuterOptimizer { duration_ps } => Some(Time(duration_ps).scaled(factor).0),
        Work::Backward { duration_ps } => Some(Time(duration_ps).scaled(backward).0),
        Work::Exchange { .. } => None,
    }
}

/// For each step, those that it waits for: the one before it on its stream, and those it names.
pub(crate) fn predecessors(plan: &Plan) -> Vec<Vec<u32>> {
    let mut last: [Option<u32>; Stream::ALL.len()] = [None; Stream::ALL.len()];
    (0u32..)
        .zip(&plan.steps)
        .map(|(number, step)| {
            let mut before = step.after.clone();
            if step.stream != Stream::Background {
                before.extend(last[step.stream as usize].replace(number));
            }
            before.sort_unstable();
            before.dedup();
            before
        })
        .collect()
}

/// When each step of a rank began and ended, in picoseconds.
pub(crate) type Spans = Vec<(u64, u64)>;
