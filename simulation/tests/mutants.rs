//! Faults that were mended are put back, one at a time: a search finds each.
use std::time::Instant;

use paceline_simulation::check::violations;
use paceline_simulation::scenario::{Call, Focus, Scenario};
use paceline_simulation::search::run_alone;

/// A search takes at most so many schedules: those of a minute on one core.
const MOST: u64 = 20_000;

/// Searches all scenarios.
fn find(mutant: &str) {
    find_where(mutant, Focus::default(), |_| {});
}

/// Searches scenarios that are adjusted.
fn find_where(mutant: &str, focus: Focus, adjust: fn(&mut Scenario)) {
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    for seed in 0..MOST {
        let mut scenario = Scenario::new(seed, focus);
        adjust(&mut scenario);
        let found = violations(&scenario, &run_alone(&scenario, false, Some(mutant)));
        if let Some(what) = found.first() {
            if !violations(&scenario, &run_alone(&scenario, false, None)).is_empty() {
                continue;
            }
            println!("'{mutant}' is found by seed {seed} after {:.1} s: {what}", begun.elapsed().as_secs_f64());
            return;
        }
    }
    panic!("'{mutant}' was not found by {MOST} seeds");
}

/// Nobody computes and nothing goes wrong, so that whoever waits for long has missed something.
fn calm(scenario: &mut Scenario) {
    scenario.faults.clear();
    scenario.steps.iter_mut().for_each(|step| step.delays.fill(0));
    (scenario.multicast, scenario.world.pressure) = (false, 0);
    (scenario.world.per_kilobyte, scenario.world.latency, scenario.world.jitter) = (800, 20_000, 10_000);
}

/// No process is only a server.
fn without_servers(scenario: &mut Scenario) {
    (scenario.strategy, scenario.dedicated) = (Some("ring".into()), false);
    scenario.hosts.truncate(scenario.ranks as usize);
    scenario.starts.truncate(scenario.ranks as usize);
    scenario.servers = scenario.servers.min(scenario.ranks);
    scenario.steps.iter_mut().for_each(|step| step.in_step = None);
}

/// Only ranks 0 and 1, with several operations in flight.
fn two_ranks(scenario: &mut Scenario) {
    (scenario.ranks, scenario.servers) = (2, 1);
    (scenario.hosts, scenario.groups) = (vec![0, 1], vec![vec![0, 1]]);
    scenario.starts.truncate(2);
    scenario.leaves.truncate(2);
    scenario.steps.retain(|step| step.call != Call::Named);
    for step in &mut scenario.steps {
        (step.group, step.root, step.other, step.later) = (0, 0, 1, u32::MAX);
        step.delays.truncate(2);
    }
}

#[test]
fn room_that_a_flush_makes_wakes_nobody() {
    // A single connection is polled: nothing reports its changes.
    find_where("flush wakes nobody", Focus { harmless: true, small: false }, |scenario| {
        calm(scenario);
        without_servers(scenario);
        two_ranks(scenario);
        (scenario.transport, scenario.streams, scenario.coordinator) = ("tcp".into(), 1, None);
        (scenario.world.buffers, scenario.world.real_time) = ((4 << 10, 4 << 10), true);
    });
}

#[test]
fn a_worker_that_is_a_server_meets_nobody() {
    find("workers meet");
}

#[test]
fn all_roles_of_a_process_share_a_queue() {
    find_where("one loopback queue", Focus { harmless: true, small: false }, |scenario| {
        calm(scenario);
        without_servers(scenario);
        // Each rank is worker and server, and one of them the switch.
        scenario.strategy = Some("ps-aggregation".into());
        let limits = [("loopback fragments", 1), ("loopback fragment", 256)];
        scenario.world.limits.extend(limits.map(|(name, value)| (name.to_owned(), value)));
    });
}

#[test]
fn the_time_without_progress_begins_anew_with_each_wait() {
    find_where("stuck begins anew", Focus { harmless: true, small: false }, |scenario| {
        calm(scenario);
        scenario.sliced = true;
        scenario.world.limits.insert("unexpected".into(), 0);
    });
}

#[test]
fn what_is_on_its_way_is_lost_when_its_sender_leaves() {
    find_where("a departure loses what is on its way", Focus { harmless: true, small: false }, |scenario| {
        calm(scenario);
        // The others wait for longer than the grace for what a rank sends just before it leaves.
        scenario.steps.iter_mut().next_back().into_iter().for_each(|step| step.delays[0] = 3_000_000);
    });
}

#[test]
fn who_leaves_because_of_another_is_blamed() {
    find("who leaves last is blamed");
}

#[test]
fn a_send_whose_bytes_flow_fails_at_the_limit() {
    find("transfers do not move");
}

#[test]
fn a_report_of_the_last_turn_before_sleeping_is_slept_over() {
    find_where("sleeps over a report", Focus { harmless: true, small: false }, |scenario| {
        calm(scenario);
        scenario.world.buffers.1 = 4 << 10;
    });
}
