//! Staleness of asynchronous updates: what is applied between a worker's pull and its own update, and who may pull.
use std::collections::{BTreeMap, VecDeque};

use paceline_schedule::{Distribution, Roles};

use crate::options::Options;
use crate::run_types::Prepared;

/// Iterations of every worker before any is measured.
pub(crate) const WARM_UP: usize = 10;
/// Iterations of every worker that are measured, unless it is said.
pub(crate) const MEASURED: u32 = 20;
/// Iterations of all workers, at most, in units of those that they have if they are equally fast: a very slow worker does not
/// keep the others going for ever.
pub(crate) const MOST_TIMES: usize = 8;

/// The steady state of workers that do not wait for each other. Times are seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Asynchronous {
    /// By how many iterations workers may be apart; `None`: by any number.
    pub bound: Option<u32>,
    /// Measured iterations of the worker with the fewest.
    pub iterations: u32,
    /// How many gradients were applied with each staleness: the number of others' updates of a tensor since the worker pulled
    /// it.
    pub staleness: Vec<(u32, u64)>,
    /// How long the bound holds a worker back in an iteration: the mean of all.
    pub blocked_s: f64,
    /// An iteration of the fastest worker.
    pub fastest_s: f64,
    /// An iteration of the slowest one.
    pub slowest_s: f64,
}

impl Asynchronous {
    /// Gradients that were counted.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.staleness.iter().map(|&(_, count)| count).sum()
    }

    /// Mean staleness; 0 if nothing was applied.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.staleness.iter().map(|&(it, count)| f64::from(it) * count as f64).sum();
        sum / self.updates().max(1) as f64
    }

    /// The least staleness that at least this share of the gradients does not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u32 {
        let wanted = share * self.updates() as f64;
        let mut below = 0;
        let reaches = |&&(_, count): &&(u32, u64)| {
            below += count;
            below as f64 >= wanted
        };
        self.staleness.iter().find(reaches).or(self.staleness.last()).map_or(0, |&(it, _)| it)
    }

    /// Moves its times by a `share` of their difference to those of a slower one; counts are those of the nearer one.
    pub(crate) fn towards(&self, slower: &Asynchronous, share: f64) -> Asynchronous {
        let between = |here: f64, there: f64| here + (there - here) * share;
        Asynchronous {
            blocked_s: between(self.blocked_s, slower.blocked_s),
            fastest_s: between(self.fastest_s, slower.fastest_s),
            slowest_s: between(self.slowest_s, slower.slowest_s),
            ..if share < 0.5 { self.clone() } else { slower.clone() }
        }
    }
}

/// What a server applies at once: its part of a bucket.
struct Part {
    /// Pieces of which it consists.
    pieces: u32,
    /// Whether there is a gradient.
    is_updated: bool,
    /// Updates so far.
    version: u32,
}

/// A worker's view of a part.
#[derive(Clone, Copy)]
struct Seen {
    /// The version that it pulled.
    pulled: u32,
    /// Pieces of its gradient that have not arrived.
    left: u32,
}

/// The servers' updates, and which workers may pull.
pub(crate) struct Updates {
    bound: Option<u32>,
    /// Buckets of a worker.
    pub buckets: u32,
    /// Whether everything for one worker is sent before anything for the next.
    pub block: bool,
    servers: u32,
    parts: Vec<Part>,
    /// The part of each bucket on each server.
    part_of: Vec<u32>,
    seen: Vec<Seen>,
    /// Iterations that each worker has finished, and how many workers have finished so many.
    finished: Vec<u32>,
    workers_with: BTreeMap<u32, u32>,
    /// Since when each worker is held back.
    held: BTreeMap<u32, u64>,
    /// Workers that will be released together, one group after the other.
    pub releasing: VecDeque<Vec<u32>>,
    /// Iterations of all workers, and the most of them.
    pub ended: usize,
    pub most: usize,
    /// Of what is measured.
    pub counts: BTreeMap<u32, u64>,
    pub blocked: u64,
}

