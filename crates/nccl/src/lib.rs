//! The cost model of NCCL's collectives: which algorithm and protocol NCCL chooses, and how long a collective takes.
//!
//! | module | holds |
//! | --- | --- |
//! | [`names`] | collectives, algorithms, protocols |
//! | [`release`] | NCCL's own figures and rules, by its release |
//! | [`machine`] | nodes and links as NCCL sees them, and a group of ranks |
//! | [`tuning`] | NCCL's own model of the time, with which it chooses |
//! | [`calibration`] | constants fitted to measurements |
//! | [`transport`] | what the network carries: RDMA with and without GPUDirect, sockets |
//! | [`time`] | the choice, and the calibrated time |
//!
//! The strategy `native` and forecasts of collectives ask the same functions, with another [`Release`].
//!
//! Nothing here knows clusters, schedules or events.
pub mod calibration;
pub mod machine;
pub mod names;
pub mod release;
pub mod time;
pub mod transport;
pub mod tuning;

pub use calibration::{Calibration, Constant, Evidence, Generation};
pub use machine::{Group, IntraLink, Machine};
pub use names::{Algorithm, Choice, Kind, NcclError, Protocol};
pub use release::Release;
pub use time::{Caller, CollectiveTime, Request, bus_factor, collective_time};
pub use transport::{Sockets, Transport};
pub use tuning::Estimate;
