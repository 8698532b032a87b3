//! Documents of traces, clusters and graphs: one binary, which links once.
mod graphs;
mod operators;
mod properties;
mod refusals;
