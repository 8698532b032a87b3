//! The cost of a bucket once all ranks have agreed on it: copies to and from the fusion buffer, and its exchange.
//!
//! Buckets are exchanged one at a time, as Horovod's thread does. So the time of one is that of the event simulation of
//! this bucket alone: the same program, rates and latencies as without a coordinator. In worlds that are too large for
//! that, it is the closed form of the strategy's own file.
use std::collections::BTreeMap;

use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_schedule::{Bucket, Link, Links, Note, Schedule};

use super::constants::Constants;
use crate::network::left::slowest_port;
use crate::options::{Options, SimulationError};
use crate::outcome::{Busy, LinkUse, PathPart};
use crate::prepare::{RacksAndPods, schedule_of};
use crate::run::simulate_exchange;

/// More ranks than these take the strategy's closed form.
const MOST_RANKS: u32 = 1024;
/// So does a bucket of more messages than this (a tenth of a second), if the strategy has one.
const FEW_MESSAGES: u64 = 400_000;
/// Without one, a bucket of more messages than this is refused.
const MOST_MESSAGES: u64 = 20_000_000;
/// If buckets have so many different sizes that they come to more messages than this, the others are interpolated.
const BUDGET: u64 = 1_000_000;

/// A bucket alone.
#[derive(Clone, Debug, Default)]
struct Alone {
    ms: f64,
    path: Vec<PathPart>,
    links: Vec<LinkUse>,
    busy: Vec<Busy>,
    /// How often it was exchanged.
    count: f64,
}

/// The exchanges of one strategy on one cluster.
pub(super) struct Collective<'a> {
    trace: &'a Trace,
    strategy: &'static str,
    schedule: Box<dyn Schedule>,
    /// With the congestion of this many nodes.
    cluster: Cluster,
    options: Options,
    element_bytes: u64,
    /// ms in addition to what the strategy takes.
    besides: f64,
    by_events: bool,
    spent: u64,
    known: BTreeMap<u64, Alone>,
}

