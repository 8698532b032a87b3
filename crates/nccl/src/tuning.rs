//! NCCL's model of the time of a collective, latency + bytes / bandwidth, with which it chooses for each size.
//!
//! It follows `src/graph/tuning.cc` (ncclTopoTuneModel and ncclTopoGetAlgoTime) for ring, tree, NVLS, NVLSTree and PAT;
//! CollNet (SHARP between nodes) is left out. The graph search, which finds the channels, is replaced by links and NICs
//! at full rate. [`crate::time`] has the times that were measured; they use the same structure with other figures.
use crate::machine::{Group, IntraLink, Machine};
use crate::names::{Algorithm, Choice, Kind, Protocol};
use crate::release::{Plateau, Release};

/// PAT's share of the network's rate.
pub(crate) const PAT: f64 = 0.75;
/// LL's share of a tree's rate.
pub(crate) const TREE_LL: f64 = 1.0 / 3.8;
/// LL128's share of a tree's rate inside a node; its flags take the rest.
pub(crate) const TREE_LL128: f64 = 7.0 / 9.0;
/// NCCL counts on so many channels for each NIC.
const CHANNELS_A_NIC: u32 = 2;
const NVLS_CHANNELS: f64 = 16.0;
/// PAT: steps in its logarithmic part overlap; and a linear part, microseconds for each rank.
const PAT_OVERLAP: f64 = 3.5;
const PAT_RANK_US: f64 = 2.8;

/// An estimate of NCCL's model for one combination. Seconds; bytes of the buffer per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// Of the whole collective.
    pub seconds: f64,
    /// Before the last byte moves.
    pub latency_s: f64,
    /// Of the rest.
    pub bandwidth: f64,
}

impl Estimate {
    /// The combination.
    #[must_use]
    pub fn choice(&self) -> Choice {
        (self.algorithm, self.protocol)
    }
}

impl Release {
    /// The combinations for a collective.
    #[must_use]
    pub fn available(self, kind: Kind, group: Group, machine: &Machine) -> Vec<Choice> {
        let (several, single) = (group.nodes() > 1, group.per_node_used() == 1);
        let mut choices = Vec::new();
        for &algorithm in Algorithm::ALL {
            let has = match algorithm {
                Algorithm::Ring => true,
                Algorithm::Tree => kind == Kind::AllReduce,
                Algorithm::Nvls => !matches!(kind, Kind::Broadcast | Kind::Reduce) && !several && machine.has_nvls(),
                Algorithm::NvlsTree => kind == Kind::AllReduce && several && !single && machine.has_nvls(),
                Algorithm::Pat => kind.is_half() && single,
            };
            let with_protocols = matches!(algorithm, Algorithm::Ring | Algorithm::Tree);
            let fits = |protocol: Protocol| match protocol {
                Protocol::Ll => with_protocols,
                Protocol::Ll128 => with_protocols && machine.intra_link != IntraLink::Pcie,
                Protocol::Simple => true,
            };
            let offered = Protocol::ALL.iter().map(|&protocol| (algorithm, protocol));
            choices.extend(offered.filter(|&choice| has && fits(choice.1) && self.has(choice)));
        }
        choices
    }

    /// The estimates for a buffer of so many bytes, fastest first.
    #[must_use]
    pub fn estimates(self, kind: Kind, size: u64, group: Group, machine: &Machine) -> Vec<Estimate> {
        let mut estimates = Vec::new();
        for choice in self.available(kind, group, machine) {
            let bandwidth = self.bandwidth(kind, group, machine, choice);
            if bandwidth <= 0.0 {
                continue;
            }
            let bandwidth = bandwidth * self.tree_share(choice, size, machine);
            let mut latency_s = self.latency_s(kind, group, machine, choice, 1.0);
            if choice == (Algorithm::Ring, Protocol::Simple) {
                latency_s *= self.plateau(kind, size, group, machine);
            }
            let seconds = latency_s + size as f64 / bandwidth;
            estimates.push(Estimate { algorithm: choice.0, protocol: choice.1, seconds, latency_s, bandwidth });
        }
        estimates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        estimates
    }

