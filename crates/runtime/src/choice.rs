//! Which strategy an all-reduce takes: the one that was named, else for each size what measured fastest.
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use paceline_schedule::{Chunk, Inside as ScheduleInside, Knob, Knobs, Schedule, Topology, build, look_up};

use crate::communicator::{Communicator, Request};
use crate::digest::digest;
use crate::dtype::{Dtype, ReduceOp};
use crate::engine::{Submission, lock};
use crate::error::{Result, RunError};
use crate::settings::{Cut, Inside, NamedCut, Settings};
use crate::tag::Call;

/// A strategy and how it cuts, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// As users type it.
    pub strategy: String,
    /// None: the strategy's own.
    pub cut: Option<CutBytes>,
    inside_root: bool,
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
        Plan { strategy: strategy.into(), cut, inside_root: false }
    }

    /// The strategy of this name, cut as the job's settings say.
    ///
    /// # Errors
    /// An unknown name.
    pub fn named(name: &str, settings: &Settings) -> Result<Plan> {
        let entry = look_up(name).map_err(|e| RunError::Usage(e.to_string()))?;
        let cut = settings.chunk.filter(|_| entry.uses(Knob::Chunk)).map(|cut| match cut {
            Cut::Bytes(bytes) => CutBytes::Bytes(bytes),
            Cut::Named(NamedCut::Whole) => CutBytes::Whole,
            Cut::Named(NamedCut::PerWorker) => CutBytes::PerWorker,
        });
        Ok(Plan { inside_root: settings.inside == Inside::Root, ..Plan::new(entry.name, cut) })
    }

    fn build(&self, topology: &Topology, element: u64) -> Result<Box<dyn Schedule>> {
        let chunk = self.cut.map(|cut| match cut {
            CutBytes::Whole => Chunk::Whole,
            CutBytes::PerWorker => Chunk::PerWorker,
            CutBytes::Bytes(bytes) => Chunk::Elements((bytes / element).max(1)),
        });
        let inside = if self.inside_root { ScheduleInside::Root } else { ScheduleInside::Ring };
        let knobs = Knobs { chunk, inside, ..Knobs::default() };
        build(&self.strategy, topology, &knobs).map_err(|e| RunError::Usage(e.to_string()))
    }

    /// What ranks compare.
    fn digest(&self) -> u32 {
        let text = format!("{} {:?} {}", self.strategy, self.cut, self.inside_root);
        digest(text.bytes())
    }

    fn describe(&self) -> String {
        match self.cut {
            None => self.strategy.clone(),
            Some(CutBytes::Whole) => format!("{}, whole", self.strategy),
            Some(CutBytes::PerWorker) => format!("{}, a piece per worker", self.strategy),
            Some(CutBytes::Bytes(bytes)) => format!("{}, pieces of {} KiB", self.strategy, bytes >> 10),
        }
    }
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

    pub(crate) fn describe(&self) -> Vec<(u64, String)> {
        self.table.iter().map(|(most, planned)| (*most, planned.plan.describe())).collect()
    }
}

/// A size, the size up to which its winner is taken, and what is tried.
type Trial = (u64, u64, Vec<Plan>);

/// Sizes at which candidates are measured.
pub(crate) const TRIALS: usize = 4;

fn trials(ranks: u32) -> [Trial; TRIALS] {
    let doubling = |cut| Plan::new("recursive-doubling", Some(cut));
    let halving = |cut| Plan::new("halving-doubling", Some(cut));
    let ring = |cut| Plan::new("ring", Some(cut));
    let (whole, parts) = (CutBytes::Whole, |kib: u64| CutBytes::Bytes(kib * KIB));
    let tiny = vec![doubling(whole), halving(whole)];
    let small =
        vec![doubling(whole), doubling(parts(16)), halving(whole), halving(parts(32)), ring(CutBytes::PerWorker)];
    let mut large = vec![halving(parts(64)), halving(parts(128)), ring(parts(64))];
    let mut huge = vec![halving(parts(128)), halving(parts(256)), ring(parts(64)), ring(parts(128))];
    if ranks == 2 {
        // Whole vectors are exchanged: of two ranks that moves no more than halves do.
        large.push(doubling(parts(64)));
        huge.push(doubling(parts(64)));
    }
    [
        (4 * KIB, 12 * KIB, tiny),
        (64 * KIB, 192 * KIB, small),
        (1024 * KIB, 2048 * KIB, large),
        (4096 * KIB, u64::MAX, huge),
    ]
}

