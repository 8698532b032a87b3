//! Runs one simulation from start to end.
use paceline_iteration::Plan;
use paceline_model::{Cluster, Time, Trace};
use paceline_schedule::{Knob, Step};

use crate::degraded;
use crate::network::switch::Memory;
use crate::network::topology::NetworkLinks;
use crate::observer::Observer;
use crate::options::{Network, Options, SimulationError};
use crate::outcome::{Computation, Found, Observed, Outcome, PathSeconds, Traffic, Usage, compose};
use crate::path::{COUNT, Chain, Composition};
use crate::prepare::{prepare, with_least_latency};
use crate::ring;
use crate::run_types::{JobPlace, Mark, Prepared};
use crate::simulation::{Boundary, JobRun, Simulation, Until};
use crate::staggering::Staggering;
use crate::timeline::{JobOnTimeline, Recorder, Timeline};
use crate::worker::{Moments, Worker, workers};

/// An exchange by itself.
///
/// # Errors
/// Those of [`simulate`](crate::simulate).
pub(crate) fn simulate_exchange(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
) -> Result<Outcome, SimulationError> {
    let run = |cluster: &Cluster, _| simulate_recorded(trace, cluster, options, None);
    Ok(degraded::forecast(trace, cluster, options, false, run)?.0)
}

/// Simulates an iteration as it was recorded, without a plan of its own or a coordinator; `timeline`: whether one is wanted,
/// and of how many ranks.
pub(crate) fn simulate_recorded(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    timeline: Option<Option<u32>>,
) -> Result<(Outcome, Timeline), SimulationError> {
    let (prepared, plan) = prepare(trace, cluster, options)?;
    check_switch_memory(trace, cluster, &prepared)?;
    let Some(ranks) = timeline else {
        let outcome = if options.critical_path {
            run::<Composition, ()>(trace, cluster, options, (&prepared, &plan), true, ())?.0
        } else {
            run::<(), ()>(trace, cluster, options, (&prepared, &plan), true, ())?.0
        };
        return Ok((outcome, Timeline::default()));
    };
    let (outcome, recorder, wires) =
        run::<Composition, Recorder>(trace, cluster, options, (&prepared, &plan), false, Recorder::default())?;
    let overlapping = options.network == Network::Fluid;
    let place = JobPlace::alone(prepared.schedule.roles());
    let job = JobOnTimeline { name: None, trace, prepared: &prepared, place };
    Ok((outcome, Timeline::new(&recorder, &[job], &wires, overlapping, ranks)))
}

pub(crate) fn check_switch_memory(
    trace: &Trace,
    cluster: &Cluster,
    prepared: &Prepared,
) -> Result<(), SimulationError> {
    let Some(memory) = cluster.switch.memory else { return Ok(()) };
    if !prepared.entry.uses(Knob::Aggregation) {
        return Ok(());
    }
    // Lanes are nearly equal pieces, so the first one is the largest.
    for bucket in &prepared.buckets {
        let lanes = u64::from(prepared.schedule.lanes(bucket)).max(1);
        let largest = match prepared.schedule.step(bucket, 0, 0, 0) {
            Step::Send { piece, .. } | Step::Recv { piece, .. } => piece.len,
            _ => bucket.len.div_ceil(lanes),
        } * prepared.element_bytes;
        if largest > memory {
            return Err(SimulationError::new(format!(
                "switch.memory: {memory} bytes cannot hold a message of {largest} bytes ('{}' of {})",
                prepared.names[bucket.id as usize], trace.name
            ))
            .remedy(format!("{{chunk={memory}B}}")));
        }
    }
    Ok(())
}

/// The boundary of iterations, whether all workers begin one together, and the mark at which measuring may begin.
pub(crate) fn phases(prepared: &Prepared, options: &Options) -> (Boundary, bool, usize) {
    let servers = prepared.entry.uses(Knob::Pull) && !prepared.exchange_only;
    let boundary = match (servers, options.barrier) {
        (false, _) => Boundary::Sums,
        (true, true) => Boundary::Barrier,
        (true, false) => Boundary::FirstSend,
    };
    // Before the first mark is the start-up phase, except that in an all-reduce with the barrier all iterations are
    // alike.
    let warm_up = match (boundary, options.barrier) {
        (Boundary::Sums, true) => 0,
        (Boundary::Sums, false) | (Boundary::Barrier, _) => 1,
        (Boundary::FirstSend, _) => 2,
    };
    // Parameter servers synchronize their workers with a barrier of their own.
    (boundary, options.barrier && !servers, warm_up)
}

