//! Faults that were mended are put back, one at a time: a search finds each.
use std::time::{Duration, Instant};

use paceline_simulation::check::violations;
use paceline_simulation::scenario::{Focus, Scenario};
use paceline_simulation::search::run_alone;

/// A search takes at most this long.
const LIMIT: Duration = Duration::from_secs(60);

fn find(mutant: &str) {
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    for seed in 0.. {
        let scenario = Scenario::new(seed, Focus::default());
        let found = violations(&scenario, &run_alone(&scenario, false, Some(mutant)));
        if let Some(what) = found.first() {
            if !violations(&scenario, &run_alone(&scenario, false, None)).is_empty() {
                continue;
            }
            println!("'{mutant}' is found by seed {seed} after {:.1} s: {what}", begun.elapsed().as_secs_f64());
            return;
        }
        assert!(begun.elapsed() < LIMIT, "'{mutant}' was not found by {seed} seeds");
    }
}

#[test]
fn room_that_a_flush_makes_wakes_nobody() {
    find("flush wakes nobody");
}

#[test]
fn a_worker_that_is_a_server_meets_nobody() {
    find("workers meet");
}

#[test]
fn all_roles_of_a_process_share_a_queue() {
    find("one loopback queue");
}

#[test]
fn the_time_without_progress_begins_anew_with_each_wait() {
    find("stuck begins anew");
}

#[test]
fn what_is_on_its_way_is_lost_when_its_sender_leaves() {
    find("a departure loses what is on its way");
}

#[test]
fn who_leaves_because_of_another_is_blamed() {
    find("who leaves last is blamed");
}

#[test]
fn a_send_whose_bytes_flow_fails_at_the_limit() {
    find("transfers do not move");
}
