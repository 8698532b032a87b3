//! State shared by callers, the driving thread and the failure detector: operations that are queued, in flight or finished. It
//! knows nothing of threads.
use std::any::Any;
use std::collections::{HashMap, VecDeque};

use paceline_executor::handle::Handle;
use paceline_executor::timeline::Timeline;
use paceline_executor::{Executor, Failure, OperationSpec, PointToPoint};
use paceline_os::sync::atomic::{AtomicBool, Ordering};
use paceline_os::sync::{Arc, Condvar, Mutex, MutexGuard};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Naming, Result, RunError, of};
use paceline_transport::header::{Signature, called};
use serde::{Deserialize, Serialize};

use super::listeners::{Listeners, News};
use super::progress::{Moved, OperationId, Progress};
use super::{Notice, Submission};

/// Most kinds of messages (communicator and tag) that a leaving rank lists. Beyond this, all of its messages count as sent.
pub(super) const MOST_SENT: usize = 10_000;
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
    /// How messages call the operations of a group.
    Name(u32, Naming),
    /// Counts what has been sent and received, for a thread that waits for it.
    Count,
}

/// An operation in flight.
pub(super) struct InFlight {
    /// `None`: a send or receive.
    pub seq: Option<u32>,
    pub signature: Signature,
    /// The user's name of the tensors.
    pub label: String,
    /// As in [`crate::Submission`].
    pub about: Option<Arc<str>>,
    /// For a send or receive, its tag and whether it is a send.
    pub transfer: Option<(u32, bool)>,
    /// For a send or receive, the rank of the job that it waits for.
    pub peer: Option<u32>,
    /// Operations are submitted in this order, over all communicators.
    pub order: u64,
    pub timeout: Duration,
    /// As in [`crate::Submission`].
    pub silent: Duration,
    pub handle: Arc<Handle>,
    pub began: Instant,
    /// How far it is here.
    pub moved: Moved,
    /// Bytes sent to and received from this process itself at the last look.
    pub within: u64,
    /// When the others were asked about it, first and last, since it stopped moving.
    pub asked: Option<(Instant, Instant)>,
    /// The last unsolicited report to them, with its time.
    pub told: (Instant, Progress),
    pub reported: Option<Duration>,
    /// Answers of other ranks about it, by rank of the job, with their times.
    pub answers: HashMap<u32, (Answer, Instant)>,
    /// No caller waits for it.
    pub patient: bool,
}

impl InFlight {
    /// `all_reduce of 'layer1.weight' (float32[10], sum; op 12)`.
    pub fn describe(&self, naming: &Naming) -> String {
        if let Some(about) = &self.about {
            return about.to_string();
        }
        if let Some(making) = self.making(naming) {
            return making;
        }
        let (call, place) = match self.seq {
            Some(seq) => (self.signature.collective.name().to_owned(), naming.number(seq)),
            None => (self.transfer_name(), naming.shown()),
        };
        let details = Some(self.signature.details()).filter(|details| !details.is_empty());
        let details: Vec<String> = details.into_iter().chain(place).collect();
        // Torch labels an operation by its call and the shape.
        let label = if self.label.starts_with(self.signature.collective.name()) { "" } else { &self.label };
        called(&(call + &of(label)), &details.join("; "))
    }

    /// `in all_reduce (float32[1000], sum; op 5)`, `while making group default`.
    pub fn during(&self, naming: &Naming) -> String {
        let makes = self.about.is_none() && self.making(naming).is_some();
        format!("{} {}", if makes { "while" } else { "in" }, self.describe(naming))
    }

    /// `making group default`, if it belongs to that.
    fn making(&self, naming: &Naming) -> Option<String> {
        match self.seq {
            Some(seq) => naming.making(seq),
            None if naming.is_new() => naming.making(0),
            None => None,
        }
    }

    /// `send #2 to rank 1`: by the ranks of the job, the tag if it is not 0, and the number under it.
    fn transfer_name(&self) -> String {
        let (tag, sends) = self.transfer.unwrap_or_default();
        let mut text = if sends { "send" } else { "recv" }.to_owned();
        if let Some(number) = self.handle.transfer() {
            text += &format!(" #{}", u64::from(number) + 1);
        }
        match self.peer {
            Some(peer) => text += &format!(" {} rank {peer}", if sends { "to" } else { "from" }),
            None => text += " from any rank",
        }
        if tag != 0 {
            text += &format!(" with tag {tag}");
        }
        text
    }

