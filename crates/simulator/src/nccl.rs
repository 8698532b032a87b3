//! NCCL's collectives on a cluster: the machine that NCCL sees, and the times of an iteration plan's collectives.
use std::collections::{BTreeMap, HashSet};

use paceline_iteration::{Plan, Step, Work};
use paceline_model::Cluster;
use paceline_model::cluster::{self, Channel, Degraded};
use paceline_nccl::{
    Calibration, Generation, Group, IntraLink, Kind, Machine, Request, Sockets, Transport, bus_factor, collective_time,
};
use paceline_schedule::Collective;

use crate::network::left::left_for_rings;
use crate::sharing::SimulationError;

/// A collective of a plan, and how long it takes if no other runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedCollective {
    /// Which one.
    pub collective: Collective,
    /// Between whom.
    pub group: paceline_iteration::Group,
    /// Of the whole.
    pub bytes: u64,
    /// From the first rank's begin to the last one's end.
    pub seconds: f64,
    /// The share of that time in which the links are busy, 0 to 1.
    pub busy: f64,
}

/// A cluster as NCCL sees it. `rdma_latency_s`: the network latency that NCCL's own figures contain, those of RDMA.
///
/// # Errors
/// Degraded links that are no NICs, outside of a fabric, and nodes without any NIC.
pub fn machine(cluster: &Cluster, rdma_latency_s: f64) -> Result<Machine, SimulationError> {
    let (link_bps, gpus) = (cluster.intra_bandwidth.0, cluster.gpus_per_node);
    let mut assumed = Vec::new();
    let generation = Generation::of(&cluster.gpu).unwrap_or_else(|| {
        let generation = Generation::of_links(link_bps);
        let gpus = if cluster.gpu.is_empty() { "its GPUs".into() } else { format!("its GPUs ('{}')", cluster.gpu) };
        assumed.push(format!(
            "{gpus} are those of NCCL's generation {}, because of their links; give `gpu` in its file",
            generation.name
        ));
        generation
    });
    let intra_link = match cluster.intra_link {
        Some(cluster::IntraLink::Pcie) => IntraLink::Pcie,
        Some(cluster::IntraLink::Xgmi) => IntraLink::Xgmi,
        Some(cluster::IntraLink::Nvlink) => IntraLink::Nvlink,
        Some(cluster::IntraLink::Nvswitch) => IntraLink::Nvswitch,
        None => {
            let link = Machine::usual_link(link_bps, generation, cluster.mesh.is_none() && gpus > 1);
            if gpus > 1 {
                let name = link.name();
                assumed.push(format!("GPUs of a node are connected by {name}; give `intra_link` in its file"));
            }
            link
        }
    };
    let has_rails = cluster.has_rails();
    let nics = if has_rails { gpus } else { cluster.nics_per_node };
    let nominal = cluster.bandwidth.0 / 8.0 * if has_rails { f64::from(gpus) } else { 1.0 };
    let latency_s = cluster.latency.seconds();
    let has_channel = cluster.channel != Channel::Unknown;
    Ok(Machine {
        name: cluster.name.clone(),
        generation,
        gpus_per_node: gpus,
        gpus_per_rank: cluster.gpus_per_rank,
        intra_link,
        link: link_bps / 8.0,
        peer_access: cluster.peer_access,
        sockets: cluster.sockets,
        nominal,
        network: nominal * left_of_nics(cluster, nics)?,
        nics,
        nic_share: cluster.efficiency.or(if has_channel { None } else { Some(1.0) }),
        hop_s: if cluster.channel == Channel::Tcp { latency_s } else { (latency_s - rdma_latency_s).max(0.0) },
        transport: match (cluster.channel, cluster.gpudirect) {
            (Channel::Tcp, _) => {
                let cluster::Sockets { threads, per_thread } = cluster.nccl_sockets;
                Transport::Sockets(Sockets { threads, per_thread })
            }
            (_, false) => Transport::RdmaThroughHost,
            (_, true) => Transport::Rdma,
        },
        assumed,
    })
}

/// Whether a degraded link is the NIC of a GPU or those of a node.
fn is_nic(one: &Degraded) -> bool {
    let link = one.link.replace(' ', "");
    let number = link.strip_prefix("node").or_else(|| link.strip_prefix("worker")).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
}

/// The share of its NICs' rate that is left to the slowest node.
///
/// NCCL cuts a buffer into equal parts for its channels, so that one slow NIC slows down all; a missing one is left out.
fn left_of_nics(cluster: &Cluster, nics: u32) -> Result<f64, SimulationError> {
    let mut left: f64 = 1.0;
    for one in &cluster.degraded {
        let (link, factor) = (&one.link, one.factor);
        if !is_nic(one) {
            if cluster.fabric.is_some() {
                continue;
            }
            return Err(SimulationError::about(
                "degraded",
                format!("NCCL's model knows the NICs of nodes and GPUs, not {link}"),
            )
            .remedy(format!("{{degraded=node3:{factor}}} (worker3: a GPU's NIC, where a node has several)")));
        }
        if factor == 0.0 && (link.starts_with("node") || nics == 1) {
            return Err(SimulationError::about("degraded", format!("{link} has no NIC left, and NCCL would hang"))
                .remedy(format!("{{degraded={link}:0.5}} (a factor above 0)")));
        }
        left = left.min(if factor > 0.0 { factor } else { f64::from(nics - 1) / f64::from(nics) });
    }
    Ok(left)
}

