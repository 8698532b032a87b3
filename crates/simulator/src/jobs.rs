//! Several jobs on one network: each runs its programs on its own ranks, all share the links.
//!
//! All jobs run throughout. Measuring begins when every job has passed its first iterations, and ends when every job has
//! made the wanted number of iterations since; until then shorter jobs make more. So what is measured of a job is its
//! iterations while all others run, too.
use std::collections::HashMap;
use std::sync::Arc;

use paceline_model::cluster::{Fabric, ServerPlace};
use paceline_model::{Cluster, Time, Trace};
use paceline_schedule::{Knob, Roles, Stand, SwitchPlace};
use serde::Serialize;

use crate::degraded::{Measured, Slow, different, passes_by_trees};
use crate::iteration::{followers, prepare_messages};
use crate::network::left::{Needs, share};
use crate::network::switch::Memory;
use crate::network::topology::{LinkName, NetworkLinks, Placed, PlacedJob};
use crate::observer::{Activity, Observer};
use crate::options::{Network, Options, SimulationError};
use crate::prepare::{Prepared, RacksAndPods, nodes_per_switch, prepare_in, with_least_latency};
use crate::run::{check_switch_memory, phases};
use crate::simulation::{Boundary, Job, JobPlace, Simulation, Until};
use crate::timeline::{JobOnTimeline, Recorder, Timeline};
use crate::worker::workers;

/// A job and its place.
#[derive(Clone, Debug)]
pub struct PlacedJobSpec {
    /// The name for tables.
    pub name: String,
    /// What its workers compute.
    pub trace: Arc<Trace>,
    /// Its strategy, workers and their options. `network` and `iterations` are those of all jobs.
    pub options: Options,
    /// Ranks on each of its nodes; the last may have fewer.
    pub ranks_per_node: u32,
    /// GPUs of a rank on its node: those that share its layers.
    pub gpus_per_rank: u32,
    /// Nodes of its workers, ascending.
    pub nodes: Vec<u32>,
    /// The node of each of its servers.
    pub server_nodes: Vec<u32>,
    /// When it begins.
    pub start: Time,
}

/// How long jobs run.
#[derive(Clone, Debug)]
pub enum Length {
    /// Iterations of the job with the fewest, while all run.
    Iterations(u32),
    /// To this iteration of each job.
    Marks(Vec<usize>),
}

/// What was measured of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobOutcome {
    /// Its name.
    pub name: String,
    /// The end of every round of iterations, in picoseconds from the start of the simulation.
    pub marks_ps: Vec<u64>,
    /// Iterations of a round, in the last of which ranks exchange something; 1: in each.
    pub sync_every: u32,
    /// Of a worker in an iteration.
    pub samples: u64,
    /// The first and the last of them between which all jobs ran.
    pub measured: (usize, usize),
    /// Degenerate cases that the user should know about.
    pub notes: Vec<String>,
}

/// How busy a link was while all jobs ran, and whose messages it carried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharedLink {
    /// "node 3 egress", "rack 0 up", …
    pub name: String,
    /// "worker egress", …
    pub kind: &'static str,
    /// Share of the time.
    pub busy: f64,
    /// Numbers of the jobs that used it.
    pub jobs: Vec<u32>,
}

/// The result for all jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobsOutcome {
    /// In the order given.
    pub jobs: Vec<JobOutcome>,
    /// Links that carried data, busiest first. Parallel uplinks of a rack count as one.
    pub links: Vec<SharedLink>,
    /// Seconds during which all jobs ran and were measured.
    pub measured_s: f64,
}

/// Notes which jobs use which links, and passes everything on.
struct Users<O> {
    /// The job of each bucket.
    job_of: Vec<u16>,
    /// For each link, the number of each job's messages.
    messages: HashMap<(u32, u16), u64>,
    measuring: bool,
    inner: O,
}

impl<O: Observer> Observer for Users<O> {
    const ACTIVE: bool = O::ACTIVE;
    fn link(&mut self, link: u32, start: u64, end: u64, inst: u32, src: u32, dst: u32) {
        if self.measuring {
            *self.messages.entry((link, self.job_of[(inst >> 1) as usize])).or_default() += 1;
        }
        self.inner.link(link, start, end, inst, src, dst);
    }
    fn worker(&mut self, worker: u32, activity: Activity, start: u64, end: u64) {
        self.inner.worker(worker, activity, start, end);
    }
    fn begin(&mut self) {
        self.measuring = true;
        self.messages.clear();
    }
}

