//! Decides when a cycle begins.
//!
//! In Horovod, each thread sleeps for the rest of its own cycle time. If the kernel wakes one late, the others wait for
//! it; their cycle has then lasted longer, so they skip their next sleep while the late one sleeps in full, and they
//! wait for it again. With a global sleep, every vote finds the shortest remaining sleep of any rank, and all use that
//! (S. Pumma et al., the variant GS with N = 1; there it is a separate all-reduce, here a number of the vote).
use crate::event::Time;

/// The cycle timer of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pace {
    cycle_time: Time,
    global: bool,
    /// When the last cycle began.
    began: Option<Time>,
    /// Duration of the cycle before it.
    lasted: Time,
    /// When the next cycle may begin.
    next: Option<Time>,
}

/// Votes carry microseconds.
const TICK: Time = 1000;

impl Pace {
    /// `global`: all ranks share one sleep.
    #[must_use]
    pub fn new(cycle_time: Time, global: bool) -> Pace {
        Pace { cycle_time, global, began: None, lasted: 0, next: None }
    }

    /// A cycle begins.
    pub fn begins(&mut self, now: Time) {
        self.began = Some(now);
        self.next = Some(now + self.cycle_time);
    }

    /// For its vote: the remaining cycle time of this rank after a cycle as long as the last, in microseconds.
    #[must_use]
    pub fn left(&self) -> Option<u32> {
        let left = self.cycle_time.saturating_sub(self.lasted) / TICK;
        self.global.then(|| u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// The votes are counted: the shortest remaining time of any rank, in microseconds.
    pub fn counted(&mut self, now: Time, least: Option<u32>) {
        self.lasted = self.began.map_or(0, |began| now.saturating_sub(began));
        if let Some(least) = least {
            self.next = Some(now + Time::from(least) * TICK);
        }
    }

    /// When the next cycle may begin.
    #[must_use]
    pub fn next(&self, now: Time) -> Time {
        self.next.unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_were_held_up_sleep_as_long_as_the_late_one() {
        let mut paces = [Pace::new(5_000_000, true), Pace::new(5_000_000, true)];
        // The second wakes 3 ms late, so the vote takes 3 ms.
        paces[0].begins(0);
        paces[1].begins(3_000_000);
        let count = |paces: &mut [Pace; 2], now| {
            let least = paces.iter().filter_map(Pace::left).min();
            paces.iter_mut().for_each(|pace| pace.counted(now, least));
        };
        count(&mut paces, 3_100_000);
        paces.iter_mut().for_each(|pace| pace.begins(8_100_000));
        count(&mut paces, 8_200_000);
        // Independently, the first would begin 1.9 ms after its vote and the second 4.9 ms.
        assert_eq!(paces.clone().map(|pace| pace.next(0)), [10_100_000; 2]);
    }

    #[test]
    fn without_it_a_cycle_begins_a_cycle_time_after_the_last() {
        let mut pace = Pace::new(1000, false);
        assert_eq!(pace.next(7), 7);
        pace.begins(50);
        pace.counted(900, None);
        assert_eq!((pace.next(900), pace.left()), (1050, None));
    }
}
