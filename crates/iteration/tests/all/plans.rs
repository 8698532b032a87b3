//! Plans against their closed forms.
use std::collections::BTreeSet;

use crate::blocks;
use paceline_iteration::{
    BufferKind, Collective, Held, IterationOptions, Optimizer, Plan, Reshard, Sharding, Step, Stream, Work, build,
};
use paceline_model::trace::Dtype;
use paceline_model::{Time, Trace};
use proptest::prelude::*;

const MS: u64 = 1_000_000_000;

/// Layers keep 100 bytes for the backward pass, and the optimizer takes 8 ms.
fn model(blocks: u32, elements: u64) -> Trace {
    let mut trace = blocks::model(blocks, elements, MS);
    let worker = &mut trace.workers[0];
    worker.optimizer = Time(8 * MS);
    worker.forward.iter_mut().for_each(|layer| layer.activation_bytes = Some(100));
    trace
}

fn options(sharding: Sharding) -> IterationOptions {
    IterationOptions { group: (sharding == Sharding::Hsdp).then_some(4), ..IterationOptions::new(sharding) }
}

fn names(plan: &Plan, stream: Stream) -> Vec<String> {
    plan.steps.iter().filter(|step| step.stream == stream).map(|step| step.name(&plan.units)).collect()
}

#[test]
fn a_sharded_iteration_gathers_twice_and_scatters_once() {
    let plan = build(&model(2, 64), 8, &options(Sharding::Zero3)).unwrap();
    assert_eq!(
        names(&plan, Stream::AllGather),
        ["all-gather root", "all-gather h.0", "all-gather h.1", "all-gather h.1", "all-gather h.0"]
    );
    assert_eq!(
        names(&plan, Stream::ReduceScatter),
        ["reduce-scatter h.1", "reduce-scatter h.0", "reduce-scatter root"]
    );
    assert_eq!(
        names(&plan, Stream::Compute),
        [
            "forward root",
            "forward h.0",
            "forward h.1",
            "forward root",
            "backward root",
            "backward h.1",
            "backward h.0",
            "backward root",
            "optimizer"
        ]
    );
    // An eighth of the parameters is updated on each rank.
    let computes = |step: &Step| match step.work {
        Work::Forward { duration_ps } | Work::Backward { duration_ps } | Work::Optimizer { duration_ps } => duration_ps,
        Work::Exchange { .. } | Work::Compress { .. } | Work::Decompress { .. } | Work::OuterOptimizer { .. } => 0,
    };
    assert_eq!(plan.steps.iter().map(computes).sum::<u64>(), (6 + 12 + 1) * MS);
}

#[test]
fn gathers_wait_for_the_unit_that_is_as_far_ahead() {
    let waits = |prefetch| {
        let options = IterationOptions { prefetch: Some(prefetch), ..options(Sharding::Zero3) };
        let plan = build(&model(4, 64), 8, &options).unwrap();
        let gathers = plan.steps.iter().filter(|step| step.stream == Stream::AllGather).take(5);
        gathers.map(|step| step.after.first().map(|&on| plan.steps[on as usize].name(&plan.units))).collect::<Vec<_>>()
    };
    let named = |name: &str| Some(name.to_owned());
    assert_eq!(
        waits(0),
        [None, named("forward root"), named("forward h.0"), named("forward h.1"), named("forward h.2")]
    );
    assert_eq!(waits(1), [None, None, named("forward root"), named("forward h.0"), named("forward h.1")]);
    assert_eq!(waits(2), [None, None, None, named("forward root"), named("forward h.0")]);
}

