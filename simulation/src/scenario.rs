//! A scenario: a world, each rank's program, and faults.
use std::collections::BTreeMap;

use paceline_os::Chance;
use paceline_os::world::{Config, Link, SECOND};
use serde::{Deserialize, Serialize};

/// A world, a program and faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// Seed of the world's chance.
    pub seed: u64,
    /// The world.
    pub world: Surroundings,
    /// Ranks that train.
    pub ranks: u32,
    /// By process, servers included: its host.
    pub hosts: Vec<usize>,
    /// As users write it.
    pub transport: String,
    /// Connections between two ranks.
    pub streams: u32,
    /// Strategy of the all-reduces; `None`: measured.
    pub strategy: Option<String>,
    /// Parameter servers.
    pub servers: u32,
    /// They are processes of their own.
    pub dedicated: bool,
    /// Multicasts are sent as such.
    pub multicast: bool,
    /// The policy of a coordinator of all ranks.
    #[serde(default)]
    pub coordinator: Option<String>,
    /// Callers wait a tenth of a second at a time, as Python does.
    #[serde(default)]
    pub sliced: bool,
    /// Time limit of operations, seconds.
    pub timeout: f64,
    /// Time limit of the start, seconds.
    pub start_timeout: f64,
    /// Ranks of each group; the first holds all.
    pub groups: Vec<Vec<u32>>,
    /// The program, in order.
    pub steps: Vec<Step>,
    /// By rank: when its process begins, microseconds.
    pub starts: Vec<u64>,
    /// By rank: the step before which it leaves the job.
    pub leaves: Vec<Option<usize>>,
    /// A fault.
    pub faults: Vec<Fault>,
}

/// How the world behaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Surroundings {
    /// Cores of a host.
    pub cores: usize,
    /// Mean number of points between two that take a thread's turn away.
    pub points: u64,
    /// Cost of reading the clock, nanoseconds.
    pub clock: u64,
    /// Most that a fruitless turn costs, nanoseconds.
    pub idle: u64,
    /// One way between hosts, nanoseconds.
    pub latency: u64,
    /// At most this much more.
    pub jitter: u64,
    /// Nanoseconds for a kilobyte between hosts.
    pub per_kilobyte: u64,
    /// Send and receive buffer of a socket, bytes.
    pub buffers: (usize, usize),
    /// Largest segment, bytes.
    pub segment: usize,
    /// One write in so many is cut short.
    pub pressure: u64,
    /// Datagrams of so many that are lost, repeated, late.
    pub datagrams: [u64; 3],
    /// Processes believe that they run under a real-time policy.
    pub real_time: bool,
    /// Limits of the runtime that are smaller than they usually are.
    #[serde(default)]
    pub limits: BTreeMap<String, usize>,
}

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the runtime's names")]
pub enum Call {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    Gather,
    Scatter,
    ReduceScatter,
    AllToAll,
    Barrier,
    Transfer,
    /// All-reduces of named tensors, by the coordinator.
    Named,
}

/// An operation that the ranks of a group call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Number of the group.
    pub group: usize,
    /// The operation.
    pub call: Call,
    /// Elements of a rank's part.
    pub elements: u64,
    /// The root, or the sender, by place in the group.
    pub root: u32,
    /// The receiver, by place in the group.
    pub other: u32,
    /// By rank of the job, one bit each: it does not wait at once.
    pub later: u32,
    /// By rank of the job: how long it computes before it calls, microseconds.
    pub delays: Vec<u64>,
    /// For an all-reduce by parameter servers: its priority in a training step, and whether it ends the step.
    #[serde(default)]
    pub in_step: Option<(u32, bool)>,
    /// For a transfer: the receiver takes it from whoever sends.
    #[serde(default)]
    pub from_anybody: bool,
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Microseconds from the beginning.
    pub at: u64,
    /// The fault.
    pub what: What,
}

/// A fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum What {
    /// A process is killed.
    Kill(usize),
    /// A process is stopped, and continues after so many microseconds.
    Stop(usize, Option<u64>),
    /// A process gets one turn of so many, for so many microseconds.
    Starve(usize, u64, u64),
    /// Two hosts are cut off from each other, for so many microseconds.
    Cut(usize, usize, u64),
    /// The link of two hosts becomes slow: nanoseconds for a kilobyte.
    Slow(usize, usize, u64),
}

