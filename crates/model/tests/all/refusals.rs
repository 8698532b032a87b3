//! Common mistakes in a trace, cluster or graph file, and their error messages: one line with the place and what to do.
use paceline_model::{Cluster, Graph, Trace};

fn page(text: &str) -> &str {
    let start = text.find("```json\n").unwrap() + "```json\n".len();
    &text[start..start + text[start..].find("```").unwrap()]
}

fn trace() -> &'static str {
    page(include_str!("../../../../docs/reference/trace-format.md"))
}

fn one_line(error: &str) {
    assert!(!error.contains('\n') && error.chars().count() < 400, "{error}");
}

/// That a document of this kind is refused with these words.
fn refused_as(kind: &str, text: &[u8], says: &str) {
    let error = match kind {
        "trace" => Trace::from_json(text, "F.json").map(|_| ()),
        "cluster" => Cluster::from_json(text, "F.json").map(|_| ()),
        "graph" => Graph::from_json(text, "F.json").map(|_| ()),
        _ => panic!("{kind}"),
    }
    .expect_err(says);
    let remedy = error.remedy().map(str::to_owned);
    let error = error.to_string();
    one_line(&error);
    assert!(error.starts_with("F.json: "), "{error}");
    assert!(remedy.is_some_and(|remedy| !remedy.is_empty()), "{error} has no remedy");
    assert!(error.contains(says), "\n  {error}\nlacks\n  {says}");
}

fn refused(text: &[u8], says: &str) {
    refused_as("trace", text, says);
}

/// The documented example with one change.
fn refused_with(old: &str, new: &str, says: &str) {
    assert!(trace().contains(old), "{old}");
    refused(trace().replacen(old, new, 1).as_bytes(), says);
}

#[test]
fn mistakes_in_the_documented_examples() {
    let (mut kind, mut example, mut change) = ("", "", ("", ""));
    let mut count = 0;
    for line in include_str!("refusals.txt").lines() {
        let (mark, words) = (line.get(..1).unwrap_or(""), line.get(2..).unwrap_or(""));
        match mark {
            "#" => {
                kind = words;
                example = page(match kind {
                    "trace" => include_str!("../../../../docs/reference/trace-format.md"),
                    "cluster" => include_str!("../../../../docs/reference/cluster-format.md"),
                    _ => include_str!("../../../../docs/reference/coordinator-plan.md"),
                });
            }
            "-" => change.0 = words,
            "+" => change.1 = words,
            "=" => {
                assert!(example.contains(change.0), "{}", change.0);
                refused_as(kind, example.replacen(change.0, change.1, 1).as_bytes(), words);
                count += 1;
            }
            _ => {}
        }
    }
    assert_eq!(count, 98);
}

#[test]
fn what_is_no_json_object() {
    refused(b"", "is empty");
    refused(b" \n", "is empty");
    refused(b"[]", "is not a trace (no \"format\": \"paceline-trace\")");
    refused(b"hello", "is not a trace");
    refused(b"\x1f\x8b\x08\x00", "is compressed with gzip");
    refused(b"PK\x03\x04", "is a zip archive");
    refused(b"\xff\xfe{\x00", "is UTF-16");
    refused(b"{\"name\": \"\xe9\"}", "is binary or not UTF-8 (at byte 10)");
    refused(&vec![b' '; 256_000_001], "is larger than the 256 MB");
    refused(&trace().as_bytes()[..500], "the document ends here, unfinished");
    refused(format!("{} 1", trace()).as_bytes(), "trailing characters");
    refused_with("0.010, ", "0.010 ", "line 12 column");
    refused_with("}\n      ],", "},\n      ],", "trailing comma");
    let with_mark = format!("\u{feff}{}", trace());
    assert!(Trace::from_json(with_mark.as_bytes(), "T.json").is_ok());
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    for opening in ["[", "{\"a\":"] {
        let deep = opening.repeat(1_000_000);
        refused(deep.as_bytes(), "F.json: ");
        refused(format!("{{\"format\": {deep}").as_bytes(), "F.json: ");
        for field in ["\"tiny\"", "32", "0.010", "[\"conv.weight\", \"conv.bias\"]", "37632"] {
            refused_with(field, &deep, "F.json: ");
        }
    }
}

