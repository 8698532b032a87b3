//! The programs of the collectives of a plan. A collective runs at once in all groups of ranks into which its plan
//! divides the world; each group executes the strategy's program for as many workers as the group has.
use std::collections::HashMap;
use std::sync::Arc;

use paceline_iteration::{Collective, Group, Plan, Work};
use paceline_model::Cluster;
use paceline_model::cluster::Fabric;
use paceline_schedule::{
    Bucket, Entry, Knob, Knobs, Least, Link, Links, Note, Peers, Roles, Schedule, Step, SwitchPlace, Topology, Volume,
    build_collective, look_up,
};

use crate::options::{Options, SimulationError};
use crate::prepare::{nodes_per_switch, rates};

/// Sizes are counted in bytes, because collectives of one plan differ in their element types.
pub(super) const ELEMENT_BYTES: u64 = 1;

/// A collective between groups of a size.
pub(super) struct Part {
    pub collective: Collective,
    pub group: Group,
    /// Of one group.
    pub schedule: Box<dyn Schedule>,
    /// Whether the ranks of a group are on several nodes.
    pub leaves_node: bool,
    /// Switches add up for each group, with roles of their own.
    pub has_switches: bool,
}

impl Part {
    /// Groups of a world.
    fn groups(&self, world: u32) -> u32 {
        world / self.group.size
    }

    /// The first rank of a group, by its number.
    fn first_of(&self, group: u32) -> u32 {
        let Group { size, stride } = self.group;
        group / stride * (size * stride) + group % stride
    }

    /// The number of a rank's group.
    fn number(&self, rank: u32) -> u32 {
        let Group { size, stride } = self.group;
        rank / (size * stride) * stride + rank % stride
    }
}

/// The program of every collective of a plan.
pub(super) struct Programs {
    pub entry: &'static Entry,
    world: u32,
    parts: Vec<Arc<Part>>,
    /// The part and the bucket of each exchange, in the order of steps.
    pub exchanges: Vec<(usize, Bucket)>,
}

/// The exchange of each step: they are numbered in the order of steps, which ranks have in common.
pub(super) fn exchange_of(plan: &Plan) -> Vec<Option<u32>> {
    let mut numbers = 0u32..;
    plan.steps
        .iter()
        .map(|step| if matches!(step.work, Work::Exchange { .. }) { numbers.next() } else { None })
        .collect()
}

impl Programs {
    /// Notes on collectives of all ranks.
    pub fn notes(&self) -> Vec<Note> {
        let of_all = self.parts.iter().filter(|part| part.group.size == self.world);
        let mut notes: Vec<Note> = of_all.filter_map(|part| part.schedule.note()).collect();
        notes.dedup();
        notes
    }

    pub fn new(plan: &Plan, cluster: &Cluster, options: &Options) -> Result<Programs, SimulationError> {
        let entry = options.entry()?;
        let mut programs = Programs { entry, world: plan.world, parts: Vec::new(), exchanges: Vec::new() };
        let mut known: HashMap<(Collective, Group), usize> = HashMap::new();
        for step in &plan.steps {
            let Work::Exchange { collective, group, elements, dtype } = step.work else {
                continue;
            };
            let part = match known.get(&(collective, group)) {
                Some(&part) => part,
                None => {
                    programs.parts.push(Arc::new(part(entry, collective, (group, plan.world), cluster, options)?));
                    known.insert((collective, group), programs.parts.len() - 1);
                    programs.parts.len() - 1
                }
            };
            let id = programs.exchanges.len() as u32;
            programs.exchanges.push((part, Bucket { id, len: elements * dtype.size(), pull_only: false }));
        }
        Ok(programs)
    }

    pub fn part(&self, exchange: u32) -> &Arc<Part> {
        &self.parts[self.exchanges[exchange as usize].0]
    }

    /// Messages of all ranks.
    pub fn messages(&self) -> u64 {
        self.volumes().map(|volume| volume.messages).sum()
    }

    /// Bytes that all ranks send.
    pub fn bytes(&self) -> u64 {
        self.volumes().map(|volume| volume.worker_elements * ELEMENT_BYTES).sum()
    }

    fn volumes(&self) -> impl Iterator<Item = Volume> {
        self.exchanges.iter().map(|(part, bucket)| in_all_groups(&self.parts[*part], self.world, bucket))
    }

    /// All of them as one schedule, whose buckets are the exchanges.
    pub fn together(self) -> Grouped {
        let of_bucket = self.exchanges.iter().map(|&(part, _)| part).collect();
        Grouped { world: self.world, parts: self.parts, of_bucket }
    }
}

fn in_all_groups(part: &Part, world: u32, bucket: &Bucket) -> Volume {
    let groups = u64::from(world / part.group.size);
    let volume = part.schedule.volume(bucket);
    Volume {
        messages: volume.messages * groups,
        worker_elements: volume.worker_elements * groups,
        server_elements: 0,
        switch_elements: 0,
        hops: volume.hops,
    }
}

