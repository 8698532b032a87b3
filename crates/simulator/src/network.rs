//! The model of the network: links and routes, and two ways of sharing them.
pub(crate) mod fabric;
pub(crate) mod fifo;
pub(crate) mod fluid;
pub(crate) mod left;
#[cfg(test)]
mod maxmin;
mod sharing;
pub(crate) mod switch;
pub(crate) mod topology;
