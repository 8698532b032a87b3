//! What a coordinator is told and what it wants done.
use serde::{Deserialize, Serialize};

use crate::request::Request;

/// Nanoseconds since some moment.
pub type Time = u64;

/// What has happened on this rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The user asks for operations; several begin together or not at all.
    Submitted(Vec<Request>),
    /// The user waits for what was asked for: there is nothing to be gained by waiting for more.
    Awaited,
    /// The user has no more data: from now on this rank takes part with zeros.
    Joined,
    /// Another rank has voted in this cycle (they are counted from 1).
    Invited(u64),
    /// It is the time that was asked for, or later.
    Woke,
    /// All ranks have voted.
    Tallied(Tally),
    /// On the first rank: all ranks have reported; in rank order.
    Gathered(Vec<Report>),
    /// The first rank has decided.
    Decided(Decision),
}

/// What is to be done; in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Come back at this time with [`Event::Woke`]; replaces an earlier one. None: no need to.
    Sleep(Option<Time>),
    /// Vote in this cycle; tell the other ranks that it has begun.
    Vote(u64, Ballot),
    /// Report to the first rank.
    Report(Report),
    /// Tell all ranks, this one as well.
    Decide(Decision),
    /// Begin an operation. All ranks begin the same in the same order. Whether some rank had no more data then.
    Start(AgreedBucket, bool),
    /// The operation fails for this reason.
    Refuse(String, String),
    /// For people: a tensor waits for ranks.
    Warn(Stall),
    /// All ranks have joined, this one last.
    AllJoined(u32),
}

/// Whether a tensor is ready on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ready {
    /// It is not.
    No = 0,
    /// It is.
    Yes = 1,
    /// The rank has joined: it is ready for whatever others want.
    Joined = 2,
}

/// A rank's part of a cycle's agreement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ballot {
    /// By place in the cache.
    pub ready: Vec<Ready>,
    /// By place: this rank wants it forgotten.
    pub dropped: Vec<bool>,
    /// There is something to report.
    pub news: bool,
    /// This rank has no more data.
    pub joined: bool,
    /// This rank, if it joined since the last vote.
    pub joined_now: Option<u32>,
    /// Microseconds that it would sleep; none: that is its own affair.
    pub sleep: Option<u32>,
}

/// What all ballots come to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tally {
    /// Ready on all ranks, and wanted by one.
    pub ready: Vec<bool>,
    /// To be forgotten by all.
    pub dropped: Vec<bool>,
    /// Somebody has something to report.
    pub news: bool,
    /// Nobody has more data.
    pub joined: bool,
    /// Some rank has no more data.
    pub some_joined: bool,
    /// The highest of the ranks that joined since the last vote.
    pub joined_now: Option<u32>,
    /// The shortest sleep of a rank, in microseconds.
    pub sleep: Option<u32>,
}

impl Tally {
    /// What these ballots come to, by the numbers that travel; none unless all are about the same cache.
    #[must_use]
    pub fn of(ballots: &[Ballot]) -> Option<Tally> {
        let encoded: Vec<Vec<i32>> = ballots.iter().map(Ballot::encode).collect();
        let length = encoded.first()?.len();
        let least = |at: usize| encoded.iter().map(|numbers| numbers[at]).min().unwrap_or(0);
        if encoded.iter().any(|numbers| numbers.len() != length) {
            return None;
        }
        Tally::decode(&(0..length).map(least).collect::<Vec<i32>>())
    }
}

impl Ballot {
    /// As numbers of which an all-reduce by minimum makes the tally.
    #[must_use]
    pub fn encode(&self) -> Vec<i32> {
        let mut numbers = Vec::with_capacity(5 + 2 * self.ready.len());
        numbers.push(i32::from(!self.news));
        numbers.push(i32::from(self.joined));
        numbers.push(self.joined_now.map_or(0, |rank| -1 - i32::try_from(rank).unwrap_or(i32::MAX - 1)));
        // The largest number of all stands for none.
        numbers.push(self.sleep.map_or(i32::MAX, |sleep| i32::try_from(sleep).unwrap_or(i32::MAX - 1)));
        numbers.push(i32::from(!self.joined));
        numbers.extend(self.ready.iter().map(|&ready| ready as i32));
        numbers.extend(self.dropped.iter().map(|&dropped| i32::from(!dropped)));
        numbers
    }
}

impl Tally {
    /// What the minimum of all ranks' numbers says; none if they are no ballot's.
    #[must_use]
    pub fn decode(numbers: &[i32]) -> Option<Tally> {
        let (head, places) = numbers.split_at_checked(5)?;
        if !places.len().is_multiple_of(2) {
            return None;
        }
        let (ready, kept) = places.split_at(places.len() / 2);
        Some(Tally {
            ready: ready.iter().map(|&ready| ready == 1).collect(),
            dropped: kept.iter().map(|&kept| kept == 0).collect(),
            news: head[0] == 0,
            joined: head[1] == 1,
            some_joined: head[4] == 0,
            joined_now: (head[2] < 0).then(|| (-1 - head[2]).cast_unsigned()),
            sleep: (head[3] != i32::MAX).then(|| head[3].max(0).cast_unsigned()),
        })
    }
}

/// What a rank tells the first one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Report {
    /// What it asks for and no bit says, in its order.
    pub requests: Vec<Request>,
    /// It has no more data.
    pub joined: bool,
}

/// What the first rank tells all.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Decision {
    /// Ready on all ranks, in the order in which they became so.
    pub agreed: Vec<Agreed>,
    /// Names that cannot be, and why.
    pub refused: Vec<(String, String)>,
}

/// A tensor that is ready on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Agreed {
    /// As a rank asked for it; `own` is empty.
    pub request: Request,
    /// What differs between ranks, in rank order; empty where nothing may. A joined rank's is empty.
    pub own: Vec<Vec<u64>>,
}

/// Tensors that are one operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgreedBucket {
    /// Of all payloads.
    pub bytes: u64,
    /// In the order in which they lie.
    pub tensors: Vec<Agreed>,
}

/// Tensors that some ranks have asked for and others have not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stall {
    /// Their names, in alphabetical order; at least one.
    pub names: Vec<String>,
    /// Since the first of them was asked for.
    pub waited: Time,
    /// Ranks that have, as people call them.
    pub have: Vec<u32>,
    /// Ranks that have not.
    pub lack: Vec<u32>,
}
