//! Share of an exchange's needs that slow and removed links between switches carry, where messages take the least loaded route.
//!
//! Adaptive routing spreads what leaves a switch over all links that lead on, so what counts is how much they carry together,
//! not which of them is slow: as long as that is more than the NICs below can send, nothing takes longer. The bounds are
//! those of the cuts around a switch with nodes and around a pod, so less of a link never leaves more, and one percent less
//! of it leaves at most one percent less.
use paceline_model::cluster::{Degraded, Routing, Shape};
use paceline_model::{Cluster, Rate, cluster};
use paceline_schedule::{Bucket, Schedule, Step};

use super::fabric::SwitchKind;
use super::topology::{LinkName, NetworkLinks, is_between};
use crate::sharing::SimulationError;

/// Whether all messages share what is left of the links between switches: their routes are adaptive, or, `by_trees`, they
/// pass by trees of switches, which avoid slow links.
pub(crate) fn spreads(cluster: &Cluster, by_trees: bool) -> bool {
    let levels = |shape: &Shape| matches!(shape, Shape::LeafSpine { .. } | Shape::Rails { .. } | Shape::FatTree { .. });
    let spread = |fabric: &cluster::Fabric| levels(&fabric.shape) && (by_trees || fabric.routing == Routing::Adaptive);
    cluster.fabric.as_ref().is_some_and(spread)
}

/// Which NICs send to other switches and which receive from them, and the same of other pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    /// For each NIC: sends beyond its switch, receives from beyond it, and the same of its pod.
    cards: Vec<[bool; 4]>,
    /// Trees of switches by which sums and copies pass at the same time.
    trees: u32,
}

/// Programs of more steps than this are not followed: everything is taken to cross.
const MOST_STEPS: u64 = 4_000_000;

impl Needs {
    pub fn none(wires: &NetworkLinks) -> Needs {
        Needs { cards: vec![[false; 4]; wires.cards() as usize], trees: 0 }
    }

    /// A NIC sends to another one.
    pub fn add(&mut self, wires: &NetworkLinks, from: u32, to: u32) {
        let Some(fabric) = &wires.fabric else { return };
        let [a, b] = [from, to].map(|card| fabric.switch_of_card(card));
        let (far, farther) = (a != b, fabric.pod(a) != fabric.pod(b));
        let sender = &mut self.cards[from as usize];
        (sender[0], sender[2]) = (sender[0] | far, sender[2] | farther);
        let receiver = &mut self.cards[to as usize];
        (receiver[1], receiver[3]) = (receiver[1] | far, receiver[3] | farther);
    }

    /// Adds all messages of the buckets' programs; `global`: the number of a program's role in the network.
    pub fn add_programs(
        &mut self,
        wires: &NetworkLinks,
        schedule: &dyn Schedule,
        buckets: &[Bucket],
        global: impl Fn(u32) -> u32,
    ) {
        let roles = schedule.roles();
        let mut steps = 0;
        for bucket in buckets {
            for (lane, role) in
                (0..schedule.lanes(bucket)).flat_map(|lane| (0..roles.total()).map(move |role| (lane, role)))
            {
                for pc in 0.. {
                    steps += 1;
                    match schedule.step(bucket, role, lane, pc) {
                        Step::Done => break,
                        Step::Send { to, multicast, .. } => {
                            self.follow(wires, global(role), to.iter().map(&global), multicast);
                        }
                        Step::Recv { .. } | Step::Barrier => {}
                    }
                    if steps > MOST_STEPS {
                        self.cards.fill([true; 4]);
                        return;
                    }
                }
            }
        }
    }

    fn follow(&mut self, wires: &NetworkLinks, role: u32, to: impl Iterator<Item = u32>, multicast: bool) {
        if multicast {
            // Each sender has a tree of its own.
            self.trees = self.trees.max(role + 1);
            return;
        }
        for to in to {
            if wires.is_switch(role) || wires.is_switch(to) {
                self.trees = self.trees.max(1);
            } else if wires.uses_fabric(role, to) {
                self.add(wires, wires.card(role), wires.card(to));
            }
        }
    }
}