    /// The rank of the job that a send or receive waits for, once it is known.
    pub fn peer_in(&self, ranks: &[u32]) -> Option<u32> {
        let found = || self.handle.transfer().and_then(|_| ranks.get(self.handle.source() as usize).copied());
        self.peer.or_else(|| self.transfer.and_then(|_| found()))
    }

    /// Its name for the other ranks; `me`: this rank of the job, among the `ranks` of the group. A receive that has not
    /// begun, or from any rank, has none.
    pub fn id(&self, me: u32, ranks: &[u32]) -> Option<OperationId> {
        let Some((tag, sends)) = self.transfer else { return self.seq.map(OperationId::Collective) };
        let (peer, number) = (self.peer_in(ranks)?, self.handle.transfer()?);
        let (from, to) = if sends { (me, peer) } else { (peer, me) };
        Some(OperationId::Transfer { from, to, tag, number })
    }

    pub fn sends(&self) -> bool {
        self.transfer.is_some_and(|(_, sends)| sends)
    }
}

/// How far another rank is with an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It has not called the operation. It has called this many of the communicator's, and waits in this one elsewhere.
    Later(u32, Option<Elsewhere>),
    /// It waits, too; its description of the operation, and the digest of its plan.
    InFlight(String, u32),
    /// The operation is complete there; description and digest as above.
    Past(String, u32),
}

/// An operation in which a rank waits that has not called another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    pub what: String,
    pub group: u32,
    pub id: OperationId,
    pub progress: Progress,
    /// The ranks of the group, if it is just being made: its caller waits.
    pub makes: Option<Vec<u32>>,
}

impl Elsewhere {
    /// `in all_reduce (float32[1000], sum; op 5)`, `while making group default`.
    pub fn during(&self) -> String {
        format!("{} {}", if self.makes.is_some() { "while" } else { "in" }, self.what)
    }
}

/// Completed operations of a leaving rank in a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Operations it has called.
    pub called: u32,
    /// Those of them that it has completed: all up to this number.
    pub completed: u32,
    /// By receiver and tag: messages that it has sent.
    pub sent: Vec<(u32, u32, u32)>,
}

/// Operations called by a rank that begins to leave and calls nothing more; as told to one other rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Called {
    /// By communicator: operations in order.
    groups: Vec<(u32, u32)>,
    /// By communicator and tag: messages to the other rank. `None`: too many kinds to say.
    sent: Option<Vec<(u32, u32, u32)>>,
    /// Communicator and tag of receives from the other rank, or from any.
    receives: Vec<(u32, u32)>,
}

impl Called {
    /// Whether the rank will never call an operation that the other one has called, or never send a message.
    pub fn never_calls(&self, group: u32, id: OperationId) -> bool {
        match id {
            OperationId::Collective(seq) => self.groups.iter().all(|&(id, called)| id != group || called <= seq),
            OperationId::Transfer { tag, number, .. } => {
                let never = |&(id, of, count): &(u32, u32, u32)| (id, of) != (group, tag) || count <= number;
                self.sent.as_ref().is_some_and(|sent| sent.iter().all(never))
            }
        }
    }

    /// Whether the rank waits for a message of the other one.
    pub fn receives(&self, group: u32, tag: u32) -> bool {
        self.receives.contains(&(group, tag))
    }
}

/// A communicator's operations.
pub(super) struct GroupOperations {
    pub ranks: Vec<u32>,
    pub name: String,
    pub naming: Naming,
    pub next: u32,
    pub in_flight: VecDeque<InFlight>,
    /// By receiver and tag: messages sent so far.
    pub sent: HashMap<(u32, u32), u32>,
    pub recent: VecDeque<(u32, Signature)>,
    pub failed: Option<RunError>,
    /// Operations that were called since, and could not run: the script counts them, too.
    refused: u32,
    /// Why, in words for other ranks.
    pub cause: Option<String>,
    /// A caller waited for an operation that has failed.
    awaited: bool,
    /// A coordinator's, which says itself whether a caller waits for what has not begun: that the group has failed is a
    /// reason to leave only if one waits for an operation in flight.
    pub internal: bool,
}

impl GroupOperations {
    pub fn new(name: String, ranks: Vec<u32>) -> GroupOperations {
        let (in_flight, sent, recent) = Default::default();
        let (failed, refused, cause, awaited, internal) = (None, 0, None, false, false);
        let naming = Naming::of_new(&name, &ranks);
        GroupOperations {
            ranks,
            name,
            naming,
            next: 0,
            in_flight,
            sent,
            recent,
            failed,
            refused,
            cause,
            awaited,
            internal,
        }
    }

