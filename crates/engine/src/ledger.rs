//! What callers, the driving thread and the failure detector share: operations not yet begun, those in flight, and what
//! became of the others. It knows nothing of threads.
use paceline_os::sync::Arc;
use paceline_os::sync::atomic::{AtomicBool, Ordering};
use paceline_os::time::{Duration, Instant};
use std::any::Any;
use std::collections::{HashMap, VecDeque};

use paceline_os::sync::{Condvar, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use super::listeners::{Listeners, News};
use super::{Notice, Submission};
use paceline_executor::handle::Handle;
use paceline_executor::timeline::Timeline;
use paceline_executor::{Executor, Failure, OperationSpec};
use paceline_transport::error::{Result, RunError};
use paceline_transport::header::Signature;

/// Past operations that a rank remembers, to tell others what it called.
const REMEMBERED: usize = 512;

/// For the executor, in call order.
pub(super) enum Command {
    Begin(u32, OperationSpec),
    Group {
        id: u32,
        ranks: Vec<u32>,
        me: u32,
    },
    /// Hands a duplicate communicator of the offload library to a group of the same ranks.
    Inherit {
        from: u32,
        to: u32,
    },
    Remove(u32),
}

/// An operation in flight.
pub(super) struct InFlight {
    /// `None`: a send or receive.
    pub seq: Option<u32>,
    pub signature: Signature,
    /// The user's name of the tensors.
    pub label: String,
    /// For a send or receive, the rank of the job that it waits for.
    pub peer: Option<u32>,
    pub timeout: Duration,
    pub handle: Arc<Handle>,
    /// When it last moved, and how far it was.
    pub moved: (Instant, u64),
    pub asked: Option<Instant>,
    pub reported: Option<Duration>,
    /// What others said about it, by rank of the job.
    pub answers: HashMap<u32, Answer>,
}

impl InFlight {
    /// `all_reduce(float32, 10 elements, sum) 'layer1.weight', operation 12`.
    pub fn describe(&self) -> String {
        let mut text = self.signature.describe();
        if !self.label.is_empty() {
            text += &format!(" of '{}'", self.label);
        }
        if let Some(seq) = self.seq {
            text += &format!(", operation {}", u64::from(seq) + 1);
        }
        text
    }
}

/// How far another rank is with an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It has not called the operation. It has called this many of the communicator's, and waits in this one elsewhere.
    Later(u32, Option<String>),
    /// It waits, too; its description of the operation, and the digest of its plan.
    InFlight(String, u32),
    /// The operation is complete there; description and digest as above.
    Past(String, u32),
}

/// A communicator's operations.
pub(super) struct GroupOperations {
    pub ranks: Vec<u32>,
    pub name: String,
    pub next: u32,
    pub in_flight: VecDeque<InFlight>,
    pub recent: VecDeque<(u32, Signature)>,
    pub failed: Option<RunError>,
}

impl GroupOperations {
    pub fn new(name: String, ranks: Vec<u32>) -> GroupOperations {
        GroupOperations { ranks, name, next: 0, in_flight: VecDeque::new(), recent: VecDeque::new(), failed: None }
    }

    /// What this rank knows about an operation.
    pub fn answer(&self, seq: u32) -> Answer {
        if seq >= self.next {
            return Answer::Later(self.next, None);
        }
        if let Some(operation) = self.in_flight.iter().find(|w| w.seq == Some(seq)) {
            return Answer::InFlight(operation.signature.describe(), operation.signature.plan);
        }
        match self.recent.iter().find(|(s, _)| *s == seq) {
            Some((_, signature)) => Answer::Past(signature.describe(), signature.plan),
            None => Answer::Past(String::new(), 0),
        }
    }

    /// An operation has completed.
    pub fn complete(&mut self, seq: Option<u32>, handle: &Arc<Handle>) {
        let same = |w: &InFlight| Arc::ptr_eq(&w.handle, handle);
        let Some(index) = self.in_flight.iter().position(same) else { return };
        let Some(waiting) = self.in_flight.remove(index) else { return };
        if let Some(seq) = seq {
            if self.recent.len() == REMEMBERED {
                self.recent.pop_front();
            }
            self.recent.push_back((seq, waiting.signature));
        }
    }

    /// The oldest operation in flight, for a message.
    pub fn oldest(&self) -> Option<&InFlight> {
        self.in_flight.front()
    }
}

