//! The operators of a computed step, in a trace of version 2.
use paceline_model::Trace;
use paceline_model::trace::Dtype;
use proptest::collection::vec;
use proptest::prelude::*;

const TRACE: &str = r#"{
  "format": "paceline-trace", "version": 2, "name": "computed", "batch": 2, "dtype": "bfloat16",
  "workers": [{
    "forward": [{"layer": "fc", "duration_s": 0.001, "tensors": ["fc.weight"]}, {"layer": "(loss)", "duration_s": 0.001}],
    "gradients": [{"tensor": "fc.weight", "ready_s": 0.001, "bytes": 32}],
    "backward_s": 0.002, "optimizer_s": 0.001
  }],
  "operators": {
    "tensors": [{"dtype": "bfloat16", "shape": [4, 4]}, {"dtype": "bfloat16", "shape": [4, 4], "strides": [1, 4]},
      {"dtype": "float32", "shape": []}],
    "kinds": [{"name": "mm", "inputs": [0, 1], "outputs": [0]},
      {"name": "sum", "inputs": [0], "outputs": [2], "sources": [1], "attributes": {"dim": [0, -1], "p": 0.5, "keep": false},
       "compiled": true, "tf32": true},
      {"name": "mm", "inputs": [1, 0], "outputs": [0], "phase": "backward"},
      {"name": "_fused_adamw_", "inputs": [0, 0], "attributes": {"mode": "x"}, "phase": "update"}],
    "order": [0, 1, 2, 2, 3],
    "forward": [[0, 1], [1, 2]], "gradients": {"fc.weight": 1}, "backward": [2, 4], "optimizer": [4, 5]
  }
}"#;

fn trace() -> Trace {
    Trace::from_json(TRACE.as_bytes(), "F.json").unwrap()
}

#[test]
fn a_trace_with_operators_is_written_as_it_was_read() {
    let trace = trace();
    let operators = trace.operators.clone().unwrap();
    assert_eq!((operators.order.len(), operators.kinds[1].sources[0]), (5, 1));
    let text = trace.to_json();
    assert!(text.contains("\"version\": 2"));
    assert_eq!(Trace::from_json(text.as_bytes(), "again").unwrap(), trace);
}

#[test]
fn other_times_have_no_operators() {
    assert!(trace().with_batch(4).unwrap().operators.is_none());
    assert!(trace().scaled_to_rate(10.0).unwrap().operators.is_none());
    assert!(trace().with_dtype(Dtype::Float32).unwrap().operators.is_some());
    let without = trace().with_batch(4).unwrap().to_json();
    assert!(without.contains("\"version\": 1") && !without.contains("operators"));
}

#[test]
fn mistakes_name_the_place() {
    for (old, new, says) in [
        ("\"version\": 2", "\"version\": 1", "operators: need version 2"),
        ("\"version\": 2", "\"version\": 3", "version: is 3, newer than this paceline, which reads 2"),
        ("\"order\": [0, 1", "\"order\": [9, 1", "operators.order[0]: there are 4 kinds"),
        ("\"inputs\": [1, 0]", "\"inputs\": [1, 3]", "operators.kinds[2]: there are 3 tensors"),
        ("\"sources\": [1]", "\"sources\": [1, 1]", "operators.kinds[1]: must have a source for each input"),
        ("\"strides\": [1, 4]", "\"strides\": [1]", "operators.tensors[1]: must have a stride for each dimension"),
        ("[4, 4]}", "[4, 99999999999999999]}", "operators.tensors[0]: is larger than a petabyte"),
        ("[[0, 1], [1, 2]]", "[[0, 1]]", "operators.forward: must have an entry for each of the 2 layers"),
        ("[[0, 1], [1, 2]]", "[[0, 1], [1, 9]]", "operators: [1, 9] is no part of the 5 operators"),
        ("\"fc.weight\": 1", "\"fc.weight\": 3", "operators.gradients: \"fc.weight\": is beyond the backward pass"),
        ("\"fc.weight\": 1", "\"fc.bias\": 1", "operators.gradients: lacks \"fc.weight\""),
        ("\"phase\": \"update\"", "\"phase\": \"after\"", "operators.kinds[3].phase: "),
        ("\"p\": 0.5", "\"p\": {}", "operators.kinds[1].attributes: 'p' is no number"),
        ("\"dim\": [0, -1]", "\"dim\": [[0]]", "operators.kinds[1].attributes: 'dim' is no number"),
        ("\"tf32\": true", "\"tf23\": true", "unknown field"),
    ] {
        assert!(TRACE.contains(old), "{old}");
        let error = Trace::from_json(TRACE.replacen(old, new, 1).as_bytes(), "F.json").expect_err(says);
        assert!(error.to_string().contains(says), "\n  {error}\nlacks\n  {says}");
        assert!(error.remedy().is_some(), "{error} has no remedy");
    }
}

proptest! {
    #[test]
    fn a_changed_trace_is_read_or_refused(at in 0..TRACE.len(), bytes in vec(any::<u8>(), 0..4)) {
        let mut text = TRACE.as_bytes().to_vec();
        let end = (at + bytes.len()).min(text.len());
        text.splice(at..end, bytes);
        if let Ok(trace) = Trace::from_json(&text, "F.json") {
            prop_assert_eq!(Trace::from_json(trace.to_json().as_bytes(), "again").unwrap(), trace);
        }
    }
}
