//! A cluster: nodes, links, racks, and the switch's features. The file format is described in
//! docs/reference/cluster-format.md.
mod check;
mod fabric;
mod file;
mod write;

pub use fabric::{Degraded, Fabric, Routing, Shape};
pub use write::{written_rate, written_time};

use crate::units::{Rate, Time};

/// The default rate inside a node: a PCI Express 3.0 x16 slot carries 15.75 GB/s on the wire (PCI-SIG base
/// specification 3.0: 8 GT/s, 128b/130b) and about 12.5 GB/s after packet headers.
pub const DEFAULT_INTRA_BANDWIDTH: Rate = Rate(100e9);

/// Nodes in racks; a rack's uplink is narrower than the sum of its nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Racks {
    /// Number of nodes that share one uplink, workers' nodes first.
    pub nodes_per_rack: u32,
    /// Sum of the nodes' rates over the uplink's rate; 1 is full bisection.
    pub oversubscription: f64,
}

/// Features of the network between the nodes beyond unicast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switch {
    /// Copies one message to many ports.
    pub multicast: bool,
    /// Adds what several ports send, and forwards the sum.
    pub aggregation: bool,
    /// It forwards a sum while it arrives, not when a whole message has arrived (store and forward).
    pub cut_through: bool,
    /// Bytes of partial sums that it can hold at once; `None`: unlimited.
    pub memory: Option<u64>,
    /// Most workers in one aggregation; more become several partial sums. `None`: unlimited.
    pub radix: Option<u32>,
}

/// Where parameter servers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPlace {
    /// Each on its own node.
    OwnNodes,
    /// Server i on node i (modulo the number of nodes), sharing its NIC.
    Colocated,
}

impl ServerPlace {
    /// The name that users type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ServerPlace::OwnNodes => "own-nodes",
            ServerPlace::Colocated => "colocated",
        }
    }
}

/// Carrier of messages between nodes. Libraries differ in their share of each (docs/reference/libraries.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Channel {
    /// Not said: `bandwidth` is what messages get.
    #[default]
    Unknown,
    /// The usual one for the rate: TCP on slow links, RDMA on fast ones.
    Auto,
    /// TCP; `bandwidth` is the wire's.
    Tcp,
    /// RDMA (InfiniBand, RoCE); `bandwidth` is the wire's.
    Rdma,
}

impl Channel {
    /// The name that users type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Channel::Unknown => "none",
            Channel::Auto => "auto",
            Channel::Tcp => "tcp",
            Channel::Rdma => "rdma",
        }
    }
}

/// Link between the GPUs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntraLink {
    /// PCI Express, through switches or the host.
    Pcie,
    /// AMD's Infinity Fabric from GPU to GPU.
    Xgmi,
    /// NVLink from GPU to GPU.
    Nvlink,
    /// NVLink to switches. From Hopper on they add and multicast (NVLink SHARP, "NVLS").
    Nvswitch,
}

impl IntraLink {
    /// The name that users type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IntraLink::Pcie => "pcie",
            IntraLink::Xgmi => "xgmi",
            IntraLink::Nvlink => "nvlink",
            IntraLink::Nvswitch => "nvswitch",
        }
    }
}

/// The GPUs of a node of which each has links to some of the others; the rest are reached over one bus.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mesh {
    /// How many others each GPU has a link to.
    pub peers: u32,
    /// Rate of the bus over which all others are reached, each way.
    pub bridge: Rate,
}

/// TCP sockets of NCCL between two ranks on different nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sockets {
    /// Helper threads of a connection (`NCCL_SOCKET_NTHREADS`); 0: the proxy's thread does it all.
    pub threads: u32,
    /// Sockets of a thread (`NCCL_NSOCKS_PERTHREAD`).
    pub per_thread: u32,
}

/// How a worker's compute time varies from iteration to iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter {
    /// Standard deviation of the logarithm of the factor; the factor's median is 1.
    pub sigma: f64,
}

/// Time to compress a bucket by one method, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressionCosts {
    /// As users type it: `powersgd:4`.
    pub method: String,
    /// Before the first exchange.
    pub compress: PartCosts,
    /// Between two exchanges.
    pub between: PartCosts,
    /// After the last one.
    pub decompress: PartCosts,
}

/// Time of a part of it, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PartCosts {
    /// For a bucket.
    pub bucket_s: f64,
    /// For each tensor that is compressed.
    pub tensor_s: f64,
    /// For each element that is compressed.
    pub element_s: f64,
    /// For each element that arrives.
    pub received_s: f64,
}

