//! A run of many iterations under a coordinator.
use paceline_model::{Cluster, Trace};

use super::collective::{Collective, Used};
use super::draws::Draws;
use super::iteration::{Iteration, Shown, Spent};
use super::policies::model;
use super::policy::Setting;
use super::timeline::draw;
use super::workload::Workload;
use super::{Coordinated, Coordination};
use crate::options::{Options, SimulationError};
use crate::outcome::{Busy, Computation, Found, LinkUse, Observed, Outcome, PathPart, Traffic, compose};
use crate::prepare::plan;
use crate::timeline::Timeline;

/// Iterations to average over, unless asked for otherwise.
const ITERATIONS: u32 = 500;

/// More would take too long to simulate, and fewer draws give the same result.
const MOST_ITERATIONS: u32 = 1_000_000;

/// Simulates one run. The timeline is that of the first iteration, if it is asked for.
pub(crate) fn coordinate(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    coordination: &Coordination,
    with_timeline: bool,
) -> Result<(Outcome, Timeline), SimulationError> {
    check(trace, options, coordination)?;
    let constants = &coordination.constants;
    let (prepared, plan) = plan(trace, cluster, options)?;
    let workload = Workload::new(trace, cluster, options);
    let mut collective = Collective::new(workload.largest(), trace, cluster, options, options.workers, constants)?;
    let contention = match coordination.contention_s {
        Some(seconds) => seconds * 1e3,
        None if constants.contention_share > 0.0 => {
            constants.contention_share * workload.on_one_node(trace, cluster, options, constants)?
        }
        None => 0.0,
    };
    // Without overlap, no tensor moves before the computation ends, and contention ends with it.
    let contention = contention.min(workload.compute);
    let nodes = coordination.graph_nodes.unwrap_or(constants.nodes_per_tensor * workload.tensors.len() as f64);
    let model = model(coordination.coordinator);
    let setting = Setting {
        processes: options.workers,
        sleep_every: coordination.coordinator.sleep_every(),
        compute: workload.compute,
        contention: (contention * (model.stretch)(constants)).min(workload.compute),
        nodes_per_ms: if contention > 0.0 { constants.contention_share * nodes / contention } else { 0.0 },
        consensus: constants.consensus_step_ms * f64::from(options.workers).log2(),
        constants: constants.clone(),
    };
    // A single process agrees with itself and reduces nothing.
    let iterations = if options.workers > 1 { options.iterations.unwrap_or(ITERATIONS) } else { 0 };
    let mut total = Spent::default();
    let mut shown = Shown::default();
    for number in 0..iterations {
        let mut draws = Draws::new(options.seed, number);
        let slower = workload.slower(&mut draws, options.workers);
        let mut iteration = Iteration {
            model,
            setting: &setting,
            workload: &workload,
            collective: &mut collective,
            shown: (with_timeline && number == 0).then_some(&mut shown),
        };
        total.add(&iteration.run(slower, &mut draws)?);
    }
    let runs = f64::from(iterations.max(1));
    let mean = |sum: f64| sum / runs * 1e-3;
    let coordinated = Coordinated {
        coordinator: coordination.coordinator,
        coordinator_s: mean(total.coordinator),
        copy_s: mean(total.copy),
        collective_s: mean(total.collective),
        latest_s: mean(total.late),
        contention_s: setting.contention * 1e-3,
    };
    let compute_s = (workload.compute + workload.optimizer) * 1e-3;
    let iteration_s = compute_s + coordinated.coordinator_s + coordinated.copy_s + coordinated.collective_s;
    let used = collective.used();
    // A coordinator fuses what is ready, so that no tensor has a server of its own.
    let mut traffic = Traffic { server_shares: Vec::new(), ..Traffic::of(&prepared) };
    if iterations > 0 {
        // The mean: cycles decide how many buckets there are.
        traffic.buckets = (used.exchanges / runs).round() as u32;
        traffic.messages = (used.messages / runs).round() as u64;
        traffic.bytes_per_worker = used.worker_bytes / runs / f64::from(options.workers);
    }
    let found = Found {
        iteration_s,
        computation: Computation::recorded(trace, options),
        traffic,
        observed: observed(&coordinated, compute_s, used, runs, options),
        watched: None,
        coordination: Some(coordinated),
        staggering: None,
        notes: prepared.schedule.note().into_iter().chain(collective.note()).collect(),
    };
    let found = compose(trace, cluster, options, &plan, found)?;
    let drawing = if with_timeline { draw(options.workers, &workload, &shown) } else { Timeline::default() };
    Ok((found, drawing))
}

