//! Executes the plan of the slowest rank with collectives as single events: all others wait for it in every collective.
//!
//! Collectives that overlap share the links that both need: if together they would keep a kind of link busy for longer
//! than the time there is, all that use it slow down alike. What they spend in latency, they spend side by side.
use std::collections::BTreeMap;

use paceline_iteration::{Plan, Stream};
use paceline_model::Cluster;

use super::collectives::Collectives;
use super::executed::{Alone, Executed};
use super::groups::{Programs, exchange_of};
use crate::options::{Options, SimulationError};
use crate::outcome::{Busy, LinkUse};
use crate::path::COUNT;
use crate::planning::{duration, predecessors};
use crate::worker::Slowest;

/// A collective on its way.
struct Active {
    step: usize,
    alone: Alone,
    /// Picoseconds that it would still take alone.
    left: f64,
}

pub(super) fn execute(
    plan: &Plan,
    programs: &Programs,
    cluster: &Cluster,
    options: &Options,
    slowest: &Slowest,
) -> Result<Executed, SimulationError> {
    let exchange_of = exchange_of(plan);
    let mut collectives = Collectives::new(programs, cluster, options, plan.world);
    let before = predecessors(plan);
    let mut waits: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut followers: Vec<Vec<u32>> = vec![Vec::new(); plan.steps.len()];
    for (step, before) in (0u32..).zip(&before) {
        before.iter().for_each(|&it| followers[it as usize].push(step));
    }
    let mut spans = vec![(0, 0); plan.steps.len()];
    let mut ready: Vec<usize> = (0..waits.len()).filter(|&step| waits[step] == 0).collect();
    // Steps, and the picoseconds that are left of each: that of the model, and beside it one of compression.
    let mut computing: Vec<(usize, f64)> = Vec::new();
    let slowdown = options.slowdown;
    let mut active: Vec<Active> = Vec::new();
    let mut links: Vec<LinkUse> = Vec::new();
    let (mut now, mut computed) = (0u64, 0u64);
    loop {
        for step in ready.drain(..) {
            spans[step].0 = now;
            match (duration(&plan.steps[step].work, &slowest.factors), exchange_of[step]) {
                (Some(time), _) => {
                    computed += time;
                    computing.push((step, time as f64));
                }
                (None, Some(exchange)) => {
                    let alone = collectives.alone(exchange)?;
                    alone.links.iter().for_each(|link| add(&mut links, link));
                    active.push(Active { step, left: alone.time as f64, alone });
                }
                (None, None) => {}
            }
        }
        let rates = rates(&active);
        let ends = active.iter().zip(&rates).map(|(it, rate)| now + (it.left / rate).ceil() as u64);
        let pace = if active.is_empty() { 1.0 } else { 1.0 - slowdown };
        let computed_at = computing.iter().map(|(_, left)| now + (left / pace).ceil() as u64);
        let Some(next) = ends.chain(computed_at).min() else { break };
        for (it, rate) in active.iter_mut().zip(&rates) {
            it.left -= (next - now) as f64 * rate;
        }
        for (_, left) in &mut computing {
            *left -= (next - now) as f64 * pace;
        }
        now = next;
        let mut ended = Vec::new();
        ended.extend(computing.extract_if(.., |(_, left)| *left < 1.0).map(|(step, _)| step));
        active.retain(|it| {
            // Less than a picosecond is left of what the rounding has cut off.
            let over = it.left < 1.0;
            if over {
                ended.push(it.step);
            }
            !over
        });
        for step in ended {
            spans[step].1 = now;
            for &follower in &followers[step] {
                waits[follower as usize] -= 1;
                if waits[follower as usize] == 0 {
                    ready.push(follower as usize);
                }
            }
        }
        // The order of steps decides between those that begin together.
        ready.sort_unstable();
    }
    debug_assert!(waits.iter().all(|&left| left == 0), "every step has run");
    let busy = options.detail.then(|| {
        vec![Busy {
            name: format!("worker {} compute", slowest.rank),
            kind: Stream::Compute.name(),
            busy_s: computed as f64 * 1e-12,
        }]
    });
    Ok(Executed { end: now, slowest: slowest.rank, spans: BTreeMap::from([(slowest.rank, spans)]), links, busy })
}

/// The rate of each collective, as a share of what it has alone.
fn rates(active: &[Active]) -> Vec<f64> {
    let mut wanted = [0.0; COUNT];
    for it in active {
        wanted.iter_mut().zip(it.alone.busy).for_each(|(sum, busy)| *sum += busy);
    }
    let of = |it: &Active| {
        let shares = it.alone.busy.iter().zip(wanted);
        shares.filter(|(busy, _)| **busy > 0.0).map(|(_, wanted)| 1.0 / wanted).fold(1.0, f64::min)
    };
    active.iter().map(of).collect()
}

fn add(links: &mut Vec<LinkUse>, link: &LinkUse) {
    match links.iter_mut().find(|it| it.kind == link.kind) {
        Some(it) => {
            it.links = it.links.max(link.links);
            it.busiest_s += link.busiest_s;
            it.mean_s += link.mean_s;
        }
        None => links.push(link.clone()),
    }
}
