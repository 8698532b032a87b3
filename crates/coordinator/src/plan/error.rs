//! Why a graph cannot be planned.
use thiserror::Error;

/// Most nodes of a cycle that a message shows.
const SHOWN: usize = 6;

/// An invalid graph or fetch; the message names the node.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// Two nodes have the same name, by which ranks and users refer to nodes.
    #[error("nodes {first} and {second} are both named '{name}'")]
    DoubleName {
        /// The name of both.
        name: String,
        /// Index of the first.
        first: usize,
        /// Index of the second.
        second: usize,
    },
    /// An edge from or to a missing node.
    #[error("edge {edge} names node {node}, and the graph has {nodes} nodes")]
    UnknownNode {
        /// Index of the edge.
        edge: usize,
        /// The missing node.
        node: u32,
        /// Number of nodes.
        nodes: usize,
    },
    /// A fetch that is not in the graph.
    #[error("fetch {fetch} is not a node: the graph has {nodes} nodes")]
    UnknownFetch {
        /// The requested node.
        fetch: u32,
        /// Number of nodes.
        nodes: usize,
    },
    /// No fetches, so there is nothing to plan.
    #[error("no fetch is given")]
    NoFetch,
    /// Nodes that depend on each other.
    #[error("the graph has a cycle: {}", path(.0))]
    Cycle(
        /// Names along the cycle, each needed by the next and the last by the first.
        Vec<String>,
    ),
    /// The list's order was requested, but the graph cannot run in that order.
    #[error("'{node}' comes before '{parent}', which it needs")]
    NotListedInOrder {
        /// The node that comes too early.
        node: String,
        /// The node that it needs.
        parent: String,
    },
    /// Too many nodes or edges.
    #[error("the graph has {nodes} nodes and {edges} edges, more than the {} that can be planned", u32::MAX - 2)]
    TooLarge {
        /// Number of nodes.
        nodes: usize,
        /// Number of edges.
        edges: usize,
    },
}

impl PlanError {
    /// What to write or type instead, in a few words.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            PlanError::DoubleName { .. } => "a name of its own for each node",
            PlanError::UnknownNode { .. } | PlanError::UnknownFetch { .. } => "a node of the graph",
            PlanError::NoFetch => "--fetch NAME (a node from which the graph is traversed backward)",
            PlanError::Cycle(_) => "the graph without one of these edges",
            PlanError::NotListedInOrder { .. } => "--ids depth, or parents before children",
            PlanError::TooLarge { .. } => "the graph of one step, without the forward pass",
        }
    }
}

fn path(names: &[String]) -> String {
    let mut shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("'{name}'")).collect();
    if names.len() > SHOWN {
        shown.push("…".into());
    }
    shown.extend(names.first().map(|name| format!("'{name}'")));
    shown.join(" -> ")
}
