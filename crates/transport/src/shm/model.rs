//! The parts of shared memory that `--cfg loom` replaces, and the models that are checked: every order in which the memory
//! model lets two ranks see each other's stores, for rings of two slots (`make loom`).
//!
//! Loom treats sequentially consistent accesses as acquire and release, so what holds here holds with fences alone.
pub(super) mod mapping;
pub(super) mod peer;
pub(super) mod pipe;
#[cfg(test)]
mod tests;
