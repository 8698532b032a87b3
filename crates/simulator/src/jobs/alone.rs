//! Time of a job's collectives, and their use of the network, if nobody else uses it.
//!
//! A job has few kinds of collectives (an all-gather between these ranks, a reduce-scatter, …), each of some sizes, and
//! each is simulated once, message by message, where the job runs. Time and use of links are piecewise linear in the
//! size, so of many sizes only those are simulated between which they bend.
use std::collections::HashMap;
use std::sync::Arc;

use paceline_model::{Cluster, Trace};
use paceline_schedule::Bucket;

use super::watch::Watch;
use crate::network::switch::Memory;
use crate::network::topology::NetworkLinks;
use crate::observer::{Activity, Observer};
use crate::options::{Network, Options, SimulationError};
use crate::plan_run::PlanRun;
use crate::run_types::{JobPlace, Prepared};
use crate::simulation::{Boundary, JobRun, Simulation, Until};
use crate::worker::followers;

/// Between two sizes, others are interpolated if that is right to this share of the time for the one in the middle.
const STRAIGHT: f64 = 1e-4;

/// So often at most are sizes halved: routes that depend on the load bend everywhere, by little.
const HALVINGS: u32 = 3;

/// Equal parts of the time of a collective, in each of which its use of links is known.
pub(super) const PARTS: usize = 16;

/// The use of a link, or of parallel links that are as one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Use {
    /// The first of the parallel links.
    pub link: u32,
    /// Of how many.
    pub parallel: u32,
    /// Picoseconds during which it is busy; of parallel links, the mean.
    pub busy: f64,
    /// The share of each part of the time in which it is busy.
    pub shares: [f64; PARTS],
    /// Messages that are on it at once while it is busy.
    pub flows: f64,
}

/// A collective alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Alone {
    /// Picoseconds.
    pub time: f64,
    /// Bytes on their way at once.
    pub in_flight: f64,
    /// In the order of links.
    pub uses: Vec<Use>,
}

impl Alone {
    /// That of a size between two others: `share` of the way from this one to the other.
    fn towards(&self, other: &Alone, share: f64) -> Alone {
        let between = |a: f64, b: f64| a + (b - a) * share;
        let mixed = |a: &Use, b: &Use| Use {
            busy: between(a.busy, b.busy),
            shares: std::array::from_fn(|part| between(a.shares[part], b.shares[part])),
            flows: between(a.flows, b.flows),
            ..*a
        };
        let unused = |it: &Use| Use { busy: 0.0, shares: [0.0; PARTS], ..*it };
        let find = |uses: &[Use], link: u32| uses.binary_search_by_key(&link, |it| it.link).ok();
        let own = self.uses.iter().map(|it| match find(&other.uses, it.link) {
            Some(place) => mixed(it, &other.uses[place]),
            None => mixed(it, &unused(it)),
        });
        let missing = other.uses.iter().filter(|it| find(&self.uses, it.link).is_none());
        let mut uses: Vec<Use> = own.chain(missing.map(|it| mixed(&unused(it), it))).collect();
        uses.sort_unstable_by_key(|it| it.link);
        let in_flight = between(self.in_flight, other.in_flight);
        Alone { time: between(self.time, other.time), in_flight, uses }
    }
}

/// Where a job's collectives run.
pub(super) struct Site<'a> {
    pub cluster: &'a Cluster,
    pub network: Network,
    pub options: &'a Options,
    pub prepared: &'a Prepared,
    /// The memory of switches for this job.
    pub memory: Option<u64>,
    /// The links of all jobs; and the job's place among them.
    pub wires: &'a dyn Fn() -> Result<NetworkLinks, SimulationError>,
    pub watch: &'a Watch,
    pub place: JobPlace,
    /// For each link, the first of those that are parallel to it, and their number.
    pub parallel: &'a [(u32, u32)],
}

/// The collective of each bucket of a job alone.
///
/// # Errors
/// Those of a simulation.
pub(super) fn of_buckets(site: &Site<'_>) -> Result<Vec<Arc<Alone>>, SimulationError> {
    let mut known: HashMap<(u32, u64), Arc<Alone>> = HashMap::new();
    let buckets = &site.prepared.buckets;
    let mut by_kind: HashMap<u32, Vec<Bucket>> = HashMap::new();
    for (bucket, &kind) in buckets.iter().zip(&site.prepared.kinds) {
        by_kind.entry(kind).or_default().push(*bucket);
    }
    for (kind, mut sizes) in by_kind {
        sizes.sort_by_key(|bucket| (bucket.len, bucket.id));
        sizes.dedup_by_key(|bucket| bucket.len);
        let [first, last] = [sizes[0], sizes[sizes.len() - 1]];
        for end in [first, last] {
            known.entry((kind, end.len)).or_insert(Arc::new(simulated(site, end)?));
        }
        between(site, kind, &sizes, HALVINGS, &mut known)?;
    }
    Ok(buckets
        .iter()
        .zip(&site.prepared.kinds)
        .map(|(bucket, &kind)| Arc::clone(&known[&(kind, bucket.len)]))
        .collect())
}

