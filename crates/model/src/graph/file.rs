//! Parses graph files: the only parser of docs/reference/coordinator-plan.md.
use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny};

use super::{AllReduce, Dtype, Graph, Node};
use crate::document::fields::{name, name_of_file, optional_name, tensor_bytes, text};
use crate::document::strict::{list, names, object, objects};
use crate::document::{DocumentError, Format, Problem, parse, quoted, read, shown, with_remedy, with_value};
use crate::nearest;

const FORMAT: Format = Format { name: "paceline-graph", version: 1, latest: 1, hint };

impl Graph {
    /// Reads the JSON of a graph; `source` is its name in errors. Without folder and extension, it is also the graph's
    /// name if the text gives none.
    ///
    /// # Errors
    /// Anything that docs/reference/coordinator-plan.md does not allow, in one line that names the place and says what
    /// to do.
    pub fn from_json(text: &[u8], source: &str) -> Result<Graph, DocumentError> {
        let file: GraphFile = parse(text, source, &FORMAT)?;
        file.checked(source).map_err(|problem| problem.of(source))
    }

    /// Reads a graph file, a regular file of at most [`crate::document::MAX_BYTES`].
    ///
    /// # Errors
    /// A file that cannot be read, or that [`Graph::from_json`] refuses.
    pub fn read(path: &Path) -> Result<Graph, DocumentError> {
        Graph::from_json(&read(path)?, &path.to_string_lossy())
    }
}

#[derive(Deserialize)]
struct GraphFile {
    /// Checked before the other fields.
    #[serde(rename = "format")]
    _format: IgnoredAny,
    #[serde(rename = "version")]
    _version: IgnoredAny,
    #[serde(default, deserialize_with = "optional_name")]
    name: Option<String>,
    #[serde(default, deserialize_with = "text")]
    provenance: String,
    #[serde(deserialize_with = "objects")]
    nodes: Vec<NodeFile>,
    #[serde(deserialize_with = "list")]
    edges: Vec<Edge>,
    #[serde(default, deserialize_with = "names")]
    fetches: Vec<String>,
}

#[derive(Deserialize)]
struct NodeFile {
    #[serde(deserialize_with = "name")]
    name: String,
    #[serde(default, deserialize_with = "object")]
    all_reduce: Option<AllReduceFile>,
}

#[derive(Deserialize)]
struct AllReduceFile {
    #[serde(deserialize_with = "dtype")]
    dtype: Dtype,
    #[serde(deserialize_with = "tensor_bytes")]
    bytes: u64,
}

/// Names of a parent and of its child.
struct Edge([String; 2]);

impl<'de> Deserialize<'de> for Edge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong = |names: Vec<String>| {
            let message = format!("must have two names, the parent's and the child's, not {}", names.len());
            D::Error::custom(with_remedy(message, "[\"conv\", \"relu\"]"))
        };
        names(deserializer)?.try_into().map(Edge).map_err(wrong)
    }
}

impl GraphFile {
    fn checked(self, source: &str) -> Result<Graph, Problem> {
        let mut places: HashMap<&str, u32> = HashMap::with_capacity(self.nodes.len());
        for (at, node) in (0..).zip(&self.nodes) {
            if let Some(before) = places.insert(&node.name, at) {
                let message = format!("{} is nodes[{before}] already", shown(&node.name));
                return Err(Problem::new(format!("nodes[{at}].name"), message).remedy("a name of its own"));
            }
            if let Some(AllReduceFile { dtype, bytes }) = &node.all_reduce
                && !bytes.is_multiple_of(dtype.size())
            {
                let size = dtype.size();
                let message = format!("{bytes} is not a multiple of {size}, the size of a {}", dtype.name());
                let place = format!("nodes[{at}].all_reduce.bytes");
                return Err(Problem::new(place, message).value(bytes.next_multiple_of(size)));
            }
        }
        let find = |name: &str, place: &dyn Fn() -> String| {
            places.get(name).copied().ok_or_else(|| {
                let near = nearest(name, places_in_order(&self.nodes));
                let remedy = near.map_or(format!("{{\"name\": {}}} in nodes", quoted(name)), quoted);
                Problem::new(place(), format!("no node is called {}", shown(name))).remedy(remedy)
            })
        };
        let mut edges = Vec::with_capacity(self.edges.len());
        for (at, Edge([parent, child])) in self.edges.iter().enumerate() {
            edges.push((find(parent, &|| format!("edges[{at}][0]"))?, find(child, &|| format!("edges[{at}][1]"))?));
        }
        let mut fetches = Vec::with_capacity(self.fetches.len());
        for (at, fetch) in self.fetches.iter().enumerate() {
            let found = find(fetch, &|| format!("fetches[{at}]"))?;
            fetches.push(found);
        }
        let node = |NodeFile { name, all_reduce }| Node {
            name,
            all_reduce: all_reduce.map(|AllReduceFile { dtype, bytes }| AllReduce { dtype, bytes }),
        };
        Ok(Graph {
            name: self.name.or_else(|| name_of_file(source)).unwrap_or_else(|| "graph".into()),
            provenance: self.provenance,
            nodes: self.nodes.into_iter().map(node).collect(),
            edges,
            fetches,
        })
    }
}

fn places_in_order(nodes: &[NodeFile]) -> impl Iterator<Item = &str> {
    nodes.iter().map(|node| node.name.as_str())
}

fn dtype<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Dtype, D::Error> {
    let found = String::deserialize(deserializer)?;
    Dtype::parse(&found).ok_or_else(|| {
        let hint = match nearest(&found, Dtype::names()) {
            Some(known) => quoted(known),
            None => format!("one of {}", Dtype::names().join(", ")),
        };
        D::Error::custom(with_value(format!("unknown dtype {}", shown(&found)), hint))
    })
}

/// The expected value of each field, for errors.
fn hint(field: &str) -> Option<&'static str> {
    Some(match field {
        "name" => "a name in quotes",
        "nodes" => "a list of operations, such as [{\"name\": \"conv\"}]",
        "edges" => "a list of pairs of names, parent and child, such as [[\"conv\", \"relu\"]]",
        "fetches" => "a list of names of nodes",
        "all_reduce" => "an object such as {\"dtype\": \"float32\", \"bytes\": 4096}",
        "dtype" => "the element type, such as \"float32\"",
        "bytes" => "the tensor's size in bytes, a whole number of at least 1",
        _ => return None,
    })
}
