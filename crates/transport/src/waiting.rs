//! When a wait for other ranks is reported on standard error.
use paceline_os::time::{Duration, Instant};

/// A wait is first reported after this time, or a third of its limit.
const FIRST: Duration = Duration::from_secs(10);

/// A wait with a longer limit is meant to last, such as a server's for workers.
const FOREVER: Duration = Duration::from_secs(20 * 86_400);

/// Settings that change the limit of a wait of operations.
pub const TIMEOUT: &str = "PACELINE_TIMEOUT or timeout=";

/// Setting that changes the limit of a wait for ranks that join.
pub const START_TIMEOUT: &str = "PACELINE_START_TIMEOUT";

/// After which time a wait with this limit is first reported: one that is meant to last never is.
#[must_use]
pub fn first_report(limit: Duration) -> Duration {
    if limit > FOREVER { limit } else { FIRST.min(limit / 3) }
}

/// The reports of one wait: each comes when the wait has lasted twice as long as at the last one.
#[derive(Clone, Copy, Debug)]
pub struct Reports {
    began: Instant,
    limit: Duration,
    knob: &'static str,
    next: Duration,
}

impl Reports {
    /// Of a wait that began then. `knob`: what changes its limit.
    #[must_use]
    pub fn new(began: Instant, limit: Duration, knob: &'static str) -> Reports {
        Reports { began, limit, knob, next: first_report(limit) }
    }

    /// Reports the wait, if it is time: `what` is given how long it has lasted, and says who is missing, for what.
    pub fn report(&mut self, now: Instant, what: impl FnOnce(Duration) -> String) {
        if let Some(waited) = self.due(now) {
            let limit = self.limit.as_secs_f64();
            paceline_os::report!("paceline: {}; the limit is {limit:.0} s ({})", what(waited), self.knob);
        }
    }

    /// How long the wait has lasted, if that is to be reported now.
    fn due(&mut self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(self.began);
        (waited >= self.next).then(|| {
            self.next = 2 * waited;
            waited
        })
    }

    /// When the next one comes.
    #[must_use]
    pub fn next(&self) -> Instant {
        self.began + self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_grow() {
        let began = Instant::now();
        let seconds = |limit: u64| {
            let mut reports = Reports::new(began, Duration::from_secs(limit), TIMEOUT);
            let due = |&second: &u64| reports.due(began + Duration::from_secs(second)).is_some();
            (0..=limit).filter(due).collect::<Vec<u64>>()
        };
        assert_eq!(seconds(100), [10, 20, 40, 80]);
        assert_eq!(seconds(12), [4, 8]);
    }
}
