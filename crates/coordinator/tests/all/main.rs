//! The coordinators in one process: one binary, which links once.
mod arrivals;
mod graph;
mod graphs;
mod plan;
mod search;
mod world;
