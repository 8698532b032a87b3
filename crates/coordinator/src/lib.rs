//! Decides which tensors are fused into one operation and when it begins, whatever order ranks submit them in.
//!
//! A coordinator is one state machine per rank: [events](Event) in, [actions](Action) out, without clock or I/O. The
//! runtime drives it with real events, the simulator with simulated ones. The driver decides how to carry out an action
//! between ranks: a vote is an all-reduce, a report a gather, a decision a broadcast.
//!
//! | module | holds |
//! | --- | --- |
//! | `request` | the requests of a rank |
//! | `event` | events, actions, and the messages between ranks |
//! | `cache` | tensors that were agreed on before, each with a bit |
//! | `table` | the first rank's view of the others |
//! | `fuse` | fuses tensors into buckets |
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
    Assignment, Graph, Issue, Limits, Negotiate, Partition, Planned, Policy, PolicyKind, Prescribed, Proposal, Seen,
    Settings, UnknownPolicy, can_be_planned,
};
pub use request::{Request, Terms};