#[test]
fn every_sharding_divides_its_part_of_the_memory() {
    let trace = model(2, 64);
    let resident = |sharding| {
        let plan = build(&trace, 8, &options(sharding)).unwrap();
        plan.resident.iter().map(|&buffer| plan.buffers[buffer as usize].bytes).collect::<Vec<_>>()
    };
    let all = 6 * 64;
    // With DDP's buckets.
    assert_eq!(resident(Sharding::None), [4 * all, 8 * all, 4 * all]);
    assert_eq!(resident(Sharding::Zero1), [4 * all, all]);
    assert_eq!(resident(Sharding::Zero3), [4 * all / 8, all]);
    assert_eq!(resident(Sharding::Hsdp), [4 * all / 4, 2 * all]);
    let grouped = IterationOptions { group: Some(2), ..options(Sharding::Zero1) };
    let plan = build(&trace, 8, &grouped).unwrap();
    assert_eq!(plan.shard_ranks, 2);
    assert_eq!((plan.buffers[0].bytes, plan.buffers[1].bytes), (4 * all, 4 * all));
    let mixed = IterationOptions { param_dtype: Some(Dtype::Bfloat16), ..options(Sharding::None) };
    let plan = build(&trace, 8, &mixed).unwrap();
    // Adam in mixed precision: 12 bytes a parameter beside 2.
    assert_eq!((plan.buffers[0].bytes, plan.buffers[1].bytes), (2 * all, 12 * all));
    assert_eq!(Optimizer::Sgd.state_bytes(Dtype::Float32), 0);
    assert_eq!(Optimizer::Adam.state_bytes(Dtype::Float64), 16);
}

/// A model of which only the MLPs are trained, as with adapters.
fn adapted(elements: u64) -> Trace {
    let mut trace = model(2, elements);
    for tensor in trace.tensors.iter_mut().filter(|tensor| !tensor.name.contains("mlp")) {
        (tensor.bytes, tensor.pull_bytes, tensor.frozen_bytes) = (0, 0, 4 * elements);
    }
    let is_trained = |index: u32| trace.tensors[index as usize].bytes > 0;
    trace.workers[0].gradients.retain(|gradient| is_trained(gradient.tensor));
    trace.distribution.retain(|&index| is_trained(index));
    trace
}

#[test]
fn frozen_parameters_are_held_and_gathered_but_not_reduced() {
    let (trace, elements) = (adapted(80), 80);
    let sum = |plan: &Plan, kind| {
        let found = plan.resident.iter().map(|&buffer| &plan.buffers[buffer as usize]);
        found.filter(|buffer| buffer.kind == kind).map(|buffer| buffer.bytes).sum::<u64>()
    };
    for (sharding, parameters) in [(Sharding::None, 6 * elements), (Sharding::Zero3, 6 * elements / 4)] {
        let plan = build(&trace, 4, &options(sharding)).unwrap();
        assert_eq!(plan.elements(), 6 * elements);
        assert_eq!(sum(&plan, BufferKind::Parameters), 4 * parameters);
        let states = if sharding == Sharding::None { 2 * elements } else { 2 * elements / 4 };
        assert_eq!(sum(&plan, BufferKind::OptimizerStates), 8 * states);
        let moved = |which| {
            let sizes = plan.steps.iter().filter_map(|step| match step.work {
                Work::Exchange { collective, elements, .. } if collective == which => Some(elements),
                _ => None,
            });
            sizes.sum::<u64>()
        };
        let reduced = if sharding == Sharding::None { Collective::AllReduce } else { Collective::ReduceScatter };
        assert_eq!(moved(reduced), 2 * elements);
        // The root, whose embedding and head are frozen, is gathered once, the blocks twice.
        let gathered = if sharding == Sharding::None { 0 } else { (2 + 2 * 4) * elements };
        assert_eq!(moved(Collective::AllGather), gathered);
        assert_eq!(Plan::from_json(&plan.to_json(), "again").unwrap(), plan);
    }
}

#[test]
fn states_are_those_that_were_recorded() {
    let states = |trace: &Trace, options: &IterationOptions| {
        let plan = build(trace, 1, options).unwrap();
        let buffers = plan.resident.iter().map(|&buffer| &plan.buffers[buffer as usize]);
        buffers.filter(|one| one.kind == BufferKind::OptimizerStates).map(|one| one.bytes).sum::<u64>()
    };
    let mut trace = model(1, 10);
    let (all, mut own) = (4 * 10, options(Sharding::None));
    assert_eq!(states(&trace, &own), 8 * all);
    trace.optimizer_bytes = Some(3 * all);
    assert_eq!(states(&trace, &own), 3 * all);
    // What is converted has a copy in float32, what was recorded in 16 bits has none.
    own.param_dtype = Some(Dtype::Bfloat16);
    assert_eq!(states(&trace, &own), (3 + 4) * all);
    own.optimizer = Some(Optimizer::Momentum);
    assert_eq!(states(&trace, &own), 8 * all);
    trace.dtype = Dtype::Bfloat16;
    (own.param_dtype, own.optimizer) = (None, None);
    assert_eq!(states(&trace, &own), 3 * all);
    own.sharding = Sharding::Zero3;
    assert_eq!(states(&trace, &own), 3 * all);
}

