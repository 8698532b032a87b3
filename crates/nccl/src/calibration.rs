//! Constants of the times that NCCL's collectives take, fitted to measurements, with unit, source and uncertainty.
use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

/// A constant, in SI units: seconds, bytes, or a share.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// `ring.share.hopper`.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// For people.
    pub unit: String,
    /// Relative: 0.3 means that up to 30 % more or less is plausible.
    pub uncertainty: f64,
    /// Where the value comes from.
    pub source: String,
    /// The measurements that it was fitted to; empty: none.
    #[serde(default)]
    pub calibrated: String,
    /// The assumption without those measurements.
    #[serde(default)]
    pub prior: Option<f64>,
}

/// Mean errors of forecasts of published bandwidths on one node (`paceline study collectives`).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Published bandwidths.
    pub rows: u32,
    /// Mean error, relative.
    pub mean: f64,
    /// With constants that were fitted without the source of a row.
    pub without_source: f64,
}

#[derive(Deserialize)]
struct Document {
    generations: Vec<Generation>,
    checked: Evidence,
    constants: Vec<Constant>,
}

static DOCUMENT: LazyLock<Document> =
    LazyLock::new(|| serde_json::from_str(include_str!("../data/calibration.json")).expect("valid constants"));

/// GPUs that NCCL treats alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Generation {
    /// `volta`, `ampere`, …
    pub name: String,
    /// Parts of the names of its GPUs, in lower case.
    pub gpus: Vec<String>,
    /// Rings inside a node, each with a share of the links.
    pub channels: u32,
    /// The share of the links' rate that NCCL's model gives NVLS; 0: no NVLS.
    pub nvls_share: f64,
    /// Factor on a ring's latency for large buffers over several nodes.
    pub plateau: f64,
    /// Bytes per second of the x16 slot of a GPU or a NIC: 12 GB/s of PCI Express 3.0, twice that of each next
    /// generation (NVIDIA/nccl `src/graph/topo.h`, PCI_BW).
    pub slot: f64,
}

/// Rates inside the node, in bits per second, from which GPUs without a name are taken for those of a generation.
const LINKS_BPS: [(&str, f64); 4] = [("blackwell", 4e12), ("hopper", 2.4e12), ("ampere", 1.5e12), ("volta", 0.0)];

impl Generation {
    /// All generations, oldest first.
    #[must_use]
    pub fn all() -> &'static [Generation] {
        &DOCUMENT.generations
    }

    /// The generation of a GPU by its name (`H100 80GB`); `None` if the name does not tell.
    #[must_use]
    pub fn of(gpu: &str) -> Option<&'static Generation> {
        let words = gpu.to_lowercase().replace('-', " ");
        Generation::all().iter().rev().find(|it| it.gpus.iter().any(|name| words.contains(name.as_str())))
    }

    /// The generation whose nodes have links of this rate, bits per second.
    ///
    /// # Panics
    /// If the tables lack a generation.
    #[must_use]
    pub fn of_links(bps: f64) -> &'static Generation {
        let name = LINKS_BPS.iter().find(|(_, least)| bps >= *least).map_or("volta", |it| it.0);
        Generation::all().iter().find(|it| it.name == name).expect("a generation of the tables")
    }
}

/// The values that forecasts use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Instead of those of the file.
    assumed: HashMap<String, f64>,
}

impl Calibration {
    /// All constants, in the order of the file.
    #[must_use]
    pub fn constants() -> &'static [Constant] {
        &DOCUMENT.constants
    }

    /// How far forecasts have been from measurements.
    #[must_use]
    pub fn evidence() -> Evidence {
        DOCUMENT.checked
    }

    /// The constants with some other values, for cross-validation.
    ///
    /// # Errors
    /// The name of a constant that there is not.
    pub fn assuming(assumed: HashMap<String, f64>) -> Result<Calibration, String> {
        match assumed.keys().find(|name| Calibration::constants().iter().all(|it| it.name != **name)) {
            Some(unknown) => Err(unknown.clone()),
            None => Ok(Calibration { assumed }),
        }
    }

    /// The value of a constant.
    ///
    /// # Panics
    /// If there is none of this name.
    #[must_use]
    pub fn value(&self, name: &str) -> f64 {
        let calibrated = || Calibration::constants().iter().find(|it| it.name == name).map(|it| it.value);
        let value = self.assumed.get(name).copied().or_else(calibrated);
        value.unwrap_or_else(|| panic!("{name} is no constant of NCCL's model"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_say_where_they_come_from() {
        let all = Calibration::constants();
        for it in all {
            assert!(it.value > 0.0 && it.value.is_finite() && !it.unit.is_empty(), "{}", it.name);
            assert!((0.0..=10.0).contains(&it.uncertainty) && !it.source.is_empty(), "{}", it.name);
            assert!(it.calibrated.is_empty() || it.prior.is_some_and(|prior| prior > 0.0), "{}", it.name);
            assert_eq!(all.iter().filter(|other| other.name == it.name).count(), 1, "{}", it.name);
        }
    }

    #[test]
    fn values_can_be_assumed() {
        let other = Calibration::assuming(HashMap::from([("fill".into(), 1.0)])).unwrap();
        assert_eq!(other.value("fill"), 1.0);
        assert_eq!(other.value("pci.share"), Calibration::default().value("pci.share"));
        assert_eq!(Calibration::assuming(HashMap::from([("fil".into(), 1.0)])), Err("fil".into()));
    }
}
