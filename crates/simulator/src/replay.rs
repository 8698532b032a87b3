//! A worker's part in a simulation, for a real process that does the same.
use paceline_iteration::units::ready_order;
use paceline_iteration::{IterationOptions, Plan, buckets};
use paceline_model::{Cluster, Trace};

use crate::options::{Options, SimulationError};
use crate::planning::{executed, pace, planned, scaled};
use crate::prepare::check;
use crate::worker::workers;

/// Factors of one iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlayedFactors {
    /// Factor of forward pass and optimizer.
    pub compute: f64,
    /// Factor of the backward pass.
    pub backward: f64,
}

/// The part of one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// Its plan of an iteration.
    pub plan: Plan,
    /// Factors of its times, by iteration.
    pub factors: Vec<PlayedFactors>,
    /// Whether all recorded workers hand over buckets in one order. If they do not, all real ones use that of the first.
    pub same_order: bool,
}

/// The part of one worker for this many iterations.
///
/// # Errors
/// Those of [`simulate`](crate::simulate), or the worker does not exist.
pub fn replay(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    worker: u32,
    iterations: u32,
) -> Result<Replay, SimulationError> {
    check(trace, cluster, options)?;
    let Some(mut played) = workers::<()>(trace, cluster, options).into_iter().nth(worker as usize) else {
        return Err(
            SimulationError::new(format!("worker: must be below {}, not {worker}", options.workers)).remedy("worker 0")
        );
    };
    let mut iteration = executed(trace, options)?;
    if options.is_planned() {
        played.pace = pace(trace, played.recorded);
    } else {
        iteration = IterationOptions { recorded: played.recorded, common_order: true, ..iteration };
    }
    let own = options.on_slower(played.slower);
    let plan = planned(&scaled(trace, &own), &own, &iteration)?;
    let all = buckets(trace, iteration.bucket_size, iteration.exchanges.have_servers());
    let order = |recorded: usize| ready_order(trace, &trace.workers[recorded], &all);
    let same_order = !iteration.common_order || (1..trace.workers.len()).all(|other| order(other) == order(0));
    let factors = (0..iterations).map(|_| {
        played.vary(cluster);
        PlayedFactors { compute: played.factors.forward, backward: played.factors.backward }
    });
    Ok(Replay { plan, factors: factors.collect(), same_order })
}

#[cfg(test)]
mod tests {
    use paceline_iteration::{Step, Work};
    use paceline_model::trace::parse_all_reduce;

    use super::*;

    const TWO: &str = r#"{"format":"paceline-trace","version":1,"name":"two","batch":1,"dtype":"float32","workers":[
        {"forward":[{"layer":"a","duration_s":0.01,"tensors":["x"]},{"layer":"b","duration_s":0.02,"tensors":["y"]}],
         "gradients":[{"tensor":"y","ready_s":0.01,"bytes":12},{"tensor":"x","ready_s":0.02,"bytes":4}],
         "optimizer_s":0.004},
        {"forward":[{"layer":"a","duration_s":0.03,"tensors":["x","y"]}],
         "gradients":[{"tensor":"x","ready_s":0.01,"bytes":4},{"tensor":"y","ready_s":0.02,"bytes":12}]}],
        "variation":{"backward_spread":0.5}}"#;

    fn played(strategy: &str, worker: u32) -> Replay {
        let trace = Trace::from_json(TWO.as_bytes(), "two").unwrap();
        let cluster =
            Cluster::from_json(br#"{"format":"paceline-cluster","version":1,"name":"c","bandwidth":"1Gbps"}"#, "c");
        replay(&trace, &cluster.unwrap(), &Options::new(strategy, 3), worker, 2).unwrap()
    }

    /// Picoseconds from the start of the backward pass at which each exchange is handed over, and its bucket.
    fn handed_over(plan: &Plan) -> Vec<(u64, u32)> {
        let (mut now, mut handed) = (0, Vec::new());
        for step in &plan.steps {
            match step.work {
                Work::Backward { duration_ps } => now += duration_ps,
                Work::Exchange { .. } => handed.push((now, step.unit.unwrap())),
                _ => {}
            }
        }
        handed
    }

    fn forward(plan: &Plan) -> Vec<&Step> {
        plan.steps.iter().filter(|step| matches!(step.work, Work::Forward { .. })).collect()
    }

    #[test]
    fn workers_take_turns_in_what_was_recorded() {
        let (first, second, third) = (played("ring", 0), played("ring", 1), played("ring", 2));
        assert_eq!([&first, &second, &third].map(|part| forward(&part.plan).len()), [2, 1, 2]);
        let ms = 1_000_000_000;
        assert_eq!(handed_over(&first.plan), [(10 * ms, 1), (20 * ms, 0)]);
        // Its own order is the other; it waits until it has the first's first.
        assert_eq!(handed_over(&second.plan), [(20 * ms, 1), (20 * ms, 0)]);
        assert!(!first.same_order);
        let mut spread: Vec<f64> = [first, second, third].iter().map(|part| part.factors[1].backward).collect();
        spread.sort_by(f64::total_cmp);
        assert_eq!(spread, [1.0, 1.25, 1.5]);
    }

    #[test]
    fn pulled_layers_wait_and_update() {
        let plan = played("ps", 0).plan;
        assert!(plan.ends_with_compute);
        let first = forward(&plan)[0];
        let awaited: Vec<_> = first.after_previous.iter().map(|&step| plan.steps[step as usize].unit).collect();
        assert_eq!(awaited, [Some(0)]);
        assert_eq!(first.work, Work::Forward { duration_ps: 11_000_000_000 });
        assert!(!plan.steps.iter().any(|step| matches!(step.work, Work::Optimizer { .. })));
        let plan = played("ring", 0).plan;
        assert!(plan.steps.iter().all(|step| step.after_previous.is_empty()) && !plan.ends_with_compute);
        let last = plan.steps.last().unwrap();
        assert_eq!(last.work, Work::Optimizer { duration_ps: 4_000_000_000 });
        assert_eq!(last.after.len(), 2);
    }

    #[test]
    fn a_worker_that_does_not_exist_is_an_error() {
        let trace = parse_all_reduce("allreduce:4KB").unwrap();
        let cluster =
            Cluster::from_json(br#"{"format":"paceline-cluster","version":1,"name":"c","bandwidth":"1Gbps"}"#, "c");
        let error = replay(&trace, &cluster.unwrap(), &Options::new("ps", 2), 2, 1).unwrap_err();
        assert_eq!(error.to_string(), "worker: must be below 2, not 2");
    }
}
