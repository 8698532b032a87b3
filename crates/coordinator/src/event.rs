//! The events that a coordinator receives and the actions that it requests.
use serde::{Deserialize, Serialize};

use crate::request::Request;

/// Nanoseconds since an arbitrary moment.
pub type Time = u64;

/// An event on this rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The user submits operations; several begin together or not at all.
    Submitted(Vec<Request>),
    /// The user waits for the submitted operations, so there is no point in waiting for more.
    Awaited,
    /// The user has no more data: from now on this rank contributes zeros.
    Joined,
    /// Another rank has voted in this cycle (counted from 1).
    Invited(u64),
    /// The requested wake-up time has come.
    Woke,
    /// All ranks have voted.
    Tallied(Tally),
    /// On the first rank: all ranks have reported; in rank order.
    Gathered(Vec<Report>),
    /// The first rank's decision has arrived.
    Decided(Decision),
}

/// An action for the driver; actions are carried out in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Wake up at this time with [`Event::Woke`]; replaces an earlier request. `None`: no wake-up needed.
    Sleep(Option<Time>),
    /// Vote in this cycle, and announce it to the other ranks.
    Vote(u64, Ballot),
    /// Report to the first rank.
    Report(Report),
    /// Send to all ranks, including this one.
    Decide(Decision),
    /// Begin an operation. All ranks begin the same ones in the same order. The flag: some rank had no more data.
    Start(AgreedBucket, bool),
    /// Fail the operation for this reason.
    Refuse(String, String),
    /// Warn the user that a tensor waits for ranks.
    Warn(Stall),
    /// All ranks have joined; this is the last one to do so.
    AllJoined(u32),
}

/// Whether a tensor is ready on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ready {
    /// Not ready.
    No = 0,
    /// Ready.
    Yes = 1,
    /// The rank has joined, so it is ready for anything.
    Joined = 2,
}

/// A rank's vote in a cycle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ballot {
    /// By cache slot.
    pub ready: Vec<Ready>,
    /// By cache slot: this rank wants the tensor dropped.
    pub dropped: Vec<bool>,
    /// This rank has something to report.
    pub news: bool,
    /// This rank has no more data.
    pub joined: bool,
    /// This rank's number, if it joined since the last vote.
    pub joined_now: Option<u32>,
    /// Microseconds that it would sleep; `None`: ranks sleep independently.
    pub sleep: Option<u32>,
}

/// The combined result of all ballots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tally {
    /// Slots ready on all ranks, and wanted by at least one.
    pub ready: Vec<bool>,
    /// Slots that all ranks must drop.
    pub dropped: Vec<bool>,
    /// Some rank has something to report.
    pub news: bool,
    /// No rank has more data.
    pub joined: bool,
    /// Some rank has no more data.
    pub some_joined: bool,
    /// The highest rank that joined since the last vote.
    pub joined_now: Option<u32>,
    /// The shortest sleep of any rank, in microseconds.
    pub sleep: Option<u32>,
}

impl Tally {
    /// The tally of these ballots, by the numbers that are sent; `None` unless all are about the same cache.
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
    /// Encodes the ballot as numbers; an all-reduce by minimum turns them into the tally.
    #[must_use]
    pub fn encode(&self) -> Vec<i32> {
        let mut numbers = Vec::with_capacity(5 + 2 * self.ready.len());
        numbers.push(i32::from(!self.news));
        numbers.push(i32::from(self.joined));
        numbers.push(self.joined_now.map_or(0, |rank| -1 - i32::try_from(rank).unwrap_or(i32::MAX - 1)));
        // The largest number stands for none.
        numbers.push(self.sleep.map_or(i32::MAX, |sleep| i32::try_from(sleep).unwrap_or(i32::MAX - 1)));
        numbers.push(i32::from(!self.joined));
        numbers.extend(self.ready.iter().map(|&ready| ready as i32));
        numbers.extend(self.dropped.iter().map(|&dropped| i32::from(!dropped)));
        numbers
    }
}

impl Tally {
    /// Decodes the minimum of all ranks' numbers; `None` if they are invalid.
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

/// A rank's report to the first rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Report {
    /// Its requests that have no cache slot, in its order.
    pub requests: Vec<Request>,
    /// This rank has no more data.
    pub joined: bool,
}

/// The first rank's decision for all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Decision {
    /// Tensors ready on all ranks, in the order in which they became ready.
    pub agreed: Vec<Agreed>,
    /// Names of invalid requests, and why.
    pub refused: Vec<(String, String)>,
}

/// A tensor that is ready on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Agreed {
    /// The request of one rank, with an empty `own`.
    pub request: Request,
    /// The rank-specific parts, in rank order; empty if there are none. A joined rank's is empty.
    pub own: Vec<Vec<u64>>,
}

/// Tensors that are reduced in one operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgreedBucket {
    /// Bytes of all payloads.
    pub bytes: u64,
    /// In their order in memory.
    pub tensors: Vec<Agreed>,
}

/// Tensors that only some ranks have submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stall {
    /// Their names, in alphabetical order; at least one.
    pub names: Vec<String>,
    /// Time since the first submission.
    pub waited: Time,
    /// Ranks that have submitted, by their display names.
    pub have: Vec<u32>,
    /// Ranks that have not.
    pub lack: Vec<u32>,
}