fn run<C: Chain, O: Observer>(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    (prepared, plan): (&Prepared, &Plan),
    shortcuts: bool,
    watching: O,
) -> Result<(Outcome, O, NetworkLinks), SimulationError> {
    let (boundary, together, warm_up) = phases(prepared, options);
    let iterations = options.iterations.unwrap_or(if options.barrier { 1 } else { 2 }) as usize;
    let fluid = options.network == Network::Fluid;
    let seen = with_least_latency(cluster, prepared);
    let mut wires = NetworkLinks::for_schedule(&seen, &*prepared.schedule, fluid, options.seed)?;
    let mut start = Mark { time: 0, chain: C::default() };
    let (end, busy, observer, staggering);
    let ringed = if shortcuts && !O::ACTIVE && boundary == Boundary::Sums {
        ring::run::<C>(trace, cluster, options, prepared, &mut wires, iterations)
    } else {
        None
    };
    if let Some(ringed) = ringed {
        (end, busy, observer) = (ringed.end, ringed.busy, watching);
        staggering = Staggering::of(&ringed.moments, 0, false, options.detail);
    } else {
        let workers = workers(trace, cluster, options);
        let job = JobRun::new(
            prepared,
            JobPlace::alone(prepared.schedule.roles()),
            (boundary, together),
            (warm_up, Until::Mark(iterations + warm_up)),
            cluster.switch.memory.map(|bytes| Memory::new(bytes, options.workers)),
        );
        let mut simulation = Simulation::<C, O>::new(cluster, wires, vec![job], workers, fluid, watching);
        simulation.run().map_err(SimulationError::new)?;
        let marks = &simulation.jobs[0].marks;
        if warm_up > 0 {
            start = marks[warm_up - 1];
        }
        end = marks[marks.len() - 1];
        let from = (boundary == Boundary::Barrier).then(|| marks[marks.len() - 2].time);
        staggering = last_moments(&simulation.workers, from)
            .and_then(|(moments, from)| Staggering::of(&moments, from, boundary != Boundary::Sums, options.detail));
        busy = simulation.workers.iter().map(|worker| worker.busy).collect();
        (wires, observer) = (simulation.wires, simulation.observer);
    }
    let seconds = |picoseconds: u64| picoseconds as f64 * 1e-12;
    let iteration_s = seconds(end.time - start.time) / iterations as f64;
    let path = path(&start, &end, options.barrier, iterations as f64, iteration_s);
    let usage = Usage { wires: &wires, workers: busy, iterations: iterations as f64 };
    let found = Found {
        iteration_s,
        computation: Computation::recorded(trace, options),
        traffic: Traffic::of(prepared),
        observed: Observed::new(path, &usage, options.detail),
        watched: None,
        coordination: None,
        staggering: staggering
            .filter(|_| !prepared.exchange_only && trace.workers.iter().all(|it| it.backward > Time::ZERO)),
        notes: prepared.schedule.note().into_iter().collect(),
    };
    Ok((compose(trace, cluster, options, plan, found)?, observer, wires))
}

/// Those of the last iteration in which every worker has begun its backward pass, and the moment to count from: `from`,
/// or when the first worker began it.
fn last_moments<C>(workers: &[Worker<C>], from: Option<u64>) -> Option<(Vec<Moments>, u64)> {
    let begun = |worker: &Worker<C>| {
        worker.moments.iter().filter(|it| it.backward_end > 0).map(|it| it.iteration).max().unwrap_or(0)
    };
    let last = workers.iter().map(begun).min()?;
    let of = |worker: &Worker<C>| worker.moments.into_iter().find(|it| it.iteration == last && it.backward_end > 0);
    let moments: Vec<Moments> = workers.iter().map(of).collect::<Option<_>>()?;
    let began = moments.iter().map(|it| it.began).min()?;
    Some((moments, from.unwrap_or(began)))
}

