//! Runs one simulation from start to end.
use paceline_model::{Cluster, Trace};
use paceline_schedule::Knob;

use crate::network::topology::NetworkLinks;
use crate::observer::Observer;
use crate::options::{Network, Options, SimulationError};
use crate::outcome::{Outcome, PathSeconds, Usage, outcome};
use crate::path::{COUNT, Chain, Composition};
use crate::prepare::{Prepared, prepare};
use crate::simulation::{Boundary, Mark, Simulation};
use crate::timeline::{Recorder, Timeline};
use crate::worker::workers;

/// Forecasts one configuration.
///
/// # Errors
/// Options that contradict each other or do not fit the cluster; the message names the option and says what to do.
pub fn simulate(trace: &Trace, cluster: &Cluster, options: &Options) -> Result<Outcome, SimulationError> {
    let prepared = prepare(trace, cluster, options)?;
    check_switch_memory(trace, cluster, &prepared)?;
    if options.critical_path {
        Ok(run::<Composition, ()>(trace, cluster, options, &prepared, ())?.0)
    } else {
        Ok(run::<(), ()>(trace, cluster, options, &prepared, ())?.0)
    }
}

/// Also returns a timeline of every worker and link, or only of the first `ranks` workers and the first server.
///
/// # Errors
/// Those of [`simulate`].
pub fn simulate_with_timeline(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    ranks: Option<u32>,
) -> Result<(Outcome, Timeline), SimulationError> {
    let prepared = prepare(trace, cluster, options)?;
    check_switch_memory(trace, cluster, &prepared)?;
    let (outcome, recorder, wires) =
        run::<Composition, Recorder>(trace, cluster, options, &prepared, Recorder::default())?;
    let overlapping = options.network == Network::Fluid;
    Ok((outcome, Timeline::new(&recorder, trace, &prepared, &wires, overlapping, ranks)))
}

fn check_switch_memory(trace: &Trace, cluster: &Cluster, prepared: &Prepared) -> Result<(), SimulationError> {
    let Some(memory) = cluster.switch.memory else { return Ok(()) };
    if !prepared.entry.uses(Knob::Aggregation) {
        return Ok(());
    }
    // Lanes are nearly equal pieces, so the first one is the largest.
    for bucket in &prepared.buckets {
        let lanes = u64::from(prepared.schedule.lanes(bucket)).max(1);
        let largest = match prepared.schedule.step(bucket, 0, 0, 0) {
            paceline_schedule::Step::Send { piece, .. } => piece.len,
            _ => bucket.len.div_ceil(lanes),
        } * prepared.element_bytes;
        if largest > memory {
            return Err(SimulationError(format!(
                "switch.memory: {memory} bytes cannot hold a message of {largest} bytes ('{}' of {}); cut it with \
                 --chunk SIZE",
                prepared.names[bucket.id as usize], trace.name
            )));
        }
    }
    Ok(())
}

fn run<C: Chain, O: Observer>(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    prepared: &Prepared,
    observer: O,
) -> Result<(Outcome, O, NetworkLinks), SimulationError> {
    let servers = prepared.entry.uses(Knob::Pull) && !prepared.exchange_only;
    let boundary = match (servers, options.barrier) {
        (false, _) => Boundary::Sums,
        (true, true) => Boundary::Barrier,
        (true, false) => Boundary::FirstSend,
    };
    let iterations = options.iterations.unwrap_or(if options.barrier { 1 } else { 2 }) as usize;
    // Before the first mark is the start-up phase, except that in an all-reduce with the barrier all iterations are
    // alike.
    let warm_up = match (boundary, options.barrier) {
        (Boundary::Sums, true) => 0,
        (Boundary::Sums, false) | (Boundary::Barrier, _) => 1,
        (Boundary::FirstSend, _) => 2,
    };
    let mut simulation = Simulation::<C, O>::new(
        prepared,
        cluster,
        workers(trace, cluster, options, prepared.buckets.len()),
        boundary,
        // Parameter servers synchronise their workers with a barrier of their own.
        options.barrier && !servers,
        (warm_up, iterations + warm_up),
        options.network == Network::Fluid,
        observer,
    );
    simulation.run().map_err(SimulationError)?;
    let start = match warm_up {
        0 => Mark { time: 0, chain: C::default() },
        n => simulation.marks[n - 1],
    };
    let end = simulation.marks[simulation.marks.len() - 1];
    let seconds = |picoseconds: u64| picoseconds as f64 * 1e-12;
    let iteration_s = seconds(end.time - start.time) / iterations as f64;
    let path = path(&start, &end, options.barrier, iterations as f64, iteration_s);
    let usage = Usage {
        wires: &simulation.wires,
        workers: simulation.workers.iter().map(|worker| worker.busy).collect(),
        iterations: iterations as f64,
    };
    let outcome = outcome(trace, cluster, options, prepared, iteration_s, path, &usage);
    Ok((outcome, simulation.observer, simulation.wires))
}

/// With the barrier, everything after a mark descends from it, so the difference of the chains is the path between
/// them. Without it, the shares of the whole path are used.
fn path<C: Chain>(start: &Mark<C>, end: &Mark<C>, barrier: bool, iterations: f64, iteration_s: f64) -> PathSeconds {
    let (whole, queued) = end.chain.parts()?;
    let (before, queued_before) = if barrier { start.chain.parts()? } else { ([0.0; COUNT], 0.0) };
    let scale = if barrier {
        1.0 / iterations
    } else {
        iteration_s / whole.iter().map(|&part| f64::from(part)).sum::<f64>().max(f64::MIN_POSITIVE)
    };
    let mut parts = [0.0; COUNT];
    for (part, (all, earlier)) in parts.iter_mut().zip(whole.into_iter().zip(before)) {
        *part = f64::from(all - earlier).max(0.0) * scale;
    }
    Some((parts, f64::from(queued - queued_before).max(0.0) * scale))
}
