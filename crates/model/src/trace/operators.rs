//! The operators of a computed step, from which its times can be computed again for another device.
use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::value::RawValue;

use super::write::block;
use crate::document::fields::{MAX_DIMENSIONS, MAX_TENSOR_BYTES, check_text, name};
use crate::document::strict::{list, objects};
use crate::document::{MAX_ENTRIES, Problem, quoted, shown, with_remedy, with_value};

/// What ends operators that were changed by hand.
const AGAIN: &str = "a trace as paceline record --gpu writes it, or none of its \"operators\"";

/// The operators of one step in their order, and where layers, gradients and passes end among them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Operators {
    /// Tensors that operators take or make, each kind once.
    #[serde(deserialize_with = "objects")]
    pub tensors: Vec<OperatorTensor>,
    /// Operators that differ.
    #[serde(deserialize_with = "objects")]
    pub kinds: Vec<OperatorKind>,
    /// Indices into `kinds`, in the order of the step.
    #[serde(deserialize_with = "list")]
    pub order: Vec<u32>,
    /// Those of each forward layer: the first in `order`, and the one after the last.
    #[serde(deserialize_with = "list")]
    pub forward: Vec<[u32; 2]>,
    /// How many operators of the backward pass precede each gradient, by the tensor's name.
    pub gradients: BTreeMap<String, u32>,
    /// Those of the backward pass.
    pub backward: [u32; 2],
    /// Those of the optimizer's step.
    pub optimizer: [u32; 2],
}

/// A tensor of an operator.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct OperatorTensor {
    /// torch's name of the element type.
    #[serde(deserialize_with = "name")]
    pub dtype: String,
    /// Its dimensions.
    #[serde(deserialize_with = "list")]
    pub shape: Vec<u64>,
    /// Elements from one entry of a dimension to the next; `None`: row-major.
    #[serde(default, deserialize_with = "strides")]
    pub strides: Option<Vec<u64>>,
}

/// An operator as it is dispatched.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct OperatorKind {
    /// torch's name without namespace and overload.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// Indices into [`Operators::tensors`].
    #[serde(default, deserialize_with = "list")]
    pub inputs: Vec<u32>,
    /// Indices into [`Operators::tensors`].
    #[serde(default, deserialize_with = "list")]
    pub outputs: Vec<u32>,
    /// Arguments that are no tensors.
    #[serde(default, deserialize_with = "attributes")]
    pub attributes: BTreeMap<String, Attribute>,
    /// The part of the step.
    #[serde(default, deserialize_with = "phase")]
    pub phase: Phase,
    /// Whether torch.compile may fuse it with its neighbors.
    #[serde(default)]
    pub compiled: bool,
    /// Whether products in FP32 may use TF32.
    #[serde(default)]
    pub tf32: bool,
    /// For each input, how many operators before this one it was written; 0: not in this step. Empty: unknown.
    #[serde(default, deserialize_with = "list")]
    pub sources: Vec<u32>,
}

/// The part of a step that an operator belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The forward pass.
    #[default]
    Forward,
    /// The backward pass.
    Backward,
    /// The optimizer's step.
    Update,
}

/// A number, a truth value, text, or a list of numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A truth value.
    Truth(bool),
    /// A whole number.
    Whole(i64),
    /// Another number.
    Number(f64),
    /// Text, such as the mode of a padding.
    Text(String),
    /// A list of truth values or numbers.
    List(Vec<Attribute>),
}

fn attributes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Attribute>, D::Error> {
    let values = BTreeMap::<String, Box<RawValue>>::deserialize(deserializer)?;
    let attribute = |(name, value): (String, Box<RawValue>)| match Attribute::of(&value) {
        Some(value) => Ok((name, value)),
        None => {
            let message = format!("{} is no number, truth value, text or list of numbers", shown(&name));
            Err(D::Error::custom(with_remedy(message, AGAIN)))
        }
    };
    values.into_iter().map(attribute).collect()
}

