//! Parses the options of a simulation from JSON.
use paceline_iteration::{Compression, Cost, Group, IterationOptions, Method, Optimizer, Reshard, Sharding};
use paceline_model::Time;
use paceline_model::trace::Dtype;
use paceline_nccl::NcclError;
use paceline_schedule::{ChunkBytes, Collective, Distribution, Inside, Placement, Refusal};
use paceline_simulator::{CollectiveTime, Network, Options, Pull};
use pyo3::PyResult;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IntoDeserializer, value::Error};

use crate::{coordination, user_error};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    strategy: String,
    workers: u32,
    collective: Option<Collective>,
    servers: Option<u32>,
    chunk: Option<ChunkBytes>,
    placement: Option<Placement>,
    distribution: Option<Distribution>,
    barrier: Option<bool>,
    pull: Option<Pull>,
    inside: Option<Inside>,
    nccl: Option<String>,
    bucket_size: Option<u64>,
    network: Option<Network>,
    overlap: Option<bool>,
    compute_speedup: Option<f64>,
    call_s: Option<f64>,
    agreement_s: Option<f64>,
    spread: Option<f64>,
    iterations: Option<u32>,
    seed: Option<u64>,
    coordination: Option<coordination::Spec>,
    iteration: Option<IterationSpec>,
    collectives: Option<Vec<CollectiveSpec>>,
    slowdown: Option<f64>,
    critical_path: Option<bool>,
    detail: Option<bool>,
}

/// How long a collective of a plan takes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CollectiveSpec {
    collective: Collective,
    size: u32,
    stride: u32,
    bytes: u64,
    seconds: f64,
    busy: f64,
}

impl CollectiveSpec {
    fn time(self) -> Result<CollectiveTime, String> {
        if !(0.0..=1.0).contains(&self.busy) || !(0.0..=3600.0).contains(&self.seconds) {
            return Err(format!("collectives: {} s and {} of them busy are out of range", self.seconds, self.busy));
        }
        let group = Group { size: self.size, stride: self.stride };
        let (time, busy) = (Time::from_seconds(self.seconds), self.busy);
        Ok(CollectiveTime { collective: self.collective, group, bytes: self.bytes, time, busy })
    }
}

/// How gradients are compressed, and what that costs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CompressionSpec {
    method: String,
    /// Rank or density.
    parameter: Option<f64>,
    compress: CostSpec,
    between: CostSpec,
    decompress: CostSpec,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct CostSpec {
    bucket_s: f64,
    tensor_s: f64,
    element_s: f64,
    received_s: f64,
}

impl CostSpec {
    fn cost(self) -> Result<Cost, Refusal> {
        let CostSpec { bucket_s, tensor_s, element_s, received_s } = self;
        if let Some(wrong) = [bucket_s, tensor_s, element_s, received_s].iter().find(|it| !(0.0..=60.0).contains(*it)) {
            return Err(Refusal::about("compression", format!("a cost of {wrong} s is not between 0 and 60")));
        }
        Ok(Cost { bucket_s, tensor_s, element_s, received_s })
    }
}

impl CompressionSpec {
    fn compression(self) -> Result<Compression, Refusal> {
        let parameter = self.parameter.unwrap_or(0.0);
        let method = match self.method.as_str() {
            "fp16" => Method::Cast(Dtype::Float16),
            "bf16" => Method::Cast(Dtype::Bfloat16),
            "int8" => Method::Int8,
            "powersgd" if (1.0..=1e6).contains(&parameter) => Method::PowerSgd { rank: parameter as u64 },
            "topk" if parameter > 0.0 && parameter <= 1.0 => Method::TopK { density: parameter },
            other => return Err(Refusal::about("compression", format!("{other} with {parameter} is not known"))),
        };
        let (compress, between, decompress) = (self.compress.cost()?, self.between.cost()?, self.decompress.cost()?);
        Ok(Compression { method, compress, between, decompress })
    }
}

/// What is sharded, and how.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IterationSpec {
    sharding: Sharding,
    group: Option<u32>,
    reshard_after_forward: Option<Reshard>,
    prefetch: Option<u32>,
    accumulate: Option<u32>,
    accumulate_sync: Option<bool>,
    unit: Option<String>,
    expert_parallel: Option<u32>,
    param_dtype: Option<String>,
    reduce_dtype: Option<String>,
    optimizer: Option<Optimizer>,
    accumulated: Option<bool>,
    compression: Option<CompressionSpec>,
    sync_every: Option<u32>,
}

