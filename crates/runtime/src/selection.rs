//! Which strategy an all-reduce takes: the one that was named, else one for each size.
use std::net::SocketAddrV4;
use std::sync::{Arc, OnceLock};

use paceline_schedule::{
    Chunk, Distribution as ScheduleDistribution, Inside as ScheduleInside, Knob, Knobs, Placement as SchedulePlacement,
    Schedule, Topology, build, look_up,
};

use crate::digest::digest;
use paceline_engine::settings::{Cut, Distribution, Inside, NamedCut, Placement, Settings};
use paceline_transport::error::{Result, RunError};

/// A strategy and how it cuts, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// As users type it.
    pub strategy: String,
    /// None: the strategy's own.
    pub cut: Option<CutBytes>,
    pub(crate) inside_root: bool,
    pub(crate) even: bool,
    pub(crate) block: bool,
    /// Whether large pieces are lent rather than copied; ranks need not agree on it.
    pub lends: bool,
    /// How the strategy's multicasts go out, if it has any.
    pub(crate) multicast: Option<Copied>,
}

/// By whom a message to many is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
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
    pub(crate) fn new(strategy: &str, cut: Option<CutBytes>) -> Plan {
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
pub(crate) type Table = Vec<(u64, Arc<Planned>)>;

/// For each size a plan.
#[derive(Clone)]
pub struct Choice {
    pub(crate) table: Table,
    /// It will not change any more.
    pub(crate) settled: bool,
}

pub(crate) const KIB: u64 = 1 << 10;

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
