//! Python bindings for clusters: typed fields, and clusters with some of them changed.
use std::path::PathBuf;

use paceline_model::cluster::{
    Channel, CompressionCosts as ModelCosts, Degraded as ModelDegraded, Fabric as ModelFabric, IntraLink, Jitter,
    Mesh as ModelMesh, PartCosts as ModelPart, Racks as ModelRacks, ServerPlace, Shape, Switch as ModelSwitch,
};
use paceline_model::{Cluster as ModelCluster, Rate, Time};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::trace::within_a_day;
use crate::{Reduced, user_error};

/// The machines and the network between them.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Cluster(pub ModelCluster);

/// Nodes in racks.
#[pyclass(frozen, eq, get_all, from_py_object, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Racks {
    nodes_per_rack: u32,
    oversubscription: f64,
}

#[pymethods]
impl Racks {
    #[new]
    fn new(nodes_per_rack: u32, oversubscription: f64) -> Racks {
        Racks { nodes_per_rack, oversubscription }
    }

    fn __repr__(&self) -> String {
        format!("Racks({}, {:?})", self.nodes_per_rack, self.oversubscription)
    }
}

/// Features of the network between the nodes beyond unicast.
#[pyclass(frozen, eq, get_all, from_py_object, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Switch {
    multicast: bool,
    aggregation: bool,
    cut_through: bool,
    memory: Option<u64>,
    radix: Option<u32>,
}

#[pymethods]
impl Switch {
    #[new]
    #[pyo3(signature = (*, multicast, aggregation, cut_through=false, memory=None, radix=None))]
    fn new(multicast: bool, aggregation: bool, cut_through: bool, memory: Option<u64>, radix: Option<u32>) -> Switch {
        Switch { multicast, aggregation, cut_through, memory, radix }
    }

    fn __repr__(&self) -> String {
        format!("Switch(multicast={}, aggregation={})", python(self.multicast), python(self.aggregation))
    }
}

fn python(truth: bool) -> &'static str {
    if truth { "True" } else { "False" }
}

/// A link, or all links of a switch, that carries less than it should.
#[pyclass(frozen, eq, get_all, from_py_object, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Degraded {
    link: String,
    factor: f64,
}

#[pymethods]
impl Degraded {
    #[new]
    fn new(link: String, factor: f64) -> Degraded {
        Degraded { link, factor }
    }

    fn __repr__(&self) -> String {
        format!("Degraded({:?}, {:?})", self.link, self.factor)
    }
}

/// A slow rank.
#[pyclass(frozen, eq, get_all, from_py_object, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Straggler {
    rank: u32,
    factor: f64,
}

#[pymethods]
impl Straggler {
    #[new]
    fn new(rank: u32, factor: f64) -> Straggler {
        Straggler { rank, factor }
    }

    fn __repr__(&self) -> String {
        format!("Straggler({}, {:?})", self.rank, self.factor)
    }
}

/// GPUs of a node with links to some of the others.
#[pyclass(frozen, eq, get_all, from_py_object, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Mesh {
    peers: u32,
    bridge_bps: f64,
}

#[pymethods]
impl Mesh {
    #[new]
    fn new(peers: u32, bridge_bps: f64) -> Mesh {
        Mesh { peers, bridge_bps }
    }

    fn __repr__(&self) -> String {
        format!("Mesh({}, {:?})", self.peers, self.bridge_bps)
    }
}

/// What a part of compressing takes, in seconds.
#[pyclass(frozen, eq, get_all, from_py_object, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct PartCosts {
    bucket_s: f64,
    tensor_s: f64,
    element_s: f64,
    received_s: f64,
}

#[pymethods]
impl PartCosts {
    #[new]
    #[pyo3(signature = (*, bucket_s=0.0, tensor_s=0.0, element_s=0.0, received_s=0.0))]
    fn new(bucket_s: f64, tensor_s: f64, element_s: f64, received_s: f64) -> PartCosts {
        PartCosts { bucket_s, tensor_s, element_s, received_s }
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

/// What compressing takes by one method.
#[pyclass(frozen, eq, get_all, from_py_object, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct CompressionCosts {
    method: String,
    compress: PartCosts,
    between: PartCosts,
    decompress: PartCosts,
}

#[pymethods]
impl CompressionCosts {
    #[new]
    fn new(method: String, compress: PartCosts, between: PartCosts, decompress: PartCosts) -> CompressionCosts {
        CompressionCosts { method, compress, between, decompress }
    }
}

/// The switches between the nodes.
#[pyclass(frozen, eq, from_py_object, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct Fabric(ModelFabric);

#[pymethods]
impl Fabric {
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.shape.name()
    }

