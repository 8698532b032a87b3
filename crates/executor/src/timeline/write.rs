//! The file format: Chrome trace events ("Trace Event Format", Google, 2016), one event per line, as the simulator
//! writes it.
//!
//! Messages, operations and tensors overlap, so they are asynchronous events ("b", "e"). Phases of the script and the
//! coordinator do not, so they are complete events ("X"). Times are microseconds since the start of the job on its
//! first rank.
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};

use serde_json::{Value, json};

use super::{Inner, Party, SpanKind, TensorSpan, Timeline};

/// Threads of a rank's process, in display order.
const COMPUTE: u32 = 0;
const OUT: u32 = 1;
const IN: u32 = 2;
const OPERATIONS: u32 = 3;
const TENSORS: u32 = 4;
const COORDINATOR: u32 = 5;

pub(super) fn write(file: File, inner: &Inner, timeline: &Timeline, shift: i64) -> io::Result<()> {
    let Timeline { rank, servers, first_server, .. } = *timeline;
    let mut out = BufWriter::new(file);
    let us = |at: u64| (at.cast_signed() + shift) as f64 / 1000.0;
    let party = |party: Party| match party {
        Party::Worker(rank) => match first_server.and_then(|first| rank.checked_sub(first)) {
            None => format!("worker {rank}"),
            Some(helper) if helper >= servers => "switch 0".into(),
            Some(server) => format!("server {server}"),
        },
        Party::Workers => "workers".into(),
        Party::Helper(n) if n < servers => format!("server {n}"),
        Party::Helper(n) => format!("switch {}", n - servers),
    };
    let pid = rank + 1;
    writeln!(out, "{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [")?;
    let name = party(Party::Worker(rank));
    let threads = [
        (COMPUTE, "compute".to_owned()),
        (OUT, format!("{name} egress")),
        (IN, format!("{name} ingress")),
        (OPERATIONS, "operations".to_owned()),
        (TENSORS, "tensors".to_owned()),
        (COORDINATOR, "coordinator".to_owned()),
    ];
    let first = json!({"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}});
    write!(out, "{first}")?;
    let mut line = |event: Value| write!(out, ",\n{event}");
    for (tid, thread) in threads {
        line(json!({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": thread}}))?;
        line(json!({"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}))?;
    }
    line(json!({"ph": "M", "pid": pid, "tid": 0, "name": "paceline", "args": {
        "rank": rank, "since_us": us(inner.since), "dropped": inner.dropped}}))?;
    let ends: HashMap<u64, u64> = inner
        .spans
        .iter()
        .filter_map(|span| match span.kind {
            SpanKind::Operation { number, .. } => Some((number, span.end)),
            _ => None,
        })
        .collect();
    for (number, span) in inner.spans.iter().enumerate() {
        let (begin, end) = (us(span.begin), us(span.end));
        let complete = |tid: u32, name: &str, category: &str| {
            json!({"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category, "ts": begin,
                "dur": end - begin, "args": {}})
        };
        // Numbers are per rank; with the rank they are unique.
        let mut spanning = |tid: u32, name: &str, category: &str, (begin, end): (f64, f64), args: Value| {
            let id = format!("{rank}.{number}");
            line(json!({"ph": "b", "id": id, "pid": pid, "tid": tid, "name": name, "cat": category, "ts": begin,
                "args": args}))?;
            line(json!({"ph": "e", "id": id, "pid": pid, "tid": tid, "name": name, "cat": category, "ts": end}))
        };
        match &span.kind {
            SpanKind::Mark { name, category } => line(complete(COMPUTE, name, category))?,
            SpanKind::Agreement(name, counted) => {
                let mut event = complete(COORDINATOR, name, "coordinator");
                if let Some((cycle, spun)) = counted {
                    event["args"] = json!({"cycle": cycle, "spun_us": *spun as f64 / 1000.0});
                }
                line(event)?;
            }
            SpanKind::Message { out: outgoing, from, to, operation, bytes } => {
                let (tid, peer) = if *outgoing { (OUT, to) } else { (IN, from) };
                let args = json!({"from": party(*from), "to": party(*to), "bytes": bytes, "operation": operation});
                spanning(tid, &party(*peer), "message", (begin, end), args)?;
            }
            SpanKind::Operation { number, label, call, bytes } => {
                let name = if label.is_empty() { call } else { label.as_str() };
                let args = json!({"call": call, "bytes": bytes, "operation": number});
                spanning(OPERATIONS, name, "operation", (begin, end), args)?;
            }
            SpanKind::Tensor(TensorSpan { name, asked, agreed, operation, together, bytes }) => {
                let done = ends.get(operation).copied().unwrap_or(*agreed);
                let args = json!({"bytes": bytes, "operation": operation, "together": together,
                    "negotiated_us": us(*agreed) - us(*asked)});
                spanning(TENSORS, name, "tensor", (us(*asked), us(done)), args)?;
                spanning(TENSORS, "negotiate", "tensor", (us(*asked), us(*agreed)), json!({}))?;
                spanning(TENSORS, "reduce", "tensor", (us(*agreed), us(done)), json!({}))?;
            }
        }
    }
    writeln!(out, "\n]}}")?;
    out.flush()
}
