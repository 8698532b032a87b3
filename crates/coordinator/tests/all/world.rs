//! Ranks that communicate through the simplest possible driver, in an order drawn from a seed.
use std::collections::VecDeque;

use paceline_coordinator::{
    Action, AgreedBucket, Ballot, Event, Negotiate, Policy, Report, Request, Settings, Stall, Tally, Terms, Time,
};

pub fn request(name: &str) -> Request {
    let terms = Terms {
        call: "allreduce".into(),
        op: "sum".into(),
        dtype: "float32".into(),
        device: "cpu".into(),
        shape: vec![2],
        root: None,
        scale: [1f64.to_bits(); 2],
        bytes: 100,
        fusible: true,
        neutral: true,
    };
    Request { name: name.into(), terms, own: Vec::new(), together: None, patient: false }
}

/// Operations between ranks: each rank's contributions, in the order in which it began them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub machines: Vec<Negotiate>,
    votes_in: Vec<VecDeque<Ballot>>,
    reports_in: Vec<VecDeque<Report>>,
    /// Events on their way to a rank, in order.
    pub inboxes: Vec<VecDeque<Event>>,
    pub now: Time,
    pub asleep: Vec<Option<Time>>,
    pub begun: Vec<Vec<AgreedBucket>>,
    pub refused: Vec<Vec<(String, String)>>,
    pub warned: Vec<Stall>,
    pub all_joined: Vec<Vec<u32>>,
    pub votes: u64,
    /// The highest cycle to which others have invited each rank.
    invited: Vec<u64>,
    /// Ranks join when they have nothing left to submit.
    pub joins: bool,
}

impl World {
    pub fn new(ranks: u32, settings: &Settings) -> World {
        let n = ranks as usize;
        World {
            machines: (0..ranks).map(|rank| Negotiate::new(rank, ranks, settings.clone())).collect(),
            votes_in: vec![VecDeque::new(); n],
            reports_in: vec![VecDeque::new(); n],
            inboxes: vec![VecDeque::new(); n],
            now: 0,
            asleep: vec![None; n],
            begun: vec![Vec::new(); n],
            refused: vec![Vec::new(); n],
            warned: Vec::new(),
            all_joined: vec![Vec::new(); n],
            votes: 0,
            invited: vec![0; n],
            joins: false,
        }
    }

    pub fn ranks(&self) -> usize {
        self.machines.len()
    }

    pub fn submit(&mut self, rank: usize, requests: Vec<Request>) {
        self.tell(rank, Event::Submitted(requests));
    }

    /// Delivers an event to a rank.
    pub fn tell(&mut self, rank: usize, event: Event) {
        self.tell_all(rank, [event]);
    }

    /// Delivers several together.
    pub fn tell_all(&mut self, rank: usize, events: impl IntoIterator<Item = Event>) {
        let events: Vec<Event> = events.into_iter().collect();
        for event in &events {
            if let Event::Invited(cycle) = event {
                self.invited[rank] = self.invited[rank].max(*cycle);
            }
        }
        for action in self.machines[rank].on_all(self.now, events) {
            match action {
                Action::Sleep(until) => {
                    assert!(until.is_none_or(|until| until > self.now), "rank {rank} wants to wake in the past");
                    self.asleep[rank] = until;
                }
                Action::Vote(cycle, ballot) => {
                    self.votes += 1;
                    // Others may have called their last operation, and leave while this rank waits for their votes.
                    let waits = ballot.joined || ballot.news || self.machines[rank].pending().next().is_some();
                    assert!(waits || self.invited[rank] >= cycle, "rank {rank} votes, and has nothing to announce");
                    self.votes_in[rank].push_back(ballot);
                    for other in (0..self.ranks()).filter(|&other| other != rank) {
                        self.inboxes[other].push_back(Event::Invited(cycle));
                    }
                    if self.votes_in.iter().all(|votes| !votes.is_empty()) {
                        let ballots: Vec<Ballot> = self.votes_in.iter_mut().filter_map(VecDeque::pop_front).collect();
                        let tally = Tally::of(&ballots).expect("caches differ");
                        self.inboxes.iter_mut().for_each(|inbox| inbox.push_back(Event::Tallied(tally.clone())));
                    }
                }
                Action::Report(report) => {
                    self.reports_in[rank].push_back(report);
                    if self.reports_in.iter().all(|reports| !reports.is_empty()) {
                        let reports = self.reports_in.iter_mut().filter_map(VecDeque::pop_front).collect();
                        self.inboxes[0].push_back(Event::Gathered(reports));
                    }
                }
                Action::Decide(decision) => {
                    assert_eq!(rank, 0);
                    let all = |inbox: &mut VecDeque<Event>| inbox.push_back(Event::Decided(decision.clone()));
                    self.inboxes.iter_mut().for_each(all);
                }
                Action::Start(bucket, _) => self.begun[rank].push(bucket),
                Action::Refuse(name, reason) => self.refused[rank].push((name, reason)),
                Action::Warn(stall) => self.warned.push(stall),
                Action::AllJoined(last) => self.all_joined[rank].push(last),
            }
        }
    }

