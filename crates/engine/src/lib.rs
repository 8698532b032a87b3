//! This process's part of a job.
//!
//! Three kinds of threads meet here. Callers submit operations and wait for them; whoever waits drives the executor
//! itself, so that a small operation costs no change of threads. The *progress thread* drives while operations are in
//! flight that nobody waits for. The *monitor* owns the control connections: it learns that a rank has died or left,
//! asks those who keep an operation waiting, and tells the others what failed. While nothing is in flight both sleep.
//!
//! | module | holds |
//! | --- | --- |
//! | `book` | operations not yet begun, and a ledger of those in flight, under one short lock |
//! | `drive` | progress, spinning, sleeping; the progress thread |
//! | `monitor` | the control connections: deaths, departures, stalls |
//! | `start` | joining a job: rendezvous, connections |
//! | `introduction` | what the ranks tell each other first |
//! | `memory` | the shared memory of a host's ranks |
//! | `checks` | settings that contradict each other, or the job |
//! | `assemble` | channels and threads of a rank that has met the others |
//! | `orders` | what a parameter server is told to take part in |
//! | `peers` | who the other ranks are |
//! | `listeners` | coordinators, which hear what befalls their group |
//! | `placement` | two ranks that wait on one core |
//! | [`settings`] | of a job |
//! | `fork` | what a forked child must let go of |
mod assemble;
mod book;
mod checks;
mod control;
mod drive;
mod fork;
mod introduction;
mod listeners;
mod memory;
mod monitor;
mod orders;
mod peers;
mod placement;
pub mod settings;
mod start;

use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

pub use introduction::Exchange;
use listeners::Listeners;
pub use listeners::{Listener, News};
pub use orders::Order;
pub use peers::Peer;
pub use placement::pin;
pub use start::exchange_over_mpi;

use crate::settings::Settings;
use book::{Book, Command, GroupBook, Waiting};
use monitor::Monitor;
use orders::Orders;
use paceline_executor::handle::Handle;
use paceline_executor::timeline::Timeline;
use paceline_executor::{Begin, Executor};
use paceline_grpc as grpc;
use paceline_transport::error::{Result, RunError};
use paceline_transport::multicast::Multicast;
use paceline_transport::shm::Bell;
use placement::Placement;

/// Shared by all threads.
pub struct Shared {
    /// This process's.
    pub rank: u32,
    /// Of the job.
    pub settings: Settings,
    /// The ranks of the job, in order.
    pub peers: Vec<Peer>,
    /// By rank: what the host is called that it runs on; equal for ranks that share memory.
    pub hosts: Vec<u32>,
    core: Mutex<Executor>,
    book: Mutex<Book>,
    /// The inbox or the alarms have something.
    news: AtomicBool,
    bell: Bell,
    /// Callers that sleep because another thread drives.
    parked: AtomicUsize,
    turn: Mutex<()>,
    changed: Condvar,
    /// The progress thread has something to do; it sleeps on this.
    wanted: Mutex<bool>,
    kick: Condvar,
    /// Something that belongs to no operation any more waits for room in a socket.
    unflushed: AtomicBool,
    /// Turns of whoever drives; counted by it alone.
    looks: AtomicU64,
    closing: AtomicBool,
    forked: AtomicBool,
    notices: Mutex<Vec<Notice>>,
    noticed: Condvar,
    /// Owners of memory whose operations are over, for a thread that may drop them.
    graveyard: Mutex<Vec<Box<dyn Any + Send>>>,
    monitor: Monitor,
    placement: Placement,
    listeners: Mutex<Listeners>,
    orders: Orders,
    /// What this rank did when.
    pub timeline: Arc<Timeline>,
    /// Its number at the kernel; 0: it has not begun.
    progress_thread: AtomicI32,
    /// By rank: whether its memory can be read from here.
    pub lends: Vec<bool>,
    /// More ranks on this host than cores.
    crowded: bool,
    /// This process was started under a real-time scheduling policy.
    real_time: bool,
    /// The progress thread alone drives: it is the one that may call the library underneath.
    funneled: bool,
    /// It has left the job.
    left: Mutex<bool>,
    gone: Condvar,
    /// What MPI was loaded, if messages go over it.
    library: Option<paceline_mpi::About>,
    /// Descriptors that a forked child must not keep open: a peer would not see this process end.
    sockets: Vec<i32>,
}