impl What {
    /// Whether it is one that ranks must survive.
    #[must_use]
    pub fn is_harmless(&self, timeout: f64) -> bool {
        match self {
            What::Kill(_) | What::Stop(_, None) => false,
            What::Stop(_, Some(time)) | What::Cut(_, _, time) => (*time as f64) < (timeout * 0.3e6).min(AWAY),
            What::Starve(..) | What::Slow(..) => true,
        }
    }
}

/// Microseconds for which a rank may be away from the others: who leaves waits 5 s until they have what it sent.
const AWAY: f64 = 3e6;

/// Which scenarios a search makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Focus {
    /// Never a fault.
    pub harmless: bool,
    /// Small worlds only.
    pub small: bool,
}

/// Limits at which fragments wait in their channel until they are queued by force.
pub const FORCING: &[&str] = &["unexpected", "unexpected streams"];

/// The names of strategies that need nothing but ranks.
const PLAIN: &[&str] = &["ring", "recursive-doubling", "halving-doubling", "tree", "hierarchical"];
const SERVED: &[&str] = &["ps", "sharded-ps", "ps-aggregation", "ps-multicast", "ps-multicast-aggregation"];
const CALLS: &[Call] = &[
    Call::AllReduce,
    Call::AllReduce,
    Call::AllReduce,
    Call::AllReduce,
    Call::Broadcast,
    Call::Reduce,
    Call::AllGather,
    Call::Gather,
    Call::Scatter,
    Call::ReduceScatter,
    Call::AllToAll,
    Call::Barrier,
    Call::Transfer,
    Call::Transfer,
];

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn new(seed: u64, focus: Focus) -> Scenario {
        let mut chance = Chance::new(seed ^ 0x5ce4_a510);
        let chance = &mut chance;
        let most = if focus.small { 2 } else { *chance.one_of(&[2, 2, 2, 3, 3, 4, 4, 5, 6, 8]) };
        let ranks = chance.within(2, most.max(2)) as u32;
        let transport = *chance.one_of(&["tcp", "tcp", "tcp", "auto", "auto", "shm"]);
        let served = chance.once_in(3);
        let strategy = (*chance.one_of(if served { SERVED } else { PLAIN })).to_owned();
        let servers =
            if served && strategy != "sharded-ps" { chance.within(1, u64::from(ranks.min(3))) as u32 } else { 1 };
        let dedicated = served && strategy != "sharded-ps" && chance.once_in(2);
        let processes = ranks as usize + if dedicated { servers as usize } else { 0 };
        let all_hosts = if transport == "shm" { 1 } else { chance.within(1, processes as u64) as usize };
        let per_host = processes.div_ceil(all_hosts);
        let hosts: Vec<usize> = (0..processes).map(|process| process / per_host).collect();
        let shared = transport == "shm" || (transport == "auto" && hosts.iter().all(|&host| host == 0));
        let streams = if shared { 1 } else { *chance.one_of(&[1, 1, 1, 2, 3]) };
        let mut world = Surroundings::new(chance, processes);
        // What waits in the network card must not take as long as the limit: else even questions are not answered in time.
        let waits = (world.per_kilobyte as f64 * streams as f64 * (processes * processes) as f64).max(1.0);
        let bytes = 0.2e12 * 2.0 / waits;
        world.buffers.0 = world.buffers.0.min((bytes as usize).max(4 << 10));
        let multicast = transport != "shm" && strategy.contains("multicast") && chance.once_in(2);
        let timeout = *chance.one_of(&[2.0, 4.0, 6.0, 10.0, 30.0]);
        // Force helps once a second, and several ranks may need it one after the other.
        let timeout = if FORCING.iter().any(|&name| world.limits.contains_key(name)) { 30.0 } else { timeout };
        let mut groups = vec![(0..ranks).collect::<Vec<u32>>()];
        for _ in 0..chance.below(3) {
            let members: Vec<u32> = (0..ranks).filter(|_| chance.once_in(2)).collect();
            if members.len() > 1 {
                groups.push(members);
            }
        }
        // What fits in a few seconds of the slowest link, so that nothing but a fault makes an operation wait.
        let bytes = (timeout * 0.2e9 / (world.per_kilobyte.max(1) as f64)) as u64 * 1000 / u64::from(ranks * ranks);
        let largest = (bytes / 4).clamp(1, if focus.small { 2_000 } else { *chance.one_of(&[2_000, 10_000, 50_000]) });
        let steps = 0..chance.within(1, if focus.small { 2 } else { 8 });
        let mut steps: Vec<Step> = steps.map(|_| Step::new(chance, &groups, ranks, largest, timeout)).collect();
        while strategy.starts_with("ps") && chance.once_in(2) && steps.len() < 8 {
            let at = chance.below(steps.len() as u64 + 1) as usize;
            // A training step is not interrupted.
            let at = (at..steps.len())
                .find(|&at| steps[at].in_step.is_none_or(|(_, last)| last) && at == 0)
                .unwrap_or(steps.len());
            steps.splice(at..at, Step::training(chance, ranks, largest));
        }
        // Bytes that flow for longer than the limit. As datagrams, they are so many turns.
        let few = !multicast || timeout <= 2.0;
        if few
            && world.per_kilobyte >= 800_000
            && all_hosts > 1
            && transport != "shm"
            && !focus.small
            && chance.once_in(3)
        {
            let mut step = Step::new(chance, &groups[..1], ranks, 1, timeout);
            step.call = *chance.one_of(&[Call::Transfer, Call::Transfer, Call::Broadcast, Call::AllReduce]);
            // Ranks spin for as long as parts of it come more often than they fall asleep.
            world.idle = world.idle.max(200_000);
            step.elements = (timeout.min(6.0) * 1.5e9 / world.per_kilobyte as f64) as u64 * 1000 / 4;
            step.elements /= if step.call == Call::Transfer { 1 } else { u64::from(ranks) };
            // The last one: that it moves is known to who waits for it, and to who waits for those, but not further.
            steps.push(step);
        }
        let policies = ["negotiate", "global-sleep", "nonblocking", "partitioned", "graph", "graph"];
        let coordinator = chance.once_in(6).then(|| (*chance.one_of(&policies)).to_owned());
        if coordinator.is_some() {
            for step in steps.iter_mut().filter(|step| step.group == 0 && step.in_step.is_none()) {
                if chance.once_in(2) {
                    (step.call, step.elements) = (Call::Named, step.elements.min(largest / 4));
                }
            }
        }
        // The same tensors again, as in training: they follow the plan that was made of the first step.
        if coordinator.as_deref() == Some("graph") && steps.len() < 8 {
            let mut step = Step::new(chance, &groups[..1], ranks, largest, timeout);
            (step.call, step.elements) = (Call::Named, step.elements.min(largest / 4));
            let again = |_| Step { delays: step.delays.clone(), ..step.clone() };
            steps.extend((0..chance.within(2, 6)).map(again));
        }
        let late = chance.once_in(6);
        let starts = (0..processes).map(|_| if late { chance.below(3_000_000) } else { chance.below(2_000) }).collect();
        let leaver = if chance.once_in(8) { Some(chance.below(u64::from(ranks)) as u32) } else { None };
        let before = chance.below(steps.len() as u64) as usize;
        // Not within a training step, which would never end.
        let ends = |at: &usize| *at == 0 || steps[at - 1].in_step.is_none_or(|(_, last)| last);
        let before = (0..=before).rev().find(ends).unwrap_or(0);
        let leaves = (0..ranks).map(|rank| (Some(rank) == leaver && !focus.harmless).then_some(before)).collect();
        let mut faults = Vec::new();
        if chance.once_in(2) {
            for _ in 0..chance.within(1, 2) {
                let fault = Fault::new(chance, processes, &hosts, timeout, &world);
                if !focus.harmless || fault.what.is_harmless(timeout) {
                    faults.push(fault);
                }
            }
        }
        Scenario {
            seed: chance.bits(),
            world,
            ranks,
            hosts,
            transport: transport.into(),
            streams,
            strategy: Some(strategy),
            servers,
            dedicated,
            multicast,
            coordinator,
            sliced: chance.once_in(2),
            timeout,
            start_timeout: 20.0,
            groups,
            steps,
            starts,
            leaves,
            faults,
        }
    }

    /// The world's configuration.
    #[must_use]
    pub fn config(&self, log: bool) -> Config {
        let world = &self.world;
        let network = Link { latency: world.latency, jitter: world.jitter, per_kilobyte: world.per_kilobyte };
        Config {
            seed: self.seed,
            cores: world.cores,
            points: world.points,
            clock: world.clock,
            idle: world.idle,
            network,
            inside: Link { latency: world.latency.min(5_000), jitter: world.jitter.min(2_000), per_kilobyte: 100 },
            buffers: world.buffers,
            segment: world.segment,
            pressure: world.pressure,
            datagrams: world.datagrams,
            real_time: world.real_time,
            limits: world.limits.clone(),
            limit: (self.latest() * 1e9) as u64 + SECOND,
            log,
            ..Config::default()
        }
    }

    /// Seconds after which all ranks that can must have ended: each waits at most for the start, for the others' computing,
    /// and once for its limit.
    #[must_use]
    pub fn latest(&self) -> f64 {
        let computing: u64 = self.steps.iter().map(|step| step.delays.iter().copied().max().unwrap_or(0)).sum();
        let faults: u64 = self.faults.iter().map(|fault| fault.at + fault.what.lasts()).max().unwrap_or(0);
        let late = self.starts.iter().copied().max().unwrap_or(0);
        let kilobytes: f64 = self.steps.iter().map(|step| step.elements as f64 * 4e-3 * f64::from(self.ranks)).sum();
        let slowest = self.faults.iter().filter_map(|fault| match fault.what {
            What::Slow(_, _, per_kilobyte) => Some(per_kilobyte),
            _ => None,
        });
        let slowest = slowest.chain([self.world.per_kilobyte]).max().unwrap_or(0) as f64;
        let moving = kilobytes * slowest * f64::from(self.ranks) / 1e9;
        let steps = self.steps.len() as f64;
        moving + (computing + faults + late) as f64 / 1e6 + self.start_timeout + self.timeout * (2.0 + steps) + 30.0
    }
}