impl IterationSpec {
    fn options(self, options: &Options) -> Result<IterationOptions, Refusal> {
        let default = IterationOptions::new(self.sharding);
        let dtype = |name: Option<String>| {
            let known = |name: String| Dtype::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or(name);
            name.map(known).transpose().map_err(|name| format!("iteration: unknown dtype '{name}'"))
        };
        Ok(IterationOptions {
            group: self.group,
            reshard_after_forward: self.reshard_after_forward.unwrap_or(default.reshard_after_forward),
            prefetch: self.prefetch,
            accumulate: self.accumulate.unwrap_or(default.accumulate),
            synchronize: self.accumulate_sync,
            unit: self.unit,
            bucket_size: options.bucket_size,
            expert_parallel: self.expert_parallel.unwrap_or(default.expert_parallel),
            param_dtype: dtype(self.param_dtype)?,
            reduce_dtype: dtype(self.reduce_dtype)?,
            optimizer: self.optimizer,
            overlap: options.overlap,
            accumulated: self.accumulated.unwrap_or(false),
            compression: self.compression.map_or(Ok(default.compression), CompressionSpec::compression)?,
            sync_every: self.sync_every.unwrap_or(default.sync_every),
            ..default
        })
    }
}

pub fn options(text: &str) -> Result<Options, Refusal> {
    let spec: Spec = serde_json::from_str(text).map_err(|e| format!("options: {e}"))?;
    let mut options = Options::new(&spec.strategy, spec.workers);
    options.collective = spec.collective.unwrap_or(options.collective);
    options.chunk = spec.chunk;
    options.placement = spec.placement.unwrap_or(options.placement);
    options.distribution = spec.distribution.unwrap_or(options.distribution);
    options.pull = spec.pull.unwrap_or(options.pull);
    options.inside = spec.inside.unwrap_or(options.inside);
    if let Some(nccl) = spec.nccl {
        options.nccl = nccl.parse().map_err(|NcclError(text)| format!("nccl: {text}"))?;
    }
    options.network = spec.network.unwrap_or(options.network);
    options.servers = spec.servers.unwrap_or(options.servers);
    options.barrier = spec.barrier.unwrap_or(options.barrier);
    options.bucket_size = spec.bucket_size;
    options.overlap = spec.overlap.unwrap_or(options.overlap);
    options.compute_speedup = spec.compute_speedup.unwrap_or(options.compute_speedup);
    options.call = seconds("call_s", spec.call_s)?;
    options.agreement = seconds("agreement_s", spec.agreement_s)?;
    options.spread = spec.spread.unwrap_or(options.spread);
    options.iterations = spec.iterations;
    options.seed = spec.seed.unwrap_or(options.seed);
    options.coordination = spec.coordination.map(coordination::Spec::coordination).transpose()?;
    options.iteration = spec.iteration.map(|it| it.options(&options)).transpose()?;
    let times = spec.collectives.map(|it| it.into_iter().map(CollectiveSpec::time).collect());
    options.collectives = times.transpose()?;
    options.slowdown = match spec.slowdown.unwrap_or(0.0) {
        share if (0.0..1.0).contains(&share) => share,
        share => return Err(format!("slowdown: {share} is not a share below 1").into()),
    };
    options.critical_path = spec.critical_path.unwrap_or(options.critical_path);
    options.detail = spec.detail.unwrap_or(options.detail);
    Ok(options)
}

fn seconds(name: &str, value: Option<f64>) -> Result<Time, String> {
    match value {
        None => Ok(Time::ZERO),
        Some(seconds) if (0.0..=60.0).contains(&seconds) => Ok(Time::from_seconds(seconds)),
        Some(seconds) => Err(format!("{name}: {seconds} is not between 0 and 60 s")),
    }
}

/// A value by its name, as users type it.
pub fn named<T: DeserializeOwned>(setting: &'static str, word: &str) -> PyResult<T> {
    let word: serde::de::value::StrDeserializer<'_, Error> = word.into_deserializer();
    T::deserialize(word).map_err(|error| user_error(Refusal::about(setting, error.to_string())))
}
