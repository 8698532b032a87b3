//! The fields of a trace as written: names instead of indices, without defaults.
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::{Dtype, Operators, Trace};
use crate::document::fields::{
    MAX_DIMENSIONS, MAX_SPREAD, check_name, name, number, optional_time, plausible_bytes, tensor_bytes, text, time,
    whole,
};
use crate::document::strict::{from_map, list, names, object, objects};
use crate::document::{shown, with_remedy, with_value};
use crate::nearest;
use crate::units::Time;

/// A trace file.
#[derive(Clone, Debug, Deserialize)]
pub struct TraceFile {
    /// Checked before the other fields.
    #[serde(rename = "format")]
    pub(super) _format: IgnoredAny,
    #[serde(rename = "version")]
    pub(super) version: u64,
    /// The name for tables.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// How it was made.
    #[serde(default, deserialize_with = "text")]
    pub provenance: String,
    /// Samples per worker and iteration.
    #[serde(deserialize_with = "batch")]
    pub batch: u32,
    /// Element type of gradients.
    #[serde(deserialize_with = "dtype")]
    pub dtype: Dtype,
    /// The hardware.
    #[serde(default, deserialize_with = "text")]
    pub device: String,
    /// The library that synchronized gradients; empty: none.
    #[serde(default, deserialize_with = "text")]
    pub library: String,
    /// At least one.
    #[serde(deserialize_with = "objects")]
    pub workers: Vec<WorkerFile>,
    /// The order in which servers send tensors; those left out follow.
    #[serde(default, deserialize_with = "list")]
    pub distribution: Vec<Distributed>,
    /// Parameters that are not trained.
    #[serde(default, deserialize_with = "objects")]
    pub frozen: Vec<SizedTensor>,
    /// The model's variables in the order of their creation; those left out follow.
    #[serde(default, deserialize_with = "list")]
    pub variables: Vec<Distributed>,
    /// Of the optimizer's states.
    #[serde(default, deserialize_with = "bytes_of_states")]
    pub optimizer_bytes: Option<u64>,
    /// How workers differ.
    #[serde(default, deserialize_with = "object")]
    pub variation: Option<VariationFile>,
    /// The operators of a computed step.
    #[serde(default, deserialize_with = "operators")]
    pub operators: Option<Arc<Operators>>,
}

/// One recorded worker.
#[derive(Clone, Debug, Deserialize)]
pub struct WorkerFile {
    /// Layers in order.
    #[serde(deserialize_with = "objects")]
    pub forward: Vec<LayerFile>,
    /// One for each trained tensor.
    #[serde(deserialize_with = "objects")]
    pub gradients: Vec<GradientFile>,
    /// The backward pass; `None`: until the last gradient.
    #[serde(default, deserialize_with = "optional_time")]
    pub backward_s: Option<Time>,
    /// The optimizer's step.
    #[serde(default, deserialize_with = "time")]
    pub optimizer_s: Time,
}

/// One forward layer.
#[derive(Clone, Debug, Deserialize)]
pub struct LayerFile {
    /// Its name. May be empty: PyTorch gives a model's root module that name.
    #[serde(deserialize_with = "text")]
    pub layer: String,
    /// Its duration.
    #[serde(deserialize_with = "time")]
    pub duration_s: Time,
    /// Names of the parameters that it needs.
    #[serde(default, deserialize_with = "names")]
    pub tensors: Vec<String>,
    /// Bytes of a sample that it keeps for the backward pass.
    #[serde(default, deserialize_with = "bytes_of_sample")]
    pub activation_bytes: Option<u64>,
    /// Bytes of a sample that only its backward pass needs.
    #[serde(default, deserialize_with = "bytes_of_sample")]
    pub backward_bytes: Option<u64>,
}

/// One gradient.
#[derive(Clone, Debug, Deserialize)]
pub struct GradientFile {
    /// The tensor's name.
    #[serde(deserialize_with = "name")]
    pub tensor: String,
    /// After the start of the backward pass.
    #[serde(deserialize_with = "time")]
    pub ready_s: Time,
    /// Bytes of the gradient.
    #[serde(deserialize_with = "tensor_bytes")]
    pub bytes: u64,
    /// Its dimensions; `None`: not known.
    #[serde(default, deserialize_with = "shape")]
    pub shape: Option<Vec<u64>>,
}

/// How workers differ.
#[derive(Clone, Debug, Deserialize)]
pub struct VariationFile {
    /// See [`Trace::backward_spread`].
    #[serde(default, deserialize_with = "spread")]
    pub backward_spread: f64,
}

/// An entry of the order in which servers distribute tensors, or of that in which variables were created.
#[derive(Clone, Debug, PartialEq)]
pub struct Distributed {
    /// The tensor's name.
    pub tensor: String,
    /// Given for a tensor whose bytes stand nowhere else.
    pub bytes: Option<u64>,
}

/// A tensor without a gradient.
#[derive(Clone, Debug, Deserialize)]
pub struct SizedTensor {
    /// The tensor's name.
    #[serde(deserialize_with = "name")]
    pub tensor: String,
    /// Its bytes.
    #[serde(deserialize_with = "tensor_bytes")]
    pub bytes: u64,
}

impl<'de> Deserialize<'de> for Distributed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrObject;
        impl<'de> Visitor<'de> for NameOrObject {
            type Value = Distributed;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a tensor's name or {\"tensor\": …, \"bytes\": …}")
            }
            fn visit_str<E: Error>(self, tensor: &str) -> Result<Distributed, E> {
                let tensor = check_name(tensor.to_owned()).map_err(E::custom)?;
                Ok(Distributed { tensor, bytes: None })
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Distributed, A::Error> {
                let SizedTensor { tensor, bytes } = from_map(map)?;
                Ok(Distributed { tensor, bytes: Some(bytes) })
            }
        }
        deserializer.deserialize_any(NameOrObject)
    }
}

