//! Several jobs on one network: each runs its programs on its own ranks, all share the links.
//!
//! All jobs run throughout. Measuring begins when every job has passed its first iterations, and ends when every job has
//! made the wanted number of iterations since; until then shorter jobs make more. So what is measured of a job is its
//! iterations while all others run, too.
//!
//! | module | holds |
//! | --- | --- |
//! | this one | places the jobs, and runs them message by message |
//! | `alone` | what a job's collectives take and use, if nobody else uses the network |
//! | `by_collective` | many ranks: a collective is one event; those that meet share the network |
//! | `watch` | how far simulations are; stops them |
mod alone;
mod by_collective;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use paceline_model::cluster::{Fabric, ServerPlace};
use paceline_model::{Cluster, Time, Trace};
use paceline_schedule::{Knob, Note, Roles, Stand, SwitchPlace};

use self::alone::{Alone, Site};
use self::by_collective::{Classes, Collective, Running, classified};
pub use self::watch::Watch;
use crate::degraded::{Slow, different, passes_by_trees};
use crate::iteration::{Resolution, prepare_messages};
use crate::network::left::{Needs, share};
use crate::network::switch::Memory;
use crate::network::topology::{LinkName, NetworkLinks, Placed, PlacedJob};
use crate::observer::{Activity, Observer};
use crate::options::{Network, Options, SimulationError};
use crate::prepare::{RacksAndPods, nodes_per_switch, prepare_in, with_least_latency};
use crate::run::{check_switch_memory, phases};
use crate::run_types::{JobPlace, Measured, Prepared};
use crate::simulation::{Boundary, JobRun, Simulation, Until};
use crate::timeline::{JobOnTimeline, Recorder, Timeline};
use crate::worker::{Worker, followers, workers};

/// A job and its place.
#[derive(Clone, Debug)]
pub struct PlacedJobSpec {
    /// The name for tables.
    pub name: String,
    /// Its workers' computation.
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

/// Measurements of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub notes: Vec<Note>,
}

/// How busy a link was while all jobs ran, and whose messages it carried.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
pub struct JobsOutcome {
    /// In the order given.
    pub jobs: Vec<JobOutcome>,
    /// Links that carried data, busiest first. Parallel uplinks of a rack count as one.
    pub links: Vec<SharedLink>,
    /// Seconds during which all jobs ran and were measured.
    pub measured_s: f64,
    /// How the jobs were run.
    pub resolution: Resolution,
    /// Whether all iterations were made: it was not stopped before.
    pub is_complete: bool,
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

/// Jobs that share a cluster, ready to be simulated: all, or some of them at their places.
pub struct Mix {
    cluster: Cluster,
    nodes: u32,
    jobs: Arc<[PlacedJobSpec]>,
    network: Network,
    watch: Arc<Watch>,
    /// On the cluster without its slow links; and with one of them, as far as that has been simulated.
    healthy: Arc<OnCluster>,
    slow: Mutex<HashMap<String, Arc<OnCluster>>>,
}

impl Mix {
    /// Places jobs on a cluster of `nodes` nodes. `watch`: who may stop their simulations.
    ///
    /// # Errors
    /// Options that contradict each other, or a job whose place does not fit the cluster; the message begins with the job's
    /// name and says what to do.
    pub fn new(
        cluster: &Cluster,
        nodes: u32,
        jobs: Vec<PlacedJobSpec>,
        network: Network,
        watch: Arc<Watch>,
    ) -> Result<Mix, SimulationError> {
        let jobs: Arc<[PlacedJobSpec]> = jobs.into();
        let is_healthy = cluster.degraded.is_empty();
        let own = if is_healthy { cluster.clone() } else { slow_of(cluster, jobs.iter())?.healthy };
        let healthy = Arc::new(OnCluster::new(&own, nodes, &jobs, network, &watch)?);
        Ok(Mix { cluster: cluster.clone(), nodes, jobs, network, watch, healthy, slow: Mutex::default() })
    }

