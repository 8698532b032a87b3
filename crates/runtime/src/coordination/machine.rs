//! The policy, and what its actions mean between ranks: a vote is an all-reduce, a report a gather, a decision a
//! broadcast.
#![allow(unsafe_code, reason = "the machine's own memory is handed to operations, which hold it")]
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paceline_coordinator::{Action, Ballot, Decision, Event, Kind, Negotiate, Policy, Report, Settings, Stall, Tally};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Arrival;
use super::begin;
use super::named::Named;
use super::output::Output;
use super::steps::Planner;
use crate::communicator::{Communicator, Memory, Request};
use crate::dtype::{Dtype, ReduceOp};
use crate::engine::Submission;
use crate::error::{Result, RunError};
use crate::handle::Handle;
use crate::tag::Call;
use crate::timeline;

/// A wait for other ranks is cut into such pieces, between which it is looked whether the coordinator was closed.
const SLICE: Duration = Duration::from_millis(200);
/// Others that have something new vote by themselves; the rest are invited after this. An invitation wakes two threads of
/// each of them: a small all-reduce that all ranks wait for takes a third of the time without.
const UNINVITED: Duration = Duration::from_micros(40);
/// Longest report or decision.
const LONGEST: u64 = 256 << 20;

/// Tells whether the coordinator was closed meanwhile, and why.
pub(super) type Closed<'a> = &'a dyn Fn() -> Option<RunError>;

pub(super) struct Machine {
    policy: Negotiate,
    control: Arc<Communicator>,
    data: Arc<Communicator>,
    /// What the user asked for and has not begun.
    pending: BTreeMap<String, Arc<Named>>,
    joins: Vec<Arc<Named>>,
    start: Instant,
    due: Option<Instant>,
    /// The highest cycle that another rank has announced.
    invited: u64,
    cycle: u64,
    /// When ranks last heard of each other.
    heard: Instant,
    failure: Option<RunError>,
    /// What the thread that drives this is going to wait for: it moves that itself.
    pub waited: Option<String>,
    /// Numbers of tensors, by which parameter servers share them out; the same at all ranks.
    numbers: BTreeMap<String, u32>,
    /// The server of tensors that the user has placed.
    placement: BTreeMap<String, u32>,
    /// A vote is waited for without keeping anybody else from the machine.
    nonblocking: bool,
    /// The votes that are being counted then.
    counting: Option<Counting>,
    planner: Option<Arc<Planner>>,
    counts: Arc<Counts>,
}

/// A vote on its way.
struct Counting {
    handle: Arc<Handle>,
    memory: Arc<Output>,
    since: u64,
}

/// What ranks have told each other besides tensors, and how many buckets have begun for it.
#[derive(Default)]
pub(super) struct Counts {
    pub votes: AtomicU64,
    pub reports: AtomicU64,
    pub decisions: AtomicU64,
    pub negotiated: AtomicU64,
}

impl Machine {
    pub fn new(
        control: Arc<Communicator>,
        data: Arc<Communicator>,
        (kind, settings): (Kind, Settings),
        placement: BTreeMap<String, u32>,
        planner: Option<Arc<Planner>>,
    ) -> Machine {
        let now = Instant::now();
        Machine {
            nonblocking: kind == Kind::Nonblocking,
            counting: None,
            planner,
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
            heard: now,
            failure: None,
            waited: None,
            numbers: BTreeMap::new(),
            placement,
        }
    }

    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Votes that are being counted, for somebody to wait for them, and the communicator by which.
    pub fn counting(&self) -> Option<(Arc<Communicator>, Arc<Handle>)> {
        self.counting.as_ref().map(|counting| (self.control.clone(), counting.handle.clone()))
    }

