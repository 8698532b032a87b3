//! The CUDA driver, loaded at run time, never linked; and the path of device tensors through pinned host memory.
//!
//! | module | holds |
//! | --- | --- |
//! | `abi` | the driver's functions and constants |
//! | `driver` | finds and loads the library |
//! | `error` | errors as text |
//! | `device` | a device's primary context, its streams, events and memory |
//! | `flags` | counters that streams and processes of a host wait for |
//! | `ipc` | sharing of device memory between the processes of a host |
//! | `kernels` | kernels that combine device memory |
//! | `library` | libraries that are loaded at run time, one of each kind in a process |
//! | `memory` | memory of a device |
//! | `nccl` | NCCL, loaded at run time: communicators that can be aborted |
//! | `pinned` | page-locked host memory, used again |
//! | `staging` | copies a caller's device memory to the host, and the result back, in the order of the caller's stream |
//!
//! Nothing here knows communicators or strategies. The host never waits for a device: a host function tells what a stream has
//! reached.
mod abi;
mod device;
mod driver;
mod error;
mod flags;
mod ipc;
mod kernels;
mod library;
mod memory;
mod nccl;
mod pinned;
mod staging;

pub use device::{CallerStream, Device, Event, Stream};
pub use driver::Driver;
pub use error::CudaError;
pub use flags::{Flags, FlagsAddress};
pub use ipc::{CacheCounters, Exported, Exports, Imports};
pub use kernels::Combine;
pub use memory::DeviceMemory;
pub use nccl::{ID_BYTES, Nccl, NcclCall, NcclComm, NcclOp, NcclType, UniqueId};
pub use pinned::{Pinned, Pool};
pub use staging::{Copies, Counters, Region, Stage, Staged, overlap};
