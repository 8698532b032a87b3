//! The cost of a bucket once all ranks have agreed on it: copies to and from the fusion buffer, and the all-reduce.
use std::collections::HashMap;

use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_schedule::{Bucket, Inside, Knob, Knobs, Link, Links, Schedule, Volume, build, look_up};

use super::constants::Constants;
use crate::options::{Options, SimulationError};
use crate::prepare::{rates, topology};
use crate::run::simulate;

/// Up to this many ranks, a strategy without a closed form is simulated message by message.
const MOST_SIMULATED: u32 = 1024;

/// The all-reduce of one strategy on one cluster.
pub(super) struct Collective {
    strategy: &'static str,
    schedule: Box<dyn Schedule>,
    /// With the congestion of this many nodes.
    cluster: Cluster,
    workers: u32,
    element_bytes: u64,
    /// ms in addition to the closed form.
    besides: f64,
    /// bytes → ms.
    known: HashMap<u64, f64>,
}

impl Collective {
    pub fn new(
        strategy: &str,
        workers: u32,
        cluster: &Cluster,
        element_bytes: u64,
        constants: &Constants,
    ) -> Result<Collective, SimulationError> {
        let entry = look_up(strategy).map_err(|e| SimulationError(format!("strategy: {e}")))?;
        if entry.uses(Knob::Servers) || entry.uses(Knob::Pull) {
            return Err(SimulationError(format!(
                "strategy: {} has servers, and a coordinator decides on all-reduces; use native, ring, hierarchical, …",
                entry.name
            )));
        }
        let topology = topology(workers, 0, cluster, element_bytes);
        let knobs = Knobs { rates: Some(rates(cluster, element_bytes)), inside: Inside::Ring, ..Knobs::default() };
        let schedule = build(entry.name, &topology, &knobs).map_err(|e| SimulationError(e.0))?;
        let doublings = f64::from(topology.nodes()).log2();
        let slower = 1.0 + constants.congestion * doublings;
        let besides = if workers > 1 { constants.collective_step_ms * (1.0 + doublings) } else { 0.0 };
        let cluster = Cluster { bandwidth: Rate(cluster.bandwidth.0 / slower), ..cluster.clone() };
        Ok(Collective {
            strategy: entry.name,
            schedule,
            cluster,
            workers,
            element_bytes,
            besides,
            known: HashMap::new(),
        })
    }

    fn bucket(&self, bytes: u64) -> Bucket {
        Bucket { id: 0, len: bytes.div_ceil(self.element_bytes), pull_only: false }
    }

    /// The messages and elements of one bucket.
    pub fn volume(&self, bytes: u64) -> Volume {
        self.schedule.volume(&self.bucket(bytes))
    }

    /// ms from the arrival of the last process.
    pub fn ms(&mut self, bytes: u64) -> Result<f64, SimulationError> {
        if let Some(&ms) = self.known.get(&bytes) {
            return Ok(ms);
        }
        let ms = if self.workers < 2 { 0.0 } else { self.besides + 1e3 * self.seconds(bytes)? };
        self.known.insert(bytes, ms);
        Ok(ms)
    }

    fn seconds(&self, bytes: u64) -> Result<f64, SimulationError> {
        let bucket = self.bucket(bytes);
        let least = self.schedule.least_latency(&bucket);
        let link = |rate: Rate, latency: Time, least: f64| Link {
            latency_s: latency.seconds().max(least),
            s_per_element: self.element_bytes as f64 * 8.0 / rate.0,
        };
        let cluster = &self.cluster;
        let links = Links {
            between: link(cluster.bandwidth, cluster.latency, least.map_or(0.0, |it| it.between_s)),
            inside: link(cluster.intra_bandwidth, cluster.intra_latency, least.map_or(0.0, |it| it.inside_s)),
        };
        if let Some(seconds) = self.schedule.closed_form_on_nodes(&bucket, links) {
            return Ok(seconds);
        }
        if self.workers > MOST_SIMULATED {
            return Err(SimulationError(format!(
                "strategy: {} has no closed form here, and {} workers are more than the {MOST_SIMULATED} whose messages \
                 are simulated; use native, ring or hierarchical",
                self.strategy, self.workers
            )));
        }
        // As in a bare all-reduce, elements have four bytes; only the bytes matter.
        let trace = Trace::all_reduce(bytes.next_multiple_of(4), 1).map_err(|e| SimulationError(e.to_string()))?;
        let options = Options { critical_path: false, ..Options::new(self.strategy, self.workers) };
        Ok(simulate(&trace, cluster, &options)?.iteration_s)
    }
}

/// ms for copying a bucket to the fusion buffer and back; a single tensor is reduced in place.
pub(super) fn copies_ms(tensors: usize, bytes: u64, constants: &Constants) -> f64 {
    if tensors < 2 {
        return 0.0;
    }
    2.0 * (tensors as f64 * constants.copy_launch_ms + bytes as f64 / (constants.copy_gb_per_s * 1e6))
}
