//! The policy `graph`: in whatever order ranks submit tensors, all begin the same buckets, every sum covers all ranks,
//! and all detect deviations from the plan in the same step.
use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_coordinator::{Assignment, Graph, Issue, Limits, Planned, Prescribed, Proposal, Request, Terms};
use proptest::prelude::*;

const LIMITS: Limits = Limits { first: 100, most: 250 };

fn request(name: u32, bytes: u64) -> Request {
    let terms = Terms::sum("float32", bytes);
    Request { name: format!("t{name}"), terms, own: Vec::new(), together: None, patient: false }
}

/// The submissions of a rank in a step.
#[derive(Clone, Debug, Default)]
struct Step {
    /// Tensor and size: all ranks have the same in a step, each in its own order.
    order: Vec<(u32, u64)>,
    /// How many of them, counted from the last, come only at the end of the backward pass.
    late: usize,
}

/// Ranks and their operations in flight.
struct World {
    ranks: Vec<Graph>,
    joined: Vec<bool>,
    /// Proposals after a step; ranks receive them in the next.
    proposals: Option<Vec<Option<Proposal>>>,
    /// Buckets and negotiated tensors in total.
    planned: usize,
    negotiated: usize,
}

/// A planned bucket on one rank: its contribution, by name.
type Put = (Issue, BTreeMap<String, u64>);

fn value(rank: usize, name: &str, step: usize) -> u64 {
    name.bytes().fold(rank as u64 * 7919 + step as u64 * 104_729, |sum, byte| sum * 31 % 1_000_003 + u64::from(byte))
}

impl World {
    fn new(ranks: usize) -> World {
        World {
            ranks: vec![Graph::new(LIMITS); ranks],
            joined: vec![false; ranks],
            proposals: None,
            planned: 0,
            negotiated: 0,
        }
    }

    /// One step of all ranks that have not joined; those in `joins` join instead.
    fn step(&mut self, number: usize, steps: &[Step], joins: &[usize]) {
        let mut put: Vec<Vec<Put>> = vec![Vec::new(); self.ranks.len()];
        let mut negotiated: Vec<BTreeMap<String, u64>> = vec![BTreeMap::new(); self.ranks.len()];
        let slots: Vec<Vec<String>> =
            self.ranks.iter().map(|graph| graph.slots().iter().map(|slot| slot.name.clone()).collect()).collect();
        for (rank, graph) in self.ranks.iter_mut().enumerate() {
            let names = &slots[rank];
            let mut filled: BTreeMap<String, u64> = BTreeMap::new();
            let mut note = |issues: Vec<Issue>, filled: &mut BTreeMap<String, u64>| {
                for issue in issues {
                    let here = issue.slots.clone().filter_map(|slot| {
                        let value = filled.remove(&names[slot])?;
                        Some((names[slot].clone(), value))
                    });
                    let here: BTreeMap<String, u64> = here.collect();
                    put[rank].push((issue, here));
                }
            };
            if self.joined[rank] {
                continue;
            }
            if joins.contains(&rank) {
                self.joined[rank] = true;
                note(graph.leave(), &mut filled);
                continue;
            }
            let Step { order, late } = &steps[rank];
            for (at, (name, bytes)) in order.iter().enumerate() {
                let wanted = request(*name, *bytes);
                match graph.asked(&wanted, at + late >= order.len()) {
                    Assignment::Slot(slot) => {
                        assert_eq!(names[slot], wanted.name);
                        filled.insert(wanted.name.clone(), value(rank, &wanted.name, number));
                        note(graph.due(), &mut filled);
                    }
                    Assignment::Negotiated => {
                        let twice = negotiated[rank].insert(wanted.name.clone(), value(rank, &wanted.name, number));
                        assert_eq!(twice, None);
                    }
                }
            }
            note(graph.flush(), &mut filled);
            assert!(filled.is_empty(), "what has a slot begins");
        }
        let irregular = self.sums(number, &put, &negotiated);
        self.ends(irregular);
    }

