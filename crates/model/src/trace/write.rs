//! Writes a trace with one line for each layer and gradient, so that it can be read, compared and edited by hand.
use std::fmt::Write;

use super::{Gradient, Layer, Trace, Variable, WorkerTrace};
use crate::document::quoted;
use crate::document::seconds::write as seconds;

impl Trace {
    /// The JSON of docs/reference/trace-format.md. Reading it gives this trace again, to the picosecond, if its tensors
    /// and gradients are in the order described at [`Trace`] (as in every trace that was read).
    #[must_use]
    pub fn to_json(&self) -> String {
        let workers: Vec<String> = self.workers.iter().map(|worker| self.worker(worker)).collect();
        let version = 1 + u8::from(self.operators.is_some());
        let mut out = format!("{{\n  \"format\": \"paceline-trace\",\n  \"version\": {version},\n");
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "  \"name\": {},\n  \"provenance\": {},\n  \"batch\": {},\n  \"dtype\": {},\n  \"device\": {},\n",
            quoted(&self.name),
            quoted(&self.provenance),
            self.batch,
            quoted(self.dtype.name()),
            quoted(&self.device),
        );
        if !self.library.is_empty() {
            let _ = writeln!(out, "  \"library\": {},", quoted(&self.library));
        }
        let _ = write!(out, "  \"workers\": [\n{}\n  ]", workers.join(",\n"));
        if !self.distribution_is_default() {
            let order: Vec<String> = self.distribution.iter().map(|&index| self.distributed(index)).collect();
            let _ = write!(out, ",\n  \"distribution\": {}", block(&order, "  "));
        }
        let frozen: Vec<String> = self
            .tensors
            .iter()
            .filter(|tensor| tensor.frozen_bytes > 0)
            .map(|tensor| format!("{{\"tensor\": {}, \"bytes\": {}}}", quoted(&tensor.name), tensor.frozen_bytes))
            .collect();
        if !frozen.is_empty() {
            let _ = write!(out, ",\n  \"frozen\": {}", block(&frozen, "  "));
        }
        if !self.variables.is_empty() {
            let variable = |it: &Variable| match it.tensor {
                Some(_) => quoted(&it.name),
                None => format!("{{\"tensor\": {}, \"bytes\": {}}}", quoted(&it.name), it.bytes),
            };
            let created: Vec<String> = self.variables.iter().map(variable).collect();
            let _ = write!(out, ",\n  \"variables\": {}", block(&created, "  "));
        }
        if let Some(bytes) = self.optimizer_bytes {
            let _ = write!(out, ",\n  \"optimizer_bytes\": {bytes}");
        }
        if self.backward_spread != 0.0 {
            // {:?} writes an exponent where {} would write hundreds of zeros; both are exact.
            let _ = write!(out, ",\n  \"variation\": {{\"backward_spread\": {:?}}}", self.backward_spread);
        }
        if let Some(operators) = &self.operators {
            let _ = write!(out, ",\n  \"operators\": {}", operators.to_json());
        }
        out.push_str("\n}\n");
        out
    }

    fn worker(&self, worker: &WorkerTrace) -> String {
        let forward: Vec<String> = worker.forward.iter().map(|layer| self.layer(layer)).collect();
        let gradients: Vec<String> = worker.gradients.iter().map(|gradient| self.gradient(gradient)).collect();
        format!(
            "    {{\n      \"forward\": {},\n      \"gradients\": {},\n\
             \x20     \"backward_s\": {},\n      \"optimizer_s\": {}\n    }}",
            block(&forward, "      "),
            block(&gradients, "      "),
            seconds(worker.backward),
            seconds(worker.optimizer),
        )
    }

    fn layer(&self, layer: &Layer) -> String {
        let (name, duration) = (quoted(&layer.name), seconds(layer.duration));
        let tensors: Vec<String> = layer.tensors.iter().map(|&index| self.name_of(index)).collect();
        let mut fields = format!("\"layer\": {name}, \"duration_s\": {duration}");
        if !tensors.is_empty() {
            let _ = write!(fields, ", \"tensors\": [{}]", tensors.join(", "));
        }
        if let Some(bytes) = layer.activation_bytes {
            let _ = write!(fields, ", \"activation_bytes\": {bytes}");
        }
        if let Some(bytes) = layer.backward_bytes {
            let _ = write!(fields, ", \"backward_bytes\": {bytes}");
        }
        format!("{{{fields}}}")
    }

    fn gradient(&self, gradient: &Gradient) -> String {
        let (name, ready) = (self.name_of(gradient.tensor), seconds(gradient.ready));
        let tensor = &self.tensors[gradient.tensor as usize];
        let shape = tensor.shape.as_ref().map_or(String::new(), |shape| format!(", \"shape\": {shape:?}"));
        format!("{{\"tensor\": {name}, \"ready_s\": {ready}, \"bytes\": {}{shape}}}", tensor.bytes)
    }

    fn distributed(&self, index: u32) -> String {
        let tensor = &self.tensors[index as usize];
        match tensor.bytes {
            0 => format!("{{\"tensor\": {}, \"bytes\": {}}}", quoted(&tensor.name), tensor.pull_bytes),
            _ => quoted(&tensor.name),
        }
    }

    fn name_of(&self, index: u32) -> String {
        quoted(&self.tensors[index as usize].name)
    }

    fn distribution_is_default(&self) -> bool {
        let trained = (0..).zip(&self.tensors).filter(|(_, tensor)| tensor.bytes > 0).map(|(index, _)| index);
        trained.eq(self.distribution.iter().copied())
    }
}

/// A list with one entry per line; the closing bracket is indented like the line that opens it.
pub(super) fn block(entries: &[String], indent: &str) -> String {
    match entries {
        [] => "[]".into(),
        _ => {
            let separator = format!(",\n{indent}  ");
            format!("[\n{indent}  {}\n{indent}]", entries.join(&separator))
        }
    }
}
