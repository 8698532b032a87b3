//! Plans of models whose experts are divided among neighboring ranks.
use std::collections::BTreeMap;

use crate::blocks;
use paceline_iteration::{Collective, Group, IterationOptions, Plan, Sharding, Work, build};
use paceline_model::Trace;
use proptest::prelude::*;

const MS: u64 = 1_000_000_000;
const ELEMENTS: u64 = 64;

/// Two blocks whose MLPs are experts, beside an embedding, two attentions and a head.
fn model() -> Trace {
    let mut trace = blocks::model(2, ELEMENTS, MS);
    for tensor in &mut trace.tensors {
        tensor.name = tensor.name.replace(".mlp.", ".mlp.experts.up.");
    }
    trace
}

fn options(sharding: Sharding, expert_parallel: u32) -> IterationOptions {
    IterationOptions { expert_parallel, bucket_size: Some(1 << 20), ..IterationOptions::new(sharding) }
}

/// Elements by collective and group.
fn exchanged(plan: &Plan) -> BTreeMap<(&'static str, Group), u64> {
    let mut found = BTreeMap::new();
    for step in &plan.steps {
        if let Work::Exchange { collective, group, elements, .. } = step.work {
            *found.entry((collective.name(), group)).or_default() += elements;
        }
    }
    found
}

fn resident(plan: &Plan) -> Vec<u64> {
    plan.resident.iter().map(|&buffer| plan.buffers[buffer as usize].bytes).collect()
}

#[test]
fn ranks_exchange_experts_with_those_that_have_the_same() {
    let all = Group { size: 8, stride: 1 };
    let same = Group { size: 2, stride: 4 };
    let (dense, experts) = (4 * ELEMENTS, 2 * ELEMENTS);
    let reduce = Collective::AllReduce.name();
    let (gather, scatter) = (Collective::AllGather.name(), Collective::ReduceScatter.name());
    let plan = |sharding| build(&model(), 8, &options(sharding, 4)).unwrap();
    assert_eq!(exchanged(&plan(Sharding::None)), BTreeMap::from([((reduce, all), dense), ((reduce, same), experts)]));
    for sharding in [Sharding::Zero1, Sharding::Zero2] {
        let expected =
            [((gather, all), dense), ((gather, same), experts), ((scatter, all), dense), ((scatter, same), experts)];
        assert_eq!(exchanged(&plan(sharding)), BTreeMap::from(expected));
    }
    let sent = blocks::least_bytes_sent(&plan(Sharding::Zero1));
    assert!((sent - 2.0 * 4.0 * (7.0 / 8.0 * dense as f64 + 0.5 * experts as f64)).abs() < 1e-6, "{sent}");
    // Blocks are gathered in both passes, the root in one.
    let expected = [
        ((gather, all), dense + 2 * ELEMENTS),
        ((gather, same), 2 * experts),
        ((scatter, all), dense),
        ((scatter, same), experts),
    ];
    let sharded = plan(Sharding::Zero3);
    assert_eq!(exchanged(&sharded), BTreeMap::from(expected));
    assert_eq!(
        sharded.units.iter().map(|unit| unit.name.as_str()).collect::<Vec<_>>(),
        ["root", "h.0", "h.1", "h.0.experts", "h.1.experts"]
    );
}

/// A block and its experts are gathered while the block before computes.
#[test]
fn experts_are_gathered_ahead_with_their_block() {
    let plan = build(&model(), 8, &options(Sharding::Zero3, 4)).unwrap();
    let gathers: Vec<(String, Option<String>)> = plan
        .steps
        .iter()
        .filter(|step| step.stream == paceline_iteration::Stream::AllGather)
        .map(|step| {
            let after = step.after.first().map(|&on| plan.steps[on as usize].name(&plan.units));
            (step.name(&plan.units).replace("all-gather ", ""), after)
        })
        .collect();
    let named = |name: &str, after: &str| (name.to_owned(), (!after.is_empty()).then(|| after.to_owned()));
    assert_eq!(
        gathers[..5],
        [
            named("root", ""),
            named("h.0", ""),
            named("h.0.experts", ""),
            named("h.1", "forward root"),
            named("h.1.experts", "forward root"),
        ]
    );
    let backward: Vec<_> = gathers[5..].iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(backward, ["h.1.experts", "h.1", "h.0.experts", "h.0"]);
    assert_eq!(gathers[7].1, gathers[8].1);
}

#[test]
fn experts_that_no_other_rank_has_stay() {
    let plan = build(&model(), 8, &options(Sharding::Zero1, 8)).unwrap();
    assert!(exchanged(&plan).keys().all(|(_, group)| *group == Group { size: 8, stride: 1 }));
    let dense = 4 * ELEMENTS;
    assert_eq!(exchanged(&plan).values().sum::<u64>(), 2 * dense);
    // Parameters of 4 bytes, and Adam's two states of an eighth of what all ranks have.
    assert_eq!(resident(&plan), [4 * 6 * ELEMENTS, 8 * (dense / 8 + 2 * ELEMENTS)]);
}

#[test]
fn what_is_not_modeled_is_refused() {
    let refused = |world, options: &IterationOptions| build(&model(), world, options).unwrap_err().to_string();
    assert!(refused(6, &options(Sharding::None, 4)).contains("do not divide 6 workers"));
    let hsdp = IterationOptions { group: Some(4), ..options(Sharding::Hsdp, 4) };
    assert!(refused(8, &hsdp).contains("expert-parallel: is not modeled with hsdp"));
    let rounds = IterationOptions { sync_every: 2, ..options(Sharding::None, 4) };
    assert!(refused(8, &rounds).contains("sync-every"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// All ranks together keep the states of all parameters once, with every sharding of them, however experts are divided.
    #[test]
    fn all_ranks_keep_the_states_once(
        log_world in 0u32..5,
        log_ways in 0u32..5,
        sharding in prop::sample::select(vec![Sharding::Zero1, Sharding::Zero2, Sharding::Zero3]),
    ) {
        let (world, ways) = (1 << log_world, 1 << log_ways.min(log_world));
        let plan = build(&model(), world, &options(sharding, ways)).unwrap();
        let kept: u64 = resident(&plan)[1] * u64::from(world);
        let whole = 4 * ELEMENTS + 2 * ELEMENTS * u64::from(ways);
        prop_assert_eq!(kept, 8 * whole);
        prop_assert_eq!(plan.check(), Ok(()));
        // Its update takes the share of the parameters that it has of them.
        let updates: u64 = plan.steps.iter().map(|step| match step.work {
            Work::Optimizer { duration_ps } => duration_ps,
            _ => 0,
        }).sum();
        let share = whole as f64 / f64::from(world) / (6.0 * ELEMENTS as f64);
        prop_assert!((updates as f64 / MS as f64 / share - 1.0).abs() < 1e-6);
    }

    /// One rank with all experts has the plan of a model without experts.
    #[test]
    fn undivided_experts_are_like_other_tensors(
        world in 1u32..9,
        sharding in prop::sample::select(vec![Sharding::None, Sharding::Zero1, Sharding::Zero2, Sharding::Zero3]),
    ) {
        let plan = build(&model(), world, &options(sharding, 1)).unwrap();
        let other = build(&blocks::model(2, ELEMENTS, MS), world, &options(sharding, 1)).unwrap();
        prop_assert_eq!(exchanged(&plan), exchanged(&other));
        prop_assert_eq!(resident(&plan), resident(&other));
    }
}