    /// Checks that every sum covers all ranks that have not joined. Returns whether any rank found something out of
    /// order.
    fn sums(&mut self, number: usize, put: &[Vec<Put>], negotiated: &[BTreeMap<String, u64>]) -> bool {
        let taking_part: Vec<usize> = (0..put.len()).filter(|&rank| !put[rank].is_empty()).collect();
        let buckets = put.iter().map(Vec::len).max().unwrap_or(0);
        self.planned += buckets;
        let mut irregular = false;
        for bucket in 0..buckets {
            let issues: Vec<&Put> = taking_part.iter().map(|&rank| &put[rank][bucket]).collect();
            assert!(issues.iter().all(|(issue, _)| issue.slots == issues[0].0.slots), "other buckets");
            irregular |= issues.iter().any(|(issue, _)| issue.irregular);
            let absent: Vec<usize> = issues.iter().flat_map(|(issue, _)| issue.absent.clone()).collect();
            let names = issues.iter().flat_map(|(_, here)| here.keys());
            for name in names {
                let sum: u64 = issues.iter().filter_map(|(_, here)| here.get(name)).sum();
                let all = (0..put.len()).filter(|&rank| !self.joined[rank]).map(|rank| value(rank, name, number));
                assert_eq!(sum, all.sum::<u64>(), "{name}");
            }
            if !absent.is_empty() {
                assert!(irregular);
            }
        }
        // Negotiating ranks submit the same, so that none waits.
        let active: Vec<usize> = (0..negotiated.len()).filter(|&rank| !self.joined[rank]).collect();
        for &rank in &active {
            let names: Vec<_> = negotiated[rank].keys().collect();
            assert_eq!(names, negotiated[active[0]].keys().collect::<Vec<_>>(), "rank {rank} waits");
            self.negotiated += names.len();
        }
        irregular
    }

    fn ends(&mut self, irregular: bool) {
        let active: Vec<usize> = (0..self.ranks.len()).filter(|&rank| !self.joined[rank]).collect();
        // Some rank has joined: proposals are discarded once all have.
        let pending = self.proposals.take().filter(|_| active.len() == self.ranks.len());
        if let Some(proposals) = pending {
            for &rank in &active {
                assert_eq!(self.ranks[rank].ended(irregular), None);
                self.ranks[rank].agree(&proposals);
            }
        } else {
            let mine: Vec<Option<Proposal>> = active.iter().map(|&rank| self.ranks[rank].ended(irregular)).collect();
            assert!(mine.iter().all(|one| one.is_some() == mine[0].is_some()), "some propose and others do not");
            if mine.first().is_some_and(Option::is_some) && active.len() == self.ranks.len() {
                self.proposals = Some(mine);
            }
        }
        let same = active.iter().all(|&rank| self.ranks[rank] == self.ranks[active[0]]);
        assert!(same, "ranks are not of one mind");
    }

    fn all_join(&mut self, number: usize) {
        let rest: Vec<usize> = (0..self.ranks.len()).filter(|&rank| !self.joined[rank]).collect();
        self.step(number, &vec![Step::default(); self.ranks.len()], &rest);
        self.ranks.iter_mut().for_each(Graph::restart);
        self.joined.fill(false);
        self.proposals = None;
    }
}

/// The tensors of a model. Ranks have them in the same order, or each in its own.
fn model() -> impl Strategy<Value = Vec<(u32, u64)>> {
    prop::collection::vec(1u64..60, 1..8).prop_map(|sizes| (0..).zip(sizes.into_iter().map(|size| size * 4)).collect())
}

fn orders(ranks: usize) -> impl Strategy<Value = Vec<Step>> {
    model().prop_flat_map(move |tensors| {
        let count = tensors.len();
        let one = (Just(tensors.clone()).prop_shuffle(), prop_oneof![3 => Just(0usize), 1 => 0..=count]);
        prop::collection::vec(one.prop_map(|(order, late)| Step { order, late }), ranks)
    })
}

proptest! {
    /// Random arrival orders, missing gradients, models that change, ranks that run out of data.
    #[test]
    fn all_ranks_agree_without_a_word(
        (ranks, models) in (2usize..9).prop_flat_map(|ranks| (Just(ranks), prop::collection::vec(orders(ranks), 1..4))),
        kept_for in prop::collection::vec(1usize..7, 4),
        leaver in any::<prop::sample::Index>(),
    ) {
        let mut world = World::new(ranks);
        let mut number = 0;
        for (steps, times) in models.iter().zip(&kept_for) {
            for _ in 0..*times {
                world.step(number, steps, &[]);
                number += 1;
            }
        }
        // One rank has no more data; the others continue, then all begin the next epoch.
        let last = &models[models.len() - 1];
        world.step(number, last, &[leaver.index(ranks)]);
        world.step(number + 1, last, &[]);
        world.step(number + 2, last, &[]);
        world.all_join(number + 3);
        for more in 4..8 {
            world.step(number + more, last, &[]);
        }
    }
}

fn permutations(items: &[(u32, u64)]) -> Vec<Vec<(u32, u64)>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for at in 0..items.len() {
        let mut rest = items.to_vec();
        let first = rest.remove(at);
        all.extend(permutations(&rest).into_iter().map(|mut order| {
            order.insert(0, first);
            order
        }));
    }
    all
}