#[test]
fn accumulation_synchronizes_at_the_end_or_in_between() {
    let count = |sharding, synchronize, collective| {
        let options = IterationOptions { accumulate: 3, synchronize, ..options(sharding) };
        let plan = build(&model(2, 64), 8, &options).unwrap();
        let is = |work: &Work| matches!(work, Work::Exchange { collective: found, .. } if *found == collective);
        plan.steps.iter().filter(|step| is(&step.work)).count()
    };
    let all = (Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather);
    assert_eq!(count(Sharding::None, None, all.0), 1);
    assert_eq!(count(Sharding::None, Some(true), all.0), 3);
    assert_eq!(count(Sharding::Zero1, None, all.1), 1);
    assert_eq!(count(Sharding::Zero2, None, all.1), 3);
    assert_eq!(count(Sharding::Zero3, None, all.1), 9);
    assert_eq!(count(Sharding::Zero3, Some(false), all.1), 3);
    assert_eq!(count(Sharding::Zero3, None, all.2), 15);
    assert_eq!(count(Sharding::Hsdp, Some(false), all.0), 3);
}

/// DDP and FSDP2 wait for the exchanges of a pass at its end.
#[test]
fn a_pass_begins_when_the_exchanges_of_the_one_before_have_ended() {
    for (sharding, synchronize) in [(Sharding::Zero3, None), (Sharding::Hsdp, None), (Sharding::None, Some(true))] {
        let group = (sharding == Sharding::Hsdp).then_some(4);
        let options = IterationOptions { accumulate: 2, synchronize, group, ..options(sharding) };
        let plan = build(&model(2, 64), 8, &options).unwrap();
        let last = |stream| plan.steps.iter().rposition(|step| step.pass == 0 && step.stream == stream);
        let reduced: Vec<u32> =
            [Stream::ReduceScatter, Stream::AllReduce].into_iter().filter_map(last).map(|step| step as u32).collect();
        assert!(!reduced.is_empty(), "{sharding:?}");
        for stream in [Stream::AllGather, Stream::Compute] {
            if let Some(first) = plan.steps.iter().find(|step| step.pass == 1 && step.stream == stream) {
                assert!(reduced.iter().all(|step| first.after.contains(step)), "{sharding:?}: {first:?} {reduced:?}");
            }
        }
        // Not after a pass that exchanges nothing.
        let plan = build(&model(2, 64), 8, &IterationOptions { synchronize: Some(false), ..options }).unwrap();
        let first = plan.steps.iter().find(|step| step.pass == 1 && step.stream == Stream::Compute).unwrap();
        assert!(first.after.iter().all(|&step| plan.steps[step as usize].pass == 1), "{sharding:?}: {first:?}");
    }
}

