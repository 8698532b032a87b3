//! Common mistakes in a trace or cluster file, and their error messages: one line with the place and what to do.
use paceline_model::{Cluster, Trace};

fn page(text: &str) -> &str {
    let start = text.find("```json\n").unwrap() + "```json\n".len();
    &text[start..start + text[start..].find("```").unwrap()]
}

fn trace() -> &'static str {
    page(include_str!("../../../../docs/reference/trace-format.md"))
}

fn cluster() -> &'static str {
    page(include_str!("../../../../docs/reference/cluster-format.md"))
}

fn one_line(error: &str) {
    assert!(!error.contains('\n') && error.chars().count() < 400, "{error}");
}

fn refused(text: &[u8], says: &str) {
    let error = Trace::from_json(text, "T.json").expect_err(says).to_string();
    one_line(&error);
    assert!(error.starts_with("T.json: "), "{error}");
    assert!(error.contains(says), "\n  {error}\nlacks\n  {says}");
}

/// The documented example with one change.
fn refused_with(old: &str, new: &str, says: &str) {
    assert!(trace().contains(old), "{old}");
    refused(trace().replacen(old, new, 1).as_bytes(), says);
}

fn cluster_refused_with(old: &str, new: &str, says: &str) {
    assert!(cluster().contains(old), "{old}");
    let error = Cluster::from_json(cluster().replacen(old, new, 1).as_bytes(), "C.json").expect_err(says).to_string();
    one_line(&error);
    assert!(error.contains(says), "\n  {error}\nlacks\n  {says}");
}

#[test]
fn what_is_no_json_object() {
    refused(b"", "is empty; a document begins with {\"format\": \"paceline-trace\"");
    refused(b" \n", "is empty");
    refused(b"[]", "is not a JSON object; it must begin with");
    refused(b"hello", "is not a JSON object");
    refused(b"\x1f\x8b\x08\x00", "is compressed with gzip; decompress it first");
    refused(b"PK\x03\x04", "is a zip archive");
    refused(b"\xff\xfe{\x00", "is UTF-16; save it as UTF-8");
    refused(b"{\"name\": \"\xe9\"}", "is binary or not UTF-8 (at byte 10)");
    refused(&vec![b' '; 256_000_001], "is larger than 256 MB");
    refused(&trace().as_bytes()[..500], "the document ends here, unfinished; was the file cut off?");
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
        refused(deep.as_bytes(), "T.json: ");
        refused(format!("{{\"format\": {deep}").as_bytes(), "T.json: ");
        for field in ["\"tiny\"", "32", "0.010", "[\"conv.weight\", \"conv.bias\"]", "37632"] {
            refused_with(field, &deep, "T.json: ");
        }
    }
}

#[test]
fn format_and_version() {
    refused_with("\"format\": \"paceline-trace\",", "", "format: is missing; the document must begin with");
    refused_with("\"paceline-trace\"", "\"other\"", "format: found \"other\", expected \"paceline-trace\"");
    refused_with("\"paceline-trace\"", "7", "format: found 7, expected \"paceline-trace\"");
    refused_with("\"paceline-trace\"", "\"paceline-cluster\"", "this is a cluster file (--cluster)");
    refused_with("\"version\": 1,", "", "version: is missing; write \"version\": 1");
    refused_with(
        "\"version\": 1",
        "\"version\": 2, \"new\": 1",
        "version: is 2, and this paceline reads 1; update paceline",
    );
    for version in ["0", "-1", "1.5", "\"1\"", "[1]"] {
        refused_with(
            "\"version\": 1",
            &format!("\"version\": {version}"),
            &format!("version: found {version}, expected 1"),
        );
    }
    refused_with("\"version\": 1", "\"version\": 1, \"version\": 1", "has 'version' twice; keep one");
}

#[test]
fn fields() {
    refused_with(
        "\"bytes\": 40960000",
        "\"byte\": 40960000",
        "workers[0].gradients[0]: unknown field 'byte'; did you mean 'bytes'?",
    );
    refused_with("\"batch\"", "\"zzz\"", "unknown field 'zzz'; the known ones are format, version, name");
    refused_with(
        ", \"bytes\": 40960000",
        "",
        "workers[0].gradients[0].bytes: is missing; give the tensor's size in bytes",
    );
    refused_with("\"batch\": 32,", "", "T.json: batch: is missing; give the samples per worker");
    refused_with("\"batch\": 32", "\"batch\": 0", "batch: is 0 and must lie between 1 and 4294967295");
    refused_with("\"batch\": 32", "\"batch\": 32.5", "batch: found floating point `32.5`, expected the samples");
    refused_with("\"batch\": 32", "\"batch\": -1", "batch: found integer `-1`, expected the samples");
    refused_with("\"batch\": 32", "\"batch\": \"32\"", "batch: found string \"32\", expected the samples");
    refused_with(
        "\"float32\"",
        "\"fp32\"",
        "dtype: unknown dtype 'fp32'; did you mean 'float32'? valid are float64, float32",
    );
    refused_with("\"float32\"", "\"int8\"", "dtype: unknown dtype 'int8'; valid are float64");
    refused_with("\"name\": \"tiny\"", "\"name\": \"\"", "name: is empty; give a name");
    refused_with("\"tiny\"", "\"\\u001b[31mtiny\"", "name: holds the control character U+001B");
    refused_with("\"fc.weight\"", "\"a\\nb\"", "workers[0].forward[2].tensors[0]: holds the control character U+000A");
    refused_with("\"fc.weight\"", "3", "workers[0].forward[2].tensors[0]: found integer `3`, expected a string");
    refused_with("{\"backward_spread\": 0.05}", "[0.05]", "variation: found sequence, expected an object such as");
    refused_with(
        "{\"layer\": \"pool\", \"duration_s\": 0.001}",
        "[\"pool\", 1]",
        "forward[1]: found sequence, expected an object",
    );
    for spread in ["-0.1", "10.1", "1e999"] {
        refused_with("0.05}", &format!("{spread}}}"), "variation.backward_spread: is ");
    }
}

