//! Progress of an operation: its definition.
//!
//! An operation that moves does not fail, however long it takes. Two things are evidence that it moves:
//!
//! - **Its own fragments**, whole or in part, are sent or received: on this rank, or on another rank of its group. A rank
//!   at the root of a tree sees nothing of its own while its leaves are still sending. Operations that were submitted
//!   here before it count, too, because it may wait behind them; and so does whatever keeps a rank busy that has not
//!   called it yet. All of these end.
//! - **Something ahead of it** moves on a connection that it waits for: bytes of other operations, which its own follow.
//!   That is evidence only as long as the rank at the other end has called the operation: otherwise nothing of it follows,
//!   and other operations may go on for ever. For the same reason it counts for nothing if a rank is silent. What a rank
//!   sends to itself, as a worker to the server that it also is, is evidence of this kind.
//!
//! Each rank looks at its own operations ([`Progress`]) and tells the others: when they ask, and by itself about what
//! takes longer than a second, because on a slow link questions wait behind data. It tells what has moved there, never
//! what others have told it: else two ranks could keep up each other's hope.
use std::collections::HashMap;

use paceline_os::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// Reports of an operation that are older than this are dropped.
const REMEMBERED: Duration = Duration::from_secs(120);

/// Names an operation among those of a communicator, alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationId {
    /// By its number.
    Collective(u32),
    /// By the ranks between which it goes, its tag, and how many the sender has sent there before it.
    Transfer { from: u32, to: u32, tag: u32, number: u32 },
}

/// How far an operation is on one rank. Only changes matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Of its own: fragments and bytes.
    pub own: u64,
    /// How often something else was seen to move on the connections that it waits for, or its own fragments within this
    /// rank.
    pub ahead: u64,
}

/// When an operation last moved.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    pub progress: Progress,
    pub own: Instant,
    pub ahead: Instant,
}

impl Moved {
    pub fn new(now: Instant) -> Moved {
        Moved { progress: Progress::default(), own: now, ahead: now }
    }

    /// Takes note of the progress now; returns whether the operation itself has moved.
    pub fn update(&mut self, progress: Progress, now: Instant) -> bool {
        let moved = self.progress.own != progress.own;
        if moved {
            self.own = now;
        }
        if self.progress.ahead != progress.ahead {
            self.ahead = now;
        }
        self.progress = progress;
        moved
    }

    /// When anything last moved.
    pub fn any(&self) -> Instant {
        self.own.max(self.ahead)
    }
}

/// Reports of other ranks about their operations.
#[derive(Default)]
pub struct Reports {
    /// By rank, communicator and operation: its progress, when it was reported last, and when it was last seen to change.
    known: HashMap<(u32, u32, OperationId), (Progress, Instant, Changed)>,
    /// By rank: when any of its operations was last seen to change.
    latest: HashMap<u32, Instant>,
}

/// When own fragments, and anything ahead, were last seen to move.
type Changed = (Option<Instant>, Option<Instant>);

impl Reports {
    pub fn note(&mut self, rank: u32, group: u32, id: OperationId, progress: Progress, now: Instant) {
        let known = self.known.entry((rank, group, id)).or_insert((progress, now, (None, None)));
        let (before, _, mut changed) = *known;
        if before.own != progress.own {
            changed.0 = Some(now);
        }
        if before.ahead != progress.ahead {
            changed.1 = Some(now);
        }
        if before != progress {
            self.latest.insert(rank, now);
        }
        *known = (progress, now, changed);
    }

    /// When this operation was last seen to move on that rank: fragments of its own, and anything ahead of it.
    pub fn of(&self, rank: u32, group: u32, id: OperationId) -> Changed {
        self.known.get(&(rank, group, id)).map_or((None, None), |(_, _, changed)| *changed)
    }

    /// When any operation was last seen to move on that rank, one that takes so long that it was reported twice.
    pub fn latest(&self, rank: u32) -> Option<Instant> {
        self.latest.get(&rank).copied()
    }

    pub fn forget_old(&mut self, now: Instant) {
        self.known.retain(|_, (_, heard, _)| now - *heard < REMEMBERED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_of_the_same_operation_is_evidence() {
        let (mut reports, begin) = (Reports::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let progress = |own, ahead| Progress { own, ahead };
        let (one, other) = (OperationId::Collective(7), OperationId::Collective(8));
        reports.note(1, 0, one, progress(5, 5), at(1));
        assert_eq!((reports.of(1, 0, one), reports.latest(1)), ((None, None), None));
        // Another operation that has come as far: each may be over in a moment, and the next follows for ever.
        reports.note(1, 0, other, progress(6, 6), at(2));
        reports.note(1, 0, one, progress(5, 5), at(3));
        assert_eq!((reports.of(1, 0, one), reports.latest(1)), ((None, None), None));
        reports.note(1, 0, one, progress(5, 6), at(4));
        assert_eq!((reports.of(1, 0, one), reports.latest(1)), ((None, Some(at(4))), Some(at(4))));
        reports.note(1, 0, one, progress(6, 6), at(5));
        assert_eq!((reports.of(1, 0, one), reports.latest(1)), ((Some(at(5)), Some(at(4))), Some(at(5))));
        assert_eq!(reports.of(2, 0, one), (None, None));
        reports.forget_old(at(124));
        assert_eq!(reports.of(1, 0, one), (Some(at(5)), Some(at(4))));
        reports.forget_old(at(125));
        assert_eq!(reports.of(1, 0, one), (None, None));
    }

    #[test]
    fn what_moves_here_is_told_apart_from_what_moves_ahead() {
        let begin = Instant::now();
        let later = begin + Duration::from_secs(1);
        let mut moved = Moved::new(begin);
        assert!(!moved.update(Progress { own: 0, ahead: 1 }, later));
        assert_eq!((moved.own, moved.ahead, moved.any()), (begin, later, later));
        assert!(moved.update(Progress { own: 1, ahead: 1 }, later));
        assert_eq!(moved.own, later);
    }
}
