//! Decides when a cycle begins.
//!
//! In Horovod, each thread sleeps for the rest of its own cycle time. If the kernel wakes one late, the others wait for
//! it; their cycle has then lasted longer, so they skip their next sleep while the late one sleeps in full, and they
//! wait for it again. With a global sleep, every N-th vote finds the shortest remaining sleep of any rank, and all use
//! that, so no delay outlasts N cycles (S. Pumma et al., the variant GS; there it is a separate all-reduce, here a number
//! of the vote).
use std::num::NonZeroU32;

use crate::event::Time;

/// The cycle timer of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pace {
    cycle_time: Time,
    /// All ranks share the sleep after every so many cycles; `None`: after none.
    global: Option<NonZeroU32>,
    /// Cycles so far, the same on all ranks.
    cycles: u64,
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
    /// `global`: all ranks share the sleep after every so many cycles.
    #[must_use]
    pub fn new(cycle_time: Time, global: Option<NonZeroU32>) -> Pace {
        Pace { cycle_time, global, cycles: 0, began: None, lasted: 0, next: None }
    }

    /// A cycle begins.
    pub fn begins(&mut self, now: Time) {
        self.cycles += 1;
        self.began = Some(now);
        self.next = Some(now + self.cycle_time);
    }

    /// For its vote: the remaining cycle time of this rank after a cycle as long as the last, in microseconds; `None`
    /// in cycles after which each rank sleeps by its own clock.
    #[must_use]
    pub fn left(&self) -> Option<u32> {
        let left = self.cycle_time.saturating_sub(self.lasted) / TICK;
        let common = self.global.is_some_and(|every| self.cycles.is_multiple_of(u64::from(every.get())));
        common.then(|| u32::try_from(left).unwrap_or(u32::MAX))
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
        let mut paces = [Pace::new(5_000_000, Some(NonZeroU32::MIN)), Pace::new(5_000_000, Some(NonZeroU32::MIN))];
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
        let mut pace = Pace::new(1000, None);
        assert_eq!(pace.next(7), 7);
        pace.begins(50);
        pace.counted(900, None);
        assert_eq!((pace.next(900), pace.left()), (1050, None));
    }

    /// Two ranks of which the second wakes late in the first cycle; returns by how much they begin each cycle apart, and
    /// how many votes carried the sleep.
    fn apart(every: Option<NonZeroU32>, cycles: usize) -> (Vec<Time>, usize) {
        let mut paces = [Pace::new(5_000_000, every), Pace::new(5_000_000, every)];
        let (mut at, mut carried) = ([0, 3_000_000], 0);
        let gaps = (0..cycles).map(|_| {
            let gap = at[1] - at[0];
            (0..2).for_each(|rank| paces[rank].begins(at[rank]));
            let least = paces.iter().filter_map(Pace::left).min();
            carried += usize::from(least.is_some());
            // All learn of the vote when the last has voted.
            let counted = at[1] + 100_000;
            paces.iter_mut().for_each(|pace| pace.counted(counted, least));
            at = std::array::from_fn(|rank| paces[rank].next(counted).max(counted));
            gap
        });
        (gaps.collect(), carried)
    }

    #[test]
    fn no_delay_outlasts_the_cycles_between_two_common_sleeps() {
        const CYCLES: usize = 60;
        let (gaps, carried) = apart(None, CYCLES);
        assert!(gaps.iter().all(|&gap| gap == 3_000_000) && carried == 0, "{gaps:?}");
        for every in [1, 2, 3, 7, 20, 60] {
            let (gaps, carried) = apart(NonZeroU32::new(every), CYCLES);
            let late = gaps.iter().take_while(|&&gap| gap > 0).count();
            assert_eq!(late, every as usize);
            assert!(gaps[late..].iter().all(|&gap| gap == 0), "{gaps:?}");
            assert_eq!(carried, CYCLES / every as usize);
        }
    }
}
