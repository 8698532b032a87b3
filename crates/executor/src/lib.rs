//! Runs programs on real buffers over channels. Never blocks: the driving thread calls [`Executor::progress`].
//!
//! | module | holds |
//! | --- | --- |
//! | `operation` | an operation in flight: its parts (one per role) and their lanes |
//! | `lane` | the progress of a lane in its step |
//! | `step` | executing the steps of a lane, and receiving their fragments |
//! | `barrier` | the barrier of an operation |
//! | `send` | sending the fragments of a step |
//! | `call` | what this process called, to be compared with what others called |
//! | `unexpected` | fragments that arrived before their receive was ready |
//! | `limits` | limits on buffering and on beginning ahead |
//! | `group` | the operations of a communicator in their order |
//! | `group_view` | a communicator as its operations see it |
//! | `offload` | operations that the offload library of the transport runs |
//! | `wires` | the channels by rank, and which of them are lost |
//! | [`program`] | what a rank does in an operation: a strategy's schedule, broadcast, all-gather, … |
//! | [`in_stream`] | a program as commands for the streams of devices that reach each other's memory |
//! | [`handle`] | the caller's view of an operation in flight |
//! | [`timeline`] | records what a rank did, and when |
mod barrier;
mod call;
mod group;
mod group_view;
pub mod handle;
pub mod in_stream;
mod lane;
mod limits;
mod offload;
mod operation;
pub mod program;
mod send;
mod step;
pub mod timeline;
mod unexpected;
mod wires;

use std::collections::HashSet;

use group::{Found, Group, Opened};
pub use limits::Limits;
use operation::Depth;
pub use operation::{Finish, InStep, OperationSpec, PointToPoint};
use paceline_os::time::Instant;
use paceline_transport::error::{Naming, RunError};
use paceline_transport::header::FragmentHeader;
use unexpected::UnexpectedQueue;
pub use wires::Wires;

pub use crate::handle::{Completion, Failure};

/// All groups of this process, and the channels they share.
pub struct Executor {
    wires: Wires,
    limits: Limits,
    groups: Vec<Group>,
    /// Communicators that were destroyed.
    gone: HashSet<u32>,
    unexpected: UnexpectedQueue,
    /// Since when the driving thread has slept without finding work. Callers wait in short slices; this outlasts them.
    pub stuck_since: Option<Instant>,
    /// Operations that have completed or failed since the caller last looked.
    pub completions: Vec<Completion>,
    /// Groups that have failed since the caller last looked.
    pub failures: Vec<Failure>,
}

impl Executor {
    /// An executor over these channels.
    #[must_use]
    pub fn new(wires: Wires) -> Executor {
        Executor::with_limits(wires, Limits::default())
    }

