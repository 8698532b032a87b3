//! Makes traces from descriptions that a program has built: checks of single values, which a file's parser makes while it
//! reads.
use serde::de::IgnoredAny;
use serde::de::value::Error as Message;

use super::file::{Distributed, LayerFile, TraceFile, WorkerFile};
use super::{Dtype, Trace};
use crate::document::fields::{MAX_DIMENSIONS, MAX_SPREAD, check_name, check_text, plausible_bytes};
use crate::document::{DocumentError, MAX_ENTRIES, Problem, with_remedy, with_value};

impl TraceFile {
    /// A trace without optional fields.
    #[must_use]
    pub fn new(name: String, batch: u32, dtype: Dtype, workers: Vec<WorkerFile>) -> TraceFile {
        TraceFile {
            _format: IgnoredAny,
            version: 1,
            name,
            provenance: String::new(),
            batch,
            dtype,
            device: String::new(),
            library: String::new(),
            workers,
            distribution: Vec::new(),
            frozen: Vec::new(),
            variables: Vec::new(),
            optimizer_bytes: None,
            variation: None,
            operators: None,
        }
    }

    /// Makes the trace. `source` is its name in errors.
    ///
    /// # Errors
    /// Whatever docs/reference/trace-format.md does not allow in a file, in one line that names the place.
    pub fn trace(self, source: &str) -> Result<Trace, DocumentError> {
        self.check_values().and_then(|()| self.checked()).map_err(|problem| problem.of(source))
    }

    fn check_values(&self) -> Result<(), Problem> {
        let at = |place: &str| {
            let place = place.to_owned();
            move |message: String| Problem::new(place, message)
        };
        check_name(self.name.clone()).map_err(at("name"))?;
        for (place, text) in [("provenance", &self.provenance), ("device", &self.device), ("library", &self.library)] {
            check_text(text.clone()).map_err(at(place))?;
        }
        if self.batch == 0 {
            return Err(at("batch")(with_value("must be 1-4294967295, not 0", 1)));
        }
        for (number, worker) in self.workers.iter().enumerate() {
            worker.check_values(&format!("workers[{number}]"))?;
        }
        let named = |place: &'static str| move |one: &Distributed| (place, one.tensor.clone(), one.bytes);
        let listed = self.distribution.iter().map(named("distribution"));
        let listed = listed.chain(self.variables.iter().map(named("variables")));
        let frozen = self.frozen.iter().map(|one| ("frozen", one.tensor.clone(), Some(one.bytes)));
        for (place, name, bytes) in listed.chain(frozen) {
            check_name(name).map_err(at(place))?;
            bytes.map_or(Ok(()), sized).map_err(at(place))?;
        }
        self.optimizer_bytes.map_or(Ok(()), |bytes| plausible(bytes, "bytes")).map_err(at("optimizer_bytes"))?;
        match &self.variation {
            Some(variation) if !(0.0..=MAX_SPREAD).contains(&variation.backward_spread) => {
                let spread = variation.backward_spread;
                Err(at("backward_spread")(with_value(format!("must be 0-{MAX_SPREAD}, not {spread}"), 0)))
            }
            _ => Ok(()),
        }
    }
}

impl WorkerFile {
    fn check_values(&self, place: &str) -> Result<(), Problem> {
        if self.forward.len().max(self.gradients.len()) > MAX_ENTRIES {
            return Err(Problem::new(place, format!("has more than {MAX_ENTRIES} layers or gradients")).remedy("fewer"));
        }
        for (at, layer) in self.forward.iter().enumerate() {
            layer.check_values().map_err(|message| Problem::new(format!("{place}.forward[{at}]"), message))?;
        }
        for (at, gradient) in self.gradients.iter().enumerate() {
            let dimensions = gradient.shape.as_ref().map_or(0, Vec::len);
            let checked = check_name(gradient.tensor.clone()).and_then(|_| sized(gradient.bytes)).and_then(|()| {
                let message = with_remedy(
                    format!("must have at most {MAX_DIMENSIONS} dimensions, not {dimensions}"),
                    "the shape without some",
                );
                if dimensions > MAX_DIMENSIONS { Err(message) } else { Ok(()) }
            });
            checked.map_err(|message| Problem::new(format!("{place}.gradients[{at}]"), message))?;
        }
        Ok(())
    }
}

impl LayerFile {
    fn check_values(&self) -> Result<(), String> {
        check_text(self.layer.clone())?;
        for name in &self.tensors {
            check_name(name.clone())?;
        }
        let mut kept = self.activation_bytes.into_iter().chain(self.backward_bytes);
        kept.try_for_each(|bytes| plausible(bytes, "bytes of one sample"))
    }
}

/// The bytes of a tensor: at least 1.
fn sized(bytes: u64) -> Result<(), String> {
    if bytes == 0 {
        return Err(with_remedy("has 0 bytes", "the bytes of at least one element"));
    }
    plausible(bytes, "bytes")
}

fn plausible(bytes: u64, unit: &str) -> Result<(), String> {
    plausible_bytes::<Message>(bytes, unit).map(|_| ()).map_err(|error| error.to_string())
}
