//! The plan of an iteration, its JSON (docs/reference/iteration-plan.md) and its checks.
use paceline_model::trace::Dtype;
pub use paceline_schedule::Collective;
use serde::{Deserialize, Serialize};

use crate::options::{IterationError, Sharding};

/// `format` of the JSON.
pub const FORMAT: &str = "paceline-iteration-plan";
/// `version` of the JSON; later ones are refused.
pub const VERSION: u32 = 1;

/// One rank's work in one iteration. All ranks have the same plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Name of the trace.
    pub trace: String,
    /// Sharded parts of the state.
    pub sharding: Sharding,
    /// Number of ranks.
    pub world: u32,
    /// Ranks over which the state is sharded.
    pub shard_ranks: u32,
    /// Samples of a rank in an iteration, or in all of `iterations`, over all passes.
    pub samples: u64,
    /// Passes through the model in an iteration.
    pub passes: u32,
    /// Iterations that the steps are, of which ranks exchange something in the last one only.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub iterations: u32,
    /// Units that are gathered, scattered or reduced as one.
    pub units: Vec<Unit>,
    /// Number of parameters that are not trained and belong to no unit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub frozen_elsewhere: u64,
    /// Everything that takes memory.
    pub buffers: Vec<Buffer>,
    /// Buffers that exist during the whole iteration.
    pub resident: Vec<u32>,
    /// Steps, each after those that it waits for. Steps of a stream run in this order.
    pub steps: Vec<Step>,
    /// Whether the next iteration begins when the computation of this one has ended, with exchanges still on their way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends_with_compute: bool,
    /// Whether the trace says what activations take; otherwise they have no buffers.
    pub has_activations: bool,
    /// Degenerate cases, for readers of the file.
    pub notes: Vec<String>,
}

/// A block of the model, or a bucket of gradients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unit {
    /// The block's name, or that of the bucket's first tensor.
    pub name: String,
    /// Number of parameters that are trained.
    pub elements: u64,
    /// Number of others.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub frozen: u64,
    /// For a bucket without gradients, which servers distribute and do not add to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pull_only: bool,
    /// Its place in the order in which servers distribute; `None`: there are no servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

/// Content of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BufferKind {
    /// Parameters, or the rank's shard of them.
    Parameters,
    /// Gradients, whole or sharded.
    Gradients,
    /// States of the optimizer, with its float32 copy of the parameters.
    OptimizerStates,
    /// The gathered parameters of a unit.
    Gathered,
    /// Target of an all-gather, and source of a reduce-scatter, where FSDP2 copies between these and the parameters and gradients.
    Communication,
    /// Tensors that the forward pass keeps for the backward pass.
    Activations,
}

impl BufferKind {
    /// Every kind, in the order of tables.
    pub const ALL: [BufferKind; 6] = [
        BufferKind::Parameters,
        BufferKind::Gradients,
        BufferKind::OptimizerStates,
        BufferKind::Gathered,
        BufferKind::Communication,
        BufferKind::Activations,
    ];
}

/// A buffer in a rank's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Its content.
    pub kind: BufferKind,
    /// Its size.
    pub bytes: u64,
    /// The unit that it belongs to; `None`: all.
    pub unit: Option<u32>,
}

/// A sequence of steps: a stream of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    /// Computation.
    Compute,
    /// All-gathers.
    AllGather,
    /// Reduce-scatters.
    ReduceScatter,
    /// All-reduces.
    AllReduce,
    /// Computation between and after the exchanges of compressed gradients, beside that of the model.
    Compression,
    /// Exchanges of which any number run at once: they begin in this order, and do not wait for each other.
    Background,
}

impl Stream {
    /// Every stream, in the order of timelines.
    pub const ALL: [Stream; 6] = [
        Stream::Compute,
        Stream::AllGather,
        Stream::ReduceScatter,
        Stream::AllReduce,
        Stream::Compression,
        Stream::Background,
    ];

