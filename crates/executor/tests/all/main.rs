//! Operations of executors: one binary, which links once.
mod collectives;
mod in_stream;
mod multicast;
mod progress;
mod simulated;
mod strategies;
mod world;
mod zero_copy;
