//! The file: one process for each rank, one thread for each thing that it does. It grows while the rank records.
//!
//! Messages, operations and tensors overlap, so they are asynchronous events ("b", "e"). Phases of the script and the
//! coordinator do not, so they are complete events ("X"). Times are microseconds since the start of the job on its
//! first rank. A tensor and its phases have Horovod's names, and each vote begins with its `CYCLE_START`.
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::PathBuf;

use paceline_os::time;
use paceline_trace_events::{NoArgs, TraceWriter, Track};
use serde_json::{Value, json};

use super::{Party, Span, SpanKind, TensorSpan, Timeline, VOTES_UNDER_WAY, now};

/// Threads of a rank's process, in display order.
const COMPUTE: u32 = 0;
const OUT: u32 = 1;
const IN: u32 = 2;
const OPERATIONS: u32 = 3;
const TENSORS: u32 = 4;
const COORDINATOR: u32 = 5;
const PIPELINE: u32 = 6;

/// The file of a recording, and what it still waits for.
pub(super) struct Recording {
    pub path: PathBuf,
    writer: TraceWriter<BufWriter<File>>,
    /// Numbers asynchronous events.
    number: usize,
    /// When operations have ended.
    ends: HashMap<u64, u64>,
    /// Tensors whose operation has not ended, or whose end has not been seen.
    held: Vec<TensorSpan>,
    /// When it began.
    since: u64,
    /// Taken turns with the timeline's.
    pub spans: Vec<Span>,
}

impl Recording {
    /// Begins the file.
    pub fn new(path: PathBuf, file: File, timeline: &Timeline) -> io::Result<Recording> {
        let mut writer = TraceWriter::array(BufWriter::new(file))?;
        let name = party(timeline, Party::Worker(timeline.rank));
        let threads = [
            (COMPUTE, "compute".to_owned()),
            (OUT, format!("{name} egress")),
            (IN, format!("{name} ingress")),
            (OPERATIONS, "operations".to_owned()),
            (TENSORS, "tensors".to_owned()),
            (COORDINATOR, "coordinator".to_owned()),
            (PIPELINE, "input pipeline".to_owned()),
        ];
        writer.name_process(on(timeline, COMPUTE), &name)?;
        for (thread, name) in threads {
            writer.name_thread(on(timeline, thread), &name)?;
        }
        let since = now();
        // As in Horovod; of time 0 here.
        let epoch = time::epoch().as_micros() as f64 - timeline.us(since);
        let what = "start_time_since_epoch_in_micros";
        writer.metadata(on(timeline, COMPUTE), what, json!({ what: epoch.round() as i64 }))?;
        writer.flush()?;
        let (ends, held, spans) = (HashMap::new(), Vec::new(), Vec::new());
        Ok(Recording { path, writer, number: 0, ends, held, since, spans })
    }

    /// Writes `self.spans`, but tensors only once their operation has ended.
    pub fn write(&mut self, timeline: &Timeline) -> io::Result<()> {
        if self.spans.is_empty() && self.held.is_empty() {
            return Ok(());
        }
        for span in &self.spans {
            if let SpanKind::Operation { number, .. } = span.kind {
                self.ends.insert(number, span.end);
            }
        }
        for tensor in std::mem::take(&mut self.held) {
            self.tensor(timeline, tensor)?;
        }
        let mut spans = std::mem::take(&mut self.spans);
        for span in spans.drain(..) {
            self.span(timeline, span)?;
        }
        self.spans = spans;
        self.writer.flush()
    }

