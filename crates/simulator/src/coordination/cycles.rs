//! Coordinators that wait for each other in every cycle: each sleeps until one cycle time after its last wake-up, or
//! not at all if that has passed. Then all agree in an all-reduce, which ends when the last has arrived. Those that
//! arrive early spin in it.
//!
//! A thread that wakes late stays behind from then on: the others find their cycle time exceeded and skip the sleep,
//! the late one sleeps in full, and they wait for it again. That ends when the iteration's collective keeps all threads
//! busy for longer than a cycle and so realigns them.
use super::draws::{Draws, Spin};
use super::policy::{Agreement, Setting};
use crate::random::Random;

/// All coordinators together; times are in ms from the start of the iteration.
pub(super) struct Cycles<'a> {
    setting: &'a Setting,
    /// Cycles so far, from a random one of those between two common sleeps.
    cycles: u64,
    /// Whether wake-ups may be late.
    late: bool,
    /// When the last agreement ended.
    agreed: f64,
    /// When threads last woke: the common time, and those that differ.
    woke: f64,
    others: Vec<f64>,
    spins: Vec<Spin>,
    /// When the last spin began, and when the agreement after it ended.
    spun: (f64, f64),
}

impl<'a> Cycles<'a> {
    pub fn new(setting: &'a Setting, late: bool, draws: &mut Draws) -> Cycles<'a> {
        // An iteration begins at a random point of a cycle.
        let place = draws.unit();
        let several = setting.sleep_every.filter(|every| every.get() > 1);
        Cycles {
            setting,
            cycles: several.map_or(0, |every| Random::new(place.to_bits()).next() % u64::from(every.get())),
            late,
            agreed: 0.0,
            woke: -setting.constants.cycle() * place,
            others: Vec::new(),
            spins: Vec::new(),
            spun: (f64::NEG_INFINITY, f64::NEG_INFINITY),
        }
    }

    /// Spins until now.
    pub fn spins(&self) -> &[Spin] {
        &self.spins
    }

    /// The next cycle.
    pub fn next(&mut self, draws: &mut Draws) -> Agreement {
        let woke = self.wake(draws);
        self.cycles += 1;
        let last = self.others.iter().copied().fold(woke, f64::max);
        // A common sleep takes a second all-reduce.
        let common = self.is_common();
        let agreement = if common { 2.0 * self.setting.consensus } else { self.setting.consensus };
        if last > woke {
            self.spin(woke, last, agreement);
        }
        (self.woke, self.agreed) = (woke, last + agreement);
        if common {
            self.others.clear();
        }
        Agreement { seen: woke, earliest: woke, issued: self.agreed, last: self.agreed }
    }

    /// Whether all threads sleep equally long after this cycle.
    fn is_common(&self) -> bool {
        self.setting.sleep_every.is_some_and(|every| self.cycles.is_multiple_of(u64::from(every.get())))
    }

    /// The common wake-up time; `others` then holds the threads that wake at another time.
    fn wake(&mut self, draws: &mut Draws) -> f64 {
        let constants = &self.setting.constants;
        let due = |woke: f64| (woke + constants.cycle()).max(self.agreed);
        let target = due(self.woke);
        let may_be_late = |at: f64| self.late && at > self.agreed && at < self.setting.contention;
        let mut later = Vec::with_capacity(self.others.len());
        for &other in &self.others {
            let own = due(other);
            let late = may_be_late(own) && draws.chance(constants.oversleep_probability);
            let at = if late { self.setting.late_wake(own, draws) } else { own };
            if at > target {
                later.push(at);
            }
        }
        if may_be_late(target) {
            let alike = self.setting.processes - self.others.len() as u32;
            for _ in 0..draws.successes(alike, constants.oversleep_probability) {
                later.push(self.setting.late_wake(target, draws));
            }
        }
        self.others = later;
        target
    }

    fn spin(&mut self, from: f64, to: f64, agreement: f64) {
        let contended = (to.min(self.setting.contention) - from).max(0.0);
        let goes_on = from <= self.spun.1;
        match self.spins.last_mut() {
            // Without a sleep in between, it is a single spin.
            Some(spin) if goes_on => {
                spin.length = to - self.spun.0;
                spin.contended += contended;
            }
            _ if contended > 0.0 => {
                self.spins.push(Spin { contended, length: to - from });
                self.spun.0 = from;
            }
            _ => return,
        }
        self.spun.1 = to + agreement;
        // A spin that is still in progress at the end of the computation lasts until the last process is ready, so it
        // does not limit how late a process can be.
        let sleeps = self.is_common() || from + self.setting.constants.cycle() > to + agreement;
        if to >= self.setting.compute
            && !sleeps
            && let Some(spin) = self.spins.last_mut()
        {
            spin.length = f64::INFINITY;
        }
    }
}