fn operators<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<Operators>>, D::Error> {
    object(deserializer).map(|operators| operators.map(Arc::new))
}

fn batch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    whole(deserializer, 1..=u32::MAX)
}

fn bytes_of_states<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    plausible_bytes(u64::deserialize(deserializer)?, "bytes").map(Some)
}

fn bytes_of_sample<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    plausible_bytes(u64::deserialize(deserializer)?, "bytes of one sample").map(Some)
}

fn shape<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u64>>, D::Error> {
    let shape: Vec<u64> = list(deserializer)?;
    if shape.len() > MAX_DIMENSIONS {
        return Err(D::Error::custom(with_remedy(
            format!("must have at most {MAX_DIMENSIONS} dimensions, not {}", shape.len()),
            "the shape without some",
        )));
    }
    Ok(Some(shape))
}

fn spread<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, 0.0..=MAX_SPREAD)
}

fn dtype<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Dtype, D::Error> {
    let found = String::deserialize(deserializer)?;
    let names = Dtype::ALL.map(Dtype::name);
    Dtype::ALL.into_iter().find(|dtype| dtype.name() == found).ok_or_else(|| {
        let near = nearest(&found, names).unwrap_or(names[0]);
        let value = format!("\"{near}\" (one of {})", names.join(", "));
        D::Error::custom(with_value(format!("unknown dtype {}", shown(&found)), value))
    })
}

/// The expected value of each field, for errors.
pub(super) fn hint(field: &str) -> Option<&'static str> {
    Some(match field {
        "name" => "a name for tables, in quotes",
        "batch" => "the samples per worker and iteration, a whole number of at least 1",
        "dtype" => "the element type: \"float64\", \"float32\", \"float16\" or \"bfloat16\"",
        "workers" => "a list of at least one recorded worker",
        "forward" => "a list of layers in order of execution",
        "gradients" => "a list of gradients",
        "layer" => "the layer's name, in quotes",
        "duration_s" => "how long the layer runs, in seconds",
        "activation_bytes" => "the bytes of a sample that the layer keeps for the backward pass, a whole number",
        "backward_bytes" => "the bytes of a sample that only the layer's backward pass needs, a whole number",
        "optimizer_bytes" => "the bytes of the optimizer's states, a whole number",
        "tensors" => "a list of the names of the tensors that the layer needs",
        "tensor" => "the tensor's name, in quotes",
        "ready_s" => "the seconds from the start of the backward pass to this gradient",
        "shape" => "the tensor's dimensions, a list of whole numbers such as [768, 2304]",
        "bytes" => "the tensor's size in bytes, a whole number of at least 1",
        "distribution" => "a list of tensors in the order in which servers send them",
        "variables" => "a list of variables in the order in which the framework created them",
        "variation" => "an object such as {\"backward_spread\": 0.05}",
        _ => return None,
    })
}

impl From<&Trace> for TraceFile {
    /// Lets a changed trace be checked and brought into canonical order like one that was read.
    fn from(trace: &Trace) -> TraceFile {
        let tensor = |index: u32| &trace.tensors[index as usize];
        let layer = |layer: &super::Layer| LayerFile {
            layer: layer.name.clone(),
            duration_s: layer.duration,
            tensors: layer.tensors.iter().map(|&index| tensor(index).name.clone()).collect(),
            activation_bytes: layer.activation_bytes,
            backward_bytes: layer.backward_bytes,
        };
        let gradient = |gradient: &super::Gradient| GradientFile {
            tensor: tensor(gradient.tensor).name.clone(),
            ready_s: gradient.ready,
            bytes: tensor(gradient.tensor).bytes,
            shape: tensor(gradient.tensor).shape.clone(),
        };
        TraceFile {
            _format: IgnoredAny,
            version: 1 + u64::from(trace.operators.is_some()),
            name: trace.name.clone(),
            provenance: trace.provenance.clone(),
            batch: trace.batch,
            dtype: trace.dtype,
            device: trace.device.clone(),
            library: trace.library.clone(),
            workers: trace
                .workers
                .iter()
                .map(|worker| WorkerFile {
                    forward: worker.forward.iter().map(layer).collect(),
                    gradients: worker.gradients.iter().map(gradient).collect(),
                    backward_s: Some(worker.backward),
                    optimizer_s: worker.optimizer,
                })
                .collect(),
            distribution: trace
                .distribution
                .iter()
                .map(|&index| {
                    let tensor = tensor(index);
                    let bytes = (tensor.bytes == 0).then_some(tensor.pull_bytes);
                    Distributed { tensor: tensor.name.clone(), bytes }
                })
                .collect(),
            frozen: trace
                .tensors
                .iter()
                .filter(|tensor| tensor.frozen_bytes > 0)
                .map(|tensor| SizedTensor { tensor: tensor.name.clone(), bytes: tensor.frozen_bytes })
                .collect(),
            variables: trace
                .variables
                .iter()
                .map(|it| {
                    let bytes = it.tensor.is_none().then_some(it.bytes);
                    Distributed { tensor: it.name.clone(), bytes }
                })
                .collect(),
            optimizer_bytes: trace.optimizer_bytes,
            variation: Some(VariationFile { backward_spread: trace.backward_spread }),
            operators: trace.operators.clone(),
        }
    }
}
