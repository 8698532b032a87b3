//! The planner on graphs of published sizes (S. Pumma, D. Buono, F. Checconi, X. Que, W. Feng, "Alleviating Load
//! Imbalance in Data Processing for Large-Scale Deep Learning", the table of traversal times).
//!
//! Only the numbers of nodes and edges are published, not the graphs: these are a chain forward and backward with
//! skips, as the graph of a training step is, with an all-reduce for each twenty-fourth node, as ResNet-152 has (467
//! parameters, 11,128 nodes).
use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use paceline_coordinator::plan::{AllReduce, Dag, Node, NodeId, plan};

/// Model, nodes, edges.
const GRAPHS: [(&str, u32, u32); 9] = [
    ("AlexNet", 655, 893),
    ("VGG16", 1_091, 1_479),
    ("ResNet18", 1_714, 2_565),
    ("ResNet34", 2_866, 4_325),
    ("GoogLeNet", 3_499, 4_970),
    ("ResNet50", 3_988, 6_042),
    ("Inception-v3", 6_146, 9_211),
    ("ResNet101", 7_558, 11_499),
    ("ResNet152", 11_128, 16_956),
];
const NODES_PER_ALL_REDUCE: u32 = 24;

fn nodes(count: u32) -> Vec<Node> {
    let all_reduce = |at: u32| {
        let planned = at % NODES_PER_ALL_REDUCE == NODES_PER_ALL_REDUCE - 1;
        planned.then(|| AllReduce { dtype: "float16".into(), bytes: 1 << (8 + at % 14) })
    };
    (0..count).map(|at| Node { name: format!("tower/layer{at}/operation"), all_reduce: all_reduce(at) }).collect()
}

/// As many as wanted: every node has its chain's next, an all-reduce's gradient goes on beside it, and what is left
/// skips from the forward half to its mirror in the backward half, as activations do.
fn edges(nodes: u32, count: u32) -> Vec<(NodeId, NodeId)> {
    let is_all_reduce = |at: u32| at % NODES_PER_ALL_REDUCE == NODES_PER_ALL_REDUCE - 1;
    let chain = (1..nodes).map(|at| (if is_all_reduce(at - 1) { at - 2 } else { at - 1 }, at));
    let mut edges: Vec<(u32, u32)> = chain.collect();
    let skips = (0..nodes / 2).cycle().filter(|&at| !is_all_reduce(at)).map(|at| (at, nodes - 1 - at));
    edges.extend(skips.take(count as usize - edges.len()));
    edges.into_iter().map(|(parent, child)| (NodeId(parent), NodeId(child))).collect()
}

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    for (model, count, edge_count) in GRAPHS {
        let (nodes, edges) = (nodes(count), edges(count, edge_count));
        let fetches: Vec<NodeId> =
            (0..count).filter(|&at| nodes[at as usize].all_reduce.is_some() || at == count - 1).map(NodeId).collect();
        let name = format!("{model}, {count} nodes, {edge_count} edges");
        group.bench_function(format!("{name}, graph and plan"), |b| {
            b.iter_batched(
                || nodes.clone(),
                |nodes| plan(&Dag::new(nodes, black_box(&edges)).expect("a graph"), &fetches, 64_000_000),
                BatchSize::LargeInput,
            );
        });
        let dag = Dag::new(nodes, &edges).expect("a graph");
        let found = plan(&dag, &fetches, 64_000_000).expect("no cycle");
        assert_eq!(found.order.len(), count as usize, "every node takes part");
        group.bench_function(format!("{name}, plan"), |b| b.iter(|| plan(black_box(&dag), &fetches, 64_000_000)));
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