/// All communicators' operations, under one lock, which is held for moments only.
#[derive(Default)]
pub(super) struct Operations {
    pub inbox: Vec<Command>,
    pub groups: HashMap<u32, GroupOperations>,
    /// Failures for the driving thread: group, error.
    pub alarms: Vec<(u32, RunError)>,
    /// A group has failed.
    pub troubled: bool,
}

impl Operations {
    /// Marks a group as failed; returns whether it was not failed before.
    pub fn fail(&mut self, group: u32, error: &RunError) -> bool {
        let Some(operations) = self.groups.get_mut(&group) else { return false };
        if operations.failed.is_some() {
            return false;
        }
        operations.failed = Some(error.clone());
        self.troubled = true;
        self.alarms.push((group, error.clone()));
        true
    }

    /// How far this rank is with an operation of a group, and the error that ended the group. If the operation is not
    /// called yet, the answer names the one in which this rank waits for the asking rank: the two may have called
    /// different things.
    pub fn answer(&self, group: u32, seq: u32, asker: u32) -> (Answer, Option<RunError>) {
        let (answer, failed) = match self.groups.get(&group) {
            Some(group) => (group.answer(seq), group.failed.clone()),
            None => (Answer::Later(0, None), None),
        };
        let Answer::Later(called, _) = answer else { return (answer, failed) };
        let elsewhere = self.groups.iter().filter(|(id, other)| **id != group && other.ranks.contains(&asker));
        let waits = elsewhere.filter_map(|(_, other)| other.oldest()).find(|waiting| waiting.seq.is_some());
        (Answer::Later(called, waits.map(InFlight::describe)), failed)
    }

    pub fn in_flight(&self) -> bool {
        self.groups.values().any(|group| !group.in_flight.is_empty())
    }
}

/// The operations, and flags for what the driving thread has to look at.
#[derive(Default)]
pub(super) struct Ledger {
    operations: Mutex<Operations>,
    /// The inbox or the alarms hold something.
    news: AtomicBool,
    notices: Mutex<Vec<Notice>>,
    noticed: Condvar,
    /// Owners of the memory of completed operations, for a thread that may drop them.
    deferred_drops: Mutex<Vec<Box<dyn Any + Send>>>,
    pub listeners: Mutex<Listeners>,
}

