//! How far apart workers come to the same part of an iteration.
//!
//! M. A. Chang et al., "How to Train your DNN: The Network Operator Edition", sections 4 and 8.1.1, call the difference
//! between the moments at which workers begin their backward passes *backpropagation staggering*: it decides how many
//! updates meet at a server.
use crate::worker::Moments;

/// The moments of all workers, in seconds from the beginning of the iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// The first worker's.
    pub min_s: f64,
    /// That of the middle one; of two, their mean.
    pub median_s: f64,
    /// The last worker's.
    pub max_s: f64,
    /// Each worker's, by rank, if requested.
    pub workers_s: Option<Vec<f64>>,
}

impl Spread {
    /// How far the last worker is behind the first one.
    #[must_use]
    pub fn spread_s(&self) -> f64 {
        self.max_s - self.min_s
    }

    fn towards(&self, other: &Spread, share: f64) -> Spread {
        let between = |here: f64, there: f64| here + (there - here) * share;
        let each = |(own, their): (&Vec<f64>, &Vec<f64>)| own.iter().zip(their).map(|(&a, &b)| between(a, b)).collect();
        Spread {
            min_s: between(self.min_s, other.min_s),
            median_s: between(self.median_s, other.median_s),
            max_s: between(self.max_s, other.max_s),
            workers_s: self.workers_s.as_ref().zip(other.workers_s.as_ref()).map(each),
        }
    }

    fn of(moments: impl Iterator<Item = u64>, from: u64, each: bool) -> Spread {
        let mut own: Vec<u64> = moments.map(|it| it.saturating_sub(from)).collect();
        let seconds = |picoseconds: u64| picoseconds as f64 * 1e-12;
        let workers_s = each.then(|| own.iter().map(|&it| seconds(it)).collect());
        own.sort_unstable();
        let (count, middle) = (own.len(), own.len() / 2);
        let at = |place: usize| own.get(place).map_or(0.0, |&it| seconds(it));
        let median_s = if count % 2 == 1 { at(middle) } else { 0.5 * (at(middle.saturating_sub(1)) + at(middle)) };
        Spread { min_s: at(0), median_s, max_s: at(count.saturating_sub(1)), workers_s }
    }
}

/// The staggering of an iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Staggering {
    /// When a worker has its last new parameter; `None`: no servers distribute them.
    pub pull: Option<Spread>,
    /// When its backward pass begins.
    pub backward: Spread,
    /// When its backward pass ends, after which it has nothing more to send.
    pub push: Spread,
}

impl Staggering {
    /// What lies between this and another, by a share of the difference.
    pub(crate) fn towards(&self, other: &Staggering, share: f64) -> Staggering {
        Staggering {
            pull: self.pull.as_ref().zip(other.pull.as_ref()).map(|(own, it)| own.towards(it, share)),
            backward: self.backward.towards(&other.backward, share),
            push: self.push.towards(&other.push, share),
        }
    }

    /// That of workers, from a moment on. `pulls`: whether servers distribute parameters. `each`: with every worker's.
    pub(crate) fn of(moments: &[Moments], from: u64, pulls: bool, each: bool) -> Option<Staggering> {
        let spread = |of: fn(&Moments) -> u64| Spread::of(moments.iter().map(of), from, each);
        (!moments.is_empty()).then(|| Staggering {
            pull: pulls.then(|| spread(|it| it.pulled)),
            backward: spread(|it| it.backward),
            push: spread(|it| it.backward_end),
        })
    }
}
