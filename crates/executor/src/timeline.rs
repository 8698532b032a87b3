//! Records what a rank did, and when: tensors, operations, messages, the coordinator, and marks of the script.
//!
//! The format is that of the simulator's timelines (Chrome trace events), so that both can be viewed together. While
//! recording is off, each message costs one read of an atomic flag. While it is on, a thread writes what has been
//! recorded, so that the file grows with the job. `write` holds the format.
mod write;

use std::collections::HashMap;
use std::fs::File;
use std::io;

use paceline_os::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use paceline_os::sync::{Arc, Condvar, Mutex, OnceLock};
use paceline_os::thread::{Builder, JoinHandle};
use paceline_os::time::{self, Duration};
use paceline_transport::error::{Result, RunError};
use write::Recording;

/// Most spans of a recording; more are only counted.
const MOST: usize = 4_000_000;
/// How often the file grows.
const EVERY: Duration = Duration::from_millis(50);

/// A vote that nobody waits for.
pub const VOTES_UNDER_WAY: &str = "votes under way";

/// Nanoseconds on the monotonic clock, which all processes of a host share.
pub fn now() -> u64 {
    time::monotonic()
}

/// CPU time of the calling thread in nanoseconds.
pub fn processor_time() -> u64 {
    time::of_thread()
}

/// A role of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// A rank of the job.
    Worker(u32),
    /// Servers and then switches, numbered from 0.
    Helper(u32),
    /// The receivers of a multicast.
    Workers,
}

/// A tensor's spans under a coordinator.
pub struct TensorSpan {
    /// Its name.
    pub name: String,
    /// The call: `all_reduce`, ….
    pub call: String,
    /// When this rank requested it, on the clock of [`now`].
    pub asked: u64,
    /// When all ranks had requested it.
    pub agreed: u64,
    /// Number of the operation that moved it.
    pub operation: u64,
    /// Number of tensors in that operation.
    pub together: usize,
    /// Size in bytes.
    pub bytes: u64,
}

enum SpanKind {
    /// A mark of the script.
    Mark {
        name: String,
        category: String,
    },
    Message {
        out: bool,
        from: Party,
        to: Party,
        operation: u64,
        bytes: u64,
    },
    Operation {
        number: u64,
        label: String,
        call: &'static str,
        bytes: u64,
    },
    Tensor(TensorSpan),
    /// A phase of the coordinator. For a wait for votes: its cycle, and the nanoseconds of CPU time it used.
    Agreement(&'static str, Option<(u64, u64)>),
}

struct Span {
    kind: SpanKind,
    begin: u64,
    end: u64,
}

struct Open {
    label: String,
    call: &'static str,
    bytes: u64,
    begin: u64,
}

#[derive(Default)]
struct Inner {
    recording: bool,
    /// Not written yet.
    spans: Vec<Span>,
    open: HashMap<u64, Open>,
    /// Spans so far.
    kept: usize,
    dropped: u64,
}

/// Writer of the file.
struct Writer {
    /// Or why it could not be written.
    file: Arc<Mutex<io::Result<Recording>>>,
    /// The thread is to end.
    ends: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

/// Where a rank runs.
#[derive(Clone, Debug)]
pub struct Place {
    /// The host's name.
    pub host: String,
    /// Processes of the job on it.
    pub processes: usize,
    /// Cores that they may use together.
    pub cores: usize,
}

/// A rank's timeline; off until it is started.
pub struct Timeline {
    on: AtomicBool,
    rank: u32,
    servers: u32,
    /// The first rank that is a server, if servers are separate processes.
    first_server: Option<u32>,
    place: OnceLock<Place>,
    numbers: AtomicU64,
    /// Start of the job, on the clock of the first rank.
    origin: AtomicU64,
    /// Offset from this rank's clock to that of the first rank.
    offset: AtomicI64,
    inner: Mutex<Inner>,
    writer: Mutex<Option<Writer>>,
}

impl Timeline {
    /// A timeline for a rank of a job with this many servers. `first_server`: the first rank that is a server, if
    /// servers are separate processes.
    #[must_use]
    pub fn new(rank: u32, servers: u32, first_server: Option<u32>) -> Timeline {
        Timeline {
            on: AtomicBool::new(false),
            rank,
            servers,
            first_server,
            place: OnceLock::new(),
            numbers: AtomicU64::new(0),
            origin: AtomicU64::new(now()),
            offset: AtomicI64::new(0),
            inner: Mutex::default(),
            writer: Mutex::new(None),
        }
    }

    /// Says where the rank runs, once.
    pub fn set_place(&self, place: Place) {
        let _ = self.place.set(place);
    }

    /// Sets the start of the job, on the clock of the first rank.
    pub fn begin_at(&self, origin: u64) {
        self.origin.store(origin, Ordering::SeqCst);
    }

    /// Sets the offset from this rank's clock to that of the first rank.
    pub fn set_offset(&self, offset: i64) {
        self.offset.store(offset, Ordering::SeqCst);
    }

    /// Whether recording is on.
    #[inline]
    pub fn on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Microseconds since the start of the job, on the clock of the first rank.
    fn us(&self, at: u64) -> f64 {
        let shift = self.offset.load(Ordering::SeqCst) - self.origin.load(Ordering::SeqCst).cast_signed();
        (at.cast_signed() + shift) as f64 / 1000.0
    }

