//! Python bindings for clusters: typed fields, and clusters with some of them changed.
use std::path::PathBuf;

use paceline_iteration::{Compression, Cost};
use paceline_model::cluster::{
    Channel, CompressionCosts as ModelCosts, Degraded as ModelDegraded, Fabric as ModelFabric, IntraLink, Jitter,
    Mesh as ModelMesh, PartCosts as ModelPart, Racks as ModelRacks, ServerPlace, Shape, Sockets as ModelSockets,
    Switch as ModelSwitch,
};
use paceline_model::{Cluster as ModelCluster, Rate, Time};
use paceline_schedule::Refusal;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::fields::{getters, record};
use crate::trace::within_a_day;
use crate::{Reduced, user_error};

/// The machines and the network between them.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Cluster(pub ModelCluster);

record! {
    /// Nodes in racks.
    Racks(nodes_per_rack, oversubscription) {
        nodes_per_rack: u32,
        oversubscription: f64,
    }
}

record! {
    /// Features of the network between the nodes beyond unicast.
    Switch(*, multicast, aggregation, cut_through=false, memory=None, radix=None) {
        multicast: bool,
        aggregation: bool,
        cut_through: bool,
        memory: Option<u64>,
        radix: Option<u32>,
    }
}

record! {
    /// A link, or all links of a switch, that carries less than it should.
    Degraded(link, factor) {
        link: String,
        factor: f64,
    }
}

record! {
    /// A slow rank.
    Straggler(rank, factor) {
        rank: u32,
        factor: f64,
    }
}

record! {
    /// GPUs of a node with links to some of the others.
    Mesh(peers, bridge_bps) {
        peers: u32,
        bridge_bps: f64,
    }
}

record! {
    /// TCP sockets of NCCL between two ranks on different nodes.
    Sockets(threads, per_thread) {
        threads: u32,
        per_thread: u32,
    }
}

record! {
    /// Time of a part of compressing, in seconds.
    PartCosts(*, bucket_s=0.0, tensor_s=0.0, element_s=0.0, received_s=0.0) {
        bucket_s: f64,
        tensor_s: f64,
        element_s: f64,
        received_s: f64,
    }
}

impl PartCosts {
    fn of(part: ModelPart) -> PartCosts {
        let ModelPart { bucket_s, tensor_s, element_s, received_s } = part;
        PartCosts { bucket_s, tensor_s, element_s, received_s }
    }

    fn model(&self) -> ModelPart {
        let PartCosts { bucket_s, tensor_s, element_s, received_s } = *self;
        ModelPart { bucket_s, tensor_s, element_s, received_s }
    }
}

record! {
    /// Time to compress by one method.
    CompressionCosts(method, compress, between, decompress) {
        method: String,
        compress: PartCosts,
        between: PartCosts,
        decompress: PartCosts,
    }
}

impl CompressionCosts {
    /// The method by its name, such as `powersgd:4`, and its costs.
    pub fn compression(&self) -> Result<Compression, Refusal> {
        let cost = |part: &PartCosts| {
            let PartCosts { bucket_s, tensor_s, element_s, received_s } = *part;
            Cost { bucket_s, tensor_s, element_s, received_s }
        };
        Ok(Compression {
            method: self.method.parse()?,
            compress: cost(&self.compress),
            between: cost(&self.between),
            decompress: cost(&self.decompress),
        })
    }
}

/// The switches between the nodes.
#[pyclass(frozen, eq, from_py_object, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Fabric(ModelFabric);

