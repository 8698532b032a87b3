//! Scenarios: what a forecast asks, typed; and what is done with them.
use std::collections::HashMap;
use std::path::PathBuf;

use paceline_iteration::{Held, Reshard};
use paceline_model::cluster::ServerPlace;
use paceline_model::trace::Dtype;
use paceline_nccl::NcclError;
use paceline_scenario::{BucketSize, Channels, Given, Habits, Library, Parallel, Servers, of_gpu};
use paceline_schedule::{ChunkBytes, Placement, Refusal, look_up};
use paceline_simulator as simulator;
use paceline_simulator::jobs::server_nodes;
use paceline_simulator::offload::{Beside, Offloaded};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::de::value::{Error as NameError, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};

use crate::cluster::{Cluster, CompressionCosts};
use crate::coordination::Coordination;
use crate::nccl::calibration;
use crate::outcome::{Memory, Outcome};
use crate::plan::Plan;
use crate::trace::Trace;
use crate::{user_error, write_timeline};

/// A value from Python; errors name the setting.
fn value<'py, T>(setting: &'static str, given: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    given.extract().map_err(|error| {
        let error: PyErr = Into::into(error);
        user_error(Refusal::about(setting, error.value(given.py()).to_string()))
    })
}

/// One of several values, by its name.
pub fn named<T: DeserializeOwned>(setting: &'static str, word: &str) -> PyResult<T> {
    let word: StrDeserializer<'_, NameError> = word.into_deserializer();
    T::deserialize(word).map_err(|error| user_error(Refusal::about(setting, error.to_string())))
}

fn name_of<T: DeserializeOwned>(setting: &'static str, given: &Bound<'_, PyAny>) -> PyResult<T> {
    named(setting, &value::<String>(setting, given)?)
}

/// A number, or one of several names.
fn number_or_name<T: DeserializeOwned, N>(
    setting: &'static str,
    given: &Bound<'_, PyAny>,
    number: impl Fn(N) -> T,
) -> PyResult<T>
where
    N: for<'a, 'py> FromPyObject<'a, 'py>,
{
    match given.extract::<String>() {
        Ok(word) => named(setting, &word),
        Err(_) => value::<N>(setting, given).map(number),
    }
}

fn dtype(setting: &'static str, given: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    dtype_named(setting, &value::<String>(setting, given)?)
}

fn dtype_named(setting: &'static str, word: &str) -> PyResult<Dtype> {
    let known = Dtype::ALL.into_iter().find(|dtype| dtype.name() == word);
    known.ok_or_else(|| {
        user_error(Refusal::about(setting, format!("unknown dtype '{word}'")).remedy(format!("{{{setting}=float32}}")))
    })
}

