//! Plans whose exchanges do not wait for each other: Paceline's runtime, and parameter servers.
use crate::blocks;
use paceline_iteration::{Exchanges, IterationOptions, Plan, Pull, Sharding, Step, Stream, Work, build};
use paceline_model::trace::Tensor;
use paceline_model::{Time, Trace};
use proptest::prelude::*;

const MS: u64 = 1_000_000_000;

fn options(exchanges: Exchanges) -> IterationOptions {
    IterationOptions { exchanges, bucket_size: None, ..IterationOptions::new(Sharding::None) }
}

/// A root and one block; 2 ms follow the last gradient, and one tensor is only distributed.
fn model() -> Trace {
    let mut trace = blocks::model(1, 64, MS);
    trace.workers[0].backward += Time(2 * MS);
    trace.tensors.push(Tensor { name: "average".into(), bytes: 0, pull_bytes: 400, frozen_bytes: 0, shape: None });
    trace.distribution.push(4);
    trace
}

fn names<'a>(plan: &Plan, steps: impl Iterator<Item = &'a Step>) -> Vec<String> {
    steps.map(|step| step.name(&plan.units)).collect()
}

fn exchanges(plan: &Plan) -> impl Iterator<Item = &Step> {
    plan.steps.iter().filter(|step| step.stream == Stream::Background)
}

/// Milliseconds of the backward pass before each exchange.
fn sent_at(plan: &Plan) -> Vec<u64> {
    let mut ends = vec![0; plan.steps.len()];
    let mut now = 0;
    for (number, step) in plan.steps.iter().enumerate() {
        if let Work::Backward { duration_ps } = step.work {
            now += duration_ps;
        }
        ends[number] = now;
    }
    exchanges(plan).map(|step| ends[step.after[0] as usize] / MS).collect()
}

#[test]
fn buckets_are_sent_when_they_are_ready_and_the_optimizer_waits_for_all() {
    let plan = build(&model(), 4, &options(Exchanges::Background)).unwrap();
    let order = ["all-reduce head.weight", "all-reduce h.0.mlp.weight", "all-reduce h.0.attn.weight"];
    assert_eq!(names(&plan, exchanges(&plan))[..3], order);
    assert_eq!(sent_at(&plan), [2, 4, 6, 8]);
    assert!(exchanges(&plan).all(|step| step.after.len() == 1));
    let last = plan.steps.last().unwrap();
    assert!(matches!(last.work, Work::Optimizer { .. }));
    assert_eq!(last.after.len(), 4);
    // What follows the last gradient is computed beside its exchange.
    let backward = plan.steps.iter().rev().find(|step| matches!(step.work, Work::Backward { .. })).unwrap();
    assert_eq!(backward.work, Work::Backward { duration_ps: 2 * MS });
    assert!(!plan.ends_with_compute);
}

#[test]
fn without_overlap_buckets_are_sent_at_the_end_of_the_pass() {
    let plan = build(&model(), 4, &IterationOptions { overlap: false, ..options(Exchanges::Background) }).unwrap();
    assert_eq!(sent_at(&plan), [10; 4]);
}

#[test]
fn layers_wait_for_what_servers_sent_back_and_update_it() {
    let plan = build(&model(), 4, &options(Exchanges::Servers(Pull::Layer))).unwrap();
    assert!(plan.ends_with_compute);
    let forward: Vec<_> = plan.steps.iter().filter(|step| matches!(step.work, Work::Forward { .. })).collect();
    assert_eq!(names(&plan, forward.iter().copied()), ["wte", "h.0.attn", "h.0.mlp", "head"]);
    for (step, tensor) in forward.iter().zip(["wte.weight", "h.0.attn.weight", "h.0.mlp.weight", "head.weight"]) {
        let [awaited] = step.after_previous[..] else { panic!("one bucket") };
        let unit = plan.steps[awaited as usize].unit.unwrap();
        assert_eq!(plan.units[unit as usize].name, tensor);
        // A quarter of the optimizer's millisecond.
        assert_eq!(step.work, Work::Forward { duration_ps: MS + MS / 4 });
    }
    // What is only distributed is sent first.
    assert_eq!(names(&plan, exchanges(&plan))[0], "all-reduce average");
    assert_eq!(sent_at(&plan), [0, 2, 4, 6, 8]);
    let average = &plan.units[4];
    assert_eq!((average.pull_only, average.priority, average.elements), (true, Some(4), 100));
    assert_eq!(plan.elements(), 4 * 64);
    let pulled = build(&model(), 4, &options(Exchanges::Servers(Pull::Step))).unwrap();
    assert_eq!(pulled.steps.last().unwrap().after.len(), 5);
    assert!(pulled.steps.iter().all(|step| step.after_previous.is_empty()));
}