    /// Messages of each job in the time of so many iterations of the slowest one, by what they compute and send.
    #[must_use]
    pub fn messages(&self, iterations: u32) -> Vec<u64> {
        self.healthy.messages(iterations)
    }

    /// Whether collectives can be single events: not those of servers, whose workers wait for each other in between.
    #[must_use]
    pub fn has_collectives_only(&self) -> bool {
        self.healthy.has_collectives_only()
    }

    /// Runs the jobs of these numbers, in ascending order.
    ///
    /// # Errors
    /// Those of a simulation.
    pub fn run(
        &self,
        which: &[usize],
        length: &Length,
        resolution: Resolution,
    ) -> Result<JobsOutcome, SimulationError> {
        let on = |cluster: &Cluster| self.on(cluster)?.run(which, length, resolution);
        let mut outcome = self.with_slow_links(which, on)?.0;
        outcome.is_complete &= !self.watch.is_stopped();
        Ok(outcome)
    }

    /// Also returns a timeline of every worker and link.
    ///
    /// # Errors
    /// Those of a simulation.
    pub fn run_with_timeline(
        &self,
        which: &[usize],
        length: &Length,
    ) -> Result<(JobsOutcome, Timeline), SimulationError> {
        if self.cluster.degraded.is_empty() {
            return self.healthy.run_with_timeline(which, length);
        }
        let on = |cluster: &Cluster| self.on(cluster)?.run(which, length, Resolution::Messages);
        let (outcome, slowest) = self.with_slow_links(which, on)?;
        Ok((outcome, self.on(&slowest)?.run_with_timeline(which, length)?.1))
    }

    /// The jobs on the cluster without slow links, or with one of them.
    fn on(&self, cluster: &Cluster) -> Result<Arc<OnCluster>, SimulationError> {
        if cluster.degraded == self.healthy.cluster.degraded {
            return Ok(Arc::clone(&self.healthy));
        }
        let key = format!("{:?}", cluster.degraded);
        let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = slow.get(&key) {
            return Ok(Arc::clone(known));
        }
        let one = Arc::new(OnCluster::new(cluster, self.nodes, &self.jobs, self.network, &self.watch)?);
        slow.insert(key, Arc::clone(&one));
        Ok(one)
    }

    /// The result on a cluster with slow links, and the cluster that has only the one that costs most.
    fn with_slow_links(
        &self,
        which: &[usize],
        on: impl Fn(&Cluster) -> Result<JobsOutcome, SimulationError>,
    ) -> Result<(JobsOutcome, Cluster), SimulationError> {
        let cluster = &self.cluster;
        if cluster.degraded.is_empty() {
            return Ok((on(cluster)?, cluster.clone()));
        }
        let jobs: Vec<_> = which.iter().map(|&it| &self.jobs[it]).collect();
        let prepared: Vec<_> = which.iter().map(|&it| &self.healthy.prepared[it]).collect();
        let slow = slow_of(cluster, jobs.iter().copied())?;
        let (places, total) = places(&prepared)?;
        let links = |cluster: &Cluster| wires(cluster, self.nodes, &jobs, &prepared, (&places, total), self.network);
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
}

/// The slow links of a cluster as these jobs meet them.
fn slow_of<'a>(cluster: &Cluster, jobs: impl Iterator<Item = &'a PlacedJobSpec>) -> Result<Slow, SimulationError> {
    let by_trees = jobs.map(|job| passes_by_trees(&job.options)).collect::<Result<Vec<_>, _>>()?;
    Ok(Slow::of(cluster, by_trees.contains(&true)))
}

/// Jobs on a cluster whose links are as they are.
struct OnCluster {
    cluster: Cluster,
    nodes: u32,
    jobs: Arc<[PlacedJobSpec]>,
    prepared: Vec<Prepared>,
    network: Network,
    watch: Arc<Watch>,
    /// Times of their collectives alone, once known.
    collectives: OnceLock<Result<Collectives, SimulationError>>,
}

/// A job alone with more messages than this in an iteration (some hundredths of a second) is not simulated with all of them.
const FEW_MESSAGES: u64 = 50_000;
/// Iterations after which all are alike.
const SETTLED: usize = 2;
/// An iteration that is right to this share is right.
const RIGHT: f64 = 1e-6;

/// The collectives of all jobs.
struct Collectives {
    of_jobs: Vec<Vec<Arc<Collective>>>,
    classes: Classes,
    /// For each job, how many times longer its collectives take than by themselves.
    paces: Vec<f64>,
    /// Names and kinds of the links that they use.
    links: HashMap<u32, (String, &'static str)>,
}

impl OnCluster {
    fn new(
        cluster: &Cluster,
        nodes: u32,
        jobs: &Arc<[PlacedJobSpec]>,
        network: Network,
        watch: &Arc<Watch>,
    ) -> Result<OnCluster, SimulationError> {
        let prepared = prepare_jobs(cluster, nodes, jobs, network)?;
        let (cluster, jobs, watch) = (cluster.clone(), Arc::clone(jobs), Arc::clone(watch));
        Ok(OnCluster { cluster, nodes, jobs, prepared, network, watch, collectives: OnceLock::new() })
    }