fn part(
    entry: &'static Entry,
    collective: Collective,
    (group, world): (Group, u32),
    cluster: &Cluster,
    options: &Options,
) -> Result<Part, SimulationError> {
    let per_node = cluster.gpus_per_node;
    // Consecutive ranks of the group on one node. Where groups lie across the borders of nodes, the program sees one
    // rank per node; the network knows better.
    let together = match group.stride {
        1 if group.size <= per_node && per_node.is_multiple_of(group.size) => group.size,
        1 if group.size.is_multiple_of(per_node) => per_node,
        stride if stride > 1 && stride < per_node && per_node.is_multiple_of(stride) => {
            (per_node / stride).min(group.size)
        }
        _ => 1,
    };
    let mut topology = Topology { ranks_per_node: together, ..Topology::flat(group.size) };
    let leaves_node = topology.nodes() > 1;
    // Switches add up what all-reduces send between nodes; all else is the library's.
    let has_switches = entry.uses(Knob::Aggregation) && leaves_node && collective == Collective::AllReduce;
    let entry = if entry.uses(Knob::Aggregation) && !has_switches { look_up(LIBRARY)? } else { entry };
    if has_switches {
        let memory = cluster.switch.memory.map(|bytes| bytes / ELEMENT_BYTES / u64::from(world / group.size).max(1));
        topology = Topology { switch_radix: cluster.switch.radix, switch_memory: memory, ..topology };
        if let Some(each) = nodes_per_switch(cluster) {
            let apart = (group.stride / per_node).max(1);
            if each % apart != 0 {
                return Err(SimulationError::about(
                    "strategy",
                    format!(
                        "{} adds up between nodes that are {apart} apart, which do not divide the {each} of a switch",
                        entry.name
                    ),
                )
                .remedy("{strategy=native}, or {sharding=hsdp:8}"));
            }
            let in_pods = cluster.fabric.as_ref().and_then(Fabric::switches_per_pod);
            topology = topology.in_racks(Some(each / apart)).in_pods(in_pods);
        }
    }
    let chunk = options.chunk.filter(|_| entry.uses(Knob::Chunk)).and_then(|chunk| chunk.in_elements(ELEMENT_BYTES));
    let knobs = Knobs {
        chunk,
        inside: options.inside,
        rates: Some(rates(cluster, ELEMENT_BYTES, options.nccl)),
        ..Knobs::default()
    };
    let schedule = build_collective(collective, entry.name, &topology, &knobs)?;
    Ok(Part { collective, group, schedule, leaves_node, has_switches })
}

/// Strategy of the collectives that switches do not add up.
const LIBRARY: &str = "native";

/// The programs of all groups, side by side.
pub(super) struct Grouped {
    world: u32,
    parts: Vec<Arc<Part>>,
    of_bucket: Vec<usize>,
}

impl Grouped {
    /// One collective alone.
    pub fn alone(part: &Arc<Part>, world: u32) -> Grouped {
        Grouped { world, parts: vec![Arc::clone(part)], of_bucket: vec![0] }
    }

    fn part(&self, bucket: &Bucket) -> &Part {
        &self.parts[self.of_bucket[bucket.id as usize]]
    }

    /// The part whose groups have switches; all such parts have the same groups.
    fn with_switches(&self) -> Option<&Part> {
        self.parts.iter().map(Arc::as_ref).find(|part| part.has_switches)
    }
}

impl Schedule for Grouped {
    fn roles(&self) -> Roles {
        let switches = self.with_switches().map_or(0, |part| part.schedule.roles().switches * part.groups(self.world));
        Roles { workers: self.world, servers: 0, switches }
    }

    fn switch_place(&self, number: u32) -> SwitchPlace {
        let Some(part) = self.with_switches() else { unreachable!("there are no switches") };
        let each = part.schedule.roles().switches;
        let own = part.schedule.switch_place(number % each);
        SwitchPlace { id: own.id + number / each * each, ..own }
    }

    fn lanes(&self, bucket: &Bucket) -> u32 {
        self.part(bucket).schedule.lanes(bucket)
    }

    fn slots(&self) -> u16 {
        self.parts.iter().map(|part| part.schedule.slots()).max().unwrap_or(0)
    }

    fn senders(&self) -> u32 {
        self.parts.iter().map(|part| part.schedule.senders()).max().unwrap_or(1)
    }

    fn step(&self, bucket: &Bucket, role: u32, lane: u32, pc: u32) -> Step {
        let part = self.part(bucket);
        let Group { size, stride } = part.group;
        let each = part.schedule.roles().switches;
        let (group, place) = match role.checked_sub(self.world) {
            None => (part.number(role), role / stride % size),
            Some(_) if each == 0 => return Step::Done,
            Some(switch) => (switch / each, size + switch % each),
        };
        let first = part.first_of(group);
        // The k-th of a group's ranks is its first rank and k strides; its switches follow each other.
        let world = |peers: Peers| match peers.first.checked_sub(size) {
            Some(switch) => Peers { first: switch, base: self.world + group * each, ..peers },
            None => Peers {
                first: peers.first * stride,
                count: peers.count,
                stride: peers.stride * stride,
                wrap: peers.wrap.saturating_mul(stride),
                base: peers.base * stride + first,
            },
        };
        match part.schedule.step(bucket, place, lane, pc) {
            Step::Send { to, multicast, slot, piece } => Step::Send { to: world(to), multicast, slot, piece },
            Step::Recv { from, slot, op, piece } => Step::Recv { from: world(from), slot, op, piece },
            other => other,
        }
    }

    fn volume(&self, bucket: &Bucket) -> Volume {
        in_all_groups(self.part(bucket), self.world, bucket)
    }

    fn closed_form(&self, _: &Bucket, _: Link) -> Option<f64> {
        None
    }

    fn closed_form_on_nodes(&self, bucket: &Bucket, links: Links) -> Option<f64> {
        self.part(bucket).schedule.closed_form_on_nodes(bucket, links)
    }

    fn least_latency(&self, bucket: &Bucket) -> Option<Least> {
        self.part(bucket).schedule.least_latency(bucket)
    }
}
