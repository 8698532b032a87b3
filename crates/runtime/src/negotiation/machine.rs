//! Runs the policy `negotiate` and those derived from it, and carries out their actions.
use std::collections::{BTreeMap, VecDeque};

use paceline_coordinator::{Action, Event, Negotiate, Policy, PolicyKind, Settings, Stall};
use paceline_engine::Submission;
use paceline_executor::handle::Handle;
use paceline_executor::timeline;
use paceline_os::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use paceline_os::sync::{Arc, Mutex};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError, SAME_CALLS};
use paceline_transport::waiting::first_report;

use super::named::Named;
use super::output::Output;
use super::steps::Planner;
use super::{Arrival, begin};
use crate::communicator::Communicator;

/// Returns why the coordinator was closed meanwhile, if it was.
pub(super) type Closed<'a> = &'a dyn Fn() -> Option<RunError>;

pub(super) struct Machine {
    policy: Negotiate,
    pub(super) control: Arc<Communicator>,
    data: Arc<Communicator>,
    /// Submitted by the user and not begun yet.
    pending: BTreeMap<String, Arc<Named>>,
    joins: Vec<Arc<Named>>,
    start: Instant,
    due: Option<Instant>,
    /// The highest cycle that another rank has announced.
    pub(super) invited: u64,
    pub(super) cycle: u64,
    /// When the ranks last exchanged something.
    pub(super) last_contact: Instant,
    failure: Option<RunError>,
    /// This rank has closed the coordinator.
    closed_here: Arc<AtomicBool>,
    /// The operation that the driving thread is about to wait for: it advances that one itself.
    pub waited: Option<String>,
    /// Numbers of tensors, which assign them to parameter servers; the same on all ranks.
    numbers: BTreeMap<String, u32>,
    /// Servers of the tensors that the user has assigned.
    placement: Arc<Mutex<BTreeMap<String, u32>>>,
    /// Waiting for a vote does not block other users of the machine.
    pub(super) nonblocking: bool,
    /// The vote being counted in that case.
    pub(super) counting: Option<Counting>,
    planner: Option<Arc<Planner>>,
    /// Planned buckets that were in flight at the last check.
    under_way: Option<u64>,
    counts: Arc<Counts>,
}

/// A vote in flight.
pub(super) struct Counting {
    pub handle: Arc<Handle>,
    pub memory: Arc<Output>,
    pub since: u64,
}

/// Counts of negotiation messages and of the buckets that began as a result.
#[derive(Default)]
pub(super) struct Counts {
    pub votes: AtomicU64,
    /// Votes that also agreed on a common sleep.
    pub sleeps: AtomicU64,
    pub reports: AtomicU64,
    pub decisions: AtomicU64,
    pub negotiated: AtomicU64,
}

impl Machine {
    pub fn new(
        control: Arc<Communicator>,
        data: Arc<Communicator>,
        (kind, settings): (PolicyKind, Settings),
        placement: Arc<Mutex<BTreeMap<String, u32>>>,
        planner: Option<Arc<Planner>>,
    ) -> Machine {
        let now = Instant::now();
        Machine {
            nonblocking: kind == PolicyKind::Nonblocking,
            counting: None,
            planner,
            under_way: None,
            counts: Arc::default(),
            policy: Negotiate::new(control.rank(), control.size(), settings).calling(control.ranks()),
            control,
            data,
            pending: BTreeMap::new(),
            joins: Vec::new(),
            start: now,
            due: None,
            invited: 0,
            cycle: 0,
            last_contact: now,
            failure: None,
            closed_here: Arc::default(),
            waited: None,
            numbers: BTreeMap::new(),
            placement,
        }
    }

    /// Set when this rank closes the coordinator: what fails because of that is no reason for others to fail.
    pub fn closed_here(&self) -> Arc<AtomicBool> {
        self.closed_here.clone()
    }

    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// The vote being counted, to wait for without holding the machine, and its communicator.
    pub fn counting(&self) -> Option<(Arc<Communicator>, Arc<Handle>)> {
        self.counting.as_ref().map(|counting| (self.control.clone(), counting.handle.clone()))
    }

