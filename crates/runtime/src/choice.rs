//! Which strategy an all-reduce takes: the one that was named, else for each size what measured fastest.
use std::net::SocketAddrV4;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use paceline_schedule::{
    Chunk, Distribution as ScheduleDistribution, Inside as ScheduleInside, Knob, Knobs, Placement as SchedulePlacement,
    Schedule, Topology, build, look_up,
};

use crate::communicator::{Communicator, Request};
use crate::digest::digest;
use crate::dtype::{Dtype, ReduceOp};
use crate::engine::{Submission, lock};
use crate::error::{Result, RunError};
use crate::settings::{Cut, Distribution, Inside, NamedCut, Placement, Settings};
use crate::tag::Call;

/// A strategy and how it cuts, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// As users type it.
    pub strategy: String,
    /// None: the strategy's own.
    pub cut: Option<CutBytes>,
    inside_root: bool,
    even: bool,
    block: bool,
    /// Whether large pieces are lent rather than copied; ranks need not agree on it.
    pub lends: bool,
    /// How the strategy's multicasts go out, if it has any.
    multicast: Option<Copied>,
}

/// By whom a message to many is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    /// By the network.
    Network(SocketAddrV4),
    /// By the sender.
    Sender,
}

/// How a bucket is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CutBytes {
    /// Not at all.
    Whole,
    /// A piece per worker.
    PerWorker,
    /// Pieces of so many bytes.
    Bytes(u64),
}

impl Plan {
    fn new(strategy: &str, cut: Option<CutBytes>) -> Plan {
        Plan {
            strategy: strategy.into(),
            cut,
            inside_root: false,
            even: false,
            block: false,
            lends: true,
            multicast: None,
        }
    }

    /// The strategy of this name, cut as the job's settings say.
    ///
    /// # Errors
    /// An unknown name, or one of a library that is not here.
    pub fn named(name: &str, settings: &Settings) -> Result<Plan> {
        let entry = look_up(name).map_err(|e| RunError::Usage(e.to_string()))?;
        if entry.uses(Knob::Rates) && !settings.transport.tensors_by_mpi() {
            return Err(RunError::Usage(format!(
                "strategy: {} is the all-reduce of a library underneath, and shared memory and TCP have none; choose ring \
                 or tree, or transport mpi",
                entry.name
            )));
        }
        let cut = settings.chunk.filter(|_| entry.uses(Knob::Chunk)).map(|cut| match cut {
            Cut::Bytes(bytes) => CutBytes::Bytes(bytes),
            Cut::Named(NamedCut::Whole) => CutBytes::Whole,
            Cut::Named(NamedCut::PerWorker) => CutBytes::PerWorker,
        });
        Ok(Plan {
            inside_root: settings.inside == Inside::Root,
            even: settings.placement == Placement::Even && entry.uses(Knob::Placement),
            block: settings.distribution == Distribution::Block && entry.uses(Knob::Distribution),
            multicast: entry.uses(Knob::Multicast).then(|| settings.multicast.map_or(Copied::Sender, Copied::Network)),
            ..Plan::new(entry.name, cut)
        })
    }

    fn build(&self, topology: &Topology, element: u64) -> Result<Box<dyn Schedule>> {
        let chunk = self.cut.map(|cut| match cut {
            CutBytes::Whole => Chunk::Whole,
            CutBytes::PerWorker => Chunk::PerWorker,
            CutBytes::Bytes(bytes) => Chunk::Elements((bytes / element).max(1)),
        });
        let inside = if self.inside_root { ScheduleInside::Root } else { ScheduleInside::Ring };
        let placement = if self.even { SchedulePlacement::Even } else { SchedulePlacement::RoundRobin };
        let distribution = if self.block { ScheduleDistribution::Block } else { ScheduleDistribution::RoundRobin };
        let knobs = Knobs { chunk, inside, placement, distribution, ..Knobs::default() };
        build(&self.strategy, topology, &knobs).map_err(|e| RunError::Usage(e.to_string()))
    }