    /// The combination that it uses for a buffer of so many bytes without NVLS and PAT; of equally fast ones that of a
    /// tree, which NCCL tries first, and a ring if a rate is 0.
    #[must_use]
    pub fn ring_or_tree(self, kind: Kind, size: u64, group: Group, machine: &Machine) -> Choice {
        let is_no_tree = |it: &Estimate| it.algorithm != Algorithm::Tree;
        let is_one = |it: &Estimate| matches!(it.algorithm, Algorithm::Ring | Algorithm::Tree);
        let estimates = self.estimates(kind, size, group, machine).into_iter().filter(is_one);
        let fastest =
            estimates.min_by(|a, b| a.seconds.total_cmp(&b.seconds).then_with(|| is_no_tree(a).cmp(&is_no_tree(b))));
        fastest.map_or((Algorithm::Ring, Protocol::Simple), |it| it.choice())
    }

    /// The factor on a ring's latency for a buffer of this size.
    fn plateau(self, kind: Kind, size: u64, group: Group, machine: &Machine) -> f64 {
        if group.nodes() == 1 {
            return 1.0;
        }
        let ranks = u64::from(group.ranks);
        match self.rules().plateau {
            Plateau::FromBytesPerRank(bytes, factor) if size >= bytes * ranks => factor,
            Plateau::FromBytesPerRankAndChannel(bytes)
                if kind == Kind::AllReduce && size >= bytes * u64::from(network_channels(machine)) * ranks =>
            {
                machine.generation.plateau
            }
            _ => 1.0,
        }
    }

    /// The latency of a collective in seconds. `hop_factor`: on a ring's steps between nodes.
    ///
    /// # Panics
    /// If the release does not have the combination.
    #[must_use]
    pub fn latency_s(self, kind: Kind, group: Group, machine: &Machine, choice: Choice, hop_factor: f64) -> f64 {
        let (algorithm, protocol) = choice;
        let (rules, nodes) = (self.rules(), group.nodes());
        let several = nodes > 1;
        let between_us = self.step_between_us((self.waits_as(group, algorithm), protocol)) + machine.hop_s * 1e6;
        let base_us = self.tables().base_us.of(choice).expect("a combination of the release");
        // Chunks of Simple are waited for at each step of a broadcast, as in a tree.
        let chain = matches!(kind, Kind::Broadcast | Kind::Reduce) && choice == (Algorithm::Ring, Protocol::Simple);
        let steps_as = if chain { Algorithm::Tree } else { algorithm };
        let mut inside_us = self.step_inside_us(machine.intra_link, (steps_as, protocol));
        if several && protocol == Protocol::Ll {
            inside_us *= rules.ll_inside;
        }
        let depth = || f64::from(nodes.ilog2());
        match algorithm {
            Algorithm::Ring => {
                let crossing = if kind == Kind::AllReduce { 2 } else { 1 } * (nodes - 1);
                if several {
                    inside_us = inside_us.max(rules.post_us * if protocol == Protocol::Simple { 3.0 } else { 1.0 });
                }
                let within = f64::from(steps(kind, group.ranks) - crossing) * inside_us;
                1e-6 * (base_us + within + f64::from(crossing) * between_us * hop_factor)
            }
            Algorithm::Tree => {
                let chain = f64::from(group.ranks / nodes - 1) * inside_us;
                1e-6 * (base_us + 2.0 * (chain + depth() * between_us))
            }
            Algorithm::Nvls => 1e-6 * inside_us,
            Algorithm::NvlsTree => 1e-6 * (base_us + inside_us + 2.0 * depth() * between_us),
            Algorithm::Pat => {
                1e-6 * (base_us + depth() * between_us / PAT_OVERLAP + f64::from(group.ranks) * PAT_RANK_US)
            }
        }
    }

