//! Which strategy an all-reduce takes: the one that was named, else for each size what measured fastest.
use std::time::{Duration, Instant};

use paceline_schedule::{Chunk, Inside as ScheduleInside, Knob, Knobs, Schedule, Topology, build, look_up};

use crate::communicator::{Communicator, Request};
use crate::dtype::{Dtype, ReduceOp};
use crate::engine::{Submission, lock};
use crate::error::{Result, RunError};
use crate::settings::{Cut, Inside, NamedCut, Settings};
use crate::tag::Call;

/// A strategy and how it cuts, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// As users type it.
    pub strategy: String,
    /// None: the strategy's own.
    pub cut: Option<CutBytes>,
    inside_root: bool,
    /// Bytes of an element, once known: what makes elements of bytes.
    element: u64,
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
        Plan { strategy: strategy.into(), cut, inside_root: false, element: 0 }
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

    pub(crate) fn for_element(&self, element: u64) -> Plan {
        // Only a size in bytes means different elements for different types.
        let element = if matches!(self.cut, Some(CutBytes::Bytes(_))) { element } else { 0 };
        Plan { element, ..self.clone() }
    }

    pub(crate) fn build(&self, topology: &Topology, element: u64) -> Result<Box<dyn Schedule>> {
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
    pub(crate) fn digest(&self) -> u32 {
        let text = format!("{} {:?} {}", self.strategy, self.cut, self.inside_root);
        text.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
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

/// For each size a plan.
pub struct Choice {
    /// Up to so many bytes, in rising order; the last has no bound.
    table: Vec<(u64, Plan)>,
    named: bool,
}

const KIB: u64 = 1 << 10;

impl Choice {
    /// Before anything was measured: recursive doubling while latency counts, then pieces that stay in the cache.
    pub(crate) fn new(settings: &Settings, topology: &Topology) -> Result<Choice> {
        if let Some(name) = &settings.strategy {
            let plan = Plan::named(name, settings)?;
            plan.build(topology, 4)?;
            if let Some(chunk) = settings.chunk
                && plan.cut.is_none()
            {
                return Err(RunError::Usage(format!("chunk {chunk:?}: strategy {name} is not cut; leave it out")));
            }
            return Ok(Choice { table: vec![(u64::MAX, plan)], named: true });
        }
        if settings.chunk.is_some() {
            return Err(RunError::Usage(
                "chunk: without a strategy the pieces are chosen by size; name a strategy, or leave it out".into(),
            ));
        }
        let small = Plan::new("recursive-doubling", Some(CutBytes::Whole));
        let large = Plan::new("halving-doubling", Some(CutBytes::Bytes(128 * KIB)));
        Ok(Choice { table: vec![(32 * KIB, small), (u64::MAX, large)], named: false })
    }

    pub(crate) fn of(&self, bytes: u64) -> Plan {
        let index = self.table.partition_point(|(most, _)| *most < bytes);
        self.table[index.min(self.table.len() - 1)].1.clone()
    }

    pub(crate) fn describe(&self) -> Vec<(u64, String)> {
        self.table.iter().map(|(most, plan)| (*most, plan.describe())).collect()
    }
}

/// What is tried at each size, and the size up to which its winner is taken.
fn candidates(size: u32) -> [(u64, u64, Vec<Plan>); 4] {
    let doubling = |cut| Plan::new("recursive-doubling", Some(cut));
    let halving = |cut| Plan::new("halving-doubling", Some(cut));
    let ring = |cut| Plan::new("ring", Some(cut));
    let (whole, parts) = (CutBytes::Whole, CutBytes::Bytes);
    let _ = size;
    [
        (4 * KIB, 12 * KIB, vec![doubling(whole), halving(whole)]),
        (64 * KIB, 192 * KIB, vec![doubling(whole), doubling(parts(16 * KIB)), halving(whole), halving(parts(32 * KIB)), ring(CutBytes::PerWorker)]),
        (1024 * KIB, 4096 * KIB, vec![doubling(parts(64 * KIB)), halving(parts(128 * KIB)), halving(parts(64 * KIB)), ring(parts(64 * KIB))]),
        (8192 * KIB, u64::MAX, vec![doubling(parts(64 * KIB)), halving(parts(128 * KIB)), halving(parts(256 * KIB)), ring(parts(64 * KIB))]),
    ]
}

/// Least time spent on a candidate, and least runs; the best run counts, because noise only adds.
const LEAST_RUNS: u32 = 3;
const LONG_ENOUGH: Duration = Duration::from_millis(2);

pub(crate) fn tune(world: &Communicator) -> Result<()> {
    if lock(world.choice()).named || world.size() == 1 {
        return Ok(());
    }
    let mut table = Vec::new();
    let mut memory = vec![0f32; (8192 * KIB / 4) as usize];
    for (bytes, most, plans) in candidates(world.size()) {
        let mut times: Vec<f32> = Vec::with_capacity(plans.len());
        for plan in &plans {
            lock(world.choice()).table = vec![(u64::MAX, plan.clone())];
            times.push(measure(world, &mut memory[..(bytes / 4) as usize])?.as_secs_f32());
        }
        // What is slow for one rank is slow for all; everybody sees the same figures and so takes the same.
        lock(world.choice()).table = vec![(u64::MAX, Plan::new("recursive-doubling", Some(CutBytes::Whole)))];
        all_reduce(world, &mut times, ReduceOp::Max)?;
        let best = (0..plans.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0);
        table.push((most, plans[best].clone()));
    }
    lock(world.choice()).table = table;
    Ok(())
}

fn measure(world: &Communicator, memory: &mut [f32]) -> Result<Duration> {
    let (mut best, start) = (Duration::MAX, Instant::now());
    // Every rank must run as often as the others.
    let mut runs = LEAST_RUNS;
    all_reduce(world, memory, ReduceOp::Sum)?;
    let once = Instant::now();
    all_reduce(world, memory, ReduceOp::Sum)?;
    let mut more = [(LONG_ENOUGH.as_secs_f32() / once.elapsed().as_secs_f32().max(1e-7)).min(200.0)];
    let small = &mut more;
    all_reduce(world, small, ReduceOp::Max)?;
    runs = runs.max(more[0] as u32);
    for _ in 0..runs {
        let begin = Instant::now();
        all_reduce(world, memory, ReduceOp::Sum)?;
        best = best.min(begin.elapsed());
    }
    let _ = start;
    Ok(best)
}

#[allow(unsafe_code, reason = "the memory is a slice that lives until the operation is over")]
fn all_reduce(world: &Communicator, memory: &mut [f32], op: ReduceOp) -> Result<()> {
    let inputs = [(memory.as_mut_ptr() as usize, memory.len() as u64)];
    let request = Request { call: Call::AllReduce, dtype: Dtype::Float32, op, inputs: &inputs, ..Request::default() };
    // SAFETY: exclusively borrowed until the wait below ends, which it does not before the operation is over.
    let handle = unsafe { world.submit(&request, None, Submission::default())? };
    world.wait(&handle, None).map(drop)
}
