//! The time of a collective: NCCL's choice, and constants calibrated on measurements.
//!
//! On one node NCCL chooses as its own model says. Between nodes its model of trees and of the protocols LL and LL128 is
//! two to three times too fast; there, what is fastest by calibrated times is taken: trees with LL for small buffers,
//! rings with Simple for large ones.
use crate::calibration::Calibration;
use crate::machine::{Group, IntraLink, Machine};
use crate::names::{Algorithm, Choice, Kind, NcclError, Protocol, counted, named};
use crate::release::Release;
use crate::tuning::{Estimate, PAT, TREE_LL, TREE_LL128, ring_ratio};

named! {
    /// How a collective is started.
    Caller {
        /// Queued behind other work, so that its start costs nothing.
        Stream = "stream",
        /// In a loop by nccl-tests.
        NcclTests = "nccl-tests",
        /// By a call of torch.distributed that is timed alone.
        Torch = "torch",
    }
}

/// The release that the constants were fitted with.
const RELEASE: Release = Release::V2_30;

/// A collective, and how NCCL is told to run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The collective.
    pub kind: Kind,
    /// Bytes, as nccl-tests counts them: of the whole buffer, which for all-gather and reduce-scatter holds a shard of
    /// every rank.
    pub size: u64,
    /// The ranks and how they are spread over the nodes.
    pub group: Group,
    /// Instead of NCCL's choice, as `NCCL_ALGO` sets it.
    pub algorithm: Option<Algorithm>,
    /// Instead of NCCL's choice, as `NCCL_PROTO` sets it.
    pub protocol: Option<Protocol>,
    /// Its start.
    pub caller: Caller,
}

impl Request {
    /// A collective of a stream, with NCCL's choice.
    #[must_use]
    pub fn new(kind: Kind, size: u64, group: Group) -> Request {
        Request { kind, size, group, algorithm: None, protocol: None, caller: Caller::Stream }
    }
}

/// A collective's forecast time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectiveTime {
    /// The time.
    pub seconds: f64,
    /// Algorithm and protocol; `None`: a group of one rank sends nothing.
    pub choice: Option<Choice>,
}

/// Bus bandwidth over algorithm bandwidth (nccl-tests doc/PERFORMANCE.md).
#[must_use]
pub fn bus_factor(kind: Kind, ranks: u32) -> f64 {
    let ranks = f64::from(ranks);
    match kind {
        Kind::Broadcast | Kind::Reduce => 1.0,
        Kind::AllReduce => 2.0 * (ranks - 1.0) / ranks,
        Kind::AllGather | Kind::ReduceScatter => (ranks - 1.0) / ranks,
    }
}

/// The time of a collective with the algorithm and the protocol that NCCL uses.
///
/// # Errors
/// A group that does not fit on the nodes, or a combination that NCCL does not have.
pub fn collective_time(
    request: &Request,
    machine: &Machine,
    calibration: &Calibration,
) -> Result<CollectiveTime, NcclError> {
    let group = request.group;
    machine.check(group)?;
    let start = start_s(request.caller, machine, calibration);
    if group.ranks == 1 {
        return Ok(CollectiveTime { seconds: start, choice: None });
    }
    let is_wanted = |it: &Choice| {
        request.algorithm.is_none_or(|wanted| wanted == it.0) && request.protocol.is_none_or(|wanted| wanted == it.1)
    };
    let available = RELEASE.available(request.kind, group, machine);
    let choices: Vec<Choice> = available.iter().copied().filter(is_wanted).collect();
    let fastest = Fastest { request, machine, calibration, choices: &choices };
    let (seconds, choice) = if group.nodes() == 1 { fastest.on_one_node() } else { fastest.between_nodes() }
        .ok_or_else(|| no_such(request, machine, &available))?;
    Ok(CollectiveTime { seconds: start + seconds, choice: Some(choice) })
}