fn phase<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Phase, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "forward" => Ok(Phase::Forward),
        "backward" => Ok(Phase::Backward),
        "update" => Ok(Phase::Update),
        other => Err(D::Error::custom(with_value(
            format!("unknown phase {}", shown(other)),
            "\"forward\" (or \"backward\", \"update\")",
        ))),
    }
}

fn strides<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u64>>, D::Error> {
    let strides: Vec<u64> = list(deserializer)?;
    if strides.len() > MAX_DIMENSIONS {
        return Err(D::Error::custom(with_remedy(format!("must have at most {MAX_DIMENSIONS} entries"), AGAIN)));
    }
    Ok(Some(strides))
}

impl Operators {
    /// Checks what involves several fields. `layers` and `gradients`: those of the trace's only worker.
    pub(super) fn check<'a>(
        &self,
        layers: usize,
        gradients: impl ExactSizeIterator<Item = &'a str>,
    ) -> Result<(), Problem> {
        let wrong = |place: String, message: String| Err(Problem::new(place, message).remedy(AGAIN));
        for (at, tensor) in self.tensors.iter().enumerate() {
            tensor.check().or_else(|message| wrong(format!("operators.tensors[{at}]"), message))?;
        }
        for (at, kind) in self.kinds.iter().enumerate() {
            kind.check(self.tensors.len()).or_else(|message| wrong(format!("operators.kinds[{at}]"), message))?;
        }
        if let Some(at) = self.order.iter().position(|&kind| kind as usize >= self.kinds.len()) {
            return wrong(format!("operators.order[{at}]"), format!("there are {} kinds", self.kinds.len()));
        }
        if self.forward.len() != layers {
            return wrong("operators.forward".into(), format!("must have an entry for each of the {layers} layers"));
        }
        let parts = self.forward.iter().chain([&self.backward, &self.optimizer]);
        for &[begin, end] in parts {
            if begin > end || end as usize > self.order.len() {
                let message = format!("[{begin}, {end}] is no part of the {} operators", self.order.len());
                return wrong("operators".into(), message);
            }
        }
        let (count, passed) = (gradients.len(), self.backward[1] - self.backward[0]);
        for name in gradients {
            match self.gradients.get(name) {
                None => return wrong("operators.gradients".into(), format!("lacks {}", quoted(name))),
                Some(&before) if before > passed => {
                    return wrong(
                        "operators.gradients".into(),
                        format!("{}: is beyond the backward pass", quoted(name)),
                    );
                }
                Some(_) => {}
            }
        }
        if self.gradients.len() != count {
            return wrong("operators.gradients".into(), "names a tensor without a gradient".into());
        }
        Ok(())
    }

    /// The JSON of the field, with a line for each tensor and kind.
    #[must_use]
    pub fn to_json(&self) -> String {
        let tensors: Vec<String> = self.tensors.iter().map(OperatorTensor::to_json).collect();
        let kinds: Vec<String> = self.kinds.iter().map(OperatorKind::to_json).collect();
        let gradients: Vec<String> =
            self.gradients.iter().map(|(name, before)| format!("{}: {before}", quoted(name))).collect();
        format!(
            "{{\n    \"tensors\": {},\n    \"kinds\": {},\n    \"order\": {:?},\n    \"forward\": {:?},\n    \
             \"gradients\": {{{}}},\n    \"backward\": {:?},\n    \"optimizer\": {:?}\n  }}",
            block(&tensors, "    "),
            block(&kinds, "    "),
            self.order,
            self.forward,
            gradients.join(", "),
            self.backward,
            self.optimizer,
        )
    }
}

