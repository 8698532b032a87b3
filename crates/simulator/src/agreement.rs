//! Simulates the coordinators of a small world: the same state machines that a run uses, with simulated events.
//!
//! Coordination messages, cycles and fusion are therefore exactly those of a run; only the times are modeled. Every
//! rank has an optimizer whose gradients become ready at given times of a step. The script then waits for their sums,
//! and the next step begins. A vote ends a fixed time after the last rank has voted, and so do reports and decisions.
//! Buckets use the network one after the other. While a coordinator waits for others, it handles no other events,
//! unless its votes are nonblocking. For worlds of thousands of ranks there is `coordination`, a model of the machines'
//! effects.
mod scenario;

use std::collections::{BinaryHeap, VecDeque};

use paceline_coordinator::{
    Action, Agreed, AgreedBucket, Assignment, Ballot, Event, Graph, Issue, Limits, Negotiate, Policy, PolicyKind,
    Proposal, Report, Request, Settings, Tally, Terms, Time,
};

pub use scenario::{Agreement, Scenario};

/// An event at a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Happens {
    /// The gradient with this number is ready.
    Ready(usize),
    /// All gradients are ready; the script waits.
    Waits,
    Coordinator(Event),
    /// The operation with this number has completed.
    Summed(usize),
    /// The gather of the ranks' proposals has completed.
    Proposed(Vec<Proposal>),
}

#[derive(PartialEq, Eq)]
struct Entry {
    at: Time,
    number: u64,
    rank: usize,
    what: Happens,
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

struct Rank {
    machine: Negotiate,
    graph: Option<Graph>,
    /// It waits for other coordinators, and its events are kept.
    blocked: bool,
    kept: VecDeque<Event>,
    sleeps: Option<Time>,
    step: u32,
    began: Time,
    /// Gradients of this step that are not summed yet.
    left: usize,
    /// The script waits for them.
    waits: bool,
    /// The index of the last of them that was negotiated, among all negotiated operations.
    last: Option<usize>,
    /// This rank's proposal, the index of the gather of all proposals, and the gathered proposals.
    proposal: Option<Proposal>,
    gather: Option<usize>,
    proposals: Option<Vec<Proposal>>,
    /// The step ends when the proposals have arrived.
    compares: bool,
}

/// An operation, and on how many ranks it has begun.
struct Operation {
    bytes: u64,
    begun: u32,
    gradients: usize,
    is_plan: bool,
}

struct World<'a> {
    scenario: &'a Scenario,
    kind: PolicyKind,
    events: BinaryHeap<Entry>,
    numbers: u64,
    ranks: Vec<Rank>,
    votes: Vec<VecDeque<Ballot>>,
    reports: Vec<VecDeque<Report>>,
    /// Negotiated and planned operations, each in the order in which ranks begin them.
    operations: [Vec<Operation>; 2],
    begun: Vec<[usize; 2]>,
    wire_free: Time,
    found: Agreement,
}

/// Simulates the coordinators in this scenario.
///
/// # Errors
/// An invalid scenario; the message names the field and says what to do.
pub fn agree(scenario: &Scenario) -> Result<Agreement, String> {
    let kind = PolicyKind::find(&scenario.policy).map_err(|error| format!("policy: {error}"))?;
    if scenario.ranks == 0 || scenario.ranks > 64 || scenario.gradients.is_empty() || scenario.steps == 0 {
        return Err("ranks, steps, gradients: give 1 to 64 ranks, a step and a gradient".into());
    }
    if !(scenario.bytes_per_s.is_finite() && scenario.bytes_per_s > 0.0) {
        return Err(format!("bytes_per_s: {} is not a rate", scenario.bytes_per_s));
    }
    let mut world = World::new(scenario, kind);
    world.run()?;
    Ok(world.found)
}

fn request(number: usize, bytes: u64, apart: bool) -> Request {
    let terms = Terms::sum(if apart { "float64" } else { "float32" }, bytes);
    Request { name: format!("gradient {number}"), terms, own: Vec::new(), together: None, patient: false }
}

