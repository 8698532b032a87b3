//! The figures and rules with which a release of NCCL chooses (`src/graph/tuning.cc`).
use std::collections::HashMap;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::machine::{Group, IntraLink};
use crate::names::{Algorithm, Choice, NcclError, Protocol};

/// A release of NCCL whose figures are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// 2.8, current when most of the published training ran. Rings and trees with LL and Simple; it takes no account of
    /// the generation of the GPUs.
    V2_8,
    /// 2.30.
    V2_30,
}

impl FromStr for Release {
    type Err = NcclError;

    fn from_str(name: &str) -> Result<Release, NcclError> {
        let known = Release::ALL.iter().find(|it| it.name() == name);
        known.copied().ok_or_else(|| {
            let names: Vec<&str> = Release::ALL.iter().map(|it| it.name()).collect();
            let remedy = format!("{} (known: {})", Release::CURRENT.name(), names.join(", "));
            NcclError { reason: format!("NCCL {name} is not known"), remedy }
        })
    }
}

impl Release {
    /// The newest one that is known.
    pub const CURRENT: Release = Release::V2_30;

    /// All of them, the oldest first.
    pub const ALL: &'static [Release] = &[Release::V2_8, Release::V2_30];

    /// As NCCL prints it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Release::V2_8 => "2.8",
            Release::V2_30 => "2.30",
        }
    }

    pub(crate) fn tables(self) -> &'static Tables {
        &TABLES[self.name()]
    }

    pub(crate) fn rules(self) -> &'static Rules {
        match self {
            Release::V2_8 => &RULES_2_8,
            Release::V2_30 => &RULES_2_30,
        }
    }

    /// Whether it has this combination at all.
    pub(crate) fn has(self, (algorithm, protocol): Choice) -> bool {
        self.tables().base_us.of((algorithm, protocol)).is_some()
    }

    /// Microseconds of a message inside a node with these links and of one between nodes, beside the time of its bytes,
    /// of a collective between this group.
    ///
    /// # Panics
    /// If the release does not have the combination.
    #[must_use]
    pub fn message_us(self, group: Group, link: IntraLink, (algorithm, protocol): Choice) -> (f64, f64) {
        let with_chunk = self.rules().tree_steps_have_chunks && protocol == Protocol::Simple;
        let algorithm = if with_chunk { Algorithm::Ring } else { algorithm };
        let inside = self.step_inside_us(link, (algorithm, protocol));
        (inside, self.step_between_us((self.waits_as(group, algorithm), protocol)))
    }

    /// The algorithm whose latencies between nodes apply.
    pub(crate) fn waits_as(self, group: Group, algorithm: Algorithm) -> Algorithm {
        let lone = self.rules().lone_ranks_wait && group.per_node_used() == 1;
        if lone { Algorithm::Tree } else { algorithm }
    }

    /// Microseconds of a step inside a node with these links, without what several nodes add.
    ///
    /// # Panics
    /// If the release does not have the combination.
    #[must_use]
    pub fn step_inside_us(self, link: IntraLink, choice: Choice) -> f64 {
        let ByLink { nvlink, pci, .. } = &self.tables().step_us;
        if link == IntraLink::Pcie { pci } else { nvlink }.of(choice).expect("a combination of the release")
    }

    /// Microseconds of a step between nodes.
    ///
    /// # Panics
    /// If the release does not have the combination.
    #[must_use]
    pub fn step_between_us(self, choice: Choice) -> f64 {
        self.tables().step_us.net.of(choice).expect("a combination of the release")
    }
}

