//! The plan of an iteration, and what the parts of a simulation read off it.
use paceline_iteration::{Exchanges, IterationOptions, Method, Plan, Pull, Sharding, Stream, Work, build};
use paceline_model::trace::WorkerTrace;
use paceline_model::{Time, Trace};
use paceline_schedule::Knob;

use crate::offload::Offloaded;
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
        compression: iteration.compression.scaled(options.slower / options.compute_speedup),
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

/// The trace as a rank of these options computes it.
pub(crate) fn scaled(trace: &Trace, options: &Options) -> Trace {
    let workers = trace.workers.iter().map(|worker| sped_up(worker, options)).collect();
    Trace { workers, ..trace.clone() }
}

/// A recorded worker as a rank of these options computes it.
pub(crate) fn sped_up(worker: &WorkerTrace, options: &Options) -> WorkerTrace {
    let Offloaded { forward, backward, optimizer } = options.offloaded;
    let [forward, backward, optimizer] =
        [forward, backward, optimizer].map(|part| part.slower(options.slower) / options.compute_speedup);
    let mut worker = worker.clone();
    worker.gradients.iter_mut().for_each(|gradient| gradient.ready = gradient.ready.scaled(backward));
    worker.backward = worker.backward.scaled(backward);
    worker.forward.iter_mut().for_each(|layer| layer.duration = layer.duration.scaled(forward));
    worker.optimizer = worker.optimizer.scaled(optimizer);
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

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Forward,
    Backward,
    Optimizer,
    /// Compression, and the optimizer between groups.
    Other,
}

/// What a step computes, and for how many picoseconds by the plan; `None`: it is an exchange.
pub(crate) fn computed(work: &Work) -> Option<(Kind, Time)> {
    match *work {
        Work::Forward { duration_ps } => Some((Kind::Forward, Time(duration_ps))),
        Work::Backward { duration_ps } => Some((Kind::Backward, Time(duration_ps))),
        Work::Optimizer { duration_ps } => Some((Kind::Optimizer, Time(duration_ps))),
        Work::Compress { duration_ps } | Work::Decompress { duration_ps } | Work::OuterOptimizer { duration_ps } => {
            Some((Kind::Other, Time(duration_ps)))
        }
        Work::Exchange { .. } => None,
    }
}

/// By how much a rank takes longer than its plan for each kind of computation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Factors {
    pub forward: f64,
    pub backward: f64,
    pub optimizer: f64,
    pub other: f64,
}

impl Default for Factors {
    /// As long as the plan says.
    fn default() -> Factors {
        Factors { forward: 1.0, backward: 1.0, optimizer: 1.0, other: 1.0 }
    }
}

impl Factors {
    /// A GPU that computes longer by a factor, and by another one still in the backward pass.
    pub fn new(offloaded: &Offloaded, factor: f64, backward: f64) -> Factors {
        Factors {
            forward: offloaded.forward.slower(factor),
            backward: offloaded.backward.slower(factor * backward),
            optimizer: offloaded.optimizer.slower(factor),
            other: factor,
        }
    }

    pub fn of(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Forward => self.forward,
            Kind::Backward => self.backward,
            Kind::Optimizer => self.optimizer,
            Kind::Other => self.other,
        }
    }

    /// The larger ones of both.
    pub fn max(self, other: Factors) -> Factors {
        Factors {
            forward: self.forward.max(other.forward),
            backward: self.backward.max(other.backward),
            optimizer: self.optimizer.max(other.optimizer),
            other: self.other.max(other.other),
        }
    }
}

/// Picoseconds of a step of computation on a rank; `None`: it is an exchange.
pub(crate) fn duration(work: &Work, factors: &Factors) -> Option<u64> {
    computed(work).map(|(kind, time)| time.scaled(factors.of(kind)).0)
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
