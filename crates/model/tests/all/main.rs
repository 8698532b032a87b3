//! Documents of traces, clusters and graphs: one binary, which links once.
mod graphs;
mod properties;
mod refusals;