    fn span(&mut self, timeline: &Timeline, Span { kind, begin, end }: Span) -> io::Result<()> {
        let (begin, end) = (timeline.us(begin), timeline.us(end));
        let complete = |name, category| paceline_trace_events::Span { name, category, start_us: begin, end_us: end };
        match kind {
            SpanKind::Mark { name, category } => {
                // It works beside the script.
                let track = if category == "pipeline" { PIPELINE } else { COMPUTE };
                self.writer.span(on(timeline, track), &complete(&name, &category), NoArgs {})
            }
            SpanKind::Agreement(name, counted) => {
                let args =
                    counted.map_or(json!({}), |(cycle, spun)| json!({"cycle": cycle, "spun_us": spun as f64 / 1000.0}));
                if counted.is_some() || name == VOTES_UNDER_WAY {
                    self.writer.instant(on(timeline, COORDINATOR), "CYCLE_START", "coordinator", begin)?;
                }
                self.writer.span(on(timeline, COORDINATOR), &complete(name, "coordinator"), args)
            }
            SpanKind::Message { out: outgoing, from, to, operation, bytes } => {
                let (from, to) = (party(timeline, from), party(timeline, to));
                let (thread, peer) = if outgoing { (OUT, &to) } else { (IN, &from) };
                let args = json!({"from": from, "to": to, "bytes": bytes, "operation": operation});
                self.overlapping(timeline, thread, &complete(peer, "message"), args)
            }
            SpanKind::Operation { number, label, call, bytes } => {
                let name = if label.is_empty() { call } else { label.as_str() };
                let args = json!({"call": call, "bytes": bytes, "operation": number});
                self.overlapping(timeline, OPERATIONS, &complete(name, "operation"), args)
            }
            SpanKind::Tensor(tensor) => self.tensor(timeline, tensor),
        }
    }

    fn tensor(&mut self, timeline: &Timeline, tensor: TensorSpan) -> io::Result<()> {
        match self.ends.get(&tensor.operation) {
            Some(&done) => self.ended(timeline, &tensor, done),
            None => {
                self.held.push(tensor);
                Ok(())
            }
        }
    }

    fn ended(&mut self, timeline: &Timeline, tensor: &TensorSpan, done: u64) -> io::Result<()> {
        let TensorSpan { name, call, asked, agreed, operation, together, bytes } = tensor;
        let (asked, agreed, done) = (timeline.us(*asked), timeline.us(*agreed), timeline.us(done));
        let args =
            json!({"bytes": bytes, "operation": operation, "together": together, "negotiated_us": agreed - asked});
        let span = |name, start_us, end_us| paceline_trace_events::Span { name, category: "tensor", start_us, end_us };
        let reduce = call.replace('_', "").to_uppercase();
        let negotiate = format!("NEGOTIATE_{reduce}");
        self.overlapping(timeline, TENSORS, &span(name, asked, done), args)?;
        self.overlapping(timeline, TENSORS, &span(&negotiate, asked, agreed), json!({}))?;
        self.overlapping(timeline, TENSORS, &span(&reduce, agreed, done), json!({}))
    }

    fn overlapping(
        &mut self,
        timeline: &Timeline,
        thread: u32,
        span: &paceline_trace_events::Span<'_>,
        args: Value,
    ) -> io::Result<()> {
        // Numbers are per rank; with the rank they are unique.
        let number = self.number;
        self.number += 1;
        self.writer.overlapping(format_args!("{}.{number}", timeline.rank), on(timeline, thread), span, args)
    }

    /// Writes the rest, and ends the file.
    pub fn finish(mut self, timeline: &Timeline, dropped: u64) -> io::Result<()> {
        self.write(timeline)?;
        for tensor in std::mem::take(&mut self.held) {
            self.ended(timeline, &tensor, tensor.agreed)?;
        }
        let mut paceline = json!({"rank": timeline.rank, "since_us": timeline.us(self.since), "dropped": dropped});
        if let Some(place) = timeline.place.get() {
            paceline["host"] = json!({"name": place.host, "processes": place.processes, "cores": place.cores});
        }
        self.writer.metadata(on(timeline, COMPUTE), "paceline", paceline)?;
        self.writer.finish()
    }
}

fn on(timeline: &Timeline, thread: u32) -> Track {
    Track { process: timeline.rank + 1, thread }
}

fn party(timeline: &Timeline, party: Party) -> String {
    let Timeline { servers, first_server, .. } = *timeline;
    match party {
        Party::Worker(rank) => match first_server.and_then(|first| rank.checked_sub(first)) {
            None => format!("worker {rank}"),
            Some(helper) if helper >= servers => format!("switch {}", helper - servers),
            Some(server) => format!("server {server}"),
        },
        Party::Workers => "workers".into(),
        Party::Helper(n) if n < servers => format!("server {n}"),
        Party::Helper(n) => format!("switch {}", n - servers),
    }
}