getters! { Fabric, self {
    kind: &'static str = self.0.shape.name();
    nodes_per_leaf: Option<u32> = match self.0.shape {
        Shape::LeafSpine { nodes_per_leaf, .. } | Shape::Rails { nodes_per_leaf, .. } => Some(nodes_per_leaf),
        _ => None,
    };
    spines: Option<u32> = match self.0.shape {
        Shape::LeafSpine { spines, .. } | Shape::Rails { spines, .. } => Some(spines),
        _ => None,
    };
    radix: Option<u32> = match self.0.shape {
        Shape::FatTree { radix, .. } => Some(radix),
        _ => None,
    };
    oversubscription: Option<f64> = match self.0.shape {
        // Given by the links' own rate.
        _ if self.0.link_bandwidth.is_some() && !matches!(self.0.shape, Shape::FatTree { .. }) => None,
        Shape::LeafSpine { oversubscription, .. }
        | Shape::Rails { oversubscription, .. }
        | Shape::FatTree { oversubscription, .. } => Some(oversubscription),
        _ => None,
    };
    routers_per_group: Option<u32> = match self.0.shape {
        Shape::Dragonfly { routers_per_group, .. } => Some(routers_per_group),
        _ => None,
    };
    global_links: Option<u32> = match self.0.shape {
        Shape::Dragonfly { global_links, .. } => Some(global_links),
        _ => None,
    };
    groups: Option<u32> = match self.0.shape {
        Shape::Dragonfly { groups, .. } => Some(groups),
        _ => None,
    };
    dimensions: Option<Vec<u32>> = match &self.0.shape {
        Shape::Torus { dimensions } => Some(dimensions.clone()),
        _ => None,
    };
    nodes_per_switch: u32 = self.0.nodes_per_switch();
    capacity: Option<u64> = self.0.capacity();
    link_bandwidth_bps: Option<f64> = self.0.link_bandwidth.map(|rate| rate.0);
    hop_latency_s: f64 = self.0.hop_latency.seconds();
    routing: &'static str = self.0.routing.name();
}

    /// The same fabric with links between switches of a rate of their own.
    fn with_link_bandwidth(&self, bits_per_s: f64) -> Fabric {
        let mut fabric = self.0.clone();
        if let Shape::LeafSpine { oversubscription, .. } | Shape::Rails { oversubscription, .. } = &mut fabric.shape {
            *oversubscription = 1.0;
        }
        fabric.link_bandwidth = Some(Rate(bits_per_s));
        Fabric(fabric)
    }

    /// The same fabric with links between switches that carry more or less of the nodes' rates.
    fn with_oversubscription(&self, oversubscription: f64) -> PyResult<Fabric> {
        let mut fabric = self.0.clone();
        match &mut fabric.shape {
            Shape::LeafSpine { oversubscription: own, .. }
            | Shape::Rails { oversubscription: own, .. }
            | Shape::FatTree { oversubscription: own, .. } => *own = oversubscription,
            other => return Err(user_error(
                    Refusal::new(format!("fabric: a {} has no oversubscription", other.name()))
                        .remedy("a leaf-spine, rails or fat-tree"),
                )),
        }
        Ok(Fabric(fabric))
    }
}

/// A field's value from Python; errors name the field.
fn value<'py, T: FromPyObjectOwned<'py>>(field: &str, value: &Bound<'py, PyAny>) -> PyResult<T> {
    value.extract().map_err(|error: T::Error| {
        let error: PyErr = error.into();
        user_error(format!("{field}: {}", error.value(value.py())))
    })
}

fn rate(field: &str, given: &Bound<'_, PyAny>) -> PyResult<Rate> {
    value(field, given).map(Rate)
}

fn optional_rate(field: &str, given: &Bound<'_, PyAny>) -> PyResult<Option<Rate>> {
    value::<Option<f64>>(field, given).map(|rate| rate.map(Rate))
}

fn delay(field: &str, given: &Bound<'_, PyAny>) -> PyResult<Time> {
    let seconds: f64 = value(field, given)?;
    let wrong = || {
        user_error(
            Refusal::new(format!("{field}: must be 0 s to a day, not {seconds} s")).remedy(format!("{field}=1e-5")),
        )
    };
    within_a_day(seconds).ok_or_else(wrong)
}

/// One of several values by name.
fn named<T: Copy>(field: &str, given: &Bound<'_, PyAny>, all: &[T], name: fn(T) -> &'static str) -> PyResult<T> {
    let word: String = value(field, given)?;
    all.iter().copied().find(|&one| name(one) == word).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|&one| name(one)).collect();
        user_error(
            Refusal::new(format!("{field}: unknown {field} '{word}'")).remedy(format!("one of {}", names.join(", "))),
        )
    })
}