impl OperatorTensor {
    fn check(&self) -> Result<(), String> {
        if self.shape.len() > MAX_DIMENSIONS {
            return Err(format!("must have at most {MAX_DIMENSIONS} dimensions"));
        }
        if self.strides.as_ref().is_some_and(|strides| strides.len() != self.shape.len()) {
            return Err("must have a stride for each dimension".into());
        }
        let elements = self.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let largest = self.strides.iter().flatten().max().copied().unwrap_or(0);
        if elements.is_none_or(|elements| elements > MAX_TENSOR_BYTES) || largest > MAX_TENSOR_BYTES {
            return Err("is larger than a petabyte".into());
        }
        Ok(())
    }

    fn to_json(&self) -> String {
        let mut out = format!("{{\"dtype\": {}, \"shape\": {:?}", quoted(&self.dtype), self.shape);
        if let Some(strides) = &self.strides {
            // Writing to a string cannot fail.
            let _ = write!(out, ", \"strides\": {strides:?}");
        }
        out + "}"
    }
}

impl OperatorKind {
    fn check(&self, tensors: usize) -> Result<(), String> {
        if self.inputs.iter().chain(&self.outputs).any(|&tensor| tensor as usize >= tensors) {
            return Err(format!("there are {tensors} tensors"));
        }
        if !self.sources.is_empty() && self.sources.len() != self.inputs.len() {
            return Err("must have a source for each input".into());
        }
        self.attributes.iter().try_for_each(|(name, value)| {
            check_text(name.clone())?;
            if let Attribute::Text(text) = value { check_text(text.clone()).map(|_| ()) } else { Ok(()) }
        })
    }

    fn to_json(&self) -> String {
        let mut out = format!("{{\"name\": {}", quoted(&self.name));
        for (field, indices) in [("inputs", &self.inputs), ("outputs", &self.outputs), ("sources", &self.sources)] {
            if !indices.is_empty() {
                let _ = write!(out, ", \"{field}\": {indices:?}");
            }
        }
        if !self.attributes.is_empty() {
            let values: Vec<String> =
                self.attributes.iter().map(|(name, value)| format!("{}: {}", quoted(name), value.to_json())).collect();
            let _ = write!(out, ", \"attributes\": {{{}}}", values.join(", "));
        }
        match self.phase {
            Phase::Forward => {}
            Phase::Backward => out.push_str(", \"phase\": \"backward\""),
            Phase::Update => out.push_str(", \"phase\": \"update\""),
        }
        for (field, is_set) in [("compiled", self.compiled), ("tf32", self.tf32)] {
            if is_set {
                let _ = write!(out, ", \"{field}\": true");
            }
        }
        out + "}"
    }
}

impl Attribute {
    /// A value of the document; numbers from their digits, because serde_json's floats may be off by the last bit.
    fn of(value: &RawValue) -> Option<Attribute> {
        let text = value.get();
        Some(match text.as_bytes().first()? {
            b't' | b'f' => Attribute::Truth(text == "true"),
            b'"' => Attribute::Text(serde_json::from_str(text).ok()?),
            b'[' => {
                let values: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                let one = |value: &&RawValue| if value.get().starts_with('[') { None } else { Attribute::of(value) };
                Attribute::List(values.iter().take(MAX_ENTRIES).map(one).collect::<Option<_>>()?)
            }
            b'n' | b'{' => return None,
            _ => match text.parse() {
                Ok(value) => Attribute::Whole(value),
                Err(_) => Attribute::Number(text.parse().ok().filter(|value: &f64| value.is_finite())?),
            },
        })
    }

    fn to_json(&self) -> String {
        match self {
            Attribute::Truth(value) => value.to_string(),
            Attribute::Whole(value) => value.to_string(),
            // {:?} keeps what makes it no whole number, and is exact.
            Attribute::Number(value) => format!("{value:?}"),
            Attribute::Text(text) => quoted(text),
            Attribute::List(values) => {
                let values: Vec<String> = values.iter().map(Attribute::to_json).collect();
                format!("[{}]", values.join(", "))
            }
        }
    }
}