#[test]
fn times() {
    refused_with("0.010", "-0.010", "workers[0].forward[0].duration_s: '-0.010' is negative");
    refused_with("0.010", "86401", "workers[0].forward[0].duration_s: '86401' is longer than a day");
    refused_with("0.010", "1e999999", "workers[0].forward[0].duration_s: '1e999999' is longer than a day");
    refused_with("0.010", "86400", "workers[0].forward: all layers together are longer than a day");
    refused_with("0.010", "\"10ms\"", "workers[0].forward[0].duration_s: '\"10ms\"' is not a number; give seconds");
    refused_with("0.010", "null", "'null' is not a number");
    refused_with("0.010", "NaN", "(workers[0].forward[0].duration_s): NaN is not JSON (Python's json.dumps writes it)");
    refused_with("0.010", "Infinity", "Infinity is not JSON");
    refused_with("0.010", "-Infinity", "Infinity is not JSON");
    refused_with("0.05}", "NaN}", "NaN is not JSON");
    refused_with("\"batch\": 32", "\"batch\": NaN", "NaN is not JSON");
    refused_with("\"version\": 1", "\"version\": NaN", "NaN is not JSON");
    refused_with(
        "\"backward_s\": 0.025",
        "\"backward_s\": 0.02",
        "workers[0].backward_s: is 0.02, before the last gradient at 0.024",
    );
}

