//! Plans of iterations: one binary, which links once.
mod background;
mod blocks;
mod compression;
mod experts;
mod plans;
