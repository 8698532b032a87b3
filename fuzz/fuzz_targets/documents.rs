//! Any bytes as a trace, as a cluster, as a graph and as traces of sends: an error of one line, or a document that is read
//! as it was written. Start from the examples in docs/reference/trace-format.md, docs/reference/cluster-format.md and docs/reference/coordinator-plan.md,
//! copied into corpus/documents.
#![no_main]
use libfuzzer_sys::fuzz_target;
use paceline_model::trace::{ImportOptions, import_sends};
use paceline_model::{Cluster, DocumentError, Graph, Trace};

fn one_line(error: &DocumentError) {
    let error = error.to_string();
    assert!(error.chars().count() < 400 && !error.chars().any(char::is_control), "{error:?}");
}

fn read_as_written(trace: &Trace) {
    assert_eq!(&Trace::from_json(trace.to_json().as_bytes(), "written").unwrap(), trace);
}

fuzz_target!(|data: &[u8]| {
    match Trace::from_json(data, "trace") {
        Ok(trace) => read_as_written(&trace),
        Err(error) => one_line(&error),
    }
    match Cluster::from_json(data, "cluster") {
        Ok(cluster) => assert_eq!(Cluster::from_json(cluster.to_json().as_bytes(), "written").unwrap(), cluster),
        Err(error) => one_line(&error),
    }
    match Graph::from_json(data, "graph") {
        Ok(graph) => assert_eq!(Graph::from_json(graph.to_json().as_bytes(), "written").unwrap(), graph),
        Err(error) => one_line(&error),
    }
    if let Ok(text) = std::str::from_utf8(data) {
        match import_sends(text, text, ImportOptions::default()) {
            Ok(trace) => read_as_written(&trace),
            Err(error) => one_line(&error),
        }
    }
});
