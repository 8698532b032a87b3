//! Parses cluster files: the only parser of docs/reference/cluster-format.md.
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny};

use super::check::{RAILS, range, too_little_left};
use super::{
    Channel, Cluster, CompressionCosts, Degraded, Fabric, IntraLink, Jitter, Mesh, PartCosts, Racks, Routing,
    ServerPlace, Shape, Sockets, Switch,
};
use crate::document::fields::{
    name, name_of_file, number, optional_delay, optional_name, optional_rate, optional_size, rate, text, whole,
};
use crate::document::strict::{object, objects};
use crate::document::{DocumentError, Format, Problem, parse, read, shown, with_value};
use crate::nearest;
use crate::units::{Rate, Time};

const FORMAT: Format = Format { name: "paceline-cluster", version: 1, latest: 1, hint };

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
    #[serde(default)]
    bandwidth_measured: Option<bool>,
    #[serde(default, deserialize_with = "channel")]
    channel: Channel,
    #[serde(default, deserialize_with = "efficiency")]
    efficiency: Option<f64>,
    #[serde(default, deserialize_with = "optional_rate")]
    stream_bandwidth: Option<Rate>,
    #[serde(default, deserialize_with = "optional_delay")]
    latency: Option<Time>,
    #[serde(default, deserialize_with = "optional_delay")]
    message_overhead: Option<Time>,
    #[serde(default, deserialize_with = "gpus_per_node")]
    gpus_per_node: Option<u32>,
    #[serde(default, deserialize_with = "gpus_per_node")]
    gpus_per_rank: Option<u32>,
    #[serde(default, deserialize_with = "optional_name")]
    gpu: Option<String>,
    #[serde(default, deserialize_with = "nics_per_node")]
    nics_per_node: Option<u32>,
    #[serde(default)]
    gpudirect: Option<bool>,
    #[serde(default, deserialize_with = "optional_name")]
    nccl_plugin: Option<String>,
    #[serde(default, deserialize_with = "object")]
    nccl_sockets: Option<SocketsFile>,
    #[serde(default, deserialize_with = "intra_link")]
    intra_link: Option<IntraLink>,
    #[serde(default, deserialize_with = "optional_rate")]
    intra_bandwidth: Option<Rate>,
    peer_access: Option<bool>,
    #[serde(default, deserialize_with = "sockets")]
    sockets: Option<u32>,
    #[serde(default, deserialize_with = "object")]
    mesh: Option<MeshFile>,
    #[serde(default, deserialize_with = "optional_delay")]
    intra_latency: Option<Time>,
    #[serde(default, deserialize_with = "optional_rate")]
    host_bandwidth: Option<Rate>,
    #[serde(default, deserialize_with = "optional_rate")]
    reduction_bandwidth: Option<Rate>,
    #[serde(default, deserialize_with = "contention")]
    node_contention: f64,
    #[serde(default, deserialize_with = "server_place")]
    servers: Option<ServerPlace>,
    #[serde(default, deserialize_with = "object")]
    racks: Option<RacksFile>,
    #[serde(default, deserialize_with = "object")]
    fabric: Option<FabricFile>,
    #[serde(default, deserialize_with = "objects")]
    degraded: Vec<DegradedFile>,
    #[serde(default, deserialize_with = "object")]
    switch: Option<SwitchFile>,
    #[serde(default, deserialize_with = "objects")]
    stragglers: Vec<StragglerFile>,
    #[serde(default, deserialize_with = "object")]
    jitter: Option<JitterFile>,
    #[serde(default, deserialize_with = "objects")]
    compression_costs: Vec<CompressionFile>,
}

#[derive(Deserialize)]
struct CompressionFile {
    #[serde(deserialize_with = "name")]
    method: String,
    #[serde(default, deserialize_with = "object")]
    compress: Option<PartFile>,
    #[serde(default, deserialize_with = "object")]
    between: Option<PartFile>,
    #[serde(default, deserialize_with = "object")]
    decompress: Option<PartFile>,
}

#[derive(Default, Deserialize)]
struct PartFile {
    #[serde(default, deserialize_with = "seconds")]
    bucket_s: f64,
    #[serde(default, deserialize_with = "seconds")]
    tensor_s: f64,
    #[serde(default, deserialize_with = "seconds")]
    element_s: f64,
    #[serde(default, deserialize_with = "seconds")]
    received_s: f64,
}

