//! The effect of slow links on an iteration: it takes continuously longer the slower they are.
//!
//! A message more or less on a link changes in which order all later ones meet. In simulations this luck, good or bad, is up to
//! 40 % of an iteration, and it is drawn again for every rate of every link. So what a slow link costs is not the difference of
//! two simulations. An iteration is simulated for rates that are fixed steps apart, the first of which is the healthy one;
//! from one to the next it may become longer, by at most as much as the link is slower, and never shorter; and between two
//! steps the time is a power of what is left. Hence one percent less of a link costs between nothing and one percent.
//!
//! Links between switches are one case more: where routes are adaptive, what counts is what all of them leave together of what
//! the exchanges need (`network::left`), and links that are removed are links of which nothing is left.
use std::sync::Arc;

use paceline_model::cluster::Degraded;
use paceline_model::{Cluster, Trace};
use paceline_schedule::{Bucket, Entry, Knob, Roles, Schedule};

use crate::iteration::programs_of;
use crate::network::left::{Needs, share, spreads};
use crate::network::topology::{ALL_BETWEEN, NetworkLinks, is_between};
use crate::options::{Network, Options, SimulationError};
use crate::outcome::Outcome;
use crate::prepare::plan;
use crate::run_types::Measured;
use crate::timeline::Timeline;

