//! The simulator: one binary, which links once.
mod asynchronous;
#[path = "../../../iteration/tests/all/blocks.rs"]
mod blocks;
mod closed_forms;
mod coordination;
mod fabrics;
mod jobs;
mod library_costs;
mod properties;
mod sharding;
mod sizes;