impl Updates {
    /// `part`: the program of one worker and the servers.
    pub fn new(part: &Prepared, options: &Options, most: usize) -> Updates {
        let Roles { servers, .. } = part.schedule.roles();
        let (mut parts, mut part_of) = (Vec::new(), Vec::new());
        for bucket in &part.buckets {
            for server in 0..servers {
                let pieces = part.schedule.barriers(bucket, 1 + server);
                part_of.push(if pieces > 0 { parts.len() as u32 } else { u32::MAX });
                if pieces > 0 {
                    parts.push(Part { pieces, is_updated: !bucket.pull_only, version: 0 });
                }
            }
        }
        let once: Vec<Seen> = parts.iter().map(|part| Seen { pulled: 0, left: part.pieces }).collect();
        Updates {
            bound: options.staleness,
            buckets: part.buckets.len() as u32,
            block: options.distribution == Distribution::Block,
            servers,
            seen: once.repeat(options.workers as usize),
            parts,
            part_of,
            finished: vec![0; options.workers as usize],
            workers_with: BTreeMap::from([(0, options.workers)]),
            held: BTreeMap::new(),
            releasing: VecDeque::new(),
            ended: 0,
            most,
            counts: BTreeMap::new(),
            blocked: 0,
        }
    }

    /// What came before is not measured.
    pub fn begin_measuring(&mut self, now: u64) {
        self.counts.clear();
        self.blocked = 0;
        self.held.values_mut().for_each(|since| *since = now);
    }

    /// A piece of a worker's gradient has arrived at a server, which applies its part when it has all pieces.
    pub fn arrived(&mut self, worker: u32, bucket: u32, server: u32) {
        let number = self.part_of[(bucket * self.servers + server) as usize] as usize;
        let seen = &mut self.seen[worker as usize * self.parts.len() + number];
        let part = &mut self.parts[number];
        seen.left -= 1;
        if seen.left > 0 {
            return;
        }
        seen.left = part.pieces;
        if part.is_updated {
            *self.counts.entry(part.version.wrapping_sub(seen.pulled)).or_default() += 1;
            part.version = part.version.wrapping_add(1);
        }
    }

    /// All gradients of a worker have been applied; the workers that may now pull, in order.
    pub fn finish(&mut self, worker: u32, now: u64) -> Vec<u32> {
        let count = &mut self.finished[worker as usize];
        let fewer = self.workers_with.get_mut(count).filter(|workers| **workers > 1);
        match fewer {
            Some(workers) => *workers -= 1,
            None => _ = self.workers_with.remove(count),
        }
        *count += 1;
        *self.workers_with.entry(*count).or_default() += 1;
        let Some(bound) = self.bound else { return vec![worker] };
        self.held.insert(worker, now);
        let fewest = self.workers_with.first_key_value().map_or(0, |(&count, _)| count);
        let (finished, blocked) = (&self.finished, &mut self.blocked);
        let mut released = Vec::new();
        self.held.retain(|&worker, &mut since| {
            let stays = finished[worker as usize] > fewest.saturating_add(bound);
            if !stays {
                *blocked += now - since;
                released.push(worker);
            }
            stays
        });
        released
    }