/// Simulates jobs that share a cluster of `nodes` nodes.
///
/// # Errors
/// Options that contradict each other, or a job whose place does not fit the cluster; the message begins with the job's
/// name and says what to do.
pub fn simulate_jobs(
    cluster: &Cluster,
    nodes: u32,
    jobs: &[PlacedJobSpec],
    network: Network,
    length: &Length,
) -> Result<JobsOutcome, SimulationError> {
    let on = |cluster: &Cluster| {
        let prepared = prepare_jobs(cluster, nodes, jobs, network)?;
        Ok(run(cluster, nodes, jobs, &prepared, network, length, ())?.0)
    };
    Ok(with_slow_links(cluster, nodes, jobs, network, on)?.0)
}

/// The result on a cluster with slow links, and the cluster that has only the one that costs most.
fn with_slow_links(
    cluster: &Cluster,
    nodes: u32,
    jobs: &[PlacedJobSpec],
    network: Network,
    on: impl Fn(&Cluster) -> Result<JobsOutcome, SimulationError>,
) -> Result<(JobsOutcome, Cluster), SimulationError> {
    if cluster.degraded.is_empty() {
        return Ok((on(cluster)?, cluster.clone()));
    }
    let by_trees = jobs.iter().map(|job| passes_by_trees(&job.options)).collect::<Result<Vec<_>, _>>()?;
    let slow = Slow::of(cluster, by_trees.contains(&true));
    let prepared = prepare_jobs(&slow.healthy, nodes, jobs, network)?;
    let (places, total) = places(&prepared)?;
    let links = |cluster: &Cluster| wires(cluster, nodes, jobs, &prepared, (&places, total), network == Network::Fluid);
    // Refuses links that there are not, and nodes that are cut off.
    links(cluster)?;
    let left = |slow_one: &Cluster| {
        let (whole, slow_one) = (links(&slow.healthy)?, links(slow_one)?);
        let mut needs = Needs::none(&whole);
        for (prepared, place) in prepared.iter().zip(&places) {
            let buckets = different(prepared.buckets.clone(), prepared.entry);
            needs.add_programs(&whole, &*prepared.schedule, &buckets, |role| place.global(role));
        }
        Ok(share(&whole, &slow_one, &needs, cluster.bandwidth))
    };
    slow.cost(left, on)
}

impl JobOutcome {
    /// Picoseconds of a round while all jobs ran.
    fn round(&self) -> f64 {
        let (first, last) = self.measured;
        (self.marks_ps[last] - self.marks_ps[first]) as f64 / (last - first).max(1) as f64
    }
}

impl Measured for JobsOutcome {
    /// Of an iteration of each job, one after the other.
    fn seconds(&self) -> f64 {
        self.jobs.iter().map(|job| job.round() * 1e-12).sum()
    }

    fn towards(&self, slower: &JobsOutcome, share: f64) -> JobsOutcome {
        let mut between = self.clone();
        for (job, other) in between.jobs.iter_mut().zip(&slower.jobs) {
            let longer = 1.0 + share * (other.round() / job.round().max(f64::MIN_POSITIVE) - 1.0);
            job.marks_ps.iter_mut().for_each(|mark| *mark = Time(*mark).scaled(longer).0);
        }
        between.measured_s += (slower.measured_s - self.measured_s) * share;
        for link in &mut between.links {
            let other = slower.links.iter().find(|other| other.name == link.name);
            link.busy += (other.map_or(0.0, |other| other.busy) - link.busy) * share;
        }
        between
    }
}

/// Also returns a timeline of every worker and link.
///
/// # Errors
/// Those of [`simulate_jobs`].
pub fn simulate_jobs_with_timeline(
    cluster: &Cluster,
    nodes: u32,
    jobs: &[PlacedJobSpec],
    network: Network,
    length: &Length,
) -> Result<(JobsOutcome, Timeline), SimulationError> {
    let on = |cluster: &Cluster| {
        let prepared = prepare_jobs(cluster, nodes, jobs, network)?;
        Ok(run(cluster, nodes, jobs, &prepared, network, length, ())?.0)
    };
    let (outcome, slowest) = with_slow_links(cluster, nodes, jobs, network, on)?;
    let prepared = prepare_jobs(&slowest, nodes, jobs, network)?;
    let (_, recorder, wires, places) = run(&slowest, nodes, jobs, &prepared, network, length, Recorder::default())?;
    let shown: Vec<_> = jobs
        .iter()
        .zip(&prepared)
        .zip(&places)
        .map(|((job, prepared), &place)| JobOnTimeline { name: Some(&job.name), trace: &job.trace, prepared, place })
        .collect();
    let timeline = Timeline::new(&recorder, &shown, &wires, network == Network::Fluid, None);
    Ok((outcome, timeline))
}