impl PartFile {
    fn costs(part: Option<PartFile>) -> PartCosts {
        let PartFile { bucket_s, tensor_s, element_s, received_s } = part.unwrap_or_default();
        PartCosts { bucket_s, tensor_s, element_s, received_s }
    }
}

#[derive(Deserialize)]
struct MeshFile {
    #[serde(deserialize_with = "peers")]
    peers: u32,
    #[serde(deserialize_with = "rate")]
    bridge: Rate,
}

#[derive(Deserialize)]
struct SocketsFile {
    #[serde(deserialize_with = "socket_threads")]
    threads: u32,
    #[serde(deserialize_with = "sockets_per_thread")]
    per_thread: u32,
}

#[derive(Deserialize)]
struct RacksFile {
    #[serde(deserialize_with = "nodes_per_rack")]
    nodes_per_rack: u32,
    #[serde(deserialize_with = "oversubscription")]
    oversubscription: f64,
}

/// One of [`Shape::NAMES`].
#[derive(Clone, Copy)]
struct Kind(&'static str);

/// Which fields it has depends on its kind.
#[derive(Deserialize)]
struct FabricFile {
    #[serde(deserialize_with = "kind")]
    kind: Kind,
    #[serde(default, deserialize_with = "count")]
    nodes_per_leaf: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    spines: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    radix: Option<u32>,
    #[serde(default, deserialize_with = "optional_oversubscription")]
    oversubscription: Option<f64>,
    #[serde(default, deserialize_with = "count")]
    nodes_per_router: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    routers_per_group: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    global_links: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    groups: Option<u32>,
    #[serde(default)]
    dimensions: Option<Vec<u32>>,
    #[serde(default, deserialize_with = "optional_rate")]
    link_bandwidth: Option<Rate>,
    #[serde(default, deserialize_with = "optional_delay")]
    hop_latency: Option<Time>,
    #[serde(default, deserialize_with = "routing")]
    routing: Option<Routing>,
}

/// More switches than this need more memory than a simulation should.
const MAX_SWITCHES: u64 = 65_536;

impl FabricFile {
    fn checked(self) -> Result<Fabric, Problem> {
        let problem = |field: &str, message: String, remedy: String| {
            Err(Problem::new(format!("fabric.{field}"), message).remedy(remedy))
        };
        let Kind(kind) = self.kind;
        let of_kind: &[&str] = match kind {
            "leaf-spine" | "rails" => &["nodes_per_leaf", "spines", "oversubscription"],
            "fat-tree" => &["radix", "oversubscription"],
            "dragonfly" => &["nodes_per_router", "routers_per_group", "global_links", "groups"],
            _ => &["dimensions"],
        };
        let given = [
            ("nodes_per_leaf", self.nodes_per_leaf.is_some()),
            ("spines", self.spines.is_some()),
            ("radix", self.radix.is_some()),
            ("oversubscription", self.oversubscription.is_some()),
            ("nodes_per_router", self.nodes_per_router.is_some()),
            ("routers_per_group", self.routers_per_group.is_some()),
            ("global_links", self.global_links.is_some()),
            ("groups", self.groups.is_some()),
            ("dimensions", self.dimensions.is_some()),
        ];
        for (field, given) in given {
            if given && !of_kind.contains(&field) {
                let remedy = format!("drop \"{field}\" (it has {})", of_kind.join(", "));
                return problem(field, format!("is no field of a {kind}"), remedy);
            }
        }
        let needed = |field: &str, value: Option<u32>| match value {
            Some(value) => Ok(value),
            None => Err(Problem::new(format!("fabric.{field}"), "is missing").value(hint(field).unwrap_or("a number"))),
        };
        let oversubscription = self.oversubscription.unwrap_or(1.0);
        let shape = match kind {
            "leaf-spine" | "rails" => {
                if self.oversubscription.is_some() && self.link_bandwidth.is_some() {
                    let message = "follows from oversubscription".into();
                    return problem("link_bandwidth", message, "drop \"link_bandwidth\"".into());
                }
                let (nodes_per_leaf, spines) =
                    (needed("nodes_per_leaf", self.nodes_per_leaf)?, needed("spines", self.spines)?);
                if kind == "rails" {
                    Shape::Rails { nodes_per_leaf, spines, oversubscription }
                } else {
                    Shape::LeafSpine { nodes_per_leaf, spines, oversubscription }
                }
            }
            "fat-tree" => {
                let radix = needed("radix", self.radix)?;
                if radix % 2 != 0 || !(2..=128).contains(&radix) {
                    return problem(
                        "radix",
                        format!("must be even and 2-128, not {radix}, as half of a switch's ports lead up"),
                        format!("\"radix\": {}", (radix / 2 * 2).clamp(2, 128)),
                    );
                }
                let nodes = f64::from(radix / 2) * oversubscription;
                if (nodes - nodes.round()).abs() > 1e-9 {
                    return problem(
                        "oversubscription",
                        format!("would put {nodes} nodes on an edge switch with {} uplinks", radix / 2),
                        "\"oversubscription\": 1 (whole ports, up and down)".into(),
                    );
                }
                Shape::FatTree { radix, oversubscription }
            }
            "dragonfly" => {
                let nodes_per_router = needed("nodes_per_router", self.nodes_per_router)?;
                let routers_per_group = needed("routers_per_group", self.routers_per_group)?;
                let global_links = needed("global_links", self.global_links)?;
                let most = u64::from(routers_per_group) * u64::from(global_links) + 1;
                let groups = self.groups.map_or(most, u64::from);
                if groups > most {
                    return problem(
                        "groups",
                        format!("must be at most {most}, as a group has {} global links", most - 1),
                        format!("\"groups\": {most}"),
                    );
                }
                if groups * u64::from(routers_per_group) > MAX_SWITCHES {
                    return problem(
                        "groups",
                        format!("{groups} groups of {routers_per_group} routers are more than {MAX_SWITCHES} routers"),
                        format!("\"groups\": {}", MAX_SWITCHES / u64::from(routers_per_group).max(1)),
                    );
                }
                Shape::Dragonfly { nodes_per_router, routers_per_group, global_links, groups: groups as u32 }
            }
            _ => {
                let dimensions = match self.dimensions {
                    Some(dimensions) if !dimensions.is_empty() => dimensions,
                    _ => {
                        return problem("dimensions", "is missing".into(), "\"dimensions\": [4, 4, 4]".into());
                    }
                };
                let nodes = dimensions.iter().fold(1u64, |all, &size| all.saturating_mul(u64::from(size)));
                if nodes == 0 || nodes > MAX_SWITCHES {
                    let message = format!("must make 1-{MAX_SWITCHES} nodes, not {nodes}");
                    return problem("dimensions", message, "\"dimensions\": [4, 4, 4]".into());
                }
                Shape::Torus { dimensions }
            }
        };
        Ok(Fabric {
            shape,
            routing: self.routing.unwrap_or(Routing::Ecmp),
            hop_latency: self.hop_latency.unwrap_or(Time::ZERO),
            link_bandwidth: self.link_bandwidth,
        })
    }
}

#[derive(Deserialize)]
struct DegradedFile {
    #[serde(deserialize_with = "name")]
    link: String,
    #[serde(deserialize_with = "left")]
    factor: f64,
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
        let fabric = self.fabric.map(FabricFile::checked).transpose()?;
        let one_switch = fabric.is_none();
        if self.nics_per_node.is_some() && matches!(&fabric, Some(Fabric { shape: Shape::Rails { .. }, .. })) {
            return Err(Problem::new("nics_per_node", RAILS).remedy("drop \"nics_per_node\""));
        }
        let cluster = Cluster {
            name: self.name.or_else(|| name_of_file(source)).unwrap_or(default.name),
            provenance: self.provenance,
            bandwidth: self.bandwidth,
            bandwidth_measured: self.bandwidth_measured.unwrap_or(default.bandwidth_measured),
            channel: self.channel,
            efficiency: self.efficiency,
            stream_bandwidth: self.stream_bandwidth,
            latency: self.latency.unwrap_or(default.latency),
            message_overhead: self.message_overhead.unwrap_or(default.message_overhead),
            gpus_per_node: self.gpus_per_node.unwrap_or(default.gpus_per_node),
            gpus_per_rank: self.gpus_per_rank.unwrap_or(default.gpus_per_rank),
            gpu: self.gpu.unwrap_or_default(),
            nics_per_node: self.nics_per_node.unwrap_or(default.nics_per_node),
            gpudirect: self.gpudirect.unwrap_or(default.gpudirect),
            nccl_plugin: self.nccl_plugin.unwrap_or_default(),
            nccl_sockets: self
                .nccl_sockets
                .map_or(default.nccl_sockets, |SocketsFile { threads, per_thread }| Sockets { threads, per_thread }),
            intra_link: self.intra_link,
            intra_bandwidth: self.intra_bandwidth.unwrap_or(default.intra_bandwidth),
            peer_access: self.peer_access.unwrap_or(default.peer_access),
            sockets: self.sockets.unwrap_or(default.sockets),
            mesh: self.mesh.map(|MeshFile { peers, bridge }| Mesh { peers, bridge }),
            intra_latency: self.intra_latency.unwrap_or(default.intra_latency),
            host_bandwidth: self.host_bandwidth,
            reduction_bandwidth: self.reduction_bandwidth,
            node_contention: self.node_contention,
            servers: self.servers.unwrap_or(default.servers),
            racks: self
                .racks
                .map(|RacksFile { nodes_per_rack, oversubscription }| Racks { nodes_per_rack, oversubscription }),
            fabric,
            degraded: self
                .degraded
                .into_iter()
                .map(|DegradedFile { link, factor }| Degraded { link, factor })
                .collect(),
            switch: Switch {
                multicast: switch.multicast.unwrap_or(default.switch.multicast && one_switch),
                aggregation: switch.aggregation.unwrap_or(default.switch.aggregation && one_switch),
                cut_through: switch.cut_through.unwrap_or(default.switch.cut_through),
                memory: switch.memory,
                radix: switch.radix,
            },
            stragglers: self.stragglers.into_iter().map(|straggler| (straggler.rank, straggler.factor)).collect(),
            jitter: self.jitter.map(|JitterFile { sigma }| Jitter { sigma }),
            compression_costs: self
                .compression_costs
                .into_iter()
                .map(|one| CompressionCosts {
                    method: one.method,
                    compress: PartFile::costs(one.compress),
                    between: PartFile::costs(one.between),
                    decompress: PartFile::costs(one.decompress),
                })
                .collect(),
        };
        cluster.check_together()?;
        Ok(cluster)
    }
}