    fn messages(&self, iterations: u32) -> Vec<u64> {
        let seconds = |(job, prepared): (&PlacedJobSpec, &Prepared)| {
            let computed = prepared.workers.iter().map(|plan| plan.computation().seconds()).fold(0.0, f64::max);
            let bytes: u64 = prepared.buckets.iter().map(|bucket| bucket.len * prepared.element_bytes).sum();
            let rate = if job.nodes.len() > 1 { self.cluster.bandwidth } else { self.cluster.intra_bandwidth };
            let rounds = job.options.iteration.as_ref().map_or(1, |iteration| iteration.sync_every);
            (computed.max(bytes as f64 * 8.0 / rate.0) / f64::from(rounds)).max(1e-9)
        };
        let all: Vec<f64> = self.jobs.iter().zip(&self.prepared).map(seconds).collect();
        let slowest = all.iter().copied().fold(0.0, f64::max);
        let messages = |(prepared, seconds): (&Prepared, &f64)| {
            let each: u64 = prepared.buckets.iter().map(|bucket| prepared.schedule.volume(bucket).messages).sum();
            (each as f64 * f64::from(iterations) * (slowest / seconds)) as u64
        };
        self.prepared.iter().zip(&all).map(messages).collect()
    }

    fn has_collectives_only(&self) -> bool {
        self.jobs.iter().zip(&self.prepared).all(|(job, prepared)| phases_of(job, prepared).0 == Boundary::Sums)
    }

    fn run(&self, which: &[usize], length: &Length, resolution: Resolution) -> Result<JobsOutcome, SimulationError> {
        match resolution {
            Resolution::Messages => Ok(self.run_messages(which, length, Some(&self.watch), ())?.0),
            Resolution::Collectives => self.run_collectives(which, length),
        }
    }

    fn run_with_timeline(&self, which: &[usize], length: &Length) -> Result<(JobsOutcome, Timeline), SimulationError> {
        let (outcome, recorder, wires, places) =
            self.run_messages(which, length, Some(&self.watch), Recorder::default())?;
        let shown: Vec<_> = which
            .iter()
            .map(|&it| (&self.jobs[it], &self.prepared[it]))
            .zip(&places)
            .map(|((job, prepared), &place)| JobOnTimeline {
                name: Some(&job.name),
                trace: &job.trace,
                prepared,
                place,
            })
            .collect();
        let timeline = Timeline::new(&recorder, &shown, &wires, self.network == Network::Fluid, None);
        Ok((outcome, timeline))
    }

    fn run_messages<O: Observer>(
        &self,
        which: &[usize],
        length: &Length,
        watch: Option<&Watch>,
        inner: O,
    ) -> Result<Ran<O>, SimulationError> {
        let jobs: Vec<_> = which.iter().map(|&it| &self.jobs[it]).collect();
        let prepared: Vec<_> = which.iter().map(|&it| &self.prepared[it]).collect();
        run(&self.cluster, self.nodes, &jobs, &prepared, self.network, length, watch, inner)
    }