/// The cluster as one job sees it.
fn cluster_of(cluster: &Cluster, job: &PlacedJobSpec) -> Cluster {
    Cluster { gpus_per_node: job.ranks_per_node, ..cluster.clone() }
}

/// For each rack in which a job has nodes, the rack and their number.
fn racks_of(cluster: &Cluster, job: &PlacedJobSpec) -> Option<Vec<(u32, u32)>> {
    let per_rack = nodes_per_switch(cluster)?;
    Some(counted(job.nodes.iter().map(|node| node / per_rack)))
}

/// The same for pods and the job's racks in them.
fn pods_of(cluster: &Cluster, racks: &[(u32, u32)]) -> Option<Vec<(u32, u32)>> {
    let per_pod = cluster.fabric.as_ref().and_then(Fabric::switches_per_pod)?;
    Some(counted(racks.iter().map(|(rack, _)| rack / per_pod)))
}

/// Each value and how many times it comes in a row.
fn counted(values: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for value in values {
        match runs.last_mut() {
            Some((last, count)) if *last == value => *count += 1,
            _ => runs.push((value, 1)),
        }
    }
    runs
}

/// Whether a job's iteration is other than that of its trace: its exchanges are then those of a plan, one after another.
fn is_planned(job: &PlacedJobSpec) -> bool {
    job.options.iteration.as_ref().is_some_and(|iteration| !iteration.is_plain())
}

fn prepare_jobs(
    cluster: &Cluster,
    nodes: u32,
    jobs: &[PlacedJobSpec],
    network: Network,
) -> Result<Vec<Prepared>, SimulationError> {
    if !cluster.stragglers.is_empty() {
        return Err(SimulationError(
            "cluster.stragglers: several jobs have several ranks of each number; leave them out".into(),
        ));
    }
    let mut used: HashMap<u32, (u32, usize)> = HashMap::new();
    let mut all = Vec::with_capacity(jobs.len());
    for (number, job) in jobs.iter().enumerate() {
        let wrong = |message: String| SimulationError(format!("{}: {message}", job.name));
        check_place(cluster, nodes, job).map_err(wrong)?;
        let ranks = |local: usize| job.ranks_per_node.min(job.options.workers - local as u32 * job.ranks_per_node);
        for (local, &node) in job.nodes.iter().enumerate() {
            let (taken, by) = used.entry(node).or_insert((0, number));
            *taken += ranks(local) * job.gpus_per_rank;
            if *taken > cluster.gpus_per_node {
                let other = &jobs[*by].name;
                return Err(wrong(format!(
                    "nodes: node {node} has {} GPUs, which {other} and this job use {taken} times",
                    cluster.gpus_per_node
                )));
            }
        }
        let options = Options { network, ..job.options.clone() };
        let own = cluster_of(cluster, job);
        let racks = racks_of(cluster, job);
        let pods = racks.as_deref().and_then(|racks| pods_of(cluster, racks));
        let counts = |parts: Vec<(u32, u32)>| parts.into_iter().map(|(_, count)| count).collect();
        let within = RacksAndPods { racks: racks.map(counts), pods: pods.map(counts) };
        let prepared = if is_planned(job) {
            prepare_messages(&job.trace, &own, &options)
        } else {
            prepare_in(&job.trace, &own, &options, within).map(|(prepared, _)| prepared)
        };
        let prepared = prepared.map_err(|e| wrong(e.0))?;
        check_switch_memory(&job.trace, cluster, &prepared).map_err(|e| wrong(e.0))?;
        all.push(prepared);
    }
    Ok(all)
}

fn check_place(cluster: &Cluster, nodes: u32, job: &PlacedJobSpec) -> Result<(), String> {
    let wanted = job.options.workers.div_ceil(job.ranks_per_node.max(1)) as usize;
    let gpus = job.ranks_per_node.saturating_mul(job.gpus_per_rank);
    if gpus == 0 || gpus > cluster.gpus_per_node {
        return Err(format!("gpus_per_node: {gpus} GPUs on a node, which has {}", cluster.gpus_per_node));
    }
    if job.nodes.len() != wanted {
        return Err(format!("nodes: {} are given for workers that fill {wanted}", job.nodes.len()));
    }
    if !job.nodes.is_sorted_by(|a, b| a < b) {
        return Err("nodes: are not ascending, or one is given twice".into());
    }
    if let Some(node) = job.nodes.iter().chain(&job.server_nodes).find(|&&node| node >= nodes) {
        return Err(format!("nodes: there is no node {node}; the cluster's {nodes} are numbered from 0"));
    }
    Ok(())
}