    /// The answer of this rank, `me`, to a question about an operation, and its progress here.
    pub fn answer(&self, me: u32, id: OperationId) -> (Answer, Progress) {
        let called = match id {
            OperationId::Collective(_) => self.next,
            OperationId::Transfer { to, tag, .. } => self.sent.get(&(to, tag)).copied().unwrap_or(0),
        };
        let (OperationId::Collective(number) | OperationId::Transfer { number, .. }) = id;
        if number >= called {
            return (Answer::Later(called, None), Progress::default());
        }
        if let Some(operation) = self.in_flight.iter().find(|w| w.id(me, &self.ranks) == Some(id)) {
            let signature = &operation.signature;
            return (Answer::InFlight(signature.describe(), signature.plan), operation.moved.progress);
        }
        let past = match id {
            OperationId::Collective(seq) => self.recent.iter().find(|(s, _)| *s == seq),
            OperationId::Transfer { .. } => None,
        };
        let answer = match past {
            Some((_, signature)) => Answer::Past(signature.describe(), signature.plan),
            None => Answer::Past(String::new(), 0),
        };
        (answer, Progress::default())
    }

    /// Completed operations of this rank; those in flight count as abandoned.
    fn done(&self) -> Done {
        let open = self.in_flight.iter().filter_map(|waiting| waiting.seq).min();
        let mut sent = self.sent.clone();
        for waiting in self.in_flight.iter().filter(|waiting| waiting.sends()) {
            if let (Some(to), Some((tag, _))) = (waiting.peer, waiting.transfer) {
                // A send that the executor has not begun yet has no number.
                let number = |count: u32| waiting.handle.transfer().unwrap_or(count.saturating_sub(1));
                sent.entry((to, tag)).and_modify(|count| *count = number(*count).min(*count));
            }
        }
        let mut sent: Vec<_> = sent.into_iter().map(|((to, tag), count)| (to, tag, count)).collect();
        sent.sort_unstable();
        Done { called: self.next, completed: open.unwrap_or(self.next), sent }
    }

    /// An operation has completed.
    pub fn complete(&mut self, seq: Option<u32>, handle: &Arc<Handle>) {
        let same = |w: &InFlight| Arc::ptr_eq(&w.handle, handle);
        let Some(index) = self.in_flight.iter().position(same) else { return };
        let Some(waiting) = self.in_flight.remove(index) else { return };
        self.awaited |= !waiting.patient && handle.result().is_err();
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
    /// Why the first group failed that has, in words for other ranks: if this rank leaves, that is the reason.
    pub cause: Option<String>,
    /// Operations submitted so far.
    submitted: u64,
}

impl Operations {
    /// Notes why something has failed here, unless something has before.
    pub fn note_cause(&mut self, cause: &str) {
        self.cause.get_or_insert_with(|| cause.to_owned());
    }

    /// Notes why a group has failed.
    fn note_cause_in(&mut self, group: u32, cause: &str, awaited: bool) {
        if let Some(operations) = self.groups.get_mut(&group) {
            operations.cause.get_or_insert_with(|| cause.to_owned());
            if operations.internal && !awaited && !paceline_os::mutant("proposals are a reason to leave") {
                return;
            }
        }
        self.note_cause(cause);
    }

    /// Marks a group as failed because of this; returns whether it was not failed before.
    pub fn fail(&mut self, group: u32, error: &RunError, cause: &str) -> bool {
        let Some(operations) = self.groups.get_mut(&group) else { return false };
        if operations.failed.is_some() {
            return false;
        }
        operations.failed = Some(error.clone());
        self.troubled = true;
        let awaited = operations.in_flight.iter().any(|waiting| !waiting.patient && !waiting.handle.done());
        self.note_cause_in(group, cause, awaited);
        self.alarms.push((group, error.clone()));
        true
    }