    /// An executor over these channels, with these limits.
    #[must_use]
    pub fn with_limits(mut wires: Wires, limits: Limits) -> Executor {
        wires.limit(&limits);
        let (groups, gone, unexpected) = (Vec::new(), HashSet::new(), UnexpectedQueue::new(limits));
        Executor {
            wires,
            limits,
            groups,
            gone,
            unexpected,
            stuck_since: None,
            completions: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// The channels.
    pub fn wires(&mut self) -> &mut Wires {
        &mut self.wires
    }

    /// Adds a communicator of these ranks; `me` is the index of this process in it.
    pub fn add_group(&mut self, id: u32, ranks: Vec<u32>, me: u32) {
        let depth = if self.wires.near(&ranks) { Depth::NEAR } else { Depth::far(ranks.len()) };
        self.groups.push(Group::new(id, ranks, me, depth.within(&self.limits), self.limits.ahead));
    }

    /// Changes how messages call the operations of a communicator.
    pub fn name(&mut self, group: u32, naming: Naming) {
        if let Some(group) = self.groups.iter_mut().find(|g| g.id == group) {
            group.naming = naming;
        }
    }

    /// Begins an operation.
    pub fn begin(&mut self, group: u32, spec: OperationSpec) {
        let Some(group) = self.groups.iter_mut().find(|g| g.id == group) else {
            spec.handle.fail(RunError::Failed(format!("there is no communicator {group}")));
            return;
        };
        if let Err(error) = group.begin(spec, &self.unexpected, &mut self.completions) {
            let (wires, unexpected) = (&mut self.wires, &mut self.unexpected);
            self.failures.push(group.give_up(error, wires, unexpected, &mut self.completions));
        }
    }

    /// Does what can be done now; returns whether anything was.
    pub fn progress(&mut self) -> bool {
        let mut any = self.wires.look();
        let mut at = 0;
        while let Some(wire) = self.wires.source(at) {
            any |= self.receive(wire);
            at += 1;
        }
        let mut served = None;
        for (index, group) in self.groups.iter_mut().enumerate() {
            let sent = self.wires.bytes[0];
            match group.run(&mut self.wires, &mut self.unexpected, &mut self.completions) {
                Ok(moved) => any |= moved,
                Err(error) => self.failures.push(group.give_up(
                    error,
                    &mut self.wires,
                    &mut self.unexpected,
                    &mut self.completions,
                )),
            }
            if served.is_none() && self.wires.bytes[0] != sent {
                served = Some(index);
            }
        }
        // Whoever comes first fills a channel that has little room: next time it comes last.
        if let Some(index) = served.filter(|_| self.wires.any_refused()) {
            paceline_os::reached!("executor: groups take turns");
            self.groups[index..].rotate_left(1);
        }
        any | self.wires.flush()
    }

    /// Takes fragments from a wire as long as they are wanted.
    fn receive(&mut self, wire: u32) -> bool {
        let mut any = false;
        while let Some(header) = self.wires.front(wire) {
            let mut group = self.groups.iter_mut().find(|g| g.id == header.group);
            let found = match &mut group {
                Some(group) => group.find(&header),
                None if self.gone.contains(&header.group) => Found::Past,
                None => Found::Later,
            };
            match (found, group) {
                (Found::InFlight(place), Some(group)) => {
                    let taken = match group.deliver(place, &header, wire, &mut self.wires) {
                        Ok(false) => break,
                        Ok(true) => {
                            any = true;
                            group.advance(place, &mut self.wires, &mut self.unexpected, &mut self.completions)
                        }
                        Err(error) => Err(error),
                    };
                    if let Err(error) = taken {
                        self.failures.push(group.give_up(
                            error,
                            &mut self.wires,
                            &mut self.unexpected,
                            &mut self.completions,
                        ));
                    }
                }
                (Found::Past, group) => {
                    if let Some(group) = group
                        && let Some(error) = group.late(&header)
                    {
                        let (wires, unexpected) = (&mut self.wires, &mut self.unexpected);
                        self.failures.push(group.give_up(error, wires, unexpected, &mut self.completions));
                    }
                    if !self.wires.discard(wire) {
                        break;
                    }
                    paceline_os::reached!("executor: fragment of a past operation discarded");
                    any = true;
                }
                _ => break,
            }
        }
        any
    }

    /// Moves fragments that block others into the unexpected-message queue; returns whether any moved. Call it only when
    /// nothing else can be done: the copy costs, and most fragments are wanted soon. `force` ignores the limit on queued
    /// bytes, except for sums that stream through this process: those are wanted once the other ranks have sent theirs.
    pub fn queue_unexpected(&mut self, force: bool) -> bool {
        let (mut any, mut at) = (false, 0);
        while let Some(wire) = self.wires.source(at) {
            at += 1;
            let Some(header) = self.wires.front(wire) else { continue };
            let streams = self.streams(&header);
            // A fragment for an operation that may not begin here yet may block the end of operations that have begun.
            let full = self.unexpected.full(wire, streams.is_some(), force && streams != Some(Opened::Yes));
            self.wires.block(wire, full);
            if full {
                continue;
            }
            any |= self.wires.queue_unexpected(wire, &header, &mut self.unexpected);
        }
        any
    }

    /// Whether a part of an unexpected fragment has been queued. Its rest need not wait as long as its beginning did: what
    /// has been received of it is a copy already.
    #[must_use]
    pub fn collects(&self) -> bool {
        self.wires.collects() && !paceline_os::mutant("the rest of an unexpected fragment waits, too")
    }

    /// Raises the limit for sums that stream through this process, if they block a wire, and queues them; returns whether
    /// any moved. Call it when forcing did not help. Usually a rank is merely late, and queueing only costs memory. But a
    /// rank may be waiting for a fragment behind these sums, which would be a deadlock.
    pub fn queue_unexpected_streams(&mut self) -> bool {
        let mut at = 0;
        while let Some(wire) = self.wires.source(at) {
            at += 1;
            if self.wires.front(wire).is_some_and(|header| self.streams(&header) == Some(Opened::Yes)) {
                self.unexpected.widen(wire);
                return self.queue_unexpected(true);
            }
        }
        false
    }

    /// Whether the operation is running, if the fragment is for a role through which sums stream.
    fn streams(&self, header: &FragmentHeader) -> Option<Opened> {
        self.groups.iter().find(|group| group.id == header.group).and_then(|group| group.streams(header))
    }

    /// Fails all operations of a group; later ones fail at once.
    pub fn fail_group(&mut self, id: u32, error: &RunError) {
        if let Some(group) = self.groups.iter_mut().find(|g| g.id == id) {
            group.fail(error, &mut self.wires, &mut self.unexpected, &mut self.completions);
        }
    }

    /// Fails all operations of all groups.
    pub fn fail_all(&mut self, error: &RunError) {
        for group in &mut self.groups {
            group.fail(error, &mut self.wires, &mut self.unexpected, &mut self.completions);
        }
    }

    /// Hands the duplicate communicator that the offload library made for `from` to `to`, a group of the same ranks.
    pub fn inherit(&mut self, from: u32, to: u32) {
        if let Some(library) = self.wires.offload() {
            library.inherit(from, to);
        }
    }

    /// Removes a communicator. Fragments that still arrive for it are discarded.
    pub fn remove_group(&mut self, id: u32) {
        if self.groups.iter().any(|group| group.id == id && !group.busy()) {
            self.wires.forget(id, false);
        }
        if self.groups.iter().any(|group| group.id == id && group.whole())
            && let Some(library) = self.wires.offload()
        {
            library.part(id);
        }
        self.fail_group(id, &RunError::Failed("the communicator was destroyed".into()));
        self.groups.retain(|group| group.id != id);
        self.gone.insert(id);
    }
}