    /// What ranks compare.
    fn digest(&self) -> u32 {
        let text = format!("{} {:?} {} {} {}", self.strategy, self.cut, self.inside_root, self.even, self.block);
        digest(text.bytes())
    }

    /// Whether parameter servers add up.
    pub(crate) fn has_servers(&self) -> bool {
        look_up(&self.strategy).is_ok_and(|entry| entry.uses(Knob::Servers))
    }

    /// Whether the library underneath does it all.
    pub(crate) fn is_native(&self) -> bool {
        is_a_librarys(&self.strategy)
    }

    fn describe(&self) -> String {
        let cut = match self.cut {
            None => self.strategy.clone(),
            Some(CutBytes::Whole) => format!("{}, whole", self.strategy),
            Some(CutBytes::PerWorker) => format!("{}, a piece per worker", self.strategy),
            Some(CutBytes::Bytes(bytes)) => format!("{}, pieces of {} KiB", self.strategy, bytes >> 10),
        };
        let cut = match self.multicast {
            None => cut,
            Some(Copied::Network(group)) => format!("{cut}, multicast to {group}"),
            Some(Copied::Sender) => format!("{cut}, its multicasts as unicasts"),
        };
        if self.lends { cut } else { format!("{cut}, copied twice") }
    }
}

/// Whether a strategy is the all-reduce of a library underneath.
pub(crate) fn is_a_librarys(name: &str) -> bool {
    look_up(name).is_ok_and(|entry| entry.uses(Knob::Rates))
}

/// A plan and the schedules made of it, by the size of an element: 1, 2, 4, 8 bytes.
pub(crate) struct Planned {
    pub plan: Plan,
    /// What ranks compare.
    pub digest: u32,
    schedules: [OnceLock<Arc<dyn Schedule>>; 4],
}

impl Planned {
    /// Checks that the plan can be built.
    pub fn new(plan: Plan, topology: &Topology) -> Result<Arc<Planned>> {
        plan.build(topology, 4)?;
        Ok(Arc::new(Planned { digest: plan.digest(), plan, schedules: Default::default() }))
    }

    /// The schedule for elements of so many bytes.
    pub fn schedule(&self, topology: &Topology, element: usize) -> Result<Arc<dyn Schedule>> {
        let cell = &self.schedules[element.trailing_zeros() as usize];
        if let Some(schedule) = cell.get() {
            return Ok(schedule.clone());
        }
        let schedule: Arc<dyn Schedule> = Arc::from(self.plan.build(topology, element as u64)?);
        Ok(cell.get_or_init(|| schedule).clone())
    }
}

/// Up to so many bytes, in rising order, a plan; the last has no bound.
type Table = Vec<(u64, Arc<Planned>)>;

/// For each size a plan.
#[derive(Clone)]
pub struct Choice {
    table: Table,
    /// It will not change any more.
    settled: bool,
}

const KIB: u64 = 1 << 10;

impl Choice {
    /// Before anything was measured: recursive doubling while latency counts, then pieces that stay in the cache.
    pub(crate) fn new(settings: &Settings, topology: &Topology) -> Result<Choice> {
        if let Some(name) = &settings.strategy {
            let plan = Plan::named(name, settings)?;
            if let Some(chunk) = settings.chunk
                && plan.cut.is_none()
            {
                return Err(RunError::Usage(format!("chunk {chunk:?}: strategy {name} is not cut; leave it out")));
            }
            return Ok(Choice { table: vec![(u64::MAX, Planned::new(plan, topology)?)], settled: true });
        }
        if settings.chunk.is_some() {
            return Err(RunError::Usage(
                "chunk: without a strategy the pieces are chosen by size; name a strategy, or leave it out".into(),
            ));
        }
        let small = Plan::new("recursive-doubling", Some(CutBytes::Whole));
        let large = Plan::new("halving-doubling", Some(CutBytes::Bytes(128 * KIB)));
        let (small, large) = (Planned::new(small, topology)?, Planned::new(large, topology)?);
        Ok(Choice { table: vec![(32 * KIB, small), (u64::MAX, large)], settled: false })
    }

