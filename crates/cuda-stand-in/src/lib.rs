//! A CUDA driver for tests on machines without a device: the symbols that Paceline loads from `libcuda.so.1`, over memory and
//! threads of this process.
//!
//! It is stricter than a device where that finds faults:
//!
//! - **Device memory** is mapped without access: a host that touches it ends with a segmentation fault. The stand-in uses a
//!   second mapping of the same memory.
//! - **Streams** are threads. They really run behind the caller, each piece of work after a wait that a seed decides
//!   (`CUDA_STAND_IN_SEED`), so that what is not ordered happens in different orders.
//! - **Every call may fail once**: `CUDA_STAND_IN_FAULT=cuMemcpyDtoHAsync_v2:3:719` makes the third call fail with error 719.
//!   719 and 700 are errors of a context: all later calls fail, too, and host functions are no longer called.
//! - A call without a current context fails, memory that was freed may not be used, and what is copied must lie inside of
//!   one allocation. A stream waits only for numbers in device memory or page-locked memory.
//! - **Kernels** take their blocks in an order that the seed decides, and sleep between some.
//!
//! The seed gives each rank (`PACELINE_RANK` or `RANK`) other delays.
//!
//! | module | holds |
//! | --- | --- |
//! | `driver` | devices, contexts, errors, faults |
//! | `memory` | device memory and page-locked memory |
//! | `ipc` | device memory of other processes |
//! | `stream` | streams, events, copies, and numbers that streams wait for |
//! | `kernels` | modules, and what Paceline's kernels compute |
//! | `nccl` | NCCL's communicators and collectives |
//! | `random` | delays and orders that a seed decides |
#![allow(unsafe_code, reason = "a C interface")]
#![allow(non_snake_case, reason = "the names are CUDA's")]
#![allow(missing_docs, reason = "the functions are those of cuda.h")]
#![allow(clippy::missing_safety_doc, reason = "as in cuda.h")]

mod driver;
mod ipc;
mod kernels;
mod memory;
mod nccl;
mod random;
mod stream;