/// With the barrier, everything after a mark descends from it, so the difference of the chains is the path between
/// them. Without it, the shares of the whole path are used.
pub(crate) fn path<C: Chain>(
    start: &Mark<C>,
    end: &Mark<C>,
    barrier: bool,
    iterations: f64,
    iteration_s: f64,
) -> PathSeconds {
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

#[cfg(test)]
mod tests {
    use paceline_model::Rate;
    use paceline_model::cluster::Jitter;
    use paceline_model::trace::{Dtype, Gradient, Layer, Tensor, WorkerTrace};
    use paceline_schedule::{ChunkBytes, Collective};
    use proptest::prelude::*;

    use super::*;

    /// Layer i has tensor i, whose gradient is ready at a multiple of the unit, so that events coincide often.
    fn trace(tensors: &[(u64, u64)], unit: u64, forward: u64, more: u64, optimizer: u64) -> Trace {
        let count = tensors.len() as u32;
        let ready: Vec<u64> = tensors
            .iter()
            .scan(0, |time, &(_, step)| {
                *time += step * unit;
                Some(*time)
            })
            .collect();
        let backward = ready.last().copied().unwrap_or(0) + more * unit;
        Trace {
            name: "model".into(),
            provenance: String::new(),
            batch: 4,
            dtype: Dtype::Float32,
            device: String::new(),
            library: String::new(),
            distribution: (0..count).collect(),
            variables: Vec::new(),
            optimizer_bytes: None,
            tensors: (0..)
                .zip(tensors)
                .map(|(i, &(len, _))| Tensor {
                    name: format!("t{i}"),
                    bytes: 4 * len,
                    pull_bytes: 4 * len,
                    frozen_bytes: 0,
                    shape: None,
                })
                .collect(),
            workers: vec![WorkerTrace {
                forward: (0..count)
                    .map(|i| Layer {
                        name: format!("l{i}"),
                        duration: Time(forward * unit),
                        tensors: vec![i],
                        activation_bytes: None,
                        backward_bytes: None,
                    })
                    .collect(),
                gradients: (0..count).map(|i| Gradient { tensor: i, ready: Time(ready[i as usize]) }).collect(),
                backward: Time(backward),
                optimizer: Time(optimizer * unit),
            }],
            operators: None,
            backward_spread: 0.0,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

        /// A ring without events has the result of the event loop, bit for bit.
        #[test]
        fn rings_without_events_are_those_of_the_event_loop(
            tensors in prop::collection::vec((1u64..200, 0u64..6), 1..12),
            unit in prop::sample::select(vec![320u64, 1280, 7_919, 100_000, 5_000_000]),
            (forward, more, optimizer) in (0u64..4, 0u64..4, 0u64..3),
            workers in 2u32..18,
            gpus_per_node in prop::sample::select(vec![1u32, 1, 2, 3, 8]),
            (latency, overhead) in (0u64..4, 0u64..3),
            iterations in prop::option::of(1u32..4),
            strategy in prop::sample::select(vec!["ring", "ring", "native"]),
            chunk in prop::option::of(prop::sample::select(vec![
                ChunkBytes::Whole, ChunkBytes::PerWorker, ChunkBytes::Size(64),
            ])),
            bucket_size in prop::option::of(1u64..900),
            overlap in any::<bool>(),
            collective in prop::sample::select(Collective::ALL.to_vec()),
            (spread, straggler) in (prop::sample::select(vec![0.0, 0.0, 0.03, 0.5]), prop::option::of(1.0f64..3.0)),
        ) {
            let trace = if collective == Collective::AllReduce {
                trace(&tensors, unit, forward, more, optimizer)
            } else {
                let at_once: Vec<_> = tensors.iter().map(|&(len, _)| (len, 0)).collect();
                trace(&at_once, unit, 0, 0, 0)
            };
            let cluster = Cluster {
                bandwidth: Rate(25e9),
                intra_bandwidth: Rate(100e9),
                latency: Time(latency * unit),
                intra_latency: Time(latency * unit / 2),
                message_overhead: Time(overhead * unit),
                gpus_per_node,
                stragglers: straggler.map(|factor| (workers - 1, factor)).into_iter().collect(),
                ..Cluster::default()
            };
            let chunk = chunk.filter(|_| strategy == "ring");
            let options =
                Options { chunk, bucket_size, overlap, iterations, spread, detail: true, collective, ..Options::new(strategy, workers) };
            let (prepared, plan) = prepare(&trace, &cluster, &options).unwrap();
            let outcome = |shortcuts| run::<Composition, ()>(&trace, &cluster, &options, (&prepared, &plan), shortcuts, ()).unwrap().0;
            prop_assert_eq!(outcome(true), outcome(false));
        }
    }

    #[test]
    fn the_shortcut_is_taken() {
        let trace = trace(&[(64, 1), (1000, 2), (128, 3)], 100_000, 1, 1, 1);
        let options = Options::new("ring", 8);
        let taken = |cluster: &Cluster| {
            let (prepared, _) = prepare(&trace, cluster, &options).unwrap();
            {
                let roles = prepared.schedule.roles();
                let mut wires = NetworkLinks::new(cluster, roles, false, 0).unwrap();
                ring::run::<()>(&trace, cluster, &options, &prepared, &mut wires, 1).is_some()
            }
        };
        assert!(taken(&Cluster::default()));
        assert!(taken(&Cluster { gpus_per_node: 4, ..Cluster::default() }));
        assert!(taken(&Cluster { stragglers: vec![(0, 1.5)], ..Cluster::default() }));
        assert!(!taken(&Cluster { jitter: Some(Jitter { sigma: 0.1 }), ..Cluster::default() }));
        assert!(!taken(&Cluster { reduction_bandwidth: Some(Rate(1e9)), ..Cluster::default() }));
    }
}