#[test]
fn tensors() {
    refused_with("37632", "0", "workers[0].gradients[2].bytes: is 0; a tensor has at least one element");
    refused_with(
        "37632",
        "37633",
        "workers[0].gradients[2].bytes: 37633 bytes are not a whole number of float32 elements of 4",
    );
    refused_with("37632", "-4", "workers[0].gradients[2].bytes: found integer `-4`, expected the tensor's size");
    refused_with("37632", "2000000000000000", "is more than 1e15 (a petabyte)");
    refused_with("37632", "99999999999999999999999", "workers[0].gradients[2].bytes: found floating point");
    refused_with("37632", "999999999999996", "all tensors together have 1000000040960508 bytes, more than 1e15");
    refused_with(
        "\"tensor\": \"conv.bias\"",
        "\"tensor\": \"conv.weight\"",
        "gradients[2]: 'conv.weight' has a gradient already, gradients[1]",
    );
    refused_with(
        "\"tensor\": \"conv.bias\"",
        "\"tensor\": \"bn.bias\"",
        "gradients[1]: no layer needs 'bn.bias'; add it to the `tensors`",
    );
    refused_with(
        "[\"fc.weight\"]",
        "[\"fc.weight\", \"fc.bias\"]",
        "workers[0].forward[2]: needs 'fc.bias', which has no gradient",
    );
    refused_with("[\"fc.weight\"]", "[\"fc.weight\", \"fc.weight\"]", "workers[0].forward[2]: names 'fc.weight' twice");
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
        "distribution[0]: 'nowhere' has no gradient; check its name",
    );
    refused_with(
        "\"tensor\": \"moving_mean\"",
        "\"tensor\": \"fc.weight\"",
        "distribution[3]: 'fc.weight' is distributed twice",
    );
    refused_with(
        "\"fc.weight\", {\"tensor\": \"moving_mean\"",
        "{\"tensor\": \"fc.weight\"",
        "'fc.weight' has a gradient, which gives its bytes",
    );
    refused_with(
        "{\"tensor\": \"moving_mean\"",
        "{\"tensr\": \"moving_mean\"",
        "distribution[3]: unknown field 'tensr'; did you mean 'tensor'?",
    );
    refused_with(
        "\"moving_mean\", \"bytes\": 256",
        "\"moving_mean\", \"bytes\": 255",
        "distribution[3].bytes: 255 bytes are not a whole",
    );
    refused_with("\"moving_mean\", \"bytes\": 256", "\"moving_mean\"", "distribution[3].bytes: is missing");
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
        "workers: is empty; give at least one recorded worker",
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
fn clusters() {
    cluster_refused_with("\"25Gbps\"", "\"25\"", "bandwidth: '25' has no unit; rates are bits per second");
    cluster_refused_with("\"25Gbps\"", "25", "bandwidth: found integer `25`, expected a rate with its unit in quotes");
    cluster_refused_with("\"25Gbps\"", "\"25GB\"", "bandwidth: '25GB' is a size in bytes");
    cluster_refused_with("\"bandwidth\": \"25Gbps\",", "", "C.json: bandwidth: is missing; give a rate with its unit");
    cluster_refused_with("\"bandwidth\"", "\"bandwith\"", "unknown field 'bandwith'; did you mean 'bandwidth'?");
    cluster_refused_with(
        "\"tcp\"",
        "\"tpc\"",
        "unknown channel 'tpc'; did you mean 'tcp'? valid are none, auto, tcp, rdma",
    );
    cluster_refused_with("\"tcp\"", "\"tcp\", \"efficiency\": 0", "efficiency: is '0' and must lie between 0.01 and 1");
    cluster_refused_with(
        "\"tcp\"",
        "\"tcp\", \"node_contention\": -1",
        "node_contention: is '-1' and must lie between",
    );
    cluster_refused_with("\"tcp\"", "\"tcp\", \"mesh\": {\"peers\": 4}", "mesh.bridge: is missing; give a rate");
    cluster_refused_with("\"10us\"", "\"10\"", "latency: '10' has no unit");
    cluster_refused_with("\"10us\"", "\"61s\"", "latency: is 61.000 s, longer than a minute");
    cluster_refused_with(
        "\"10MB\"",
        "10",
        "switch.memory: found integer `10`, expected a size with its unit in quotes",
    );
    cluster_refused_with(
        "\"gpus_per_node\": 8",
        "\"gpus_per_node\": 0",
        "gpus_per_node: is 0 and must lie between 1 and 1024",
    );
    cluster_refused_with("\"gpus_per_node\": 8", "\"gpus_per_node\": 1025", "must lie between 1 and 1024");
    cluster_refused_with(
        "\"gpus_per_node\": 8",
        "\"nics_per_node\": 129",
        "nics_per_node: is 129 and must lie between 1 and 128",
    );
    cluster_refused_with("\"gpus_per_node\": 8", "\"intra_link\": \"nvswich\"", "did you mean 'nvswitch'?");
    cluster_refused_with("\"gpus_per_node\": 8", "\"gpu\": 8", "gpu: found integer `8`, expected");
    cluster_refused_with(
        "\"gpus_per_node\": 8",
        "\"intra_link\": \"pcie\", \"mesh\": {\"peers\": 4, \"bridge\": \"40Gbps\"}",
        "mesh: describes NVLinks between GPUs; leave it out",
    );
    let rails = "\"nics_per_node\": 8, \"fabric\": {\"kind\": \"rails\", \"nodes_per_leaf\": 16, \"spines\": 4}";
    let flat = "{\"format\":\"paceline-cluster\",\"version\":1,\"bandwidth\":\"25Gbps\",";
    let error = Cluster::from_json(format!("{flat}{rails}}}").as_bytes(), "C.json").expect_err("rails").to_string();
    assert!(error.contains("nics_per_node: has no effect with rails"), "{error}");
    cluster_refused_with("\"own-nodes\"", "\"own_nodes\"", "unknown place 'own_nodes'; did you mean 'own-nodes'?");
    cluster_refused_with("4.0", "0.5", "racks.oversubscription: is '0.5' and must lie between 1 and 1000");
    cluster_refused_with("\"nodes_per_rack\": 16, ", "", "racks.nodes_per_rack: is missing; give how many nodes");
    cluster_refused_with("\"radix\": 64", "\"radix\": 1", "switch.radix: is 1 and must lie between 2");
    cluster_refused_with(
        "\"multicast\": true",
        "\"multicast\": \"yes\"",
        "switch.multicast: found string \"yes\", expected a boolean",
    );
    cluster_refused_with(
        "\"stragglers\"",
        "\"degraded\": [{\"link\": \"node1\", \"factor\": 5e-324}], \"stragglers\"",
        "degraded[0].factor: is 5e-324 and must be at least 1e-9, or 0, which removes the link",
    );
    cluster_refused_with("1.5", "1001", "stragglers[0].factor: is '1001' and must lie between 0.01 and 1000");
    cluster_refused_with(
        "[{\"rank\": 3,",
        "[{\"rank\": 3, \"factor\": 2}, {\"rank\": 3,",
        "stragglers[1].rank: rank 3 has a factor already, stragglers[0]",
    );
    cluster_refused_with(
        "{\"sigma\": 0.05}",
        "{\"sigma\": 2.5}",
        "jitter.sigma: is '2.5' and must lie between 0 and 2",
    );
    cluster_refused_with("\"paceline-cluster\"", "\"paceline-trace\"", "this is a trace; found");
    cluster_refused_with(
        "\"version\": 1",
        "\"version\": 9",
        "version: is 9, and this paceline reads 1; update paceline",
    );
}