/// An operation that asked for it is over.
#[derive(Debug)]
pub struct Notice {
    /// The number it was submitted with.
    pub number: u64,
    /// Why it failed.
    pub error: Option<RunError>,
}

/// How the end of a thread's work is waited for.
enum End {
    /// Of a thread of this job.
    Thread(std::thread::JoinHandle<()>),
    /// Of a thread that the process keeps; it ends with the job's work, or is stuck in the library.
    Work(std::sync::mpsc::Receiver<()>),
}

/// How long a library underneath may keep a job from ending.
const STUCK: Duration = Duration::from_secs(5);

/// This process's part of a job; closed when dropped.
pub struct Engine {
    /// What its threads share, and communicators with them.
    pub shared: Arc<Shared>,
    threads: Mutex<Vec<End>>,
    /// The thread that speaks gRPC, if one does.
    grpc: Mutex<Option<grpc::Thread>>,
}

impl Engine {
    /// Meets the other ranks, connects to all of them and starts the threads.
    ///
    /// # Errors
    /// A setting that cannot be, or ranks that do not come; the message names them.
    pub fn start(rank: u32, size: u32, settings: Settings, exchange: Option<Exchange<'_>>) -> Result<Engine> {
        start::start(rank, size, settings, exchange)
    }

    /// This process's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// Ranks of the job.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.shared.peers.len() as u32
    }

    /// Begins to record what this rank does, into this file. All ranks may do so, each into a file of its own.
    ///
    /// # Errors
    /// A file that cannot be written; a timeline that has been started.
    pub fn start_timeline(&self, path: &str) -> Result<()> {
        self.shared.timeline.start(path)
    }

    /// Ends recording, and writes the file; nothing, if it was not begun.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn stop_timeline(&self) -> Result<()> {
        self.shared.timeline.stop()
    }

    /// Adds what the script did to the timeline; times in nanoseconds on the monotonic clock.
    pub fn mark(&self, category: &str, name: &str, begin: u64, end: u64) {
        self.shared.timeline.mark(category, name, begin, end);
    }

    /// The next operation that asked for a notice and is over; none after the time, or when the engine is closed.
    #[must_use]
    pub fn next_notice(&self, timeout: Duration) -> Option<Notice> {
        let until = Instant::now() + timeout;
        let mut notices = self.shared.notices.lock();
        loop {
            if !notices.is_empty() {
                return Some(notices.remove(0));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.shared.closing.load(Ordering::SeqCst) {
                return None;
            }
            self.shared.noticed.wait_for(&mut notices, left);
        }
    }

    /// Owners of memory whose operations are over. They are handed out because dropping some needs a lock that the
    /// engine's threads must not take.
    #[must_use]
    pub fn take_finished(&self) -> Vec<Box<dyn Any + Send>> {
        std::mem::take(&mut self.shared.graveyard.lock())
    }

    /// For people and tests, as JSON.
    #[must_use]
    pub fn status(&self) -> serde_json::Value {
        let (transports, bytes, multicast) = {
            let mut core = self.shared.core.lock();
            (core.wires().names(), core.wires().bytes, core.wires().multicast().map(Multicast::status))
        };
        let book = self.shared.book.lock();
        let in_flight: Vec<_> = book.groups.values().flat_map(|g| g.live.iter().map(Waiting::describe)).collect();
        serde_json::json!({
            "rank": self.shared.rank,
            "size": self.size(),
            "peers": self.shared.peers,
            "hosts": self.shared.hosts,
            "transports": transports,
            "multicast": multicast,
            "mpi": self.shared.library.as_ref().map(|about| serde_json::json!({
                "library": about.library,
                "version": about.version,
                "abi": about.abi,
            })),
            "bytes_sent": bytes[0],
            "bytes_received": bytes[1],
            "in_flight": in_flight,
            "closed": self.shared.closing.load(Ordering::SeqCst),
        })
    }

    /// Says goodbye to the other ranks and ends the threads; operations in flight fail. Further calls do nothing.
    pub fn close(&self) {
        if self.shared.forked.load(Ordering::SeqCst) {
            return;
        }
        self.shared.close();
        let threads = std::mem::take(&mut *self.threads.lock());
        for end in threads {
            match end {
                End::Thread(thread) => drop(thread.join()),
                End::Work(work) => drop(work.recv_timeout(STUCK)),
            }
        }
        if let Some(thread) = self.grpc.lock().take() {
            thread.close();
        }
        if let Err(error) = self.stop_timeline() {
            eprintln!("paceline: {error}");
        }
    }

    /// In a child after `fork`: the threads are not there, and the connections are the parent's. Everything but this
    /// refuses from now on.
    pub fn forget_after_fork(&self) {
        self.shared.forked.store(true, Ordering::SeqCst);
        crate::fork::release(&self.shared.sockets);
        // Not even the lock may be waited for: who held it is not there any more.
        if let Some(thread) = self.grpc.try_lock().as_deref().and_then(Option::as_ref) {
            crate::fork::release(&thread.descriptors());
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Ranks that train; behind them come those that help, if these are processes of their own.
    pub fn workers(&self) -> u32 {
        self.peers.len() as u32 - self.settings.helpers()
    }

    /// What a group is called.
    pub fn name_of(&self, group: u32) -> String {
        self.book.lock().groups.get(&group).map_or_else(String::new, |group| group.name.clone())
    }

    /// Why nothing can be submitted any more.
    pub fn usable(&self) -> Result<()> {
        if self.forked.load(Ordering::Relaxed) {
            return Err(RunError::Usage(
                "this process was forked from one that had joined the job; it is no rank. Start processes with the \
                 spawn method, or fork before the job is joined"
                    .into(),
            ));
        }
        if self.closing.load(Ordering::Relaxed) {
            return Err(RunError::Failed("the job was left: the engine is closed".into()));
        }
        Ok(())
    }

    /// Makes a communicator known. `me`: this process's place in it.
    ///
    /// # Errors
    /// The engine is closed, or the name is taken.
    pub fn add_group(&self, id: u32, name: &str, ranks: Vec<u32>, me: u32) -> Result<()> {
        self.usable()?;
        let mut book = self.book.lock();
        if let Some(other) = book.groups.get(&id)
            && other.failed.is_none()
            && (other.ranks != ranks || other.name != name)
        {
            return Err(RunError::Usage(format!("group '{name}': the name clashes with group '{}'", other.name)));
        }
        if book.groups.contains_key(&id) {
            return Err(RunError::Usage(format!("group '{name}' exists already; give each its own name")));
        }
        book.groups.insert(id, GroupBook::new(name.into(), ranks.clone()));
        book.inbox.push(Command::Group { id, ranks, me });
        drop(book);
        self.announce();
        Ok(())
    }

    /// Fails a communicator here and everywhere, and waits until nothing of it is touched any more.
    pub fn abandon(&self, id: u32, error: &RunError) {
        let ranks = {
            let mut book = self.book.lock();
            if book.fail(id, error) {
                self.listeners.lock().tell(id, &News::Failed(error.clone()));
            }
            book.groups.get(&id).map(|group| group.ranks.clone()).unwrap_or_default()
        };
        self.monitor.tell_failed(id, &ranks, error);
        self.announce();
        // Whoever drives sees the alarm within a moment, and goes on with other things; nobody drives: then here. A library
        // underneath may be stuck.
        let until = Instant::now() + STUCK;
        while !self.funneled || Instant::now() < until {
            if let Some(mut core) = self.core.try_lock() {
                core.fail_group(id, error);
                return;
            }
            if self.book.lock().alarms.is_empty() && !self.news.load(Ordering::SeqCst) {
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        // It has taken the alarm; what it does with it ends before its next look.
        let looks = self.looks.load(Ordering::SeqCst);
        while self.core.is_locked() && self.looks.load(Ordering::SeqCst) < looks + 2 {
            if self.funneled && Instant::now() > until {
                return;
            }
            self.announce();
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// From now on the listener hears what befalls the group.
    pub fn listen(&self, group: u32, listener: Weak<dyn Listener>) {
        self.listeners.lock().add(group, listener);
        // What came before it listened.
        let failed = self.book.lock().groups.get(&group).and_then(|group| group.failed.clone());
        if let Some(error) = failed {
            self.listeners.lock().tell(group, &News::Failed(error));
        }
    }

    /// A group of the same ranks as another takes over what the library underneath has for it.
    pub fn inherit(&self, from: u32, to: u32) {
        self.book.lock().inbox.push(Command::Inherit { from, to });
        self.announce();
    }

    /// The listener of the group hears no more.
    pub fn listen_no_more(&self, group: u32) {
        self.listeners.lock().remove(group);
    }

    /// Tells the other ranks of a group that its coordinator has begun a cycle.
    pub fn invite(&self, group: u32, ranks: &[u32], cycle: u64) {
        self.monitor.invite(group, ranks.iter().copied().filter(|&rank| rank != self.rank), cycle);
    }

    /// Ranks with their hosts, for people.
    pub fn describe(&self, ranks: &[u32]) -> String {
        peers::describe(&self.peers, ranks)
    }

    /// From now on the progress thread runs on this core alone.
    pub fn pin_progress_thread(&self, core: usize) -> Result<()> {
        let number = self.progress_thread.load(Ordering::SeqCst);
        pin(rustix::process::Pid::from_raw(number), core)
            .map_err(|e| RunError::Usage(format!("a thread cannot be bound to core {core}: {e}")))
    }

    /// Destroys a communicator; what is in flight in it fails on all its ranks.
    pub fn remove_group(&self, id: u32) {
        let mut book = self.book.lock();
        if let Some(group) = book.groups.get_mut(&id) {
            if group.failed.is_none() && !group.live.is_empty() {
                let text = format!("rank {} has destroyed the communicator while operations were in flight", self.rank);
                self.monitor.tell_failed(id, &group.ranks, &RunError::Failed(text));
            }
            group.failed.get_or_insert_with(|| RunError::Failed("the communicator was destroyed".into()));
            // Its number is not used again; its history would be kept for nothing.
            group.recent = std::collections::VecDeque::new();
        }
        book.inbox.push(Command::Remove(id));
        drop(book);
        self.announce();
    }

    /// Registers an operation and hands it to whoever drives. `background`: somebody drives even if nobody waits.
    pub fn submit(&self, group: u32, begin: Begin, how: Submission) -> Result<Arc<Handle>> {
        self.usable()?;
        let handle = begin.handle.clone();
        let mut book = self.book.lock();
        let Some(entry) = book.groups.get_mut(&group) else {
            return Err(RunError::Usage("the communicator was destroyed".into()));
        };
        if let Some(error) = &entry.failed {
            return Err(RunError::Failed(format!("{error} (communicator '{}' cannot go on)", entry.name)));
        }
        let seq = begin.transfer.is_none().then(|| {
            entry.next = entry.next.wrapping_add(1);
            entry.next.wrapping_sub(1)
        });
        let bytes = begin.signature.count * begin.signature.dtype.size() as u64;
        let number = self.timeline.begin(&begin.label, begin.signature.call.name(), bytes);
        handle.number.store(number, Ordering::Relaxed);
        let now = Instant::now();
        let peer = begin.transfer.and_then(|between| between.peer).map(|peer| entry.ranks[peer as usize]);
        entry.live.push_back(Waiting {
            seq,
            signature: begin.signature,
            label: begin.label.clone(),
            peer,
            timeout: how.timeout.unwrap_or_else(|| self.settings.timeout()),
            handle: handle.clone(),
            moved: (now, 0),
            asked: None,
            reported: None,
            answers: std::collections::HashMap::new(),
        });
        book.inbox.push(Command::Begin(group, begin));
        drop(book);
        self.announce();
        if how.background {
            self.wake_progress_thread();
        }
        Ok(handle)
    }

    /// Something new is in the book: whoever drives and sleeps is woken.
    fn announce(&self) {
        self.news.store(true, Ordering::SeqCst);
        self.bell.ring();
    }
}

/// What is not part of an operation, but of how it is submitted.
#[derive(Default)]
pub struct Submission {
    /// Silence after which it fails; none: the job's.
    pub timeout: Option<Duration>,
    /// Somebody drives it even if nobody waits.
    pub background: bool,
}
