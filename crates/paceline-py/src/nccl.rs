//! Python bindings for the times of NCCL's collectives: `paceline.forecast.nccl` and `paceline.catalog.nccl`.
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use paceline_nccl::{
    Algorithm, Calibration, Caller, CollectiveTime, Constant, Estimate, Generation, Group, Kind, Machine, Protocol,
    Release, Request, Transport, bus_factor, collective_time,
};
use paceline_schedule::Refusal;
use paceline_simulator::nccl;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};

use crate::fields::getters;
use crate::{Cluster, user_error};

/// Adds classes and functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("NcclGeneration", py.get_type::<PyGeneration>())?;
    module.add("NcclGroup", py.get_type::<PyGroup>())?;
    module.add("NcclMachine", py.get_type::<PyMachine>())?;
    module.add("NcclEstimate", py.get_type::<PyEstimate>())?;
    module.add("NcclTime", py.get_type::<PyTime>())?;
    module.add("NcclConstant", py.get_type::<PyConstant>())?;
    module.add("NCCL_RELEASE", Release::CURRENT.name())?;
    module.add("NCCL_RELEASES", Release::ALL.iter().map(|it| it.name()).collect::<Vec<_>>())?;
    module.add("NCCL_KINDS", names(Kind::ALL, Kind::name))?;
    module.add("NCCL_ALGORITHMS", names(Algorithm::ALL, Algorithm::name))?;
    module.add("NCCL_PROTOCOLS", names(Protocol::ALL, Protocol::name))?;
    module.add_function(wrap_pyfunction!(nccl_constants, module)?)?;
    module.add_function(wrap_pyfunction!(nccl_evidence, module)?)?;
    module.add_function(wrap_pyfunction!(nccl_generations, module)?)?;
    module.add_function(wrap_pyfunction!(nccl_generation_of, module)?)?;
    module.add_function(wrap_pyfunction!(nccl_time, module)?)?;
    module.add_function(wrap_pyfunction!(nccl_estimates, module)?)?;
    module.add_function(wrap_pyfunction!(nccl_bus_factor, module)?)?;
    Ok(())
}

fn names<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str) -> Vec<&'static str> {
    all.iter().copied().map(name).collect()
}

/// The start of a value's text, for messages; Python does not print integers of thousands of digits.
fn shown(text: PyResult<Bound<'_, pyo3::types::PyString>>) -> String {
    match text {
        Ok(text) => text.to_string_lossy().chars().take(80).collect(),
        Err(_) => "a number of thousands of digits".into(),
    }
}

fn named<T: Copy>(field: &str, value: &Bound<'_, PyAny>, all: &[T], name: impl Fn(T) -> &'static str) -> PyResult<T> {
    let text = shown(value.str());
    all.iter().copied().find(|&it| name(it) == text).ok_or_else(|| {
        let known = names(all, name);
        let hint = match paceline_model::nearest(&text, known.iter().copied()) {
            Some(near) => near.to_owned(),
            None => format!("one of {}", known.join(", ")),
        };
        user_error(Refusal::new(format!("{field}: unknown {field} '{text}'")).remedy(hint))
    })
}

fn kind_of(value: &Bound<'_, PyAny>) -> PyResult<Kind> {
    named("kind", value, Kind::ALL, Kind::name)
}

fn size_of(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let size = if is_int(value) { value.extract().ok() } else { None };
    size.ok_or_else(|| {
        user_error(
            Refusal::new(format!("size: {} is not a whole number of bytes", shown(value.repr())))
                .remedy("size=1000000"),
        )
    })
}

fn is_int(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>()
}

/// More ranks than any job has.
const MOST_RANKS: u32 = 1 << 30;

