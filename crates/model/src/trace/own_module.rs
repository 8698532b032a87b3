//! Modules of one's own, from a file: layers with their times and the bytes of their parameters.
//!
//! ```json
//! {
//!   "format": "paceline-module", "version": 1, "name": "block", "batch": 32,
//!   "layers": [
//!     {"layer": "conv", "forward_s": 0.001, "backward_s": 0.002, "tensors": [{"tensor": "weight", "bytes": 36864}]}
//!   ]
//! }
//! ```
use std::collections::HashSet;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};

use super::{Dtype, Trace};
use crate::document::fields::{name, plausible_bytes, tensor_bytes, text, time, whole};
use crate::document::strict::{list, objects};
use crate::document::{DocumentError, Format, MAX_ENTRIES, Problem, parse, read, shown, with_remedy};
use crate::units::{MAX_SECONDS, Time};

const FORMAT: Format = Format { name: "paceline-module", version: 1, latest: 1, hint };

/// A layer of a module.
pub(super) struct AddedLayer {
    pub name: String,
    pub forward: Time,
    pub backward: Time,
    pub activation_bytes: Option<u64>,
    /// Of each moving average of its batch normalization; `None`: it has none.
    pub average_bytes: Option<u64>,
    /// In the order of the forward pass.
    pub tensors: Vec<AddedTensor>,
}

/// A tensor of such a layer.
pub(super) struct AddedTensor {
    pub name: String,
    pub bytes: u64,
    pub shape: Option<Vec<u64>>,
}

/// A module that `Trace::with_modules` adds.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnModule {
    /// What traces with it are called after.
    pub name: String,
    /// Samples of which the times are; `None`: those of the trace.
    pub batch: Option<u32>,
    layers: Vec<OwnLayer>,
    source: String,
}

#[derive(Clone, Debug, Deserialize)]
struct ModuleFile {
    #[serde(rename = "format")]
    _format: IgnoredAny,
    #[serde(rename = "version")]
    _version: IgnoredAny,
    #[serde(deserialize_with = "name")]
    name: String,
    #[serde(default, rename = "provenance", deserialize_with = "text")]
    _provenance: String,
    #[serde(default, deserialize_with = "batch")]
    batch: Option<u32>,
    #[serde(deserialize_with = "objects")]
    layers: Vec<OwnLayer>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct OwnLayer {
    #[serde(deserialize_with = "name")]
    layer: String,
    #[serde(deserialize_with = "time")]
    forward_s: Time,
    #[serde(deserialize_with = "time")]
    backward_s: Time,
    #[serde(default, deserialize_with = "bytes_of_sample")]
    activation_bytes: Option<u64>,
    #[serde(default, deserialize_with = "objects")]
    tensors: Vec<OwnTensor>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct OwnTensor {
    #[serde(deserialize_with = "name")]
    tensor: String,
    #[serde(deserialize_with = "tensor_bytes")]
    bytes: u64,
    #[serde(default, deserialize_with = "shape")]
    shape: Option<Vec<u64>>,
}

fn batch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    whole(deserializer, 1..=u32::MAX).map(Some)
}

fn bytes_of_sample<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    plausible_bytes(u64::deserialize(deserializer)?, "bytes of one sample").map(Some)
}

fn shape<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u64>>, D::Error> {
    list(deserializer).map(Some)
}

fn hint(field: &str) -> Option<&'static str> {
    Some(match field {
        "name" => "the module's name, in quotes",
        "batch" => "the samples of which the times are, a whole number of at least 1",
        "layers" => "a list of layers in order of execution",
        "layer" => "the layer's name, in quotes",
        "forward_s" => "how long the layer's forward pass takes, in seconds",
        "backward_s" => "how long the layer's backward pass takes, in seconds",
        "activation_bytes" => "the bytes of a sample that the layer keeps for the backward pass, a whole number",
        "tensors" => "a list of parameters, {\"tensor\": …, \"bytes\": …} each",
        "tensor" => "the parameter's name, in quotes",
        "bytes" => "the parameter's size in bytes, a whole number of at least 1",
        "shape" => "the parameter's dimensions, a list of whole numbers such as [768, 2304]",
        _ => return None,
    })
}

