//! The end of the start: a rank goes on when every rank is connected to all others.
//!
//! Otherwise a rank whose own connections stand would wait in an operation, within its limit, for ranks that still connect
//! to each other, within the limit of the start; and would blame one that has not begun.
use std::collections::BTreeSet;

use paceline_os::sync::{Condvar, Mutex};
use paceline_os::time::Instant;
use paceline_transport::error::{Result, RunError};
use paceline_transport::waiting::{Reports, START_TIMEOUT};

use super::peers::{Peer, describe};

/// Which ranks are not connected to all others yet.
pub(super) struct Joining {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    missing: BTreeSet<u32>,
    /// Why one of them never will be.
    failed: Option<String>,
}

impl Joining {
    /// Waits for these ranks.
    pub fn new(others: impl Iterator<Item = u32>) -> Joining {
        Joining { state: Mutex::new(State { missing: others.collect(), failed: None }), changed: Condvar::new() }
    }

    /// This rank is connected to all others.
    pub fn ready(&self, rank: u32) {
        self.state.lock().missing.remove(&rank);
        self.changed.notify_all();
    }

    /// This rank is gone. That ends the start unless it was ready: then it is for operations to say.
    pub fn gone(&self, rank: u32, why: impl FnOnce() -> String) {
        let mut state = self.state.lock();
        if state.missing.contains(&rank) && state.failed.is_none() {
            state.failed = Some(why());
        }
        self.changed.notify_all();
    }

    /// Waits until all ranks are connected to each other.
    ///
    /// # Errors
    /// Which are not in time, or which one is gone.
    pub fn wait(&self, rank: u32, peers: &[Peer], (begun, until): (Instant, Instant)) -> Result<()> {
        let mut reports = Reports::new(begun, until.saturating_duration_since(begun), START_TIMEOUT);
        let mut state = self.state.lock();
        loop {
            if let Some(why) = &state.failed {
                return Err(RunError::Failed(format!("{why}, before all ranks were connected to each other")));
            }
            if state.missing.is_empty() || paceline_os::mutant("nobody waits for all") {
                return Ok(());
            }
            let now = Instant::now();
            let missing = || describe(peers, &state.missing.iter().copied().collect::<Vec<u32>>());
            reports.report(now, |waited| {
                let waited = waited.as_secs_f64();
                format!("rank {rank} has waited {waited:.0} s for {} to be connected to all ranks", missing())
            });
            if now >= until {
                let (size, limit) = (peers.len(), until.saturating_duration_since(begun).as_secs_f64());
                let message =
                    format!("rank {rank} of {size} waited {limit:.0} s for {} to be connected to all ranks", missing());
                return Err(RunError::Failed(message).with_remedy("their output, or a longer {start_timeout}"));
            }
            let next = until.min(reports.next());
            self.changed.wait_for(&mut state, next.saturating_duration_since(now));
        }
    }
}
