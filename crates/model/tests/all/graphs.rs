//! Graph files: the documented example.
use paceline_model::Graph;

fn example() -> &'static str {
    let text = include_str!("../../../../docs/reference/coordinator-plan.md");
    let start = text.find("```json\n").unwrap() + "```json\n".len();
    &text[start..start + text[start..].find("```").unwrap()]
}

#[test]
fn the_documented_example() {
    let graph = Graph::from_json(example().as_bytes(), "G.json").unwrap();
    assert_eq!((graph.name.as_str(), graph.nodes.len(), graph.fetches.len()), ("five all-reduces", 7, 3));
    assert_eq!(graph.edges[0], (0, 2));
    let first = graph.nodes[0].all_reduce.unwrap();
    assert_eq!((first.dtype.name(), first.bytes), ("float32", 4_000_000));
    assert_eq!(graph.to_json(), example());
}

#[test]
fn least_of_all() {
    let least = br#"{"format": "paceline-graph", "version": 1, "nodes": [], "edges": []}"#;
    let graph = Graph::from_json(least, "nets/small.json").unwrap();
    assert_eq!((graph.name.as_str(), graph.nodes.len()), ("small", 0));
    assert_eq!(Graph::from_json(graph.to_json().as_bytes(), "other").unwrap(), graph);
}