/// Differences between the releases' formulas.
pub(crate) struct Rules {
    /// Shares of the links' rate that a ring gets with LL, LL128 and Simple; flags take the rest.
    pub ring_share: [f64; 3],
    /// The share that a tree gets.
    pub tree_share: f64,
    /// Factor on steps inside nodes under LL if there are several nodes.
    pub ll_inside: f64,
    /// Microseconds of posting to a network card, below which no step of a ring over several nodes falls; Simple posts
    /// three times.
    pub post_us: f64,
    /// Where a ring with Simple over several nodes has longer latencies.
    pub plateau: Plateau,
    /// Whether rings over nodes with one rank each have the latencies of trees, since nothing hides the network's.
    pub lone_ranks_wait: bool,
    /// Whether steps of a tree with Simple include the time of a chunk.
    pub tree_steps_have_chunks: bool,
    /// Whether links inside the nodes limit rings between nodes.
    pub links_limit: bool,
    /// Whether buffers below 64 bytes have the first of `tree_share_by_size`; otherwise a tree gets all of its rate.
    pub smallest_have_shares: bool,
}

/// The size from which a ring's latencies are longer, and the factor.
pub(crate) enum Plateau {
    /// From so many bytes a rank, of all collectives.
    FromBytesPerRank(u64, f64),
    /// From so many bytes a rank and channel, of all-reduces; the factor is the generation's.
    FromBytesPerRankAndChannel(u64),
}

const RULES_2_8: Rules = Rules {
    ring_share: [0.25, 0.0, 1.0],
    tree_share: 0.9,
    ll_inside: 1.8,
    post_us: 0.0,
    plateau: Plateau::FromBytesPerRank(4096, 1.9),
    lone_ranks_wait: false,
    tree_steps_have_chunks: true,
    links_limit: false,
    smallest_have_shares: true,
};

const RULES_2_30: Rules = Rules {
    ring_share: [0.5, 0.92, 1.0],
    tree_share: 0.92,
    ll_inside: 1.0,
    post_us: 1.0,
    plateau: Plateau::FromBytesPerRankAndChannel(64),
    lone_ranks_wait: true,
    tree_steps_have_chunks: false,
    links_limit: true,
    smallest_have_shares: false,
};

/// Microseconds and GB/s; by generation, and for one, two and more nodes.
#[derive(Deserialize)]
pub(crate) struct Tables {
    /// `baseLat`: before the first byte moves.
    pub base_us: ByAlgorithm,
    step_us: ByLink,
    /// The most that LL carries.
    ll_most: Option<ByNodes>,
    tree_most_per_channel: Option<TreeMost>,
    ring_ll128_most_per_channel: Option<HashMap<String, f64>>,
    nvls_tree_most_per_channel: Option<HashMap<String, [f64; 3]>>,
    tree_share_by_size: SharesBySize,
}

/// LL, LL128 and Simple of each algorithm.
#[derive(Deserialize)]
pub(crate) struct ByAlgorithm {
    tree: [Option<f64>; 3],
    ring: [Option<f64>; 3],
    #[serde(default)]
    nvls: [Option<f64>; 3],
    #[serde(default, rename = "nvls-tree")]
    nvls_tree: [Option<f64>; 3],
    #[serde(default)]
    pat: [Option<f64>; 3],
}

impl ByAlgorithm {
    pub fn of(&self, (algorithm, protocol): Choice) -> Option<f64> {
        let us = match algorithm {
            Algorithm::Ring => &self.ring,
            Algorithm::Tree => &self.tree,
            Algorithm::Nvls => &self.nvls,
            Algorithm::NvlsTree => &self.nvls_tree,
            Algorithm::Pat => &self.pat,
        };
        us[protocol as usize]
    }
}

/// `hwLat`: of a step. 2.8's of (tree, Simple) includes the time of a 256 kB chunk.
#[derive(Deserialize)]
struct ByLink {
    nvlink: ByAlgorithm,
    pci: ByAlgorithm,
    net: ByAlgorithm,
}

#[derive(Deserialize)]
struct ByNodes {
    #[serde(rename = "one node")]
    one: HashMap<String, f64>,
    #[serde(rename = "two nodes")]
    two: HashMap<String, f64>,
    more: HashMap<String, f64>,
}

