//! Horovod's method: in each cycle, ranks vote with a bit for each known tensor and report other tensors to the first
//! rank, which replies with what is ready everywhere.
//!
//! A. Sergeev, M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018, section 4; the
//! response cache and its bit vector as described by S. Pumma et al., "Alleviating Load Imbalance in Data Processing
//! for Large-Scale Deep Learning", section II. Unlike in Horovod, a cycle begins only when a rank has something new: a
//! rank that waits for others does not vote again until it is invited.
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use super::{Pace, Policy};
use crate::cache::Cache;
use crate::event::{Action, Agreed, Ballot, Decision, Event, Ready, Report, Tally, Time};
use crate::fuse::fuse;
use crate::request::Request;
use crate::table::Table;

/// User settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// From the start of one cycle to the start of the next, so that more tensors are ready; an invitation cuts it
    /// short.
    pub cycle_time: Time,
    /// Most bytes of a bucket with several tensors.
    pub threshold: u64,
    /// Capacity of the response cache, in tensors.
    pub capacity: usize,
    /// After this time, a tensor that some ranks have not submitted causes a warning.
    pub warn_after: Option<Time>,
    /// After this time, it fails.
    pub give_up_after: Option<Time>,
    /// All ranks sleep for the same time after every so many cycles; `None`: each by its own clock.
    pub sleep_every: Option<NonZeroU32>,
}

impl Settings {
    /// Time until the first warning or failure.
    fn patience(&self) -> Option<Time> {
        self.warn_after.into_iter().chain(self.give_up_after).min()
    }
}

/// How other ranks learn that a tensor is ready on this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum How {
    /// By the bit of its cache slot.
    Bit(usize),
    /// By the next report.
    News,
    /// The first rank knows already.
    Reported,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pending {
    request: Request,
    how: How,
    since: Time,
    number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Voting,
    /// Tensors that the vote has agreed on already.
    Reporting(Vec<Agreed>),
}

/// The state machine of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Negotiate {
    rank: u32,
    settings: Settings,
    phase: Phase,
    /// Votes so far, on this rank and on any.
    cycle: u64,
    invited: u64,
    pace: Pace,
    /// The user waits: the next cycle begins at once.
    awaited: bool,
    pending: BTreeMap<String, Pending>,
    numbers: u64,
    /// The number of the last one that the last vote could announce.
    announced: u64,
    cache: Cache,
    /// Cache slots that this rank wants dropped.
    drops: BTreeSet<usize>,
    joined: bool,
    joined_now: bool,
    /// According to the last vote, some rank had no more data.
    some_joined: bool,
    /// `Some` on the first rank.
    table: Option<Table>,
    /// The first rank has a refusal to announce.
    gives_up: bool,
    /// Time of the last submission.
    wakes: Option<Time>,
}

impl Negotiate {
    /// Rank `rank` of `ranks`.
    #[must_use]
    pub fn new(rank: u32, ranks: u32, settings: Settings) -> Negotiate {
        Negotiate {
            rank,
            phase: Phase::Idle,
            cycle: 0,
            invited: 0,
            pace: Pace::new(settings.cycle_time, settings.sleep_every),
            awaited: false,
            pending: BTreeMap::new(),
            numbers: 0,
            announced: 0,
            cache: Cache::new(settings.capacity),
            drops: BTreeSet::new(),
            joined: false,
            joined_now: false,
            some_joined: false,
            table: (rank == 0).then(|| Table::new((0..ranks).collect())),
            gives_up: false,
            wakes: None,
            settings,
        }
    }

    /// In messages, rank i has the name `called[i]`.
    #[must_use]
    pub fn calling(mut self, called: &[u32]) -> Negotiate {
        self.table = self.table.map(|_| Table::new(called.to_vec()));
        self
    }

    /// Names that have been submitted and have not begun.
    pub fn pending(&self) -> impl Iterator<Item = &str> {
        self.pending.keys().map(String::as_str)
    }

