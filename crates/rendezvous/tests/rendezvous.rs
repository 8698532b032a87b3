//! Ranks find and authenticate each other despite strangers; when they cannot, all are told why.
#[path = "rendezvous/common.rs"]
mod common;
#[path = "rendezvous/failures.rs"]
mod failures;
#[path = "rendezvous/proxy.rs"]
mod proxy;
#[path = "rendezvous/strangers.rs"]
mod strangers;
#[path = "rendezvous/worlds.rs"]
mod worlds;
