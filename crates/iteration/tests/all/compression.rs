//! Plans of compressed and of rarer exchanges: what is sent, after what, and what it costs.
use paceline_iteration::{
    BufferKind, Collective, Compression, Cost, IterationOptions, Method, Plan, Sharding, Stream, Work, build,
};
use paceline_model::Trace;
use paceline_model::trace::Dtype;

const MS: u64 = 1_000_000_000;
const COST: Cost = Cost { bucket_s: 0.001, tensor_s: 0.0001, element_s: 1e-9, received_s: 1e-8 };

/// A matrix of 300 by 200, one of 128 by 300 and its vector, without and with which buckets are made.
fn trace(shapes: bool) -> Trace {
    let shape = |text: &str| if shapes { format!(", \"shape\": {text}") } else { String::new() };
    let text = format!(
        r#"{{"format": "paceline-trace", "version": 1, "name": "two", "batch": 4, "dtype": "float32", "workers": [{{
            "forward": [{{"layer": "a", "duration_s": 0.004, "tensors": ["a"]}},
                        {{"layer": "b", "duration_s": 0.002, "tensors": ["b", "v"]}}],
            "gradients": [{{"tensor": "v", "ready_s": 0.003, "bytes": 512{}}},
                          {{"tensor": "b", "ready_s": 0.003, "bytes": 153600{}}},
                          {{"tensor": "a", "ready_s": 0.010, "bytes": 240000{}}}],
            "optimizer_s": 0.003}}]}}"#,
        shape("[128]"),
        shape("[128, 300]"),
        shape("[300, 200]")
    );
    Trace::from_json(text.as_bytes(), "two").unwrap()
}

fn options(method: Method) -> IterationOptions {
    let compression = Compression { method, compress: COST, between: COST, decompress: COST };
    IterationOptions { compression, bucket_size: Some(150_000), ..IterationOptions::new(Sharding::None) }
}

/// Collective, elements and type of every exchange.
fn sent(plan: &Plan) -> Vec<(Collective, u64, Dtype)> {
    let exchanges = plan.steps.iter().filter_map(|step| match step.work {
        Work::Exchange { collective, elements, dtype, .. } => Some((collective, elements, dtype)),
        _ => None,
    });
    exchanges.collect()
}

fn durations(plan: &Plan, which: fn(&Work) -> Option<u64>) -> Vec<u64> {
    plan.steps.iter().filter_map(|step| which(&step.work)).collect()
}

fn compressing(work: &Work) -> Option<u64> {
    match *work {
        Work::Compress { duration_ps } | Work::Decompress { duration_ps } => Some(duration_ps),
        _ => None,
    }
}

#[test]
fn nothing_changes_without_compression() {
    let plain = build(
        &trace(true),
        4,
        &IterationOptions { bucket_size: Some(150_000), ..IterationOptions::new(Sharding::None) },
    );
    let plan = plain.unwrap();
    assert_eq!(
        sent(&plan),
        [(Collective::AllReduce, 38_528, Dtype::Float32), (Collective::AllReduce, 60_000, Dtype::Float32)]
    );
    assert!(!plan.to_json().contains("iterations"));
    assert_eq!(durations(&plan, compressing), [0; 0]);
}

#[test]
fn methods_send_what_they_say() {
    let (reduce, gather, scatter) = (Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter);
    let float = Dtype::Float32;
    let plan = |method| build(&trace(true), 4, &options(method)).unwrap();
    assert_eq!(
        sent(&plan(Method::Cast(Dtype::Bfloat16))),
        [(reduce, 38_528, Dtype::Bfloat16), (reduce, 60_000, Dtype::Bfloat16)]
    );
    // The vector, P and Q of the first bucket; P and Q of the second, which has nothing else.
    assert_eq!(
        sent(&plan(Method::PowerSgd { rank: 4 })),
        [
            (reduce, 128, float),
            (reduce, 128 * 4, float),
            (reduce, 300 * 4, float),
            (reduce, 300 * 4, float),
            (reduce, 200 * 4, float)
        ]
    );
    // A rank at which neither matrix would shrink by half.
    assert_eq!(sent(&plan(Method::PowerSgd { rank: 64 })), [(reduce, 38_528, float), (reduce, 60_000, float)]);
    // 386 and 600 values, each with a place, of 4 ranks.
    assert_eq!(
        sent(&plan(Method::TopK { density: 0.01 })),
        [(gather, 386 * 2 * 4, float), (gather, 600 * 2 * 4, float)]
    );
    // 9632 values are 38 blocks, 15,000 are 59, of 256 bytes and a scale.
    let words = |blocks: u64| blocks * 65 * 4;
    assert_eq!(
        sent(&plan(Method::Int8)),
        [
            (scatter, words(38), float),
            (gather, words(38), float),
            (scatter, words(59), float),
            (gather, words(59), float)
        ]
    );
}