    /// A worker pulls all parameters.
    pub fn pull(&mut self, worker: u32) {
        let count = self.parts.len();
        let seen = &mut self.seen[worker as usize * count..][..count];
        for (seen, part) in seen.iter_mut().zip(&self.parts) {
            seen.pulled = part.version;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn updates(workers: u32, pieces: &[u32], bound: Option<u32>) -> Updates {
        let parts: Vec<Part> = pieces.iter().map(|&pieces| Part { pieces, is_updated: true, version: 0 }).collect();
        let once: Vec<Seen> = parts.iter().map(|part| Seen { pulled: 0, left: part.pieces }).collect();
        Updates {
            bound,
            buckets: pieces.len() as u32,
            block: false,
            servers: 1,
            part_of: (0..pieces.len() as u32).collect(),
            parts,
            seen: once.repeat(workers as usize),
            finished: vec![0; workers as usize],
            workers_with: BTreeMap::from([(0, workers)]),
            held: BTreeMap::new(),
            releasing: VecDeque::new(),
            ended: 0,
            most: usize::MAX,
            counts: BTreeMap::new(),
            blocked: 0,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Workers in any order: staleness is what a list of all updates says, and who pulls is what the rule says.
        #[test]
        fn counts_and_releases_are_those_of_the_definition(
            workers in 1u32..6,
            pieces in prop::collection::vec(1u32..4, 1..4),
            bound in prop::option::of(0u32..3),
            turns in prop::collection::vec(any::<prop::sample::Index>(), 1..200),
        ) {
            let mut it = updates(workers, &pieces, bound);
            // Every update: bucket and worker. Of each worker: how many there were when it pulled, the pieces that it still
            // has to push, iterations, and since when it waits.
            let mut log: Vec<(u32, u32)> = Vec::new();
            let all = || (0u32..).zip(&pieces).flat_map(|(bucket, &count)| vec![bucket; count as usize]).collect::<Vec<_>>();
            let mut pulled = vec![0; workers as usize];
            let mut left = vec![all(); workers as usize];
            let mut finished = vec![0u32; workers as usize];
            let mut waits: Vec<Option<u64>> = vec![None; workers as usize];
            let (mut expected, mut blocked) = (BTreeMap::<u32, u64>::new(), 0);
            for (now, turn) in (0u64..).zip(turns) {
                let running: Vec<u32> = (0..workers).filter(|&one| waits[one as usize].is_none()).collect();
                let worker = *turn.get(&running);
                let own = worker as usize;
                let place = turn.index(left[own].len());
                let bucket = left[own].remove(place);
                it.arrived(worker, bucket, 0);
                if !left[own].contains(&bucket) {
                    let since = &log[pulled[own]..];
                    let stale = since.iter().filter(|&&(of, by)| of == bucket && by != worker).count();
                    *expected.entry(stale as u32).or_default() += 1;
                    log.push((bucket, worker));
                }
                if !left[own].is_empty() {
                    continue;
                }
                finished[own] += 1;
                waits[own] = Some(now);
                let released = it.finish(worker, now);
                // A worker begins iteration c when every other has finished iteration c - N - 1.
                let may = |one: u32| {
                    waits[one as usize].is_some()
                        && (0..workers).all(|other| {
                            other == one || bound.is_none_or(|n| finished[other as usize] + n >= finished[one as usize])
                        })
                };
                prop_assert_eq!(&released, &(0..workers).filter(|&one| may(one)).collect::<Vec<_>>());
                for one in released {
                    it.pull(one);
                    let one = one as usize;
                    blocked += waits[one].take().map_or(0, |since| now - since);
                    (pulled[one], left[one]) = (log.len(), all());
                }
            }
            prop_assert_eq!(&it.counts, &expected);
            prop_assert_eq!(it.blocked, blocked);
        }
    }

    #[test]
    fn quantiles_are_the_least_that_are_enough() {
        let of = |staleness: &[(u32, u64)]| Asynchronous {
            bound: None,
            iterations: 1,
            staleness: staleness.to_vec(),
            blocked_s: 0.0,
            fastest_s: 1.0,
            slowest_s: 1.0,
        };
        let some = of(&[(0, 5), (3, 4), (10, 1)]);
        assert_eq!([0.0, 0.5, 0.51, 0.9, 0.91, 1.0].map(|share| some.quantile(share)), [0, 0, 3, 3, 10, 10]);
        assert_eq!((some.updates(), some.mean()), (10, 2.2));
        assert_eq!((of(&[]).quantile(0.5), of(&[]).mean()), (0, 0.0));
    }
}