    /// The share of its rate that a tree gets with buffers of this size; 1 for what is no tree.
    #[must_use]
    pub fn tree_share(self, (algorithm, protocol): Choice, size: u64, machine: &Machine) -> f64 {
        let is_tree = match algorithm {
            Algorithm::Tree => true,
            Algorithm::NvlsTree => machine.generation.name == "blackwell",
            _ => false,
        };
        let first = if self.rules().smallest_have_shares { Some(0) } else { None };
        let place = (size >> 6).checked_ilog2().or(first);
        let share = place.and_then(|place| self.tables().tree_shares(protocol).get(place as usize));
        if is_tree { share.copied().unwrap_or(1.0) } else { 1.0 }
    }

    /// Bytes of the buffer per second; 0 if NCCL does not use the combination.
    fn bandwidth(self, kind: Kind, group: Group, machine: &Machine, (algorithm, protocol): Choice) -> f64 {
        let (tables, rules, generation) = (self.tables(), self.rules(), machine.generation);
        let (nodes, name) = (group.nodes(), &generation.name);
        let one = nodes == 1;
        let channels = f64::from(if one { generation.channels } else { network_channels(machine) });
        let network = machine.network_of(group);
        let bus = if one {
            machine.link
        } else if rules.links_limit {
            machine.link.min(network)
        } else {
            network
        };
        let bus = bus / 1e9;
        let nvls = || {
            let used = f64::from(group.per_node_used());
            let inside = machine.link / 1e9 * generation.nvls_share * (NVLS_CHANNELS - 1.0) / NVLS_CHANNELS;
            inside * if kind == Kind::AllReduce { 2.0 } else { (used - 1.0) / used }
        };
        let bus = match (algorithm, protocol) {
            (Algorithm::Ring, Protocol::Ll) => tables.ll_most(name, nodes).min(bus * rules.ring_share[0]),
            (Algorithm::Ring, Protocol::Ll128) => {
                (bus * rules.ring_share[1]).min(channels * tables.ring_ll128_most(name))
            }
            (Algorithm::Ring, Protocol::Simple) => bus * rules.ring_share[2],
            (Algorithm::Tree, _) => {
                let most = channels * tables.tree_most(Protocol::Simple, name, nodes);
                let bus = (bus * rules.tree_share).min(most);
                match protocol {
                    Protocol::Ll => (bus * TREE_LL).min(tables.ll_most(name, nodes)),
                    Protocol::Ll128 => {
                        let share = if one { TREE_LL128 } else { 120.0 / 128.0 };
                        (bus * share).min(channels * tables.tree_most(Protocol::Ll128, name, nodes))
                    }
                    Protocol::Simple => bus,
                }
            }
            (Algorithm::Nvls, _) => nvls(),
            (Algorithm::NvlsTree, _) => {
                let between = network / 1e9 * if nodes == 2 { 2.0 } else { 1.0 };
                // A channel for each GPU of a node.
                let most = f64::from(group.per_node_used()) * tables.nvls_tree_most(name, nodes);
                nvls().min(between).min(most)
            }
            (Algorithm::Pat, _) => bus * PAT,
        };
        if algorithm != Algorithm::Ring && kind.is_half() {
            return bus * 1e9;
        }
        let by_ring = matches!(algorithm, Algorithm::Ring | Algorithm::Nvls | Algorithm::NvlsTree);
        bus * if by_ring { ring_ratio(kind, group.ranks) } else { 0.5 } * 1e9
    }
}

/// Steps of a ring.
pub(crate) fn steps(kind: Kind, ranks: u32) -> u32 {
    match kind {
        Kind::AllReduce => 2 * (ranks - 1),
        Kind::AllGather | Kind::ReduceScatter => ranks - 1,
        Kind::Broadcast | Kind::Reduce => ranks,
    }
}

/// Bytes of a buffer over those that pass each link of a ring: from bus to algorithm bandwidth.
pub(crate) fn ring_ratio(kind: Kind, ranks: u32) -> f64 {
    f64::from(ranks) / f64::from(steps(kind, ranks))
}

fn network_channels(machine: &Machine) -> u32 {
    (CHANNELS_A_NIC * machine.nics).max(2)
}