/// Name of the gather of proposals, as in the runtime.
const PLAN: &str = "plan";

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, kind: PolicyKind) -> World<'a> {
        let n = scenario.ranks as usize;
        let settings = Settings {
            cycle_time: scenario.cycle_time,
            threshold: scenario.threshold,
            capacity: scenario.capacity,
            warn_after: None,
            give_up_after: None,
            sleep_every: kind.sleep_every(),
        };
        let limits = Limits { first: scenario.bucket.0, most: scenario.bucket.1 };
        let ranks = (0..scenario.ranks).map(|rank| Rank {
            machine: Negotiate::new(rank, scenario.ranks, settings.clone()),
            graph: (kind == PolicyKind::Graph).then(|| Graph::new(limits)),
            blocked: false,
            kept: VecDeque::new(),
            sleeps: None,
            step: 0,
            began: 0,
            left: 0,
            waits: false,
            last: None,
            proposal: None,
            gather: None,
            proposals: None,
            compares: false,
        });
        World {
            scenario,
            kind,
            events: BinaryHeap::new(),
            numbers: 0,
            ranks: ranks.collect(),
            votes: vec![VecDeque::new(); n],
            reports: vec![VecDeque::new(); n],
            operations: [Vec::new(), Vec::new()],
            begun: vec![[0; 2]; n],
            wire_free: 0,
            found: Agreement::default(),
        }
    }

    fn at(&mut self, at: Time, rank: usize, what: Happens) {
        self.numbers += 1;
        self.events.push(Entry { at, number: self.numbers, rank, what });
    }

    fn all(&mut self, at: Time, event: &Event) {
        (0..self.ranks.len()).for_each(|rank| self.at(at, rank, Happens::Coordinator(event.clone())));
    }

    fn run(&mut self) -> Result<(), String> {
        (0..self.ranks.len()).for_each(|rank| self.begin_step(rank, 0));
        while let Some(Entry { at, rank, what, .. }) = self.events.pop() {
            match what {
                Happens::Ready(number) => self.ready(at, rank, number),
                Happens::Waits => self.waits(at, rank),
                Happens::Coordinator(event) => self.hear(at, rank, event),
                Happens::Summed(gradients) => self.summed(at, rank, gradients),
                Happens::Proposed(proposals) => {
                    self.ranks[rank].proposals = Some(proposals);
                    self.compare(at, rank);
                }
            }
        }
        let waits = self.ranks.iter().filter(|rank| rank.step < self.scenario.steps).count();
        if waits > 0 { Err(format!("{waits} ranks wait for each other; this is a bug in Paceline")) } else { Ok(()) }
    }

    fn begin_step(&mut self, rank: usize, now: Time) {
        let scenario = self.scenario;
        self.ranks[rank].began = now;
        self.ranks[rank].left = scenario.gradients.len();
        for (number, (_, ready)) in scenario.gradients.iter().enumerate() {
            self.at(now + ready, rank, Happens::Ready(number));
        }
        let last = scenario.gradients.iter().map(|(_, ready)| *ready).max().unwrap_or(0);
        self.at(now + scenario.waits.unwrap_or(last).max(last), rank, Happens::Waits);
    }

    fn ready(&mut self, now: Time, rank: usize, number: usize) {
        let wanted = request(number, self.scenario.gradients[number].0, number < self.scenario.apart);
        if let Some(graph) = &mut self.ranks[rank].graph {
            let place = graph.asked(&wanted, false);
            let due = graph.due();
            self.issue(now, rank, due);
            if matches!(place, Assignment::Slot(_)) {
                return;
            }
        }
        self.hear(now, rank, Event::Submitted(vec![wanted]));
    }

    fn waits(&mut self, now: Time, rank: usize) {
        if let Some(graph) = &mut self.ranks[rank].graph {
            let due = graph.flush();
            self.issue(now, rank, due);
        }
        self.ranks[rank].waits = true;
        if self.ranks[rank].left == 0 {
            self.waited(now, rank);
        } else {
            self.hear(now, rank, Event::Awaited);
        }
    }

    fn issue(&mut self, now: Time, rank: usize, due: Vec<Issue>) {
        for issue in due {
            let Some(graph) = &self.ranks[rank].graph else { return };
            let bytes = graph.slots()[issue.slots.clone()].iter().map(|slot| slot.terms.bytes).sum();
            self.begin(now, rank, 1, bytes, issue.slots.len(), false);
        }
    }

    /// An operation begins on a rank; `0`: negotiated, `1`: planned.
    fn begin(&mut self, now: Time, rank: usize, which: usize, bytes: u64, gradients: usize, is_plan: bool) {
        let number = self.begun[rank][which];
        self.begun[rank][which] += 1;
        if which == 0 {
            let here = &mut self.ranks[rank];
            *(if is_plan { &mut here.gather } else { &mut here.last }) = Some(number);
        }
        if rank == 0 && !is_plan {
            [&mut self.found.negotiated, &mut self.found.planned][which].push(bytes);
        }
        let all = &mut self.operations[which];
        if number == all.len() {
            all.push(Operation { bytes, begun: 0, gradients, is_plan });
        }
        all[number].begun += 1;
        if all[number].begun < self.scenario.ranks {
            return;
        }
        let Operation { bytes, gradients, is_plan, .. } = all[number];
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time that is shown")]
        let wire = (bytes as f64 / self.scenario.bytes_per_s * 1e9) as Time;
        self.wire_free = self.wire_free.max(now) + self.scenario.latency + wire;
        let over = self.wire_free;
        if is_plan {
            let proposals: Vec<Proposal> = self.ranks.iter().filter_map(|rank| rank.proposal.clone()).collect();
            (0..self.ranks.len()).for_each(|rank| self.at(over, rank, Happens::Proposed(proposals.clone())));
        } else {
            (0..self.ranks.len()).for_each(|rank| self.at(over, rank, Happens::Summed(gradients)));
        }
    }

    fn summed(&mut self, now: Time, rank: usize, gradients: usize) {
        let here = &mut self.ranks[rank];
        here.left -= gradients;
        if here.left == 0 && here.waits {
            self.waited(now, rank);
        }
    }

    /// The script has all sums of a step.
    fn waited(&mut self, now: Time, rank: usize) {
        let here = &mut self.ranks[rank];
        here.waits = false;
        let last = here.last.take();
        let Some(graph) = &mut here.graph else { return self.end_step(now, rank) };
        if here.proposal.is_none() {
            here.proposal = graph.ended(false);
            if here.proposal.is_some() {
                let terms = request(0, 0, false).terms;
                let terms = Terms { call: "all_gather".into(), op: String::new(), dtype: "uint8".into(), ..terms };
                let terms = Terms { fusible: false, ..terms };
                let own = vec![1];
                let wanted = Request { name: PLAN.into(), terms, own, together: None, patient: true };
                self.hear(now, rank, Event::Submitted(vec![wanted]));
            }
        } else if here.gather.is_some_and(|gather| last.is_some_and(|last| gather < last)) {
            here.compares = true;
            return self.compare(now, rank);
        }
        self.end_step(now, rank);
    }

    /// Compares the proposals if they have arrived, otherwise waits for them.
    fn compare(&mut self, now: Time, rank: usize) {
        let here = &mut self.ranks[rank];
        let Some(proposals) = here.proposals.take_if(|_| here.compares) else { return };
        let proposals: Vec<Option<Proposal>> = proposals.into_iter().map(Some).collect();
        if let Some(graph) = &mut here.graph {
            graph.agree(&proposals);
        }
        (here.proposal, here.gather, here.compares) = (None, None, false);
        self.end_step(now, rank);
    }

    fn end_step(&mut self, now: Time, rank: usize) {
        if rank == 0 {
            self.found.steps.push(now - self.ranks[0].began);
        }
        self.ranks[rank].step += 1;
        if self.ranks[rank].step < self.scenario.steps {
            self.begin_step(rank, now);
        }
    }

    /// Passes an event to a coordinator, or keeps it while the coordinator waits for others.
    fn hear(&mut self, now: Time, rank: usize, event: Event) {
        let answers = matches!(event, Event::Tallied(_) | Event::Gathered(_) | Event::Decided(_));
        if event == Event::Woke && self.ranks[rank].sleeps != Some(now) {
            return;
        }
        if self.ranks[rank].blocked && !answers {
            self.ranks[rank].kept.push_back(event);
            return;
        }
        self.ranks[rank].blocked = false;
        let mut events = vec![event];
        while !events.is_empty() {
            for action in self.ranks[rank].machine.on_all(now, std::mem::take(&mut events)) {
                self.act(now, rank, action);
            }
            let here = &mut self.ranks[rank];
            if !here.blocked {
                events.extend(here.kept.drain(..));
            }
        }
    }

    fn act(&mut self, now: Time, rank: usize, action: Action) {
        let first = rank == 0;
        match action {
            Action::Sleep(until) => {
                self.ranks[rank].sleeps = until;
                if let Some(until) = until {
                    self.at(until, rank, Happens::Coordinator(Event::Woke));
                }
            }
            Action::Vote(cycle, ballot) => {
                self.found.votes += u64::from(first);
                self.found.sleeps += u64::from(first && ballot.sleep.is_some());
                self.ranks[rank].blocked = self.kind != PolicyKind::Nonblocking;
                self.votes[rank].push_back(ballot);
                for other in (0..self.ranks.len()).filter(|&other| other != rank) {
                    self.at(now, other, Happens::Coordinator(Event::Invited(cycle)));
                }
                if self.votes.iter().all(|votes| !votes.is_empty()) {
                    let ballots: Vec<_> = self.votes.iter_mut().filter_map(VecDeque::pop_front).collect();
                    // All ranks have the same cache, so every encoded vote can be decoded.
                    let tally = Tally::of(&ballots).unwrap_or_else(|| unreachable!("ballots about different caches"));
                    self.all(now + self.scenario.vote, &Event::Tallied(tally));
                }
            }
            Action::Report(report) => {
                self.found.reports += u64::from(first);
                self.ranks[rank].blocked = true;
                self.reports[rank].push_back(report);
                if self.reports.iter().all(|reports| !reports.is_empty()) {
                    let reports: Vec<_> = self.reports.iter_mut().filter_map(VecDeque::pop_front).collect();
                    self.at(now + self.scenario.tell, 0, Happens::Coordinator(Event::Gathered(reports)));
                }
            }
            Action::Decide(decision) => {
                self.found.decisions += 1;
                self.ranks[rank].blocked = true;
                self.all(now + self.scenario.tell, &Event::Decided(decision));
            }
            Action::Start(AgreedBucket { bytes, tensors }, _) => {
                let is_plan = tensors.iter().any(|Agreed { request, .. }| request.name == PLAN);
                self.begin(now, rank, 0, bytes, tensors.len(), is_plan);
            }
            Action::Refuse(..) | Action::Warn(_) | Action::AllJoined(_) => {}
        }
    }
}
