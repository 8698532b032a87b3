//! What a rank did when: tensors, operations, messages, the coordinator and what the script marks, for people to look at.
//!
//! Written in the format of the simulator's timelines (Chrome's trace events), so that both can be looked at together.
//! While it is off, an atomic flag is read for each message and nothing else is done.
//! `write` knows the format.
mod write;

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use paceline_transport::error::{Result, RunError};
use parking_lot::Mutex;

/// Most spans that are kept: beyond, they are counted.
const MOST: usize = 4_000_000;

/// Nanoseconds on the clock that all processes of a host share.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Nanoseconds for which the calling thread has had a core.
pub fn processor_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
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

/// What is shown of a tensor that a coordinator handled.
pub struct TensorSpan {
    /// Its name.
    pub name: String,
    /// When this rank asked for it, on the clock of [`now`].
    pub asked: u64,
    /// When all ranks had.
    pub agreed: u64,
    /// The number of the operation that moved it.
    pub operation: u64,
    /// Tensors of that operation.
    pub together: usize,
    /// Its size.
    pub bytes: u64,
}

enum SpanKind {
    /// What the script does.
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
    /// What the coordinator does; of a wait for votes its cycle and the nanoseconds in which it kept a core busy.
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
    target: Option<(PathBuf, File)>,
    spans: Vec<Span>,
    open: HashMap<u64, Open>,
    dropped: u64,
    /// When it was begun.
    since: u64,
}

/// A rank's timeline; off until it is started.
pub struct Timeline {
    on: AtomicBool,
    rank: u32,
    servers: u32,
    /// The first rank that is a server, if servers are processes of their own.
    first_server: Option<u32>,
    numbers: AtomicU64,
    /// The job's beginning, on the first rank's clock.
    origin: AtomicU64,
    /// What is to be added to this rank's clock to get the first rank's.
    offset: AtomicI64,
    inner: Mutex<Inner>,
}

impl Timeline {
    /// Of a rank of a job with so many servers. `first_server`: the first rank that is one, if servers are processes of
    /// their own.
    #[must_use]
    pub fn new(rank: u32, servers: u32, first_server: Option<u32>) -> Timeline {
        Timeline {
            on: AtomicBool::new(false),
            rank,
            servers,
            first_server,
            numbers: AtomicU64::new(0),
            origin: AtomicU64::new(now()),
            offset: AtomicI64::new(0),
            inner: Mutex::default(),
        }
    }

    /// The job began then, on the first rank's clock.
    pub fn begin_at(&self, origin: u64) {
        self.origin.store(origin, Ordering::SeqCst);
    }

    /// What is to be added to this rank's clock to get the first rank's.
    pub fn set_offset(&self, offset: i64) {
        self.offset.store(offset, Ordering::SeqCst);
    }

    /// Whether something is recorded.
    #[inline]
    pub fn on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Begins to record; it is written to this file when it stops.
    ///
    /// # Errors
    /// A file that cannot be written; a timeline that has been started.
    pub fn start(&self, path: &str) -> Result<()> {
        let wrong = |why: String| RunError::Usage(format!("timeline {path}: {why}"));
        let mut inner = self.inner.lock();
        if inner.target.is_some() {
            return Err(wrong("a timeline is already being recorded; stop it first".into()));
        }
        let file = File::create(path).map_err(|e| wrong(format!("cannot be written: {e}")))?;
        *inner = Inner { target: Some((path.into(), file)), since: now(), ..Inner::default() };
        self.on.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Ends recording, and writes the file.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn stop(&self) -> Result<()> {
        self.on.store(false, Ordering::SeqCst);
        let Some((inner, (path, file))) = ({
            let mut inner = self.inner.lock();
            let target = inner.target.take();
            target.map(|target| (std::mem::take(&mut *inner), target))
        }) else {
            return Ok(());
        };
        let shift = self.offset.load(Ordering::SeqCst) - self.origin.load(Ordering::SeqCst).cast_signed();
        write::write(file, &inner, self, shift)
            .map_err(|e| RunError::Failed(format!("timeline {}: cannot be written: {e}", path.display())))
    }

    fn push(&self, kind: SpanKind, begin: u64, end: u64) {
        let mut inner = self.inner.lock();
        if inner.target.is_none() {
        } else if inner.spans.len() < MOST {
            inner.spans.push(Span { kind, begin, end });
        } else {
            inner.dropped += 1;
        }
    }

    /// An operation begins: its number, or 0 while nothing is recorded.
    pub fn begin(&self, label: &str, call: &'static str, bytes: u64) -> u64 {
        if !self.on() {
            return 0;
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let mut inner = self.inner.lock();
        inner.open.insert(number, Open { label: label.to_owned(), call, bytes, begin: now() });
        number
    }

    /// It is over.
    pub fn end(&self, number: u64) {
        if number == 0 {
            return;
        }
        let open = self.inner.lock().open.remove(&number);
        if let Some(Open { label, call, bytes, begin }) = open {
            self.push(SpanKind::Operation { number, label, call, bytes }, begin, now());
        }
    }

    /// A message was sent (`out`) or received, from `begin` until now.
    pub fn message(&self, out: bool, (from, to): (Party, Party), operation: u64, bytes: u64, begin: u64) {
        self.push(SpanKind::Message { out, from, to, operation, bytes }, begin, now());
    }

    /// A tensor was agreed on.
    pub fn tensor(&self, span: TensorSpan) {
        let (begin, end) = (span.asked, span.agreed);
        self.push(SpanKind::Tensor(span), begin, end);
    }

    /// The coordinator did something from then until now.
    pub fn agreement(&self, what: &'static str, begin: u64) {
        self.agreement_until(what, begin, now());
    }

    /// Likewise until `end`; `begin` is 0 where nothing was recorded yet.
    pub fn agreement_until(&self, what: &'static str, begin: u64, end: u64) {
        if self.on() && begin > 0 {
            self.push(SpanKind::Agreement(what, None), begin, end);
        }
    }

    /// The coordinator has waited for the votes of a cycle from then until now. `worked` is this thread's
    /// [`processor_time`] at the beginning.
    pub fn waited_for_votes(&self, cycle: u64, begin: u64, worked: u64) {
        if self.on() && begin > 0 {
            let spun = processor_time().saturating_sub(worked);
            self.push(SpanKind::Agreement("wait for votes", Some((cycle, spun))), begin, now());
        }
    }

    /// What the script did; times on the clock of [`now`].
    pub fn mark(&self, category: &str, name: &str, begin: u64, end: u64) {
        if self.on() {
            self.push(SpanKind::Mark { name: name.to_owned(), category: category.to_owned() }, begin, end.max(begin));
        }
    }
}