    /// The name in timelines and results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stream::Compute => "compute",
            Stream::AllGather => "all-gather",
            Stream::ReduceScatter => "reduce-scatter",
            Stream::AllReduce => "all-reduce",
            Stream::Compression => "compression",
            Stream::Background => "background",
        }
    }
}

/// The ranks of a collective: those that are in one block of `size * stride` consecutive ranks and equal modulo `stride`.
/// All such groups of the world run the same collective, each on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Ranks of a group.
    pub size: u32,
    /// From one rank to the next.
    pub stride: u32,
}

/// Work of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Work {
    /// A part of the forward pass.
    Forward {
        /// Picoseconds.
        duration_ps: u64,
    },
    /// A part of the backward pass.
    Backward {
        /// Picoseconds.
        duration_ps: u64,
    },
    /// The optimizer's step.
    Optimizer {
        /// Picoseconds.
        duration_ps: u64,
    },
    /// Gradients or differences of parameters are made ready to be sent.
    Compress {
        /// Picoseconds.
        duration_ps: u64,
    },
    /// Restores gradients from the received data.
    Decompress {
        /// Picoseconds.
        duration_ps: u64,
    },
    /// The step from the averages of all ranks, after several iterations.
    OuterOptimizer {
        /// Picoseconds.
        duration_ps: u64,
    },
    /// An exchange with other ranks.
    Exchange {
        /// Which one.
        collective: Collective,
        /// Between whom.
        group: Group,
        /// Elements of the whole: each rank's shard is a part of them.
        elements: u64,
        /// On the wire.
        #[serde(with = "dtype_name")]
        dtype: Dtype,
    },
}

impl Work {
    /// The name in plans and timelines.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Work::Forward { .. } => "forward",
            Work::Backward { .. } => "backward",
            Work::Optimizer { .. } => "optimizer",
            Work::Compress { .. } => "compress",
            Work::Decompress { .. } => "decompress",
            Work::OuterOptimizer { .. } => "outer-optimizer",
            Work::Exchange { .. } => "exchange",
        }
    }

    /// Picoseconds of computation; 0 for an exchange.
    #[must_use]
    pub fn duration_ps(&self) -> u64 {
        match *self {
            Work::Forward { duration_ps }
            | Work::Backward { duration_ps }
            | Work::Optimizer { duration_ps }
            | Work::Compress { duration_ps }
            | Work::Decompress { duration_ps }
            | Work::OuterOptimizer { duration_ps } => duration_ps,
            Work::Exchange { .. } => 0,
        }
    }
}

/// A step of the plan. It begins when the step before it on its stream, all of `after`, and all of `after_previous` have
/// ended; on the background stream it does not wait for the one before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Where it runs.
    pub stream: Stream,
    /// Its work.
    pub work: Work,
    /// The unit; `None`: all.
    pub unit: Option<u32>,
    /// The layer that it is, where layers are steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// The pass through the model, from 0.
    pub pass: u32,
    /// Numbers of earlier steps.
    pub after: Vec<u32>,
    /// Numbers of steps of the iteration before; the first iteration waits for none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after_previous: Vec<u32>,
    /// Buffers that begin to exist when it begins.
    pub allocates: Vec<u32>,
    /// Buffers that cease to exist when it has ended; one that several steps free, when all of them have.
    pub frees: Vec<u32>,
}

impl Step {
    /// Its name in a timeline.
    #[must_use]
    pub fn name(&self, units: &[Unit]) -> String {
        if let Some(layer) = &self.layer {
            return layer.clone();
        }
        let unit = self.unit.map_or("", |unit| units[unit as usize].name.as_str());
        let what = match &self.work {
            Work::OuterOptimizer { .. } => "outer optimizer",
            Work::Exchange { collective, .. } => collective.name(),
            computed => computed.kind(),
        };
        if unit.is_empty() { what.to_owned() } else { format!("{what} {unit}") }
    }
}

impl Plan {
    /// Whether the one group of `hsdp` is all ranks, which makes it `zero3`.
    #[must_use]
    pub fn is_one_group(&self) -> bool {
        self.sharding == Sharding::Hsdp && self.shard_ranks == self.world && self.world > 1
    }