/// Sets one field by its name in Python.
fn set(cluster: &mut ModelCluster, field: &str, given: &Bound<'_, PyAny>) -> PyResult<()> {
    match field {
        "name" => cluster.name = value(field, given)?,
        "provenance" => cluster.provenance = value(field, given)?,
        "bandwidth_bps" => cluster.bandwidth = rate(field, given)?,
        "bandwidth_measured" => cluster.bandwidth_measured = value(field, given)?,
        "channel" => {
            let all = [Channel::Unknown, Channel::Auto, Channel::Tcp, Channel::Rdma];
            cluster.channel = named(field, given, &all, Channel::name)?;
        }
        "efficiency" => cluster.efficiency = value(field, given)?,
        "stream_bandwidth_bps" => cluster.stream_bandwidth = optional_rate(field, given)?,
        "latency_s" => cluster.latency = delay(field, given)?,
        "message_overhead_s" => cluster.message_overhead = delay(field, given)?,
        "gpus_per_node" => cluster.gpus_per_node = value(field, given)?,
        "gpus_per_rank" => cluster.gpus_per_rank = value(field, given)?,
        "gpu" => cluster.gpu = value::<Option<String>>(field, given)?.unwrap_or_default(),
        "nics_per_node" => cluster.nics_per_node = value(field, given)?,
        "gpudirect" => cluster.gpudirect = value(field, given)?,
        "nccl_plugin" => cluster.nccl_plugin = value::<Option<String>>(field, given)?.unwrap_or_default(),
        "nccl_sockets" => {
            let Sockets { threads, per_thread } = value(field, given)?;
            cluster.nccl_sockets = ModelSockets { threads, per_thread };
        }
        "intra_link" => {
            let all = [IntraLink::Pcie, IntraLink::Xgmi, IntraLink::Nvlink, IntraLink::Nvswitch];
            cluster.intra_link = if given.is_none() { None } else { Some(named(field, given, &all, IntraLink::name)?) };
        }
        "intra_bandwidth_bps" => cluster.intra_bandwidth = rate(field, given)?,
        "peer_access" => cluster.peer_access = value(field, given)?,
        "sockets" => cluster.sockets = value(field, given)?,
        "mesh" => {
            let mesh: Option<Mesh> = value(field, given)?;
            cluster.mesh = mesh.map(|Mesh { peers, bridge_bps }| ModelMesh { peers, bridge: Rate(bridge_bps) });
        }
        "intra_latency_s" => cluster.intra_latency = delay(field, given)?,
        "host_bandwidth_bps" => cluster.host_bandwidth = optional_rate(field, given)?,
        "reduction_bandwidth_bps" => cluster.reduction_bandwidth = optional_rate(field, given)?,
        "node_contention" => cluster.node_contention = value(field, given)?,
        "servers" => {
            cluster.servers = named(field, given, &[ServerPlace::OwnNodes, ServerPlace::Colocated], ServerPlace::name)?;
        }
        "racks" => {
            let racks: Option<Racks> = value(field, given)?;
            cluster.racks =
                racks.map(|Racks { nodes_per_rack, oversubscription }| ModelRacks { nodes_per_rack, oversubscription });
        }
        "fabric" => cluster.fabric = value::<Option<Fabric>>(field, given)?.map(|fabric| fabric.0),
        "degraded" => {
            let links: Vec<Degraded> = value(field, given)?;
            cluster.degraded =
                links.into_iter().map(|Degraded { link, factor }| ModelDegraded { link, factor }).collect();
        }
        "switch" => {
            let Switch { multicast, aggregation, cut_through, memory, radix } = value(field, given)?;
            cluster.switch = ModelSwitch { multicast, aggregation, cut_through, memory, radix };
        }
        "stragglers" => {
            let slow: Vec<Straggler> = value(field, given)?;
            cluster.stragglers = slow.into_iter().map(|Straggler { rank, factor }| (rank, factor)).collect();
        }
        "jitter" => cluster.jitter = value::<Option<f64>>(field, given)?.map(|sigma| Jitter { sigma }),
        "compression_costs" => {
            let costs: Vec<CompressionCosts> = value(field, given)?;
            cluster.compression_costs = costs
                .into_iter()
                .map(|CompressionCosts { method, compress, between, decompress }| ModelCosts {
                    method,
                    compress: compress.model(),
                    between: between.model(),
                    decompress: decompress.model(),
                })
                .collect();
        }
        other => {
            return Err(pyo3::exceptions::PyTypeError::new_err(format!("a cluster has no field '{other}'")));
        }
    }
    Ok(())
}

