//! Selects the algorithm of an all-reduce: the strategy that the user named, otherwise one by message size. A
//! reduce-scatter or all-gather of equal shards takes the halves of a strategy that the user named.
use paceline_engine::settings::Settings;
use paceline_os::net::SocketAddrV4;
use paceline_os::sync::{Arc, OnceLock};
use paceline_schedule::{
    Chunk, ChunkBytes, Collective, Distribution, Inside, Knob, Knobs, Placement, Refusal, Schedule, Topology,
    build_collective, look_up, no_collective,
};
use paceline_transport::error::{Result, RunError};

use crate::digest::digest;

/// A strategy, and its piece size in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// Its name, as users type it.
    pub strategy: String,
    /// `None`: the strategy's default.
    pub cut: Option<ChunkBytes>,
    pub(crate) inside: Inside,
    pub(crate) placement: Placement,
    pub(crate) distribution: Distribution,
    pub(crate) barrier: bool,
    /// Whether large pieces are sent zero-copy. May differ between ranks.
    pub zero_copy: bool,
    /// How the strategy's multicasts are sent, if it has any.
    pub(crate) multicast: Option<Copied>,
}

/// Where a multicast is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// In the network.
    Network(SocketAddrV4),
    /// By the sender.
    Sender,
}

impl Algorithm {
    pub(crate) fn new(strategy: &str, cut: Option<ChunkBytes>) -> Algorithm {
        Algorithm {
            strategy: strategy.into(),
            cut,
            inside: Inside::default(),
            placement: Placement::default(),
            distribution: Distribution::default(),
            barrier: true,
            zero_copy: true,
            multicast: None,
        }
    }

    /// The strategy with this name, with the piece size of the job's settings.
    ///
    /// # Errors
    /// An unknown name, or the strategy of a library that is not available.
    pub fn named(name: &str, settings: &Settings) -> Result<Algorithm> {
        let entry = look_up(name).map_err(refused)?;
        if entry.uses(Knob::Rates) && !settings.has_library() {
            let why = format!("{} needs a communication library (transport mpi, native oneccl, or NCCL)", entry.name);
            return Err(RunError::Setting("strategy", why).with_remedy("{strategy=ring} or {transport=mpi}"));
        }
        if !entry.is_synchronous() {
            return Err(refused(no_collective(entry, Collective::AllReduce)));
        }
        let cut = settings.chunk.filter(|_| entry.uses(Knob::Chunk));
        let default = Algorithm::new(entry.name, cut);
        let placed = entry.uses(Knob::Placement).then(|| settings.placement.clone());
        Ok(Algorithm {
            inside: settings.inside,
            barrier: settings.barrier,
            placement: placed.unwrap_or_default(),
            distribution: if entry.uses(Knob::Distribution) { settings.distribution } else { default.distribution },
            multicast: entry.uses(Knob::Multicast).then(|| settings.multicast.map_or(Copied::Sender, Copied::Network)),
            ..default
        })
    }

    fn build(&self, collective: Collective, topology: &Topology, element: u64) -> Result<Box<dyn Schedule>> {
        // A piece has at least one element.
        let chunk = self.cut.map(|cut| cut.in_elements(element).unwrap_or(Chunk::Elements(1)));
        let (inside, placement, distribution) = (self.inside, self.placement.clone(), self.distribution);
        let knobs = Knobs { chunk, inside, placement, distribution, barrier: self.barrier, ..Knobs::default() };
        build_collective(collective, &self.strategy, topology, &knobs).map_err(refused)
    }

    /// The digest that ranks compare.
    fn digest(&self) -> u32 {
        let Algorithm { strategy, cut, inside, placement, distribution, barrier, .. } = self;
        let text = format!("{strategy} {cut:?} {inside:?} {placement:?} {distribution:?} {barrier}");
        digest(text.bytes())
    }

    /// Whether parameter servers do the summation.
    pub(crate) fn has_servers(&self) -> bool {
        look_up(&self.strategy).is_ok_and(|entry| entry.uses(Knob::Servers))
    }

    /// Whether processes that do not train take part.
    pub(crate) fn has_helpers(&self, settings: &Settings) -> bool {
        let uses = |knob| look_up(&self.strategy).is_ok_and(|entry| entry.uses(knob));
        (settings.dedicated && uses(Knob::Servers)) || (settings.switches > 0 && uses(Knob::Aggregation))
    }

    /// Whether this process can run a collective by it: not a half of an algorithm of which an offload library runs the
    /// whole.
    pub(crate) fn offers(&self, collective: Collective) -> bool {
        let half = collective != Collective::AllReduce;
        look_up(&self.strategy).is_ok_and(|entry| entry.offers(collective)) && !(half && self.is_offloaded())
    }

    /// Whether an offload library runs the whole operation.
    pub(crate) fn is_offloaded(&self) -> bool {
        is_offloaded(&self.strategy)
    }

