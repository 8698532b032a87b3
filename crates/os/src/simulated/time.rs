//! Virtual time.
use std::ops::{Add, AddAssign, Sub};
pub use std::time::Duration;

use super::world::{point, read_clock, with};

/// A moment of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2)
}

impl Instant {
    /// Now.
    #[must_use]
    pub fn now() -> Instant {
        point();
        Instant(read_clock())
    }

    pub(super) fn nanoseconds(self) -> u64 {
        self.0
    }

    /// Time since then.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(*self)
    }

    /// Time since an earlier moment; zero since a later one.
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// As `saturating_duration_since`.
    #[must_use]
    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }

    /// Later by this much.
    #[must_use]
    pub fn checked_add(&self, duration: Duration) -> Option<Instant> {
        self.0.checked_add(nanoseconds(duration)).map(Instant)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(nanoseconds(duration)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanoseconds(duration)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Nanoseconds on the clock that all processes of the world share.
#[must_use]
pub fn monotonic() -> u64 {
    Instant::now().0
}

/// The time since 1970 (UTC): in a world, since its beginning.
#[must_use]
pub fn epoch() -> Duration {
    Duration::from_nanos(monotonic())
}

/// CPU time of the calling thread in nanoseconds.
#[must_use]
pub fn of_thread() -> u64 {
    with(|world| world.running.map_or(0, |thread| world.threads[thread].used))
}