    /// Number of parameters.
    #[must_use]
    pub fn elements(&self) -> u64 {
        let own = self.units.iter().filter(|unit| !unit.pull_only).map(|unit| unit.elements + unit.frozen);
        own.sum::<u64>() + self.frozen_elsewhere
    }

    /// The plan as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Its types have no maps with other keys than text, and no numbers that JSON lacks.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// It is malformed, or its steps cannot be executed; the message names the place.
    pub fn from_json(text: &str, source: &str) -> Result<Plan, IterationError> {
        let wrong = |message: String| {
            let wrong = IterationError::new(format!("{source}: {message}"));
            wrong.remedy("paceline simulate --plan-json FILE (writes one)")
        };
        let plan: Plan = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if plan.format != FORMAT || plan.version != VERSION {
            return Err(wrong(format!(
                "must be {FORMAT} version {VERSION}, not '{}' version {}",
                plan.format, plan.version
            )));
        }
        plan.check().map_err(wrong)?;
        Ok(plan)
    }

    /// Whether the plan can be executed: steps wait for earlier ones only, numbers exist, and every buffer is allocated
    /// once before it is freed.
    ///
    /// # Errors
    /// Checks the plan; an error says what is wrong, and where.
    pub fn check(&self) -> Result<(), String> {
        let mut seen = vec![false; self.buffers.len()];
        let mut freed = seen.clone();
        let mut allocated: Vec<Option<usize>> = vec![None; self.buffers.len()];
        for &buffer in &self.resident {
            let slot = seen.get_mut(buffer as usize).ok_or(format!("resident: there is no buffer {buffer}"))?;
            if std::mem::replace(slot, true) {
                return Err(format!("resident: buffer {buffer} is listed twice"));
            }
        }
        for (number, step) in self.steps.iter().enumerate() {
            let place = |what: &str| format!("steps[{number}].{what}");
            if let Some(after) = step.after.iter().find(|&&after| after as usize >= number) {
                return Err(format!("{}: step {after} is not an earlier one", place("after")));
            }
            if let Some(after) = step.after_previous.iter().find(|&&after| after as usize >= self.steps.len()) {
                return Err(format!("{}: there is no step {after}", place("after_previous")));
            }
            if let Some(unit) = step.unit.filter(|&unit| unit as usize >= self.units.len()) {
                return Err(format!("{}: there is no unit {unit}", place("unit")));
            }
            if let Work::Exchange { group, .. } = step.work {
                let span = u64::from(group.size) * u64::from(group.stride);
                if span == 0 || !u64::from(self.world).is_multiple_of(span) {
                    return Err(format!(
                        "{}: groups of {} ranks with stride {} do not divide {} ranks",
                        place("work.group"),
                        group.size,
                        group.stride,
                        self.world
                    ));
                }
            }
            for &buffer in &step.allocates {
                let is_new = seen.get_mut(buffer as usize).map(|slot| !std::mem::replace(slot, true));
                if is_new != Some(true) {
                    return Err(format!(
                        "{}: buffer {buffer} does not exist or is allocated twice",
                        place("allocates")
                    ));
                }
                allocated[buffer as usize] = Some(number);
            }
        }
        // Of several steps that free a buffer, the last one does.
        for (number, step) in self.steps.iter().enumerate().rev() {
            for &buffer in &step.frees {
                let since = allocated.get(buffer as usize).copied().flatten();
                if since.is_none_or(|since| since > number && !freed[buffer as usize]) {
                    return Err(format!("steps[{number}].frees: buffer {buffer} is not allocated there"));
                }
                freed[buffer as usize] = true;
            }
        }
        Ok(())
    }
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

mod dtype_name {
    use paceline_model::trace::Dtype;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(dtype: &Dtype, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(dtype.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Dtype, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = Dtype::ALL.into_iter().find(|dtype| dtype.name() == name);
        known.ok_or_else(|| D::Error::custom(format!("unknown dtype '{name}'")))
    }
}