fn count_of(field: &str, value: &Bound<'_, PyAny>) -> PyResult<u32> {
    let wrong = |what: &str, remedy: u32| {
        let reason = format!("{field}: must be {what}, not {}", shown(value.repr()));
        user_error(Refusal::new(reason).remedy(format!("{field}={remedy}")))
    };
    if !is_int(value) || value.lt(1)? {
        return Err(wrong("a whole number of at least 1", 1));
    }
    let count: Option<u32> = value.extract().ok().filter(|&it| it <= MOST_RANKS);
    count.ok_or_else(|| wrong(&format!("at most {MOST_RANKS}"), MOST_RANKS))
}

pub fn calibration(assumed: Option<HashMap<String, f64>>) -> PyResult<Calibration> {
    Calibration::assuming(assumed.unwrap_or_default()).map_err(|unknown| {
        let known: Vec<&str> = Calibration::constants().iter().map(|it| it.name.as_str()).collect();
        let near = paceline_model::nearest(&unknown, known.iter().copied()).unwrap_or("overlap.slowdown");
        user_error(Refusal::new(format!("assumed: NCCL's model has no constant '{unknown}'")).remedy(near))
    })
}

/// The network latency of RDMA, which NCCL's own figures contain. Channels and their constants are Python's.
fn rdma_latency_s(py: Python<'_>) -> PyResult<f64> {
    py.import("paceline.catalog.channels")?.getattr("constant")?.call1(("rdma.latency",))?.extract()
}

/// GPUs that NCCL treats alike.
#[pyclass(frozen, eq, name = "Generation", module = "paceline.catalog.nccl")]
#[derive(PartialEq)]
pub struct PyGeneration(&'static Generation);

getters! { PyGeneration, self {
    /// `volta`, `ampere`, `hopper` or `blackwell`.
    name: &str = &self.0.name;
    /// Parts of the names of its GPUs, in lower case.
    gpus: Vec<String> = self.0.gpus.clone();
    /// Rings inside a node, each with a share of the links.
    channels: u32 = self.0.channels;
    /// The share of the links' rate that NCCL's model gives NVLS; 0: no NVLS.
    nvls_share: f64 = self.0.nvls_share;
    /// Factor on a ring's latency for large buffers over several nodes.
    plateau: f64 = self.0.plateau;
    /// Bytes per second of the PCI Express slot of a GPU or a NIC.
    slot: f64 = self.0.slot;
}

    fn __repr__(&self) -> String {
        format!("Generation(name='{}')", self.0.name)
    }
}

/// The ranks of a communicator: `per_node` on each of its nodes, the last of which may have fewer.
///
/// `concurrent` groups of this layout run the same collective at once on the same nodes and share the NICs, such as the
/// groups that all-reduce shards under HSDP.
///
/// Raises InvalidArgumentError for a number that is not whole or below 1.
#[pyclass(frozen, eq, hash, name = "Group", module = "paceline.forecast.nccl")]
#[derive(PartialEq, Hash)]
pub struct PyGroup(Group);

getters! { PyGroup, self {
    /// All ranks.
    ranks: u32 = self.0.ranks;
    /// Ranks on a node.
    per_node: u32 = self.0.per_node;
    /// Groups of this layout that share the NICs.
    concurrent: u32 = self.0.concurrent;
    /// Nodes with ranks of the group.
    nodes: u32 = self.0.nodes();
    /// Ranks on a full node: `per_node`, or all if there are fewer.
    per_node_used: u32 = self.0.per_node_used();
}

    #[new]
    #[pyo3(signature = (ranks, per_node, concurrent=None))]
    fn new(
        ranks: &Bound<'_, PyAny>,
        per_node: &Bound<'_, PyAny>,
        concurrent: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyGroup> {
        Ok(PyGroup(Group {
            ranks: count_of("ranks", ranks)?,
            per_node: count_of("per_node", per_node)?,
            concurrent: concurrent.map_or(Ok(1), |it| count_of("concurrent", it))?,
        }))
    }

    fn __getnewargs__(&self) -> (u32, u32, u32) {
        (self.0.ranks, self.0.per_node, self.0.concurrent)
    }

    fn __repr__(&self) -> String {
        let Group { ranks, per_node, concurrent } = self.0;
        format!("Group(ranks={ranks}, per_node={per_node}, concurrent={concurrent})")
    }
}

/// Nodes and their links as NCCL sees them. Rates are bytes per second, each way.
#[pyclass(frozen, eq, hash, name = "Machine", module = "paceline.forecast.nccl")]
#[derive(Clone, PartialEq)]
pub struct PyMachine(Machine);

impl Hash for PyMachine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.0.name, self.0.generation.name.as_str(), self.0.network.to_bits()).hash(state);
    }
}