    fn describe(&self) -> String {
        let cut = match self.cut {
            None => self.strategy.clone(),
            Some(ChunkBytes::Whole) => format!("{}, whole", self.strategy),
            Some(ChunkBytes::PerWorker) => format!("{}, a piece per worker", self.strategy),
            Some(ChunkBytes::Size(bytes)) => format!("{}, pieces of {} KiB", self.strategy, bytes >> 10),
        };
        let cut = match self.multicast {
            None => cut,
            Some(Copied::Network(group)) => format!("{cut}, multicast to {group}"),
            Some(Copied::Sender) => format!("{cut}, its multicasts as unicasts"),
        };
        if self.zero_copy { cut } else { format!("{cut}, copied twice") }
    }
}

/// Whether a strategy is the all-reduce of an offload library.
pub(crate) fn is_offloaded(name: &str) -> bool {
    look_up(name).is_ok_and(|entry| entry.uses(Knob::Rates))
}

/// An algorithm and the schedules built from it, by collective and element size: 1, 2, 4 and 8 bytes.
pub(crate) struct BuiltAlgorithm {
    pub algorithm: Algorithm,
    /// The digest that ranks compare.
    pub digest: u32,
    schedules: [[OnceLock<Arc<dyn Schedule>>; 4]; Collective::ALL.len()],
}

impl BuiltAlgorithm {
    /// Checks that the algorithm can be built.
    pub fn new(algorithm: Algorithm, topology: &Topology) -> Result<Arc<BuiltAlgorithm>> {
        algorithm.build(Collective::AllReduce, topology, 4)?;
        Ok(Arc::new(BuiltAlgorithm { digest: algorithm.digest(), algorithm, schedules: Default::default() }))
    }

    /// The schedule of a collective for elements of this many bytes.
    pub fn schedule(&self, collective: Collective, topology: &Topology, element: usize) -> Result<Arc<dyn Schedule>> {
        let cell = &self.schedules[collective as usize][element.trailing_zeros() as usize];
        if let Some(schedule) = cell.get() {
            return Ok(schedule.clone());
        }
        let schedule: Arc<dyn Schedule> = Arc::from(self.algorithm.build(collective, topology, element as u64)?);
        Ok(cell.get_or_init(|| schedule).clone())
    }
}

/// An algorithm per size: each applies up to a number of bytes, in ascending order; the last has no bound.
pub(crate) type Table = Vec<(u64, Arc<BuiltAlgorithm>)>;

/// Which algorithm an all-reduce of each size uses.
#[derive(Clone)]
pub struct AlgorithmSelection {
    pub(crate) table: Table,
    /// It will not change any more.
    pub(crate) settled: bool,
}

pub(crate) const KIB: u64 = 1 << 10;

/// The schedules' refusals are the caller's mistakes.
fn refused(error: Refusal) -> RunError {
    let told = match error.setting {
        Some(setting) => RunError::Setting(setting, error.reason),
        None => RunError::Usage(error.reason),
    };
    match error.remedy {
        Some(remedy) => told.with_remedy(remedy),
        None => told,
    }
}

impl AlgorithmSelection {
    /// Before tuning: recursive doubling while latency dominates, then pieces that fit in the cache.
    pub(crate) fn new(settings: &Settings, topology: &Topology) -> Result<AlgorithmSelection> {
        if let Some(name) = &settings.strategy {
            let algorithm = Algorithm::named(name, settings)?;
            if let Some(chunk) = settings.chunk
                && algorithm.cut.is_none()
            {
                let why = format!("{chunk:?}: strategy {name} does not cut its buckets");
                return Err(RunError::Setting("chunk", why).with_remedy("drop {chunk}, or {strategy=ring}"));
            }
            return Ok(AlgorithmSelection {
                table: vec![(u64::MAX, BuiltAlgorithm::new(algorithm, topology)?)],
                settled: true,
            });
        }
        if settings.chunk.is_some() {
            return Err(
                RunError::Setting("chunk", "needs a strategy".into()).with_remedy("{strategy=ring}, or drop {chunk}")
            );
        }
        let small = Algorithm::new("recursive-doubling", Some(ChunkBytes::Whole));
        let large = Algorithm::new("halving-doubling", Some(ChunkBytes::Size(128 * KIB)));
        let (small, large) = (BuiltAlgorithm::new(small, topology)?, BuiltAlgorithm::new(large, topology)?);
        Ok(AlgorithmSelection { table: vec![(32 * KIB, small), (u64::MAX, large)], settled: false })
    }

    pub(crate) fn of(&self, bytes: u64) -> Arc<BuiltAlgorithm> {
        let index = self.table.partition_point(|(most, _)| *most < bytes);
        self.table[index.min(self.table.len() - 1)].1.clone()
    }

    /// The strategy that the user named for the job, if it can run this collective.
    pub(crate) fn named_for(&self, collective: Collective, settings: &Settings) -> Option<Arc<BuiltAlgorithm>> {
        let (_, built) = self.table.last().filter(|_| settings.strategy.is_some())?;
        built.algorithm.offers(collective).then(|| built.clone())
    }

    /// Whether operations without an algorithm send large pieces zero-copy.
    pub(crate) fn zero_copy(&self) -> bool {
        self.table.last().is_none_or(|(_, built)| built.algorithm.zero_copy)
    }

    pub(crate) fn describe(&self) -> Vec<(u64, String)> {
        self.table.iter().map(|(most, built)| (*most, built.algorithm.describe())).collect()
    }
}