impl What {
    fn lasts(&self) -> u64 {
        match self {
            What::Stop(_, time) => time.unwrap_or(0),
            What::Starve(_, _, time) | What::Cut(_, _, time) => *time,
            What::Kill(_) | What::Slow(..) => 0,
        }
    }
}

impl Surroundings {
    fn new(chance: &mut Chance, processes: usize) -> Surroundings {
        let slow = chance.once_in(6);
        let buffers = [4 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10];
        Surroundings {
            cores: if chance.once_in(2) { 1 } else { processes.max(1) },
            points: *chance.one_of(&[0, 10, 30, 100, 300, 1000]),
            clock: *chance.one_of(&[50, 200, 1_000]),
            idle: *chance.one_of(&[20_000, 200_000, 1_000_000]),
            latency: *chance.one_of(&[1_000, 20_000, 100_000, 2_000_000]),
            jitter: *chance.one_of(&[0, 10_000, 500_000]),
            // 10 Gbit/s, 1 Gbit/s, 100 Mbit/s; slow: 10 and 2 Mbit/s.
            per_kilobyte: if slow {
                *chance.one_of(&[800_000, 4_000_000])
            } else {
                *chance.one_of(&[800, 8_000, 80_000])
            },
            buffers: (*chance.one_of(&buffers), *chance.one_of(&buffers)),
            segment: *chance.one_of(&[1_448, 8 << 10, 64 << 10]),
            pressure: *chance.one_of(&[0, 0, 0, 5, 50]),
            datagrams: *chance.one_of(&[[0, 0, 0], [20, 20, 20], [3, 5, 3], [100, 0, 2]]),
            real_time: chance.once_in(4),
            limits: if chance.once_in(4) { small_limits(chance) } else { BTreeMap::new() },
        }
    }
}

