//! Timelines in the Chrome trace event format, which Perfetto and the PyTorch tools open.
//!
//! "Trace Event Format", Google, 2016. The simulator and the runtime both write with this, one event per line, so that a
//! forecast and a run of the same job can be laid side by side.
use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

/// Where an event is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Track {
    /// Process number.
    pub process: u32,
    /// Thread number; threads of a process are drawn in its order.
    pub thread: u32,
}

/// Something that took time. Times are microseconds, as the format wants them.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Its label.
    pub name: &'a str,
    /// Its category, by which viewers filter.
    pub category: &'a str,
    /// When it began.
    pub start_us: f64,
    /// When it ended.
    pub end_us: f64,
}

/// No arguments: `{}`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct NoArgs {}

#[derive(Serialize)]
struct Event<'a, A: Serialize> {
    ph: char,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    pid: u32,
    tid: u32,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<A>,
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct SortIndex {
    sort_index: u32,
}

/// Writes events one after the other.
///
/// ```
/// use paceline_trace_events::{NoArgs, Span, TraceWriter, Track};
/// let mut file = Vec::new();
/// let mut writer = TraceWriter::new(&mut file)?;
/// let track = Track { process: 1, thread: 0 };
/// writer.name_process(track, "worker 0")?;
/// writer.span(track, &Span { name: "conv1", category: "forward", start_us: 0.0, end_us: 12.5 }, NoArgs {})?;
/// writer.finish()?;
/// let expected = r#"{"displayTimeUnit": "ms", "traceEvents": [
/// {"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"worker 0"}},
/// {"ph":"X","pid":1,"tid":0,"name":"conv1","cat":"forward","ts":0.0,"dur":12.5,"args":{}}
/// ]}
/// "#;
/// assert_eq!(String::from_utf8(file).unwrap(), expected);
/// # std::io::Result::Ok(())
/// ```
pub struct TraceWriter<W: Write> {
    out: W,
    empty: bool,
    /// End of the file.
    end: &'static str,
}

impl<W: Write> TraceWriter<W> {
    /// Begins the file.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W) -> io::Result<TraceWriter<W>> {
        write!(out, "{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [")?;
        Ok(TraceWriter { out, empty: true, end: "]}" })
    }

    /// Begins a file that viewers open before it ends, as the format allows for an array: its end may be missing.
    ///
    /// ```
    /// use paceline_trace_events::{TraceWriter, Track};
    /// let mut file = Vec::new();
    /// let mut writer = TraceWriter::array(&mut file)?;
    /// writer.instant(Track { process: 1, thread: 5 }, "CYCLE_START", "coordinator", 12.5)?;
    /// writer.finish()?;
    /// let expected = r#"[
    /// {"ph":"i","pid":1,"tid":5,"name":"CYCLE_START","cat":"coordinator","ts":12.5}
    /// ]
    /// "#;
    /// assert_eq!(String::from_utf8(file).unwrap(), expected);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Those of `out`.
    pub fn array(mut out: W) -> io::Result<TraceWriter<W>> {
        write!(out, "[")?;
        Ok(TraceWriter { out, empty: true, end: "]" })
    }

    /// Hands all events on to the file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn event<A: Serialize>(&mut self, event: &Event<'_, A>) -> io::Result<()> {
        self.out.write_all(if self.empty { b"\n" } else { b",\n" })?;
        self.empty = false;
        Ok(serde_json::to_writer(&mut self.out, event)?)
    }

    /// A metadata event, `what` being its kind.
    ///
    /// # Errors
    /// Those of the file, as below.
    pub fn metadata(&mut self, track: Track, what: &str, args: impl Serialize) -> io::Result<()> {
        let Track { process: pid, thread: tid } = track;
        let (id, cat, ts, dur) = (None, None, None, None);
        self.event(&Event { ph: 'M', id, pid, tid, name: what, cat, ts, dur, args: Some(args) })
    }

    /// Names the process of a track.
    ///
    /// # Errors
    /// Those of the file.
    pub fn name_process(&mut self, track: Track, name: &str) -> io::Result<()> {
        self.metadata(track, "process_name", Name { name })
    }

    /// Names a track and puts it in its place.
    ///
    /// # Errors
    /// Those of the file.
    pub fn name_thread(&mut self, track: Track, name: &str) -> io::Result<()> {
        self.metadata(track, "thread_name", Name { name })?;
        self.metadata(track, "thread_sort_index", SortIndex { sort_index: track.thread })
    }

    /// A complete event ("X"): on its track nothing else happens meanwhile.
    ///
    /// # Errors
    /// Those of the file.
    pub fn span(&mut self, track: Track, span: &Span<'_>, args: impl Serialize) -> io::Result<()> {
        let Track { process: pid, thread: tid } = track;
        let (name, cat, ts) = (span.name, Some(span.category), Some(span.start_us));
        let dur = Some(span.end_us - span.start_us);
        self.event(&Event { ph: 'X', id: None, pid, tid, name, cat, ts, dur, args: Some(args) })
    }

    /// An instant event ("i"), which takes no time.
    ///
    /// # Errors
    /// Those of the file.
    pub fn instant(&mut self, track: Track, name: &str, category: &str, at_us: f64) -> io::Result<()> {
        let Track { process: pid, thread: tid } = track;
        let (cat, ts) = (Some(category), Some(at_us));
        self.event(&Event::<()> { ph: 'i', id: None, pid, tid, name, cat, ts, dur: None, args: None })
    }

    /// A pair of asynchronous events ("b", "e"): spans of a track may overlap. `id` tells them apart in the whole file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn overlapping(
        &mut self,
        id: impl Display,
        track: Track,
        span: &Span<'_>,
        args: impl Serialize,
    ) -> io::Result<()> {
        let Track { process: pid, thread: tid } = track;
        let (id, name, cat, ts) = (Some(id.to_string()), span.name, Some(span.category), Some(span.start_us));
        let begin = Event { ph: 'b', id, pid, tid, name, cat, ts, dur: None, args: Some(args) };
        self.event(&begin)?;
        self.event(&Event::<()> {
            ph: 'e',
            id: begin.id,
            ts: Some(span.end_us),
            args: None,
            pid,
            tid,
            name,
            cat,
            dur: None,
        })
    }

    /// Ends the file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn finish(mut self) -> io::Result<()> {
        writeln!(self.out, "\n{}", self.end)?;
        self.out.flush()
    }
}