/// Every order of three tensors, with any number of them late, on each of two ranks, after each possible plan.
#[test]
fn every_step_of_two_ranks() {
    let tensors = [(0, 60), (1, 60), (2, 200)];
    let steps: Vec<Step> = permutations(&tensors)
        .into_iter()
        .flat_map(|order| (0..=order.len()).map(move |late| Step { order: order.clone(), late }))
        .collect();
    let mut planned = 0;
    for learned in &steps {
        for a in &steps {
            for b in &steps {
                let mut world = World::new(2);
                world.step(0, &[learned.clone(), learned.clone()], &[]);
                world.step(0, &[learned.clone(), learned.clone()], &[]);
                assert!(world.ranks[0].planned());
                world.step(1, &[a.clone(), b.clone()], &[]);
                world.step(2, &[a.clone(), a.clone()], &[]);
                planned += world.planned;
            }
        }
    }
    assert!(planned > 10_000);
}

/// Planned tensors need no coordination; a new one is planned too, after one step.
#[test]
fn a_model_that_stays_is_negotiated_once() {
    let step = Step { order: vec![(0, 80), (1, 80), (2, 80), (3, 400)], late: 0 };
    let other = Step { order: vec![(0, 80), (5, 80)], late: 0 };
    let mut world = World::new(4);
    for number in 0..20 {
        world.step(number, &vec![step.clone(); 4], &[]);
    }
    // The first bucket is small. A tensor that does not fit begins another, and one larger than a bucket gets its own.
    assert_eq!((world.negotiated, world.planned), (2 * 4 * 4, 18 * 3));
    for number in 20..30 {
        world.step(number, &vec![other.clone(); 4], &[]);
    }
    // In step 20 tensor 0 has its slot and tensor 5 has none; step 21 is recorded, and in step 22 the ranks compare.
    assert_eq!((world.negotiated, world.planned), (32 + 4 + 2 * 8, 18 * 3 + 3 + 7 * 2));
}

/// Two alternating models are hardly ever planned: after each plan that did not last, the wait is doubled.
#[test]
fn what_never_lasts_is_given_up() {
    let steps = [Step { order: vec![(0, 8)], late: 0 }, Step { order: vec![(1, 8)], late: 0 }];
    let mut world = World::new(2);
    for number in 0..400 {
        world.step(number, &vec![steps[number % 2].clone(); 2], &[]);
    }
    assert!(world.planned < 30, "{}", world.planned);
}

/// A tensor that no rank computes comes last, and does not cause a new plan.
#[test]
fn unused_parameters_are_planned_last() {
    let step = Step { order: vec![(0, 80), (1, 80), (2, 80)], late: 1 };
    let mut world = World::new(3);
    for number in 0..10 {
        world.step(number, &vec![step.clone(); 3], &[]);
    }
    assert_eq!(world.negotiated, 2 * 9);
    assert!(world.ranks[0].planned());
}

/// Other ranks learn of it through a number that travels with the bucket.
#[test]
fn a_shape_that_changes_on_one_rank_is_absent_there() {
    let plan = Step { order: vec![(0, 80), (1, 200)], late: 0 };
    let mut world = World::new(2);
    world.step(0, &[plan.clone(), plan.clone()], &[]);
    world.step(0, &[plan.clone(), plan], &[]);
    let graph = &mut world.ranks[1];
    assert_eq!(graph.asked(&request(0, 40), false), Assignment::Negotiated);
    assert_eq!(graph.asked(&request(1, 200), false), Assignment::Slot(1));
    assert!(graph.due().is_empty());
    let issues = graph.flush();
    assert_eq!(issues[0], Issue { slots: 0..1, absent: vec![0], irregular: true });
    assert!(issues[1].absent.is_empty() && issues[1].irregular);
}

/// Three tensors in every order on each of two ranks, under a plan whose order and buckets no rank has.
#[test]
fn a_plan_that_was_made_before_the_run_is_followed() {
    let sizes = [(0, 40), (1, 80), (2, 120)];
    let planned = |(name, bytes): (u32, u64)| Planned { name: format!("t{name}"), dtype: "float32".into(), bytes };
    let buckets = vec![vec![planned(sizes[2]), planned(sizes[0])], vec![planned((9, 4))], vec![planned(sizes[1])]];
    let plan = Arc::new(Prescribed { source: "plan.json".into(), buckets });
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for first in orders {
        for second in orders {
            let mut world = World::new(2);
            world.ranks.iter_mut().for_each(|rank| *rank = Graph::new(LIMITS).following(Some(plan.clone())));
            let step = |order: [usize; 3]| Step { order: order.map(|at| sizes[at]).to_vec(), late: 0 };
            for number in 0..5 {
                world.step(number, &[step(first), step(second)], &[]);
            }
            for rank in &world.ranks {
                let names: Vec<&str> = rank.slots().iter().map(|slot| slot.name.as_str()).collect();
                assert_eq!(names, ["t2", "t0", "t1"]);
            }
            assert!(world.planned > 0);
        }
    }
}
