//! Decides which tensors are fused into one operation, and when it begins, where ranks ask for them in any order.
//!
//! A coordinator is a state machine a rank: [events](Event) in, [actions](Action) out, without clock and without I/O. The
//! runtime drives it with real events, the simulator with simulated ones. What an action means between ranks is the
//! driver's: a vote is an all-reduce, a report a gather, a decision a broadcast.
//!
//! | module | holds |
//! | --- | --- |
//! | `request` | what a rank asks for |
//! | `event` | what happens, what is to be done, and what ranks tell each other |
//! | `cache` | tensors that were agreed on before, each with a bit |
//! | `table` | what the first rank knows of the others |
//! | `fuse` | tensors to buckets |
//! | `policy` | the policies: `negotiate`, `global-sleep`, `nonblocking`, `partitioned`, `graph` |
//! | `plan` | ids and buckets from a graph, instead of negotiation |
pub mod cache;
pub mod event;
pub mod fuse;
pub mod plan;
pub mod policy;
pub mod request;
pub mod table;

pub use event::{Action, Agreed, AgreedBucket, Ballot, Decision, Event, Ready, Report, Stall, Tally, Time};
pub use policy::{
    Assignment, Graph, Issue, Limits, Negotiate, Policy, PolicyKind, Proposal, Seen, Settings, can_be_planned,
};
pub use request::{Request, Terms};
