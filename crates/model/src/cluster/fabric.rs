//! The switches between the nodes and the links between the switches.
use crate::units::{Rate, Time};

/// How switches are connected.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Every leaf has a link to every spine (a folded Clos network of two levels).
    LeafSpine {
        /// Nodes on a leaf.
        nodes_per_leaf: u32,
        /// Number of spines.
        spines: u32,
        /// Sum of the nodes' rates on a leaf over that of its uplinks.
        oversubscription: f64,
    },
    /// A leaf-spine network in which every GPU has a NIC of its own and the NICs with the same number in their nodes
    /// share a leaf ("rail-optimized").
    Rails {
        /// Nodes that share the leaves of their rails.
        nodes_per_leaf: u32,
        /// Number of spines, to which the leaves of all rails are connected.
        spines: u32,
        /// Sum of the NICs' rates on a leaf over that of its uplinks.
        oversubscription: f64,
    },
    /// Three levels of equal switches: M. Al-Fares, A. Loukissas, A. Vahdat, "A Scalable, Commodity Data Center Network
    /// Architecture", SIGCOMM 2008.
    FatTree {
        /// Ports of a switch at full bisection, even. Half of them lead up.
        radix: u32,
        /// Nodes of an edge switch over its uplinks.
        oversubscription: f64,
    },
    /// Groups whose routers are all connected with each other, and so are the groups: J. Kim, W. J. Dally, S. Scott, D.
    /// Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008.
    Dragonfly {
        /// Nodes of a router.
        nodes_per_router: u32,
        /// Routers of a group.
        routers_per_group: u32,
        /// Links of a router to other groups.
        global_links: u32,
        /// Number of groups; at most `routers_per_group * global_links + 1`.
        groups: u32,
    },
    /// A grid whose rows, columns, … are rings; a node at every point.
    Torus {
        /// Nodes along each dimension.
        dimensions: Vec<u32>,
    },
}

impl Shape {
    /// Whether its switches can add up what passes them: whether they form levels, with one NIC a node.
    #[must_use]
    pub fn can_aggregate(&self) -> bool {
        matches!(self, Shape::LeafSpine { .. } | Shape::FatTree { .. })
    }

    /// Whether multicasts in it are modeled.
    #[must_use]
    pub fn can_multicast(&self) -> bool {
        matches!(self, Shape::LeafSpine { .. })
    }

    /// The name that users type.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Shape::LeafSpine { .. } => "leaf-spine",
            Shape::Rails { .. } => "rails",
            Shape::FatTree { .. } => "fat-tree",
            Shape::Dragonfly { .. } => "dragonfly",
            Shape::Torus { .. } => "torus",
        }
    }

    /// All names.
    pub const NAMES: [&'static str; 5] = ["leaf-spine", "rails", "fat-tree", "dragonfly", "torus"];
}

/// Which of several shortest routes a message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// A hash of sender, receiver and seed decides, for all messages between the two.
    Ecmp,
    /// Each message takes the least loaded one; in a dragonfly, also through a third group.
    Adaptive,
}

impl Routing {
    /// The name that users type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Routing::Ecmp => "ecmp",
            Routing::Adaptive => "adaptive",
        }
    }
}

/// A network of switches.
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    /// How they are connected.
    pub shape: Shape,
    /// How routes are chosen.
    pub routing: Routing,
    /// Latency of each switch on the route (of each link in a torus), in addition to the cluster's.
    pub hop_latency: Time,
    /// Rate of a link between two switches, each way; `None`: what oversubscription leaves, or the NIC's.
    pub link_bandwidth: Option<Rate>,
}

impl Fabric {
    /// Rate of a link between two switches if a NIC has this rate.
    #[must_use]
    pub fn link_rate(&self, nic: Rate) -> Rate {
        if let Some(rate) = self.link_bandwidth {
            return rate;
        }
        match self.shape {
            Shape::LeafSpine { nodes_per_leaf, spines, oversubscription }
            | Shape::Rails { nodes_per_leaf, spines, oversubscription } => {
                Rate(nic.0 * f64::from(nodes_per_leaf) / (oversubscription * f64::from(spines)))
            }
            _ => nic,
        }
    }

    /// The most nodes that it can have; `None`: there is no limit.
    #[must_use]
    pub fn capacity(&self) -> Option<u64> {
        match &self.shape {
            Shape::LeafSpine { .. } | Shape::Rails { .. } => None,
            Shape::FatTree { radix, .. } => {
                Some(u64::from(*radix) * u64::from(radix / 2) * u64::from(self.nodes_per_switch()))
            }
            Shape::Dragonfly { nodes_per_router, routers_per_group, groups, .. } => {
                Some(u64::from(*nodes_per_router) * u64::from(*routers_per_group) * u64::from(*groups))
            }
            Shape::Torus { dimensions } => Some(dimensions.iter().map(|&size| u64::from(size)).product()),
        }
    }

    /// Nodes on a switch that has any.
    #[must_use]
    pub fn nodes_per_switch(&self) -> u32 {
        match self.shape {
            Shape::LeafSpine { nodes_per_leaf, .. } | Shape::Rails { nodes_per_leaf, .. } => nodes_per_leaf,
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be whole")]
            Shape::FatTree { radix, oversubscription } => (f64::from(radix / 2) * oversubscription).round() as u32,
            Shape::Dragonfly { nodes_per_router, .. } => nodes_per_router,
            Shape::Torus { .. } => 1,
        }
    }

    /// Switches with nodes that others connect below the level that connects all; `None`: there is no such level.
    #[must_use]
    pub fn switches_per_pod(&self) -> Option<u32> {
        match self.shape {
            Shape::FatTree { radix, .. } => Some(radix / 2),
            _ => None,
        }
    }

    /// Names of its links for people, as patterns; `N` stands for any number.
    #[must_use]
    pub fn link_names(&self) -> String {
        match &self.shape {
            Shape::LeafSpine { spines, .. } | Shape::Rails { spines, .. } => {
                format!("leafN-spine0 to leafN-spine{}", spines - 1)
            }
            Shape::FatTree { radix, .. } => format!("edgeN-aggN and aggN-core0 to aggN-core{}", radix * radix / 4 - 1),
            Shape::Dragonfly { .. } | Shape::Torus { .. } => "routerN-routerN".into(),
        }
    }
}

/// A link, or all links of a switch, that carries less than it should.
#[derive(Clone, Debug, PartialEq)]
pub struct Degraded {
    /// A link such as `node3` (its NIC), `rack0` (its uplink) or `leaf0-spine1`, or a switch such as `spine1`; both
    /// directions.
    pub link: String,
    /// Remaining share of its rate, 0 to 1; 0: it is removed, and routes avoid it.
    pub factor: f64,
}
