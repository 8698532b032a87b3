//! Iterations of many passes, of which all but the first and the last few are alike: each more takes as much longer.
use paceline_iteration::IterationOptions;

use crate::options::{Options, SimulationError};
use crate::outcome::Outcome;
use crate::run_types::Measured;
use crate::sharded::{Resolution, Sharded};

/// Passes that are simulated one by one.
const MOST: u32 = 64;
/// Passes of the shortest of three iterations that tell whether others are alike, and by how many more the next one has.
const FEW: u32 = 8;
/// Relative error of times, of which each is a sum of picoseconds.
const ROUNDING: f64 = 1e-12;

/// The same options with no more passes than tell them apart: with more, exchanges and the peak of memory are the same.
pub(crate) fn few(options: &Options) -> Options {
    match &options.iteration {
        Some(iteration) if iteration.accumulate > MOST => with(options, iteration, FEW),
        _ => options.clone(),
    }
}

fn with(options: &Options, iteration: &IterationOptions, accumulate: u32) -> Options {
    Options { iteration: Some(IterationOptions { accumulate, ..iteration.clone() }), ..options.clone() }
}

/// The outcome of an iteration of many passes; `None`: it has few, or passes differ.
///
/// `messages` counts those of an iteration, by which `resolution` decides how it is executed, and `run` executes one.
///
/// # Errors
/// Those of `messages` and `run`.
pub(super) fn extended(
    options: &Options,
    messages: impl Fn(&Options) -> Result<u64, SimulationError>,
    resolution: impl Fn(u64) -> Resolution,
    run: impl Fn(&Options, Resolution) -> Result<Outcome, SimulationError>,
) -> Result<Option<Outcome>, SimulationError> {
    let Some(iteration) = options.iteration.as_ref().filter(|it| it.accumulate > MOST && it.sync_every == 1) else {
        return Ok(None);
    };
    let sent = |passes| messages(&with(options, iteration, passes));
    let (first, second) = (sent(FEW)?, sent(2 * FEW)?);
    let more = u64::from(iteration.accumulate - FEW);
    let resolution = resolution(first + (second - first) * more / u64::from(FEW));
    let run = |passes| run(&with(options, iteration, passes), resolution);
    let [short, middle, long] = [run(FEW)?, run(2 * FEW)?, run(3 * FEW)?];
    if !is_near(&later(&short, &middle, 3 * FEW), &long) {
        return Ok(None);
    }
    Ok(Some(later(&middle, &long, iteration.accumulate)))
}

/// The outcome with `passes`, from two of which the second has [`FEW`] more than the first.
fn later(first: &Outcome, second: &Outcome, passes: u32) -> Outcome {
    let more = passes - first.sharded.passes;
    let share = f64::from(more) / f64::from(FEW);
    let between = |of: fn(&Outcome) -> f64| of(first) + (of(second) - of(first)) * share;
    let towards = first.towards(second, share);
    let iteration_s = between(|it| it.iteration_s);
    let alone_s = between(|it| it.scaling_efficiency.unwrap_or(0.0) * it.iteration_s);
    let samples = f64::from(first.workers) * f64::from(first.batch) * f64::from(passes);
    Outcome {
        samples_per_s: first.samples_per_s.map(|_| samples / iteration_s),
        scaling_efficiency: first.scaling_efficiency.map(|_| alone_s / iteration_s),
        forward_s: between(|it| it.forward_s),
        backward_s: between(|it| it.backward_s),
        optimizer_s: between(|it| it.optimizer_s),
        bytes_sent_per_worker: between(|it| it.bytes_sent_per_worker),
        messages: first.messages + (second.messages - first.messages) * u64::from(more) / u64::from(FEW),
        sharded: Sharded { passes, ..towards.sharded },
        ..towards
    }
}

/// Whether all figures of two outcomes are the same but for rounding.
fn is_near(one: &Outcome, other: &Outcome) -> bool {
    let rounding = ROUNDING * other.iteration_s;
    let near = |of: fn(&Outcome) -> f64| (of(one) - of(other)).abs() <= rounding;
    near(|it| it.iteration_s)
        && near(|it| it.forward_s)
        && near(|it| it.backward_s)
        && near(|it| it.optimizer_s)
        && near(|it| it.exposed_communication_s)
        && near(|it| it.sharded.exposed.all_gather_s)
        && near(|it| it.sharded.exposed.reduce_scatter_s)
        && near(|it| it.sharded.exposed.all_reduce_s)
        && near(|it| it.sharded.exposed.compression_s)
        && near(|it| it.sharded.straggling_s)
        && near(|it| it.sharded.slowed_s)
        && near(|it| it.sharded.calls_s)
        && one.messages == other.messages
        && one.sharded.memory == other.sharded.memory
        && one.notes == other.notes
}