impl OwnModule {
    /// Reads the JSON of a module; `source` is its name in errors.
    ///
    /// # Errors
    /// Anything that docs/reference/trace-format.md does not allow; the message names the place.
    pub fn from_json(text: &[u8], source: &str) -> Result<OwnModule, DocumentError> {
        let file: ModuleFile = parse(text, source, &FORMAT)?;
        check(&file).map_err(|problem| problem.of(source))?;
        Ok(OwnModule { name: file.name, batch: file.batch, layers: file.layers, source: source.into() })
    }

    /// Reads a module's file.
    ///
    /// # Errors
    /// A file that cannot be read, or that [`OwnModule::from_json`] refuses.
    pub fn read(path: &Path) -> Result<OwnModule, DocumentError> {
        OwnModule::from_json(&read(path)?, &path.to_string_lossy())
    }

    /// Refuses tensors that are not whole elements of a trace's gradients.
    pub(super) fn check_elements(&self, trace: &str, dtype: Dtype) -> Result<(), DocumentError> {
        let element = dtype.size();
        for (at, layer) in self.layers.iter().enumerate() {
            for (number, it) in layer.tensors.iter().enumerate() {
                let bytes = it.bytes;
                if bytes % element != 0 {
                    let place = format!("layers[{at}].tensors[{number}].bytes");
                    let message = format!("{bytes} bytes are not whole elements of {trace}, {element} each");
                    let whole = bytes.div_ceil(element) * element;
                    return Err(DocumentError::at(&self.source, &place, &with_remedy(message, whole)));
                }
            }
        }
        Ok(())
    }

    /// Refuses so many modules that a trace with them has more layers or tensors than one may have.
    pub(super) fn check_count(&self, trace: &Trace, count: u32) -> Result<(), DocumentError> {
        let tensors = self.layers.iter().map(|layer| layer.tensors.len()).sum::<usize>();
        let layers = trace.workers.iter().map(|worker| worker.forward.len()).max().unwrap_or(0);
        let left = MAX_ENTRIES.saturating_sub(layers.max(trace.tensors.len()));
        let most = left / self.layers.len().max(tensors);
        if count as usize <= most {
            return Ok(());
        }
        let message = format!("with {count} of {}, it has more than {MAX_ENTRIES} layers or tensors", self.source);
        let fewer =
            if most == 0 { "a smaller module".into() } else { format!("{{add_module={}:{most}}}", self.source) };
        Err(DocumentError::at(&trace.name, "", &with_remedy(message, fewer)))
    }

    /// Its layers at a batch; `None`: they take longer than a day.
    pub(super) fn layers(&self, samples: u32) -> Option<Vec<AddedLayer>> {
        let scale = self.batch.map_or(1.0, |own| f64::from(samples) / f64::from(own));
        let layer = |it: &OwnLayer| AddedLayer {
            name: it.layer.clone(),
            forward: it.forward_s.scaled(scale),
            backward: it.backward_s.scaled(scale),
            activation_bytes: it.activation_bytes,
            average_bytes: None,
            tensors: it
                .tensors
                .iter()
                .map(|it| AddedTensor { name: it.tensor.clone(), bytes: it.bytes, shape: it.shape.clone() })
                .collect(),
        };
        let seconds: f64 = self.layers.iter().map(|it| it.forward_s.seconds() + it.backward_s.seconds()).sum();
        (seconds * scale <= MAX_SECONDS).then(|| self.layers.iter().map(layer).collect())
    }
}

