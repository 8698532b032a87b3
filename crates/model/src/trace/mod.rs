//! A trace: the computation of one worker in one iteration, independent of any network.
//!
//! | module | holds |
//! | --- | --- |
//! | this one | the types |
//! | `file`, `parse`, `check`, `write` | reads and writes the JSON of docs/reference/trace-format.md; [`TraceFile`] describes a trace by names |
//! | `values` | checks of values that were not read from a file |
//! | [`import`] | makes traces from the sends that a network operator sees |
//! | [`all_reduce`] | the trace without a model, `allreduce:100MB` |
//! | [`operators`] | what a computed step was computed of |
//! | [`modules`], `own_module`, `rate` | makes traces from others: with added modules, also of a file, at a measured rate |
pub mod all_reduce;
mod check;
mod file;
pub mod import;
pub mod modules;
pub mod operators;
mod own_module;
mod parse;
mod rate;
mod sends;
#[cfg(test)]
mod testing;
mod values;
mod write;

pub use all_reduce::parse_all_reduce;
pub use file::{Distributed, GradientFile, LayerFile, SizedTensor, TraceFile, VariationFile, WorkerFile};
pub use import::{ImportOptions, import_sends, read_sends};
pub use modules::{Module, ModuleKind, read_modules};
pub use operators::Operators;
pub use own_module::OwnModule;

use std::sync::Arc;

use crate::units::Time;

/// A gradient or parameter tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The model's name for it, such as `layer1.0.conv1.weight`.
    pub name: String,
    /// Bytes of its gradient, which workers send. 0: it has none.
    pub bytes: u64,
    /// Bytes that a parameter server distributes; equal to `bytes` except for tensors without gradient.
    pub pull_bytes: u64,
    /// Bytes of a parameter that is not trained, which sharded ranks gather like others. 0: it is none.
    pub frozen_bytes: u64,
    /// Dimensions of its gradient; `None`: not known.
    pub shape: Option<Vec<u64>>,
}

impl Tensor {
    /// Its bytes, whatever they are for.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        self.bytes.max(self.pull_bytes).max(self.frozen_bytes)
    }
}

/// One forward layer, in the order of execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The model's name for it.
    pub name: String,
    /// Its duration once its inputs are available.
    pub duration: Time,
    /// Indices into [`Trace::tensors`]: the parameters that it needs.
    pub tensors: Vec<u32>,
    /// Bytes of a sample that it keeps for the backward pass; `None`: unknown.
    pub activation_bytes: Option<u64>,
    /// Bytes of a sample that only its backward pass needs: what is recomputed, or copies of logits. `None`: unknown.
    pub backward_bytes: Option<u64>,
}

/// The time at which a gradient may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gradient {
    /// Index into [`Trace::tensors`].
    pub tensor: u32,
    /// Relative to the start of the backward pass.
    pub ready: Time,
}

/// One worker's iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerTrace {
    /// Forward layers in order.
    pub forward: Vec<Layer>,
    /// Gradients in the order in which they become ready.
    pub gradients: Vec<Gradient>,
    /// Duration of the whole backward pass; at least the last gradient's `ready`.
    pub backward: Time,
    /// The optimizer's step, which runs on the worker (zero if the recorder could not measure it).
    pub optimizer: Time,
}

impl WorkerTrace {
    /// Bytes of a sample that all layers keep for the backward pass; `None` if no layer says.
    #[must_use]
    pub fn activation_bytes(&self) -> Option<u64> {
        self.forward.iter().filter_map(|layer| layer.activation_bytes).reduce(u64::saturating_add)
    }

    /// The sum of the forward layers.
    #[must_use]
    pub fn forward_time(&self) -> Time {
        self.forward.iter().fold(Time::ZERO, |sum, layer| sum + layer.duration)
    }

    /// One iteration of this worker alone, without any communication.
    #[must_use]
    pub fn compute_time(&self) -> Time {
        self.forward_time() + self.backward + self.optimizer
    }
}

/// The element type of gradients on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE 754 double.
    Float64,
    /// IEEE 754 single.
    Float32,
    /// IEEE 754 half.
    Float16,
    /// bfloat16.
    Bfloat16,
}

impl Dtype {
    /// Every element type.
    pub const ALL: [Dtype; 4] = [Dtype::Float64, Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

    /// The name in traces.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Float64 => "float64",
            Dtype::Float32 => "float32",
            Dtype::Float16 => "float16",
            Dtype::Bfloat16 => "bfloat16",
        }
    }

    /// Bytes of one element.
    #[must_use]
    pub fn size(self) -> u64 {
        match self {
            Dtype::Float64 => 8,
            Dtype::Float32 => 4,
            Dtype::Float16 | Dtype::Bfloat16 => 2,
        }
    }
}

/// A variable of the model, in the framework's sense: a parameter, or a state such as a moving average.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The model's name for it.
    pub name: String,
    /// Index into [`Trace::tensors`]; `None`: it is neither trained nor distributed.
    pub tensor: Option<u32>,
    /// Bytes of one that is no tensor of the trace; otherwise 0.
    pub bytes: u64,
}

/// One training step on one or several workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The name for tables.
    pub name: String,
    /// How it was made, with its sources.
    pub provenance: String,
    /// Samples per worker and iteration.
    pub batch: u32,
    /// Element type of every gradient.
    pub dtype: Dtype,
    /// The hardware on which it was recorded.
    pub device: String,
    /// The library that synchronized gradients while it was recorded, by its name among libraries; empty if none did.
    pub library: String,
    /// In the order in which the forward pass first needs them, followed by those that no layer needs (distributed
    /// only).
    pub tensors: Vec<Tensor>,
    /// At least one. Simulated worker i behaves like recorded worker i modulo their number.
    pub workers: Vec<WorkerTrace>,
    /// Indices of all tensors that are not frozen, in the order in which servers distribute them.
    pub distribution: Vec<u32>,
    /// The model's variables in the order in which the framework created them; those left out follow in the order of
    /// `tensors`.
    pub variables: Vec<Variable>,
    /// Bytes of the optimizer's states, of all parameters that it trains; `None`: unknown.
    pub optimizer_bytes: Option<u64>,
    /// The operators of its only worker's step; `None`: unknown. What changes layers or times leaves them out.
    pub operators: Option<Arc<Operators>>,
    /// How much workers differ: worker i's backward pass is longer by the factor 1 + `backward_spread` * u_i, with u_i
    /// evenly spaced in [0, 1] in a fixed shuffle. 0: they do not differ.
    pub backward_spread: f64,
}

impl Trace {
    /// The number of each tensor's variable in the order of creation, by index of the tensor.
    #[must_use]
    pub fn variable_numbers(&self) -> Vec<u32> {
        let mut numbers = vec![u32::MAX; self.tensors.len()];
        for (number, variable) in (0u32..).zip(&self.variables) {
            if let Some(tensor) = variable.tensor {
                numbers[tensor as usize] = number;
            }
        }
        let left = numbers.iter_mut().filter(|number| **number == u32::MAX);
        left.zip(self.variables.len() as u32..).for_each(|(number, next)| *number = next);
        numbers
    }
}
