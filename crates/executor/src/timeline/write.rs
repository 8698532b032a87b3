//! The file: one process for each rank, one thread for each thing that it does.
//!
//! Messages, operations and tensors overlap, so they are asynchronous events ("b", "e"). Phases of the script and the
//! coordinator do not, so they are complete events ("X"). Times are microseconds since the start of the job on its
//! first rank.
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};

use paceline_trace_events::{NoArgs, Span, TraceWriter, Track};
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
    let us = |at: u64| (at.cast_signed() + shift) as f64 / 1000.0;
    let party = |party: Party| match party {
        Party::Worker(rank) => match first_server.and_then(|first| rank.checked_sub(first)) {
            None => format!("worker {rank}"),
            Some(helper) if helper >= servers => format!("switch {}", helper - servers),
            Some(server) => format!("server {server}"),
        },
        Party::Workers => "workers".into(),
        Party::Helper(n) if n < servers => format!("server {n}"),
        Party::Helper(n) => format!("switch {}", n - servers),
    };
    let pid = rank + 1;
    let mut writer = TraceWriter::new(BufWriter::new(file))?;
    let on = |thread: u32| Track { process: pid, thread };
    let name = party(Party::Worker(rank));
    let threads = [
        (COMPUTE, "compute".to_owned()),
        (OUT, format!("{name} egress")),
        (IN, format!("{name} ingress")),
        (OPERATIONS, "operations".to_owned()),
        (TENSORS, "tensors".to_owned()),
        (COORDINATOR, "coordinator".to_owned()),
    ];
    writer.name_process(on(COMPUTE), &name)?;
    for (thread, name) in threads {
        writer.name_thread(on(thread), &name)?;
    }
    let paceline = json!({"rank": rank, "since_us": us(inner.since), "dropped": inner.dropped});
    writer.metadata(on(COMPUTE), "paceline", paceline)?;
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
        let complete = |name, category| Span { name, category, start_us: begin, end_us: end };
        // Numbers are per rank; with the rank they are unique.
        let mut overlapping = |thread, name: &str, category: &str, (start_us, end_us), args: Value| {
            writer.overlapping(
                format_args!("{rank}.{number}"),
                on(thread),
                &Span { name, category, start_us, end_us },
                args,
            )
        };
        match &span.kind {
            SpanKind::Mark { name, category } => writer.span(on(COMPUTE), &complete(name, category), NoArgs {})?,
            SpanKind::Agreement(name, counted) => {
                let args =
                    counted.map_or(json!({}), |(cycle, spun)| json!({"cycle": cycle, "spun_us": spun as f64 / 1000.0}));
                writer.span(on(COORDINATOR), &complete(name, "coordinator"), args)?;
            }
            SpanKind::Message { out: outgoing, from, to, operation, bytes } => {
                let (tid, peer) = if *outgoing { (OUT, to) } else { (IN, from) };
                let args = json!({"from": party(*from), "to": party(*to), "bytes": bytes, "operation": operation});
                overlapping(tid, &party(*peer), "message", (begin, end), args)?;
            }
            SpanKind::Operation { number, label, call, bytes } => {
                let name = if label.is_empty() { call } else { label.as_str() };
                let args = json!({"call": call, "bytes": bytes, "operation": number});
                overlapping(OPERATIONS, name, "operation", (begin, end), args)?;
            }
            SpanKind::Tensor(TensorSpan { name, asked, agreed, operation, together, bytes }) => {
                let done = ends.get(operation).copied().unwrap_or(*agreed);
                let args = json!({"bytes": bytes, "operation": operation, "together": together,
                    "negotiated_us": us(*agreed) - us(*asked)});
                overlapping(TENSORS, name, "tensor", (us(*asked), us(done)), args)?;
                overlapping(TENSORS, "negotiate", "tensor", (us(*asked), us(*agreed)), json!({}))?;
                overlapping(TENSORS, "reduce", "tensor", (us(*agreed), us(done)), json!({}))?;
            }
        }
    }
    writer.finish()
}