#[derive(Deserialize)]
struct TreeMost {
    #[serde(rename = "Simple")]
    simple: HashMap<String, [f64; 3]>,
    #[serde(rename = "LL128")]
    ll128: HashMap<String, [f64; 3]>,
}

/// `treeCorrectionFactor`: the share of its rate that a tree gets with 64 B, 128 B, … of a buffer.
#[derive(Deserialize)]
struct SharesBySize {
    #[serde(rename = "LL")]
    ll: Vec<f64>,
    #[serde(default, rename = "LL128")]
    ll128: Vec<f64>,
    #[serde(rename = "Simple")]
    simple: Vec<f64>,
}

/// Place of the figures for so many nodes.
fn place(nodes: u32) -> usize {
    nodes.clamp(1, 3) as usize - 1
}

impl Tables {
    /// GB/s that LL carries at most.
    pub fn ll_most(&self, generation: &str, nodes: u32) -> f64 {
        self.ll_most.as_ref().map_or(f64::INFINITY, |it| [&it.one, &it.two, &it.more][place(nodes)][generation])
    }

    /// GB/s that a channel of a tree carries at most, with LL128 or with another protocol.
    pub fn tree_most(&self, protocol: Protocol, generation: &str, nodes: u32) -> f64 {
        let of = |it: &TreeMost| {
            let most = if protocol == Protocol::Ll128 { &it.ll128 } else { &it.simple };
            most[generation][place(nodes)]
        };
        self.tree_most_per_channel.as_ref().map_or(f64::INFINITY, of)
    }

    /// GB/s that a channel of a ring carries at most with LL128.
    pub fn ring_ll128_most(&self, generation: &str) -> f64 {
        self.ring_ll128_most_per_channel.as_ref().map_or(f64::INFINITY, |it| it[generation])
    }

    /// GB/s that a channel of NVLSTree carries at most.
    pub fn nvls_tree_most(&self, generation: &str, nodes: u32) -> f64 {
        self.nvls_tree_most_per_channel.as_ref().map_or(f64::INFINITY, |it| it[generation][place(nodes)])
    }

    pub fn tree_shares(&self, protocol: Protocol) -> &[f64] {
        match protocol {
            Protocol::Ll => &self.tree_share_by_size.ll,
            Protocol::Ll128 => &self.tree_share_by_size.ll128,
            Protocol::Simple => &self.tree_share_by_size.simple,
        }
    }
}

static TABLES: LazyLock<HashMap<String, Tables>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Document {
        releases: HashMap<String, Tables>,
    }
    serde_json::from_str::<Document>(include_str!("../data/tuning.json")).expect("valid tables").releases
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::Generation;

    #[test]
    fn tables_of_each_release_have_their_combinations() {
        for &release in Release::ALL {
            for &algorithm in Algorithm::ALL {
                for &protocol in Protocol::ALL {
                    let choice = (algorithm, protocol);
                    let old = matches!(algorithm, Algorithm::Ring | Algorithm::Tree) && protocol != Protocol::Ll128;
                    assert_eq!(release.has(choice), old || release == Release::V2_30, "{release:?} {choice:?}");
                    let ByLink { nvlink, pci, net } = &release.tables().step_us;
                    for link in [nvlink, pci, net] {
                        assert_eq!(link.of(choice).is_some(), release.has(choice), "{release:?} {choice:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn tables_know_every_generation() {
        let tables = Release::CURRENT.tables();
        for it in Generation::all() {
            for nodes in 1..4 {
                let most = tables.ll_most(&it.name, nodes).min(tables.tree_most(Protocol::Simple, &it.name, nodes));
                assert!(most.min(tables.tree_most(Protocol::Ll128, &it.name, nodes)) > 0.0);
                assert!(tables.nvls_tree_most(&it.name, nodes) >= 0.0);
            }
            assert!(tables.ring_ll128_most(&it.name) > 0.0);
        }
        assert_eq!(Release::V2_8.tables().ll_most("hopper", 1), f64::INFINITY);
    }
}