getters! { Cluster, self {
    links: String = self.0.link_names();
    nodes_per_switch: Option<u32> = {
        let racks = self.0.racks.map(|racks| racks.nodes_per_rack);
        racks.or_else(|| self.0.fabric.as_ref().map(|fabric| fabric.nodes_per_switch()))
    };
    most_nodes: Option<u64> = self.0.fabric.as_ref().and_then(|fabric| fabric.capacity());
    name: &str = &self.0.name;
    provenance: &str = &self.0.provenance;
    bandwidth_bps: f64 = self.0.bandwidth.0;
    bandwidth_measured: bool = self.0.bandwidth_measured;
    channel: &'static str = self.0.channel.name();
    efficiency: Option<f64> = self.0.efficiency;
    stream_bandwidth_bps: Option<f64> = self.0.stream_bandwidth.map(|rate| rate.0);
    latency_s: f64 = self.0.latency.seconds();
    message_overhead_s: f64 = self.0.message_overhead.seconds();
    gpus_per_node: u32 = self.0.gpus_per_node;
    gpus_per_rank: u32 = self.0.gpus_per_rank;
    gpu: Option<&str> = Some(self.0.gpu.as_str()).filter(|gpu| !gpu.is_empty());
    nics_per_node: u32 = self.0.nics_per_node;
    gpudirect: bool = self.0.gpudirect;
    nccl_plugin: Option<&str> = Some(self.0.nccl_plugin.as_str()).filter(|plugin| !plugin.is_empty());
    nccl_sockets: Sockets = {
        let ModelSockets { threads, per_thread } = self.0.nccl_sockets;
        Sockets { threads, per_thread }
    };
    intra_link: Option<&'static str> = self.0.intra_link.map(IntraLink::name);
    intra_bandwidth_bps: f64 = self.0.intra_bandwidth.0;
    peer_access: bool = self.0.peer_access;
    sockets: u32 = self.0.sockets;
    mesh: Option<Mesh> = self.0.mesh.map(|ModelMesh { peers, bridge }| Mesh { peers, bridge_bps: bridge.0 });
    intra_latency_s: f64 = self.0.intra_latency.seconds();
    host_bandwidth_bps: Option<f64> = self.0.host_bandwidth.map(|rate| rate.0);
    reduction_bandwidth_bps: Option<f64> = self.0.reduction_bandwidth.map(|rate| rate.0);
    node_contention: f64 = self.0.node_contention;
    servers: &'static str = self.0.servers.name();
    racks: Option<Racks> = {
        let of = |ModelRacks { nodes_per_rack, oversubscription }| Racks { nodes_per_rack, oversubscription };
        self.0.racks.map(of)
    };
    fabric: Option<Fabric> = self.0.fabric.clone().map(Fabric);
    /// Whether every GPU has a NIC of its own, whose rate `bandwidth_bps` is.
    has_rails: bool = self.0.has_rails();
    degraded: Vec<Degraded> = {
        let of = |one: &ModelDegraded| Degraded { link: one.link.clone(), factor: one.factor };
        self.0.degraded.iter().map(of).collect()
    };
    switch: Switch = {
        let ModelSwitch { multicast, aggregation, cut_through, memory, radix } = self.0.switch;
        Switch { multicast, aggregation, cut_through, memory, radix }
    };
    stragglers: Vec<Straggler> = self.0.stragglers.iter().map(|&(rank, factor)| Straggler { rank, factor }).collect();
    /// The standard deviation of the logarithm of computation times.
    jitter: Option<f64> = self.0.jitter.map(|jitter| jitter.sigma);
    compression_costs: Vec<CompressionCosts> = {
        self.0
            .compression_costs
            .iter()
            .map(|costs| CompressionCosts {
                method: costs.method.clone(),
                compress: PartCosts::of(costs.compress),
                between: PartCosts::of(costs.between),
                decompress: PartCosts::of(costs.decompress),
            })
            .collect()
    };
}

    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Cluster> {
        py.detach(|| ModelCluster::read(&path)).map(Cluster).map_err(user_error)
    }

    #[staticmethod]
    fn from_json(text: &[u8], source: &str) -> PyResult<Cluster> {
        ModelCluster::from_json(text, source).map(Cluster).map_err(user_error)
    }

    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// The same cluster with other values of some fields.
    #[pyo3(signature = (**fields))]
    fn replace(&self, fields: Option<&Bound<'_, PyDict>>) -> PyResult<Cluster> {
        let mut cluster = self.0.clone();
        for (field, given) in fields.into_iter().flatten() {
            set(&mut cluster, &field.extract::<String>()?, &given)?;
        }
        cluster.checked("cluster").map(Cluster).map_err(user_error)
    }

    /// The same cluster with fields in the spelling of the file format, as a JSON object.
    fn with_fields(&self, fields: &str) -> PyResult<Cluster> {
        self.0.with_fields(fields, "cluster").map(Cluster).map_err(user_error)
    }

    fn __repr__(&self) -> String {
        format!("Cluster({:?})", self.0.name)
    }

    /// For pickle: between processes a cluster travels as its file.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let class = py.get_type::<Cluster>().getattr("from_json")?;
        Ok((class, (self.0.to_json().into_bytes(), self.0.name.clone())))
    }
}