    pub(crate) fn of(&self, bytes: u64) -> Arc<Planned> {
        let index = self.table.partition_point(|(most, _)| *most < bytes);
        self.table[index.min(self.table.len() - 1)].1.clone()
    }

    /// Whether operations that have no plan lend.
    pub(crate) fn lends(&self) -> bool {
        self.table.last().is_none_or(|(_, planned)| planned.plan.lends)
    }

    pub(crate) fn describe(&self) -> Vec<(u64, String)> {
        self.table.iter().map(|(most, planned)| (*most, planned.plan.describe())).collect()
    }
}

/// A size, the size up to which its winner is taken, and what is tried.
type Trial = (u64, u64, Vec<Plan>);

/// Sizes at which candidates are measured.
pub(crate) const TRIALS: usize = 4;

fn trials(ranks: u32, lends: bool) -> [Trial; TRIALS] {
    let doubling = |cut| Plan::new("recursive-doubling", Some(cut));
    let halving = |cut| Plan::new("halving-doubling", Some(cut));
    let ring = |cut| Plan::new("ring", Some(cut));
    let copied = |plan| Plan { lends: false, ..plan };
    let (whole, parts) = (CutBytes::Whole, |kib: u64| CutBytes::Bytes(kib * KIB));
    let tiny = vec![doubling(whole), copied(halving(whole))];
    let small = vec![doubling(whole), copied(halving(whole)), halving(parts(32)), ring(CutBytes::PerWorker)];
    let mut large = vec![copied(halving(parts(64))), copied(halving(parts(128))), copied(ring(parts(64)))];
    let mut huge = vec![copied(halving(parts(128))), copied(ring(parts(128)))];
    if ranks == 2 {
        // Whole vectors are exchanged: of two ranks that moves no more than halves do.
        large.push(copied(doubling(parts(64))));
    }
    if lends {
        large.extend([halving(parts(512)), ring(parts(512))]);
        huge.extend([halving(parts(512)), halving(parts(1024)), ring(parts(512))]);
    } else {
        large.extend([copied(halving(parts(512))), copied(ring(parts(128)))]);
        huge.extend([copied(halving(parts(512))), copied(ring(parts(64)))]);
    }
    [
        (4 * KIB, 12 * KIB, tiny),
        (64 * KIB, 192 * KIB, small),
        (1024 * KIB, 2048 * KIB, large),
        (4096 * KIB, u64::MAX, huge),
    ]
}

pub(crate) fn tune(world: &Communicator) -> Result<()> {
    if lock(world.choice()).settled || world.size() == 1 {
        return Ok(());
    }
    let simple = Planned::new(Plan::new("recursive-doubling", Some(CutBytes::Whole)), world.topology())?;
    let use_only = |planned: &Arc<Planned>| lock(world.choice()).table = vec![(u64::MAX, planned.clone())];
    use_only(&simple);
    // Whether any two can lend; and the first rank decides whether such a group has been measured before: ranks that did
    // so in different groups have different results.
    let mut told = [if world.rank() == 0 { -1.0 } else { -2.0 }; TRIALS + 1];
    told[TRIALS] = f32::from(u8::from(world.ranks().iter().any(|&rank| world.shared.lends[rank as usize])));
    if world.rank() == 0
        && let Some((_, known)) = lock(&world.shared.tuned).iter().find(|(shape, _)| shape == world.topology())
    {
        told[..TRIALS].copy_from_slice(&known.map(|index| index as f32));
    }
    all_reduce(world, &mut told, ReduceOp::Max)?;
    let lends = told[TRIALS] > 0.0;
    let mut winners = [usize::MAX; TRIALS];
    for (winner, told) in winners.iter_mut().zip(told).filter(|(_, told)| *told >= 0.0) {
        *winner = told as usize;
    }
    let mut memory = Vec::new();
    let mut table = Vec::new();
    for ((bytes, most, plans), winner) in trials(world.size(), lends).into_iter().zip(&mut winners) {
        let plans: Vec<_> =
            plans.into_iter().map(|plan| Planned::new(plan, world.topology())).collect::<Result<_>>()?;
        if *winner >= plans.len() {
            memory.resize((bytes / 4) as usize, 0f32);
            let times = measure(world, &mut memory, &plans, use_only)?;
            // Lending gains more the larger the buffer is, and in huge pages: close to a tie it wins.
            let cost = |index: &usize| times[*index] * if plans[*index].plan.lends { LENDING_BONUS } else { 1.0 };
            *winner = (0..plans.len()).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0);
        }
        table.push((most, plans[*winner].clone()));
    }
    let mut tuned = lock(&world.shared.tuned);
    tuned.retain(|(shape, _)| shape != world.topology());
    tuned.push((world.topology().clone(), winners));
    *lock(world.choice()) = Choice { table, settled: true };
    Ok(())
}