    /// When to run next even if no event arrives.
    pub fn due(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.silent_at()).min()
    }

    pub fn failure(&self) -> Option<&RunError> {
        self.failure.as_ref()
    }

    /// While anything waits for other ranks, all ranks vote now and then, because a stopped rank does not answer.
    /// Planned buckets cause no negotiation messages, so while any are in flight the ranks vote as often.
    fn silent_at(&self) -> Option<Instant> {
        let waits = !self.pending.is_empty() || !self.joins.is_empty() || self.planner.is_some();
        let silence = || first_report(self.control.shared.settings.timeout());
        (waits && self.failure.is_none()).then(|| self.last_contact + silence())
    }

    /// Whether an operation has been waiting for a while.
    fn waits(&mut self) -> bool {
        let under_way = self.planner.as_ref().and_then(|planner| planner.under_way());
        let same = under_way.is_some() && self.under_way == under_way;
        self.under_way = under_way;
        self.has_caller() || same
    }

    /// Whether a caller waits, or will, for what is pending. Nobody waits for proposals.
    fn has_caller(&self) -> bool {
        let patient =
            |operation: &Named| operation.request.patient && !paceline_os::mutant("proposals are a reason to leave");
        self.pending.values().any(|operation| !patient(operation)) || !self.joins.is_empty()
    }

    /// Handles these arrivals.
    pub fn take_all(&mut self, arrivals: Vec<Arrival>, closed: Closed<'_>) {
        let events: Vec<Event> = arrivals.into_iter().filter_map(|arrival| self.take(arrival)).collect();
        if !events.is_empty() && self.failure.is_none() {
            self.tell(events, closed);
        }
    }

    /// Handles an arrival and returns the event for the policy.
    fn take(&mut self, arrival: Arrival) -> Option<Event> {
        if let Some(error) = self.failure.clone() {
            let operations = match arrival {
                Arrival::Asked(operations) => operations,
                Arrival::Joins(operation) => vec![operation],
                Arrival::Event(_) | Arrival::Left(_) => return None,
            };
            // Nobody waits for proposals.
            if operations.iter().any(|operation| !operation.request.patient) {
                self.note_cause(&error);
            }
            operations.iter().for_each(|operation| operation.fail(error.clone()));
            return None;
        }
        match arrival {
            Arrival::Event(event) => {
                if let Event::Invited(cycle) = event {
                    self.invited = self.invited.max(cycle);
                }
                Some(event)
            }
            Arrival::Asked(operations) => Some(self.asked(operations)),
            Arrival::Joins(operation) => {
                if self.pending.is_empty() && self.joins.is_empty() {
                    self.last_contact = Instant::now();
                }
                self.joins.push(operation);
                Some(Event::Joined)
            }
            Arrival::Left(how) => {
                let error = RunError::Failed(how);
                // Operations that all ranks agreed on have begun; the rest cannot.
                self.fail(&error);
                None
            }
        }
    }

    /// The subject of the ranks' negotiation, as the script calls it.
    pub(super) fn about(&self) -> String {
        let more = match self.pending.len() {
            0 | 1 => String::new(),
            many => format!(" and {} more", many - 1),
        };
        match self.pending.first_key_value() {
            Some((name, _)) => format!("negotiation of '{name}'{more}"),
            None if self.joins.is_empty() => "negotiation of other ranks' tensors".into(),
            None => "join".into(),
        }
    }

    fn asked(&mut self, operations: Vec<Arc<Named>>) -> Event {
        if self.pending.is_empty() && self.joins.is_empty() {
            self.last_contact = Instant::now();
        }
        let requests = operations.iter().map(|operation| operation.request.clone()).collect();
        self.pending.extend(operations.into_iter().map(|operation| (operation.name().to_owned(), operation)));
        Event::Submitted(requests)
    }

    /// Handles deadlines that have passed.
    pub fn look_at_the_clock(&mut self, closed: Closed<'_>) {
        if let Some(Counting { memory, since, .. }) = self.counting.take_if(|counting| counting.handle.done()) {
            self.control.shared.timeline.agreement(timeline::VOTES_UNDER_WAY, since);
            match self.tally(&memory) {
                Ok(tally) => self.tell([Event::Tallied(tally)], closed),
                Err(error) => return self.fail(&error),
            }
        }
        let now = Instant::now();
        if self.silent_at().is_some_and(|at| at <= now) {
            if self.waits() {
                paceline_os::reached!("coordinator: vote because of silence");
                self.tell([Event::Invited(self.cycle + 1)], closed);
            } else {
                self.last_contact = now;
            }
        } else if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.tell([Event::Woke], closed);
        }
    }

    /// Fails everything that is pending.
    pub fn fail(&mut self, error: &RunError) {
        if self.has_caller() && self.failure.is_none() {
            self.note_cause(error);
        }
        self.failure.get_or_insert_with(|| error.clone());
        for (name, operation) in std::mem::take(&mut self.pending) {
            let text = error.to_string();
            let known = text.contains(&format!("'{name}'"));
            operation.fail(if known {
                error.clone()
            } else {
                RunError::failed_like(format!("{text}; '{name}' waited for it"), error.remedy())
            });
        }
        for operation in std::mem::take(&mut self.joins) {
            operation.fail(RunError::failed_like(format!("{error}; a join waited for it"), error.remedy()));
        }
        self.due = None;
    }

    /// Notes the failure of an operation that a caller waits for: if this rank leaves, that is the reason.
    fn note_cause(&self, error: &RunError) {
        if !self.closed_here.load(Ordering::SeqCst) {
            self.control.shared.note_cause_of(self.control.groups().chain(self.data.groups()), error);
        }
    }

    fn tell(&mut self, events: impl IntoIterator<Item = Event>, closed: Closed<'_>) {
        let mut now = self.start.elapsed().as_nanos() as u64;
        let mut actions = VecDeque::from(self.policy.on_all(now, events));
        while let Some(action) = actions.pop_front() {
            match self.act(action, closed) {
                Ok(None) => {}
                Ok(Some(event)) => {
                    now = self.start.elapsed().as_nanos() as u64;
                    actions.extend(self.policy.on(now, event));
                }
                Err(error) => return self.fail(&error),
            }
        }
    }

    fn act(&mut self, action: Action, closed: Closed<'_>) -> Result<Option<Event>> {
        match action {
            Action::Sleep(until) => self.due = until.map(|until| self.start + Duration::from_nanos(until)),
            Action::Vote(cycle, ballot) => {
                let since = self.since();
                self.counts.votes.fetch_add(1, Ordering::Relaxed);
                self.counts.sleeps.fetch_add(u64::from(ballot.sleep.is_some()), Ordering::Relaxed);
                let worked = if since > 0 { timeline::processor_time() } else { 0 };
                let Some(tally) = self.vote(cycle, &ballot, closed)? else { return Ok(None) };
                self.control.shared.timeline.waited_for_votes(cycle, since, worked);
                return Ok(Some(Event::Tallied(tally)));
            }
            Action::Report(report) => {
                self.counts.reports.fetch_add(1, Ordering::Relaxed);
                let since = self.since();
                let reports = self.gather(&report, closed)?;
                self.control.shared.timeline.agreement("report", since);
                if let Some(reports) = reports {
                    return Ok(Some(Event::Gathered(reports)));
                }
                let since = self.since();
                let decision = self.decision(None, closed)?;
                self.control.shared.timeline.agreement("wait for the decision", since);
                return Ok(Some(Event::Decided(decision)));
            }
            Action::Decide(decision) => {
                self.counts.decisions.fetch_add(1, Ordering::Relaxed);
                return self.decision(Some(&decision), closed).map(Event::Decided).map(Some);
            }
            Action::Start(bucket, some_joined) => {
                let waited = |name: &String| bucket.tensors.iter().any(|tensor| tensor.request.name == *name);
                let background = !self.waited.as_ref().is_some_and(waited);
                let next = self.numbers.len() as u32;
                let number = bucket.tensors.first().map(|tensor| &tensor.request.name);
                // Bucket i belongs to server i modulo the number of servers.
                let placed = number.and_then(|name| self.placement.lock().get(name).copied());
                let counted = |name: &String| *self.numbers.entry(name.clone()).or_insert(next);
                let number = placed.or_else(|| number.map(counted)).unwrap_or(0);
                let named: Vec<_> = bucket.tensors.iter().map(|t| self.pending.remove(&t.request.name)).collect();
                let place = self.counts.negotiated.fetch_add(1, Ordering::Relaxed);
                named.iter().flatten().for_each(|operation| operation.ordered(place, some_joined));
                let patient = named.iter().flatten().all(|operation| operation.request.patient);
                let how = Submission { background, patient, ..Submission::default() };
                begin::begin(&self.data, &bucket, (&named, some_joined), (number, how), None)?;
            }
            Action::Refuse(name, reason) => {
                if let Some(operation) = self.pending.remove(&name) {
                    operation.fail(RunError::Failed(reason).with_remedy(SAME_CALLS));
                }
            }
            Action::Warn(stall) => self.warn(&stall),
            Action::AllJoined(last) => {
                if let Some(planner) = &self.planner {
                    planner.all_joined();
                }
                self.joins.drain(..).for_each(|operation| operation.joined(last));
            }
        }
        Ok(None)
    }

    /// The current time if the timeline is being recorded.
    pub(super) fn since(&self) -> u64 {
        if self.control.shared.timeline.on() { timeline::now() } else { 0 }
    }

    fn warn(&self, stall: &Stall) {
        paceline_os::report!("paceline: {}; missing: {}", stall.describe(), self.control.shared.describe(&stall.lack));
    }
}
