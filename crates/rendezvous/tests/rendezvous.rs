//! Ranks find and prove each other, whoever else is about; and when they cannot, everyone hears why.
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