#[test]
fn versions_spreads_and_frozen_tensors() {
    for version in ["0", "-1", "1.5", "\"1\"", "[1]"] {
        refused_with(
            "\"version\": 1",
            &format!("\"version\": {version}"),
            &format!("version: must be 1, not {version}"),
        );
    }
    for spread in ["-0.1", "10.1", "1e999"] {
        refused_with("0.05}", &format!("{spread}}}"), "variation.backward_spread: must be 0-10, not ");
    }
    refused_with(
        "\"distribution\": [",
        "\"distribution\": [\"fc.weight\", ",
        "distribution[3]: 'fc.weight' is distributed twice",
    );
    let frozen = |entries: &str| format!("\"frozen\": [{entries}], \"distribution\": [");
    for (entries, message) in [
        ("{\"tensor\": \"nowhere\", \"bytes\": 4}", "frozen[0]: no layer needs 'nowhere'"),
        ("{\"tensor\": \"fc.weight\", \"bytes\": 4}", "frozen[0]: 'fc.weight' has a gradient, so it is trained"),
        ("{\"tensor\": \"fc.weight\"}", "frozen[0].bytes: is missing"),
        ("7", "frozen[0]: "),
    ] {
        refused_with("\"distribution\": [", &frozen(entries), message);
    }
    refused_with(
        "\"distribution\": [",
        "\"distribution\": [\"nowhere\", ",
        "distribution[0]: 'nowhere' has no gradient",
    );
}

#[test]
fn workers_are_alike() {
    let start = trace().find("\"workers\": [").unwrap() + "\"workers\": [".len();
    let end = trace().find("\"distribution\"").unwrap();
    let worker = trace()[start..end].trim().trim_end_matches("],");
    let with = |second: &str| {
        trace().replacen("\"workers\": [", &format!("\"workers\": [{worker},"), 1).replacen("0.025,", second, 1)
    };
    assert_eq!(Trace::from_json(with("0.026,").as_bytes(), "T.json").unwrap().workers.len(), 2);
    let refused_second = |old: &str, new: &str, says: &str| {
        let changed = format!("{worker},{}", worker.replacen(old, new, 1));
        refused(trace().replacen(worker, &changed, 1).as_bytes(), says);
    };
    refused_second("37632", "37636", "workers[1]: 'conv.weight' has 37636 bytes here and 37632 in workers[0]");
    refused_second(
        "{\"tensor\": \"conv.bias\", \"ready_s\": 0.024, \"bytes\": 256},",
        "",
        "workers[1]: 'conv.bias' has no gradient here",
    );
    refused_second(
        "\"tensors\": [\"fc.weight\"]",
        "\"tensors\": [\"new\"]",
        "workers[1].forward[2]: needs 'new', which no layer of workers[0]",
    );
    refused_second(", \"tensors\": [\"fc.weight\"]", "", "workers[1].gradients[0]: no layer needs 'fc.weight'");
    refused(
        br#"{"format": "paceline-trace", "version": 1, "name": "n", "batch": 1, "dtype": "float32", "workers": []}"#,
        "workers: is empty",
    );
}

#[test]
fn long_names_are_shortened() {
    let long = "x".repeat(100_000);
    for old in ["\"bytes\": 40960000", "\"float32\"", "0.010", "32,", "\"paceline-trace\""] {
        refused_with(old, &format!("\"{long}\""), "x…x");
    }
    refused_with("\"tensor\": \"conv.bias\"", &format!("\"tensor\": \"{long}\""), "no layer needs 'xxx");
    let error = Trace::from_json(b"{", &long).unwrap_err().to_string();
    one_line(&error);
    let error = Trace::read(std::path::Path::new(&long)).unwrap_err().to_string();
    one_line(&error);
}

#[test]
fn too_many_entries() {
    let names: Vec<String> = (0..1_000_001).map(|i| format!("\"t{i}\"")).collect();
    refused_with(
        "[\"fc.weight\"]",
        &format!("[{}]", names.join(",")),
        "workers[0].forward[2].tensors: has more than 1000000 entries",
    );
    refused_with(
        "[\"fc.weight\"]",
        &format!("[{}]", names[..1_000_000].join(",")),
        "workers[0].forward[2]: more than 1000000 tensors",
    );
}

#[test]
fn rails_have_a_card_each() {
    let rails = "\"nics_per_node\": 8, \"fabric\": {\"kind\": \"rails\", \"nodes_per_leaf\": 16, \"spines\": 4}";
    let flat = "{\"format\":\"paceline-cluster\",\"version\":1,\"bandwidth\":\"25Gbps\",";
    refused_as("cluster", format!("{flat}{rails}}}").as_bytes(), "nics_per_node: has no effect with rails");
}