/// The critical path is what the iteration consists of; the network's part of it is divided as in buckets alone.
fn observed(it: &Coordinated, compute_s: f64, used: Used, runs: f64, options: &Options) -> Observed {
    let network = used.ms * 1e-3 / runs;
    // With overlap, a part of the network's time is hidden behind computation.
    let exposed = network.min(it.collective_s);
    let known: f64 = used.path.iter().map(|part| part.seconds).sum();
    let part = |part, seconds| PathPart { part, seconds };
    let mut path = vec![
        part("compute", compute_s),
        part("coordinator", it.coordinator_s),
        part("fusion buffer", it.copy_s),
        part("late ranks", it.collective_s - exposed),
    ];
    path.extend(used.path.into_iter().map(|it| part(it.part, it.seconds / known.max(f64::MIN_POSITIVE) * exposed)));
    path.retain(|part| part.seconds > 0.0);
    path.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let links =
        used.links.into_iter().map(|it| LinkUse { busiest_s: it.busiest_s / runs, mean_s: it.mean_s / runs, ..it });
    let computes = (0..options.workers).map(|worker| Busy {
        name: format!("worker {worker} compute"),
        kind: "compute",
        busy_s: compute_s,
    });
    let sends = used.busy.into_iter().filter(|it| it.kind != "compute");
    Observed {
        links: links.collect(),
        busy: options.detail.then(|| computes.chain(sends.map(|it| Busy { busy_s: it.busy_s / runs, ..it })).collect()),
        critical_path: if options.critical_path { path } else { Vec::new() },
        queued_s: None,
    }
}

/// Why the exchanges of this run can be neither simulated nor taken from a closed form, if that is so.
///
/// # Errors
/// Options that are wrong in another way.
pub fn unreachable(trace: &Trace, cluster: &Cluster, options: &Options) -> Result<Option<String>, SimulationError> {
    let Some(coordination) = &options.coordination else { return Ok(None) };
    check(trace, options, coordination)?;
    plan(trace, cluster, options)?;
    let largest = Workload::new(trace, cluster, options).largest();
    let collective = Collective::new(largest, trace, cluster, options, options.workers, &coordination.constants);
    Ok(collective.err().map(|error| error.to_string()))
}

fn check(trace: &Trace, options: &Options, coordination: &Coordination) -> Result<(), SimulationError> {
    let wrong = |setting, reason: String, remedy: &str| Err(SimulationError::about(setting, reason).remedy(remedy));
    coordination.constants.check()?;
    if options.workers == 0 {
        return wrong("workers", "must be at least 1, not 0".into(), "{workers=8}");
    }
    if options.iterations.is_some_and(|it| !(1..=MOST_ITERATIONS).contains(&it)) {
        return wrong("iterations", format!("must be 1-{MOST_ITERATIONS}"), "{iterations=10}");
    }
    if trace.tensors.iter().all(|tensor| tensor.bytes == 0) || trace.workers[0].gradients.is_empty() {
        return Err(SimulationError::new(format!(
            "{}: has no gradients, so there is nothing to coordinate",
            trace.name
        ))
        .remedy("drop {coordinator}"));
    }
    if let Some(seconds) = coordination.contention_s
        && !(0.0..=86_400.0).contains(&seconds)
    {
        return Err(SimulationError::new(format!("contention: must be 0 s to a day, not {seconds} s")).remedy("0.001"));
    }
    if let Some(nodes) = coordination.graph_nodes
        && !(0.0..=1e9).contains(&nodes)
    {
        return Err(SimulationError::new(format!("graph_nodes: must be 0-1e9, not {nodes}")).remedy("1000"));
    }
    Ok(())
}
