//! The all-reduce of oneCCL (once MLSL) between CPUs: its C interface, loaded at run time, as an offload library.
//!
//! | module | contents |
//! | --- | --- |
//! | `library` | loading it with what it needs, its functions |
//! | `worker` | a communicator, and the thread that calls it |
//! | `buffer` | memory in which it reduces |
//!
//! Its calls between CPUs block, and a rank that has died is waited for without end. So each communicator has a thread of
//! its own, which works on memory of its own: a stuck call harms nobody but the thread.
mod buffer;
mod library;
mod worker;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_transport::offload::{DeviceCall, Offload, OffloadTicket};
use paceline_transport::space::Space;

use crate::buffer::Buffer;
pub use crate::library::Library;
use crate::worker::Worker;

/// Identifiers that the first rank makes for a job: for its first group, and for groups of the same ranks.
pub const IDENTIFIERS: usize = 5;
/// How long to sleep while an all-reduce runs, and else: the library does not wake sleepers.
const NAP: (Duration, Duration) = (Duration::from_micros(50), Duration::from_secs(1));

/// The communicators of a process.
pub struct Port {
    library: Arc<Library>,
    rank: u32,
    size: u32,
    /// Identifiers that no group has yet.
    identifiers: VecDeque<Vec<u8>>,
    groups: HashMap<u32, Group>,
    running: HashMap<u64, (u32, Dtype)>,
    next: u64,
    /// A thread may be stuck.
    abandoned: bool,
}

/// A group of all ranks.
struct Group {
    identifier: Vec<u8>,
    /// For groups of the same ranks.
    duplicates: VecDeque<Vec<u8>>,
    /// Begun by its first all-reduce, before which all ranks have met.
    worker: Option<Worker>,
}

impl Port {
    /// A port of a job, all of whose ranks have the same identifiers.
    #[must_use]
    pub fn new(library: Arc<Library>, rank: u32, size: u32, identifiers: Vec<Vec<u8>>) -> Port {
        let (groups, running) = (HashMap::new(), HashMap::new());
        Port { library, rank, size, identifiers: identifiers.into(), groups, running, next: 0, abandoned: false }
    }

    fn worker(&mut self, group: u32) -> Result<&mut Worker, String> {
        let own = self.groups.get_mut(&group).ok_or_else(|| {
            String::from(
                "strategy native over oneCCL runs among all ranks of the job; PACELINE_STRATEGY=ring for smaller groups",
            )
        })?;
        if own.worker.is_none() {
            own.worker = Some(Worker::begin(&self.library, &own.identifier, self.rank, self.size)?);
        }
        own.worker.as_mut().ok_or_else(String::new)
    }
}

impl Offload for Port {
    fn progress(&mut self) -> bool {
        false
    }

    fn nap(&self) -> Duration {
        if self.running.is_empty() { NAP.1 } else { NAP.0 }
    }

    /// Groups of some ranks have no communicator: their first all-reduce says so.
    fn join(&mut self, group: u32, ranks: &[u32], duplicates: usize) -> Result<(), String> {
        if ranks.len() == self.size as usize
            && let Some(identifier) = self.identifiers.pop_front()
        {
            let duplicates = self.identifiers.drain(..duplicates.min(self.identifiers.len())).collect();
            self.groups.insert(group, Group { identifier, duplicates, worker: None });
        }
        Ok(())
    }

    fn inherit(&mut self, from: u32, to: u32) {
        if let Some(identifier) = self.groups.get_mut(&from).and_then(|group| group.duplicates.pop_front()) {
            self.groups.insert(to, Group { identifier, duplicates: VecDeque::new(), worker: None });
        }
    }

    fn part(&mut self, group: u32) {
        self.groups.remove(&group);
    }

    fn all_reduce(&mut self, group: u32, kind: (Dtype, ReduceOp), space: &mut Space) -> Result<OffloadTicket, String> {
        let number = self.next;
        self.worker(group)?.reduce(number, Buffer::of(space, kind.0), kind)?;
        self.running.insert(number, (group, kind.0));
        self.next += 1;
        Ok(OffloadTicket(number))
    }

    fn on_device(&mut self, _group: u32, call: &DeviceCall) -> Result<OffloadTicket, String> {
        Err(format!("oneCCL is given no memory of devices here ({})", call.collective.name()))
    }

    fn done(&mut self, ticket: &OffloadTicket, space: &mut Space) -> Result<bool, String> {
        let Some(&(group, dtype)) = self.running.get(&ticket.0) else { return Ok(true) };
        let worker = self.groups.get_mut(&group).and_then(|group| group.worker.as_mut());
        let Some(result) = worker.ok_or("oneCCL: the group is gone")?.result(ticket.0) else { return Ok(false) };
        self.running.remove(&ticket.0);
        result?.copy_back(dtype, space);
        Ok(true)
    }

    fn abandon(&mut self, ticket: &OffloadTicket) {
        if let Some((group, _)) = self.running.remove(&ticket.0)
            && let Some(worker) = self.groups.get_mut(&group).and_then(|group| group.worker.take())
        {
            worker.abandon();
            self.abandoned = true;
        }
    }

    fn close(self: Box<Self>) -> bool {
        self.groups
            .into_values()
            .filter_map(|group| group.worker)
            .fold(!self.abandoned, |all, worker| worker.end() && all)
    }
}