type Ran<O> = (JobsOutcome, O, NetworkLinks, Vec<JobPlace>);

fn run<O: Observer>(
    cluster: &Cluster,
    nodes: u32,
    jobs: &[PlacedJobSpec],
    prepared: &[Prepared],
    network: Network,
    length: &Length,
    inner: O,
) -> Result<Ran<O>, SimulationError> {
    let (places, total) = places(prepared)?;
    let fluid = network == Network::Fluid;
    let wires = wires(cluster, nodes, jobs, prepared, (&places, total), fluid)?;
    let aggregating = places.iter().filter(|place| place.roles.switches > 0).count() as u64;
    let (mut running, mut all_workers) = (Vec::new(), Vec::new());
    for (number, (job, prepared)) in jobs.iter().zip(prepared).enumerate() {
        let (boundary, together, warm_up) = match is_planned(job) {
            true => (Boundary::Sums, true, 0),
            false => phases(prepared, &job.options),
        };
        let until = match length {
            Length::Iterations(count) => Until::Iterations(*count as usize),
            Length::Marks(marks) => Until::Mark(marks[number]),
        };
        // A switch's memory is divided among the jobs, as SHARP's aggregation manager does with quotas.
        let memory = cluster.switch.memory.map(|bytes| Memory::new(bytes / aggregating.max(1), total.workers));
        let mut one = Job::new(prepared, places[number], (boundary, together), (warm_up.max(1), until), memory);
        one.start = job.start.0;
        running.push(one);
        all_workers.extend(match is_planned(job) {
            true => followers(&job.trace, cluster, &job.options),
            false => workers(&job.trace, cluster, &job.options),
        });
    }
    let job_of = (0u16..).zip(prepared).flat_map(|(job, prepared)| prepared.buckets.iter().map(move |_| job)).collect();
    let users = Users { job_of, messages: HashMap::new(), measuring: false, inner };
    let mut simulation = Simulation::<(), Users<O>>::new(cluster, wires, running, all_workers, fluid, users);
    simulation.run().map_err(SimulationError)?;
    let outcomes: Vec<JobOutcome> = jobs
        .iter()
        .zip(&simulation.jobs)
        .map(|(spec, job)| JobOutcome {
            name: spec.name.clone(),
            marks_ps: job.marks.iter().map(|mark| mark.time).collect(),
            sync_every: spec.options.iteration.as_ref().map_or(1, |iteration| iteration.sync_every),
            samples: u64::from(spec.trace.batch)
                * u64::from(spec.options.iteration.as_ref().map_or(1, |iteration| iteration.accumulate)),
            measured: (job.marks_before, job.marks.len() - 1),
            notes: job.prepared.schedule.note().into_iter().collect(),
        })
        .collect();
    let end = outcomes.iter().filter_map(|job| job.marks_ps.last()).max().copied().unwrap_or(0);
    let measured_s = (end - simulation.measured_from) as f64 * 1e-12;
    let links = shared_links(&simulation.wires, &simulation.observer.messages, measured_s);
    Ok((JobsOutcome { jobs: outcomes, links, measured_s }, simulation.observer.inner, simulation.wires, places))
}

/// The network of all jobs together.
fn wires(
    cluster: &Cluster,
    nodes: u32,
    jobs: &[PlacedJobSpec],
    prepared: &[Prepared],
    (places, total): (&[JobPlace], Roles),
    fluid: bool,
) -> Result<NetworkLinks, SimulationError> {
    let (placed, switches) = placed(cluster, nodes, jobs, prepared, places, total);
    let seed = jobs.first().map_or(0, |job| job.options.seed);
    NetworkLinks::of(cluster, total, switches, Some(placed), fluid, seed).map_err(SimulationError)
}

/// The numbers of all jobs' roles and buckets, and the roles of all.
fn places(prepared: &[Prepared]) -> Result<(Vec<JobPlace>, Roles), SimulationError> {
    let roles = || prepared.iter().map(|job| job.schedule.roles());
    let all_workers: u32 = roles().map(|roles| roles.workers).sum();
    let all_servers: u32 = roles().map(|roles| roles.servers).sum();
    let (mut worker, mut server, mut switch, mut bucket) = (0, all_workers, all_workers + all_servers, 0);
    let mut places = Vec::with_capacity(prepared.len());
    for job in prepared {
        let roles = job.schedule.roles();
        places.push(JobPlace {
            roles,
            first_worker: worker,
            first_server: server,
            first_switch: switch,
            first_bucket: bucket,
        });
        worker += roles.workers;
        server += roles.servers;
        switch += roles.switches;
        bucket += job.buckets.len() as u32;
    }
    let switches = switch - all_workers - all_servers;
    let total = Roles { workers: all_workers, servers: all_servers, switches };
    if total.total() > u32::from(u16::MAX) {
        return Err(SimulationError(format!(
            "jobs: {} workers, servers and switches are more than the {} possible",
            total.total(),
            u16::MAX
        )));
    }
    Ok((places, total))
}