getters! { PyMachine, self {
    /// Of the cluster.
    name: &str = &self.0.name;
    /// Of the GPUs.
    generation: PyGeneration = PyGeneration(self.0.generation);
    /// GPUs of a node.
    gpus_per_node: u32 = self.0.gpus_per_node;
    /// `pcie`, `nvlink` or `nvswitch`.
    intra_link: &str = self.0.intra_link.name();
    /// Rate of a GPU's link inside the node.
    link: f64 = self.0.link;
    /// Rate of all NICs of a node.
    nominal: f64 = self.0.nominal;
    /// The same of the slowest node.
    network: f64 = self.0.network;
    /// NICs of a node.
    nics: u32 = self.0.nics;
    /// Share of the network that messages get, if the cluster says so.
    nic_share: Option<f64> = self.0.nic_share;
    /// Time of a hop between nodes beside NCCL's own figures: the latency of TCP.
    hop_s: f64 = self.0.hop_s;
    /// `rdma`, `rdma-through-host` or `sockets`.
    transport: &str = match self.0.transport {
        Transport::Rdma => "rdma",
        Transport::RdmaThroughHost => "rdma-through-host",
        Transport::Sockets(_) => "sockets",
    };
    /// Assumptions about links and GPUs that the cluster does not name.
    assumed: Vec<String> = self.0.assumed.clone();
    /// Whether the switches inside the node add and multicast.
    has_nvls: bool = self.0.has_nvls();
}

    /// Return a cluster as NCCL sees it. Raises InvalidArgumentError for links that this model does not know.
    #[staticmethod]
    fn of(py: Python<'_>, cluster: &Cluster) -> PyResult<PyMachine> {
        nccl::machine(&cluster.0, rdma_latency_s(py)?).map(PyMachine).map_err(user_error)
    }

    /// Return the machine with the network that slow links between switches leave to groups of ranks.
    ///
    /// Groups have `size` ranks, `stride` apart, of `world`. Less is left only where links carry less than the NICs of a
    /// leaf need. Raises InvalidArgumentError for links that the cluster does not have.
    fn behind_slow_links(&self, cluster: &Cluster, size: u32, stride: u32, world: u32) -> PyResult<PyMachine> {
        nccl::behind_slow_links(&self.0, &cluster.0, (size, stride), world).map(PyMachine).map_err(user_error)
    }

    /// Return the wire rate between nodes that a group gets.
    ///
    /// A group reaches the NICs of its own GPUs, and concurrent groups share them: with a NIC for each GPU, a group of
    /// one rank a node has one NIC, and all groups together have all of them.
    fn network_of(&self, group: &PyGroup) -> f64 {
        self.0.network_of(group.0)
    }

    /// Return the machine whose `network` is what its transport carries for a group: of sockets, less than the wire.
    #[pyo3(signature = (group, assumed=None))]
    fn carrying(&self, group: &PyGroup, assumed: Option<HashMap<String, f64>>) -> PyResult<PyMachine> {
        Ok(PyMachine(self.0.carrying(group.0, &calibration(assumed)?)))
    }

    /// Raise InvalidArgumentError if the group does not fit on the nodes.
    fn check(&self, group: &PyGroup) -> PyResult<()> {
        self.0.check(group.0).map_err(user_error)
    }

    fn __repr__(&self) -> String {
        let Machine { name, generation, gpus_per_node, intra_link, link, network, .. } = &self.0;
        format!(
            "Machine(name='{name}', generation='{}', gpus_per_node={gpus_per_node}, intra_link='{}', link={link}, \
             network={network})",
            generation.name,
            intra_link.name()
        )
    }
}

