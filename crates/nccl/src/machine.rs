//! Nodes and their links as NCCL sees them, and a group of ranks.
use crate::calibration::Generation;
use crate::names::{NcclError, counted, named};
use crate::transport::Transport;

named! {
    /// The links between the GPUs of a node.
    IntraLink {
        /// PCI Express, through switches or the host.
        Pcie = "pcie",
        /// AMD's Infinity Fabric from GPU to GPU.
        Xgmi = "xgmi",
        /// NVLink from GPU to GPU.
        Nvlink = "nvlink",
        /// NVLink to switches.
        Nvswitch = "nvswitch",
    }
}

/// The rate of a PCI Express 3.0 x16 slot; a faster link is taken for NVLink.
const PCI_MOST_BPS: f64 = 128e9;

/// The ranks of a communicator: `per_node` on each of its nodes, the last of which may have fewer.
///
/// `concurrent` groups of this layout run the same collective at once on the same nodes and share the NICs, such as the
/// groups that all-reduce shards under HSDP. Every number is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// All ranks.
    pub ranks: u32,
    /// Ranks on a node.
    pub per_node: u32,
    /// Groups of this layout.
    pub concurrent: u32,
}

impl Group {
    /// A group by itself.
    #[must_use]
    pub fn new(ranks: u32, per_node: u32) -> Group {
        Group { ranks, per_node, concurrent: 1 }
    }

    /// Nodes with ranks of the group.
    #[must_use]
    pub fn nodes(self) -> u32 {
        self.ranks.div_ceil(self.per_node)
    }

    /// Ranks on a full node: `per_node`, or all if there are fewer.
    #[must_use]
    pub fn per_node_used(self) -> u32 {
        self.ranks.min(self.per_node)
    }
}

/// Nodes and their links. Rates are bytes per second, each way.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Of the cluster.
    pub name: String,
    /// Of the GPUs.
    pub generation: &'static Generation,
    /// GPUs of a node.
    pub gpus_per_node: u32,
    /// GPUs that a rank stands for, each with a slot of its own.
    pub gpus_per_rank: u32,
    /// The links between them.
    pub intra_link: IntraLink,
    /// Rate of a GPU's link inside the node.
    pub link: f64,
    /// Whether GPUs reach each other's memory over PCI Express; otherwise they use the host's.
    pub peer_access: bool,
    /// Processors of a node, among which its PCI Express slots are divided.
    pub sockets: u32,
    /// Rate of all NICs of a node.
    pub nominal: f64,
    /// The same of the slowest node.
    pub network: f64,
    /// NICs of a node.
    pub nics: u32,
    /// The share of `network` that messages get; `None`: the calibrated one.
    pub nic_share: Option<f64>,
    /// Seconds that a hop between nodes takes beside NCCL's own figures: the latency of TCP.
    pub hop_s: f64,
    /// The transport of messages between nodes.
    pub transport: Transport,
    /// Assumptions about links and GPUs that the cluster does not name.
    pub assumed: Vec<String>,
}

impl Machine {
    /// A machine of which only rates are known, bytes per second: its GPUs and links are those that usually have them.
    #[must_use]
    pub fn of_rates(gpus_per_node: u32, inside: f64, between: f64) -> Machine {
        let generation = Generation::of_links(8.0 * inside);
        Machine {
            name: String::new(),
            generation,
            gpus_per_node,
            gpus_per_rank: 1,
            intra_link: Machine::usual_link(8.0 * inside, generation, gpus_per_node > 1),
            link: inside,
            peer_access: true,
            sockets: 1,
            nominal: between,
            network: between,
            nics: 1,
            nic_share: Some(1.0),
            hop_s: 0.0,
            transport: Transport::Rdma,
            assumed: Vec::new(),
        }
    }

    /// The usual links of this rate, bits per second; `switched`: whether switches are possible.
    #[must_use]
    pub fn usual_link(bps: f64, generation: &Generation, switched: bool) -> IntraLink {
        match () {
            () if bps <= PCI_MOST_BPS => IntraLink::Pcie,
            () if generation.name == "cdna" => IntraLink::Xgmi,
            () if switched && generation.name != "volta" => IntraLink::Nvswitch,
            () => IntraLink::Nvlink,
        }
    }

    /// Whether the switches inside the node add and multicast.
    #[must_use]
    pub fn has_nvls(&self) -> bool {
        self.intra_link == IntraLink::Nvswitch && self.generation.nvls_share > 0.0
    }

    /// The wire rate between nodes that a group gets.
    ///
    /// A group reaches the NICs of its own GPUs, and concurrent groups share them: with a NIC for each GPU, a group of
    /// one rank a node has one NIC, and all groups together have all of them. A GPU has no more than its slot feeds.
    #[must_use]
    pub fn network_of(&self, group: Group) -> f64 {
        let (nics, ranks) = (f64::from(self.nics), f64::from(group.per_node_used()));
        let fed = f64::from(self.gpus_per_rank) * (self.generation.slot * nics / self.nominal).ceil();
        let reached = (ranks * (nics / f64::from(self.gpus_per_node)).min(fed)).max(1.0);
        self.network * (reached / nics).min(1.0 / f64::from(group.concurrent))
    }

    /// Refuses a group that does not fit on the nodes.
    ///
    /// # Errors
    /// More ranks on a node than it has GPUs.
    pub fn check(&self, group: Group) -> Result<(), NcclError> {
        let Group { per_node, concurrent, .. } = group;
        if u64::from(per_node) * u64::from(concurrent) <= u64::from(self.gpus_per_node) {
            return Ok(());
        }
        let groups = if concurrent > 1 { format!("{concurrent} groups of {per_node}") } else { per_node.to_string() };
        let gpus = counted(self.gpus_per_node, "GPU");
        let reason = format!("per_node: {groups} ranks on a node of {}, which has {gpus}", self.name);
        let most = self.gpus_per_node / concurrent.max(1);
        Err(NcclError { reason, remedy: format!("per_node={most}") })
    }
}