    #[getter]
    fn nodes_per_leaf(&self) -> Option<u32> {
        match self.0.shape {
            Shape::LeafSpine { nodes_per_leaf, .. } | Shape::Rails { nodes_per_leaf, .. } => Some(nodes_per_leaf),
            _ => None,
        }
    }

    #[getter]
    fn spines(&self) -> Option<u32> {
        match self.0.shape {
            Shape::LeafSpine { spines, .. } | Shape::Rails { spines, .. } => Some(spines),
            _ => None,
        }
    }

    #[getter]
    fn radix(&self) -> Option<u32> {
        match self.0.shape {
            Shape::FatTree { radix, .. } => Some(radix),
            _ => None,
        }
    }

    #[getter]
    fn oversubscription(&self) -> Option<f64> {
        match self.0.shape {
            // Given by the links' own rate.
            _ if self.0.link_bandwidth.is_some() && !matches!(self.0.shape, Shape::FatTree { .. }) => None,
            Shape::LeafSpine { oversubscription, .. }
            | Shape::Rails { oversubscription, .. }
            | Shape::FatTree { oversubscription, .. } => Some(oversubscription),
            _ => None,
        }
    }

    #[getter]
    fn routers_per_group(&self) -> Option<u32> {
        match self.0.shape {
            Shape::Dragonfly { routers_per_group, .. } => Some(routers_per_group),
            _ => None,
        }
    }

    #[getter]
    fn global_links(&self) -> Option<u32> {
        match self.0.shape {
            Shape::Dragonfly { global_links, .. } => Some(global_links),
            _ => None,
        }
    }

    #[getter]
    fn groups(&self) -> Option<u32> {
        match self.0.shape {
            Shape::Dragonfly { groups, .. } => Some(groups),
            _ => None,
        }
    }

    #[getter]
    fn dimensions(&self) -> Option<Vec<u32>> {
        match &self.0.shape {
            Shape::Torus { dimensions } => Some(dimensions.clone()),
            _ => None,
        }
    }

    #[getter]
    fn nodes_per_switch(&self) -> u32 {
        self.0.nodes_per_switch()
    }

    #[getter]
    fn capacity(&self) -> Option<u64> {
        self.0.capacity()
    }

    #[getter]
    fn link_bandwidth_bps(&self) -> Option<f64> {
        self.0.link_bandwidth.map(|rate| rate.0)
    }

    #[getter]
    fn hop_latency_s(&self) -> f64 {
        self.0.hop_latency.seconds()
    }

    #[getter]
    fn routing(&self) -> &'static str {
        self.0.routing.name()
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
            other => return Err(user_error(format!("fabric: a {} has no oversubscription", other.name()))),
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
    let wrong = || user_error(format!("{field}: {seconds} s is not between 0 and a day"));
    within_a_day(seconds).ok_or_else(wrong)
}

/// One of several values by name.
fn named<T: Copy>(field: &str, given: &Bound<'_, PyAny>, all: &[T], name: fn(T) -> &'static str) -> PyResult<T> {
    let word: String = value(field, given)?;
    all.iter().copied().find(|&one| name(one) == word).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|&one| name(one)).collect();
        user_error(format!("{field}: '{word}' is not one of {}", names.join(", ")))
    })
}

