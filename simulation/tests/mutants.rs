//! Faults that were mended are put back, one at a time: a search finds each.
use std::time::Instant;

use paceline_os::world::SECOND;
use paceline_simulation::check::violations;
use paceline_simulation::scenario::{Call, Fault, Focus, Scenario, Step, What};
use paceline_simulation::search::run_alone;

/// A search takes at most so many schedules: those of a minute on one core.
const MOST: u64 = 20_000;

/// Searches all scenarios.
fn find(mutant: &str) {
    find_where(mutant, Focus::default(), |_| {});
}

/// Searches other schedules of a scenario in the corpus: that alone may find nothing any more once other code has changed.
fn find_near(mutant: &str, why: &str) {
    let (_, base) = corpus().find(|(reason, _)| reason.contains(why)).expect("it is in the corpus");
    find_among(mutant, |seed| Scenario { seed, ..base.clone() });
}

/// Searches scenarios that are adjusted.
fn find_where(mutant: &str, focus: Focus, adjust: fn(&mut Scenario)) {
    find_among(mutant, |seed| {
        let mut scenario = Scenario::new(seed, focus);
        adjust(&mut scenario);
        scenario
    });
}

fn find_among(mutant: &str, scenario: impl Fn(u64) -> Scenario) {
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    for seed in 0..MOST {
        let scenario = scenario(seed);
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
        (scenario.strategy, scenario.coordinator) = (Some("ps-aggregation".into()), None);
        scenario.servers = scenario.ranks.min(2);
        scenario.world.limits.clear();
        for step in &mut scenario.steps {
            (step.call, step.group, step.elements) = (Call::AllReduce, 0, step.elements.max(5_000));
        }
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

/// Rank 0 leaves before the last step, which all would call.
fn rank_0_leaves_early(scenario: &mut Scenario) {
    scenario.faults.clear();
    scenario.coordinator.get_or_insert_with(|| "negotiate".into());
    for step in scenario.steps.iter_mut().filter(|step| step.group == 0 && step.in_step.is_none()) {
        step.call = Call::Named;
    }
    scenario.leaves[0] = Some(scenario.steps.len() - 1);
}

#[test]
fn who_submits_after_another_has_left_leaves_without_a_reason() {
    find_where("who submits too late has no reason", Focus::default(), rank_0_leaves_early);
}

#[test]
fn a_rank_that_has_done_its_part_gives_the_end_of_its_coordinator_as_its_reason() {
    find_where("proposals are a reason to leave", Focus::default(), |scenario| {
        // The last rank leaves before it sends; its coordinator has proposed a plan, and others close theirs.
        without_servers(scenario);
        scenario.faults.clear();
        scenario.coordinator = Some("graph".into());
        let last = scenario.ranks - 1;
        let named = Step { call: Call::Named, group: 0, elements: 1, ..scenario.steps[0].clone() };
        let send = Step { call: Call::Transfer, root: last, other: 0, later: 0, in_step: None, ..named.clone() };
        scenario.steps = vec![Step { in_step: None, ..named }, send];
        scenario.leaves.fill(None);
        scenario.leaves[last as usize] = Some(1);
    });
}

#[test]
fn who_waits_for_what_moves_between_others_fails() {
    find("only what moves here counts");
}

#[test]
fn who_has_not_called_is_called_silent() {
    find_where("who has not called is silent", Focus::default(), |scenario| {
        // Rank 0 is stopped, and the others wait for each other because of it.
        without_servers(scenario);
        scenario.faults = vec![Fault { at: 1_500_000, what: What::Stop(0, None) }];
        scenario.steps.iter_mut().for_each(|step| step.delays.fill(600_000));
    });
}

#[test]
fn a_rank_goes_on_while_others_still_connect() {
    find_where("nobody waits for all", Focus { harmless: true, small: false }, |scenario| {
        // Two hosts cannot reach each other when the ranks connect; the third can reach both.
        let hosts = scenario.hosts.iter().max().map_or(1, |most| most + 1);
        if hosts > 2 {
            scenario.timeout = 4.0;
            scenario.faults = vec![Fault { at: 1_000, what: What::Cut(1, 2, 1_190_000) }];
            scenario.starts.fill(0);
        }
    });
}

#[test]
fn to_count_what_was_sent_takes_as_long_as_a_peer_takes_nothing() {
    find_where("counting waits for the driver", Focus::default(), |scenario| {
        // The last fragments of rank 0 are on their way when rank 1 is stopped for ever.
        without_servers(scenario);
        two_ranks(scenario);
        scenario.leaves.fill(None);
        (scenario.transport, scenario.coordinator, scenario.timeout) = ("tcp".into(), None, 6.0);
        (scenario.world.per_kilobyte, scenario.world.buffers) = (4_000_000, (4 << 10, 4 << 10));
        let broadcast = Step { call: Call::Broadcast, elements: 100_000, ..scenario.steps[0].clone() };
        scenario.steps = vec![broadcast];
        let at = 1_000_000 + scenario.seed % 2_000_000;
        scenario.faults = vec![Fault { at, what: What::Stop(1, None) }];
    });
}

#[test]
fn a_socket_with_what_may_not_be_taken_keeps_its_rank_awake() {
    find_where("polls what it may not take", Focus { harmless: true, small: false }, |scenario| {
        calm(scenario);
        without_servers(scenario);
        two_ranks(scenario);
        (scenario.transport, scenario.streams, scenario.coordinator) = ("tcp".into(), 1, None);
        scenario.world.limits.insert("unexpected".into(), 0);
        scenario.world.real_time = true;
    });
}

#[test]
fn what_a_rank_sends_to_itself_hides_that_another_is_stopped() {
    find_where("what goes to itself moves", Focus::default(), |scenario| {
        without_servers(scenario);
        two_ranks(scenario);
        (scenario.strategy, scenario.coordinator) = (Some("ps-aggregation".into()), None);
        scenario.leaves.fill(None);
        for step in &mut scenario.steps {
            (step.call, step.elements) = (Call::AllReduce, 3_000);
        }
        let limits = [("loopback fragment", 64), ("unexpected streams", 1)];
        scenario.world.limits = limits.map(|(name, value)| (name.to_owned(), value)).into();
        scenario.timeout = 30.0;
        scenario.faults = vec![Fault { at: scenario.seed % 100_000, what: What::Stop(0, None) }];
    });
}

#[test]
fn what_was_read_in_the_last_turn_before_sleeping_is_slept_over() {
    find_where("sleeps over what it has read", Focus { harmless: true, small: false }, |scenario| {
        calm(scenario);
        without_servers(scenario);
        two_ranks(scenario);
        (scenario.transport, scenario.streams, scenario.coordinator) = ("tcp".into(), 3, None);
        (scenario.world.real_time, scenario.world.latency, scenario.world.jitter) = (true, 1_000, 10_000);
        scenario.world.limits.clear();
        scenario.world.points = 10;
        // Rank 1 begins the second while rank 0 waits for the first.
        let first = Step { call: Call::AllReduce, elements: 1, later: 0b10, ..scenario.steps[0].clone() };
        scenario.steps = vec![first.clone(), Step { elements: 214, later: 0, ..first }];
    });
}

#[test]
fn the_rest_of_an_unexpected_fragment_waits_as_long_as_its_beginning() {
    find_near("the rest of an unexpected fragment waits, too", "rest of an unexpected fragment");
}

#[test]
fn a_report_takes_the_place_of_a_question() {
    let (_, base) = corpus().find(|(why, _)| why.contains("place of a question")).expect("it is in the corpus");
    // A coordinator's vote had two thirds of the time limit when it was found.
    let timeout = base.timeout * 2.0 / 3.0;
    find_among("a report takes the place of a question", |seed| Scenario { seed, timeout, ..base.clone() });
}

#[test]
fn who_left_before_it_sent_is_waited_for_until_the_limit() {
    // Rank 2 dies while it and rank 0 cannot hear each other. Others hear of it and leave, and rank 0 waits for what these
    // had only begun to send. The limit names the first cause, too: what shows is how long it takes.
    find_slower("what has failed was sent", |scenario| {
        if scenario.ranks < 3 {
            return;
        }
        scenario.transport = "tcp".into();
        scenario.hosts = (0..scenario.hosts.len()).collect();
        let at = 1_000_000 + scenario.seed % 1_000_000;
        let cut = Fault { at, what: What::Cut(0, 2, 60_000_000) };
        scenario.faults = vec![cut, Fault { at: at + 1_000, what: What::Kill(2) }];
    });
}

/// Searches scenarios that are adjusted for one that takes longer by seconds.
fn find_slower(mutant: &str, adjust: fn(&mut Scenario)) {
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    for seed in 0..MOST {
        let mut scenario = Scenario::new(seed, Focus::default());
        adjust(&mut scenario);
        let ends = |mutant| run_alone(&scenario, false, mutant).outcome.time;
        let [with, without] = [Some(mutant), None].map(ends);
        if with > without + 2 * SECOND {
            let [with, without] = [with, without].map(|time| time as f64 / SECOND as f64);
            println!(
                "'{mutant}' is found by seed {seed} after {:.1} s: {with:.1} s in place of {without:.1} s",
                begun.elapsed().as_secs_f64()
            );
            return;
        }
    }
    panic!("'{mutant}' was not found by {MOST} seeds");
}

// These need a rare meeting of moments, but have happened once.

#[test]
fn only_some_ranks_follow_the_plan_if_their_proposals_take_long() {
    find_in_corpus("proposals are compared in time or never");
}

#[test]
fn a_receive_from_any_rank_blames_one_of_those_that_have_left() {
    find_in_corpus("one of those that have left is blamed");
}

#[test]
fn the_time_limit_hides_why_others_have_left() {
    find_in_corpus("the limit hides why others have left");
}

#[test]
fn a_comparison_that_nobody_waits_for_is_a_reason_to_leave() {
    find_near("a comparison of plans is a reason to leave", "comparison of plans");
}

#[test]
fn a_write_that_fails_loses_nothing_that_has_come() {
    find_near("a write that fails loses what has come", "a write to a rank that had left");
}

#[test]
fn an_agreement_by_servers_is_no_reason_to_leave() {
    find_near("servers make it a reason to leave", "agreement by servers");
}

#[test]
fn a_lost_end_is_looked_for_after_two_round_trips_however_long() {
    find_near("the end waits for two round trips", "lost last datagram");
}

#[test]
fn who_leaves_counts_only_whole_fragments_of_what_it_has_sent() {
    find_near("leaving counts whole fragments", "only whole fragments counted");
}

#[test]
fn who_has_left_because_a_rank_takes_nothing_is_blamed() {
    find_near("who takes nothing is no reason to leave", "took nothing of what it had sent");
}

#[test]
fn datagrams_behind_a_missing_one_do_not_count() {
    find_near("datagrams do not move", "its datagrams came");
}

#[test]
fn what_a_starved_rank_sends_to_itself_does_not_count() {
    find_near("what goes to itself does not move", "passed its sum on to itself");
}

fn find_in_corpus(mutant: &str) {
    std::panic::set_hook(Box::new(|_| {}));
    let mut fails = corpus().map(|(_, scenario)| violations(&scenario, &run_alone(&scenario, false, Some(mutant))));
    assert!(fails.any(|violations| !violations.is_empty()), "'{mutant}' was not found in the corpus");
}

/// Why a scenario has failed once, and the scenario.
fn corpus() -> impl Iterator<Item = (String, Scenario)> {
    include_str!("../corpus.jsonl").lines().map(|line| {
        let mut entry: serde_json::Value = serde_json::from_str(line).expect("a line of the corpus is JSON");
        let scenario = serde_json::from_value(entry["scenario"].take()).expect("it holds a scenario");
        (entry["why"].to_string(), scenario)
    })
}

#[test]
fn a_report_of_the_last_turn_before_sleeping_is_slept_over() {
    find_where("sleeps over a report", Focus { harmless: true, small: false }, |scenario| {
        calm(scenario);
        scenario.world.buffers.1 = 4 << 10;
    });
}
