//! A timeline of the simulation. There is one process per role or rack, with one thread for its computation and one for
//! each of its links. FIFO links carry one message at a time: complete events ("X"). In the fluid network messages
//! share links: asynchronous events ("b", "e").
use std::collections::HashMap;
use std::io::{self, Write};

use paceline_model::Trace;
use paceline_schedule::Roles;
use paceline_trace_events as trace_events;
use serde::Serialize;
use trace_events::{NoArgs, TraceWriter, Track};

use crate::network::topology::{LinkName, NetworkLinks};
use crate::observer::{Activity, Observer};
use crate::run_types::{JobPlace, Prepared};

struct LinkSpan {
    link: u32,
    start: u64,
    end: u64,
    inst: u32,
    src: u32,
    dst: u32,
}

struct WorkerSpan {
    worker: u32,
    activity: Activity,
    start: u64,
    end: u64,
}

/// Collects spans.
#[derive(Default)]
pub(crate) struct Recorder {
    links: Vec<LinkSpan>,
    workers: Vec<WorkerSpan>,
}

impl Observer for Recorder {
    const ACTIVE: bool = true;
    fn link(&mut self, link: u32, start: u64, end: u64, inst: u32, src: u32, dst: u32) {
        self.links.push(LinkSpan { link, start, end, inst, src, dst });
    }
    fn worker(&mut self, worker: u32, activity: Activity, start: u64, end: u64) {
        self.workers.push(WorkerSpan { worker, activity, start, end });
    }
}

/// The activity of every worker and link.
#[derive(Default)]
pub struct Timeline {
    spans: Vec<Span>,
    tracks: Vec<NamedTrack>,
    overlapping: bool,
}

struct NamedTrack {
    track: Track,
    process: String,
    thread: String,
}

/// Ends of a message, by name.
#[derive(Serialize)]
struct Between {
    from: String,
    to: String,
}

struct Span {
    track: usize,
    name: String,
    category: &'static str,
    start: u64,
    end: u64,
    between: Option<Between>,
}

/// A job whose roles are shown.
pub(crate) struct JobOnTimeline<'a> {
    /// Its name, if there are several.
    pub name: Option<&'a str>,
    pub trace: &'a Trace,
    pub prepared: &'a Prepared,
    pub place: JobPlace,
}

impl JobOnTimeline<'_> {
    fn role_name(&self, role: u32) -> String {
        let Roles { workers, servers, .. } = self.place.roles;
        let name = match role {
            r if r < workers => format!("worker {r}"),
            r if r < workers + servers => format!("server {}", r - workers),
            r => format!("switch {}", r - workers - servers),
        };
        self.name.map_or_else(|| name.clone(), |job| format!("{job}: {name}"))
    }
}