fn no_such(request: &Request, machine: &Machine, available: &[Choice]) -> NcclError {
    let words = [request.algorithm.map(Algorithm::name), request.protocol.map(Protocol::name)];
    let mut there: Vec<&str> = available.iter().map(|it| it.0.name()).collect();
    there.dedup();
    let remedy = format!("{} (LL and LL128: rings and trees only)", there.join(", "));
    let reason = format!(
        "{}: NCCL has no {} for {} over {} of {}",
        if request.algorithm.is_some() { "algorithm" } else { "protocol" },
        words.into_iter().flatten().collect::<Vec<_>>().join(" with "),
        request.kind.name(),
        counted(request.group.nodes(), "node"),
        machine.name
    );
    NcclError { reason, remedy }
}

fn start_s(caller: Caller, machine: &Machine, calibration: &Calibration) -> f64 {
    match caller {
        Caller::Stream => 0.0,
        Caller::NcclTests => calibration.value("call.nccl-tests"),
        Caller::Torch if machine.generation.name == "blackwell" => calibration.value("call.torch.blackwell"),
        Caller::Torch => calibration.value("call.torch"),
    }
}

/// The search for the fastest of some combinations; none if there is none.
struct Fastest<'a> {
    request: &'a Request,
    machine: &'a Machine,
    calibration: &'a Calibration,
    choices: &'a [Choice],
}

