//! A communicator as its operations see it, and its messages as the timeline shows them.
use paceline_transport::error::Naming;
use paceline_transport::header::EVERYBODY;

use super::lane::{ALL, Moved};
use crate::timeline::{self, Party, Timeline};

/// Properties of a group that are constant during its lifetime.
pub(super) struct GroupView<'a> {
    pub group: u32,
    /// Ranks of the job, by worker role.
    pub ranks: &'a [u32],
    /// How messages call its operations.
    pub naming: &'a Naming,
}

impl GroupView<'_> {
    /// The rank of the job that plays a role. Servers and switches are spread over the workers.
    pub fn host(&self, role: u32) -> u32 {
        self.ranks[role as usize % self.ranks.len()]
    }
}

/// A role as the timeline shows it.
fn party(role: u32, ranks: &[u32]) -> Party {
    if role == u32::from(EVERYBODY) {
        return Party::Workers;
    }
    ranks.get(role as usize).map_or_else(|| Party::Helper(role - ranks.len() as u32), |&rank| Party::Worker(rank))
}

/// A message as the timeline shows it.
pub(super) struct Shown<'a> {
    pub out: bool,
    pub from: u32,
    pub to: u32,
    pub ranks: &'a [u32],
    pub number: u64,
    pub bytes: u64,
}

impl Shown<'_> {
    /// The start time of a message, if this is its first fragment and a timeline is recorded.
    pub fn begins(timeline: &Timeline, offset: u64) -> Option<u64> {
        (timeline.on() && offset == 0).then(timeline::now)
    }

    /// Records that the fragment has moved.
    pub fn moved(self, moved: &mut Moved, peer: u32, began: Option<u64>, timeline: &Timeline) {
        if let Some(began) = began {
            moved.begin(peer, began);
        }
        if moved.get(peer) == ALL
            && let Some(since) = moved.since(peer)
        {
            let between = (party(self.from, self.ranks), party(self.to, self.ranks));
            timeline.message(self.out, between, self.number, self.bytes, since);
        }
    }
}