    /// Delivers the next event in flight to a rank.
    pub fn deliver(&mut self, rank: usize) -> bool {
        let Some(event) = self.inboxes[rank].pop_front() else { return false };
        self.tell(rank, event);
        true
    }

    /// Delivers all events in flight to a rank together.
    pub fn deliver_all(&mut self, rank: usize) -> bool {
        let events = std::mem::take(&mut self.inboxes[rank]);
        let some = !events.is_empty();
        self.tell_all(rank, events);
        some
    }

    /// Wakes the next sleeping rank, unless that is after `limit`.
    pub fn wake(&mut self, limit: Time) -> bool {
        let next = (0..self.ranks()).filter_map(|rank| Some((self.asleep[rank]?, rank))).min();
        let Some((until, rank)) = next.filter(|(until, _)| *until <= limit) else { return false };
        self.now = self.now.max(until);
        self.asleep[rank] = None;
        self.tell(rank, Event::Woke);
        true
    }

    /// Runs until only the passing of much time could cause events.
    pub fn settle(&mut self) {
        let limit = self.now + 50;
        self.wait_for(limit);
    }

    /// Runs until this time.
    pub fn wait(&mut self, until: Time) {
        self.wait_for(until);
        self.now = self.now.max(until);
    }

    fn wait_for(&mut self, limit: Time) {
        for _ in 0..1_000_000 {
            let moved = (0..self.ranks()).any(|rank| self.deliver(rank));
            if !moved && !self.wake(limit) {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// Every rank submits its queue; the order of ranks is random.
    pub fn run(&mut self, queues: &mut [VecDeque<Vec<String>>], seed: u64) {
        let mut state = seed | 1;
        let mut joined = vec![!self.joins; self.ranks()];
        for _ in 0..1_000_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let rank = (state >> 8) as usize % self.ranks();
            if state & 0xf00_0000 == 0 {
                self.tell(rank, Event::Awaited);
            }
            let moved = match state % 3 {
                0 => match queues[rank].pop_front() {
                    Some(names) => {
                        self.submit(rank, names.iter().map(|name| request(name)).collect());
                        true
                    }
                    None if !joined[rank] => {
                        joined[rank] = true;
                        self.tell(rank, Event::Joined);
                        true
                    }
                    None => false,
                },
                1 => self.deliver(rank),
                _ => state & 64 == 0 && self.wake(Time::MAX),
            };
            let rest = queues.iter().all(VecDeque::is_empty) && joined.iter().all(|&joined| joined);
            if !moved && rest && self.inboxes.iter().all(VecDeque::is_empty) && !self.wake(Time::MAX) {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// Nothing that was submitted is left.
    pub fn all_done(&self) -> bool {
        self.machines.iter().all(|machine| machine.pending().next().is_none())
    }
}
