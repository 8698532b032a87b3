//! Topology and knobs, and what an entry of the registry of strategies is.
use std::fmt;
use std::sync::Arc;

use paceline_nccl::Release;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::chunk::Chunk;
use crate::collective::Collective;
use crate::schedule::Schedule;

/// The number of roles and their nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Number of training ranks, at least 1.
    pub workers: u32,
    /// Consecutive ranks on one node; the last node may have fewer.
    pub ranks_per_node: u32,
    /// Number of parameter servers, at least 1 if the strategy has any.
    pub servers: u32,
    /// Most workers in one aggregation; `None`: unlimited.
    pub switch_radix: Option<u32>,
    /// Elements of sums that an aggregating switch can hold; `None`: unlimited.
    pub switch_memory: Option<u64>,
    /// Nodes under each switch of the lowest level, in order; `None`: all are under one.
    pub racks: Option<Arc<[u32]>>,
    /// Racks of each pod, whose switches are connected by others than those that connect the pods; `None`: there are none.
    pub pods: Option<Arc<[u32]>>,
}

impl Topology {
    /// `workers` on one node each, one server, an unlimited switch.
    #[must_use]
    pub fn flat(workers: u32) -> Topology {
        Topology {
            workers,
            ranks_per_node: 1,
            servers: 1,
            switch_radix: None,
            switch_memory: None,
            racks: None,
            pods: None,
        }
    }

    /// The same in racks of this many nodes; `None`: all are in one.
    #[must_use]
    pub fn in_racks(self, nodes_per_rack: Option<u32>) -> Topology {
        Topology { racks: nodes_per_rack.map(|each| in_parts(self.nodes(), each)), ..self }
    }

    /// The same with so many racks in each pod; `None`, or without racks: there are no pods.
    #[must_use]
    pub fn in_pods(self, racks_per_pod: Option<u32>) -> Topology {
        let racks = self.racks.as_ref().map(|racks| racks.len() as u32);
        Topology { pods: racks_per_pod.and_then(|each| Some(in_parts(racks?, each))), ..self }
    }

    /// Nodes with workers.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.workers.div_ceil(self.ranks_per_node)
    }

    /// Ranks on a node.
    #[must_use]
    pub fn ranks_on(&self, node: u32) -> u32 {
        (self.workers - node * self.ranks_per_node).min(self.ranks_per_node)
    }
}

/// The sizes of the parts, of which the last one may be smaller.
fn in_parts(whole: u32, each: u32) -> Arc<[u32]> {
    let each = each.max(1);
    (0..whole).step_by(each as usize).map(|first| each.min(whole - first)).collect()
}

/// Which server owns which bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Bucket i on server i modulo the number of servers.
    #[default]
    RoundRobin,
    /// Variable i, in the order of creation, on server i modulo the number of servers, as TensorFlow's
    /// `replica_device_setter` does. The caller gives buckets the numbers of their variables as ids, or makes a table.
    #[serde(rename = "tensorflow")]
    TensorFlow,
    /// Every bucket is cut into servers x workers equal pieces, spread over the servers.
    Even,
    /// Server of each bucket, by its id.
    #[serde(untagged)]
    Table(Arc<[u32]>),
}

/// The order in which servers send after the barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// For each tensor, for each worker.
    #[default]
    RoundRobin,
    /// For each worker, for each tensor.
    Block,
}

/// How the ranks of a node reduce among themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inside {
    /// The first rank of the node gathers, adds and sends back.
    Root,
    /// A ring inside the node; then every rank takes part in the rings between nodes.
    #[default]
    Ring,
}

/// Rates of the links, for a library whose choice depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Rate of a node's NIC, bytes/s.
    pub between: u64,
    /// Rate of a rank's link inside the node, bytes/s.
    pub inside: u64,
    /// Bytes of an element.
    pub element: u64,
    /// The release of the library.
    pub nccl: Release,
}

impl Default for Rates {
    /// 100 Gbit/s NICs and PCI Express 3.0 x16 slots, float32: the assumptions of NCCL's tables.
    fn default() -> Rates {
        Rates { between: 12_500_000_000, inside: 12_500_000_000, element: 4, nccl: Release::CURRENT }
    }
}

/// The user's choices. `None` is the strategy's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// How buckets are cut.
    pub chunk: Option<Chunk>,
    /// For parameter servers.
    pub placement: Placement,
    /// For parameter servers.
    pub distribution: Distribution,
    /// Whether servers wait for all updates of all servers before they distribute.
    pub barrier: bool,
    /// For `hierarchical`.
    pub inside: Inside,
    /// For `native`; set if the network is known.
    pub rates: Option<Rates>,
    /// For `async-ps`: by how many iterations workers may be apart; `None`: by any number.
    pub staleness: Option<u32>,
}

