//! The result of a simulation.
use std::collections::HashMap;

use paceline_iteration::{Collective, IterationOptions, Plan};
use paceline_model::{Cluster, Trace};
use paceline_schedule::Note;

use crate::coordination::Coordinated;
use crate::iteration::unwatched;
use crate::network::topology::NetworkLinks;
use crate::options::{Options, SimulationError};
use crate::path::COUNT;
use crate::run_types::{Measured, Prepared};
use crate::sharded::{Sharded, Watched};
use crate::staggering::Staggering;
use crate::staleness::Asynchronous;

/// How busy the links of one kind were.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkUse {
    /// "worker egress", "server ingress", …
    pub kind: &'static str,
    /// How many such links carried data.
    pub links: u32,
    /// Busy time per iteration of the busiest one, in seconds.
    pub busiest_s: f64,
    /// Mean busy time per iteration of those that carried data, in seconds.
    pub mean_s: f64,
}

/// Busy time of one link or worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Busy {
    /// "worker 3 egress", "rack 0 up", "worker 3 compute", …
    pub name: String,
    /// "worker egress", …, "compute".
    pub kind: &'static str,
    /// Seconds per iteration.
    pub busy_s: f64,
}

/// A part of the critical path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathPart {
    /// "compute", "server ingress", "latency", …
    pub part: &'static str,
    /// Seconds per iteration.
    pub seconds: f64,
}

/// All-reduce figures as reported by nccl-tests, for traces that only synchronize.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BusBandwidth {
    /// Bytes over time, bits per second.
    pub algorithm_bandwidth_bps: f64,
    /// The same times 2(W-1)/W: what each link of a ring carries.
    pub bus_bandwidth_bps: f64,
}

/// The result of one run. Times are seconds per iteration in the steady state.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Name of the trace.
    pub trace: String,
    /// The strategy's main name, with aliases resolved.
    pub strategy: &'static str,
    /// Number of training ranks.
    pub workers: u32,
    /// Number of parameter servers; 0 for strategies without servers.
    pub servers: u32,
    /// Bandwidth of a node, each way.
    pub bandwidth_bps: f64,
    /// Time of one iteration.
    pub iteration_s: f64,
    /// Throughput of all workers; `None` if an iteration takes no time.
    pub samples_per_s: Option<f64>,
    /// Throughput relative to workers without communication; `None` without compute.
    pub scaling_efficiency: Option<f64>,
    /// Iteration time minus one worker's compute time.
    pub exposed_communication_s: f64,
    /// One worker's forward pass.
    pub forward_s: f64,
    /// One worker's backward pass.
    pub backward_s: f64,
    /// One worker's optimizer step.
    pub optimizer_s: f64,
    /// Mean over workers.
    pub bytes_sent_per_worker: f64,
    /// Bytes sent by all roles in one iteration; a multicast counts once.
    pub messages: u64,
    /// Samples per worker and iteration.
    pub batch: u32,
    /// Bytes synchronized in one iteration.
    pub gradient_bytes: u64,
    /// Number of buckets.
    pub buckets: u32,
    /// Each server's share of the bytes that servers hold; empty without servers, or if buckets are not placed one by one.
    pub server_shares: Vec<f64>,
    /// By kind of link, for links that carried data.
    pub links: Vec<LinkUse>,
    /// Largest first; empty if the critical path was not followed.
    pub critical_path: Vec<PathPart>,
    /// Part of the critical path spent in queues behind other messages, in seconds.
    pub queued_s: Option<f64>,
    /// Every worker and every link, if requested.
    pub busy: Option<Vec<Busy>>,
    /// The coordinator's effect on the iteration, if there is one.
    pub coordination: Option<Coordinated>,
    /// How far apart workers are in the last iteration; `None`: of a plan, of a coordinator, or without computation.
    pub staggering: Option<Staggering>,
    /// Staleness, and how long the bound on it holds workers back, if they do not wait for each other.
    pub asynchronous: Option<Asynchronous>,
    /// Exposed communication of the plan by collective, and memory.
    pub sharded: Sharded,
    /// For traces without compute.
    pub bus: Option<BusBandwidth>,
    /// Degenerate cases that the user should know about.
    pub notes: Vec<Note>,
}