/// Share of the needs that `slow` carries, relative to `whole`, the same network without slow links: at most 1.
pub(crate) fn share(whole: &NetworkLinks, slow: &NetworkLinks, needs: &Needs, nic: Rate) -> f64 {
    let (before, after) = (carried(whole, needs, nic), carried(slow, needs, nic));
    let shares = before.iter().zip(&after).map(|(before, after)| after.min(1.0) / before.min(1.0));
    shares.fold(1.0, f64::min)
}

/// For each switch, each pod and the trees that have needs, what they carry over what is needed.
fn carried(wires: &NetworkLinks, needs: &Needs, nic: Rate) -> Vec<f64> {
    let mut shares = Vec::new();
    let Some(fabric) = &wires.fabric else { return shares };
    let nic = 1.0 / nic.ps_per_byte();
    let links = wires.between();
    let level = |kind| match kind {
        SwitchKind::Leaf | SwitchKind::Edge | SwitchKind::Router => 0,
        SwitchKind::Aggregation => 1,
        SwitchKind::Spine | SwitchKind::Core => 2,
    };
    let switches = links.iter().map(|link| link.from.1.max(link.to.1) + 1).max().unwrap_or(0) as usize;
    let mut onward = vec![0.0; switches];
    links.iter().for_each(|link| onward[link.from.1 as usize] += link.rate);
    // A link upwards carries no more than its upper end passes on to others.
    let (mut above_switch, mut above_pod) = (vec![0.0; switches], vec![0.0; switches]);
    for link in links.iter().filter(|link| level(link.from.0) < level(link.to.0)) {
        let carried = link.rate.min(onward[link.to.1 as usize] - link.rate).max(0.0);
        if level(link.from.0) == 0 {
            above_switch[link.from.1 as usize] += carried;
        } else if let Some(pod) = fabric.pod_above(link.from.1) {
            above_pod[pod as usize] += carried;
        }
    }
    let (mut of_switch, mut of_pod) = (vec![[0u32; 2]; switches], vec![[0u32; 2]; switches]);
    for (card, crosses) in (0..).zip(&needs.cards) {
        let switch = fabric.switch_of_card(card);
        for way in 0..2 {
            of_switch[switch as usize][way] += u32::from(crosses[way]);
            if let Some(pod) = fabric.pod(switch) {
                of_pod[pod as usize][way] += u32::from(crosses[way + 2]);
            }
        }
    }
    for (carried, needed) in above_switch.iter().zip(of_switch).chain(above_pod.iter().zip(of_pod)) {
        let needed = needed[0].max(needed[1]);
        if needed > 0 {
            shares.push(carried / (f64::from(needed) * nic));
        }
    }
    if needs.trees > 0 {
        let rate = |number| fabric.slowest(number, |link| 1.0 / wires.rate(link)).map_or(0.0, |time| 1.0 / time);
        let mut rates: Vec<f64> = (0..fabric.tops()).map(|number| f64::min(rate(number), nic)).collect();
        rates.sort_unstable_by(|a, b| b.total_cmp(a));
        let used = &rates[..(needs.trees as usize).min(rates.len())];
        shares.push(used.iter().sum::<f64>() / (used.len() as f64 * nic));
    }
    shares
}

