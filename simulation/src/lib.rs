//! Searches schedules of the live runtime: whole jobs run on the virtual world of `paceline-os`, with chance and faults of a
//! seed, and every one is checked against what the runtime promises.
//!
//! | module | holds |
//! | --- | --- |
//! | [`scenario`] | a world, a program and faults, made of a seed |
//! | [`program`] | runs a scenario: what each rank does and what becomes of it |
//! | [`named`] | operations on named tensors |
//! | [`check`] | what must hold after every schedule |
//! | [`shrink`] | makes a scenario that fails smaller |
//! | [`search`] | runs many, in worker processes |
//! | [`hashing`] | the same order in every hash table |
pub mod check;
pub mod hashing;
pub mod named;
pub mod program;
pub mod scenario;
pub mod search;
pub mod shrink;