impl Ledger {
    pub fn operations(&self) -> MutexGuard<'_, Operations> {
        self.operations.lock()
    }

    /// Announces something in the inbox or the alarms.
    pub fn mark_news(&self) {
        self.news.store(true, Ordering::SeqCst);
    }

    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::SeqCst)
    }

    /// Whether there is something new; clears the flag.
    pub fn take_news(&self) -> bool {
        // Usually there is nothing, and a load costs less than a swap.
        self.news.load(Ordering::Acquire) && self.news.swap(false, Ordering::SeqCst)
    }

    pub fn add_group(&self, id: u32, name: &str, ranks: Vec<u32>, me: u32) -> Result<()> {
        let mut operations = self.operations();
        if let Some(other) = operations.groups.get(&id)
            && other.failed.is_none()
            && (other.ranks != ranks || other.name != name)
        {
            return Err(RunError::Usage(format!(
                "group '{name}': its name collides with that of group '{}'; choose another",
                other.name
            )));
        }
        if operations.groups.contains_key(&id) {
            return Err(RunError::Usage(format!("group '{name}' already exists; give each group its own name")));
        }
        operations.groups.insert(id, GroupOperations::new(name.into(), ranks.clone()));
        operations.inbox.push(Command::Group { id, ranks, me });
        Ok(())
    }

    /// The group is destroyed. Returns its ranks if operations of it were in flight.
    pub fn remove_group(&self, id: u32) -> Option<Vec<u32>> {
        let mut operations = self.operations();
        let mut broken = None;
        if let Some(group) = operations.groups.get_mut(&id) {
            if group.failed.is_none() && !group.in_flight.is_empty() {
                broken = Some(group.ranks.clone());
            }
            group.failed.get_or_insert_with(|| RunError::Failed("the communicator was destroyed".into()));
            // Its number is not used again, so its history is not needed.
            group.recent = VecDeque::new();
        }
        operations.inbox.push(Command::Remove(id));
        broken
    }

    /// Registers an operation for the driving thread to begin. `timeout`: the job's.
    pub fn enter(
        &self,
        group: u32,
        spec: OperationSpec,
        how: &Submission,
        timeout: Duration,
        timeline: &Timeline,
    ) -> Result<Arc<Handle>> {
        let handle = spec.handle.clone();
        let mut operations = self.operations();
        let Some(entry) = operations.groups.get_mut(&group) else {
            return Err(RunError::Usage("the communicator was destroyed".into()));
        };
        if let Some(error) = &entry.failed {
            return Err(RunError::Failed(format!("{error} (communicator '{}' has failed)", entry.name)));
        }
        let seq = spec.point_to_point.is_none().then(|| {
            entry.next = entry.next.wrapping_add(1);
            entry.next.wrapping_sub(1)
        });
        let bytes = spec.signature.count * spec.signature.dtype.size() as u64;
        let number = timeline.begin(&spec.label, spec.signature.collective.name(), bytes);
        handle.number.store(number, Ordering::Relaxed);
        let peer = spec.point_to_point.and_then(|to| to.peer).map(|peer| entry.ranks[peer as usize]);
        entry.in_flight.push_back(InFlight {
            seq,
            signature: spec.signature,
            label: spec.label.clone(),
            peer,
            timeout: how.timeout.unwrap_or(timeout),
            handle: handle.clone(),
            moved: (Instant::now(), 0),
            asked: None,
            reported: None,
            answers: HashMap::new(),
        });
        operations.inbox.push(Command::Begin(group, spec));
        Ok(handle)
    }

    /// Marks a group as failed; returns whether that is new. The caller wakes the driving thread.
    pub fn fail(&self, group: u32, error: &RunError) -> bool {
        let new = self.operations().fail(group, error);
        if new {
            self.listeners.lock().tell(group, &News::Failed(error.clone()));
        }
        new
    }

    /// The ranks of a group; empty if there is no such group.
    pub fn ranks_of(&self, group: u32) -> Vec<u32> {
        self.operations().groups.get(&group).map(|group| group.ranks.clone()).unwrap_or_default()
    }

    /// Records what the executor has completed. Returns the groups that have failed with it, and their ranks, which
    /// must be told.
    pub fn settle(&self, core: &mut Executor, timeline: &Timeline) -> Vec<(Failure, Vec<u32>)> {
        let (mut notices, mut failed) = (Vec::new(), Vec::new());
        {
            let mut operations = self.operations();
            for completion in core.completions.drain(..) {
                timeline.end(completion.handle.number.load(Ordering::Relaxed));
                if let Some(group) = operations.groups.get_mut(&completion.group) {
                    group.complete(completion.seq, &completion.handle);
                }
                if let Some(number) = completion.handle.notify {
                    notices.push(Notice { number, error: completion.handle.result().err() });
                }
                if let Some(keep) = completion.keep {
                    self.deferred_drops.lock().push(keep);
                }
            }
            operations.troubled |= !core.failures.is_empty();
            for failure in core.failures.drain(..) {
                if let Some(group) = operations.groups.get_mut(&failure.group)
                    && group.failed.is_none()
                {
                    group.failed = Some(failure.error.clone());
                    self.listeners.lock().tell(failure.group, &News::Failed(failure.error.clone()));
                    failed.push((failure, group.ranks.clone()));
                }
            }
        }
        let fresh = notices.len();
        if fresh > 0 {
            self.notices.lock().extend(notices);
        }
        // Several threads may wait for notices; each takes one.
        for _ in 0..fresh {
            self.noticed.notify_one();
        }
        failed
    }

    /// The next notice; `None` after the time, or when `closing`.
    pub fn next_notice(&self, timeout: Duration, closing: impl Fn() -> bool) -> Option<Notice> {
        let until = Instant::now() + timeout;
        let mut notices = self.notices.lock();
        loop {
            if !notices.is_empty() {
                return Some(notices.remove(0));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || closing() {
                return None;
            }
            self.noticed.wait_for(&mut notices, left);
        }
    }

    pub fn take_finished(&self) -> Vec<Box<dyn Any + Send>> {
        std::mem::take(&mut self.deferred_drops.lock())
    }

    /// The engine closes: tells the listeners and wakes threads that wait for a notice.
    pub fn close(&self, error: &RunError) {
        self.listeners.lock().tell_all(&News::Failed(error.clone()));
        // A thread that waits for a notice has seen `closing`, or sleeps and is woken.
        drop(self.notices.lock());
        self.noticed.notify_all();
    }
}