impl<'a> Collective<'a> {
    /// `largest`: bytes of the largest bucket there may be.
    pub fn new(
        largest: u64,
        trace: &'a Trace,
        cluster: &Cluster,
        options: &Options,
        workers: u32,
        constants: &Constants,
    ) -> Result<Collective<'a>, SimulationError> {
        let element_bytes = trace.dtype.size();
        let options = Options {
            workers,
            coordination: None,
            bucket_size: None,
            barrier: true,
            iterations: None,
            compute_speedup: 1.0,
            overlap: true,
            ..options.clone()
        };
        let nodes = workers.div_ceil(cluster.gpus_per_node);
        let doublings = f64::from(nodes).log2();
        let slower = 1.0 + constants.congestion * doublings;
        let besides = if workers > 1 { constants.collective_step_ms * (1.0 + doublings) } else { 0.0 };
        let cluster = Cluster {
            bandwidth: Rate(cluster.bandwidth.0 / slower),
            // Ranks differ by what they compute, and here they exchange.
            jitter: None,
            stragglers: Vec::new(),
            ..cluster.clone()
        };
        let (entry, schedule) = schedule_of(&cluster, &options, element_bytes, 1, RacksAndPods::default())?;
        let mut made = Collective {
            trace,
            strategy: entry.name,
            schedule,
            cluster,
            options,
            element_bytes,
            besides,
            by_events: true,
            spent: 0,
            known: BTreeMap::new(),
        };
        let messages = made.messages(largest);
        let known = made.closed_form(largest).is_some() && !made.needs_events();
        made.by_events = workers <= MOST_RANKS && messages <= if known { FEW_MESSAGES } else { MOST_MESSAGES };
        if !made.by_events && !known {
            return Err(SimulationError::about(
                "strategy",
                format!(
                    "{} has no closed form {}, and {messages} messages of a bucket between {workers} workers are more \
                 than are simulated ({MOST_MESSAGES}, {MOST_RANKS})",
                    made.strategy,
                    if made.needs_events() {
                        "on such a network (racks, fabric, degraded links, host copies, fluid)"
                    } else {
                        "here"
                    },
                ),
            )
            .remedy("{strategy=native}, ring or hierarchical, or fewer {workers}"));
        }
        Ok(made)
    }

    fn bucket(&self, bytes: u64) -> Bucket {
        Bucket { id: 0, len: bytes.div_ceil(self.element_bytes), pull_only: false }
    }

    fn messages(&self, bytes: u64) -> u64 {
        self.schedule.volume(&self.bucket(bytes)).messages
    }

    /// Whether a closed form would leave something out.
    fn needs_events(&self) -> bool {
        let it = &self.cluster;
        it.racks.is_some()
            || it.fabric.is_some()
            || slowest_port(it).is_none()
            || it.host_bandwidth.is_some()
            || it.reduction_bandwidth.is_some()
            || self.options.network == crate::options::Network::Fluid
    }

    /// ms from the arrival of the last process.
    pub fn ms(&mut self, bytes: u64) -> Result<f64, SimulationError> {
        if self.options.workers < 2 {
            return Ok(0.0);
        }
        if let Some(alone) = self.known.get_mut(&bytes) {
            alone.count += 1.0;
            return Ok(self.besides + alone.ms);
        }
        let mut alone = if !self.by_events {
            let seconds = self.closed_form(bytes).unwrap_or(0.0);
            Alone { ms: 1e3 * seconds, path: vec![PathPart { part: "network", seconds }], ..Alone::default() }
        } else if self.spent + self.messages(bytes) <= BUDGET {
            self.simulated(bytes)?
        } else {
            self.interpolated(bytes)?
        };
        alone.count = 1.0;
        let ms = alone.ms;
        self.known.insert(bytes, alone);
        Ok(self.besides + ms)
    }

    fn simulated(&mut self, bytes: u64) -> Result<Alone, SimulationError> {
        self.spent += self.messages(bytes);
        let mut trace =
            Trace::all_reduce(bytes.next_multiple_of(4), 1).map_err(|e| SimulationError::new(e.to_string()))?;
        trace.dtype = self.trace.dtype;
        for tensor in &mut trace.tensors {
            (tensor.bytes, tensor.pull_bytes) = (bytes, bytes);
        }
        let found = simulate_exchange(&trace, &self.cluster, &self.options)?;
        Ok(Alone {
            ms: found.iteration_s * 1e3,
            path: found.critical_path,
            links: found.links,
            busy: found.busy.unwrap_or_default(),
            count: 0.0,
        })
    }

    /// Between the nearest halves of a power of two: a strategy's time is close to linear in the bytes.
    fn interpolated(&mut self, bytes: u64) -> Result<Alone, SimulationError> {
        let half = (1u64 << bytes.max(2).ilog2()) / 2;
        let low = (bytes / half).max(1) * half;
        let mut ends = Vec::with_capacity(2);
        for size in [low, low + half] {
            if !self.known.contains_key(&size) {
                let alone = self.simulated(size)?;
                self.known.insert(size, alone);
            }
            ends.push(self.known[&size].clone());
        }
        let share = (bytes - low.min(bytes)) as f64 / half as f64;
        // Most of a bucket's parts are those of the nearer size; only its time is between the two.
        let ms = ends[0].ms * (1.0 - share) + ends[1].ms * share;
        let mut alone = ends.swap_remove(usize::from(share >= 0.5));
        alone.path.iter_mut().for_each(|part| part.seconds *= ms / alone.ms.max(f64::MIN_POSITIVE));
        alone.ms = ms;
        Ok(alone)
    }

    fn closed_form(&self, bytes: u64) -> Option<f64> {
        let bucket = self.bucket(bytes);
        let least = self.schedule.least_latency(&bucket);
        let link = |rate: Rate, latency: Time, least: f64| Link {
            latency_s: latency.seconds().max(least),
            s_per_element: self.element_bytes as f64 * 8.0 / rate.0,
        };
        let cluster = &self.cluster;
        let port = Rate(cluster.bandwidth.0 * slowest_port(cluster).unwrap_or(1.0));
        let links = Links {
            between: link(port, cluster.latency, least.map_or(0.0, |it| it.between_s)),
            inside: link(cluster.intra_bandwidth, cluster.intra_latency, least.map_or(0.0, |it| it.inside_s)),
        };
        self.schedule.closed_form_on_nodes(&bucket, links)
    }

    /// A remark on how the exchanges were forecast.
    pub fn note(&self) -> Option<Note> {
        let closed_form = Note::ClosedForm { strategy: self.strategy, workers: self.options.workers };
        (!self.by_events).then_some(closed_form)
    }

    /// All exchanges so far.
    pub fn used(&self) -> Used {
        let mut used = Used::default();
        for (&bytes, alone) in self.known.iter().filter(|(_, alone)| alone.count > 0.0) {
            let volume = self.schedule.volume(&self.bucket(bytes));
            used.exchanges += alone.count;
            used.messages += alone.count * volume.messages as f64;
            used.worker_bytes += alone.count * (volume.worker_elements * self.element_bytes) as f64;
            used.ms += alone.count * (alone.ms + self.besides);
            for part in &alone.path {
                let seconds = part.seconds * alone.count;
                match used.path.iter_mut().find(|it| it.part == part.part) {
                    Some(it) => it.seconds += seconds,
                    None => used.path.push(PathPart { part: part.part, seconds }),
                }
            }
            for link in &alone.links {
                let (busiest_s, mean_s) = (link.busiest_s * alone.count, link.mean_s * alone.count);
                match used.links.iter_mut().find(|it| it.kind == link.kind) {
                    Some(it) => {
                        it.links = it.links.max(link.links);
                        it.busiest_s += busiest_s;
                        it.mean_s += mean_s;
                    }
                    None => used.links.push(LinkUse { busiest_s, mean_s, ..link.clone() }),
                }
            }
            for busy in &alone.busy {
                let busy_s = busy.busy_s * alone.count;
                let place = *used.places.entry(busy.name.clone()).or_insert(used.busy.len());
                match used.busy.get_mut(place) {
                    Some(it) => it.busy_s += busy_s,
                    None => used.busy.push(Busy { busy_s, ..busy.clone() }),
                }
            }
        }
        used
    }
}

/// Time of exchanges, summed.
#[derive(Debug, Default)]
pub(super) struct Used {
    pub exchanges: f64,
    pub messages: f64,
    /// Sent by all workers.
    pub worker_bytes: f64,
    pub ms: f64,
    pub path: Vec<PathPart>,
    pub links: Vec<LinkUse>,
    pub busy: Vec<Busy>,
    places: BTreeMap<String, usize>,
}

/// ms for copying a bucket to the fusion buffer and back; a single tensor is reduced in place.
pub(super) fn copies_ms(tensors: usize, bytes: u64, constants: &Constants) -> f64 {
    if tensors < 2 {
        return 0.0;
    }
    2.0 * (tensors as f64 * constants.copy_launch_ms + bytes as f64 / (constants.copy_gb_per_s * 1e6))
}
