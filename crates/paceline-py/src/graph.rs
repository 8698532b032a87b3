//! Python bindings for graphs and all-reduce plans.
use std::path::PathBuf;
use std::time::Instant;

use paceline_coordinator::plan::{self, AllReduce, Dag, Node, NodeId, Plan};
use paceline_model::{Graph as ModelGraph, nearest};
use paceline_schedule::Refusal;
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::user_error;

/// The operations of one training step and their dependencies.
#[pyclass(frozen, module = "paceline._core")]
pub struct Graph {
    /// Its name in error messages.
    source: String,
    graph: ModelGraph,
    dag: Dag,
}

/// What is wrong with a graph, or with what is to be planned of it.
fn refused(source: &str, error: &plan::PlanError) -> PyErr {
    user_error(Refusal::new(format!("{source}: {error}")).remedy(error.remedy()))
}

impl Graph {
    fn new(source: String, graph: ModelGraph) -> PyResult<Graph> {
        let all_reduce = |moved: paceline_model::graph::AllReduce| AllReduce {
            dtype: moved.dtype.name().to_owned(),
            bytes: moved.bytes,
        };
        let node = |node: &paceline_model::graph::Node| Node {
            name: node.name.clone(),
            all_reduce: node.all_reduce.map(all_reduce),
        };
        let edges: Vec<_> = graph.edges.iter().map(|&(parent, child)| (NodeId(parent), NodeId(child))).collect();
        let dag = Dag::new(graph.nodes.iter().map(node).collect(), &edges);
        let dag = dag.map_err(|error| refused(&source, &error))?;
        Ok(Graph { source, graph, dag })
    }

    fn find(&self, name: &str) -> PyResult<NodeId> {
        self.dag.find(name).ok_or_else(|| {
            let near = nearest(name, self.graph.nodes.iter().map(|node| node.name.as_str()));
            let refusal = Refusal::new(format!("{}: no node is called '{name}'", self.source));
            user_error(refusal.remedy(near.map_or("a node of the graph".into(), |near| format!("'{near}'"))))
        })
    }

    fn planned(&self, fetches: &[NodeId], bucket_size: u64, as_listed: bool) -> PyResult<Plan> {
        let make = if as_listed { plan::plan_as_listed } else { plan::plan };
        make(&self.dag, fetches, bucket_size).map_err(|error| refused(&self.source, &error))
    }

    fn described(&self, plan: &Plan, threshold: u64) -> Value {
        let tensor = |(id, tensor): (usize, &plan::Tensor)| {
            let node = &self.dag.nodes()[tensor.node.0 as usize];
            let moved = node.all_reduce.as_ref();
            json!({
                "id": id,
                "name": node.name,
                "dtype": moved.map(|moved| &moved.dtype),
                "bytes": moved.map(|moved| moved.bytes),
                "depth": tensor.depth,
                "bucket": tensor.bucket,
            })
        };
        let bucket =
            |bucket: &plan::Fused| json!({"dtype": bucket.dtype, "bytes": bucket.bytes, "tensors": bucket.tensors});
        let edges: usize = plan.order.iter().map(|&node| self.dag.parents(node).len()).sum();
        json!({
            "graph": self.graph.name,
            "nodes": plan.order.len(),
            "edges": edges,
            "bucket_size_bytes": threshold,
            "tensors": plan.tensors.iter().enumerate().map(tensor).collect::<Vec<_>>(),
            "buckets": plan.buckets.iter().map(bucket).collect::<Vec<_>>(),
        })
    }
}

#[pymethods]
impl Graph {
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Graph> {
        let graph = py.detach(|| ModelGraph::read(&path)).map_err(user_error)?;
        Graph::new(path.display().to_string(), graph)
    }

    #[staticmethod]
    fn from_json(text: &[u8], source: &str) -> PyResult<Graph> {
        Graph::new(source.to_owned(), ModelGraph::from_json(text, source).map_err(user_error)?)
    }

    fn to_json(&self) -> String {
        self.graph.to_json()
    }

    #[getter]
    fn name(&self) -> &str {
        &self.graph.name
    }

    #[getter]
    fn nodes(&self) -> usize {
        self.graph.nodes.len()
    }

    #[getter]
    fn edges(&self) -> usize {
        self.graph.edges.len()
    }

    #[getter]
    fn all_reduces(&self) -> usize {
        self.graph.nodes.iter().filter(|node| node.all_reduce.is_some()).count()
    }

    /// Names.
    #[getter]
    fn fetches(&self) -> Vec<&str> {
        self.graph.fetches.iter().map(|&fetch| self.graph.nodes[fetch as usize].name.as_str()).collect()
    }

    /// As JSON.
    #[pyo3(signature = (fetches, bucket_size, *, as_listed=false))]
    #[expect(clippy::needless_pass_by_value, reason = "the Python list is converted")]
    fn plan(&self, py: Python<'_>, fetches: Vec<String>, bucket_size: u64, as_listed: bool) -> PyResult<String> {
        let fetches = fetches.iter().map(|name| self.find(name)).collect::<PyResult<Vec<_>>>()?;
        py.detach(|| {
            let plan = self.planned(&fetches, bucket_size, as_listed)?;
            Ok(self.described(&plan, bucket_size).to_string())
        })
    }

    /// Seconds of one traversal, with the fusion: the median of so many.
    #[pyo3(signature = (fetches, bucket_size, times, *, as_listed=false))]
    #[expect(clippy::needless_pass_by_value, reason = "the Python list is converted")]
    fn traversal_s(
        &self,
        py: Python<'_>,
        fetches: Vec<String>,
        bucket_size: u64,
        times: u32,
        as_listed: bool,
    ) -> PyResult<f64> {
        let fetches = fetches.iter().map(|name| self.find(name)).collect::<PyResult<Vec<_>>>()?;
        py.detach(|| {
            let once = |_| {
                let begin = Instant::now();
                let plan = self.planned(&fetches, bucket_size, as_listed)?;
                let took = begin.elapsed().as_secs_f64();
                drop(std::hint::black_box(plan));
                Ok(took)
            };
            let mut took = (0..times.max(1)).map(once).collect::<PyResult<Vec<f64>>>()?;
            took.sort_by(f64::total_cmp);
            Ok(took[took.len() / 2])
        })
    }
}