    /// How far this rank, `me`, is with an operation of a group, and the error that ended the group. If the operation is
    /// not called yet, the answer names the one in which this rank waits: preferably for the asking rank, because the two
    /// may have called different things.
    pub fn answer(&self, me: u32, (group, id): (u32, OperationId), asker: u32) -> (Answer, Progress, Option<RunError>) {
        let (answer, progress, failed) = match self.groups.get(&group) {
            Some(group) => {
                let (answer, progress) = group.answer(me, id);
                (answer, progress, group.failed.clone())
            }
            None => (Answer::Later(0, None), Progress::default(), None),
        };
        let Answer::Later(called, _) = answer else { return (answer, progress, failed) };
        let mut elsewhere: Option<((bool, u64), Elsewhere)> = None;
        for (&other, operations) in &self.groups {
            for waiting in &operations.in_flight {
                let Some(id) = waiting.id(me, &operations.ranks) else { continue };
                let with_asker = waiting
                    .peer_in(&operations.ranks)
                    .map_or_else(|| operations.ranks.contains(&asker) && other != group, |peer| peer == asker);
                let key = (!with_asker, waiting.order);
                if elsewhere.as_ref().is_none_or(|(best, _)| key < *best) {
                    let (what, progress) = (waiting.describe(&operations.naming), waiting.moved.progress);
                    let makes = operations.naming.is_new().then(|| operations.ranks.clone());
                    elsewhere = Some((key, Elsewhere { what, group: other, id, progress, makes }));
                }
            }
        }
        (Answer::Later(called, elsewhere.map(|(_, elsewhere)| elsewhere)), progress, failed)
    }

    /// By communicator: what this rank has done in it, if anything.
    pub fn done(&self) -> Vec<(u32, Done)> {
        let used = self.groups.iter().filter(|(_, group)| group.next > 0 || !group.sent.is_empty());
        let mut done: Vec<_> = used.map(|(&id, group)| (id, group.done())).collect();
        done.sort_unstable_by_key(|(id, _)| *id);
        done
    }

    /// Operations that this rank has called, for another rank.
    pub fn called(&self, other: u32) -> Called {
        let (mut called, mut all) = (Called::default(), Vec::new());
        for (&id, group) in self.groups.iter().filter(|(_, group)| group.ranks.contains(&other)) {
            called.groups.push((id, group.next));
            let sent = group.sent.iter().filter(|((to, _), _)| *to == other);
            all.extend(sent.map(|((_, tag), count)| (id, *tag, *count)));
            let receives = group.in_flight.iter().filter(|waiting| waiting.peer.is_none_or(|peer| peer == other));
            called.receives.extend(receives.filter_map(|waiting| match waiting.transfer {
                Some((tag, false)) => Some((id, tag)),
                _ => None,
            }));
        }
        called.groups.sort_unstable();
        all.sort_unstable();
        called.sent = Some(all).filter(|all| all.len() <= MOST_SENT);
        called
    }

    /// Whether anything in flight may still complete, though these ranks call nothing more. What no caller ever waits for
    /// does not count, nor do the groups of coordinators, which complete what all have agreed on.
    pub fn may_complete(&self, leaving: &HashMap<u32, Called>, me: u32) -> bool {
        self.groups.iter().any(|(&id, group)| {
            group.failed.is_none()
                && !group.internal
                && group.in_flight.iter().any(|waiting| {
                    let of = |rank: &u32| leaving.get(rank).map(|called| (called, waiting.id(me, &group.ranks)));
                    let never = |rank: &u32| match (of(rank), waiting.transfer) {
                        (None, _) => false,
                        (Some((called, _)), Some((tag, true))) => !called.receives(id, tag),
                        (Some((called, Some(named))), _) => called.never_calls(id, named),
                        (Some((_, None)), _) => true,
                    };
                    let peer = waiting.peer_in(&group.ranks);
                    let mut others = group.ranks.iter().filter(|rank| **rank != me);
                    let hopeless = match (waiting.transfer, peer) {
                        (None, _) => others.any(never),
                        (_, Some(peer)) => never(&peer),
                        (_, None) => others.all(never),
                    };
                    !waiting.patient && !waiting.handle.done() && !hopeless
                })
        })
    }

    pub fn in_flight(&self) -> bool {
        self.groups.values().any(|group| !group.in_flight.is_empty())
    }
}

/// Farewell of a leaving rank: its completed operations by communicator, and the ranks that may not get all it has sent them.
pub(super) type Stock = (Vec<(u32, Done)>, Vec<u32>);

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
    /// When this rank leaves: what its goodbye says.
    pub stock: Mutex<Stock>,
}