fn gpus_per_node<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    whole(deserializer, range::GPUS_PER_NODE).map(Some)
}

fn nics_per_node<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    whole(deserializer, range::NICS_PER_NODE).map(Some)
}

fn sockets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    whole(deserializer, range::SOCKETS).map(Some)
}

fn socket_threads<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    whole(deserializer, range::SOCKET_THREADS)
}

fn sockets_per_thread<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    whole(deserializer, range::SOCKETS_PER_THREAD)
}

fn intra_link<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IntraLink>, D::Error> {
    let links = [IntraLink::Pcie, IntraLink::Xgmi, IntraLink::Nvlink, IntraLink::Nvswitch];
    one_of(deserializer, "link", &links.map(|link| (link.name(), link))).map(Some)
}

fn nodes_per_rack<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    whole(deserializer, range::NODES_PER_RACK)
}

fn oversubscription<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, range::OVERSUBSCRIPTION)
}

fn radix<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    whole(deserializer, range::AGGREGATED).map(Some)
}

fn optional_oversubscription<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    oversubscription(deserializer).map(Some)
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    whole(deserializer, 1..=65_536).map(Some)
}

fn left<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let factor = number(deserializer, range::LEFT)?;
    too_little_left(factor).map_or(Ok(factor), |why| Err(serde::de::Error::custom(why)))
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
    one_of(deserializer, "kind", &Shape::NAMES.map(|name| (name, Kind(name))))
}