/// The machines and the network between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The name for tables.
    pub name: String,
    /// The source of the figures.
    pub provenance: String,
    /// Rate of a node's NIC, each way.
    pub bandwidth: Rate,
    /// Whether a probe could measure that: one of a single host repeats the rate inside it.
    pub bandwidth_measured: bool,
    /// Carrier of messages between nodes.
    pub channel: Channel,
    /// The share of `bandwidth` that messages get: payload over bytes on the wire. `None`: the channel's.
    pub efficiency: Option<f64>,
    /// The most that one connection between two nodes carries. `None`: what the channel's connections usually carry.
    pub stream_bandwidth: Option<Rate>,
    /// Latency between two nodes, one way.
    pub latency: Time,
    /// Fixed cost of a message at its sender; the link is busy during it.
    pub message_overhead: Time,
    /// Ranks on a node.
    pub gpus_per_node: u32,
    /// GPUs that a rank stands for, such as tensor-parallel ones: each has a slot of its own.
    pub gpus_per_rank: u32,
    /// The GPUs, by name; empty if not said.
    pub gpu: String,
    /// NICs that make up `bandwidth`, evenly. The network models see one of the total rate; NCCL's model gives each
    /// group of ranks those that it reaches. 1 with rails, where every GPU has its own.
    pub nics_per_node: u32,
    /// Whether NICs read and write the memory of GPUs (GPUDirect RDMA); otherwise, messages pass through the host's.
    pub gpudirect: bool,
    /// The plugin by which NCCL uses RDMA, such as EFA's `aws-ofi-nccl`; empty: it needs none.
    pub nccl_plugin: String,
    /// NCCL's sockets where it has no RDMA.
    pub nccl_sockets: Sockets,
    /// `None`: not said.
    pub intra_link: Option<IntraLink>,
    /// Rate of a rank's link inside the node, each way.
    pub intra_bandwidth: Rate,
    /// Whether GPUs reach each other's memory over PCI Express; otherwise what they exchange goes through the host's.
    pub peer_access: bool,
    /// Processors of a node, among which its PCI Express slots are divided.
    pub sockets: u32,
    /// `None`: every GPU reaches every other at `intra_bandwidth`.
    pub mesh: Option<Mesh>,
    /// Latency between two ranks of a node, one way.
    pub intra_latency: Time,
    /// Rate at which a rank or server itself processes the bytes of a message to or from another node, each way: copies
    /// between a GPU's memory and the host's, serialization. `None`: it takes no time.
    pub host_bandwidth: Option<Rate>,
    /// Rate at which a rank or server adds what it receives. `None`: additions take no time.
    pub reduction_bandwidth: Option<Rate>,
    /// By which share computation takes longer while several GPUs of a node compute: shared boards, power, host cores.
    pub node_contention: f64,
    /// Where servers run.
    pub servers: ServerPlace,
    /// `None`: full bisection.
    pub racks: Option<Racks>,
    /// The switches between the nodes; `None`: one switch, or racks.
    pub fabric: Option<Fabric>,
    /// Links that are slow or have failed.
    pub degraded: Vec<Degraded>,
    /// Features of the switch.
    pub switch: Switch,
    /// Rank, and the factor by which all its computation takes longer.
    pub stragglers: Vec<(u32, f64)>,
    /// Random variation per worker and iteration, seeded.
    pub jitter: Option<Jitter>,
    /// Time to compress gradients on its machines, as measured by `paceline probe`.
    pub compression_costs: Vec<CompressionCosts>,
}

impl Cluster {
    /// Whether every GPU has a NIC of its own, whose rate `bandwidth` is.
    #[must_use]
    pub fn has_rails(&self) -> bool {
        matches!(&self.fabric, Some(Fabric { shape: Shape::Rails { .. }, .. }))
    }

    /// Names that [`Degraded::link`] accepts, as patterns in which `N` stands for any number.
    #[must_use]
    pub fn link_names(&self) -> String {
        let racks = self.racks.map_or("", |_| "; rackN (its uplink)");
        let fabric = self.fabric.as_ref().map_or(String::new(), |fabric| {
            let rails = if matches!(fabric.shape, Shape::Rails { .. }) { "; workerN (the NIC of one GPU)" } else { "" };
            format!("{rails}; {}; a switch for all of its links", fabric.link_names())
        });
        format!("nodeN (its NICs){racks}{fabric}")
    }
}

impl Default for Cluster {
    /// 25 Gbit/s, no latency, one GPU per node, and a switch with all features, because forecasts often ask what a
    /// better network would bring.
    fn default() -> Cluster {
        Cluster {
            name: "flat".into(),
            provenance: "full bisection, no latency, a switch that multicasts and aggregates".into(),
            bandwidth: Rate(25e9),
            bandwidth_measured: true,
            channel: Channel::Unknown,
            efficiency: None,
            stream_bandwidth: None,
            latency: Time::ZERO,
            message_overhead: Time::ZERO,
            gpus_per_node: 1,
            gpus_per_rank: 1,
            gpu: String::new(),
            nics_per_node: 1,
            gpudirect: true,
            nccl_plugin: String::new(),
            nccl_sockets: Sockets { threads: 0, per_thread: 1 },
            intra_link: None,
            intra_bandwidth: DEFAULT_INTRA_BANDWIDTH,
            peer_access: true,
            sockets: 1,
            mesh: None,
            intra_latency: Time::ZERO,
            host_bandwidth: None,
            reduction_bandwidth: None,
            node_contention: 0.0,
            servers: ServerPlace::OwnNodes,
            racks: None,
            fabric: None,
            degraded: Vec::new(),
            switch: Switch { multicast: true, aggregation: true, cut_through: false, memory: None, radix: None },
            stragglers: Vec::new(),
            jitter: None,
            compression_costs: Vec::new(),
        }
    }
}