/// Sets one field by its name in Python.
fn set(cluster: &mut ModelCluster, field: &str, given: &Bound<'_, PyAny>) -> PyResult<()> {
    match field {
        "name" => cluster.name = value(field, given)?,
        "provenance" => cluster.provenance = value(field, given)?,
        "bandwidth_bps" => cluster.bandwidth = rate(field, given)?,
        "channel" => {
            let all = [Channel::Unknown, Channel::Auto, Channel::Tcp, Channel::Rdma];
            cluster.channel = named(field, given, &all, Channel::name)?;
        }
        "efficiency" => cluster.efficiency = value(field, given)?,
        "stream_bandwidth_bps" => cluster.stream_bandwidth = optional_rate(field, given)?,
        "latency_s" => cluster.latency = delay(field, given)?,
        "message_overhead_s" => cluster.message_overhead = delay(field, given)?,
        "gpus_per_node" => cluster.gpus_per_node = value(field, given)?,
        "gpu" => cluster.gpu = value::<Option<String>>(field, given)?.unwrap_or_default(),
        "nics_per_node" => cluster.nics_per_node = value(field, given)?,
        "intra_link" => {
            let all = [IntraLink::Pcie, IntraLink::Nvlink, IntraLink::Nvswitch];
            cluster.intra_link = if given.is_none() { None } else { Some(named(field, given, &all, IntraLink::name)?) };
        }
        "intra_bandwidth_bps" => cluster.intra_bandwidth = rate(field, given)?,
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

#[pymethods]
impl Cluster {
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

    #[getter]
    fn links(&self) -> String {
        self.0.link_names()
    }

    #[getter]
    fn nodes_per_switch(&self) -> Option<u32> {
        let racks = self.0.racks.map(|racks| racks.nodes_per_rack);
        racks.or_else(|| self.0.fabric.as_ref().map(|fabric| fabric.nodes_per_switch()))
    }

    #[getter]
    fn most_nodes(&self) -> Option<u64> {
        self.0.fabric.as_ref().and_then(|fabric| fabric.capacity())
    }

    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[getter]
    fn provenance(&self) -> &str {
        &self.0.provenance
    }

    #[getter]
    fn bandwidth_bps(&self) -> f64 {
        self.0.bandwidth.0
    }

    #[getter]
    fn channel(&self) -> &'static str {
        self.0.channel.name()
    }

    #[getter]
    fn efficiency(&self) -> Option<f64> {
        self.0.efficiency
    }

    #[getter]
    fn stream_bandwidth_bps(&self) -> Option<f64> {
        self.0.stream_bandwidth.map(|rate| rate.0)
    }

    #[getter]
    fn latency_s(&self) -> f64 {
        self.0.latency.seconds()
    }

    #[getter]
    fn message_overhead_s(&self) -> f64 {
        self.0.message_overhead.seconds()
    }

    #[getter]
    fn gpus_per_node(&self) -> u32 {
        self.0.gpus_per_node
    }

    #[getter]
    fn gpu(&self) -> Option<&str> {
        Some(self.0.gpu.as_str()).filter(|gpu| !gpu.is_empty())
    }

    #[getter]
    fn nics_per_node(&self) -> u32 {
        self.0.nics_per_node
    }

    #[getter]
    fn intra_link(&self) -> Option<&'static str> {
        self.0.intra_link.map(IntraLink::name)
    }

    #[getter]
    fn intra_bandwidth_bps(&self) -> f64 {
        self.0.intra_bandwidth.0
    }

    #[getter]
    fn mesh(&self) -> Option<Mesh> {
        self.0.mesh.map(|ModelMesh { peers, bridge }| Mesh { peers, bridge_bps: bridge.0 })
    }

    #[getter]
    fn intra_latency_s(&self) -> f64 {
        self.0.intra_latency.seconds()
    }

    #[getter]
    fn host_bandwidth_bps(&self) -> Option<f64> {
        self.0.host_bandwidth.map(|rate| rate.0)
    }

    #[getter]
    fn reduction_bandwidth_bps(&self) -> Option<f64> {
        self.0.reduction_bandwidth.map(|rate| rate.0)
    }

    #[getter]
    fn node_contention(&self) -> f64 {
        self.0.node_contention
    }

    #[getter]
    fn servers(&self) -> &'static str {
        self.0.servers.name()
    }

    #[getter]
    fn racks(&self) -> Option<Racks> {
        self.0.racks.map(|ModelRacks { nodes_per_rack, oversubscription }| Racks { nodes_per_rack, oversubscription })
    }

    #[getter]
    fn fabric(&self) -> Option<Fabric> {
        self.0.fabric.clone().map(Fabric)
    }

    /// Whether every GPU has a NIC of its own, whose rate `bandwidth_bps` is.
    #[getter]
    fn has_rails(&self) -> bool {
        self.0.has_rails()
    }

    #[getter]
    fn degraded(&self) -> Vec<Degraded> {
        self.0.degraded.iter().map(|one| Degraded { link: one.link.clone(), factor: one.factor }).collect()
    }

    #[getter]
    fn switch(&self) -> Switch {
        let ModelSwitch { multicast, aggregation, cut_through, memory, radix } = self.0.switch;
        Switch { multicast, aggregation, cut_through, memory, radix }
    }

    #[getter]
    fn stragglers(&self) -> Vec<Straggler> {
        self.0.stragglers.iter().map(|&(rank, factor)| Straggler { rank, factor }).collect()
    }

    /// The standard deviation of the logarithm of computation times.
    #[getter]
    fn jitter(&self) -> Option<f64> {
        self.0.jitter.map(|jitter| jitter.sigma)
    }

    #[getter]
    fn compression_costs(&self) -> Vec<CompressionCosts> {
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
