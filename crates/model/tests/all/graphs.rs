//! Graph files: the documented example, and common mistakes in one.
use paceline_model::Graph;

fn example() -> &'static str {
    let text = include_str!("../../../../docs/reference/coordinator-plan.md");
    let start = text.find("```json\n").unwrap() + "```json\n".len();
    &text[start..start + text[start..].find("```").unwrap()]
}

/// The documented example with one change.
fn refused_with(old: &str, new: &str, says: &str) {
    assert!(example().contains(old), "{old}");
    let error = Graph::from_json(example().replacen(old, new, 1).as_bytes(), "G.json").expect_err(says).to_string();
    assert!(error.starts_with("G.json: ") && !error.contains('\n') && error.chars().count() < 400, "{error}");
    assert!(error.contains(says), "\n  {error}\nlacks\n  {says}");
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

#[test]
fn what_is_refused() {
    refused_with("paceline-graph", "paceline-trace", "format: this is a trace; found \"paceline-trace\"");
    refused_with("\"version\": 1", "\"version\": 2", "update paceline");
    refused_with("\"nodes\": [", "\"node\": [", "unknown field 'node'; did you mean 'nodes'?");
    refused_with("\"1\", \"all", "\"0\", \"all", "nodes[1].name: '0' is nodes[0] already; give each a name of its own");
    refused_with("{\"name\": \"forward\"}", "{\"name\": \"\"}", "nodes[4].name: is empty; give a name");
    refused_with("{\"name\": \"forward\"}", "{}", "nodes[4].name: is missing; give a name in quotes");
    refused_with("{\"name\": \"forward\"}", "\"forward\"", "nodes[4]: found string \"forward\", expected an object");
    refused_with("4000000", "-4", "nodes[0].all_reduce.bytes: found integer `-4`, expected the tensor's size in bytes");
    refused_with("4000000", "0", "nodes[0].all_reduce.bytes: is 0; a tensor has at least one element");
    refused_with("4000000", "4000001", "is not a multiple of 4, the size of an element of float32; are they elements?");
    refused_with("4000000", "1e30", "nodes[0].all_reduce.bytes: found");
    refused_with("float32", "floot32", "nodes[0].all_reduce.dtype: unknown dtype 'floot32'; did you mean 'float32'?");
    refused_with("{\"dtype\": \"float32\", \"bytes\": 4000000}", "true", "nodes[0].all_reduce: found boolean");
    refused_with("[\"0\", \"2\"]", "[\"0\"]", "edges[0]: has 1 names; give two, the parent's and the child's");
    refused_with("[\"0\", \"2\"]", "[\"0\", 2]", "edges[0][1]: found integer `2`, expected a string");
    refused_with(
        "[\"backward\", \"4\"]",
        "[\"backwards\", \"4\"]",
        "edges[3][0]: no node is called 'backwards'; did you mean 'backward'?",
    );
    refused_with("\"1\", \"3\", \"4\"]", "\"9\"]", "fetches[0]: no node is called '9'; add it to nodes");
    refused_with(
        "\"fetches\": [\"1\", \"3\", \"4\"]",
        "\"fetches\": \"1\"",
        "fetches: found string \"1\", expected a list of names of nodes",
    );
}