/// Shares of a link's rate that are simulated.
const STEPS: [f64; 14] = {
    const HALF: f64 = std::f64::consts::FRAC_1_SQRT_2;
    let mut steps = [HALF, 0.5, HALF / 2.0, 0.25, 0.125, 0.0625, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let mut at = 6;
    while at < steps.len() {
        steps[at] = steps[at - 1] / 4.0;
        at += 1;
    }
    steps
};

/// The result where `left` of a link is left; `healthy`: that where all is; `at`: simulates it.
pub(crate) fn along<T: Measured, E>(healthy: &T, left: f64, mut at: impl FnMut(f64) -> Result<T, E>) -> Result<T, E> {
    let (mut before, mut here) = (1.0, healthy.clone());
    for step in STEPS {
        if left >= before || here.seconds() <= 0.0 {
            break;
        }
        let found = at(step)?;
        let (least, most) = (here.seconds(), here.seconds() * before / step);
        let there = if found.seconds() <= least {
            here.clone()
        } else if found.seconds() > most {
            here.towards(&found, (most - least) / (found.seconds() - least))
        } else {
            found
        };
        if left >= step || step == STEPS[STEPS.len() - 1] {
            // Beyond the last step, as from the one before to it.
            let power = (there.seconds() / least).ln() / (before / step).ln();
            let wanted = least * (before / left).powf(power);
            let grown = there.seconds() - least;
            return Ok(if grown > 0.0 { here.towards(&there, (wanted - least) / grown) } else { there });
        }
        (before, here) = (step, there);
    }
    Ok(here)
}

/// The links of a cluster that are slow, by how their cost is found.
pub(crate) struct Slow {
    /// The cluster without them.
    pub healthy: Cluster,
    /// Links between switches that all routes share; some may be removed.
    spread: Vec<Degraded>,
    /// Others, each by itself: an iteration waits for the slowest.
    alone: Vec<Degraded>,
}

impl Slow {
    /// `by_trees`: messages pass by trees of switches.
    pub fn of(cluster: &Cluster, by_trees: bool) -> Slow {
        let all = || cluster.degraded.iter().filter(|one| one.factor < 1.0).cloned();
        let (spread, others) = all().partition(|one| spreads(cluster, by_trees) && is_between(&one.link));
        let (removed, alone) = Vec::into_iter(others).partition(|one: &Degraded| one.factor == 0.0);
        Slow { healthy: Cluster { degraded: removed, ..cluster.clone() }, spread, alone }
    }

    pub fn is_healthy(&self) -> bool {
        self.spread.is_empty() && self.alone.is_empty()
    }

    /// The result on the cluster: that of the link that costs most.
    ///
    /// `left`: what slow links that all routes share leave of what is needed; `at`: simulates a cluster.
    pub fn cost<T: Measured>(
        &self,
        left: impl FnOnce(&Cluster) -> Result<f64, SimulationError>,
        mut at: impl FnMut(&Cluster) -> Result<T, SimulationError>,
    ) -> Result<(T, Cluster), SimulationError> {
        let healthy = at(&self.healthy)?;
        let with = |link: &str, factor: f64| {
            let mut cluster = self.healthy.clone();
            cluster.degraded.push(Degraded { link: link.to_owned(), factor });
            cluster
        };
        let mut slow: Vec<(&str, f64)> = self.alone.iter().map(|one| (one.link.as_str(), one.factor)).collect();
        if !self.spread.is_empty() {
            let degraded = [&self.healthy.degraded[..], &self.spread[..]].concat();
            slow.push((ALL_BETWEEN, left(&Cluster { degraded, ..self.healthy.clone() })?));
        }
        let (mut slowest, mut on) = (healthy.clone(), self.healthy.clone());
        for (link, left) in slow.into_iter().filter(|&(_, left)| left < 1.0) {
            let found = along(&healthy, left, |factor| at(&with(link, factor)))?;
            if found.seconds() > slowest.seconds() {
                (slowest, on) = (found, with(link, left));
            }
        }
        Ok((slowest, on))
    }
}

/// Whether messages pass by trees of switches.
pub(crate) fn passes_by_trees(options: &Options) -> Result<bool, SimulationError> {
    let entry = options.entry()?;
    Ok(entry.uses(Knob::Multicast) || entry.uses(Knob::Aggregation))
}

/// Share of the needs of an iteration's exchanges that slow links between switches carry.
fn left_of(trace: &Trace, slow: &Cluster, healthy: &Cluster, options: &Options) -> Result<f64, SimulationError> {
    let (schedule, buckets): (Arc<dyn Schedule>, Vec<Bucket>);
    if options.is_planned() {
        let (programs, exchanged) = programs_of(trace, healthy, options)?;
        (schedule, buckets) = (programs.into(), exchanged);
    } else {
        let (prepared, _) = plan(trace, healthy, options)?;
        (schedule, buckets) = (prepared.schedule, different(prepared.buckets, prepared.entry));
    }
    let fluid = options.network == Network::Fluid;
    let network = |cluster| NetworkLinks::for_schedule(cluster, &*schedule, fluid, options.seed);
    let (whole, slow) = (network(healthy)?, network(slow)?);
    let mut needs = Needs::none(&whole);
    needs.add_programs(&whole, &*schedule, &buckets, |role| role);
    Ok(share(&whole, &slow, &needs, healthy.bandwidth))
}

/// The buckets between whose exchanges there is a difference in who sends to whom: without servers, that depends on nothing but
/// the size.
pub(crate) fn different(mut buckets: Vec<Bucket>, entry: &Entry) -> Vec<Bucket> {
    if !entry.uses(Knob::Servers) {
        buckets.sort_by_key(|bucket| bucket.len);
        buckets.dedup_by_key(|bucket| bucket.len);
    }
    buckets
}

/// A forecast, with its timeline, if one is wanted.
type Found = Result<(Outcome, Timeline), SimulationError>;

/// The forecast on a cluster with slow links; `run`: the same on one without, or with one of them.
pub(crate) fn forecast(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    with_timeline: bool,
    run: impl Fn(&Cluster, bool) -> Found,
) -> Found {
    if cluster.degraded.is_empty() {
        return run(cluster, with_timeline);
    }
    let entry = options.entry()?;
    let servers = if entry.uses(Knob::Servers) { options.servers } else { 0 };
    let roles = Roles { workers: options.workers, servers, switches: 0 };
    // Refuses links that there are not, and nodes that are cut off.
    let check = |cluster: &Cluster| {
        let network = NetworkLinks::of(cluster, roles, Vec::new(), None, false, options.seed);
        network.map(|_| ())
    };
    let by_trees = passes_by_trees(options)?;
    if options.collectives.is_some() && !entry.uses(Knob::Aggregation) {
        // Their times are those with slow links, and NCCL uses the NICs that are left.
        let left =
            |one: &Degraded| Degraded { factor: if is_between(&one.link) { one.factor } else { 1.0 }, ..one.clone() };
        let checked = Cluster { degraded: cluster.degraded.iter().map(left).collect(), ..cluster.clone() };
        check(&checked)?;
        return run(cluster, with_timeline);
    }
    check(cluster)?;
    let slow = Slow::of(cluster, by_trees);
    if options.coordination.is_some() {
        // Its exchanges are simulated by themselves, and each finds out what they cost there.
        let degraded = cluster.degraded.iter().filter(|one| one.factor < 1.0).cloned().collect();
        return run(&Cluster { degraded, ..cluster.clone() }, with_timeline);
    }
    if slow.is_healthy() {
        return run(&slow.healthy, with_timeline);
    }
    let simulated = |cluster: &Cluster| Ok(run(cluster, false)?.0);
    let (mut outcome, on) = slow.cost(|slow_one| left_of(trace, slow_one, &slow.healthy, options), simulated)?;
    if options.detail && slow.spread.iter().any(|one| one.factor == 0.0) {
        // What each link carries is that of routes which avoid those that are removed.
        let degraded = cluster.degraded.iter().filter(|one| one.factor == 0.0).cloned().collect();
        outcome.busy = run(&Cluster { degraded, ..cluster.clone() }, false)?.0.busy;
    }
    let timeline = if with_timeline { run(&on, true)?.1 } else { Timeline::default() };
    Ok((outcome, timeline))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Measured for f64 {
        fn seconds(&self) -> f64 {
            *self
        }

        fn towards(&self, slower: &f64, share: f64) -> f64 {
            self + (slower - self) * share
        }
    }

    /// A stand-in for the simulation: bound by computation, then by the link, with luck of up to 40 %.
    fn simulated(left: f64, bound: f64, seed: u64) -> f64 {
        let luck = (left.to_bits() ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        f64::max(1.0, bound / left) * (0.8 + 0.6 * luck as f64 / f64::from(1 << 24))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// However chaotic simulations are, less of a link costs no less, and at most as much as it is less.
        #[test]
        fn less_of_a_link_costs_no_less_and_in_proportion(
            seed in any::<u64>(),
            bound in 0.0f64..2.0,
            left in 1e-9f64..1.0,
            less in 0.3f64..1.0,
        ) {
            let healthy = simulated(1.0, bound, seed);
            let at = |left: f64| along(&healthy, left, |left| Ok::<_, ()>(simulated(left, bound, seed))).unwrap();
            prop_assert_eq!(at(1.0), healthy);
            let (more, less_of_it) = (at(left), at(left * less));
            prop_assert!(healthy <= more * (1.0 + 1e-9));
            prop_assert!(more <= less_of_it * (1.0 + 1e-9) && less_of_it <= more / less * (1.0 + 1e-9));
        }

        /// At the rates that are simulated, and without luck, it is what was simulated.
        #[test]
        fn without_luck_it_is_the_simulation(bound in 0.0f64..2.0, step in 0..STEPS.len()) {
            let simulated = |left: f64| f64::max(1.0, bound / left);
            let found = along(&simulated(1.0), STEPS[step], |left| Ok::<_, ()>(simulated(left))).unwrap();
            prop_assert!((found / simulated(STEPS[step]) - 1.0).abs() < 1e-9);
        }
    }
}