/// Fills in the sizes between the first and the last, which are known.
fn between(
    site: &Site<'_>,
    kind: u32,
    sizes: &[Bucket],
    halvings: u32,
    known: &mut HashMap<(u32, u64), Arc<Alone>>,
) -> Result<(), SimulationError> {
    if sizes.len() < 3 {
        return Ok(());
    }
    let at = |bucket: &Bucket| (kind, bucket.len);
    let [low, high] = [sizes[0], sizes[sizes.len() - 1]];
    let half = u64::midpoint(low.len, high.len);
    // The size in the middle, which tells most.
    let middle = (1..sizes.len() - 1).min_by_key(|&it| sizes[it].len.abs_diff(half)).unwrap_or(1);
    let share = |bucket: &Bucket| (bucket.len - low.len) as f64 / (high.len - low.len) as f64;
    let [from, to] = [low, high].map(|end| Arc::clone(&known[&at(&end)]));
    let straight = halvings == 0 || {
        let found = simulated(site, sizes[middle])?;
        let error = from.towards(&to, share(&sizes[middle])).time / found.time - 1.0;
        known.insert(at(&sizes[middle]), Arc::new(found));
        error.abs() < STRAIGHT
    };
    if straight {
        for bucket in &sizes[1..sizes.len() - 1] {
            known.entry(at(bucket)).or_insert_with(|| Arc::new(from.towards(&to, share(bucket))));
        }
        return Ok(());
    }
    between(site, kind, &sizes[..=middle], halvings - 1, known)?;
    between(site, kind, &sizes[middle..], halvings - 1, known)
}

/// The collective of one bucket, from the moment at which it begins on all ranks until the last one has ended it.
fn simulated(site: &Site<'_>, bucket: Bucket) -> Result<Alone, SimulationError> {
    let prepared = Prepared {
        entry: site.prepared.entry,
        schedule: Arc::clone(&site.prepared.schedule),
        buckets: vec![bucket],
        kinds: vec![0],
        names: vec![String::new()],
        priority: vec![0],
        element_bytes: site.prepared.element_bytes,
        workers: vec![PlanRun::exchange_alone()],
        exchange_only: true,
    };
    if prepared.schedule.lanes(&bucket) == 0 {
        return Ok(Alone::default());
    }
    // Ranks differ in what they compute, and here they exchange.
    let calm = Cluster { jitter: None, stragglers: Vec::new(), ..site.cluster.clone() };
    let workers = site.place.first_worker + site.place.roles.workers;
    let options = Options { iteration: None, workers, ..site.options.clone() };
    let trace = Trace::all_reduce(4, 1).map_err(|e| SimulationError::new(e.to_string()))?;
    let wires = (site.wires)()?;
    let spans = Spans { of: vec![Vec::new(); wires.links.len()] };
    let place = JobPlace { first_bucket: 0, ..site.place };
    let memory = site.memory.map(|bytes| Memory::new(bytes, site.place.roles.workers));
    let job = JobRun::new(&prepared, place, (Boundary::Sums, true), (0, Until::Mark(1)), memory);
    let fluid = site.network == Network::Fluid;
    let mut simulation =
        Simulation::<(), Spans>::new(&calm, wires, vec![job], followers(&trace, &calm, &options), fluid, spans);
    // Its one iteration is none of the jobs'.
    (simulation.watch, simulation.rounds) = (Some(site.watch), usize::MAX);
    simulation.run().map_err(SimulationError::new)?;
    let time = simulation.jobs[0].marks.last().map_or(0, |mark| mark.time);
    let Simulation { wires, observer, .. } = simulation;
    let mut uses: Vec<Use> = Vec::new();
    for ((link, spans), &(first, parallel)) in wires.links.iter().zip(observer.of).zip(site.parallel) {
        if link.busy == 0 {
            continue;
        }
        let busy = link.busy as f64 / f64::from(parallel);
        let shares = in_parts(&spans, time).map(|share| share * busy / (time as f64 / PARTS as f64));
        let flows = at_once(spans);
        match uses.last_mut().filter(|it| it.link == first) {
            Some(it) => {
                it.busy += busy;
                it.shares.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
                it.flows = it.flows.max(flows);
            }
            None => uses.push(Use { link: first, parallel, busy, shares, flows }),
        }
    }
    for it in &mut uses {
        it.shares = it.shares.map(|share| share.min(1.0));
    }
    let volume = prepared.schedule.volume(&bucket);
    let elements = volume.worker_elements + volume.server_elements + volume.switch_elements;
    // Of messages that depend on each other, one at a time is on its way.
    let in_flight = (elements * prepared.element_bytes) as f64 / volume.hops.max(1) as f64;
    Ok(Alone { time: time as f64, in_flight, uses })
}

/// How these spans are spread over the parts of a time.
fn in_parts(spans: &[(u64, u64)], time: u64) -> [f64; PARTS] {
    let mut sums = [0.0; PARTS];
    let part = time as f64 / PARTS as f64;
    for &(start, end) in spans {
        let (start, end) = (start as f64, end as f64);
        let first = ((start / part) as usize).min(PARTS - 1);
        for (number, sum) in sums.iter_mut().enumerate().skip(first) {
            let begin = number as f64 * part;
            if begin >= end {
                break;
            }
            *sum += (end.min(begin + part) - start.max(begin)).max(0.0);
        }
    }
    let all: f64 = sums.iter().sum();
    sums.map(|sum| if all > 0.0 { sum / all } else { 1.0 / PARTS as f64 })
}

/// How many of these spans run at once, on average while one does.
fn at_once(mut spans: Vec<(u64, u64)>) -> f64 {
    spans.sort_unstable();
    let (mut sum, mut covered, mut until) = (0, 0, 0);
    for (start, end) in spans {
        sum += end - start;
        covered += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    if covered == 0 { 1.0 } else { sum as f64 / covered as f64 }
}

/// When messages were on each link.
struct Spans {
    of: Vec<Vec<(u64, u64)>>,
}

impl Observer for Spans {
    const ACTIVE: bool = false;
    fn link(&mut self, link: u32, start: u64, end: u64, _: u32, _: u32, _: u32) {
        self.of[link as usize].push((start, end));
    }
    fn worker(&mut self, _: u32, _: Activity, _: u64, _: u64) {}
}