/// Remaining share of the network between nodes for groups of ranks that each form a ring through their nodes, all at the same
/// time: `size` ranks, `stride` apart, of `world`. Ports of nodes count as whole.
///
/// # Errors
/// A link that does not exist, or nodes that are cut off.
pub fn left_for_rings(
    cluster: &Cluster,
    world: u32,
    (size, stride): (u32, u32),
    seed: u64,
) -> Result<f64, SimulationError> {
    let roles = paceline_schedule::Roles { workers: world, servers: 0, switches: 0 };
    let network = |cluster: &Cluster| NetworkLinks::of(cluster, roles, Vec::new(), None, false, seed);
    let between = cluster.degraded.iter().filter(|one| is_between(&one.link)).cloned().collect();
    let slow = network(&Cluster { degraded: between, ..cluster.clone() })?;
    let whole = network(&Cluster { degraded: Vec::new(), ..cluster.clone() })?;
    if slow.fabric.is_none() {
        return Ok(1.0);
    }
    let per_node = cluster.gpus_per_node;
    let mut flows = Vec::new();
    for first in (0..world).filter(|rank| rank / stride % size == 0) {
        let ranks: Vec<u32> = (0..size).map(|k| first + k * stride).filter(|&rank| rank < world).collect();
        // Every rank of a node sends through its own NIC to the one on the next node that has the same place there.
        let mut nodes: Vec<&[u32]> = ranks.chunk_by(|a, b| a / per_node == b / per_node).collect();
        if nodes.len() < 2 {
            continue;
        }
        nodes.push(nodes[0]);
        for pair in nodes.windows(2) {
            flows.extend(pair[0].iter().zip(pair[1]).map(|(&from, &to)| (whole.card(from), whole.card(to))));
        }
    }
    flows.sort_unstable();
    flows.dedup();
    if spreads(cluster, false) {
        let mut needs = Needs::none(&whole);
        flows.iter().for_each(|&(from, to)| needs.add(&whole, from, to));
        return Ok(share(&whole, &slow, &needs, cluster.bandwidth));
    }
    let (before, after) = (whole.hashed(&flows, cluster.bandwidth), slow.hashed(&flows, cluster.bandwidth));
    Ok((after.min(1.0) / before.min(1.0)).min(1.0))
}

/// A link between two switches.
pub(crate) struct Between {
    /// Kind and number of the switch in the network.
    pub from: (SwitchKind, u32),
    pub to: (SwitchKind, u32),
    /// Bytes per picosecond; 0: it is removed.
    pub rate: f64,
}

impl NetworkLinks {
    /// The links between switches, each with all its parallel ones.
    fn between(&self) -> Vec<Between> {
        let numbers: Vec<u32> = self.links_between().step_by(self.channels() as usize).collect();
        // Both directions of a link are neighbors.
        let end = |at: usize| match self.links[numbers[at] as usize].name {
            LinkName::Between { from, id, .. } => (from.kind, id),
            _ => unreachable!("links of a fabric are between switches"),
        };
        (0..numbers.len()).map(|at| Between { from: end(at), to: end(at ^ 1), rate: self.rate(numbers[at]) }).collect()
    }

    /// Share of a NIC's rate that the slowest of these messages between NICs gets on its hashed route, if all pass at once.
    fn hashed(&self, flows: &[(u32, u32)], nic: Rate) -> f64 {
        let Some(fabric) = &self.fabric else { return 1.0 };
        let mut load = vec![0u32; self.links.len()];
        let routes: Vec<Vec<u32>> = flows
            .iter()
            .map(|&cards| {
                let route = fabric.route(cards, cards, cards, 0, |_| 0.0);
                (0..route.len).map(|at| fabric.link(route, at)).collect()
            })
            .collect();
        routes.iter().flatten().for_each(|&link| load[link as usize] += 1);
        let shares =
            routes.iter().flatten().map(|&link| self.rate(link) * nic.ps_per_byte() / f64::from(load[link as usize]));
        shares.fold(f64::INFINITY, f64::min)
    }
}

/// Remaining share of the slowest port of a node, where no other links are slow: in a closed form, in which all nodes have
/// the same part, all wait for it. `None`: others are slow.
pub(crate) fn slowest_port(cluster: &Cluster) -> Option<f64> {
    let is_port = |one: &Degraded| !is_between(&one.link) && !one.link.trim_start().starts_with("rack");
    cluster.degraded.iter().all(is_port).then(|| cluster.degraded.iter().map(|one| one.factor).fold(1.0, f64::min))
}
