//! TOPO: tensors have an order from the graph, and a bucket is issued when it is complete and the one before it is
//! issued. No cycles, no agreement; that processes are late at different times shows inside the collective.
use super::{Agreement, Coordinator, Policy};
use crate::coordination::draws::{Draws, Spin};

pub(super) const GRAPH: Coordinator = Coordinator {
    name: "graph",
    aliases: &["topo"],
    summary: "an order from the graph: buckets are issued when they are complete, without agreement",
    stretch: |_| 1.0,
    begin: |_, _| Box::new(Graph),
};

struct Graph;

impl Policy for Graph {
    fn next(&mut self, _draws: &mut Draws) -> Option<Agreement> {
        None
    }

    fn spins(&self) -> &[Spin] {
        &[]
    }
}
