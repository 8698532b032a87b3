//! The graph of one training step: its operations, which of them are all-reduces, and their dependencies. The file
//! format is described in docs/reference/coordinator-plan.md.
mod dtype;
mod file;
mod write;

pub use dtype::Dtype;

/// The data of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllReduce {
    /// Element type.
    pub dtype: Dtype,
    /// Bytes of the whole tensor: at least one element, and only whole ones.
    pub bytes: u64,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Unique in the graph.
    pub name: String,
    /// `Some` if the operation is an all-reduce.
    pub all_reduce: Option<AllReduce>,
}

/// Operations and their dependencies. It may have cycles, which are detected when it is traversed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// The name for tables.
    pub name: String,
    /// How it was made.
    pub provenance: String,
    /// In an order that is the same on all ranks.
    pub nodes: Vec<Node>,
    /// Indices of a parent and of the child that needs it.
    pub edges: Vec<(u32, u32)>,
    /// Indices of the nodes from which it is traversed by default.
    pub fetches: Vec<u32>,
}
