//! Shared memory between the ranks of one host.
//!
//! Every rank owns one segment, in which each of its peers has a ring of slots to write to. A segment is an anonymous
//! file (`memfd_create`), which peers open through `/proc/PID/fd`. So nothing depends on the size of `/dev/shm`, and no
//! file is left behind, however a process ends. Its pages are reserved on creation, so that a lack of memory is an
//! error then and not a signal later.
//!
//! A small fragment is copied into a slot and out of it. A large one can be sent zero-copy: the slot holds its address
//! in the sender, and the receiver copies it from there (`process_vm_readv`), if the system permits.
//!
//! With `--cfg loom`, `model` replaces the mapped memory, the other process's memory and the pipe by ones that
//! take every order of accesses that the memory model permits.
#[cfg(not(loom))]
mod mapping;
#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod peer;
mod ring;
mod segment;
mod waker;

#[cfg(loom)]
use model::{mapping, peer};
pub use ring::ShmChannel;
pub use segment::{Segment, SegmentAddress};
pub use waker::{PeerWaker, Waker};
