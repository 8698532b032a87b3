//! The graph of one training step: which operations there are, which of them are all-reduces, and what needs what. Its file
//! is described in docs/reference/coordinator-plan.md.
mod dtype;
mod file;
mod write;

pub use dtype::Dtype;

/// What an all-reduce moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllReduce {
    /// Of the elements.
    pub dtype: Dtype,
    /// Of the whole tensor; a whole number of elements, at least one.
    pub bytes: u64,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// No other node has it.
    pub name: String,
    /// If it is one.
    pub all_reduce: Option<AllReduce>,
}

/// Operations and their dependences. It may have cycles: whoever traverses it says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// For tables.
    pub name: String,
    /// How it was made.
    pub provenance: String,
    /// In an order that is the same on all ranks.
    pub nodes: Vec<Node>,
    /// Places of a parent and of the child that needs it.
    pub edges: Vec<(u32, u32)>,
    /// Places of the nodes from which it is traversed unless others are named.
    pub fetches: Vec<u32>,
}
