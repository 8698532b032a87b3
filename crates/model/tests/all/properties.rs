//! Whatever a file contains, the result is an error of one line, or a document that is written and read back unchanged.
use paceline_model::cluster::Channel;
use paceline_model::trace::{Dtype, ImportOptions, Module, ModuleKind, Tensor, import_sends};
use paceline_model::{Cluster, DocumentError, Graph, Time, Trace};
use proptest::collection::vec;
use proptest::prelude::*;

fn page(text: &str) -> String {
    let start = text.find("```json\n").unwrap() + "```json\n".len();
    text[start..start + text[start..].find("```").unwrap()].to_owned()
}

fn error_is_one_line(error: &DocumentError) -> Result<(), TestCaseError> {
    let error = error.to_string();
    prop_assert!(error.starts_with("it: ") && error.len() > 10 && error.chars().count() < 400, "{}", error);
    prop_assert!(!error.chars().any(char::is_control), "{}", error);
    Ok(())
}

fn trace_or_error(text: &[u8]) -> Result<(), TestCaseError> {
    match Trace::from_json(text, "it") {
        Ok(trace) => holds(&trace),
        Err(error) => error_is_one_line(&error),
    }
}

fn cluster_or_error(text: &[u8]) -> Result<(), TestCaseError> {
    match Cluster::from_json(text, "it") {
        Ok(cluster) => {
            prop_assert_eq!(Cluster::from_json(cluster.to_json().as_bytes(), "it").unwrap(), cluster);
            Ok(())
        }
        Err(error) => error_is_one_line(&error),
    }
}

fn graph_or_error(text: &[u8]) -> Result<(), TestCaseError> {
    match Graph::from_json(text, "it") {
        Ok(graph) => {
            let places = graph.edges.iter().flat_map(|&(parent, child)| [parent, child]).chain(graph.fetches.clone());
            prop_assert!(places.into_iter().all(|place| (place as usize) < graph.nodes.len()));
            prop_assert_eq!(Graph::from_json(graph.to_json().as_bytes(), "other").unwrap(), graph);
            Ok(())
        }
        Err(error) => error_is_one_line(&error),
    }
}

/// The invariants on which every user of a trace relies.
fn holds(trace: &Trace) -> Result<(), TestCaseError> {
    let mut order = trace.distribution.clone();
    order.sort_unstable();
    let is_frozen = |&index: &u32| trace.tensors[index as usize].frozen_bytes > 0;
    let sent: Vec<u32> = (0..trace.tensors.len() as u32).filter(|index| !is_frozen(index)).collect();
    prop_assert_eq!(order, sent);
    let as_said = |t: &Tensor| (t.frozen_bytes > 0) != (t.pull_bytes > 0) && (t.bytes == 0 || t.bytes == t.pull_bytes);
    prop_assert!(trace.tensors.iter().all(as_said));
    let with_gradient = trace.tensors.iter().filter(|tensor| tensor.bytes > 0).count();
    prop_assert!(!trace.workers.is_empty() && trace.batch > 0);
    for worker in &trace.workers {
        prop_assert_eq!(worker.gradients.len(), with_gradient);
        prop_assert!(worker.gradients.iter().all(|gradient| trace.tensors[gradient.tensor as usize].bytes > 0));
        prop_assert!(worker.gradients.is_sorted_by_key(|gradient| gradient.ready));
        prop_assert!(worker.gradients.iter().all(|gradient| gradient.ready <= worker.backward));
        prop_assert!(worker.compute_time() <= Time(3 * 86_400_000_000_000_000));
    }
    let written = trace.to_json();
    let read = Trace::from_json(written.as_bytes(), "it").map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(&read, trace);
    prop_assert_eq!(read.to_json(), written);
    Ok(())
}