fn bucket_name(jobs: &[JobOnTimeline<'_>], bucket: u32) -> String {
    let job = jobs.iter().rev().find(|job| job.place.first_bucket <= bucket);
    // Workers that do not wait for each other have buckets of their own, with the same names.
    job.map_or_else(String::new, |job| {
        let names = &job.prepared.names;
        names[(bucket - job.place.first_bucket) as usize % names.len()].clone()
    })
}

/// Process numbers: roles count from 1, racks from here.
const RACKS: u32 = 1_000_000;
const SWITCHES: u32 = 2_000_000;

impl Timeline {
    pub(crate) fn new(
        recorder: &Recorder,
        jobs: &[JobOnTimeline<'_>],
        wires: &NetworkLinks,
        overlapping: bool,
        ranks: Option<u32>,
    ) -> Timeline {
        let mut job_of = HashMap::new();
        for job in jobs {
            (0..job.place.roles.total()).for_each(|role| {
                job_of.insert(job.place.global(role), (job, role));
            });
        }
        let role_name = |role: u32| job_of.get(&role).map_or_else(String::new, |(job, local)| job.role_name(*local));
        let workers: u32 = jobs.iter().map(|job| job.place.roles.workers).sum();
        // The process of a role is its number plus one; servers follow the workers.
        let is_shown = |process: u32| ranks.is_none_or(|ranks| process <= ranks || process == workers + 1);
        let mut tracks: Vec<NamedTrack> = (0..workers)
            .map(|w| NamedTrack {
                track: Track { process: w + 1, thread: 0 },
                process: role_name(w),
                thread: "compute".to_string(),
            })
            .collect();
        let first_link = tracks.len();
        for link in &wires.links {
            let (process, thread, process_name) = match link.name {
                LinkName::NodeOut(n) => wires.process_of_node(n, 1),
                LinkName::NodeIn(n) => wires.process_of_node(n, 2),
                LinkName::RoleOut(r) => (r + 1, 3, role_name(r)),
                LinkName::RoleIn(r) => (r + 1, 4, role_name(r)),
                LinkName::HostOut(r) => (r + 1, 5, role_name(r)),
                LinkName::HostIn(r) => (r + 1, 6, role_name(r)),
                LinkName::Adder(r) => (r + 1, 7, role_name(r)),
                LinkName::RackUp(r) => (RACKS + r, 1, format!("rack {r}")),
                LinkName::RackDown(r) => (RACKS + r, 2, format!("rack {r}")),
                LinkName::Between { from, id, .. } => (RACKS + id, tracks.len() as u32, from.to_string()),
                LinkName::SwitchUp(s) => (SWITCHES + s, 1, format!("switch {s}")),
                LinkName::SwitchDown(s) => (SWITCHES + s, 2, format!("switch {s}")),
            };
            let track = Track { process, thread };
            tracks.push(NamedTrack { track, process: process_name, thread: wires.name(link.name) });
        }
        let mut spans: Vec<Span> = recorder
            .workers
            .iter()
            .filter(|span| is_shown(span.worker + 1))
            .map(|span| {
                let layer = |number: u32| {
                    let Some((job, worker)) = job_of.get(&span.worker) else { return String::new() };
                    let recorded = &job.trace.workers[*worker as usize % job.trace.workers.len()];
                    recorded.forward[number as usize].name.clone()
                };
                let (name, category) = match span.activity {
                    Activity::Layer(number) => (layer(number), "forward"),
                    Activity::Wait(number) => (format!("wait for {}", layer(number)), "wait"),
                    Activity::Backward => ("backward".into(), "backward"),
                    Activity::Optimizer => ("optimizer".into(), "optimizer"),
                    Activity::WaitForSums => ("wait for sums".into(), "wait"),
                };
                Span { track: span.worker as usize, name, category, start: span.start, end: span.end, between: None }
            })
            .collect();
        let shown = |span: &&LinkSpan| is_shown(tracks[first_link + span.link as usize].track.process);
        spans.extend(recorder.links.iter().filter(shown).map(|span| Span {
            track: first_link + span.link as usize,
            name: bucket_name(jobs, span.inst >> 1),
            category: "message",
            start: span.start,
            end: span.end,
            between: Some(Between { from: role_name(span.src), to: role_name(span.dst) }),
        }));
        spans.sort_by_key(|span| (span.start, span.track));
        Timeline { spans, tracks, overlapping }
    }

    /// Number of spans.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no spans.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Writes the JSON.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let us = |picoseconds: u64| picoseconds as f64 * 1e-6;
        let mut writer = TraceWriter::new(out)?;
        let mut used = vec![false; self.tracks.len()];
        self.spans.iter().for_each(|span| used[span.track] = true);
        for (names, _) in self.tracks.iter().zip(used).filter(|(_, used)| *used) {
            writer.name_process(names.track, &names.process)?;
            writer.name_thread(names.track, &names.thread)?;
        }
        for (number, span) in self.spans.iter().enumerate() {
            let track = self.tracks[span.track].track;
            let (name, category) = (span.name.as_str(), span.category);
            let shown = trace_events::Span { name, category, start_us: us(span.start), end_us: us(span.end) };
            match &span.between {
                Some(between) if self.overlapping => writer.overlapping(number, track, &shown, between)?,
                Some(between) => writer.span(track, &shown, between)?,
                None => writer.span(track, &shown, NoArgs {})?,
            }
        }
        writer.finish()
    }
}

/// A timeline that is drawn span by span, without an event simulation. Times are in ms.
#[derive(Default)]
pub(crate) struct Drawing {
    spans: Vec<Span>,
    tracks: Vec<NamedTrack>,
}

/// One track of a drawing.
pub(crate) struct Line {
    track: usize,
}

impl Drawing {
    pub fn track(&mut self, process: u32, thread: u32, name: &str, what: &str) -> Line {
        let track = Track { process, thread };
        self.tracks.push(NamedTrack { track, process: name.to_owned(), thread: what.to_owned() });
        Line { track: self.tracks.len() - 1 }
    }

    /// A span; one without duration is left out.
    pub fn span(&mut self, line: &Line, name: &str, category: &'static str, from: f64, to: f64) {
        if to <= from {
            return;
        }
        let picoseconds = |ms: f64| (ms * 1e9).round() as u64;
        let (start, end) = (picoseconds(from), picoseconds(to));
        self.spans.push(Span { track: line.track, name: name.to_owned(), category, start, end, between: None });
    }

    pub fn finish(mut self) -> Timeline {
        self.spans.sort_by_key(|span| (span.start, span.track));
        Timeline { spans: self.spans, tracks: self.tracks, overlapping: false }
    }
}