    fn submitted(&mut self, now: Time, mut requests: Vec<Request>, actions: &mut Vec<Action>) {
        let names: BTreeSet<&str> = requests.iter().map(|request| request.name.as_str()).collect();
        if names.len() < requests.len() || names.iter().any(|&name| self.pending.contains_key(name)) {
            let reason = "a tensor of this name is in flight on this rank; give each a name of its own, or wait for it";
            actions.extend(requests.into_iter().map(|request| Action::Refuse(request.name, reason.into())));
            return;
        }
        let together = if requests.len() > 1 { names.first().map(|&name| name.to_owned()) } else { None };
        for request in &mut requests {
            request.together.clone_from(&together);
        }
        // All by bits or none: they must be agreed on in one cycle.
        let place = |request: &Request| self.cache.place(&request.name).filter(|&p| self.cache.at(p) == Some(request));
        let places: Option<Vec<usize>> = requests.iter().map(place).collect();
        for (index, request) in requests.into_iter().enumerate() {
            let how = match &places {
                Some(places) => How::Bit(places[index]),
                None => {
                    // Other ranks may still vote for the old request.
                    let known = self.cache.place(&request.name);
                    self.drops.extend(known.filter(|&place| self.cache.at(place) != Some(&request)));
                    How::News
                }
            };
            self.numbers += 1;
            let pending = Pending { how, since: now, number: self.numbers, request };
            self.pending.insert(pending.request.name.clone(), pending);
        }
    }

    fn vote(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.cycle += 1;
        (self.awaited, self.phase) = (false, Phase::Voting);
        self.announced = self.numbers;
        self.pace.begins(now);
        let places = 0..self.cache.places();
        let by_bit = |place: usize| {
            let known = self.cache.at(place).and_then(|request| self.pending.get(&request.name));
            known.is_some_and(|pending| pending.how == How::Bit(place))
        };
        let ballot = Ballot {
            ready: places
                .clone()
                .map(|place| match (by_bit(place), self.joined) {
                    (true, _) => Ready::Yes,
                    (false, true) => Ready::Joined,
                    (false, false) => Ready::No,
                })
                .collect(),
            dropped: places.map(|place| self.drops.contains(&place) || self.needed_for(place)).collect(),
            news: self.joined_now || self.gives_up || self.pending.values().any(|pending| pending.how == How::News),
            joined: self.joined,
            joined_now: self.joined_now.then_some(self.rank),
            sleep: self.pace.left(),
        };
        self.joined_now = false;
        actions.push(Action::Vote(self.cycle, ballot));
    }

    /// This rank has joined and zeros are not allowed for the tensor in this slot: the first rank must tell all ranks.
    fn needed_for(&self, place: usize) -> bool {
        self.joined && self.cache.at(place).is_some_and(|request| !request.terms.can_do_without(self.rank))
    }

    fn tallied(&mut self, now: Time, tally: &Tally, actions: &mut Vec<Action>) {
        self.pace.counted(now, tally.sleep);
        self.some_joined = tally.some_joined;
        // Those of after this rank's vote have not been announced.
        self.drops.retain(|&place| !tally.dropped.get(place).is_some_and(|&dropped| dropped));
        for place in (0..tally.dropped.len()).filter(|&place| tally.dropped[place]) {
            if let Some(name) = self.cache.at(place).map(|request| request.name.clone()) {
                self.cache.drop(place);
                self.demote(&name);
            }
        }
        let mut agreed = Vec::new();
        for place in (0..tally.ready.len()).filter(|&place| tally.ready[place]) {
            if let Some(request) = self.cache.at(place).cloned() {
                self.cache.used(place);
                agreed.push(Agreed { request, own: Vec::new() });
            }
        }
        // Requests submitted before the last rank joined still run with zeros from the others, which report as joined.
        let joined = self.joined;
        self.joined &= !tally.joined;
        if tally.news {
            let mut news: Vec<&mut Pending> = self.pending.values_mut().filter(|p| p.how == How::News).collect();
            news.sort_unstable_by_key(|pending| pending.number);
            let requests = news.into_iter().map(|pending| {
                pending.how = How::Reported;
                pending.request.clone()
            });
            actions.push(Action::Report(Report { requests: requests.collect(), joined }));
            self.phase = Phase::Reporting(agreed);
        } else {
            self.begin(agreed, actions);
        }
        if tally.joined {
            actions.push(Action::AllJoined(tally.joined_now.unwrap_or(0)));
        }
    }

    fn decided(&mut self, decision: Decision, actions: &mut Vec<Action>) {
        let Phase::Reporting(mut agreed) = std::mem::replace(&mut self.phase, Phase::Idle) else { return };
        for (name, reason) in decision.refused {
            if self.pending.remove(&name).is_some() {
                actions.push(Action::Refuse(name, reason));
            }
        }
        for tensor in decision.agreed {
            self.pending.remove(&tensor.request.name);
            if let Some(evicted) = self.cache.insert(&tensor.request) {
                self.demote(&evicted);
            }
            // The slot holds something else now.
            self.cache.place(&tensor.request.name).map(|place| self.drops.remove(&place));
            agreed.push(tensor);
        }
        self.begin(agreed, actions);
    }