    /// When it is to be looked at although nothing has come.
    pub fn due(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.silent_at()).min()
    }

    pub fn failure(&self) -> Option<&RunError> {
        self.failure.as_ref()
    }

    /// While something waits for others, all vote now and then: a rank that is stopped does not.
    fn silent_at(&self) -> Option<Instant> {
        let waits = !self.pending.is_empty() || !self.joins.is_empty();
        (waits && self.failure.is_none()).then(|| self.heard + self.control.shared.settings.timeout() / 3)
    }

    /// All this has come.
    pub fn take_all(&mut self, arrivals: Vec<Arrival>, closed: Closed<'_>) {
        let events: Vec<Event> = arrivals.into_iter().filter_map(|arrival| self.take(arrival)).collect();
        if !events.is_empty() && self.failure.is_none() {
            self.tell(events, closed);
        }
    }

    /// Something has come: what the policy is to hear of it.
    fn take(&mut self, arrival: Arrival) -> Option<Event> {
        if let Some(error) = self.failure.clone() {
            match arrival {
                Arrival::Asked(operations) => operations.iter().for_each(|operation| operation.fail(error.clone())),
                Arrival::Joins(operation) => operation.fail(error),
                Arrival::Event(_) | Arrival::Left(_) => {}
            }
            return None;
        }
        match arrival {
            Arrival::Event(event) => {
                if let Event::Invited(cycle) = event {
                    self.invited = self.invited.max(cycle);
                }
                Some(event)
            }
            Arrival::Asked(operations) => self.asked(operations),
            Arrival::Joins(operation) => {
                if self.pending.is_empty() && self.joins.is_empty() {
                    self.heard = Instant::now();
                }
                self.joins.push(operation);
                Some(Event::Joined)
            }
            Arrival::Left(how) => {
                let error = RunError::Failed(how);
                // What all have agreed on has begun; of the rest nothing can.
                self.fail(&error);
                None
            }
        }
    }

    fn asked(&mut self, operations: Vec<Arc<Named>>) -> Option<Event> {
        for (index, operation) in operations.iter().enumerate() {
            let twice = operations[..index].iter().any(|other| other.name() == operation.name());
            if twice || self.pending.contains_key(operation.name()) {
                let text = format!(
                    "'{}' is in flight on this rank already; give each tensor a name of its own, or wait for it",
                    operation.name()
                );
                operations.iter().for_each(|operation| operation.fail(RunError::Usage(text.clone())));
                return None;
            }
        }
        if self.pending.is_empty() && self.joins.is_empty() {
            self.heard = Instant::now();
        }
        let requests = operations.iter().map(|operation| operation.request.clone()).collect();
        self.pending.extend(operations.into_iter().map(|operation| (operation.name().to_owned(), operation)));
        Some(Event::Submitted(requests))
    }

    /// The time may have come for something.
    pub fn look_at_the_clock(&mut self, closed: Closed<'_>) {
        if let Some(Counting { memory, since, .. }) = self.counting.take_if(|counting| counting.handle.done()) {
            self.control.shared.timeline.agreement("votes under way", since);
            match self.tally(&memory) {
                Ok(tally) => self.tell([Event::Tallied(tally)], closed),
                Err(error) => return self.fail(&error),
            }
        }
        let now = Instant::now();
        if self.silent_at().is_some_and(|at| at <= now) {
            self.tell([Event::Invited(self.cycle + 1)], closed);
        } else if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.tell([Event::Woke], closed);
        }
    }

    /// Nothing goes on.
    pub fn fail(&mut self, error: &RunError) {
        self.failure.get_or_insert_with(|| error.clone());
        for (name, operation) in std::mem::take(&mut self.pending) {
            operation.fail(RunError::Failed(format!("{error}; '{name}' waited for it")));
        }
        for operation in std::mem::take(&mut self.joins) {
            operation.fail(RunError::Failed(format!("{error}; a join waited for it")));
        }
        self.due = None;
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
            Action::Start(bucket) => {
                let waited = |name: &String| bucket.tensors.iter().any(|tensor| tensor.request.name == *name);
                let background = !self.waited.as_ref().is_some_and(waited);
                let next = self.numbers.len() as u32;
                let number = bucket.tensors.first().map(|tensor| &tensor.request.name);
                // Bucket i is on server i modulo their number.
                let placed = number.and_then(|name| self.placement.get(name)).copied();
                let counted = |name: &String| *self.numbers.entry(name.clone()).or_insert(next);
                let number = placed.or_else(|| number.map(counted)).unwrap_or(0);
                let named: Vec<_> = bucket.tensors.iter().map(|t| self.pending.remove(&t.request.name)).collect();
                begin::begin(&self.data, &bucket, &named, (number, background), None)?;
                self.counts.negotiated.fetch_add(1, Ordering::Relaxed);
            }
            Action::Refuse(name, reason) => {
                if let Some(operation) = self.pending.remove(&name) {
                    operation.fail(RunError::Failed(reason));
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

    /// Now, if it is recorded.
    fn since(&self) -> u64 {
        if self.control.shared.timeline.on() { timeline::now() } else { 0 }
    }

    fn warn(&self, stall: &Stall) {
        eprintln!("paceline: {} ({})", stall.describe(), self.control.shared.describe(&stall.lack));
    }

    /// None: the votes are being counted.
    fn vote(&mut self, cycle: u64, ballot: &Ballot, closed: Closed<'_>) -> Result<Option<Tally>> {
        self.cycle = cycle;
        let numbers: Vec<u8> = ballot.encode().into_iter().flat_map(i32::to_ne_bytes).collect();
        let memory = Arc::new(Output::with(&numbers));
        let count = numbers.len() as u64 / 4;
        let ballots = [(memory.address(), count)];
        let request = Request {
            call: Call::AllReduce,
            dtype: Dtype::Int32,
            op: ReduceOp::Min,
            inputs: &ballots,
            label: "which tensors are ready",
            ..Request::default()
        };
        if self.nonblocking {
            let handle = self.send(&request, &memory, true)?;
            if self.invited < cycle {
                self.control.invite(cycle);
            }
            self.counting = Some(Counting { handle, memory, since: self.since() });
            return Ok(None);
        }
        self.exchange(&request, &memory, closed, (self.invited < cycle).then_some(cycle))?;
        self.tally(&memory).map(Some)
    }

    fn tally(&mut self, memory: &Output) -> Result<Tally> {
        self.heard = Instant::now();
        let bytes = memory.copy();
        let numbers: Vec<i32> = bytes.as_chunks().0.iter().map(|&word| i32::from_ne_bytes(word)).collect();
        Tally::decode(&numbers).ok_or_else(|| RunError::Failed("a vote of the coordinator is garbled".into()))
    }

    /// All ranks' reports, on the first.
    fn gather(&self, report: &Report, closed: Closed<'_>) -> Result<Option<Vec<Report>>> {
        let text = encode(report)?;
        let lengths = self.lengths(text.len() as u64, closed)?;
        let own = Output::with(&text);
        let first = self.control.rank() == 0;
        let all = Output::new(if first { lengths.iter().sum::<u64>() as usize } else { 0 });
        let inputs = [(own.address(), text.len() as u64)];
        let outputs: &[Memory] = &[(all.address(), all.len() as u64)];
        let both = Arc::new((own, all));
        let request = Request {
            call: Call::Gather,
            inputs: &inputs,
            outputs: if first { outputs } else { &[] },
            counts: first.then_some(&lengths[..]),
            label: "what each asks for",
            ..Request::default()
        };
        self.exchange(&request, &both, closed, None)?;
        if !first {
            return Ok(None);
        }
        let bytes = both.1.copy();
        let mut rest = &bytes[..];
        let mut reports = Vec::with_capacity(lengths.len());
        for length in lengths {
            let (one, more) = rest.split_at(length as usize);
            rest = more;
            reports.push(decode(one)?);
        }
        Ok(Some(reports))
    }

    /// The first rank's decision, to all.
    fn decision(&self, decided: Option<&Decision>, closed: Closed<'_>) -> Result<Decision> {
        let text = decided.map(encode).transpose()?.unwrap_or_default();
        let length = self.lengths(text.len() as u64, closed)?[0];
        let memory = Arc::new(if decided.is_some() { Output::with(&text) } else { Output::new(length as usize) });
        let inputs = [(memory.address(), length)];
        let label = "what begins";
        let request = Request { call: Call::Broadcast, inputs: &inputs, label, ..Request::default() };
        self.exchange(&request, &memory, closed, None)?;
        decode(&memory.copy())
    }

    /// A number of every rank. Sizes are looked at before memory is taken.
    fn lengths(&self, own: u64, closed: Closed<'_>) -> Result<Vec<u64>> {
        let size = self.control.size() as usize;
        let memory = Arc::new((Output::with(&own.to_ne_bytes()), Output::new(8 * size)));
        let (inputs, outputs) = ([(memory.0.address(), 1)], [(memory.1.address(), size as u64)]);
        let request = Request {
            call: Call::AllGather,
            dtype: Dtype::Int64,
            inputs: &inputs,
            outputs: &outputs,
            label: "how much each has to say",
            ..Request::default()
        };
        self.exchange(&request, &memory, closed, None)?;
        let bytes = memory.1.copy();
        let lengths: Vec<u64> = bytes.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word)).collect();
        match lengths.iter().try_fold(0u64, |all, &length| all.checked_add(length)) {
            Some(all) if all <= LONGEST => Ok(lengths),
            _ => Err(RunError::Failed(format!("ranks have more than {LONGEST} bytes to say of their tensors"))),
        }
    }

    fn send<T: Send + Sync + 'static>(
        &self,
        request: &Request<'_>,
        memory: &Arc<T>,
        background: bool,
    ) -> Result<Arc<Handle>> {
        let keep = Box::new(memory.clone());
        // Silence was waited for already before all were asked to vote.
        let how = Submission { timeout: Some(self.control.shared.settings.timeout() * 2 / 3), background };
        // SAFETY: the memory belongs to `keep`, and is read only after the operation is over.
        unsafe { self.control.submit(request, Some(keep), how) }
    }

    /// An operation between coordinators, to its end.
    fn exchange<T: Send + Sync + 'static>(
        &self,
        request: &Request<'_>,
        memory: &Arc<T>,
        closed: Closed<'_>,
        invites: Option<u64>,
    ) -> Result<()> {
        let handle = self.send(request, memory, false)?;
        if let Some(cycle) = invites
            && !self.control.wait_quietly(&handle, Some(Instant::now() + UNINVITED))?
        {
            self.control.invite(cycle);
        }
        while !self.control.wait_quietly(&handle, Some(Instant::now() + SLICE))? {
            if let Some(error) = closed() {
                return Err(error);
            }
            self.control.shared.usable()?;
        }
        Ok(())
    }
}

pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|e| RunError::Failed(format!("what ranks tell each other cannot be written: {e}")))
}

pub(super) fn decode<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|e| RunError::Failed(format!("what a rank told the others is garbled: {e}")))
}