impl Ledger {
    pub fn operations(&self) -> MutexGuard<'_, Operations> {
        self.operations.lock()
    }

    /// Every lock, taken as by a thread that a forked child does not have.
    #[cfg(test)]
    pub fn hold(&self) -> impl Sized + '_ {
        (
            self.operations.lock(),
            self.notices.lock(),
            self.deferred_drops.lock(),
            self.listeners.lock(),
            self.stock.lock(),
        )
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
            let why = format!("group '{name}': its name collides with that of group '{}'", other.name);
            return Err(RunError::Usage(why).with_remedy("another name"));
        }
        if operations.groups.contains_key(&id) {
            return Err(RunError::Usage(format!("group '{name}' exists already"))
                .with_remedy("a name of its own for each group"));
        }
        operations.groups.insert(id, GroupOperations::new(name.into(), ranks.clone()));
        operations.inbox.push(Command::Group { id, ranks, me });
        Ok(())
    }

    /// Messages call the group by another name.
    pub fn show_as(&self, id: u32, name: &str) {
        let mut operations = self.operations();
        let Some(group) = operations.groups.get_mut(&id) else { return };
        group.naming = Naming::of_new(name, &group.ranks);
        let naming = group.naming.clone();
        operations.inbox.push(Command::Name(id, naming));
    }

    /// The group is made: from now on, the script calls its operations; or, if it is `hidden`, uses tensors by name.
    pub fn begin_naming(&self, id: u32, hidden: bool) {
        let mut operations = self.operations();
        let Some(group) = operations.groups.get_mut(&id) else { return };
        if hidden {
            group.naming.hide();
        } else if group.naming.is_new() {
            group.naming.begin(group.next);
        }
        let naming = group.naming.clone();
        operations.inbox.push(Command::Name(id, naming));
    }

    /// The group is destroyed. Returns its ranks if operations of it were in flight.
    pub fn remove_group(&self, id: u32) -> Option<Vec<u32>> {
        let mut operations = self.operations();
        let mut broken = None;
        if let Some(group) = operations.groups.get_mut(&id) {
            // Those that are done, and that the driving thread has not taken off the list yet, are not broken.
            let pending = group.in_flight.iter().any(|operation| !operation.handle.done());
            if group.failed.is_none() && pending {
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
        let operations = &mut *self.operations();
        let Some(entry) = operations.groups.get_mut(&group) else {
            return Err(RunError::Usage("the communicator was destroyed".into()));
        };
        let peer = spec.point_to_point.and_then(|to| to.peer).map(|peer| entry.ranks[peer as usize]);
        let seq = spec.point_to_point.is_none().then(|| entry.next.wrapping_add(entry.refused));
        let order = operations.submitted;
        let begun = |now: Instant| InFlight {
            seq,
            signature: spec.signature,
            label: spec.label.clone(),
            transfer: spec.point_to_point.map(|PointToPoint { tag, sends, .. }| (tag, sends)),
            peer,
            order,
            timeout: how.timeout.unwrap_or(timeout),
            silent: how.silent,
            about: how.about.clone(),
            handle: handle.clone(),
            began: now,
            moved: Moved::new(now),
            within: 0,
            asked: None,
            told: (now, Progress::default()),
            reported: None,
            answers: HashMap::new(),
            patient: how.patient,
        };
        if let Some(error) = &entry.failed {
            let what = begun(Instant::now()).describe(&entry.naming);
            let cause = entry.cause.clone().unwrap_or_else(|| error.to_string());
            let error = RunError::failed_like(format!("{cause}; so {what} cannot run"), error.remedy());
            entry.refused += u32::from(seq.is_some());
            return Err(error);
        }
        let bytes = spec.signature.count * spec.signature.dtype.size() as u64;
        let number = timeline.begin(&spec.label, spec.signature.collective.name(), bytes);
        handle.number.store(number, Ordering::Relaxed);
        if seq.is_some() {
            entry.next = entry.next.wrapping_add(1);
        }
        if let (Some(PointToPoint { tag, sends: true, .. }), Some(peer)) = (spec.point_to_point, peer) {
            *entry.sent.entry((peer, tag)).or_default() += 1;
        }
        operations.submitted += 1;
        entry.in_flight.push_back(begun(Instant::now()));
        operations.inbox.push(Command::Begin(group, spec));
        Ok(handle)
    }

    /// Marks a group as failed because of this; returns whether that is new. The caller wakes the driving thread.
    pub fn fail(&self, group: u32, error: &RunError, cause: &str) -> bool {
        let new = self.operations().fail(group, error, cause);
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
                let awaited = operations.groups.get(&failure.group).is_some_and(|group| group.awaited);
                operations.note_cause_in(failure.group, &failure.error.to_string(), awaited);
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

    /// An operation has failed that was never submitted: a notice, if the caller wants one.
    pub fn refused(&self, handle: &Handle) {
        if let Some(number) = handle.notify {
            self.notices.lock().push(Notice { number, error: handle.result().err() });
            self.noticed.notify_one();
        }
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
