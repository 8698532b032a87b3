//! One strategy per file. To add one, write its file, declare its module and list it in [`ALL`], over which the property tests
//! run, and describe it in docs/reference/strategies.md.
mod async_ps;
mod halving_doubling;
mod hierarchical;
mod native;
mod node;
mod placed;
mod ps;
mod recursive_doubling;
mod ring;
mod sharded_ps;
mod sharp;
mod tree;

use crate::plan::Entry;

/// Every strategy, in the order of tables.
pub(crate) const ALL: &[&Entry] = &[
    &ps::PS,
    &ps::PS_MULTICAST,
    &ps::PS_AGGREGATION,
    &ps::PS_MULTICAST_AGGREGATION,
    &async_ps::ASYNC_PS,
    &ring::RING,
    &ring::RING_MULTICAST,
    &recursive_doubling::RECURSIVE_DOUBLING,
    &halving_doubling::HALVING_DOUBLING,
    &tree::TREE,
    &hierarchical::HIERARCHICAL,
    &sharded_ps::SHARDED_PS,
    &sharp::SHARP,
    &native::NATIVE,
];