    fn begin(&mut self, agreed: Vec<Agreed>, actions: &mut Vec<Action>) {
        self.phase = Phase::Idle;
        for tensor in &agreed {
            self.pending.remove(&tensor.request.name);
        }
        let begin = |bucket| Action::Start(bucket, self.some_joined);
        actions.extend(fuse(agreed, self.settings.threshold).into_iter().map(begin));
    }

    /// Whether there is something that no vote has announced yet.
    ///
    /// A report also announces what came after its vote. A vote for that would wait in vain for ranks that leave.
    fn unannounced(&self) -> bool {
        let fresh = |pending: &Pending| match pending.how {
            How::Bit(_) => pending.number > self.announced,
            How::News => true,
            How::Reported => false,
        };
        self.joined_now || self.gives_up || !self.drops.is_empty() || self.pending.values().any(fresh)
    }

    /// The cache has dropped a tensor that waits by its bit: it must be reported instead, with its whole group.
    fn demote(&mut self, name: &str) {
        let Some(pending) = self.pending.get(name).filter(|pending| matches!(pending.how, How::Bit(_))) else { return };
        let together = pending.request.together.clone();
        let also = |pending: &Pending| together.is_some() && pending.request.together == together;
        for (_, pending) in self.pending.iter_mut().filter(|(known, pending)| *known == name || also(pending)) {
            pending.how = How::News;
        }
    }

    /// Reports tensors that have waited too long.
    fn look_after(&mut self, now: Time, actions: &mut Vec<Action>) {
        let Settings { warn_after, give_up_after, .. } = self.settings;
        if let Some(after) = self.settings.patience() {
            // A bit does not say which rank lacks it; the first rank's table does.
            let late = self.pending.values().filter(|pending| now.saturating_sub(pending.since) >= after);
            let late = late.filter_map(|pending| match pending.how {
                How::Bit(place) => Some((place, pending.request.name.clone())),
                _ => None,
            });
            for (place, name) in late.collect::<Vec<_>>() {
                self.drops.insert(place);
                self.demote(&name);
            }
        }
        let Some(table) = &mut self.table else { return };
        if let Some(after) = warn_after {
            actions.extend(table.stalled(now, after).into_iter().map(Action::Warn));
        }
        if !self.gives_up && table.due(None, give_up_after).is_some_and(|due| due <= now) {
            self.gives_up = true;
        }
    }

    /// Votes if it is time, otherwise requests a wake-up.
    fn go_on(&mut self, now: Time, actions: &mut Vec<Action>) {
        let mut due = None;
        if self.phase == Phase::Idle {
            let next = if self.awaited { now } else { self.pace.next(now) };
            let fresh = self.unannounced();
            if self.invited > self.cycle || (fresh && next <= now) {
                self.vote(now, actions);
            } else if fresh {
                due = Some(next);
            }
        }
        let Settings { warn_after, give_up_after, .. } = self.settings;
        if let Some(after) = self.settings.patience() {
            let bits = self.pending.values().filter(|pending| matches!(pending.how, How::Bit(_)));
            due = due.into_iter().chain(bits.map(|pending| pending.since + after)).min();
        }
        if let Some(table) = &self.table {
            let give_up = give_up_after.filter(|_| !self.gives_up);
            due = due.into_iter().chain(table.due(warn_after, give_up)).min();
        }
        if due != self.wakes {
            self.wakes = due;
            actions.push(Action::Sleep(due));
        }
    }
}

impl Negotiate {
    fn take(&mut self, now: Time, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Submitted(requests) => self.submitted(now, requests, actions),
            Event::Awaited => self.awaited = true,
            Event::Joined => (self.joined, self.joined_now) = (true, true),
            Event::Invited(cycle) => self.invited = self.invited.max(cycle),
            Event::Woke => self.wakes = None,
            Event::Tallied(tally) => self.tallied(now, &tally, actions),
            Event::Gathered(reports) => {
                if let Some(table) = &mut self.table {
                    let mut decision = table.take(now, reports);
                    if let Some(after) = self.settings.give_up_after.filter(|_| self.gives_up) {
                        decision.refused.extend(table.give_up(now, after));
                        self.gives_up = false;
                    }
                    actions.push(Action::Decide(decision));
                }
            }
            Event::Decided(decision) => self.decided(decision, actions),
        }
    }
}

impl Policy for Negotiate {
    fn on_all(&mut self, now: Time, events: impl IntoIterator<Item = Event>) -> Vec<Action> {
        let mut actions = Vec::new();
        for event in events {
            self.take(now, event, &mut actions);
        }
        self.look_after(now, &mut actions);
        self.go_on(now, &mut actions);
        actions
    }
}
