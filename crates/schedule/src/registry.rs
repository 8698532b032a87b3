//! The registry of strategies, and building a schedule.
use crate::chunk::Chunk;
use crate::collective::Collective;
use crate::plan::{Entry, Knob, Knobs, PlanError, Topology};
use crate::schedule::Schedule;
use crate::strategies;

/// All strategies, in the order in which tables list them.
#[must_use]
pub fn registry() -> &'static [&'static Entry] {
    strategies::ALL
}

/// Those in which workers wait for each other, in the same order: each exchanges sums.
#[must_use]
pub fn synchronous() -> Vec<&'static Entry> {
    registry().iter().copied().filter(|entry| entry.is_synchronous()).collect()
}

/// The strategy with this name or alias.
#[must_use]
pub fn find(name: &str) -> Option<&'static Entry> {
    registry().iter().copied().find(|entry| entry.name == name || entry.aliases.contains(&name))
}

/// Like [`find`], with an error message.
///
/// # Errors
/// An unknown name; the message lists the known ones.
pub fn look_up(name: &str) -> Result<&'static Entry, PlanError> {
    find(name).ok_or_else(|| {
        let names: Vec<_> = registry().iter().map(|entry| entry.name).collect();
        PlanError::new(format!("unknown strategy '{name}'")).remedy(format!("one of {}", names.join(", ")))
    })
}

/// Most workers of one schedule: slots count messages in 16 bits.
pub const MAX_WORKERS: u32 = 1_000_000;

/// Builds the schedule of an all-reduce.
///
/// # Errors
/// An unknown name, no workers, or incompatible knobs; the message says what to do.
pub fn build(name: &str, topology: &Topology, knobs: &Knobs) -> Result<Box<dyn Schedule>, PlanError> {
    build_collective(Collective::AllReduce, name, topology, knobs)
}

/// Builds the schedule of a collective. In a reduce-scatter or all-gather, worker r owns [`shard`](crate::shard) r.
///
/// # Errors
/// As [`build`], and a strategy that cannot do without the rest of the all-reduce.
pub fn build_collective(
    collective: Collective,
    name: &str,
    topology: &Topology,
    knobs: &Knobs,
) -> Result<Box<dyn Schedule>, PlanError> {
    let entry = look_up(name)?;
    let wrong = |setting, reason: &str, remedy: &str| Err(PlanError::about(setting, reason).remedy(remedy));
    if topology.workers == 0 {
        return wrong("workers", "must be at least 1, not 0", "{workers=8}");
    }
    if topology.workers > MAX_WORKERS || topology.servers > MAX_WORKERS {
        return Err(PlanError::about(
            "workers",
            format!(
                "{} workers and {} servers are more than the {MAX_WORKERS} that can be scheduled",
                topology.workers, topology.servers
            ),
        )
        .remedy(format!("{{workers={MAX_WORKERS}}}")));
    }
    if topology.ranks_per_node == 0 {
        return wrong("gpus_per_node", "must be at least 1, not 0", "{gpus_per_node=1}");
    }
    if topology.servers == 0 && entry.uses(Knob::Servers) {
        return Err(PlanError::about("servers", format!("{name} needs at least one server")).remedy("{servers=1}"));
    }
    if topology.racks.as_ref().is_some_and(|racks| racks.contains(&0) || racks.iter().sum::<u32>() != topology.nodes())
    {
        return Err(PlanError::new("racks: a rack has at least one node, and every node is in one")
            .remedy("racks that sum to the nodes"));
    }
    let racks = topology.racks.as_ref().map_or(0, |racks| racks.len() as u32);
    if topology.pods.as_ref().is_some_and(|pods| pods.contains(&0) || pods.iter().sum::<u32>() != racks) {
        return Err(PlanError::new("pods: a pod has at least one rack, and every rack is in one")
            .remedy("pods that sum to the racks"));
    }
    if topology.switch_radix.is_some_and(|radix| radix < 2) {
        return Err(PlanError::new("switch.radix: an aggregation of fewer than 2 workers adds nothing")
            .remedy("\"radix\": 2 in the cluster's switch"));
    }
    if knobs.chunk == Some(Chunk::Elements(0)) {
        return wrong("chunk", "a piece has at least one element", "{chunk=1MB}");
    }
    match (collective, entry.halves) {
        (Collective::AllReduce, _) => (entry.build)(topology, knobs),
        (_, Some(halves)) => halves(collective, topology, knobs),
        (_, None) => Err(no_collective(entry, collective)),
    }
}

/// The refusal of a collective that a strategy does not have.
#[must_use]
pub fn no_collective(entry: &Entry, collective: Collective) -> PlanError {
    let able: Vec<_> = registry().iter().filter(|entry| entry.offers(collective)).map(|e| e.name).collect();
    PlanError::about("strategy", format!("{} has no {}", entry.name, collective.name())).remedy(format!(
        "{{strategy={}}} (able: {})",
        able[0],
        able.join(", ")
    ))
}