/// The smallest limits with which everything must work, or larger ones.
fn small_limits(chance: &mut Chance) -> BTreeMap<String, usize> {
    let all: [(&str, &[usize]); 8] = [
        ("loopback fragment", &[64, 4 << 10]),
        ("loopback fragments", &[1, 2, 8]),
        ("zero copy", &[1, 4 << 10]),
        ("unexpected", &[0, 4 << 10, 64 << 10]),
        ("unexpected streams", &[1, 4 << 10]),
        ("ahead", &[1, 16 << 10]),
        ("window", &[1, 2]),
        ("lanes", &[1, 2, 4]),
    ];
    let mut limits = BTreeMap::new();
    for (name, values) in all {
        if chance.once_in(2) {
            limits.insert(name.to_owned(), *chance.one_of(values));
        }
    }
    limits
}

impl Step {
    /// Several all-reduces by parameter servers that make up a training step.
    fn training(chance: &mut Chance, ranks: u32, largest: u64) -> Vec<Step> {
        let count = chance.within(1, 4) as u32;
        let one = |number: u32, elements: u64| Step {
            group: 0,
            call: Call::AllReduce,
            elements,
            root: 0,
            other: 1,
            later: if number + 1 == count { 0 } else { u32::MAX },
            delays: vec![0; ranks as usize],
            in_step: Some((count - number, number + 1 == count)),
            from_anybody: false,
        };
        (0..count).map(|number| one(number, chance.within(1, largest))).collect()
    }

