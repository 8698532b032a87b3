//! NBCS: the all-reduce of the cache's bits does not block. Each thread begins one, tests it once per turn, and begins
//! the next when it has completed. In between it sleeps for its cycle time, so no thread spins. Where threads are out
//! of step, an agreement is known one turn later, and they begin the collective each in its own turn.
use crate::coordination::draws::{Draws, Spin};
use crate::coordination::policy::{Agreement, Model, Policy, Setting};

pub(super) const NONBLOCKING: Model = Model {
    stretch: |_| 1.0,
    begin: |setting, draws| {
        let turn = setting.constants.cycle() * (1.0 - draws.unit());
        Box::new(Nonblocking { setting, turn, others: Vec::new() })
    },
};

struct Nonblocking<'a> {
    setting: &'a Setting,
    /// The turn in which threads begin the next all-reduce: the common time, and those that differ, in ms.
    turn: f64,
    others: Vec<f64>,
}

impl Nonblocking<'_> {
    /// The next turn of one thread, after this time.
    fn after(&self, turn: f64, sleep: f64, draws: &mut Draws) -> f64 {
        let constants = &self.setting.constants;
        let due = turn + sleep;
        if due < self.setting.contention && draws.chance(constants.oversleep_probability) {
            return self.setting.late_wake(due, draws);
        }
        due
    }

    /// The next turn of most threads; those that are late in it are moved to the others.
    fn all_after(&mut self, turn: f64, sleep: f64, draws: &mut Draws) -> f64 {
        let constants = &self.setting.constants;
        let due = turn + sleep;
        if due < self.setting.contention {
            let alike = self.setting.processes - self.others.len() as u32;
            for _ in 0..draws.successes(alike, constants.oversleep_probability) {
                self.others.push(self.setting.late_wake(due, draws));
            }
        }
        due
    }
}

impl Policy for Nonblocking<'_> {
    fn next(&mut self, draws: &mut Draws) -> Option<Agreement> {
        let (cycle, test) = (self.setting.constants.cycle(), self.setting.constants.test_ms);
        let seen = self.turn;
        let earliest = self.others.iter().copied().fold(seen, f64::min);
        let complete = self.others.iter().copied().fold(seen, f64::max) + self.setting.consensus;
        let at_once = |begun: f64| complete <= begun + self.setting.constants.turn_ms;
        let before = self.others.len();
        let mut issued = complete;
        if at_once(seen) {
            self.turn = self.all_after(seen, cycle, draws);
        } else {
            while self.turn < complete {
                self.turn = self.all_after(self.turn, test, draws);
            }
            issued = self.turn;
        }
        let alike = f64::from(self.setting.processes) - before as f64;
        let (mut sum, mut last) = (issued * alike, issued);
        for i in 0..before {
            let begun = self.others[i];
            let mut turn = if at_once(begun) { self.after(begun, cycle, draws) } else { begun };
            let mut own = complete;
            if !at_once(begun) {
                while turn < complete {
                    turn = self.after(turn, test, draws);
                }
                own = turn;
            }
            self.others[i] = turn;
            sum += own;
            last = last.max(own);
        }
        // Threads that have just fallen behind may have more turns until it completes.
        for i in before..self.others.len() {
            let mut turn = self.others[i];
            while turn < complete {
                turn = self.after(turn, test, draws);
            }
            self.others[i] = turn;
            if !at_once(seen) {
                sum += turn - issued;
                last = last.max(turn);
            }
        }
        Some(Agreement { seen, earliest, issued: sum / f64::from(self.setting.processes), last })
    }

    fn spins(&self) -> &[Spin] {
        &[]
    }
}