fn check(file: &ModuleFile) -> Result<(), Problem> {
    if file.layers.is_empty() {
        return Err(Problem::new("layers", "a module has at least one layer").remedy("a list of layers"));
    }
    let mut seconds = 0.0;
    let mut names = HashSet::new();
    for (at, layer) in file.layers.iter().enumerate() {
        seconds += layer.forward_s.seconds() + layer.backward_s.seconds();
        if seconds > MAX_SECONDS {
            return Err(Problem::new(format!("layers[{at}]"), "the module takes longer than a day").remedy("seconds"));
        }
        for (number, tensor) in layer.tensors.iter().enumerate() {
            if !names.insert((&layer.layer, &tensor.tensor)) {
                let place = format!("layers[{at}].tensors[{number}].tensor");
                let message = format!("{} is in {} twice", shown(&tensor.tensor), shown(&layer.layer));
                return Err(Problem::new(place, message).remedy("another name for one of them"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace::modules::{Module, read_modules};
    use crate::trace::testing::tiny;

    const BLOCK: &str = r#"{"format": "paceline-module", "version": 1, "name": "block", "batch": 16, "layers": [
        {"layer": "a", "forward_s": 0.001, "backward_s": 0.002, "tensors": [{"tensor": "w", "bytes": 400}]},
        {"layer": "relu", "forward_s": 0.0005, "backward_s": 0.0005},
        {"layer": "b", "forward_s": 0.003, "backward_s": 0.004, "activation_bytes": 64, "tensors": [
            {"tensor": "w", "bytes": 800, "shape": [20, 10]}, {"tensor": "bias", "bytes": 8}]}]}"#;

    fn block() -> OwnModule {
        OwnModule::from_json(BLOCK.as_bytes(), "block.json").unwrap()
    }

    #[test]
    fn a_module_of_a_file_runs_in_the_middle_at_the_traces_batch() {
        let before = tiny();
        let after = before.clone().with_modules(&Module::Own(block()), 2).unwrap();
        assert_eq!(after.name, "tiny+block:2");
        assert_eq!(after.tensors.len(), before.tensors.len() + 2 * 3);
        let (old, new) = (&before.workers[0], &after.workers[0]);
        // Times of 16 samples, and the trace has 32.
        let close = |time: Time, seconds: f64| (time.seconds() - seconds).abs() < 1e-10;
        assert!(close(new.forward_time(), old.forward_time().seconds() + 2.0 * 2.0 * 0.0045));
        assert!(close(new.backward, old.backward.seconds() + 2.0 * 2.0 * 0.0065));
        let names: Vec<_> = new.forward.iter().map(|layer| layer.name.as_str()).collect();
        assert_eq!(names[1..7], ["added0.a", "added0.relu", "added0.b", "added1.a", "added1.relu", "added1.b"]);
        assert_eq!(new.forward[3].activation_bytes, Some(64));
        let ready: Vec<_> =
            new.gradients.iter().map(|it| (after.tensors[it.tensor as usize].name.as_str(), it.ready)).collect();
        // The last module's last layer first, its last tensor first.
        assert_eq!(ready[1].0, "added1.b.bias");
        assert!(close(ready[1].1, 0.004 + 2.0 * 0.004));
        assert_eq!(ready[3].0, "added1.a.w");
        assert!(close(ready[3].1, 0.004 + 2.0 * 0.0065));
        assert_eq!(after.tensors.iter().find(|it| it.name == "added0.b.w").unwrap().shape, Some(vec![20, 10]));
    }

    #[test]
    fn the_studys_module_written_as_a_file_gives_the_same_trace() {
        use crate::trace::modules::ModuleKind;
        let study = tiny().with_modules(&Module::Study(ModuleKind::Compute), 3).unwrap();
        let worker = &study.workers[0];
        let layers: Vec<String> = worker.forward[1..8]
            .iter()
            .map(|layer| {
                let own = |it: &u32| &study.tensors[*it as usize];
                let tensors: Vec<String> = layer
                    .tensors
                    .iter()
                    .map(|it| {
                        let name = own(it).name.rsplit('.').next().unwrap().to_owned();
                        format!(r#"{{"tensor": "{name}", "bytes": {}}}"#, own(it).bytes)
                    })
                    .collect();
                let at = |it: &u32| worker.gradients.iter().find(|g| g.tensor == *it).unwrap().ready.0;
                let end = at(&layer.tensors[0]);
                let begin = worker.gradients.iter().map(|g| g.ready.0).filter(|&ready| ready < end).max().unwrap();
                format!(
                    r#"{{"layer": "{}", "forward_s": {:.12}, "backward_s": {:.12}, "tensors": [{}]}}"#,
                    layer.name.strip_prefix("added0.").unwrap(),
                    layer.duration.seconds(),
                    Time(end - begin).seconds(),
                    tensors.join(", ")
                )
            })
            .collect();
        let text = format!(
            r#"{{"format": "paceline-module", "version": 1, "name": "compute", "layers": [{}]}}"#,
            layers.join(", ")
        );
        let own = OwnModule::from_json(text.as_bytes(), "compute.json").unwrap();
        assert_eq!(tiny().with_modules(&Module::Own(own), 3).unwrap(), study);
    }

    fn many(layers: usize) -> OwnModule {
        let layer = |at| format!(r#"{{"layer": "l{at}", "forward_s": 0, "backward_s": 0}}"#);
        let layers: Vec<String> = (0..layers).map(layer).collect();
        let text = format!(
            r#"{{"format": "paceline-module", "version": 1, "name": "block", "layers": [{}]}}"#,
            layers.join(", ")
        );
        OwnModule::from_json(text.as_bytes(), "block.json").unwrap()
    }

    #[test]
    fn errors_name_file_place_and_remedy() {
        for (from, to, says) in [
            (
                r#""bytes": 8}"#,
                r#""bytes": 0}"#,
                "block.json: layers[2].tensors[1].bytes: must be at least one element",
            ),
            (r#""layer": "b", "#, "", "block.json: layers[2]"),
            (r#""backward_s": 0.004"#, r#""backward_s": -1"#, "block.json: layers[2].backward_s"),
            (r#""name": "block""#, r#""named": "block""#, "unknown field 'named'"),
            ("paceline-module", "paceline-trace", "block.json"),
            (r#""tensor": "bias""#, r#""tensor": "w""#, "layers[2].tensors[1].tensor: 'w' is in 'b' twice"),
            (r#""batch": 16"#, r#""batch": 0"#, "block.json: batch"),
            (r#""forward_s": 0.003"#, r#""forward_s": 90000"#, "layers[2]"),
        ] {
            let text = BLOCK.replacen(from, to, 1);
            assert_ne!(text, BLOCK, "{from}");
            let error = OwnModule::from_json(text.as_bytes(), "block.json").unwrap_err();
            assert!(error.to_string().contains(says), "{error} / {says}");
            assert!(error.remedy().is_some(), "{error}");
        }
        let odd = BLOCK.replacen(r#""bytes": 8}"#, r#""bytes": 7}"#, 1);
        let odd = OwnModule::from_json(odd.as_bytes(), "block.json").unwrap();
        let error = tiny().with_modules(&Module::Own(odd), 1).unwrap_err();
        assert_eq!(error.remedy(), Some("8"));
        assert!(error.to_string().starts_with("block.json: layers[2].tensors[1].bytes: 7 bytes are not whole"));
        let error = tiny().with_modules(&Module::Own(many(1000)), 1000).unwrap_err();
        assert_eq!(error.remedy(), Some("{add_module=block.json:999}"), "{error}");
        assert!(tiny().with_modules(&Module::Own(many(1000)), 2).is_ok());
        let missing = read_modules("no/such.json:3").unwrap_err();
        assert!(missing.to_string().contains("no such file"), "{missing}");
    }

    #[test]
    fn every_prefix_of_a_file_is_refused() {
        for end in 0..BLOCK.len() {
            assert!(OwnModule::from_json(&BLOCK.as_bytes()[..end], "cut").is_err(), "{end}");
        }
    }

    proptest! {
        /// Bytes changed anywhere give a module or one line of error, never a panic; and the module can be added.
        #[test]
        fn any_bytes_are_a_module_or_an_error(
            changes in prop::collection::vec((0..BLOCK.len(), any::<u8>()), 0..4),
            count in 0u32..4,
        ) {
            let mut bytes = BLOCK.as_bytes().to_vec();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            match OwnModule::from_json(&bytes, "changed") {
                Ok(module) => {
                    let before = tiny();
                    if let Ok(after) = before.clone().with_modules(&Module::Own(module.clone()), count) {
                        let own: usize = module.layers.iter().map(|layer| layer.tensors.len()).sum();
                        prop_assert_eq!(after.tensors.len(), before.tensors.len() + count as usize * own);
                        prop_assert_eq!(Trace::from_json(after.to_json().as_bytes(), "again").unwrap(), after);
                    }
                }
                Err(error) => prop_assert!(!error.to_string().contains('\n')),
            }
        }
    }
}