    fn run_collectives(&self, which: &[usize], length: &Length) -> Result<JobsOutcome, SimulationError> {
        let known = self.collectives.get_or_init(|| self.collectives()).as_ref().map_err(Clone::clone)?;
        let running = which
            .iter()
            .enumerate()
            .map(|(number, &it)| self.running(it, &known.of_jobs[it], until(length, number), known.paces[it]));
        let fluid = self.network == Network::Fluid;
        let mut simulation =
            by_collective::Run::new(running.collect(), &self.cluster, &known.classes, fluid, &self.watch);
        let is_complete = simulation.run();
        let of = |(job, &it): (&Running<'_>, &usize)| {
            outcome_of(&self.jobs[it], &self.prepared[it], job.marks.clone(), job.marks_before)
        };
        let outcomes: Vec<JobOutcome> = simulation.jobs.iter().zip(which).map(of).collect();
        let measured_s = simulation.now.saturating_sub(simulation.measured_from) as f64 * 1e-12;
        let mut uses: HashMap<u32, (f64, Vec<u32>)> = HashMap::new();
        for (number, &it) in (0..).zip(which) {
            let mut seen = vec![false; known.classes.collectives];
            for collective in &known.of_jobs[it] {
                let ran = simulation.ran[collective.number as usize];
                if ran == 0.0 || std::mem::replace(&mut seen[collective.number as usize], true) {
                    continue;
                }
                for one in &collective.alone.uses {
                    let (busy, jobs) = uses.entry(one.link).or_default();
                    *busy += one.busy * ran * 1e-12;
                    if jobs.last() != Some(&number) {
                        jobs.push(number);
                    }
                }
            }
        }
        let mut used: Vec<_> = uses.into_iter().collect();
        used.sort_unstable_by_key(|&(link, _)| link);
        let shared = |(link, (busy, jobs)): (u32, (f64, Vec<u32>))| {
            let (name, kind) = known.links[&link].clone();
            SharedLink { name, kind, busy: busy / measured_s.max(f64::MIN_POSITIVE), jobs }
        };
        let mut links: Vec<SharedLink> = used.into_iter().map(shared).collect();
        links.sort_by(|a, b| b.busy.total_cmp(&a.busy));
        Ok(JobsOutcome { jobs: outcomes, links, measured_s, resolution: Resolution::Collectives, is_complete })
    }

    fn running<'a>(&'a self, it: usize, collectives: &'a [Arc<Collective>], until: Until, pace: f64) -> Running<'a> {
        let (job, prepared) = (&self.jobs[it], &self.prepared[it]);
        let (.., warm_up) = phases_of(job, prepared);
        let longest = (0..prepared.workers.len()).rev().max_by_key(|&it| prepared.workers[it].computation());
        let plan = &prepared.workers[longest.unwrap_or(0)];
        let ranks = workers_of(job, &self.cluster);
        Running::new(plan, ranks, collectives, (warm_up.max(1), until), (job.start.0, pace))
    }

    /// How many times longer the collectives of a job take than by themselves, so that an iteration alone takes what all its
    /// messages take; 1 where these are too many.
    fn pace(&self, it: usize, collectives: &[Arc<Collective>], classes: &Classes) -> Result<f64, SimulationError> {
        let prepared = &self.prepared[it];
        let messages: u64 = prepared.buckets.iter().map(|bucket| prepared.schedule.volume(bucket).messages).sum();
        if messages > FEW_MESSAGES || self.cluster.jitter.is_some() {
            return Ok(1.0);
        }
        let last = |marks: &[u64]| marks.last_chunk::<2>().map_or(0, |[from, to]| to - from) as f64;
        let wanted = last(&self.run_messages(&[it], &Length::Marks(vec![SETTLED]), None, ())?.0.jobs[0].marks_ps);
        let fluid = self.network == Network::Fluid;
        let unwatched = Watch::default();
        let with = |pace: f64| {
            let running = self.running(it, collectives, Until::Mark(SETTLED), pace);
            let mut simulation = by_collective::Run::new(vec![running], &self.cluster, classes, fluid, &unwatched);
            simulation.run();
            last(&simulation.jobs[0].marks) / wanted - 1.0
        };
        let (mut low, mut high) = (0.5, 2.0);
        if wanted == 0.0 || with(1.0).abs() < RIGHT {
            return Ok(1.0);
        }
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            let error = with(middle);
            if error.abs() < RIGHT {
                return Ok(middle);
            }
            if error < 0.0 { low = middle } else { high = middle }
        }
        Ok(f64::midpoint(low, high))
    }