#[test]
fn compressing_delays_the_backward_pass_and_the_rest_runs_beside_it() {
    let plan = build(&trace(true), 4, &options(Method::Int8)).unwrap();
    let first = 1_000_000_000 + 200_000_000 + 38_528_000;
    // A part of the sum, all of which arrives.
    let between = 1_000_000_000 + 200_000_000 + 9_632_000 + 385_280_000;
    assert_eq!(durations(&plan, compressing)[..3], [first, between, first]);
    let streams: Vec<Stream> =
        plan.steps.iter().filter(|step| compressing(&step.work).is_some()).map(|step| step.stream).collect();
    let (compute, beside) = (Stream::Compute, Stream::Compression);
    assert_eq!(streams, [compute, beside, beside, compute, beside, beside]);
    let optimizer = plan.steps.iter().find(|step| matches!(step.work, Work::Optimizer { .. })).unwrap();
    let last = plan.steps.iter().rposition(|step| matches!(step.work, Work::Decompress { .. })).unwrap() as u32;
    assert!(optimizer.after.contains(&last), "the optimizer waits for what arrives last");
    let errors: u64 = plan
        .resident
        .iter()
        .map(|&it| &plan.buffers[it as usize])
        .filter(|it| it.kind == BufferKind::Gradients)
        .map(|it| it.bytes)
        .sum();
    assert_eq!(errors, 2 * 4 * 98_528, "DDP's buckets, and what is left over");
    assert_eq!(Plan::from_json(&plan.to_json(), "it").unwrap(), plan);
}

/// On a communicator, what one bucket gathers goes before what the next one scatters.
#[test]
fn exchanges_of_buckets_are_in_order() {
    let plan = build(&trace(true), 4, &options(Method::Int8)).unwrap();
    let exchanges: Vec<usize> =
        (0..plan.steps.len()).filter(|&it| matches!(plan.steps[it].work, Work::Exchange { .. })).collect();
    assert_eq!(exchanges.len(), 4);
    for pair in exchanges.windows(2) {
        assert!(plan.steps[pair[1]].after.contains(&(pair[0] as u32)), "{pair:?}");
    }
}

#[test]
fn a_round_exchanges_once_after_its_last_update() {
    let options = IterationOptions { sync_every: 5, accumulate: 2, ..options(Method::None) };
    let plan = build(&trace(false), 4, &options).unwrap();
    assert_eq!((plan.iterations, plan.passes, plan.samples), (5, 2, 4 * 2 * 5));
    let total = |which: fn(&Work) -> Option<u64>| durations(&plan, which).iter().sum::<u64>();
    let forward = total(|work| if let Work::Forward { duration_ps } = *work { Some(duration_ps) } else { None });
    let backward = total(|work| if let Work::Backward { duration_ps } = *work { Some(duration_ps) } else { None });
    let inner = total(|work| if let Work::Optimizer { duration_ps } = *work { Some(duration_ps) } else { None });
    assert_eq!((forward, backward, inner), (6 * MS * 10, 10 * MS * 10, 3 * MS * 5));
    // Differences and the outer step take as long as an update.
    let outer = total(|work| match *work {
        Work::Compress { duration_ps } | Work::OuterOptimizer { duration_ps } => Some(duration_ps),
        _ => None,
    });
    assert!(outer.abs_diff(3 * MS) <= 2, "{outer}");
    assert_eq!(sent(&plan).len(), 2);
    let update = plan.steps.iter().rposition(|step| matches!(step.work, Work::Optimizer { .. })).unwrap();
    let exchange = plan.steps.iter().position(|step| matches!(step.work, Work::Exchange { .. })).unwrap();
    assert!(update < exchange);
    assert_eq!(Plan::from_json(&plan.to_json(), "it").unwrap(), plan);
    // Alone there is nobody to exchange with.
    assert_eq!(build(&trace(false), 1, &options).unwrap().iterations, 1);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let refused = |trace: &Trace, options: &IterationOptions| build(trace, 4, options).unwrap_err().to_string();
    let sharded = IterationOptions { sharding: Sharding::Zero3, ..options(Method::Int8) };
    assert!(refused(&trace(true), &sharded).starts_with("compression: needs all-reduces, and zero3"));
    let rarely = IterationOptions { sync_every: 2, ..IterationOptions::new(Sharding::Zero1) };
    assert!(refused(&trace(true), &rarely).starts_with("sync-every: needs all-reduces, and zero1"));
    let twice = IterationOptions { reduce_dtype: Some(Dtype::Float16), ..options(Method::Int8) };
    assert!(refused(&trace(true), &twice).starts_with("reduce-dtype: needs plain gradients, and compression"));
    let unknown = refused(&trace(false), &options(Method::PowerSgd { rank: 1 }));
    assert!(unknown.starts_with("compression: PowerSGD needs the shape of "), "{unknown}");
    let long = IterationOptions { sync_every: 100_000_000, ..options(Method::None) };
    assert!(refused(&trace(false), &long).contains("more than 1000000 s"));
    let none = IterationOptions { sync_every: 0, ..options(Method::None) };
    assert!(refused(&trace(false), &none).starts_with("sync-every: must be at least 1"));
}