fn placed(
    cluster: &Cluster,
    nodes: u32,
    jobs: &[PlacedJobSpec],
    prepared: &[Prepared],
    places: &[JobPlace],
    total: Roles,
) -> (Placed, Vec<SwitchPlace>) {
    let mut node_of = vec![0; (total.workers + total.servers) as usize];
    let mut job_of = vec![0; total.total() as usize];
    let mut own_numbers = vec![0; total.total() as usize];
    let mut switches = Vec::with_capacity(total.switches as usize);
    let mut list = Vec::with_capacity(jobs.len());
    let mut first_id = 0;
    for (number, ((job, prepared), place)) in (0u16..).zip(jobs.iter().zip(prepared).zip(places)) {
        let Roles { workers, servers, .. } = place.roles;
        for role in 0..place.roles.total() {
            let global = place.global(role) as usize;
            job_of[global] = number;
            own_numbers[global] = role;
            if role < workers {
                node_of[global] = job.nodes[(role / job.ranks_per_node) as usize];
            } else if role < workers + servers {
                let server = (role - workers) as usize;
                node_of[global] = match cluster.servers {
                    ServerPlace::Colocated => job.nodes[server % job.nodes.len()],
                    ServerPlace::OwnNodes => job.server_nodes[server % job.server_nodes.len().max(1)],
                };
            }
        }
        let racks = racks_of(cluster, job).unwrap_or_default();
        let pods = pods_of(cluster, &racks).unwrap_or_default();
        for number in 0..place.roles.switches {
            let own = prepared.schedule.switch_place(number);
            let stand = match own.stand {
                Stand::Rack(rack) => Stand::Rack(racks[rack as usize].0),
                Stand::Pod(pod) => Stand::Pod(pods[pod as usize].0),
                Stand::Top => Stand::Top,
            };
            switches.push(SwitchPlace { id: own.id + first_id, stand, ..own });
        }
        first_id += place.roles.switches;
        let at_least = with_least_latency(cluster, prepared);
        let latency = (at_least.latency.0, at_least.intra_latency.0);
        list.push(PlacedJob { workers: place.first_worker..place.first_worker + workers, latency });
    }
    (Placed { nodes, node_of, job_of, own_numbers, jobs: list }, switches)
}

fn shared_links(wires: &NetworkLinks, messages: &HashMap<(u32, u16), u64>, measured_s: f64) -> Vec<SharedLink> {
    let mut users: Vec<Vec<u32>> = vec![Vec::new(); wires.links.len()];
    messages.keys().for_each(|&(link, job)| users[link as usize].push(u32::from(job)));
    // Parallel uplinks of a rack are neighbours of one name.
    let mut all: Vec<(LinkName, SharedLink, u32)> = Vec::new();
    for (link, users) in wires.links.iter().zip(users).filter(|(link, _)| link.busy > 0) {
        let busy = link.busy as f64 * 1e-12 / measured_s.max(f64::MIN_POSITIVE);
        match all.last_mut().filter(|(name, ..)| *name == link.name) {
            Some((_, shared, parallel)) => {
                shared.busy += busy;
                shared.jobs.extend(users);
                *parallel += 1;
            }
            None => {
                let (name, kind) = (wires.name(link.name), wires.part_names()[link.part as usize]);
                all.push((link.name, SharedLink { name, kind, busy, jobs: users }, 1));
            }
        }
    }
    let mut links: Vec<SharedLink> = all
        .into_iter()
        .map(|(_, mut shared, parallel)| {
            shared.busy /= f64::from(parallel);
            shared.jobs.sort_unstable();
            shared.jobs.dedup();
            shared
        })
        .collect();
    links.sort_by(|a, b| b.busy.total_cmp(&a.busy));
    links
}

/// Whether a strategy's servers need nodes of their own on this cluster, and how many.
#[must_use]
pub fn server_nodes(cluster: &Cluster, options: &Options) -> u32 {
    let uses = paceline_schedule::find(&options.strategy).is_some_and(|entry| entry.uses(Knob::Servers));
    if uses && cluster.servers == ServerPlace::OwnNodes { options.servers } else { 0 }
}