    fn new(chance: &mut Chance, groups: &[Vec<u32>], ranks: u32, largest: u64, timeout: f64) -> Step {
        let group = if chance.once_in(2) { 0 } else { chance.below(groups.len() as u64) as usize };
        let size = groups[group].len() as u64;
        let call = *chance.one_of(CALLS);
        let parts = match call {
            Call::AllGather | Call::Gather | Call::Scatter | Call::ReduceScatter | Call::AllToAll => size,
            _ => 1,
        };
        let most = (largest / parts).max(1);
        let elements = match chance.below(4) {
            0 => chance.within(0, 8.min(most)),
            1 => chance.within(1, 1_000.min(most)),
            _ => chance.within(1, most),
        };
        let root = chance.below(size) as u32;
        let other = (root + 1 + chance.below(size - 1) as u32) % size as u32;
        let computes = chance.once_in(3);
        let longest = *chance.one_of(&[100, 5_000, 100_000, ((timeout * 0.3e6).min(AWAY) / 5.0) as u64]);
        let delays = (0..ranks).map(|_| if computes { chance.below(longest) } else { 0 }).collect();
        let later = if chance.once_in(2) { chance.bits() as u32 } else { 0 };
        let from_anybody = call == Call::Transfer && chance.once_in(4);
        Step { group, call, elements, root, other, later, delays, in_step: None, from_anybody }
    }
}

impl Fault {
    fn new(chance: &mut Chance, processes: usize, hosts: &[usize], timeout: f64, world: &Surroundings) -> Fault {
        let at = *chance.one_of(&[1_000, 10_000, 100_000, 1_000_000, 5_000_000]);
        let at = chance.below(at);
        let process = chance.below(processes as u64) as usize;
        let hosts_in_all = hosts.iter().max().map_or(1, |most| most + 1) as u64;
        let moment = |chance: &mut Chance| {
            let longest = *chance.one_of(&[10_000, 1_000_000, (timeout * 0.29e6) as u64, (timeout * 3e6) as u64]);
            chance.below(longest)
        };
        let what = match chance.below(7) {
            0..=2 => What::Kill(process),
            3 => What::Stop(process, if chance.once_in(2) { None } else { Some(moment(chance)) }),
            4 => What::Starve(process, *chance.one_of(&[5, 50]), moment(chance)),
            5 if hosts_in_all > 1 => {
                let a = chance.below(hosts_in_all) as usize;
                let b = (a + 1 + chance.below(hosts_in_all - 1) as usize) % hosts_in_all as usize;
                What::Cut(a, b, moment(chance))
            }
            6 if hosts_in_all > 1 => What::Slow(0, 1, world.per_kilobyte * 2),
            _ => What::Kill(process),
        };
        Fault { at, what }
    }
}
