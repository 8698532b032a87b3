//! Makes a scenario that fails smaller, as long as it still fails in the same way.
use crate::scenario::Scenario;

/// Runs at most.
const MOST: usize = 600;

/// Key by which messages count as the same.
const PHRASES: &[&str] =
    &["has left the job", " died", " waited ", "left while", "destroyed", "no communicator", "broke:"];

/// The kind of a violation: its first word, and what its message says.
#[must_use]
pub fn kind(violation: &str) -> (String, Option<&'static str>) {
    let word = violation.split(':').next().unwrap_or_default().to_owned();
    (word, PHRASES.iter().find(|&&phrase| violation.contains(phrase)).copied())
}

/// The smallest scenario that `fails` and was found.
pub fn shrink(mut scenario: Scenario, mut fails: impl FnMut(&Scenario) -> bool) -> Scenario {
    let mut runs = 0;
    loop {
        let mut smaller = false;
        for candidate in candidates(&scenario) {
            if candidate == scenario {
                continue;
            }
            runs += 1;
            if runs > MOST {
                return scenario;
            }
            if fails(&candidate) {
                (scenario, smaller) = (candidate, true);
                break;
            }
        }
        if !smaller {
            return scenario;
        }
    }
}

fn candidates(scenario: &Scenario) -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Scenario)| {
        let mut candidate = scenario.clone();
        change(&mut candidate);
        all.push(candidate);
    };
    for fault in 0..scenario.faults.len() {
        with(&|s| {
            s.faults.remove(fault);
        });
    }
    for step in 0..scenario.steps.len() {
        if scenario.steps.len() > 1 {
            with(&|s| {
                // A training step without its end would never end.
                if s.steps.remove(step).in_step.is_some_and(|(_, last)| last) {
                    s.steps.iter_mut().for_each(|step| step.in_step = None);
                }
                for leaves in s.leaves.iter_mut().flatten() {
                    *leaves -= usize::from(*leaves > step);
                    *leaves = (*leaves).min(s.steps.len() - 1);
                }
            });
        }
    }
    for group in 1..scenario.groups.len() {
        if scenario.steps.iter().all(|step| step.group != group) {
            with(&|s| {
                s.groups.remove(group);
                s.steps.iter_mut().filter(|step| step.group > group).for_each(|step| step.group -= 1);
            });
        }
    }
    let last = scenario.ranks - 1;
    let free = |s: &Scenario| {
        s.hosts.len() == s.ranks as usize && s.groups.iter().all(|group| group.len() > 2 || !group.contains(&last))
    };
    if scenario.ranks > 2 && free(scenario) {
        with(&|s| {
            s.ranks -= 1;
            s.hosts.pop();
            s.starts.pop();
            s.leaves.pop();
            s.servers = s.servers.min(s.ranks);
            for group in &mut s.groups {
                group.retain(|&rank| rank != last);
            }
            for step in &mut s.steps {
                let size = s.groups[step.group].len() as u32;
                step.root = step.root.min(size - 1);
                step.other =
                    if step.other < size && step.other != step.root { step.other } else { (step.root + 1) % size };
                step.delays.pop();
            }
            let processes = s.hosts.len();
            let hosts = s.hosts.iter().max().map_or(1, |most| most + 1);
            s.faults.retain(|fault| match fault.what {
                crate::scenario::What::Kill(p)
                | crate::scenario::What::Stop(p, _)
                | crate::scenario::What::Starve(p, ..) => p < processes,
                crate::scenario::What::Cut(a, b, _) | crate::scenario::What::Slow(a, b, _) => a < hosts && b < hosts,
            });
        });
    }
    with(&|s| s.starts.fill(0));
    with(&|s| s.leaves.fill(None));
    with(&|s| s.steps.iter_mut().for_each(|step| step.delays.fill(0)));
    with(&|s| s.steps.iter_mut().for_each(|step| step.later = 0));
    for step in 0..scenario.steps.len() {
        with(&|s| s.steps[step].elements = s.steps[step].elements.min(1));
        with(&|s| s.steps[step].elements /= 2);
        with(&|s| s.steps[step].delays.fill(0));
        with(&|s| s.steps[step].later = 0);
    }
    with(&|s| s.streams = 1);
    with(&|s| s.multicast = false);
    with(&|s| s.sliced = false);
    with(&|s| s.world.limits.clear());
    for name in scenario.world.limits.keys() {
        with(&|s| s.world.limits.retain(|other, _| other != name));
    }
    with(&|s| (s.multicast, s.strategy) = (false, Some("ring".into())));
    with(&|s| s.coordinator = None);
    with(&|s| s.world.pressure = 0);
    with(&|s| s.world.real_time = false);
    with(&|s| s.world.points = 0);
    with(&|s| s.world.jitter = 0);
    with(&|s| s.world.datagrams = [0; 3]);
    with(&|s| s.world.buffers = (64 << 10, 64 << 10));
    with(&|s| s.world.segment = 64 << 10);
    all
}