impl Measured for Outcome {
    fn seconds(&self) -> f64 {
        self.iteration_s
    }

    fn towards(&self, slower: &Outcome, share: f64) -> Outcome {
        let between = |here: f64, there: f64| here + (there - here) * share;
        let iteration_s = between(self.iteration_s, slower.iteration_s);
        let pace = self.iteration_s / iteration_s;
        let mut links = self.links.clone();
        let mut critical_path = self.critical_path.clone();
        let mut busy = self.busy.clone();
        // What only the other has is zero here, and what it lacks is zero there.
        blend(&mut links, &slower.links, |one| one.kind.to_owned(), |one| [&mut one.busiest_s, &mut one.mean_s], share);
        blend(&mut critical_path, &slower.critical_path, |one| one.part.to_owned(), |one| [&mut one.seconds], share);
        critical_path.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        if let (Some(busy), Some(other)) = (&mut busy, &slower.busy) {
            blend(busy, other, |one| one.name.clone(), |one| [&mut one.busy_s], share);
        }
        Outcome {
            iteration_s,
            samples_per_s: self.samples_per_s.map(|rate| rate * pace),
            scaling_efficiency: self.scaling_efficiency.map(|share| share * pace),
            exposed_communication_s: between(self.exposed_communication_s, slower.exposed_communication_s),
            links,
            critical_path,
            queued_s: self.queued_s.zip(slower.queued_s).map(|(here, there)| between(here, there)),
            busy,
            staggering: self
                .staggering
                .as_ref()
                .zip(slower.staggering.as_ref())
                .map(|(own, it)| own.towards(it, share)),
            sharded: self.sharded.towards(&slower.sharded, share),
            asynchronous: match (&self.asynchronous, &slower.asynchronous) {
                (Some(here), Some(there)) => Some(here.towards(there, share)),
                _ => None,
            },
            bus: self.bus.map(|bus| BusBandwidth {
                algorithm_bandwidth_bps: bus.algorithm_bandwidth_bps * pace,
                bus_bandwidth_bps: bus.bus_bandwidth_bps * pace,
            }),
            ..self.clone()
        }
    }
}

/// Moves figures by a `share` of their difference to those of the same name.
fn blend<T: Clone, const N: usize>(
    here: &mut Vec<T>,
    there: &[T],
    name: impl Fn(&T) -> String,
    figures: impl Fn(&mut T) -> [&mut f64; N],
    share: f64,
) {
    let mut others: HashMap<String, T> = there.iter().map(|one| (name(one), one.clone())).collect();
    for one in here.iter_mut() {
        let mut other = others.remove(&name(one));
        let theirs = other.as_mut().map_or([0.0; N], |other| figures(other).map(|figure| *figure));
        for (own, their) in figures(one).into_iter().zip(theirs) {
            *own += (their - *own) * share;
        }
    }
    for one in there {
        if let Some(mut new) = others.remove(&name(one)) {
            figures(&mut new).into_iter().for_each(|figure| *figure *= share);
            here.push(new);
        }
    }
}

/// Parts and queueing of the critical path, over all measured iterations.
pub(crate) type PathSeconds = Option<([f64; COUNT], f64)>;

/// Links and workers after the run, and the number of iterations that were observed.
pub(crate) struct Usage<'a> {
    pub wires: &'a NetworkLinks,
    /// Picoseconds of computation of each worker.
    pub workers: Vec<u64>,
    pub iterations: f64,
}

