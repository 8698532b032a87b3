//! Parses cluster files: the only parser of docs/reference/cluster-format.md.
use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny};

use super::{Cluster, Jitter, Racks, ServerPlace, Switch};
use crate::document::fields::{
    name_of_file, number, optional_delay, optional_name, optional_rate, optional_size, rate, text, whole,
};
use crate::document::strict::{object, objects};
use crate::document::{DocumentError, Format, Problem, parse, read, shown};
use crate::nearest;
use crate::units::{Rate, Time};

const FORMAT: Format = Format { name: "paceline-cluster", version: 1, hint };

impl Cluster {
    /// Reads the JSON of a cluster; `source` is its name in errors. Without folder and extension, it is also the
    /// cluster's name if the text gives none.
    ///
    /// # Errors
    /// Anything that docs/reference/cluster-format.md does not allow, in one line that names the place and says what to
    /// do.
    pub fn from_json(text: &[u8], source: &str) -> Result<Cluster, DocumentError> {
        let file: ClusterFile = parse(text, source, &FORMAT)?;
        file.checked(source).map_err(|problem| problem.of(source))
    }

    /// Reads a cluster file, a regular file of at most [`crate::document::MAX_BYTES`].
    ///
    /// # Errors
    /// A file that cannot be read, or that [`Cluster::from_json`] refuses.
    pub fn read(path: &Path) -> Result<Cluster, DocumentError> {
        Cluster::from_json(&read(path)?, &path.to_string_lossy())
    }
}

/// A cluster file. Missing fields have the values of [`Cluster::default`].
#[derive(Deserialize)]
struct ClusterFile {
    /// Checked before the other fields.
    #[serde(rename = "format")]
    _format: IgnoredAny,
    #[serde(rename = "version")]
    _version: IgnoredAny,
    #[serde(default, deserialize_with = "optional_name")]
    name: Option<String>,
    #[serde(default, deserialize_with = "text")]
    provenance: String,
    #[serde(deserialize_with = "rate")]
    bandwidth: Rate,
    #[serde(default, deserialize_with = "optional_delay")]
    latency: Option<Time>,
    #[serde(default, deserialize_with = "optional_delay")]
    message_overhead: Option<Time>,
    #[serde(default, deserialize_with = "gpus_per_node")]
    gpus_per_node: Option<u32>,
    #[serde(default, deserialize_with = "optional_rate")]
    intra_bandwidth: Option<Rate>,
    #[serde(default, deserialize_with = "optional_delay")]
    intra_latency: Option<Time>,
    #[serde(default, deserialize_with = "optional_rate")]
    host_bandwidth: Option<Rate>,
    #[serde(default, deserialize_with = "optional_rate")]
    reduction_bandwidth: Option<Rate>,
    #[serde(default, deserialize_with = "server_place")]
    servers: Option<ServerPlace>,
    #[serde(default, deserialize_with = "object")]
    racks: Option<RacksFile>,
    #[serde(default, deserialize_with = "object")]
    switch: Option<SwitchFile>,
    #[serde(default, deserialize_with = "objects")]
    stragglers: Vec<StragglerFile>,
    #[serde(default, deserialize_with = "object")]
    jitter: Option<JitterFile>,
}

#[derive(Deserialize)]
struct RacksFile {
    #[serde(deserialize_with = "nodes_per_rack")]
    nodes_per_rack: u32,
    #[serde(deserialize_with = "oversubscription")]
    oversubscription: f64,
}

#[derive(Default, Deserialize)]
struct SwitchFile {
    multicast: Option<bool>,
    aggregation: Option<bool>,
    cut_through: Option<bool>,
    #[serde(default, deserialize_with = "optional_size")]
    memory: Option<u64>,
    #[serde(default, deserialize_with = "radix")]
    radix: Option<u32>,
}

#[derive(Deserialize)]
struct StragglerFile {
    rank: u32,
    #[serde(deserialize_with = "factor")]
    factor: f64,
}

#[derive(Deserialize)]
struct JitterFile {
    #[serde(deserialize_with = "sigma")]
    sigma: f64,
}