#[test]
fn errors_name_the_option_and_the_remedy() {
    let error = |options: IterationOptions| build(&model(2, 64), 8, &options).unwrap_err().to_string();
    let bad = IterationOptions { group: Some(3), ..options(Sharding::Hsdp) };
    assert!(error(bad).starts_with("sharding: groups of 3 do not divide 8 data-parallel workers"));
    let bad = IterationOptions { group: Some(4), ..options(Sharding::Zero3) };
    assert_eq!(error(bad), "sharding: zero3 has no groups");
    let bad = IterationOptions { prefetch: Some(1), ..options(Sharding::None) };
    assert!(error(bad).starts_with("prefetch: needs sharding that gathers"));
    let bad = IterationOptions { unit: Some("h.*".into()), ..options(Sharding::Zero1) };
    assert!(error(bad).starts_with("unit: needs sharding that gathers"));
    let bad = IterationOptions { synchronize: Some(true), ..options(Sharding::Zero3) };
    assert!(error(bad).contains("needs accumulation"));
    let bad = IterationOptions { reshard_after_forward: Reshard::Ranks(3), ..options(Sharding::Zero3) };
    assert!(error(bad).starts_with("reshard-after-forward: 3 must divide the 8 ranks"));
    let plan = build(&model(1, 64), 8, &options(Sharding::Zero3)).unwrap();
    let text = plan.to_json();
    let broken = text.replacen("\"after\": []", "\"after\": [4000000]", 1);
    assert!(Plan::from_json(&broken, "x.json").unwrap_err().to_string().starts_with("x.json: steps[0].after"));
    assert!(
        Plan::from_json(&text.replace("version\": 1", "version\": 2"), "x")
            .unwrap_err()
            .to_string()
            .contains("version 2")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// A rank sends the volume of the publications, buffers are allocated once and all are freed, and JSON loses nothing.
    #[test]
    fn plans_are_sound(
        sharding in prop::sample::select(vec![
            Sharding::None, Sharding::Zero1, Sharding::Zero2, Sharding::Zero3, Sharding::Hsdp,
        ]),
        (blocks, elements) in (0u32..5, 1u64..100),
        (groups, group) in (1u32..4, prop::sample::select(vec![1u32, 2, 4])),
        prefetch in prop::option::of(0u32..4),
        accumulate in 1u32..4,
        synchronize in any::<bool>(),
        reshard in prop::sample::select(vec![Reshard::Yes, Reshard::No, Reshard::Ranks(1), Reshard::Ranks(2)]),
        bucket_size in prop::option::of(1u64..500),
        overlap in any::<bool>(),
        in_groups in any::<bool>(),
    ) {
        let trace = model(blocks, elements * 8);
        let world = groups * group;
        let sharded = sharding.gathers_units();
        let group = (sharding == Sharding::Hsdp || sharding.has_groups() && in_groups).then_some(group);
        let ranks = group.unwrap_or(world);
        let reshard = if sharded && ranks.is_multiple_of(2) { reshard } else { Reshard::Yes };
        let options = IterationOptions {
            group,
            prefetch: prefetch.filter(|_| sharding != Sharding::None),
            accumulate,
            synchronize: (accumulate > 1).then_some(synchronize),
            reshard_after_forward: reshard,
            bucket_size,
            overlap,
            ..IterationOptions::new(sharding)
        };
        let plan = build(&trace, world, &options).unwrap();
        prop_assert_eq!(plan.check(), Ok(()));
        prop_assert_eq!(&Plan::from_json(&plan.to_json(), "plan").unwrap(), &plan);
        let allocated: usize = plan.steps.iter().map(|step| step.allocates.len()).sum();
        let freed: BTreeSet<u32> = plan.steps.iter().flat_map(|step| step.frees.iter().copied()).collect();
        prop_assert_eq!(allocated, freed.len());
        prop_assert_eq!(allocated + plan.resident.len(), plan.buffers.len());
        let kept: u64 = plan.buffers.iter().filter(|it| it.kind == BufferKind::Activations).map(|it| it.bytes).sum();
        prop_assert_eq!(kept, u64::from(accumulate) * 2 * 100 * u64::from(2 * blocks + 2));

        let all = f64::from(2 * blocks + 2) * (elements * 8) as f64 * 4.0;
        let root = if blocks < 2 { 0.0 } else { 2.0 * (elements * 8) as f64 * 4.0 };
        let part = |ranks: u32| f64::from(ranks - 1) / f64::from(ranks);
        let passes = f64::from(accumulate);
        let between = 2.0 * part(world / ranks) / f64::from(ranks);
        let scatters = match sharding {
            Sharding::None | Sharding::Zero1 => if accumulate > 1 && synchronize { passes } else { 1.0 },
            _ => if accumulate > 1 && !synchronize { 1.0 } else { passes },
        };
        let expected = match sharding {
            Sharding::None => scatters * 2.0 * part(world) * all,
            Sharding::Zero1 | Sharding::Zero2 => (scatters * (part(ranks) + between) + part(ranks)) * all,
            Sharding::Zero3 | Sharding::Hsdp => {
                let again = match reshard {
                    Reshard::Yes => part(ranks),
                    Reshard::No | Reshard::Ranks(1) => 0.0,
                    Reshard::Ranks(few) => part(few),
                };
                // The root is gathered once.
                let gathers = passes * (part(ranks) * all + again * (all - root));
                gathers + scatters * (part(ranks) + between) * all
            }
        };
        prop_assert!((blocks::least_bytes_sent(&plan) - expected).abs() <= 1e-9 * expected.max(1.0),
            "{} instead of {expected}", blocks::least_bytes_sent(&plan));
    }
}

/// FSDP2 computes with copies of its shards, also where a shard is the whole unit.
#[test]
fn the_only_rank_copies_each_unit_when_it_computes() {
    for (sharding, world) in [(Sharding::Zero3, 1), (Sharding::Hsdp, 4)] {
        let group = (sharding == Sharding::Hsdp).then_some(1);
        let plan = build(&model(2, 64), world, &IterationOptions { group, ..options(sharding) }).unwrap();
        let copies = |list: fn(&Step) -> &Vec<u32>| {
            let is_copy = |buffer: &&u32| plan.buffers[**buffer as usize].kind == BufferKind::Gathered;
            let names =
                plan.steps.iter().flat_map(|step| list(step).iter().filter(is_copy).map(|_| step.name(&plan.units)));
            names.collect::<Vec<_>>()
        };
        assert!(names(&plan, Stream::AllGather).is_empty());
        let [first, second] = ["h.0", "h.1"].map(|unit| (format!("forward {unit}"), format!("backward {unit}")));
        let root = |pass: &str| format!("{pass} root");
        let begin = [root("forward"), first.0.clone(), second.0.clone(), second.1.clone(), first.1.clone()];
        assert_eq!(copies(|step| &step.allocates), begin);
        assert_eq!(copies(|step| &step.frees), [first.0, second.0, second.1, first.1, root("backward")]);
    }
}

#[test]
fn gradients_of_earlier_passes_exist_from_the_first_step() {
    for sharding in [Sharding::None, Sharding::Zero1, Sharding::Zero2, Sharding::Zero3] {
        let options = IterationOptions { accumulated: true, ..options(sharding) };
        let plan = build(&model(2, 64), 8, &options).unwrap();
        assert_eq!(plan.check(), Ok(()));
        let bytes = |buffer: &u32| plan.buffers[*buffer as usize].bytes;
        let gradients = |buffer: &&u32| plan.buffers[**buffer as usize].kind == BufferKind::Gradients;
        let first: u64 = plan.steps[0].allocates.iter().filter(gradients).map(bytes).sum();
        let whole: u64 = plan.units.iter().map(|unit| unit.elements * 4).sum();
        assert_eq!(first, whole, "{sharding:?}");
    }
}

/// Buffers of a kind, as `unit: bytes from step until steps`, in order of the steps that allocate them.
fn lives(plan: &Plan, kind: BufferKind) -> Vec<String> {
    let mut found = Vec::new();
    for step in &plan.steps {
        for &buffer in step.allocates.iter().filter(|&&buffer| plan.buffers[buffer as usize].kind == kind) {
            let own = &plan.buffers[buffer as usize];
            let ends = plan.steps.iter().filter(|step| step.frees.contains(&buffer)).map(|step| step.name(&plan.units));
            let unit = &plan.units[own.unit.unwrap() as usize].name;
            let ends: Vec<_> = ends.collect();
            found.push(format!("{unit}: {} from {} until {}", own.bytes, step.name(&plan.units), ends.join(", ")));
        }
    }
    found
}

/// FSDP2 of torch 2.15: an all-gather's output lives until the next one is copied out, in the backward pass until it is
/// itself; a reduce-scatter's input until the next one's is filled.
#[test]
fn units_are_copied_out_of_gathers_and_into_scatters() {
    let options = IterationOptions { param_dtype: Some(Dtype::Bfloat16), ..options(Sharding::Zero3) };
    let plan = build(&model(2, 64), 8, &options).unwrap();
    assert_eq!(
        lives(&plan, BufferKind::Communication),
        [
            "root: 256 from all-gather root until forward root, all-gather h.0",
            // The rank's shard, which it keeps in float32.
            "root: 32 from all-gather root until all-gather root",
            "h.0: 256 from all-gather h.0 until forward h.0, all-gather h.1",
            "h.0: 32 from all-gather h.0 until all-gather h.0",
            "h.1: 256 from all-gather h.1 until forward root",
            "h.1: 32 from all-gather h.1 until all-gather h.1",
            "h.1: 256 from all-gather h.1 until backward root, all-gather h.1",
            "h.1: 32 from all-gather h.1 until all-gather h.1",
            "h.1: 512 from reduce-scatter h.1 until reduce-scatter h.1, backward h.0",
            "h.0: 256 from all-gather h.0 until backward h.1, all-gather h.0",
            "h.0: 32 from all-gather h.0 until all-gather h.0",
            "h.0: 512 from reduce-scatter h.0 until reduce-scatter h.0, backward root",
            "root: 512 from reduce-scatter root until reduce-scatter root",
        ]
    );
    assert_eq!(
        lives(&plan, BufferKind::Gathered),
        [
            "root: 256 from forward root until backward root",
            "h.0: 256 from forward h.0 until forward h.0",
            "h.1: 256 from forward h.1 until forward h.1",
            "h.1: 256 from backward h.1 until backward h.1",
            "h.0: 256 from backward h.0 until backward h.0",
        ]
    );
    // The head's gradient from the first step, the embedding's in the last one.
    assert_eq!(
        lives(&plan, BufferKind::Gradients),
        [
            "root: 128 from backward root until reduce-scatter root",
            "h.1: 256 from backward h.1 until backward h.1",
            "h.1: 64 from reduce-scatter h.1 until optimizer",
            "h.0: 256 from backward h.0 until backward h.0",
            "h.0: 64 from reduce-scatter h.0 until optimizer",
            "root: 128 from backward root until reduce-scatter root",
            "root: 64 from optimizer until optimizer",
        ]
    );
}

/// FSDP2 keeps shards in float32 if it computes and reduces in 16 bits.
#[test]
fn shards_of_gradients_are_converted_from_what_is_received() {
    let types = IterationOptions {
        param_dtype: Some(Dtype::Bfloat16),
        reduce_dtype: Some(Dtype::Bfloat16),
        optimizer: Some(Optimizer::Momentum),
        ..options(Sharding::Zero3)
    };
    let plan = build(&model(2, 64), 2, &types).unwrap();
    let found = lives(&plan, BufferKind::Communication);
    assert_eq!(
        found[found.len() - 2..],
        [
            "root: 256 from reduce-scatter root until reduce-scatter root",
            // What is received: with the shards, more than the gradients that have been copied.
            "root: 128 from reduce-scatter root until reduce-scatter root",
        ]
    );
    let shards: Vec<String> =
        lives(&plan, BufferKind::Gradients).into_iter().filter(|it| it.ends_with("until optimizer")).collect();
    assert_eq!(
        shards,
        ["h.1", "h.0", "root"].map(|unit| format!("{unit}: 256 from reduce-scatter {unit} until optimizer"))
    );
    // No copy in float32 beside them.
    let resident =
        |kind: BufferKind| plan.resident.iter().map(|&it| &plan.buffers[it as usize]).find(|it| it.kind == kind);
    assert_eq!(resident(BufferKind::Parameters).unwrap().bytes, 3 * 64 * 4);
    assert_eq!(resident(BufferKind::OptimizerStates).unwrap().bytes, 3 * 64 * 4);
    let plan = build(&model(2, 64), 2, &IterationOptions { sharding: Sharding::Zero2, ..types }).unwrap();
    assert_eq!(plan.buffers[0].bytes, 3 * 128 * 2);
    assert_eq!(plan.buffers[1].bytes, 3 * 64 * 8);
}

/// The gradient of a weight that embedding and head share exists from the head's backward step, though it is ready with
/// the embedding's; then both parts and their sum exist.
#[test]
fn a_shared_gradient_begins_with_the_last_layer_that_has_it() {
    let mut trace = model(2, 64);
    // A norm before the head, whose gradient is the first.
    let head = trace.tensors.len() as u32 - 1;
    trace.tensors[head as usize].name = "norm.weight".into();
    let worker = &mut trace.workers[0];
    let mut layer = worker.forward[head as usize].clone();
    worker.forward[head as usize].name = "norm".into();
    layer.tensors = vec![0];
    worker.forward.push(layer);
    for (sharding, first, last) in [
        (Sharding::None, "wte.weight: 256 from backward norm.weight", "optimizer"),
        (Sharding::Zero1, "wte.weight: 256 from backward norm.weight", "optimizer"),
        (Sharding::Zero2, "wte.weight: 256 from backward norm.weight", "reduce-scatter wte.weight"),
        // With that of the norm.
        (Sharding::Zero3, "root: 512 from backward root", "reduce-scatter root"),
    ] {
        let options = IterationOptions { bucket_size: None, ..options(sharding) };
        let plan = build(&trace, 8, &options).unwrap();
        let found = lives(&plan, BufferKind::Gradients);
        let own: Vec<&String> = found.iter().filter(|it| it.starts_with(['w', 'r'])).take(2).collect();
        let name = if sharding == Sharding::Zero3 { "root" } else { "wte.weight" };
        let summed = format!("{name}: 512 from backward {name} until backward {name}");
        assert_eq!(own, [&format!("{first} until {last}"), &summed], "{sharding:?}");
    }
    // What the head keeps goes with the head's backward pass, though the embedding's comes last.
    let plan = build(&trace, 8, &IterationOptions { bucket_size: None, ..options(Sharding::None) }).unwrap();
    let kept = lives(&plan, BufferKind::Activations);
    assert_eq!(kept.last().unwrap(), "wte.weight: 200 from forward wte.weight until backward norm.weight");
    assert_eq!(kept[0], "wte.weight: 200 from forward wte.weight until backward wte.weight");
}

/// Buffers for a layer's backward pass alone exist in the step that computes it: as much as the layer with most needs.
#[test]
fn a_backward_step_has_what_its_layers_need() {
    let mut trace = model(2, 64);
    for (layer, bytes) in trace.workers[0].forward.iter_mut().zip([1, 20, 30, 5, 4, 3]) {
        layer.backward_bytes = Some(bytes);
    }
    for (sharding, wanted) in [
        (Sharding::Zero3, vec!["root: 6 from backward root", "h.1: 10 from backward h.1", "h.0: 60 from backward h.0"]),
        (Sharding::None, vec!["head.weight +5: 60 from backward head.weight +5"]),
    ] {
        let plan = build(&trace, 8, &options(sharding)).unwrap();
        let found = lives(&plan, BufferKind::Activations);
        for line in wanted {
            let (_, step) = line.split_once("from ").unwrap();
            assert!(found.contains(&format!("{line} until {step}")), "{sharding:?}: {found:?}");
        }
    }
}

/// One rank copies gradients as if it scattered them.
#[test]
fn the_only_rank_copies_its_gradients() {
    let options = IterationOptions { accumulate: 2, ..options(Sharding::Zero3) };
    let plan = build(&model(2, 64), 1, &options).unwrap();
    assert_eq!(
        lives(&plan, BufferKind::Communication)[..3],
        [
            "h.1: 512 from backward h.0 until backward h.0",
            "h.0: 512 from backward root until backward root",
            "root: 512 from forward root until forward root"
        ]
    );
    let kept: Vec<String> =
        lives(&plan, BufferKind::Gradients).into_iter().filter(|it| it.ends_with("until optimizer")).collect();
    assert_eq!(
        kept,
        [
            "h.1: 512 from backward h.0 until optimizer",
            "h.0: 512 from backward root until optimizer",
            "root: 512 from forward root until optimizer",
            // In the second pass, added to that of the first.
            "root: 512 from optimizer until optimizer"
        ]
    );
}

#[test]
fn a_recipe_of_precision_says_what_is_held() {
    let mut trace = model(2, 64);
    trace.dtype = Dtype::Float32;
    let (all, sharding) = (6 * 64, Sharding::None);
    let held = Held {
        parameters: Dtype::Bfloat16,
        gradients: Dtype::Bfloat16,
        states: Dtype::Bfloat16,
        masters: false,
        temporaries: (2, 0),
    };
    let plan = |sharding, held: Held| {
        let (param_dtype, reduce_dtype) = (Some(Dtype::Bfloat16), Some(held.gradients));
        build(&trace, 1, &IterationOptions { held: Some(held), param_dtype, reduce_dtype, ..options(sharding) })
            .unwrap()
    };
    let bytes = |plan: &Plan, buffers: &[u32]| {
        buffers.iter().map(|&it| (plan.buffers[it as usize].kind, plan.buffers[it as usize].bytes)).collect::<Vec<_>>()
    };
    let pure = plan(sharding, held);
    let (parameters, states) = (BufferKind::Parameters, BufferKind::OptimizerStates);
    assert_eq!(bytes(&pure, &pure.resident), [(parameters, 2 * all), (states, 4 * all)]);
    // The square roots, while the optimizer's step runs.
    let update = pure.steps.iter().find(|step| matches!(step.work, Work::Optimizer { .. })).unwrap();
    assert_eq!(bytes(&pure, &update.allocates), [(states, 2 * all)]);
    assert!(update.frees.contains(&update.allocates[0]));
    // As recorded, of all parameters.
    let recorded = IterationOptions { update_bytes: 4 * all, ..options(Sharding::Zero1) };
    let recorded = build(&trace, 4, &recorded).unwrap();
    let update = recorded.steps.iter().find(|step| matches!(step.work, Work::Optimizer { .. })).unwrap();
    assert_eq!(bytes(&recorded, &update.allocates), [(states, all)]);
    // Megatron's: FP32 gradients that are never freed, and FP32 copies of the parameters.
    let main = Held { gradients: Dtype::Float32, states: Dtype::Float32, masters: true, temporaries: (0, 0), ..held };
    let megatron = plan(sharding, main);
    let gradients = (BufferKind::Gradients, 4 * all);
    assert_eq!(bytes(&megatron, &megatron.resident), [(parameters, 2 * all), (states, 12 * all), gradients]);
    let shards = plan(Sharding::Zero3, Held { parameters: Dtype::Float32, ..main });
    assert_eq!(bytes(&shards, &shards.resident), [(parameters, 4 * all), (states, 12 * all)]);
}

#[test]
fn the_host_has_states_and_parameters_and_gradients_are_let_go() {
    let trace = model(2, 64);
    let all = 6 * 64;
    let moved = IterationOptions {
        state_bytes: Some(0.0),
        releases_gradients: true,
        offloads_parameters: true,
        ..options(Sharding::Zero3)
    };
    let plan = build(&trace, 4, &moved).unwrap();
    assert!(plan.resident.is_empty());
    let step = plan.steps.iter().find(|step| matches!(step.work, Work::Optimizer { .. })).unwrap();
    let is_gradient = |buffer: &u32| plan.buffers[*buffer as usize].kind == BufferKind::Gradients;
    // The last unit's shard, which the exchange before the step leaves to it.
    assert!(step.frees.iter().filter(|&it| is_gradient(it)).all(|it| step.allocates.contains(it)));
    let freed: Vec<u32> = plan.steps.iter().flat_map(|step| step.frees.iter().copied()).collect();
    assert!((0..plan.buffers.len() as u32).filter(is_gradient).all(|it| freed.contains(&it)));
    let eighth = IterationOptions { state_bytes: Some(0.125), ..options(Sharding::None) };
    let plan = build(&trace, 1, &eighth).unwrap();
    let states = plan.resident.iter().map(|&it| &plan.buffers[it as usize]);
    assert_eq!(states.filter(|it| it.kind == BufferKind::OptimizerStates).map(|it| it.bytes).sum::<u64>(), all / 8);
}