impl Usage<'_> {
    fn seconds(&self, picoseconds: u64) -> f64 {
        picoseconds as f64 * 1e-12 / self.iterations
    }

    fn list(&self) -> Vec<Busy> {
        let compute = (0..).zip(&self.workers).map(|(worker, &busy): (u32, _)| Busy {
            name: format!("worker {worker} compute"),
            kind: self.wires.part_names()[0],
            busy_s: self.seconds(busy),
        });
        // Parallel uplinks of a rack are reported as one: messages use whichever is free.
        let mut links: Vec<Busy> = Vec::new();
        for link in self.wires.links.iter().filter(|link| link.busy > 0) {
            let (name, busy_s) = (self.wires.name(link.name), self.seconds(link.busy));
            match links.last_mut().filter(|last| last.name == name) {
                Some(last) => last.busy_s += busy_s,
                None => links.push(Busy { name, kind: self.wires.part_names()[link.part as usize], busy_s }),
            }
        }
        compute.chain(links).collect()
    }
}

/// Observations of links and workers, per iteration.
pub(crate) struct Observed {
    pub links: Vec<LinkUse>,
    pub busy: Option<Vec<Busy>>,
    pub critical_path: Vec<PathPart>,
    pub queued_s: Option<f64>,
}

impl Observed {
    pub fn new(path: PathSeconds, usage: &Usage<'_>, detail: bool) -> Observed {
        let (critical_path, queued_s) = path_parts(path, usage.wires.part_names());
        Observed { links: link_use(usage), busy: detail.then(|| usage.list()), critical_path, queued_s }
    }
}

/// Result of a run about an iteration in the steady state.
pub(crate) struct Found {
    pub iteration_s: f64,
    pub computation: Computation,
    pub traffic: Traffic,
    pub observed: Observed,
    /// `None`: the run did not watch the steps of its plan one by one.
    pub watched: Option<Watched>,
    pub coordination: Option<Coordinated>,
    pub staggering: Option<Staggering>,
    pub notes: Vec<Note>,
}

/// Computation of one worker by itself in an iteration, in seconds.
pub(crate) struct Computation {
    pub forward_s: f64,
    pub backward_s: f64,
    pub optimizer_s: f64,
    /// All of it without other workers: no library is called for gradients, and all parameters are updated here.
    pub alone_s: f64,
}

impl Computation {
    /// That of a trace as it was recorded.
    pub fn recorded(trace: &Trace, options: &Options) -> Computation {
        let (recorded, faster) = (&trace.workers[0], 1.0 / options.compute_speedup);
        let [forward_s, backward_s, optimizer_s] =
            [recorded.forward_time(), recorded.backward, recorded.optimizer].map(|time| time.scaled(faster).seconds());
        Computation { forward_s, backward_s, optimizer_s, alone_s: forward_s + backward_s + optimizer_s }
    }

    fn total_s(&self) -> f64 {
        self.forward_s + self.backward_s + self.optimizer_s
    }
}

/// Messages and bytes sent in an iteration.
pub(crate) struct Traffic {
    pub servers: u32,
    pub buckets: u32,
    /// Of all roles.
    pub messages: u64,
    pub bytes_per_worker: f64,
    /// Each server's share of the bytes that servers hold.
    pub server_shares: Vec<f64>,
}

impl Traffic {
    /// That of programs which are executed once.
    pub fn of(prepared: &Prepared) -> Traffic {
        let roles = prepared.schedule.roles();
        let volumes = prepared.buckets.iter().map(|bucket| prepared.schedule.volume(bucket));
        let (messages, elements) = volumes.fold((0, 0), |(m, e), v| (m + v.messages, e + v.worker_elements));
        Traffic {
            servers: roles.servers,
            buckets: prepared.buckets.len() as u32,
            messages,
            bytes_per_worker: (elements * prepared.element_bytes) as f64 / f64::from(roles.workers),
            server_shares: shares(prepared),
        }
    }
}

fn shares(prepared: &Prepared) -> Vec<f64> {
    let mut held = vec![0; prepared.schedule.roles().servers as usize];
    prepared.buckets.iter().for_each(|bucket| prepared.schedule.held(bucket, &mut held));
    match held.iter().sum::<u64>() {
        0 => Vec::new(),
        all => held.into_iter().map(|elements| elements as f64 / all as f64).collect(),
    }
}

