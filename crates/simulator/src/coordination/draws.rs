//! Late wake-ups and preemptions. Only processes that have any cost time: one draw gives the distance to the next such
//! process, so tens of thousands of processes take a few hundred draws.
use crate::random::Random;

/// A period in which a coordinator waits and keeps a core busy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spin {
    /// The part during which the process's other threads need the cores, ms.
    pub contended: f64,
    /// The whole period, ms.
    pub length: f64,
}

/// The causes of preemptions of a process's scheduling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Preemptions<'a> {
    /// Preemptions per ms of contention, and their mean length in ms.
    pub rate: f64,
    pub contention: f64,
    pub mean: f64,
    /// Preemptions per ms of the process's own spinning.
    pub spin_rate: f64,
    pub spins: &'a [Spin],
}

/// The latest of all processes, ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Latest {
    /// How late it is with its gradients.
    pub late: f64,
    /// How long after a punctual process's gradients the last process takes its turn.
    pub begun: f64,
}

/// A process that is late, or begins in its own phase, ms; for a timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rank {
    pub rank: u32,
    pub late: f64,
    pub begun: f64,
}

/// A seeded random stream.
pub(super) struct Draws(Random);

impl Draws {
    /// Each iteration has its own stream, so that the same iteration under two policies gets the same draws. Streams of
    /// SplitMix64 with neighboring seeds are shifted copies of one another, so the iteration number is hashed.
    pub fn new(seed: u64, iteration: u32) -> Draws {
        let mixed = |state: u64| Random::new(state).next();
        Draws(Random::new(mixed(seed) ^ mixed(!u64::from(iteration))))
    }

    /// In (0, 1].
    pub fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() <= probability
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    pub fn log_normal(&mut self, sigma: f64) -> f64 {
        self.0.log_normal(sigma)
    }

    /// How many of `count` independent trials succeed, by drawing the geometric gaps between successes.
    pub fn successes(&mut self, count: u32, probability: f64) -> u32 {
        if probability <= 0.0 {
            return 0;
        }
        if probability >= 1.0 {
            return count;
        }
        let per_gap = 1.0 / (-probability).ln_1p();
        let (mut tried, mut found) = (0.0, 0);
        loop {
            tried += (self.unit().ln() * per_gap).floor() + 1.0;
            if tried > f64::from(count) {
                return found;
            }
            found += 1;
        }
    }

    /// The latest of `processes`: a process's lateness is the sum of its preemptions, a Poisson process over its
    /// contention. The contention periods of all processes are laid end to end, so the preemptions of one are
    /// neighbors. `cycle`: every process then waits for its next turn, each in its own phase; 0 for no turns.
    pub fn latest(
        &mut self,
        processes: u32,
        by: &Preemptions<'_>,
        cycle: f64,
        mut ranks: Option<&mut Vec<Rank>>,
    ) -> Latest {
        let own = by.rate * by.contention;
        let spun: f64 = by.spins.iter().map(|spin| by.spin_rate * spin.contended).sum();
        let each = own + spun;
        let (mut at, mut process, mut sum, mut affected) = (0.0, -1.0, 0.0, 0);
        let mut latest = Latest::default();
        loop {
            if each == 0.0 {
                break;
            }
            at += self.exponential(1.0) / each;
            let over = at >= f64::from(processes);
            if over || at.floor() > process {
                if affected > 0 {
                    let begun = if cycle > 0.0 { sum + cycle * self.unit() } else { sum };
                    latest.begun = latest.begun.max(begun);
                    if let Some(ranks) = ranks.as_deref_mut() {
                        ranks.push(Rank { rank: process as u32, late: sum, begun });
                    }
                }
                if over {
                    break;
                }
                (process, sum) = (at.floor(), 0.0);
                affected += 1;
            }
            // The position within the process's contention decides which of its causes it was.
            let place = (at - process) * each;
            let length = self.exponential(by.mean);
            sum += if place < own { length } else { length.min(spin_at(by, place - own)) };
            latest.late = latest.late.max(sum);
        }
        // The latest of many uniform phases, drawn at once.
        let punctual = f64::from(processes - affected);
        if cycle > 0.0 && punctual > 0.0 {
            latest.begun = latest.begun.max(cycle * self.unit().powf(1.0 / punctual));
        }
        latest.begun = latest.begun.max(latest.late);
        latest
    }
}

/// The length of the spin at this position among all spins.
fn spin_at(by: &Preemptions<'_>, mut place: f64) -> f64 {
    for spin in by.spins {
        place -= by.spin_rate * spin.contended;
        if place < 0.0 {
            return spin.length;
        }
    }
    // Rounding may leave a remainder after the last one.
    by.spins.last().map_or(0.0, |spin| spin.length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successes_are_binomial() {
        for (count, probability) in [(24_576, 0.0005), (50, 0.2), (6, 0.9)] {
            let mut draws = Draws::new(1, 0);
            let found: Vec<f64> = (0..20_000).map(|_| f64::from(draws.successes(count, probability))).collect();
            let mean = found.iter().sum::<f64>() / found.len() as f64;
            let variance = found.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / found.len() as f64;
            let expected = f64::from(count) * probability;
            assert!((mean / expected - 1.0).abs() < 0.02, "{mean} {expected}");
            assert!((variance / (expected * (1.0 - probability)) - 1.0).abs() < 0.05, "{variance}");
        }
        assert_eq!(Draws::new(1, 0).successes(9, 0.0), 0);
        assert_eq!(Draws::new(1, 0).successes(9, 1.0), 9);
    }

    /// The maximum of n exponentials with mean m is m times the n-th harmonic number on average.
    #[test]
    fn the_latest_is_that_of_so_many_exponentials() {
        let by = Preemptions { rate: 0.01, contention: 10.0, mean: 4.0, spin_rate: 0.0, spins: &[] };
        let mut draws = Draws::new(5, 0);
        let mean = (0..2000).map(|_| draws.latest(20_000, &by, 0.0, None).late).sum::<f64>() / 2000.0;
        // 2,000 preemptions, few in the same process: slightly more than 4 (ln 2000 + 0.577) = 32.7.
        assert!((32.0..38.0).contains(&mean), "{mean}");
    }

    #[test]
    fn iterations_share_no_draws() {
        let stream = |iteration| {
            let mut draws = Draws::new(0, iteration);
            (0..50).map(|_| draws.unit().to_bits()).collect::<std::collections::HashSet<u64>>()
        };
        let all: std::collections::HashSet<u64> = (0..50).flat_map(stream).collect();
        assert_eq!(all.len(), 2500);
    }

    #[test]
    fn a_spin_delays_nobody_by_more_than_itself() {
        let spins = [Spin { contended: 1.0, length: 3.0 }];
        let by = Preemptions { rate: 0.0, contention: 10.0, mean: 7.0, spin_rate: 0.01, spins: &spins };
        let mut draws = Draws::new(5, 0);
        for _ in 0..200 {
            assert!(draws.latest(40, &by, 0.0, None).late <= 6.0);
        }
    }
}