fn routing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Routing>, D::Error> {
    one_of(deserializer, "routing", &[Routing::Ecmp, Routing::Adaptive].map(|way| (way.name(), way))).map(Some)
}

fn factor<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, range::SLOWER)
}

fn sigma<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, range::SIGMA)
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, range::SECONDS)
}

fn efficiency<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    number(deserializer, range::EFFICIENCY).map(Some)
}

fn peers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    whole(deserializer, range::GPUS_PER_NODE)
}

fn contention<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(deserializer, range::CONTENTION)
}

fn channel<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Channel, D::Error> {
    let channels = [Channel::Unknown, Channel::Auto, Channel::Tcp, Channel::Rdma];
    one_of(deserializer, "channel", &channels.map(|channel| (channel.name(), channel)))
}

fn server_place<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ServerPlace>, D::Error> {
    let places = [ServerPlace::OwnNodes, ServerPlace::Colocated];
    one_of(deserializer, "place", &places.map(|place| (place.name(), place))).map(Some)
}

/// One of several names, and what it means.
fn one_of<'de, D: Deserializer<'de>, T: Copy>(
    deserializer: D,
    what: &str,
    known: &[(&'static str, T)],
) -> Result<T, D::Error> {
    let found = String::deserialize(deserializer)?;
    if let Some(&(_, value)) = known.iter().find(|(name, _)| *name == found) {
        return Ok(value);
    }
    let names: Vec<&str> = known.iter().map(|&(name, _)| name).collect();
    let near = nearest(&found, names.iter().copied()).or(names.first().copied()).unwrap_or_default();
    let value = format!("\"{near}\" (one of {})", names.join(", "));
    Err(D::Error::custom(with_value(format!("unknown {what} {}", shown(&found)), value)))
}

/// The expected value of each field, for errors.
fn hint(field: &str) -> Option<&'static str> {
    Some(match field {
        "name" => "a name for tables, in quotes",
        "bandwidth" | "intra_bandwidth" | "host_bandwidth" | "reduction_bandwidth" | "stream_bandwidth" | "bridge" => {
            "\"25Gbps\" (a rate)"
        }
        "latency" | "message_overhead" | "intra_latency" => "\"10us\" (a time)",
        "channel" => "\"tcp\", \"rdma\", \"auto\" or \"none\"",
        "efficiency" => "0.94 (a share)",
        "mesh" => "{\"peers\": 4, \"bridge\": \"40Gbps\"}",
        "peers" => "how many GPUs each one has a link to, a whole number of at least 1",
        "node_contention" => "0.04 (a share)",
        "gpus_per_node" | "gpus_per_rank" => "a whole number of at least 1",
        "gpu" => "\"H100\" (a GPU's name)",
        "nics_per_node" => "how many NICs share the node's bandwidth evenly, a whole number from 1 to 128",
        "intra_link" => "\"pcie\", \"xgmi\", \"nvlink\" or \"nvswitch\"",
        "peer_access" => "true or false",
        "sockets" => "how many processors a node has, a whole number from 1 to 8",
        "gpudirect" => "true or false",
        "nccl_plugin" => "\"aws-ofi-nccl\" (a plugin's name)",
        "nccl_sockets" => "{\"threads\": 2, \"per_thread\": 8}",
        "threads" => "how many helper threads a connection has, a whole number from 0 to 16",
        "per_thread" => "how many sockets a thread has, a whole number from 1 to 64",
        "compression_costs" => "a list of what `paceline probe --compression` measures",
        "method" => "\"powersgd:4\" (a way of compressing)",
        "compress" | "between" | "decompress" => "{\"bucket_s\": 2e-5, \"element_s\": 1e-9}",
        "bucket_s" | "tensor_s" | "element_s" | "received_s" => "seconds, from 0 to 60",
        "servers" => "\"own-nodes\" or \"colocated\"",
        "racks" => "{\"nodes_per_rack\": 16, \"oversubscription\": 4}",
        "nodes_per_rack" => "how many nodes share an uplink, a whole number of at least 1",
        "oversubscription" => "the nodes' rates over the uplink's, a number of at least 1",
        "fabric" => "{\"kind\": \"leaf-spine\", \"nodes_per_leaf\": 16, \"spines\": 4}",
        "kind" => "\"leaf-spine\", \"rails\", \"fat-tree\", \"dragonfly\" or \"torus\"",
        "nodes_per_leaf" => "how many nodes are on a leaf, a whole number of at least 1",
        "spines" => "how many spines there are, a whole number of at least 1",
        "nodes_per_router" => "how many nodes are on a router, a whole number of at least 1",
        "routers_per_group" => "how many routers are in a group, a whole number of at least 1",
        "global_links" => "how many links of a router lead to other groups, a whole number of at least 1",
        "groups" => "how many groups there are, a whole number of at least 1",
        "dimensions" => "[4, 4, 4]",
        "link_bandwidth" => "\"100Gbps\" (a rate)",
        "hop_latency" => "\"500ns\" (a time)",
        "routing" => "\"ecmp\" or \"adaptive\"",
        "degraded" => "[{\"link\": \"leaf0-spine1\", \"factor\": 0.5}]",
        "link" => "\"node3\" or \"leaf0-spine1\" (a link's name)",
        "switch" => "{\"multicast\": true, \"aggregation\": false}",
        "memory" => "\"10MB\" (a size)",
        "radix" => {
            "how many workers one aggregation takes (in a fat tree: ports of a switch), a whole number of at least 2"
        }
        "stragglers" => "[{\"rank\": 3, \"factor\": 1.5}]",
        "rank" => "a rank, a whole number of at least 0",
        "factor" => "by how much the rank is slower, such as 1.5, or what is left of a link, such as 0.5",
        "jitter" => "{\"sigma\": 0.05}",
        "sigma" => "0.05 (the standard deviation of the factor's logarithm)",
        _ => return None,
    })
}