/// A change that an editor, a broken disk or a bad script makes.
#[derive(Clone, Debug)]
enum Change {
    Replace(usize, u8),
    Insert(usize, u8),
    Remove(usize, usize),
    Copy(usize, usize, usize),
    Cut(usize),
    Splice(usize, &'static str),
}

fn change() -> impl Strategy<Value = Change> {
    let pieces =
        ["null", "[]", "{}", "-1", "1e999", "NaN", "\"\"", "\"\\ud800\"", ",", "}", "]", "\u{202e}", "0", "true"];
    let at = any::<usize>();
    prop_oneof![
        (at, any::<u8>()).prop_map(|(at, byte)| Change::Replace(at, byte)),
        (at, any::<u8>()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        (at, 1..40_usize).prop_map(|(at, length)| Change::Remove(at, length)),
        (at, 1..200_usize, at).prop_map(|(at, length, to)| Change::Copy(at, length, to)),
        at.prop_map(Change::Cut),
        (at, proptest::sample::select(pieces.to_vec())).prop_map(|(at, piece)| Change::Splice(at, piece)),
    ]
}

fn changed(text: &str, changes: &[Change]) -> Vec<u8> {
    let mut text = text.as_bytes().to_vec();
    for change in changes {
        let length = text.len();
        let within = |at: usize| at % length.max(1);
        match *change {
            _ if length == 0 => {}
            Change::Replace(at, byte) => text[within(at)] = byte,
            Change::Insert(at, byte) => text.insert(within(at), byte),
            Change::Remove(at, count) => drop(text.drain(within(at)..(within(at) + count).min(length))),
            Change::Copy(at, count, to) => {
                let copy = text[within(at)..(within(at) + count).min(length)].to_vec();
                text.splice(within(to)..within(to), copy);
            }
            Change::Cut(at) => text.truncate(within(at)),
            // Replaces a value: everything up to the next comma or bracket.
            Change::Splice(at, piece) => {
                let start = (within(at)..length).find(|&i| b":[,".contains(&text[i])).map_or(0, |i| i + 1);
                let end = (start..length).find(|&i| b",]}".contains(&text[i])).unwrap_or(length);
                text.splice(start..end, piece.bytes());
            }
        }
    }
    text
}

/// A valid trace: `sizes` are the elements of tensors; tensor i is needed by layer i modulo the number of layers.
fn trace() -> impl Strategy<Value = Trace> {
    let day = 86_400_000_000_000_000_u64;
    let time = prop_oneof![0..=1_000_000_000_000_u64, 0..=day].prop_map(Time);
    let name = "[^\\p{C}\u{2028}\u{2029}]{1,12}";
    let worker = (vec(0..=day / 100, 8), vec(time, 12), 0..=3_u64, 0..=day);
    let sizes = vec((1..1_000_000_u64, any::<bool>()), 0..12);
    (vec(worker, 1..4), sizes, proptest::sample::select(Dtype::ALL.to_vec()), (name, 1..=u32::MAX, 0.0..=10.0_f64)).prop_map(
        move |(workers, sizes, dtype, (name, batch, spread))| {
            let tensor = |at: usize| format!("{{\"tensor\": \"t{at}\", \"bytes\": {}", sizes[at].0 * dtype.size());
            let seconds = |time: u64| format!("{}.{:012}", time / 1_000_000_000_000, time % 1_000_000_000_000);
            let worker = |(durations, ready, rest, optimizer): &(Vec<u64>, Vec<Time>, u64, u64)| {
                let layer = |(at, &duration): (usize, &u64)| {
                    let needed: Vec<String> =
                        (0..sizes.len()).filter(|index| index % 8 == at).map(|index| format!("\"t{index}\"")).collect();
                    let kept = if duration % 2 == 1 { format!(", \"activation_bytes\": {duration}") } else { String::new() };
                    let again = if duration % 3 == 1 { format!(", \"backward_bytes\": {duration}") } else { String::new() };
                    let (duration, needed) = (seconds(duration), needed.join(","));
                    format!("{{\"layer\": \"l{at}\", \"duration_s\": {duration}, \"tensors\": [{needed}]{kept}{again}}}")
                };
                let layers: Vec<String> = durations.iter().enumerate().map(layer).collect();
                let with_gradient = (0..sizes.len()).filter(|&at| sizes[at].1);
                let gradients: Vec<String> =
                    with_gradient.map(|at| format!("{}, \"ready_s\": {}}}", tensor(at), seconds(ready[at].0))).collect();
                let last = (0..sizes.len()).filter(|&at| sizes[at].1).map(|at| ready[at].0).max().unwrap_or(0);
                let backward = seconds((last + rest).min(day));
                let (layers, gradients, optimizer) = (layers.join(","), gradients.join(","), seconds(*optimizer));
                format!(
                    "{{\"forward\": [{layers}], \"gradients\": [{gradients}], \"backward_s\": {backward}, \"optimizer_s\": {optimizer}}}"
                )
            };
            let without = |frozen: bool| {
                let all = (0..sizes.len()).rev().filter(|&at| !sizes[at].1 && (at % 2 == 1) == frozen);
                all.map(|at| tensor(at) + "}").collect::<Vec<String>>().join(",")
            };
            let workers: Vec<String> = workers.iter().map(worker).collect();
            let text = format!(
                "{{\"format\": \"paceline-trace\", \"version\": 1, \"name\": {}, \"batch\": {batch}, \"dtype\": \"{}\",
                  \"workers\": [{}], \"distribution\": [{}], \"frozen\": [{}], \"optimizer_bytes\": {batch},
                  \"variation\": {{\"backward_spread\": {spread:?}}}}}",
                serde_json::Value::from(name),
                dtype.name(),
                workers.join(","),
                without(false),
                without(true),
            );
            Trace::from_json(text.as_bytes(), "generated").unwrap()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..300)) {
        trace_or_error(&bytes)?;
        cluster_or_error(&bytes)?;
        graph_or_error(&bytes)?;
    }

    #[test]
    fn any_json_like_text(text in "[\\[\\]{}\",:0-9a-z.+\\- \n]{0,80}") {
        trace_or_error(text.as_bytes())?;
        let inside = format!("{{\"format\": \"paceline-trace\", \"version\": 1, {text}");
        trace_or_error(inside.as_bytes())?;
        trace_or_error(page(include_str!("../../../../docs/reference/trace-format.md")).replacen("0.010", &text, 1).as_bytes())?;
    }

    #[test]
    fn changed_traces(changes in vec(change(), 1..4)) {
        trace_or_error(&changed(&page(include_str!("../../../../docs/reference/trace-format.md")), &changes))?;
    }

    #[test]
    fn changed_clusters(changes in vec(change(), 1..4)) {
        cluster_or_error(&changed(&page(include_str!("../../../../docs/reference/cluster-format.md")), &changes))?;
    }

    #[test]
    fn changed_graphs(changes in vec(change(), 1..4)) {
        graph_or_error(&changed(&page(include_str!("../../../../docs/reference/coordinator-plan.md")), &changes))?;
    }

    #[test]
    fn changed_sends(changes in vec(change(), 0..4)) {
        let sends = "time_s,tensor,bytes,source,destination\n0.1,fc,4000,worker0,ps0\n0.2,conv,400,worker0,ps1\n";
        let text = String::from_utf8_lossy(&changed(sends, &changes)).into_owned();
        let options = ImportOptions {
            aggregation_source: "it".into(),
            distribution_source: "it".into(),
            forward: Time(1_000_000_000_001),
            ..ImportOptions::default()
        };
        for (aggregation, distribution) in [(text.as_str(), sends), (sends, text.as_str()), (&text, &text)] {
            match import_sends(aggregation, distribution, options.clone()) {
                Ok(trace) => {
                    prop_assert_eq!(trace.workers[0].forward_time(), Time(1_000_000_000_001));
                    holds(&trace)?;
                }
                Err(error) => error_is_one_line(&error)?,
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn traces_are_read_as_they_were_written(trace in trace()) {
        holds(&trace)?;
    }

    #[test]
    fn transformed_traces_are_traces(trace in trace(), count in 0..4_u32, rate in 0.001..1e6_f64) {
        for kind in [ModuleKind::Compute, ModuleKind::Network] {
            if let Ok(larger) = trace.clone().with_modules(&Module::Study(kind), count) {
                holds(&larger)?;
            }
        }
        if let Ok(scaled) = trace.scaled_to_rate(rate) {
            holds(&scaled)?;
        }
    }

    #[test]
    fn all_reduces_are_split_evenly(elements in 1..1_000_000_u64, count in 1..2000_u32) {
        let Ok(trace) = Trace::all_reduce(elements * 4, count) else {
            prop_assert!(elements < u64::from(count));
            return Ok(());
        };
        let sizes = trace.tensors.iter().map(|tensor| tensor.bytes);
        prop_assert_eq!(sizes.clone().sum::<u64>(), elements * 4);
        prop_assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 4);
        holds(&trace)?;
    }

    #[test]
    fn clusters_are_read_as_they_were_written(
        rates in (1.0..1e18_f64, 1.0..1e18_f64),
        times in (0..=60_000_000_000_000_u64, 0..=60_000_000_000_000_u64, 0..1_000_000_u64),
        racks in proptest::option::of((1..=u32::MAX, 1.0..=1000.0_f64)),
        switch in (any::<bool>(), any::<bool>(), any::<bool>(), proptest::option::of(1..=1_000_000_000_000_000_u64)),
        own in (proptest::option::of(1.0..1e18_f64), proptest::option::of(1.0..1e18_f64)),
        channel in (0..4_usize, proptest::option::of(1.0..1e18_f64), 0.0..=10.0_f64, proptest::option::of(0.01..=1.0_f64), proptest::option::of((1..=1024_u32, 1.0..1e18_f64))),
        stragglers in proptest::collection::btree_map(any::<u32>(), 0.01..=1000.0_f64, 0..4),
        name in "[^\\p{C}\u{2028}\u{2029}]{1,12}",
    ) {
        let default = Cluster::default();
        let cluster = Cluster {
            name,
            bandwidth: paceline_model::Rate(rates.0),
            intra_bandwidth: paceline_model::Rate(rates.1),
            latency: Time(times.0),
            message_overhead: Time(times.1),
            intra_latency: Time(times.2),
            host_bandwidth: own.0.map(paceline_model::Rate),
            reduction_bandwidth: own.1.map(paceline_model::Rate),
            channel: [Channel::Unknown, Channel::Auto, Channel::Tcp, Channel::Rdma][channel.0],
            stream_bandwidth: channel.1.map(paceline_model::Rate),
            node_contention: channel.2,
            efficiency: channel.3,
            mesh: channel.4.map(|(peers, bridge)| paceline_model::cluster::Mesh { peers, bridge: paceline_model::Rate(bridge) }),
            racks: racks.map(|(nodes_per_rack, oversubscription)| paceline_model::cluster::Racks { nodes_per_rack, oversubscription }),
            switch: paceline_model::cluster::Switch { multicast: switch.0, aggregation: switch.1, cut_through: switch.2, memory: switch.3, radix: None },
            stragglers: stragglers.into_iter().collect(),
            ..default
        };
        prop_assert_eq!(Cluster::from_json(cluster.to_json().as_bytes(), "it").unwrap(), cluster);
    }
}

#[test]
fn the_documented_examples_are_valid() {
    let trace =
        Trace::from_json(page(include_str!("../../../../docs/reference/trace-format.md")).as_bytes(), "trace").unwrap();
    assert_eq!((trace.name.as_str(), trace.tensors.len(), trace.backward_spread), ("tiny", 4, 0.05));
    let cluster =
        Cluster::from_json(page(include_str!("../../../../docs/reference/cluster-format.md")).as_bytes(), "c").unwrap();
    assert_eq!((cluster.name.as_str(), cluster.gpus_per_node), ("two racks of 16", 8));
    let least = br#"{"format": "paceline-cluster", "version": 1, "bandwidth": "25Gbps"}"#;
    let default = Cluster { name: "office".into(), provenance: String::new(), ..Cluster::default() };
    assert_eq!(Cluster::from_json(least, "racks/office.json").unwrap(), default);
}