impl Fastest<'_> {
    fn on_one_node(&self) -> Option<(f64, Choice)> {
        let &Request { kind, size, group, .. } = self.request;
        let estimates = RELEASE.estimates(kind, size, group, self.machine);
        let choice = estimates.iter().map(Estimate::choice).find(|it| self.choices.contains(it))?;
        let bytes = size as f64;
        let mut seconds = RELEASE.latency_s(kind, group, self.machine, choice, 1.0);
        seconds += bytes / self.rate_inside(choice);
        if choice.1 == Protocol::Simple {
            seconds += self.calibration.value("fill") * bytes / (bytes + self.calibration.value("fill.half"));
        }
        Some((seconds, choice))
    }

    /// Bytes of the buffer per second on one node.
    fn rate_inside(&self, choice: Choice) -> f64 {
        let &Request { kind, size, group, .. } = self.request;
        let (algorithm, protocol) = choice;
        let (bus, rules) = (self.ring_bus(), RELEASE.rules());
        match algorithm {
            Algorithm::Nvls => self.rate_of_nvls(kind, group.ranks),
            Algorithm::Tree => {
                let share = [TREE_LL, TREE_LL128, 1.0][protocol as usize];
                bus * rules.tree_share * share * 0.5 * RELEASE.tree_share(choice, size, self.machine)
            }
            _ => bus * rules.ring_share[protocol as usize] * ring_ratio(kind, group.ranks),
        }
    }

    /// The bus bandwidth of rings inside a node.
    fn ring_bus(&self) -> f64 {
        let Machine { intra_link, generation, .. } = self.machine;
        let share = match intra_link {
            IntraLink::Pcie => self.share_of_slot(),
            _ => self.calibration.value(&format!("ring.share.{}", generation.name)),
        };
        self.machine.link * share
    }

    /// The share of a PCI Express slot's rate that a ring of several GPUs gets.
    ///
    /// Without peer access each GPU writes to the host's memory, from which the next one reads. A ring over the slots
    /// of several processors also crosses the bus between them.
    fn share_of_slot(&self) -> f64 {
        let &Machine { peer_access, sockets, gpus_per_node, .. } = self.machine;
        let own = self.calibration.value(if peer_access { "pci.share" } else { "pci.host.share" });
        let crosses = sockets > 1 && self.request.group.per_node_used() > gpus_per_node.div_ceil(sockets);
        if crosses { own * self.calibration.value("pci.sockets") } else { own }
    }

    /// Bytes of the buffer per second of NVLSTree. Of two nodes, each sends the buffer once; of more, a node in the middle
    /// of a tree sends it twice.
    fn nvls_tree_rate(&self, machine: &Machine) -> f64 {
        let &Request { kind, group, .. } = self.request;
        let network = machine.network_of(group) * self.calibration.value("nvls-tree.share");
        if group.nodes() > 2 {
            return network * ring_ratio(kind, group.ranks);
        }
        network.min(self.rate_of_nvls(kind, group.per_node_used()) * self.calibration.value("nvls-tree.inside"))
    }

    /// Bytes of the buffer per second that switches inside a node reduce and multicast.
    fn rate_of_nvls(&self, kind: Kind, used: u32) -> f64 {
        // The switches read S - S/n of every GPU and write S/n (all-reduce: both), each way of its link.
        let ranks = f64::from(used);
        let passed = if kind == Kind::AllReduce { ranks + 1.0 } else { ranks - 1.0 } / ranks;
        let share = format!("nvls.share.{}", self.machine.generation.name);
        self.machine.link * self.calibration.value(&share) / passed
    }

    fn between_nodes(&self) -> Option<(f64, Choice)> {
        let &Request { kind, size, group, .. } = self.request;
        let calibration = self.calibration;
        let machine = &self.machine.carrying(group, calibration);
        let estimates = RELEASE.estimates(kind, size, group, machine);
        let share = machine.nic_share.unwrap_or_else(|| calibration.value("network.share"));
        let network = machine.network_of(group) * share;
        let bus = if group.per_node_used() == 1 { network } else { network.min(self.ring_bus()) };
        let near = Machine { hop_s: 0.0, ..machine.clone() };
        let mut fastest: Option<(f64, Choice)> = None;
        for &choice in self.choices {
            let (algorithm, protocol) = choice;
            // Between more nodes, rings hide NVLSTree: it is slower for large buffers, and nobody has published its
            // times for small ones.
            if algorithm == Algorithm::NvlsTree && group.nodes() > 2 && self.request.algorithm.is_none() {
                continue;
            }
            let bytes = size as f64;
            let own_rate = || {
                let own = estimates.iter().find(|it| it.choice() == choice)?;
                Some(own.bandwidth * calibration.value("tree.share"))
            };
            let seconds = match (algorithm, protocol) {
                (Algorithm::Tree, Protocol::Ll128) => {
                    let Some(rate) = own_rate() else { continue };
                    let latency = RELEASE.latency_s(kind, group, machine, choice, 1.0);
                    latency * calibration.value("ll.slowdown") + bytes / rate
                }
                (_, Protocol::Ll | Protocol::Ll128) => {
                    let Some(own) = estimates.iter().find(|it| it.choice() == choice) else { continue };
                    // What slows NCCL's own figures down does not slow the network down.
                    let hops = own.latency_s - RELEASE.latency_s(kind, group, &near, choice, 1.0);
                    (own.seconds - hops) * calibration.value("ll.slowdown") + hops
                }
                (Algorithm::Ring, _) => {
                    let latency = RELEASE.latency_s(kind, group, machine, choice, calibration.value("hop.factor"));
                    latency + bytes / (bus * ring_ratio(kind, group.ranks))
                }
                (Algorithm::Tree, _) => {
                    let Some(rate) = own_rate() else { continue };
                    let latency = RELEASE.latency_s(kind, group, machine, choice, 1.0);
                    latency * calibration.value("tree.slowdown") + bytes / rate
                }
                (Algorithm::NvlsTree, _) => {
                    let latency = RELEASE.latency_s(kind, group, machine, choice, 1.0);
                    latency * calibration.value("tree.slowdown") + bytes / self.nvls_tree_rate(machine)
                }
                (Algorithm::Nvls | Algorithm::Pat, _) => {
                    RELEASE.latency_s(kind, group, machine, choice, 1.0) + bytes / (bus * PAT)
                }
            };
            let name = |it: Choice| (it.0.name(), it.1.name());
            if fastest.is_none_or(|best| seconds < best.0 || seconds == best.0 && name(choice) < name(best.1)) {
                fastest = Some((seconds, choice));
            }
        }
        fastest
    }
}