/// Sets one option by its name in Python.
fn set(given: &mut Given, option: &str, value_: &Bound<'_, PyAny>) -> PyResult<()> {
    let it = value_;
    match option {
        "servers" => given.servers = Some(value("servers", it)?),
        "chunk" => given.chunk = Some(number_or_name("chunk", it, ChunkBytes::Size)?),
        "placement" => {
            let table = |servers: Vec<u32>| Placement::Table(servers.into());
            given.placement = Some(number_or_name("placement", it, table)?);
        }
        "distribution" => given.distribution = Some(name_of("distribution", it)?),
        "pull" => given.pull = Some(name_of("pull", it)?),
        "inside" => given.inside = Some(name_of("inside", it)?),
        "network" => given.network = Some(name_of("network", it)?),
        "barrier" => given.barrier = Some(value("barrier", it)?),
        "staleness" => {
            let is_none = it.extract::<String>().is_ok_and(|word| word == "none");
            given.staleness = if is_none { None } else { Some(value("staleness", it)?) };
        }
        "overlap" => given.overlap = Some(value("overlap", it)?),
        "iterations" => given.iterations = Some(value("iterations", it)?),
        "seed" => given.seed = Some(value("seed", it)?),
        "critical_path" => given.critical_path = Some(value("critical_path", it)?),
        "detail" => given.detail = Some(value("detail", it)?),
        "compute_speedup" => given.compute_speedup = Some(value("compute_speedup", it)?),
        "offloaded" => {
            let parts: [(f64, f64); 3] = value("offload", it)?;
            let [forward, backward, optimizer] = parts.map(|(computed, offloaded)| Beside { computed, offloaded });
            given.offloaded = Some(Offloaded { forward, backward, optimizer });
        }
        "bucket_size" => {
            let is_none = it.extract::<String>().is_ok_and(|word| word == "none");
            let bytes = || value("bucket_size", it).map(BucketSize::Bytes);
            given.bucket_size = Some(if is_none { BucketSize::None } else { bytes()? });
        }
        "sharding" => {
            let asked = value::<String>("sharding", it)?.parse();
            given.sharding = Some(asked.map_err(|refusal: Refusal| user_error(refusal))?);
        }
        "reshard_after_forward" => {
            given.reshard_after_forward = Some(number_or_name("reshard_after_forward", it, Reshard::Ranks)?);
        }
        "prefetch" => given.prefetch = Some(value("prefetch", it)?),
        "accumulate" => given.accumulate = Some(value("accumulate", it)?),
        "accumulate_sync" => given.accumulate_sync = Some(value("accumulate_sync", it)?),
        "unit" => given.unit = Some(value("unit", it)?),
        "param_dtype" => given.param_dtype = Some(dtype("param_dtype", it)?),
        "reduce_dtype" => given.reduce_dtype = Some(dtype("reduce_dtype", it)?),
        "optimizer" => given.optimizer = Some(name_of("optimizer", it)?),
        "held" => given.held = Some(held(it)?),
        "update_bytes" => given.update_bytes = Some(value("optimizer", it)?),
        "state_bytes" => given.state_bytes = Some(value("optimizer", it)?),
        "releases_gradients" => given.releases_gradients = Some(value("offload", it)?),
        "offloads_parameters" => given.offloads_parameters = Some(value("offload", it)?),
        "sync_every" => given.sync_every = Some(value("sync_every", it)?),
        other => return Err(PyTypeError::new_err(format!("a scenario has no option '{other}'"))),
    }
    Ok(())
}

/// The types of the state that a rank holds: `(parameters, gradients, states, masters, temporaries, of one tensor)`.
fn held(given: &Bound<'_, PyAny>) -> PyResult<Held> {
    let (parameters, gradients, states, masters, all, one) =
        value::<(String, String, String, bool, u64, u64)>("precision", given)?;
    Ok(Held {
        parameters: dtype_named("precision", &parameters)?,
        gradients: dtype_named("precision", &gradients)?,
        states: dtype_named("precision", &states)?,
        masters,
        temporaries: (all, one),
    })
}

/// A communication library: its habits and constants.
#[pyclass(frozen, name = "Library", module = "paceline._core")]
pub struct PyLibrary(Library);