impl ClusterFile {
    fn checked(self, source: &str) -> Result<Cluster, Problem> {
        let default = Cluster::default();
        let switch = self.switch.unwrap_or_default();
        let mut places: HashMap<u32, usize> = HashMap::new();
        for (at, straggler) in self.stragglers.iter().enumerate() {
            if let Some(before) = places.insert(straggler.rank, at) {
                let message = format!("rank {} has a factor already, stragglers[{before}]; keep one", straggler.rank);
                return Err(Problem::new(format!("stragglers[{at}].rank"), message));
            }
        }
        Ok(Cluster {
            name: self.name.or_else(|| name_of_file(source)).unwrap_or(default.name),
            provenance: self.provenance,
            bandwidth: self.bandwidth,
            latency: self.latency.unwrap_or(default.latency),
            message_overhead: self.message_overhead.unwrap_or(default.message_overhead),
            gpus_per_node: self.gpus_per_node.unwrap_or(default.gpus_per_node),
            intra_bandwidth: self.intra_bandwidth.unwrap_or(default.intra_bandwidth),
            intra_latency: self.intra_latency.unwrap_or(default.intra_latency),
            host_bandwidth: self.host_bandwidth,
            reduction_bandwidth: self.reduction_bandwidth,
            servers: self.servers.unwrap_or(default.servers),
            racks: self
                .racks
                .map(|RacksFile { nodes_per_rack, oversubscription }| Racks { nodes_per_rack, oversubscription }),
            switch: Switch {
                multicast: switch.multicast.unwrap_or(default.switch.multicast),
                aggregation: switch.aggregation.unwrap_or(default.switch.aggregation),
                cut_through: switch.cut_through.unwrap_or(default.switch.cut_through),
                memory: switch.memory,
                radix: switch.radix,
            },
            stragglers: self.stragglers.into_iter().map(|straggler| (straggler.rank, straggler.factor)).collect(),
            jitter: self.jitter.map(|JitterFile { sigma }| Jitter { sigma }),
        })
    }
}

fn gpus_per_node<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    whole(deserializer, 1..=1024).map(Some)
}

fn nodes_per_rack<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    whole(deserializer, 1..=u32::MAX)
}

fn oversubscription<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, 1.0..=1000.0)
}

fn radix<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    whole(deserializer, 2..=u32::MAX).map(Some)
}

fn factor<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, 0.01..=1000.0)
}

fn sigma<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, 0.0..=2.0)
}

fn server_place<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ServerPlace>, D::Error> {
    let found = String::deserialize(deserializer)?;
    let places = [ServerPlace::OwnNodes, ServerPlace::Colocated];
    if let Some(place) = places.into_iter().find(|place| place.name() == found) {
        return Ok(Some(place));
    }
    let names = places.map(ServerPlace::name);
    let hint = nearest(&found, names).map_or(String::new(), |known| format!("did you mean '{known}'? "));
    Err(D::Error::custom(format!("unknown place {}; {hint}valid are {}", shown(&found), names.join(", "))))
}

/// The expected value of each field, for errors.
fn hint(field: &str) -> Option<&'static str> {
    Some(match field {
        "name" => "a name for tables, in quotes",
        "bandwidth" | "intra_bandwidth" | "host_bandwidth" | "reduction_bandwidth" => {
            "a rate with its unit in quotes, such as \"25Gbps\""
        }
        "latency" | "message_overhead" | "intra_latency" => "a time with its unit in quotes, such as \"10us\"",
        "gpus_per_node" => "a whole number of at least 1",
        "servers" => "\"own-nodes\" or \"colocated\"",
        "racks" => "an object such as {\"nodes_per_rack\": 16, \"oversubscription\": 4}",
        "nodes_per_rack" => "how many nodes share an uplink, a whole number of at least 1",
        "oversubscription" => "the nodes' rates over the uplink's, a number of at least 1",
        "switch" => "an object such as {\"multicast\": true, \"aggregation\": false}",
        "memory" => "a size with its unit in quotes, such as \"10MB\"",
        "radix" => "how many workers one aggregation takes, a whole number of at least 2",
        "stragglers" => "a list such as [{\"rank\": 3, \"factor\": 1.5}]",
        "rank" => "a rank, a whole number of at least 0",
        "factor" => "by how much the rank is slower, such as 1.5",
        "jitter" => "an object such as {\"sigma\": 0.05}",
        "sigma" => "the standard deviation of the factor's logarithm, such as 0.05",
        _ => return None,
    })
}
