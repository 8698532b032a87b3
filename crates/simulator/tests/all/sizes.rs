//! Extreme sizes: refused if impossible, fast otherwise.
use paceline_model::{Cluster, Trace};
use paceline_schedule::{ChunkBytes, Distribution, Placement};
use paceline_simulator::{Options, simulate};

#[test]
fn what_no_memory_holds_is_refused() {
    let trace = Trace::all_reduce(4_000_000_000, 1).unwrap();
    let block = Distribution::Block;
    let even = Options { placement: Placement::Even, servers: 1000, distribution: block, ..Options::new("ps", 10_000) };
    let fine = Options { chunk: Some(ChunkBytes::Size(4)), ..Options::new("tree", 40_000) };
    for options in [even, fine] {
        let error = simulate(&trace, &Cluster::default(), &options).unwrap_err().to_string();
        assert!(error.starts_with("chunk: ") && error.contains("GB of memory"), "{error}");
    }
}

#[test]
fn what_takes_too_long_is_refused() {
    let trace = Trace::all_reduce(4_000_000_000, 1000).unwrap();
    let error = simulate(&trace, &Cluster::default(), &Options::new("ring", 5000)).unwrap_err().to_string();
    assert!(error.contains("messages an iteration"), "{error}");
}

/// A layer that needs very many tensors, as in an all-reduce cut into small pieces: the time is linear in their number.
#[test]
fn many_tensors_in_one_layer_take_no_time() {
    let trace = Trace::all_reduce(4_000_000, 300_000).unwrap();
    let start = std::time::Instant::now();
    simulate(&trace, &Cluster::default(), &Options::new("ring", 2)).unwrap();
    // Under a second optimized, a few seconds otherwise; comparing all pairs took minutes.
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
}
