//! Every order of events in small worlds: no rank waits forever, and all begin the same operations.
//!
//! Votes are in flight while ranks receive other events, as under `nonblocking`. Where a rank receives them only after
//! the votes are counted, as under the other policies, it receives several at once. For `graph` see `graph.rs`.

use std::collections::{HashSet, VecDeque};
use std::num::NonZeroU32;

use crate::world::{World, request};
use paceline_coordinator::{Event, Request, Settings};

/// The remaining submissions of the ranks, one call each; an empty one means join.
type Queues = Vec<VecDeque<Vec<Request>>>;

/// Visits all states reachable from this one; returns their number, and those that are final.
fn explore(start: World, queues: Queues) -> (usize, HashSet<World>) {
    let (mut seen, mut ends) = (HashSet::new(), HashSet::new());
    let mut open = vec![(start, queues)];
    seen.insert(open[0].clone());
    while let Some((world, queues)) = open.pop() {
        check(&world);
        let mut moved = false;
        for rank in 0..world.ranks() {
            let (mut next, mut left) = (world.clone(), queues.clone());
            if let Some(requests) = left[rank].pop_front() {
                match requests.is_empty() {
                    true => next.tell(rank, Event::Joined),
                    false => next.submit(rank, requests),
                }
                moved = true;
                keep((next, left), &mut seen, &mut open);
            }
            let mut next = world.clone();
            if next.deliver(rank) {
                moved = true;
                keep((next, queues.clone()), &mut seen, &mut open);
            }
            // Events that arrived while a vote blocked the rank are delivered together.
            if world.inboxes[rank].len() > 1 {
                let mut next = world.clone();
                next.deliver_all(rank);
                keep((next, queues.clone()), &mut seen, &mut open);
            }
            assert!(world.asleep[rank].is_none(), "without a cycle time nobody sleeps");
        }
        if !moved {
            assert!(world.all_done(), "ranks wait for each other: {world:#?}");
            assert!(world.begun.iter().all(|begun| *begun == world.begun[0]));
            let mut end = world;
            end.votes = 0;
            ends.insert(end);
        }
    }
    (seen.len(), ends)
}

/// Visits all states of a new world; returns their number.
fn search(settings: &Settings, queues: Queues) -> usize {
    explore(World::new(queues.len() as u32, settings), queues).0
}

fn keep(state: (World, Queues), seen: &mut HashSet<(World, Queues)>, open: &mut Vec<(World, Queues)>) {
    if seen.insert(state.clone()) {
        open.push(state);
    }
}

/// In every state, what each rank has begun is a prefix of what the furthest has.
fn check(world: &World) {
    let furthest = world.begun.iter().max_by_key(|begun| begun.len()).unwrap();
    for begun in &world.begun {
        assert_eq!(begun[..], furthest[..begun.len()]);
    }
    // The groups here have two members each.
    for bucket in furthest {
        let grouped = bucket.tensors.iter().filter(|tensor| tensor.request.together.is_some()).count();
        assert!(grouped.is_multiple_of(2), "a group was torn: {bucket:?}");
    }
    assert!(world.refused.iter().all(Vec::is_empty), "{:?}", world.refused);
}

fn settings(capacity: usize) -> Settings {
    Settings { cycle_time: 0, threshold: 250, capacity, warn_after: None, give_up_after: None, sleep_every: None }
}

fn calls(order: &[&[&str]]) -> VecDeque<Vec<Request>> {
    order.iter().map(|names| names.iter().map(|name| request(name)).collect()).collect()
}

#[test]
fn two_ranks_that_ask_in_opposite_orders() {
    for (capacity, every) in [(0, 0), (1, 1), (2, 0), (2, 1), (2, 2)] {
        let queues = vec![calls(&[&["a"], &["b"]]), calls(&[&["b"], &["a"]])];
        let sleep_every = NonZeroU32::new(every);
        assert!(search(&Settings { sleep_every, ..settings(capacity) }, queues) > 100);
    }
}

/// Consecutive rounds: a tensor may occur again once it has begun. For each round, the submissions of each rank.
fn search_rounds(capacity: usize, plan: &[[&[&[&str]]; 2]]) {
    let mut worlds = vec![World::new(2, &settings(capacity))];
    for orders in plan {
        let mut ends = HashSet::new();
        for world in &worlds {
            ends.extend(explore(world.clone(), orders.iter().map(|order| calls(order)).collect()).1);
        }
        worlds = ends.into_iter().collect();
    }
    assert!(!worlds.is_empty());
}

/// Tensors dropped from a cache that is too small are submitted meanwhile.
#[test]
fn names_that_come_again() {
    let (ab, ba): (&[&[&str]], &[&[&str]]) = (&[&["a"], &["b"]], &[&["b"], &["a"]]);
    for capacity in [0, 1, 2] {
        search_rounds(capacity, &[[ab, ab], [ba, ab]]);
    }
}

#[test]
fn groups_that_come_again() {
    let (one, other): (&[&[&str]], &[&[&str]]) = (&[&["a", "b"], &["c"]], &[&["c"], &["a", "b"]]);
    let group: &[&[&str]] = &[&["a", "b"]];
    for capacity in 1..4 {
        // With two slots, the third tensor makes the cache drop one of the group while a rank waits by its bits.
        search_rounds(capacity, &[[group, group], [one, other]]);
    }
}

#[test]
fn groups_that_come_with_others() {
    for capacity in [0, 1, 3] {
        let queues = vec![calls(&[&["a", "b"], &["c"]]), calls(&[&["c"], &["b", "a"]])];
        assert!(search(&settings(capacity), queues) > 100);
    }
}

#[test]
fn three_ranks() {
    // All three ranks submit both tensors with `PACELINE_TEST_ALL` (`make test-all`): ten times as many states.
    let last: &[&[&str]] = if std::env::var_os("PACELINE_TEST_ALL").is_some() { &[&["a"], &["b"]] } else { &[&[]] };
    let queues = vec![calls(&[&["a"], &["b"]]), calls(&[&["b"], &["a"]]), calls(last)];
    assert!(search(&settings(1), queues) > 1000);
}

#[test]
fn ranks_that_join() {
    for capacity in [0, 2] {
        let queues = vec![calls(&[&["a"], &["b"], &[]]), calls(&[&["a"], &[]])];
        assert!(search(&settings(capacity), queues) > 100);
        let queues = vec![calls(&[&["a"], &[]]), calls(&[&["b"], &[]])];
        assert!(search(&settings(capacity), queues) > 100);
    }
}