    /// Times of the collectives of all jobs, each job alone.
    fn collectives(&self) -> Result<Collectives, SimulationError> {
        let jobs: Vec<&PlacedJobSpec> = self.jobs.iter().collect();
        let prepared: Vec<&Prepared> = self.prepared.iter().collect();
        let (places, total) = places(&prepared)?;
        let wires = || wires(&self.cluster, self.nodes, &jobs, &prepared, (&places, total), self.network);
        let all = wires()?;
        let parallel = parallel(&all);
        let memory = self.cluster.switch.memory.map(|bytes| bytes / aggregating(&places).max(1));
        let alone: Vec<Vec<Arc<Alone>>> = (jobs.iter().zip(&self.prepared).zip(&places))
            .map(|((job, prepared), &place)| {
                alone::of_buckets(&Site {
                    cluster: &self.cluster,
                    network: self.network,
                    options: &job.options,
                    prepared,
                    memory,
                    wires: &wires,
                    watch: &self.watch,
                    place,
                    parallel: &parallel,
                })
            })
            .collect::<Result<_, _>>()?;
        let described = |link: u32| {
            let one = &all.links[link as usize];
            (link, (all.name(one.name), all.part_names()[one.part as usize]))
        };
        let links = alone.iter().flatten().flat_map(|it| &it.uses).map(|it| described(it.link)).collect();
        let side_by_side: Vec<bool> = jobs.iter().map(|job| !is_planned(job)).collect();
        let (of_jobs, classes) = classified(&alone, &side_by_side);
        let paces =
            of_jobs.iter().enumerate().map(|(it, own)| self.pace(it, own, &classes)).collect::<Result<_, _>>()?;
        Ok(Collectives { of_jobs, classes, paces, links })
    }
}

/// For each link, the first of those that are parallel to it, and their number: neighbors of one name.
fn parallel(wires: &NetworkLinks) -> Vec<(u32, u32)> {
    let mut all = Vec::with_capacity(wires.links.len());
    for group in wires.links.chunk_by(|a, b| a.name == b.name) {
        let first = all.len() as u32;
        all.extend(group.iter().map(|_| (first, group.len() as u32)));
    }
    all
}

/// Simulates jobs that share a cluster of `nodes` nodes, message by message.
///
/// # Errors
/// Those of [`Mix::new`] and [`Mix::run`].
pub fn simulate_jobs(
    cluster: &Cluster,
    nodes: u32,
    jobs: &[PlacedJobSpec],
    network: Network,
    length: &Length,
) -> Result<JobsOutcome, SimulationError> {
    let all: Vec<usize> = (0..jobs.len()).collect();
    Mix::new(cluster, nodes, jobs.to_vec(), network, Arc::default())?.run(&all, length, Resolution::Messages)
}

impl JobOutcome {
    /// Picoseconds of a round while all jobs ran.
    fn round(&self) -> f64 {
        let (first, last) = self.measured;
        // None, if it was stopped.
        let [from, to] = [first, last].map(|mark| self.marks_ps.get(mark).copied().unwrap_or(0));
        (to - from) as f64 / (last - first).max(1) as f64
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
        between.is_complete &= slower.is_complete;
        between
    }
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
        return Err(SimulationError::new("cluster.stragglers: several jobs have several ranks of each number")
            .remedy("the cluster without \"stragglers\""));
    }
    let mut used: HashMap<u32, (u32, usize)> = HashMap::new();
    let mut all = Vec::with_capacity(jobs.len());
    for (number, job) in jobs.iter().enumerate() {
        let wrong = |refusal: SimulationError| refusal.within(&job.name);
        check_place(cluster, nodes, job).map_err(wrong)?;
        let entry = job.options.entry().map_err(wrong)?;
        if !entry.is_synchronous() {
            let reason = format!("strategy: {} is forecast for one job on a network", entry.name);
            return Err(wrong(SimulationError::new(reason).remedy("strategy = \"ps\"")));
        }
        let ranks = |local: usize| job.ranks_per_node.min(job.options.workers - local as u32 * job.ranks_per_node);
        for (local, &node) in job.nodes.iter().enumerate() {
            let (taken, by) = used.entry(node).or_insert((0, number));
            *taken += ranks(local) * job.gpus_per_rank;
            if *taken > cluster.gpus_per_node {
                let other = &jobs[*by].name;
                let message = format!(
                    "nodes: node {node} has {} GPUs, which {other} and this job use {taken} times",
                    cluster.gpus_per_node
                );
                return Err(wrong(SimulationError::new(message).remedy("other nodes, or fewer {workers}")));
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
        let prepared = prepared.map_err(wrong)?;
        check_switch_memory(&job.trace, cluster, &prepared).map_err(wrong)?;
        all.push(prepared);
    }
    Ok(all)
}

fn check_place(cluster: &Cluster, nodes: u32, job: &PlacedJobSpec) -> Result<(), SimulationError> {
    let wrong = |reason: String, remedy: String| Err(SimulationError::new(reason).remedy(remedy));
    let wanted = job.options.workers.div_ceil(job.ranks_per_node.max(1)) as usize;
    let gpus = job.ranks_per_node.saturating_mul(job.gpus_per_rank);
    if gpus == 0 || gpus > cluster.gpus_per_node {
        let reason = format!("gpus_per_node: {gpus} GPUs on a node, which has {}", cluster.gpus_per_node);
        return wrong(reason, format!("gpus_per_node = {}", cluster.gpus_per_node));
    }
    if job.nodes.len() != wanted {
        let reason = format!("nodes: {} are given for workers that fill {wanted}", job.nodes.len());
        return wrong(reason, format!("{wanted} nodes"));
    }
    if !job.nodes.is_sorted_by(|a, b| a < b) {
        return wrong("nodes: are not ascending, or one is given twice".into(), "ascending nodes, each once".into());
    }
    if let Some(node) = job.nodes.iter().chain(&job.server_nodes).find(|&&node| node >= nodes) {
        let reason = format!("nodes: there is no node {node} among the cluster's {nodes}");
        return wrong(reason, format!("nodes 0-{}", nodes - 1));
    }
    Ok(())
}

type Ran<O> = (JobsOutcome, O, NetworkLinks, Vec<JobPlace>);

/// The boundary of a job's iterations, whether all its workers begin one together, and the mark at which measuring may begin.
fn phases_of(job: &PlacedJobSpec, prepared: &Prepared) -> (Boundary, bool, usize) {
    if is_planned(job) { (Boundary::Sums, true, 0) } else { phases(prepared, &job.options) }
}

fn workers_of(job: &PlacedJobSpec, cluster: &Cluster) -> Vec<Worker<()>> {
    if is_planned(job) {
        followers(&job.trace, cluster, &job.options)
    } else {
        workers(&job.trace, cluster, &job.options)
    }
}

fn until(length: &Length, job: usize) -> Until {
    match length {
        Length::Iterations(count) => Until::Iterations(*count as usize),
        Length::Marks(marks) => Until::Mark(marks[job]),
    }
}

/// How many jobs use the memory of switches.
fn aggregating(places: &[JobPlace]) -> u64 {
    places.iter().filter(|place| place.roles.switches > 0).count() as u64
}

fn outcome_of(spec: &PlacedJobSpec, prepared: &Prepared, marks_ps: Vec<u64>, marks_before: usize) -> JobOutcome {
    let iteration = spec.options.iteration.as_ref();
    JobOutcome {
        name: spec.name.clone(),
        sync_every: iteration.map_or(1, |iteration| iteration.sync_every),
        samples: u64::from(spec.trace.batch) * u64::from(iteration.map_or(1, |iteration| iteration.accumulate)),
        measured: (marks_before, marks_ps.len().saturating_sub(1).max(marks_before)),
        marks_ps,
        notes: prepared.schedule.note().into_iter().collect(),
    }
}

/// The network of all jobs together.
fn wires(
    cluster: &Cluster,
    nodes: u32,
    jobs: &[&PlacedJobSpec],
    prepared: &[&Prepared],
    (places, total): (&[JobPlace], Roles),
    network: Network,
) -> Result<NetworkLinks, SimulationError> {
    let (placed, switches) = placed(cluster, nodes, jobs, prepared, places, total);
    let seed = jobs.first().map_or(0, |job| job.options.seed);
    NetworkLinks::of(cluster, total, switches, Some(placed), network == Network::Fluid, seed)
}

#[expect(clippy::too_many_arguments, reason = "the parts of a mix, of which some jobs run")]
fn run<O: Observer>(
    cluster: &Cluster,
    nodes: u32,
    jobs: &[&PlacedJobSpec],
    prepared: &[&Prepared],
    network: Network,
    length: &Length,
    watch: Option<&Watch>,
    inner: O,
) -> Result<Ran<O>, SimulationError> {
    let (places, total) = places(prepared)?;
    let wires = wires(cluster, nodes, jobs, prepared, (&places, total), network)?;
    let all_workers = places.iter().map(|place| place.roles.workers).sum();
    let mut running = Vec::new();
    for (number, (&job, &prepared)) in jobs.iter().zip(prepared).enumerate() {
        let (boundary, together, warm_up) = phases_of(job, prepared);
        // A switch's memory is divided among the jobs, as SHARP's aggregation manager does with quotas.
        let memory = cluster.switch.memory.map(|bytes| Memory::new(bytes / aggregating(&places).max(1), all_workers));
        let length = (warm_up.max(1), until(length, number));
        let mut one = JobRun::new(prepared, places[number], (boundary, together), length, memory);
        one.start = job.start.0;
        running.push(one);
    }
    let all_workers = jobs.iter().flat_map(|job| workers_of(job, cluster)).collect();
    let job_of = (0u16..).zip(prepared).flat_map(|(job, prepared)| prepared.buckets.iter().map(move |_| job)).collect();
    let users = Users { job_of, messages: HashMap::new(), measuring: false, inner };
    let fluid = network == Network::Fluid;
    let mut simulation = Simulation::<(), Users<O>>::new(cluster, wires, running, all_workers, fluid, users);
    simulation.watch = watch;
    simulation.run().map_err(SimulationError::new)?;
    let outcomes: Vec<JobOutcome> = (jobs.iter().zip(prepared).zip(&simulation.jobs))
        .map(|((spec, prepared), job)| {
            outcome_of(spec, prepared, job.marks.iter().map(|mark| mark.time).collect(), job.marks_before)
        })
        .collect();
    let end = outcomes.iter().filter_map(|job| job.marks_ps.last()).max().copied().unwrap_or(0);
    let measured_s = end.saturating_sub(simulation.measured_from) as f64 * 1e-12;
    let links = shared_links(&simulation.wires, &simulation.observer.messages, measured_s);
    let (resolution, is_complete) = (Resolution::Messages, simulation.is_over());
    let outcome = JobsOutcome { jobs: outcomes, links, measured_s, resolution, is_complete };
    Ok((outcome, simulation.observer.inner, simulation.wires, places))
}

/// The numbers of all jobs' roles and buckets, and the roles of all.
fn places(prepared: &[&Prepared]) -> Result<(Vec<JobPlace>, Roles), SimulationError> {
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
        return Err(SimulationError::new(format!(
            "jobs: {} workers, servers and switches are more than the {} possible",
            total.total(),
            u16::MAX
        ))
        .remedy("fewer {workers}"));
    }
    Ok((places, total))
}

fn placed(
    cluster: &Cluster,
    nodes: u32,
    jobs: &[&PlacedJobSpec],
    prepared: &[&Prepared],
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
    // Parallel uplinks of a rack are neighbors of one name.
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