#[test]
fn workers_have_their_own_order_or_the_first_ones() {
    let mut trace = blocks::model(1, 64, MS);
    let mut other = trace.workers[0].clone();
    other.gradients.iter_mut().zip([3, 2, 1, 0]).for_each(|(gradient, tensor)| gradient.tensor = 3 - tensor);
    trace.workers.push(other);
    let own = IterationOptions { recorded: 1, ..options(Exchanges::Background) };
    let plan = build(&trace, 4, &own).unwrap();
    let units = |plan: &Plan| exchanges(plan).map(|step| step.unit.unwrap()).collect::<Vec<_>>();
    assert_eq!((units(&plan), sent_at(&plan)), (vec![0, 1, 2, 3], vec![2, 4, 6, 8]));
    let plan = build(&trace, 4, &IterationOptions { common_order: true, ..own }).unwrap();
    assert_eq!((units(&plan), sent_at(&plan)), (vec![3, 2, 1, 0], vec![8, 8, 8, 8]));
}

#[test]
fn what_needs_an_order_is_refused() {
    let often = IterationOptions { sync_every: 2, ..options(Exchanges::Background) };
    let error = build(&model(), 4, &often).unwrap_err();
    assert!(error.to_string().starts_with("sync-every: needs exchanges that wait for each other"), "{error}");
}

proptest! {
    /// All gradients are exchanged once a pass that synchronizes, and the plan can be executed and read again.
    #[test]
    fn every_gradient_is_exchanged(
        blocks in 0u32..4,
        world in 1u32..9,
        bucket in prop::option::of(1u64..2_000),
        exchanges in prop::sample::select(vec![
            Exchanges::Background, Exchanges::Servers(Pull::Layer), Exchanges::Servers(Pull::Step),
        ]),
        overlap in any::<bool>(),
        accumulate in 1u32..3,
    ) {
        let trace = blocks::model(blocks, 64, MS);
        let options = IterationOptions { bucket_size: bucket, overlap, accumulate, ..options(exchanges) };
        let plan = build(&trace, world, &options).unwrap();
        prop_assert_eq!(plan.check(), Ok(()));
        prop_assert_eq!(&Plan::from_json(&plan.to_json(), "plan").unwrap(), &plan);
        let sent: u64 = plan.steps.iter().map(|step| match step.work {
            Work::Exchange { elements, .. } => elements,
            _ => 0,
        }).sum();
        let all = u64::from(2 * blocks + 2) * 64;
        prop_assert_eq!(sent, if world > 1 || exchanges.have_servers() { all } else { 0 });
        let (ranks, bytes) = (f64::from(world), all as f64 * 4.0);
        prop_assert!((blocks::least_bytes_sent(&plan) - 2.0 * (ranks - 1.0) / ranks * bytes).abs() < 1e-6);
        prop_assert_eq!(plan.elements(), all);
    }
}

#[test]
fn only_passes_that_exchange_hand_gradients_to_the_library() {
    let options = IterationOptions { accumulate: 2, call: Time(MS), ..options(Exchanges::Background) };
    let backward = |options: &IterationOptions, world| {
        let plan = build(&blocks::model(1, 64, MS), world, options).unwrap();
        [0, 1].map(|pass| {
            let of_pass = plan.steps.iter().filter(|step| step.pass == pass);
            let length =
                |step: &Step| if let Work::Backward { duration_ps } = step.work { duration_ps / MS } else { 0 };
            of_pass.map(length).sum::<u64>()
        })
    };
    // Four gradients.
    assert_eq!(backward(&options, 4), [8, 12]);
    assert_eq!(backward(&options, 1), [8, 8]);
    assert_eq!(backward(&IterationOptions { synchronize: Some(true), ..options }, 4), [12, 12]);
}
