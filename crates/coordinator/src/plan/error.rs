//! Why there is no plan.
use thiserror::Error;

/// The most nodes of a cycle that a message shows.
const SHOWN: usize = 6;

/// What is wrong with a graph or with what is asked of it; the message names the node.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// Names are how ranks and people refer to nodes.
    #[error("nodes {first} and {second} are both named '{name}'; give each a name of its own")]
    DoubleName {
        /// Of both.
        name: String,
        /// Place of the first.
        first: usize,
        /// Place of the second.
        second: usize,
    },
    /// An edge from or to a node that is not there.
    #[error("edge {edge} names node {node}, and the graph has {nodes} nodes")]
    UnknownNode {
        /// Place of the edge.
        edge: usize,
        /// What it names.
        node: u32,
        /// How many there are.
        nodes: usize,
    },
    /// A fetch that is not there.
    #[error("fetch {fetch} is no node: the graph has {nodes} nodes")]
    UnknownFetch {
        /// What was asked for.
        fetch: u32,
        /// How many there are.
        nodes: usize,
    },
    /// Nothing would be planned.
    #[error("no fetch is given; name at least one node, from which the graph is traversed backward")]
    NoFetch,
    /// Nodes that need each other.
    #[error("the graph has a cycle: {}; a plan needs a graph without one", path(.0))]
    Cycle(
        /// Names along it, each needed by the next and the last by the first.
        Vec<String>,
    ),
    /// The list's order was asked for, and it is none in which the graph can run.
    #[error("'{node}' stands before '{parent}', which it needs; list parents before children, or number by depth")]
    NotListedInOrder {
        /// Which stands too early.
        node: String,
        /// What it needs.
        parent: String,
    },
    /// Beyond the numbers of nodes and edges.
    #[error("the graph has {nodes} nodes and {edges} edges, and at most {} of each are planned", u32::MAX - 2)]
    TooLarge {
        /// How many nodes.
        nodes: usize,
        /// How many edges.
        edges: usize,
    },
}

fn path(names: &[String]) -> String {
    let mut shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("'{name}'")).collect();
    if names.len() > SHOWN {
        shown.push("…".into());
    }
    shown.extend(names.first().map(|name| format!("'{name}'")));
    shown.join(" -> ")
}
