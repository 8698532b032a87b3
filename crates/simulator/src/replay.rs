//! A worker's schedule from a simulation, for a real process that replays it.
use paceline_model::{Cluster, Trace};
use serde::Serialize;

use crate::options::{Options, SimulationError};
use crate::prepare::{Prepared, prepare};
use crate::worker::workers;

/// A forward layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlayedLayer {
    /// The model's name for it.
    pub name: String,
    /// Seconds, including the optimizer's share for its parameters if these are pulled layer by layer.
    pub duration_s: f64,
    /// Buckets it waits for, from the second iteration on; empty unless parameters are pulled layer by layer.
    pub needs: Vec<u32>,
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlayedBucket {
    /// Names of its tensors.
    pub name: String,
    /// Elements of the trace's dtype.
    pub elements: u64,
    /// It has no gradient: servers distribute it and do not add to it.
    pub pull_only: bool,
    /// Its position in the order in which servers distribute.
    pub priority: u32,
}

/// Factors of one iteration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlayedFactors {
    /// Factor of forward pass and optimizer.
    pub compute: f64,
    /// Factor of the backward pass.
    pub backward: f64,
}

/// The schedule of one worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replay {
    /// Name of the trace.
    pub trace: String,
    /// Elements of all buckets.
    pub dtype: &'static str,
    /// In the order of their numbers, which decide their servers.
    pub buckets: Vec<PlayedBucket>,
    /// Forward layers, in order.
    pub layers: Vec<PlayedLayer>,
    /// When each bucket may be sent, from the start of the backward pass, in order.
    pub ready: Vec<(f64, u32)>,
    /// Seconds, before factors are applied.
    pub backward_s: f64,
    /// Time after the last sum; 0 if layers include it.
    pub optimizer_s: f64,
    /// Factors, by iteration.
    pub factors: Vec<PlayedFactors>,
    /// Forward layers wait for their parameters individually.
    pub pull_by_layer: bool,
    /// There is no computation: an iteration is one exchange.
    pub exchange_only: bool,
    /// Parameter servers do the summation.
    pub servers: bool,
    /// The first recorded worker's order of buckets, which all real workers use, because they need a common order.
    pub order: Vec<u32>,
    /// Whether all recorded workers have that order.
    pub same_order: bool,
}

/// The schedule of one worker for this many iterations.
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
    let prepared = prepare(trace, cluster, options)?;
    let Some(mut played) = workers::<()>(trace, cluster, options, 0).into_iter().nth(worker as usize) else {
        return Err(SimulationError(format!("worker: {worker} is not below {}", options.workers)));
    };
    let recorded = &prepared.workers[played.recorded];
    let layers = trace.workers[played.recorded].forward.iter().zip(&recorded.layers);
    let factors = (0..iterations).map(|_| {
        played.vary(cluster);
        PlayedFactors { compute: played.factor, backward: played.backward_factor }
    });
    Ok(Replay {
        trace: trace.name.clone(),
        dtype: trace.dtype.name(),
        buckets: buckets(&prepared),
        factors: factors.collect(),
        layers: layers
            .map(|(named, layer)| PlayedLayer {
                name: named.name.clone(),
                duration_s: layer.duration.seconds(),
                needs: if prepared.pull_by_layer { recorded.needs[layer.needs.clone()].to_vec() } else { Vec::new() },
            })
            .collect(),
        ready: recorded.ready.iter().map(|&(at, bucket)| (at.seconds(), bucket)).collect(),
        backward_s: recorded.backward.seconds(),
        optimizer_s: recorded.optimizer.seconds(),
        pull_by_layer: prepared.pull_by_layer,
        exchange_only: prepared.exchange_only,
        servers: prepared.entry.uses(paceline_schedule::Knob::Pull),
        order: order(&prepared, 0).collect(),
        same_order: (1..prepared.workers.len()).all(|other| order(&prepared, other).eq(order(&prepared, 0))),
    })
}

fn buckets(prepared: &Prepared) -> Vec<PlayedBucket> {
    let named = prepared.buckets.iter().zip(&prepared.names).zip(&prepared.priority);
    named
        .map(|((bucket, name), &priority)| PlayedBucket {
            name: name.clone(),
            elements: bucket.len,
            pull_only: bucket.pull_only,
            priority,
        })
        .collect()
}

fn order(prepared: &Prepared, recorded: usize) -> impl Iterator<Item = u32> {
    prepared.workers[recorded].ready.iter().map(|&(_, bucket)| bucket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_model::trace::parse_all_reduce;

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

    #[test]
    fn workers_take_turns_in_what_was_recorded() {
        let (first, second, third) = (played("ring", 0), played("ring", 1), played("ring", 2));
        assert_eq!((first.layers.len(), second.layers.len(), third.layers.len()), (2, 1, 2));
        assert_eq!(first.ready, [(0.01, 1), (0.02, 0)]);
        assert_eq!(second.ready, [(0.01, 0), (0.02, 1)]);
        assert!(!first.same_order);
        assert_eq!((&first.order[..], &second.order[..]), (&[1, 0][..], &[1, 0][..]));
        let mut spread: Vec<f64> = [first, second, third].iter().map(|part| part.factors[1].backward).collect();
        spread.sort_by(f64::total_cmp);
        assert_eq!(spread, [1.0, 1.25, 1.5]);
    }

    #[test]
    fn pulled_layers_wait_and_update() {
        let part = played("ps", 0);
        assert!(part.pull_by_layer && part.servers);
        assert_eq!(part.layers[0].needs, [0]);
        assert_eq!(part.layers[0].duration_s, 0.011);
        assert_eq!(part.optimizer_s, 0.0);
        let ring = played("ring", 0);
        assert_eq!((ring.optimizer_s, ring.layers[0].needs.len()), (0.004, 0));
    }

    #[test]
    fn a_worker_that_does_not_exist_is_an_error() {
        let trace = parse_all_reduce("allreduce:4KB").unwrap();
        let cluster =
            Cluster::from_json(br#"{"format":"paceline-cluster","version":1,"name":"c","bandwidth":"1Gbps"}"#, "c");
        let error = replay(&trace, &cluster.unwrap(), &Options::new("ps", 2), 2, 1).unwrap_err();
        assert_eq!(error.to_string(), "worker: 2 is not below 2");
    }
}
