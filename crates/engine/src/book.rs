//! What callers, the thread that drives and the monitor share: operations not yet begun, and a ledger of those in flight.
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use paceline_executor::Begin;
use paceline_executor::handle::Handle;
use paceline_transport::error::RunError;
use paceline_transport::tag::Signature;

/// Past operations that a rank remembers, to tell others what it called.
const REMEMBERED: usize = 512;

/// For the executor, in the order of the calls.
pub(super) enum Command {
    Begin(u32, Begin),
    Group {
        id: u32,
        ranks: Vec<u32>,
        me: u32,
    },
    /// A group of the same ranks takes over what the library underneath has for it.
    Inherit {
        from: u32,
        to: u32,
    },
    Remove(u32),
}

/// An operation in flight.
pub(super) struct Waiting {
    /// None: a transfer.
    pub seq: Option<u32>,
    pub signature: Signature,
    /// The user's name of the tensors.
    pub label: String,
    /// Of a transfer, the rank of the job that it waits for.
    pub peer: Option<u32>,
    pub timeout: Duration,
    pub handle: Arc<Handle>,
    /// When it last moved, and how far it was.
    pub moved: (Instant, u64),
    pub asked: Option<Instant>,
    pub reported: Option<Duration>,
    /// What others told of it, by rank of the job.
    pub answers: HashMap<u32, Answer>,
}

impl Waiting {
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
    /// It has not called it; it has called so many of the communicator's, and this is what it waits in elsewhere.
    Later(u32, Option<String>),
    /// It waits, too; how it describes it, and the digest of its plan.
    Live(String, u32),
    /// It is over there; likewise.
    Past(String, u32),
}

/// A communicator's operations.
pub(super) struct GroupBook {
    pub ranks: Vec<u32>,
    pub name: String,
    pub next: u32,
    pub live: VecDeque<Waiting>,
    pub recent: VecDeque<(u32, Signature)>,
    pub failed: Option<RunError>,
}

impl GroupBook {
    pub fn new(name: String, ranks: Vec<u32>) -> GroupBook {
        GroupBook { ranks, name, next: 0, live: VecDeque::new(), recent: VecDeque::new(), failed: None }
    }

    /// What this rank knows of an operation.
    pub fn answer(&self, seq: u32) -> Answer {
        if seq >= self.next {
            return Answer::Later(self.next, None);
        }
        if let Some(live) = self.live.iter().find(|w| w.seq == Some(seq)) {
            return Answer::Live(live.signature.describe(), live.signature.plan);
        }
        match self.recent.iter().find(|(s, _)| *s == seq) {
            Some((_, signature)) => Answer::Past(signature.describe(), signature.plan),
            None => Answer::Past(String::new(), 0),
        }
    }

    /// An operation is over.
    pub fn complete(&mut self, seq: Option<u32>, handle: &Arc<Handle>) {
        let same = |w: &Waiting| Arc::ptr_eq(&w.handle, handle);
        let Some(index) = self.live.iter().position(same) else { return };
        let Some(waiting) = self.live.remove(index) else { return };
        if let Some(seq) = seq {
            if self.recent.len() == REMEMBERED {
                self.recent.pop_front();
            }
            self.recent.push_back((seq, waiting.signature));
        }
    }

    /// The oldest operation in flight, for a message.
    pub fn oldest(&self) -> Option<&Waiting> {
        self.live.front()
    }
}

/// Everything that is shared under one lock, which is held for moments only.
#[derive(Default)]
pub(super) struct Book {
    pub inbox: Vec<Command>,
    pub groups: HashMap<u32, GroupBook>,
    /// Failures for the thread that drives: group, error.
    pub alarms: Vec<(u32, RunError)>,
    /// Some group has failed.
    pub troubled: bool,
}

impl Book {
    /// Marks a group as failed; whether it was not yet.
    pub fn fail(&mut self, group: u32, error: &RunError) -> bool {
        let Some(book) = self.groups.get_mut(&group) else { return false };
        if book.failed.is_some() {
            return false;
        }
        book.failed = Some(error.clone());
        self.troubled = true;
        self.alarms.push((group, error.clone()));
        true
    }

    /// How far this rank is with an operation of a group, and the error that ended the group. To a rank that waits for
    /// one not yet called, it tells what it waits in elsewhere with that rank: they may have called different things.
    pub fn answer(&self, group: u32, seq: u32, asker: u32) -> (Answer, Option<RunError>) {
        let (answer, failed) = match self.groups.get(&group) {
            Some(book) => (book.answer(seq), book.failed.clone()),
            None => (Answer::Later(0, None), None),
        };
        let Answer::Later(called, _) = answer else { return (answer, failed) };
        let elsewhere = self.groups.iter().filter(|(id, book)| **id != group && book.ranks.contains(&asker));
        let waits = elsewhere.filter_map(|(_, book)| book.oldest()).find(|waiting| waiting.seq.is_some());
        (Answer::Later(called, waits.map(Waiting::describe)), failed)
    }

    pub fn in_flight(&self) -> bool {
        self.groups.values().any(|group| !group.live.is_empty())
    }
}
