//! Shared memory between the ranks of one host.
//!
//! Every rank owns one segment, in which each of its peers has a ring of slots to write into. A segment is an anonymous
//! file (`memfd_create`), which peers open through `/proc/PID/fd`: nothing has a name in `/dev/shm`, whose size does
//! not matter, and nothing can be left behind, however a process ends. Its pages are reserved when it is made, so that
//! a lack of memory is an error then and no signal later.
//!
//! A small fragment is copied into a slot and out of it. A large one can be sent without that copy: the slot holds its
//! address in the sender, and the receiver copies it from there (`process_vm_readv`), if the system permits.
mod mapping;
mod peer;
mod ring;
mod segment;
mod waker;

pub use ring::ShmChannel;
pub use segment::{Segment, SegmentAddress};
pub use waker::{PeerWaker, Waker};