/// An estimate of NCCL's own model for one combination. Seconds; bytes of the buffer per second.
#[pyclass(frozen, eq, name = "Estimate", module = "paceline.forecast.nccl")]
#[derive(PartialEq)]
pub struct PyEstimate(Estimate);

getters! { PyEstimate, self {
    /// `ring`, `tree`, `nvls`, `nvls-tree` or `pat`.
    algorithm: &str = self.0.algorithm.name();
    /// `LL`, `LL128` or `Simple`.
    protocol: &str = self.0.protocol.name();
    /// Of the whole collective.
    seconds: f64 = self.0.seconds;
    /// Before the last byte moves.
    latency_s: f64 = self.0.latency_s;
    /// Of the rest.
    bandwidth: f64 = self.0.bandwidth;
}

    fn __repr__(&self) -> String {
        let Estimate { algorithm, protocol, seconds, latency_s, bandwidth } = self.0;
        format!(
            "Estimate(algorithm='{}', protocol='{}', seconds={seconds:?}, latency_s={latency_s:?}, \
             bandwidth={bandwidth:?})",
            algorithm.name(),
            protocol.name()
        )
    }
}

/// A collective and its forecast time.
#[pyclass(frozen, eq, name = "CollectiveTime", module = "paceline.forecast.nccl")]
#[derive(PartialEq)]
pub struct PyTime {
    request: Request,
    time: CollectiveTime,
    machine: PyMachine,
}

getters! { PyTime, self {
    /// `allreduce`, `allgather`, `reducescatter`, `broadcast` or `reduce`.
    kind: &str = self.request.kind.name();
    /// Bytes, as nccl-tests counts them: of the whole buffer, which for all-gather and reduce-scatter holds a shard of
    /// every rank.
    size: u64 = self.request.size;
    /// The ranks and how they are spread over the nodes.
    group: PyGroup = PyGroup(self.request.group);
    /// Of the whole collective.
    seconds: f64 = self.time.seconds;
    /// `none`: a group of one rank sends nothing.
    algorithm: &str = self.time.choice.map_or("none", |it| it.0.name());
    /// `LL`, `LL128` or `Simple`.
    protocol: &str = self.time.choice.map_or(Protocol::Simple, |it| it.1).name();
    /// The nodes.
    machine: PyMachine = self.machine.clone();
    /// Bytes of the buffer per second.
    algorithm_bandwidth: f64 = if self.time.seconds > 0.0 { self.request.size as f64 / self.time.seconds } else { 0.0 };
    /// Bytes per second that pass each rank's link, as nccl-tests defines it.
    bus_bandwidth: f64 = self.algorithm_bandwidth() * bus_factor(self.request.kind, self.request.group.ranks);
    /// The choice of NCCL's own model; None for one rank.
    tuning: Option<PyEstimate> = {
        let Request { kind, size, group, .. } = self.request;
        self.time.choice?;
        Release::CURRENT.estimates(kind, size, group, &self.machine.0).into_iter().next().map(PyEstimate)
    };
}

    fn __repr__(&self) -> String {
        format!(
            "CollectiveTime(kind='{}', size={}, group={}, seconds={:?}, algorithm='{}', protocol='{}', machine={})",
            self.kind(),
            self.size(),
            self.group().__repr__(),
            self.seconds(),
            self.algorithm(),
            self.protocol(),
            self.machine.__repr__()
        )
    }
}