impl Default for Knobs {
    fn default() -> Knobs {
        Knobs {
            chunk: None,
            placement: Placement::RoundRobin,
            distribution: Distribution::RoundRobin,
            barrier: true,
            inside: Inside::Ring,
            rates: None,
            staleness: None,
        }
    }
}

/// A setting that affects only some strategies, or a feature that they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// Number of servers.
    Servers,
    /// Bucket to server.
    Placement,
    /// Order of the servers' sends.
    Distribution,
    /// Cutting buckets into messages.
    Chunk,
    /// Layer by layer or all at once.
    Pull,
    /// Reduction inside the node.
    Inside,
    /// Needs a network that multicasts.
    Multicast,
    /// Needs a network that aggregates.
    Aggregation,
    /// Depends on the rates of the links.
    Rates,
    /// Workers do not wait for each other, or up to a bound.
    Staleness,
}

impl Knob {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Knob::Servers => "servers",
            Knob::Placement => "placement",
            Knob::Distribution => "distribution",
            Knob::Chunk => "chunk",
            Knob::Pull => "pull",
            Knob::Inside => "inside",
            Knob::Multicast => "multicast",
            Knob::Aggregation => "aggregation",
            Knob::Rates => "rates",
            Knob::Staleness => "staleness",
        }
    }
}

/// Builds a schedule.
pub type Builder = fn(&Topology, &Knobs) -> Result<Box<dyn Schedule>, PlanError>;

/// Builds the schedule of a collective.
pub type CollectiveBuilder = fn(Collective, &Topology, &Knobs) -> Result<Box<dyn Schedule>, PlanError>;

/// An entry of the registry of strategies.
pub struct Entry {
    /// The name that users type.
    pub name: &'static str,
    /// Aliases.
    pub aliases: &'static [&'static str],
    /// A one-line summary.
    pub summary: &'static str,
    /// The knobs that affect it, and the network features that it needs.
    pub knobs: &'static [Knob],
    /// Checks topology and knobs and builds the schedule of an all-reduce.
    pub build: Builder,
    /// The same for a reduce-scatter or an all-gather; `None`: it has no such halves.
    pub halves: Option<CollectiveBuilder>,
}

impl Entry {
    /// Whether this knob affects the strategy, or it needs this network feature.
    #[must_use]
    pub fn uses(&self, knob: Knob) -> bool {
        self.knobs.contains(&knob)
    }

    /// Whether workers wait for the gradients of all others, so that an iteration has one sum.
    #[must_use]
    pub fn is_synchronous(&self) -> bool {
        !self.uses(Knob::Staleness)
    }

    /// Whether it has a program for this collective. Workers that do not wait for each other have none.
    #[must_use]
    pub fn offers(&self, collective: Collective) -> bool {
        self.is_synchronous() && (collective == Collective::AllReduce || self.halves.is_some())
    }
}

/// Why a request cannot be carried out as given, as a message for the user.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub struct Refusal {
    /// The setting that it is about, by its name in Python; `None`: none, or several.
    pub setting: Option<&'static str>,
    /// What is wrong, without the setting's name.
    pub reason: String,
    /// What to write or type instead: a few words, with settings in braces, such as `{sharding=zero3}`, because only the
    /// caller knows whether one is an option, a keyword or a key.
    pub remedy: Option<String>,
}

/// Why a strategy cannot be built.
pub type PlanError = Refusal;

impl Refusal {
    /// About no single setting.
    pub fn new(reason: impl Into<String>) -> Refusal {
        Refusal { setting: None, reason: reason.into(), remedy: None }
    }

    /// About a setting.
    pub fn about(setting: &'static str, reason: impl Into<String>) -> Refusal {
        Refusal { setting: Some(setting), reason: reason.into(), remedy: None }
    }

    /// The same refusal, with a remedy.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Refusal {
        Refusal { remedy: Some(remedy.into()), ..self }
    }

    /// The same refusal, of a part of a request, such as a job, which has settings of its own.
    #[must_use]
    pub fn within(self, part: &str) -> Refusal {
        Refusal { setting: None, reason: format!("{part}: {self}"), ..self }
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal::new(reason)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.setting {
            None => f.write_str(&self.reason),
            Some(setting) => write!(f, "{}: {}", setting.replace('_', "-"), self.reason),
        }
    }
}