    /// Starts recording into a file, which grows from now on, and is complete when recording stops.
    ///
    /// # Errors
    /// The file cannot be written, or recording is already on.
    pub fn start(self: &Arc<Self>, path: &str) -> Result<()> {
        let wrong = |why: String| RunError::Usage(format!("timeline {path}: {why}"));
        let mut writer = self.writer.lock();
        if writer.is_some() {
            return Err(wrong("a timeline is already being recorded; stop it first".into()));
        }
        let cannot = |error: io::Error| wrong(format!("cannot be written: {error}"));
        let recording = Recording::new(path.into(), File::create(path).map_err(cannot)?, self).map_err(cannot)?;
        let file = Arc::new(Mutex::new(Ok(recording)));
        let ends = Arc::new((Mutex::new(false), Condvar::new()));
        let (timeline, target, told) = (self.clone(), file.clone(), ends.clone());
        let thread = Builder::new().name("paceline-timeline".into()).spawn(move || {
            loop {
                let mut end = told.0.lock();
                if !*end {
                    told.1.wait_for(&mut end, EVERY);
                }
                if *end {
                    return;
                }
                drop(end);
                timeline.grow(&mut target.lock());
            }
        });
        let thread = thread.map_err(|error| wrong(format!("cannot start a thread: {error}")))?;
        *writer = Some(Writer { file, ends, thread });
        *self.inner.lock() = Inner { recording: true, ..Inner::default() };
        self.on.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Writes what has been recorded since the last time.
    fn grow(&self, file: &mut io::Result<Recording>) {
        let Ok(recording) = file else { return };
        std::mem::swap(&mut self.inner.lock().spans, &mut recording.spans);
        if let Err(error) = recording.write(self) {
            *file = Err(error);
        }
    }

    /// Stops recording and completes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn stop(&self) -> Result<()> {
        self.on.store(false, Ordering::SeqCst);
        let Some(Writer { file, ends, thread }) = self.writer.lock().take() else { return Ok(()) };
        *ends.0.lock() = true;
        ends.1.notify_all();
        drop(thread.join());
        let inner = std::mem::take(&mut *self.inner.lock());
        let mut file = file.lock();
        let broken = |error| RunError::Failed(format!("timeline: cannot be written: {error}"));
        let mut recording = std::mem::replace(&mut *file, Err(io::ErrorKind::NotConnected.into())).map_err(broken)?;
        let path = recording.path.clone();
        recording.spans = inner.spans;
        recording
            .finish(self, inner.dropped)
            .map_err(|error| RunError::Failed(format!("timeline {}: cannot be written: {error}", path.display())))
    }

    fn push(&self, kind: SpanKind, begin: u64, end: u64) {
        let mut inner = self.inner.lock();
        if !inner.recording {
        } else if inner.kept < MOST {
            inner.kept += 1;
            inner.spans.push(Span { kind, begin, end });
        } else {
            inner.dropped += 1;
        }
    }

    /// Records the start of an operation; returns its number, or 0 while recording is off.
    pub fn begin(&self, label: &str, call: &'static str, bytes: u64) -> u64 {
        if !self.on() {
            return 0;
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let mut inner = self.inner.lock();
        inner.open.insert(number, Open { label: label.to_owned(), call, bytes, begin: now() });
        number
    }

    /// Records the end of an operation.
    pub fn end(&self, number: u64) {
        if number == 0 {
            return;
        }
        let open = self.inner.lock().open.remove(&number);
        if let Some(Open { label, call, bytes, begin }) = open {
            self.push(SpanKind::Operation { number, label, call, bytes }, begin, now());
        }
    }

    /// Records a message that was sent (`out`) or received, from `begin` until now.
    pub fn message(&self, out: bool, (from, to): (Party, Party), operation: u64, bytes: u64, begin: u64) {
        self.push(SpanKind::Message { out, from, to, operation, bytes }, begin, now());
    }

    /// Records a tensor that was agreed on.
    pub fn tensor(&self, span: TensorSpan) {
        let (begin, end) = (span.asked, span.agreed);
        self.push(SpanKind::Tensor(span), begin, end);
    }

    /// Records a phase of the coordinator, from `begin` until now.
    pub fn agreement(&self, what: &'static str, begin: u64) {
        self.agreement_until(what, begin, now());
    }

    /// The same until `end`. `begin` is 0 if recording was off then.
    pub fn agreement_until(&self, what: &'static str, begin: u64, end: u64) {
        if self.on() && begin > 0 {
            self.push(SpanKind::Agreement(what, None), begin, end);
        }
    }

    /// Records that the coordinator waited for the votes of a cycle, from `begin` until now. `worked` is the
    /// [`processor_time`] of this thread at the beginning.
    pub fn waited_for_votes(&self, cycle: u64, begin: u64, worked: u64) {
        if self.on() && begin > 0 {
            let spun = processor_time().saturating_sub(worked);
            self.push(SpanKind::Agreement("wait for votes", Some((cycle, spun))), begin, now());
        }
    }

    /// Records what the script did; times on the clock of [`now`].
    pub fn mark(&self, category: &str, name: &str, begin: u64, end: u64) {
        if self.on() {
            self.push(SpanKind::Mark { name: name.to_owned(), category: category.to_owned() }, begin, end.max(begin));
        }
    }
}