/// A constant of NCCL's model, fitted or assumed: see `paceline.catalog.constants.Constant`.
#[pyclass(frozen, name = "NcclConstant", module = "paceline._core")]
pub struct PyConstant(&'static Constant);

getters! { PyConstant, self {
    name: &str = &self.0.name;
    value: f64 = self.0.value;
    unit: &str = &self.0.unit;
    uncertainty: f64 = self.0.uncertainty;
    source: &str = &self.0.source;
    calibrated: &str = &self.0.calibrated;
    prior: Option<f64> = self.0.prior;
}
}

#[pyfunction]
fn nccl_constants() -> Vec<PyConstant> {
    Calibration::constants().iter().map(PyConstant).collect()
}

/// Rows, their mean error, and that with constants that were fitted without a row's source.
#[pyfunction]
fn nccl_evidence() -> (u32, f64, f64) {
    let it = Calibration::evidence();
    (it.rows, it.mean, it.without_source)
}

#[pyfunction]
fn nccl_generations() -> Vec<PyGeneration> {
    Generation::all().iter().map(PyGeneration).collect()
}

#[pyfunction]
fn nccl_generation_of(gpu: &str) -> Option<PyGeneration> {
    Generation::of(gpu).map(PyGeneration)
}

/// The machine of a collective.
#[derive(FromPyObject)]
enum On<'py> {
    Machine(PyRef<'py, PyMachine>),
    Cluster(PyRef<'py, Cluster>),
}

/// The time of a collective. `assumed`: constants with other values.
#[pyfunction]
#[pyo3(signature = (kind, size, group, on, *, algorithm=None, protocol=None, caller=None, assumed=None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python signature")]
fn nccl_time(
    py: Python<'_>,
    kind: &Bound<'_, PyAny>,
    size: &Bound<'_, PyAny>,
    group: &PyGroup,
    on: On<'_>,
    algorithm: Option<&Bound<'_, PyAny>>,
    protocol: Option<&Bound<'_, PyAny>>,
    caller: Option<&Bound<'_, PyAny>>,
    assumed: Option<HashMap<String, f64>>,
) -> PyResult<PyTime> {
    let kind = kind_of(kind)?;
    let algorithm = algorithm.map(|it| named("algorithm", it, Algorithm::ALL, Algorithm::name)).transpose()?;
    let protocol = protocol.map(|it| named("protocol", it, Protocol::ALL, Protocol::name)).transpose()?;
    let caller = caller.map_or(Ok(Caller::Stream), |it| named("caller", it, Caller::ALL, Caller::name))?;
    let (size, group) = (size_of(size)?, group.0);
    let machine = match on {
        On::Machine(machine) => machine.clone(),
        On::Cluster(cluster) => {
            let world = group.ranks.saturating_mul(group.concurrent);
            PyMachine::of(py, &cluster)?.behind_slow_links(&cluster, group.ranks, group.concurrent, world)?
        }
    };
    let request = Request { kind, size, group, algorithm, protocol, caller };
    let time = collective_time(&request, &machine.0, &calibration(assumed)?).map_err(user_error)?;
    Ok(PyTime { request, time, machine })
}

/// The estimates of NCCL's own model, fastest first.
#[pyfunction]
fn nccl_estimates(
    kind: &Bound<'_, PyAny>,
    size: &Bound<'_, PyAny>,
    group: &PyGroup,
    machine: &PyMachine,
) -> PyResult<Vec<PyEstimate>> {
    let (kind, size) = (kind_of(kind)?, size_of(size)?);
    if group.0.ranks < 2 {
        return Ok(Vec::new());
    }
    Ok(Release::CURRENT.estimates(kind, size, group.0, &machine.0).into_iter().map(PyEstimate).collect())
}

/// Bus bandwidth over algorithm bandwidth.
#[pyfunction]
fn nccl_bus_factor(kind: &Bound<'_, PyAny>, ranks: u32) -> PyResult<f64> {
    Ok(bus_factor(kind_of(kind)?, ranks))
}