#[pymethods]
impl PyLibrary {
    #[new]
    #[pyo3(signature = (name, strategy, *, server_place=None, nccl=None, options=None, constants=None))]
    fn new(
        name: String,
        strategy: String,
        server_place: Option<&str>,
        nccl: Option<&str>,
        options: Option<&Bound<'_, PyDict>>,
        constants: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyLibrary> {
        let place = |word: &str| match word {
            "colocated" => Ok(ServerPlace::Colocated),
            "own-nodes" => Ok(ServerPlace::OwnNodes),
            other => Err(user_error(
                Refusal::new(format!("library: servers are not on '{other}'")).remedy("own-nodes or colocated"),
            )),
        };
        let release = |text: &str| {
            text.parse()
                .map_err(|error: NcclError| user_error(Refusal::from(error.reason).within("nccl").remedy(error.remedy)))
        };
        let mut library = Library {
            name,
            strategy,
            server_place: server_place.map(place).transpose()?,
            nccl: nccl.map(release).transpose()?,
            ..Library::default()
        };
        for (option, value) in options.into_iter().flatten() {
            set_habit(&mut library.habits, &option.extract::<String>()?, &value)?;
        }
        for (constant, value) in constants.into_iter().flatten() {
            let (name, value) = (constant.extract::<String>()?, Some(value.extract()?));
            match name.as_str() {
                "bucket_size" => library.bucket_size = value,
                "fused_per_cycle" => library.fused_per_cycle = value,
                "fusion_threshold" => library.fusion_threshold = value,
                "call" => library.call = value,
                "agreement" => library.agreement = value,
                "message_overhead" => library.message_overhead = value,
                "host_bandwidth" => library.host_bandwidth = value,
                "polling" => library.polling = value,
                "reduction_bandwidth" => library.reduction_bandwidth = value,
                "intra_bandwidth" => library.intra_bandwidth = value,
                "streams" => library.streams = value,
                other => return Err(PyTypeError::new_err(format!("a library has no constant '{other}'"))),
            }
        }
        Ok(PyLibrary(library))
    }
}

/// Sets one of the options that a library implies.
fn set_habit(habits: &mut Habits, option: &str, it: &Bound<'_, PyAny>) -> PyResult<()> {
    match option {
        "servers" => {
            let is_per_node = it.extract::<String>().is_ok_and(|word| word == "per-node");
            let count = || value("servers", it).map(Servers::Count);
            habits.servers = Some(if is_per_node { Servers::PerNode } else { count()? });
        }
        "chunk" => habits.chunk = Some(number_or_name("chunk", it, ChunkBytes::Size)?),
        "pull" => habits.pull = Some(name_of("pull", it)?),
        "inside" => habits.inside = Some(name_of("inside", it)?),
        "overlap" => habits.overlap = Some(value("overlap", it)?),
        "barrier" => habits.barrier = Some(value("barrier", it)?),
        other => return Err(PyTypeError::new_err(format!("a library has no option '{other}'"))),
    }
    Ok(())
}

/// The constants of channels.
#[pyclass(frozen, name = "Channels", module = "paceline._core")]
pub struct PyChannels(Channels);

#[pymethods]
impl PyChannels {
    #[new]
    #[pyo3(signature = (*, tcp_share, rdma_share, rdma_share_roce, rdma_roce_to_bps, tcp_stream_bps, tcp_stream_at_bps, tcp_stream_100g_bps, tcp_jitter, rdma_jitter, rdma_latency_s))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python signature")]
    fn new(
        tcp_share: f64,
        rdma_share: f64,
        rdma_share_roce: f64,
        rdma_roce_to_bps: f64,
        tcp_stream_bps: f64,
        tcp_stream_at_bps: f64,
        tcp_stream_100g_bps: f64,
        tcp_jitter: f64,
        rdma_jitter: f64,
        rdma_latency_s: f64,
    ) -> PyChannels {
        PyChannels(Channels {
            tcp_share,
            rdma_share,
            rdma_share_roce,
            rdma_roce_to_bps,
            tcp_stream_bps,
            tcp_stream_at_bps,
            tcp_stream_100g_bps,
            tcp_jitter,
            rdma_jitter,
            rdma_latency_s,
        })
    }
}

/// A scenario in the terms of the simulator.
#[pyclass(frozen, get_all, module = "paceline._core")]
pub struct Lowered {
    cluster: Py<Cluster>,
    channel: &'static str,
    flow_bps: f64,
    bucket_size: Option<u64>,
    spread: f64,
    has_plan: bool,
}

/// A collective of a plan, and how long it takes if no other runs.
#[pyclass(frozen, get_all, module = "paceline._core")]
#[derive(Clone)]
pub struct PlannedCollective {
    collective: &'static str,
    size: u32,
    stride: u32,
    bytes: u64,
    seconds: f64,
    busy: f64,
}

/// A worker's part in a simulation.
#[pyclass(frozen, get_all, module = "paceline._core")]
pub struct Replay {
    plan: Py<Plan>,
    /// Of computation and of the backward pass, by iteration.
    factors: Vec<(f64, f64)>,
    same_order: bool,
}

/// A forecast to make.
#[pyclass(frozen, module = "paceline._core")]
pub struct Scenario {
    trace: Py<Trace>,
    cluster: Py<Cluster>,
    scenario: paceline_scenario::Scenario,
    low: paceline_scenario::Lowered,
}

impl Scenario {
    fn lowered_from(
        trace: Py<Trace>,
        cluster: Py<Cluster>,
        mut scenario: paceline_scenario::Scenario,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Scenario> {
        for (option, value) in options.into_iter().flatten() {
            set(&mut scenario.given, &option.extract::<String>()?, &value)?;
        }
        let low = scenario.lowered(&trace.get().0, &cluster.get().0).map_err(user_error)?;
        Ok(Scenario { trace, cluster, scenario, low })
    }

    /// A job among several: its trace and its options.
    pub fn job(&self) -> (paceline_model::Trace, simulator::Options) {
        (self.trace.get().0.clone(), self.low.options.clone())
    }
}

#[pymethods]
impl Scenario {
    #[new]
    #[pyo3(signature = (trace, cluster, strategy, workers, *, library, channels, assumed=None, coordination=None, compression=None, tensor_parallel=1, pipeline_parallel=1, microbatches=1, expert_ranks=1, **options))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python signature")]
    fn new(
        trace: Py<Trace>,
        cluster: Py<Cluster>,
        strategy: &str,
        workers: u32,
        library: &PyLibrary,
        channels: &PyChannels,
        assumed: Option<HashMap<String, f64>>,
        coordination: Option<&Coordination>,
        compression: Option<&CompressionCosts>,
        tensor_parallel: u32,
        pipeline_parallel: u32,
        microbatches: u32,
        expert_ranks: u32,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Scenario> {
        let unknown = |error: Refusal| user_error(Refusal { setting: Some("strategy"), ..error });
        let scenario = paceline_scenario::Scenario {
            strategy: look_up(strategy).map_err(unknown)?,
            workers,
            library: library.0.clone(),
            given: Given::default(),
            compression: compression.map(CompressionCosts::compression).transpose().map_err(user_error)?,
            coordination: coordination.map(|it| it.0.clone()),
            parallel: Parallel { tensor: tensor_parallel, pipeline: pipeline_parallel, microbatches, expert_ranks },
            channels: channels.0,
            calibration: calibration(assumed)?,
        };
        Scenario::lowered_from(trace, cluster, scenario, options)
    }

    #[pyo3(signature = (**options))]
    fn replace(&self, py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Scenario> {
        let (trace, cluster) = (self.trace.clone_ref(py), self.cluster.clone_ref(py));
        Scenario::lowered_from(trace, cluster, self.scenario.clone(), options)
    }

    #[getter]
    fn lowered(&self, py: Python<'_>) -> PyResult<Lowered> {
        let low = &self.low;
        Ok(Lowered {
            cluster: Py::new(py, Cluster(low.cluster.clone()))?,
            channel: low.channel.name(),
            flow_bps: low.flow_bps,
            bucket_size: low.options.bucket_size,
            spread: low.options.spread,
            has_plan: low.has_plan(),
        })
    }

    #[getter]
    fn most_messages(&self) -> u64 {
        self.low.most_messages(&self.trace.get().0)
    }

    #[getter]
    fn is_limited_by_connections(&self) -> bool {
        self.scenario.is_limited_by_connections(&self.cluster.get().0)
    }

    /// The peak on the GPU of the stage that needs most, as if exchanges took no time.
    #[expect(clippy::needless_pass_by_value, reason = "the Python list is converted")]
    fn memory(&self, py: Python<'_>, stages: Vec<Py<Trace>>) -> PyResult<Memory> {
        let stages: Vec<_> = stages.iter().map(|stage| &stage.get().0).collect();
        let memory = py.detach(|| self.low.memory_of_stages(&stages, self.scenario.parallel));
        memory.map(Memory).map_err(user_error)
    }

    /// Runs the simulation without the GIL.
    #[pyo3(signature = (timeline=None, *, ranks=None, stages=vec![]))]
    #[expect(clippy::needless_pass_by_value, reason = "the Python list is converted")]
    fn run(
        &self,
        py: Python<'_>,
        timeline: Option<PathBuf>,
        ranks: Option<u32>,
        stages: Vec<Py<Trace>>,
    ) -> PyResult<Outcome> {
        let (trace, low, parallel) = (&self.trace.get().0, &self.low, self.scenario.parallel);
        let stages: Vec<_> = stages.iter().map(|stage| &stage.get().0).collect();
        py.detach(|| {
            let mut outcome = match timeline {
                None => simulator::simulate(trace, &low.cluster, &low.options).map_err(user_error)?,
                Some(path) => {
                    let found = simulator::simulate_with_timeline(trace, &low.cluster, &low.options, ranks);
                    let (outcome, timeline) = found.map_err(user_error)?;
                    write_timeline(&path, &timeline)?;
                    outcome
                }
            };
            outcome.sharded.memory = if stages.is_empty() {
                of_gpu(outcome.sharded.memory, parallel.tensor)
            } else {
                low.memory_of_stages(&stages, parallel).map_err(user_error)?
            };
            Ok(Outcome(outcome))
        })
    }

    fn plan(&self, py: Python<'_>) -> PyResult<Plan> {
        if self.scenario.coordination.is_some() {
            let reason = "needs a fixed order of exchanges, which a coordinator decides in every iteration";
            return Err(user_error(Refusal::about("plan_json", reason).remedy("drop {coordinator}")));
        }
        let (trace, options) = (&self.trace.get().0, &self.low.options);
        py.detach(|| simulator::iteration::plan_of(trace, options)).map(Plan::from).map_err(user_error)
    }

    fn collectives(&self, py: Python<'_>) -> PyResult<Option<Vec<PlannedCollective>>> {
        let (trace, options) = (&self.trace.get().0, &self.low.options);
        let Some(nccl) = &options.collectives else { return Ok(None) };
        let times = py.detach(|| nccl.of_plan(&simulator::iteration::plan_of(trace, options)?));
        let one = |it: simulator::nccl::PlannedCollective| PlannedCollective {
            collective: it.collective.name(),
            size: it.group.size,
            stride: it.group.stride,
            bytes: it.bytes,
            seconds: it.seconds,
            busy: it.busy,
        };
        Ok(Some(times.map_err(user_error)?.into_iter().map(one).collect()))
    }

    fn unreachable(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let (trace, low) = (&self.trace.get().0, &self.low);
        py.detach(|| simulator::coordination::unreachable(trace, &low.cluster, &low.options)).map_err(user_error)
    }

    /// A worker's part, for a real process that does the same.
    fn replay(&self, py: Python<'_>, worker: u32, iterations: u32) -> PyResult<Replay> {
        let (trace, cluster, options) = (&self.trace.get().0, &self.cluster.get().0, &self.low.options);
        let part = py.detach(|| simulator::replay(trace, cluster, options, worker, iterations));
        let simulator::Replay { plan, factors, same_order } = part.map_err(user_error)?;
        let factors = factors.into_iter().map(|it| (it.compute, it.backward)).collect();
        Ok(Replay { plan: Py::new(py, Plan::from(plan))?, factors, same_order })
    }

    /// How many nodes of their own its servers need on this cluster.
    fn server_nodes(&self, cluster: &Cluster) -> u32 {
        server_nodes(&cluster.0, &self.low.options)
    }
}
