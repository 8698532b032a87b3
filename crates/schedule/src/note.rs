//! Degenerate cases that a user should know about, as values. The words are Python's (`paceline.forecast.wording`).

/// A degenerate case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// `sharp` on one node has no switch: only the reduction inside the node is left.
    NoSwitch,
    /// The radix or the memory of switches shapes `sharp`.
    SwitchLimits {
        /// Most that a switch adds up, and the levels of the tree that follows.
        levels: Option<(u32, u32)>,
        /// Elements of a piece, and how many pieces the memory of a switch then holds.
        pieces: Option<(u64, u64)>,
    },
    /// `sharded-ps` with one rank per node has no reduction inside it: servers share every tensor.
    SharedTensors,
    /// `hierarchical` on one node has no ring between nodes.
    NoRing,
    /// `hierarchical` with one rank per node is a ring between the nodes.
    RingOfNodes,
    /// `hsdp` with one group of all ranks is `zero3`.
    OneGroup {
        /// Number of ranks.
        ranks: u32,
    },
    /// Exchanges take their closed form: their messages are too many to be simulated.
    ClosedForm {
        /// The strategy's name.
        strategy: &'static str,
        /// Number of workers.
        workers: u32,
    },
}