/// Runs of a candidate: at least, and as many more as fit into this time.
const LEAST_RUNS: u32 = 3;
const LONG_ENOUGH: Duration = Duration::from_millis(2);

pub(crate) fn tune(world: &Communicator) -> Result<()> {
    if lock(world.choice()).settled || world.size() == 1 {
        return Ok(());
    }
    let simple = Planned::new(Plan::new("recursive-doubling", Some(CutBytes::Whole)), world.topology())?;
    let use_only = |planned: &Arc<Planned>| lock(world.choice()).table = vec![(u64::MAX, planned.clone())];
    use_only(&simple);
    // The first rank decides whether such a group has been measured before: ranks that did so in different groups have
    // different results.
    let mut winners = [if world.rank() == 0 { -1.0 } else { -2.0 }; TRIALS];
    if world.rank() == 0
        && let Some((_, known)) = lock(&world.shared.tuned).iter().find(|(shape, _)| shape == world.topology())
    {
        winners = known.map(|index| index as f32);
    }
    all_reduce(world, &mut winners, ReduceOp::Max)?;
    let mut winners = winners.map(|index| if index < 0.0 { usize::MAX } else { index as usize });
    let mut memory = Vec::new();
    let mut table = Vec::new();
    for ((bytes, most, plans), winner) in trials(world.size()).into_iter().zip(&mut winners) {
        let plans: Vec<_> =
            plans.into_iter().map(|plan| Planned::new(plan, world.topology())).collect::<Result<_>>()?;
        if *winner >= plans.len() {
            memory.resize((bytes / 4) as usize, 0f32);
            let mut times = Vec::with_capacity(plans.len());
            for planned in &plans {
                use_only(planned);
                times.push(measure(world, &mut memory)?.as_secs_f32());
            }
            // What is slow for one rank is slow for all; everybody sees the same figures and so takes the same.
            use_only(&simple);
            all_reduce(world, &mut times, ReduceOp::Max)?;
            *winner = (0..plans.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0);
        }
        table.push((most, plans[*winner].clone()));
    }
    let mut tuned = lock(&world.shared.tuned);
    tuned.retain(|(shape, _)| shape != world.topology());
    tuned.push((world.topology().clone(), winners));
    *lock(world.choice()) = Choice { table, settled: true };
    Ok(())
}

/// The median time of several runs.
fn measure(world: &Communicator, memory: &mut [f32]) -> Result<Duration> {
    all_reduce(world, memory, ReduceOp::Sum)?;
    let once = Instant::now();
    all_reduce(world, memory, ReduceOp::Sum)?;
    // Every rank must run as often as the others; on a slow network once must do.
    let mut more = [(LONG_ENOUGH.as_secs_f32() / once.elapsed().as_secs_f32().max(1e-7)).min(200.0)];
    all_reduce(world, &mut more, ReduceOp::Max)?;
    let least = if more[0] > 0.2 { LEAST_RUNS } else { 1 };
    let mut times = Vec::new();
    for _ in 0..least.max(more[0] as u32) {
        let begin = Instant::now();
        all_reduce(world, memory, ReduceOp::Sum)?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

#[allow(unsafe_code, reason = "the memory is a slice that lives until the operation is over")]
fn all_reduce(world: &Communicator, memory: &mut [f32], op: ReduceOp) -> Result<()> {
    let inputs = [(memory.as_mut_ptr() as usize, memory.len() as u64)];
    let request = Request { call: Call::AllReduce, dtype: Dtype::Float32, op, inputs: &inputs, ..Request::default() };
    // SAFETY: exclusively borrowed until the wait below ends, which it does not before the operation is over.
    let handle = unsafe { world.submit(&request, None, Submission::default())? };
    world.wait(&handle, None).map(drop)
}
