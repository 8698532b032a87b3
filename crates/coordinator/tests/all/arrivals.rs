//! Random arrivals: all ranks begin the same buckets in the same order, and they contain everything that all submitted.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::world::{World, request};
use paceline_coordinator::{Event, Settings, Terms};
use proptest::prelude::*;

fn settings() -> impl Strategy<Value = Settings> {
    let cycle_times = prop_oneof![0u64..5, Just(10_000)];
    let thresholds = prop_oneof![Just(0), Just(150), Just(10_000)];
    (cycle_times, thresholds, 0usize..6, 0u32..4).prop_map(|(cycle_time, threshold, capacity, every)| {
        let sleep_every = NonZeroU32::new(every);
        Settings { cycle_time, threshold, capacity, warn_after: None, give_up_after: None, sleep_every }
    })
}

/// Nothing waits for the clock, and nothing is fused.
const QUIET: Settings =
    Settings { cycle_time: 0, threshold: 0, capacity: 4, warn_after: None, give_up_after: None, sleep_every: None };

/// For each rank, an order of the same groups of tensors, several times over.
fn plans(ranks: usize) -> impl Strategy<Value = Vec<Vec<Vec<String>>>> {
    let group = prop::collection::vec(1usize..4, 1..6);
    let rounds = group.prop_map(|sizes| {
        let mut number = 0;
        sizes
            .into_iter()
            .map(|size| {
                number += size;
                (number - size..number).map(|n| format!("t{n}")).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    });
    rounds.prop_flat_map(move |groups| prop::collection::vec(Just(groups).prop_shuffle(), ranks))
}

proptest! {
    #[test]
    fn all_ranks_begin_the_same_in_the_same_order(
        plans in (1usize..5).prop_flat_map(plans), settings in settings(), steps in 1u32..5, seed in any::<u64>(),
    ) {
        let ranks = plans.len();
        let threshold = settings.threshold;
        let mut world = World::new(ranks as u32, &settings);
        for _ in 0..steps {
            let mut queues: Vec<_> = plans.iter().map(|plan| plan.iter().cloned().collect()).collect();
            world.run(&mut queues, seed);
            prop_assert!(world.all_done(), "{world:?}");
        }
        let begun = &world.begun[0];
        for other in &world.begun {
            prop_assert_eq!(begun, other);
        }
        let mut count = BTreeMap::new();
        for bucket in begun {
            for tensor in &bucket.tensors {
                *count.entry(tensor.request.name.clone()).or_insert(0) += 1;
            }
            let groups: std::collections::BTreeSet<_> = bucket.tensors.iter().map(|t| &t.request.together).collect();
            prop_assert!(bucket.bytes <= threshold || bucket.tensors.len() == 1 || groups.len() == 1);
        }
        for group in &plans[0] {
            for name in group {
                prop_assert_eq!(count.remove(name), Some(steps));
            }
            // Members of a group are in one bucket.
            for bucket in begun {
                let here = bucket.tensors.iter().filter(|t| group.contains(&t.request.name)).count();
                prop_assert!(here % group.len() == 0);
            }
        }
        prop_assert!(count.is_empty());
    }

    #[test]
    fn joined_ranks_take_part_until_all_have_joined(
        ranks in 2u32..5, steps in prop::collection::vec(0u32..4, 2..5), settings in settings(), seed in any::<u64>(),
    ) {
        let mut world = World::new(ranks, &settings);
        let steps: Vec<u32> = (0..ranks).map(|rank| steps[rank as usize % steps.len()]).collect();
        let most = *steps.iter().max().unwrap();
        let mut queues: Vec<std::collections::VecDeque<Vec<String>>> = steps
            .iter()
            .map(|&steps| (0..steps).flat_map(|step| (0..3).map(move |t| vec![format!("s{step} t{t}")])).collect())
            .collect();
        world.joins = true;
        world.run(&mut queues, seed);
        prop_assert!(world.all_done(), "{world:?}");
        for other in &world.begun {
            prop_assert_eq!(&world.begun[0], other);
        }
        prop_assert_eq!(world.begun[0].iter().map(|bucket| bucket.tensors.len()).sum::<usize>() as u32, 3 * most);
        // All ranks are told the same last rank to join.
        prop_assert!(world.all_joined.iter().all(|last| last.len() == 1 && last == &world.all_joined[0]));
    }
}

#[test]
fn what_differs_is_refused_everywhere_with_both_values() {
    let mut world = World::new(3, &QUIET);
    for round in 0..3 {
        for rank in 0..3 {
            let mut wanted = request("w");
            wanted.terms.shape = vec![if rank == 1 && round == 1 { 3 } else { 2 }];
            world.submit(rank, vec![wanted]);
        }
        world.settle();
        let refused: Vec<_> = world.refused.iter().map(Vec::len).collect();
        assert_eq!(refused, [usize::from(round > 0); 3], "round {round}");
    }
    for rank in 0..3 {
        let (name, reason) = &world.refused[rank][0];
        assert_eq!(name, "w");
        assert!(reason.starts_with("tensor 'w': the shape is [2] on rank 0 and [3] on rank 1; give it the same"));
    }
    assert_eq!(world.begun[0].len(), 2);
}

#[test]
fn rows_are_no_part_of_the_shapes_that_differ() {
    let mut ours = request("w").terms;
    ours.call = "all_gather".into();
    ours.shape = vec![3];
    let theirs = Terms { shape: vec![4], ..ours.clone() };
    let found = ours.difference(&theirs).unwrap();
    assert_eq!(found, ("shape after the first dimension", "[3]".into(), "[4]".into()));
}

#[test]
fn the_same_name_twice_is_refused_here_alone() {
    let mut world = World::new(2, &QUIET);
    world.submit(0, vec![request("w")]);
    world.submit(0, vec![request("w")]);
    world.settle();
    assert_eq!((world.refused[0].len(), world.refused[1].len()), (1, 0));
    world.submit(1, vec![request("w")]);
    world.settle();
    assert_eq!((world.begun[0].len(), world.begun[1].len()), (1, 1));
}

#[test]
fn sizes_that_differ_are_told_to_all() {
    let mut world = World::new(3, &QUIET);
    for _ in 0..2 {
        for rank in 0..3u64 {
            world.submit(rank as usize, vec![paceline_coordinator::Request { own: vec![rank + 5], ..request("g") }]);
        }
        world.settle();
    }
    assert_eq!(world.begun[2].len(), 2);
    assert_eq!(world.begun[2][1].tensors[0].own, [[5], [6], [7]]);
}

#[test]
fn tensors_that_wait_for_the_same_ranks_make_one_message() {
    let settings =
        Settings { cycle_time: 1, threshold: 100, warn_after: Some(100), give_up_after: Some(1000), ..QUIET };
    let mut world = World::new(3, &settings);
    let begin = world.now;
    let names: Vec<String> = (0..80).map(|number| format!("w{number:02}")).collect();
    for (number, name) in names.iter().enumerate() {
        world.submit(0, vec![request(name)]);
        world.submit(2, vec![request(name)]);
        world.wait(begin + number as u64 / 2);
    }
    world.submit(0, vec![request("lonely")]);
    world.wait(begin + 199);
    let mut told: Vec<(usize, &[u32])> =
        world.warned.iter().map(|stall| (stall.names.len(), &stall.lack[..])).collect();
    told.sort_unstable();
    assert_eq!(told, [(1, &[1, 2][..]), (80, &[1][..])]);
    let many = world.warned.iter().find(|stall| stall.names.len() > 1).unwrap().describe();
    assert!(many.starts_with("80 tensors have waited up to "), "{many}");
    assert!(many.ends_with("for rank 1; ranks 0, 2 asked for them: 'w00', 'w01', 'w02' and 77 more"), "{many}");
}

#[test]
fn a_tensor_that_a_rank_does_not_ask_for_is_told_of_and_fails() {
    let settings =
        Settings { cycle_time: 1, threshold: 100, warn_after: Some(100), give_up_after: Some(1000), ..QUIET };
    for cached in [false, true] {
        let mut world = World::new(3, &settings);
        if cached {
            (0..3).for_each(|rank| world.submit(rank, vec![request("w")]));
            world.settle();
        }
        let begin = world.now;
        world.submit(0, vec![request("w")]);
        world.submit(2, vec![request("w")]);
        world.settle();
        assert!(world.warned.is_empty());
        world.wait(begin + 400);
        let first = world.warned.first().unwrap();
        assert_eq!((&first.names[..], &first.have[..], &first.lack[..]), (&["w".into()][..], &[0, 2][..], &[1][..]));
        assert!(world.refused[0].is_empty());
        world.wait(begin + 3000);
        assert!(world.refused[0][0].1.contains("for rank 1; ranks 0, 2 asked for it"), "{:?}", world.refused[0]);
        assert_eq!((world.refused[1].len(), world.refused[2].len()), (0, 1));
        // It can be submitted again.
        (0..3).for_each(|rank| world.submit(rank, vec![request("w")]));
        world.settle();
        assert_eq!(world.begun[1].len(), 1 + usize::from(cached));
    }
}

#[test]
fn zeros_do_not_stand_in_for_what_they_would_change() {
    let settings = Settings { threshold: 100, ..QUIET };
    let product = || {
        let mut wanted = request("product");
        wanted.terms.neutral = false;
        wanted
    };
    let from_1 = || {
        let mut wanted = request("from 1");
        wanted.terms.root = Some(1);
        wanted
    };
    for cached in [false, true] {
        let mut world = World::new(3, &settings);
        if cached {
            (0..3).for_each(|rank| world.submit(rank, vec![product(), from_1()]));
            world.settle();
        }
        let begun = world.begun[0].len();
        world.tell(1, Event::Joined);
        world.settle();
        for wanted in [product(), from_1()] {
            world.submit(0, vec![wanted.clone()]);
            world.submit(2, vec![wanted]);
            world.settle();
        }
        world.submit(0, vec![request("sum")]);
        world.submit(2, vec![request("sum")]);
        world.settle();
        assert_eq!(world.begun[1].len(), begun + 1);
        for rank in [0, 2] {
            assert_eq!(world.refused[rank].len(), 2, "{:?}", world.refused);
            assert!(world.refused[rank].iter().all(|(_, why)| why.contains("rank 1 has joined")));
        }
        // A rank other than the root may have joined.
        let mut world = World::new(3, &settings);
        world.tell(2, Event::Joined);
        world.submit(0, vec![from_1()]);
        world.submit(1, vec![from_1()]);
        world.settle();
        assert!(world.refused.iter().all(Vec::is_empty));
        assert!(world.begun.iter().all(|begun| begun.len() == 1));
    }
}

#[test]
fn who_waits_does_not_wait_for_the_cycle_as_well() {
    let settings = Settings { cycle_time: 100, threshold: 100, ..QUIET };
    let mut world = World::new(2, &settings);
    for waits in [false, true] {
        world.submit(0, vec![request("first")]);
        world.submit(1, vec![request("first")]);
        world.settle();
        let begun = world.begun[0].len();
        world.submit(0, vec![request("second")]);
        world.submit(1, vec![request("second")]);
        if waits {
            world.tell(1, Event::Awaited);
        }
        world.settle();
        assert_eq!(world.begun[0].len() - begun, usize::from(waits), "only 50 of 100 have passed");
        world.wait(world.now + 1000);
        assert_eq!(world.begun[0].len() - begun, 1);
    }
}

#[test]
fn nobody_votes_while_nothing_is_new() {
    let settings = Settings { cycle_time: 10, threshold: 100, ..QUIET };
    let mut world = World::new(2, &settings);
    world.submit(0, vec![request("w")]);
    world.settle();
    let votes = world.votes;
    world.wait(world.now + 10_000);
    assert_eq!(world.votes, votes);
    assert!(world.asleep.iter().all(Option::is_none));
}