/// The machine with the network that slow links between switches leave to groups of `size` ranks, `stride` apart, of
/// `world`. Less is left only where links carry less than the NICs of a leaf need.
///
/// # Errors
/// Links that the cluster does not have.
pub fn behind_slow_links(
    machine: &Machine,
    cluster: &Cluster,
    (size, stride): (u32, u32),
    world: u32,
) -> Result<Machine, SimulationError> {
    if cluster.degraded.iter().all(is_nic) {
        return Ok(machine.clone());
    }
    let left = left_for_rings(cluster, world, (size, stride), 0)?;
    Ok(Machine { network: machine.network * left, ..machine.clone() })
}

/// The times of NCCL's collectives on a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct NcclTimes {
    machine: Machine,
    cluster: Cluster,
    calibration: Calibration,
}

impl NcclTimes {
    /// Those of this cluster; `None` if NCCL's model does not know it: its nodes do not name their GPUs, or are connected
    /// otherwise than by one switch or rails. `rdma_latency_s`: as for [`machine`].
    #[must_use]
    pub fn of(cluster: &Cluster, calibration: Calibration, rdma_latency_s: f64) -> Option<NcclTimes> {
        if cluster.gpu.is_empty() || cluster.racks.is_some() || (cluster.fabric.is_some() && !cluster.has_rails()) {
            return None;
        }
        // A slow link that there is not, which the simulation names.
        let machine = machine(cluster, rdma_latency_s).ok()?;
        Some(NcclTimes { machine, cluster: cluster.clone(), calibration })
    }

    /// The time of a collective of a plan in a world of so many ranks.
    ///
    /// # Errors
    /// Links that the cluster does not have, groups that do not fit, more than an hour.
    pub fn time(
        &self,
        collective: Collective,
        group: paceline_iteration::Group,
        bytes: u64,
        world: u32,
    ) -> Result<PlannedCollective, SimulationError> {
        let layout = layout(group.size, group.stride, self.machine.gpus_per_node, world);
        let is_between = layout.nodes() > 1;
        let machine = if is_between {
            behind_slow_links(&self.machine, &self.cluster, (group.size, group.stride), world)?
        } else {
            self.machine.clone()
        };
        let kind = match collective {
            Collective::AllReduce => Kind::AllReduce,
            Collective::AllGather => Kind::AllGather,
            Collective::ReduceScatter => Kind::ReduceScatter,
        };
        let time = collective_time(&Request::new(kind, bytes, layout), &machine, &self.calibration);
        let seconds = time.map_err(|error| SimulationError::new(error.to_string()))?.seconds;
        if !(0.0..=3600.0).contains(&seconds) {
            return Err(SimulationError::new(format!("collectives: {seconds} s is more than an hour"))
                .remedy("{bandwidth=25Gbps}, or smaller tensors"));
        }
        let most = if is_between { machine.network_of(layout) } else { machine.link };
        let bus = if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 } * bus_factor(kind, layout.ranks);
        Ok(PlannedCollective { collective, group, bytes, seconds, busy: (bus / most).min(1.0) })
    }

    /// The times of the collectives of a plan, each once.
    ///
    /// # Errors
    /// Those of [`time`](NcclTimes::time).
    pub fn of_plan(&self, plan: &Plan) -> Result<Vec<PlannedCollective>, SimulationError> {
        let mut seen = HashSet::new();
        let exchange = |step: &Step| match step.work {
            Work::Exchange { collective, group, elements, dtype } => Some((collective, group, elements * dtype.size())),
            _ => None,
        };
        let different = plan.steps.iter().filter_map(exchange).filter(|&it| seen.insert(it));
        different.map(|(collective, group, bytes)| self.time(collective, group, bytes, plan.world)).collect()
    }
}

/// How the groups of `size` of `world` ranks, `stride` apart, lie on nodes of so many GPUs. If groups lie differently, it
/// is the layout of the slowest.
#[must_use]
pub fn layout(size: u32, stride: u32, per_node: u32, world: u32) -> Group {
    if stride != 1 {
        // Groups between which ranks alternate share the node's NICs.
        let on_a_node = size.min((per_node / stride).max(1));
        return Group { ranks: size, per_node: on_a_node, concurrent: stride.min(per_node) };
    }
    let nodes = |group: u32| {
        let (first, last) = (group * size, group * size + size - 1);
        (first / per_node..=last / per_node).map(move |node| {
            let ranks = (last + 1).min((node + 1) * per_node) - first.max(node * per_node);
            (node, ranks)
        })
    };
    // Only some groups cross from one node to the next, and up to two of them at the same node.
    let leaving = || (0..world / size).filter(|&group| nodes(group).count() > 1);
    let mut neighbors = BTreeMap::new();
    for (node, _) in leaving().flat_map(nodes) {
        *neighbors.entry(node).or_insert(0) += 1;
    }
    let fewest = leaving().flat_map(nodes).map(|(_, ranks)| ranks).min();
    match (fewest, neighbors.values().max()) {
        (Some(fewest), Some(&most)) if !size.is_multiple_of(per_node) => {
            Group { ranks: size, per_node: fewest, concurrent: most }
        }
        _ => Group::new(size, size.min(per_node)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_group_lie_on_nodes() {
        let group = |ranks, per_node, concurrent| Group { ranks, per_node, concurrent };
        for (size, stride, expected) in [
            (64, 1, group(64, 8, 1)),
            (4, 1, group(4, 4, 1)),
            (8, 8, group(8, 1, 8)),
            (16, 4, group(16, 2, 4)),
            (4, 16, group(4, 1, 8)),
            // Groups that leave their node; {6, 7, 8} has one rank on the second, which {15, 16, 17} leaves, too.
            (3, 1, group(3, 1, 2)),
            (6, 1, group(6, 2, 2)),
            (12, 1, group(12, 4, 2)),
        ] {
            assert_eq!(layout(size, stride, 8, if size % 3 == 0 { 24 } else { 64 }), expected, "{size}, {stride}");
        }
    }
}