/// Makes the result of a run of this plan.
pub(crate) fn compose(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    plan: &Plan,
    found: Found,
) -> Result<Outcome, SimulationError> {
    let Found { iteration_s, computation, traffic, observed, watched, coordination, staggering, mut notes } = found;
    let exposed_s = exposed(iteration_s, computation.total_s());
    let watched = watched.unwrap_or_else(|| unwatched(plan, exposed_s));
    let gradient_bytes: u64 = trace.tensors.iter().map(|tensor| tensor.bytes).sum();
    let workers = f64::from(options.workers);
    let samples = workers * plan.samples as f64 / f64::from(plan.iterations);
    let takes_time = iteration_s > 0.0;
    let is_one_exchange =
        computation.total_s() == 0.0 && options.iteration.as_ref().is_none_or(IterationOptions::is_plain);
    let bus = (is_one_exchange && takes_time).then(|| {
        let algorithm = 8.0 * gradient_bytes as f64 / iteration_s;
        let directions = f64::from(1 + u8::from(options.collective == Collective::AllReduce));
        BusBandwidth {
            algorithm_bandwidth_bps: algorithm,
            bus_bandwidth_bps: algorithm * directions * (workers - 1.0) / workers,
        }
    });
    if plan.is_one_group() {
        notes.push(Note::OneGroup { ranks: plan.world });
    }
    Ok(Outcome {
        trace: trace.name.clone(),
        strategy: options.entry()?.name,
        workers: options.workers,
        servers: traffic.servers,
        bandwidth_bps: cluster.bandwidth.0,
        iteration_s,
        samples_per_s: takes_time.then(|| samples / iteration_s),
        scaling_efficiency: (computation.alone_s > 0.0 && takes_time).then(|| computation.alone_s / iteration_s),
        exposed_communication_s: exposed_s,
        forward_s: computation.forward_s,
        backward_s: computation.backward_s,
        optimizer_s: computation.optimizer_s,
        bytes_sent_per_worker: traffic.bytes_per_worker,
        messages: traffic.messages,
        batch: trace.batch,
        gradient_bytes,
        buckets: traffic.buckets,
        server_shares: traffic.server_shares,
        links: observed.links,
        busy: observed.busy,
        critical_path: observed.critical_path,
        queued_s: observed.queued_s,
        coordination,
        staggering,
        asynchronous: None,
        sharded: Sharded::new(plan, watched),
        bus,
        notes,
    })
}

/// The part of the iteration that is not computation; rounding must not make it negative.
pub(crate) fn exposed(iteration_s: f64, compute_s: f64) -> f64 {
    let exposed = iteration_s - compute_s;
    // Less is rounding.
    if exposed > 1e-9 * iteration_s { exposed } else { 0.0 }
}

fn path_parts(path: PathSeconds, names: [&'static str; COUNT]) -> (Vec<PathPart>, Option<f64>) {
    let Some((parts, queued)) = path else { return (Vec::new(), None) };
    let mut list: Vec<_> = names
        .into_iter()
        .zip(parts)
        .filter(|&(_, seconds)| seconds > 0.0)
        .map(|(part, seconds)| PathPart { part, seconds })
        .collect();
    list.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    (list, Some(queued))
}

fn link_use(usage: &Usage<'_>) -> Vec<LinkUse> {
    (1..COUNT - 1)
        .filter_map(|part| {
            let links = usage.wires.links.iter().filter(|link| link.part as usize == part && link.busy > 0);
            let busy: Vec<f64> = links.map(|link| usage.seconds(link.busy)).collect();
            let busiest_s = busy.iter().copied().max_by(f64::total_cmp)?;
            Some(LinkUse {
                kind: usage.wires.part_names()[part],
                links: busy.len() as u32,
                busiest_s,
                mean_s: busy.iter().sum::<f64>() / busy.len() as f64,
            })
        })
        .collect()
}