/// A candidate is measured for so long, in so many turns: what disturbs the machine for a moment disturbs one of them.
const LONG_ENOUGH_S: f32 = 0.010;
const TURNS: usize = 5;
/// What takes longer than this has its first time: the network is slow, and so would be the start.
const SLOW_S: f32 = 0.02;
/// By what the time of a plan that lends is multiplied.
const LENDING_BONUS: f32 = 0.9;
/// What took so many times as long as the fastest at first is not tried again.
const HOPELESS: f32 = 3.0;

/// The time of each plan on the slowest rank: the median of the turns' medians. All ranks see the same figures.
fn measure(
    world: &Communicator,
    memory: &mut [f32],
    plans: &[Arc<Planned>],
    use_only: impl Fn(&Arc<Planned>),
) -> Result<Vec<f32>> {
    let once = |memory: &mut [f32]| {
        let begin = Instant::now();
        all_reduce(world, memory, ReduceOp::Sum).map(|()| begin.elapsed().as_secs_f32())
    };
    let agree = |times: &mut [f32]| {
        // The same for all, whatever the plan.
        use_only(&plans[0]);
        all_reduce(world, times, ReduceOp::Max)
    };
    let mut first = Vec::with_capacity(plans.len());
    for plan in plans {
        use_only(plan);
        let cold = once(memory)?;
        first.push(cold.min(once(memory)?));
    }
    agree(&mut first)?;
    let fastest = first.iter().copied().fold(f32::INFINITY, f32::min);
    let mut turns: Vec<Vec<f32>> = first.iter().map(|_| Vec::new()).collect();
    for _ in 0..TURNS {
        for (index, plan) in plans.iter().enumerate() {
            if first[index] > (HOPELESS * fastest).min(SLOW_S) {
                continue;
            }
            use_only(plan);
            let runs = (LONG_ENOUGH_S / TURNS as f32 / first[index].max(1e-7)).clamp(1.0, 100.0) as usize;
            let mut times = (0..runs).map(|_| once(memory)).collect::<Result<Vec<_>>>()?;
            turns[index].push(median(&mut times));
        }
    }
    let mut times: Vec<f32> = first
        .iter()
        .zip(&mut turns)
        .map(|(&first, turns)| if turns.is_empty() { first } else { median(turns) })
        .collect();
    agree(&mut times)?;
    Ok(times)
}

fn median(times: &mut [f32]) -> f32 {
    times.sort_unstable_by(f32::total_cmp);
    times[times.len() / 2]
}

#[allow(unsafe_code, reason = "the memory is a slice that lives until the operation is over")]
fn all_reduce(world: &Communicator, memory: &mut [f32], op: ReduceOp) -> Result<()> {
    let inputs = [(memory.as_mut_ptr() as usize, memory.len() as u64)];
    let request = Request { call: Call::AllReduce, dtype: Dtype::Float32, op, inputs: &inputs, ..Request::default() };
    // SAFETY: exclusively borrowed until the wait below ends, which it does not before the operation is over.
    let handle = unsafe { world.submit(&request, None, Submission::default())? };
    world.wait(&handle, None).map(drop)
}
