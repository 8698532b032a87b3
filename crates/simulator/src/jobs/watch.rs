//! Stops simulations of jobs, and says how far they are.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Shared by all simulations of some jobs.
#[derive(Debug, Default)]
pub struct Watch {
    stopped: AtomicBool,
    rounds: AtomicU64,
}

impl Watch {
    /// All end soon, with what they have.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether they are to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Iterations that all jobs of a simulation have made, summed over simulations.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Counts up to the iterations that all jobs of a simulation have made; `counted`: those before.
    pub(crate) fn count(&self, counted: &mut usize, of_jobs: impl Iterator<Item = usize>) {
        let all = of_jobs.min().unwrap_or(0);
        self.rounds.fetch_add(all.saturating_sub(*counted) as u64, Ordering::Relaxed);
        *counted = all.max(*counted);
    }
}
