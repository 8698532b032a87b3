//! Writes a graph, with one line for each node and edge.
use super::{Graph, Node};
use crate::document::quoted;

impl Graph {
    /// The JSON of docs/reference/coordinator-plan.md. Reading it gives this graph again.
    #[must_use]
    pub fn to_json(&self) -> String {
        let name = |&place: &u32| quoted(&self.nodes[place as usize].name);
        let edge = |(parent, child): &(u32, u32)| format!("[{}, {}]", name(parent), name(child));
        let fetches: Vec<String> = self.fetches.iter().map(name).collect();
        format!(
            "{{\n  \"format\": \"paceline-graph\",\n  \"version\": 1,\n  \"name\": {},\n  \"provenance\": {},\n  \
             \"nodes\": {},\n  \"edges\": {},\n  \"fetches\": [{}]\n}}\n",
            quoted(&self.name),
            quoted(&self.provenance),
            lines(self.nodes.iter().map(node)),
            lines(self.edges.iter().map(edge)),
            fetches.join(", ")
        )
    }
}

fn node(node: &Node) -> String {
    let all_reduce = node.all_reduce.map_or(String::new(), |moved| {
        format!(", \"all_reduce\": {{\"dtype\": \"{}\", \"bytes\": {}}}", moved.dtype.name(), moved.bytes)
    });
    format!("{{\"name\": {}{all_reduce}}}", quoted(&node.name))
}

fn lines(entries: impl Iterator<Item = String>) -> String {
    let entries: Vec<String> = entries.map(|entry| format!("    {entry}")).collect();
    if entries.is_empty() { "[]".into() } else { format!("[\n{}\n  ]", entries.join(",\n")) }
}
