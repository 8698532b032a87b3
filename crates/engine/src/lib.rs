//! This process's part of a job.
//!
//! Three kinds of threads meet here. Callers submit operations and wait for them; whoever waits drives the executor
//! itself, so that a small operation costs no change of threads. The *progress thread* drives while operations are in
//! flight that nobody waits for. The *monitor* owns the control connections: it learns that a rank has died or left,
//! asks those who keep an operation waiting, and tells the others what failed. While nothing is in flight both sleep.
//!
//! | module | holds |
//! | --- | --- |
//! | `ledger` | operations not yet begun, those in flight, and what became of the others, under one short lock |
//! | `driver` | the executor and who drives it: progress, spinning, sleeping; the progress thread |
//! | `failure_detector` | the control connections: deaths, departures, stalls |
//! | `foreign` | MPI, UCX and gRPC, or the lack of them |
//! | `progress` | what counts as progress of an operation |
//! | `start` | joining a job: rendezvous, connections |
//! | `introduction` | what the ranks tell each other first |
//! | `joining` | the end of the start: every rank is connected to all others |
//! | `memory` | the shared memory of a host's ranks |
//! | `checks` | settings that contradict each other, or the job |
//! | `assemble` | channels and threads of a rank that has met the others |
//! | `orders` | what a parameter server is told to take part in |
//! | `peers` | who the other ranks are |
//! | `listeners` | coordinators that listen for what happens to their group |
//! | `core_placement` | moves a rank away when two wait on one core |
//! | [`settings`] | of a job |
mod assemble;
mod checks;
mod choices;
mod control;
mod core_placement;
mod defaults;
mod driver;
mod failure_detector;
mod foreign;
mod introduction;
mod joining;
mod ledger;
mod listeners;
mod memory;
mod orders;
mod peers;
mod progress;
pub mod settings;
mod start;

use std::any::Any;
use std::collections::VecDeque;

pub use core_placement::{LentCore, pin};
use driver::{Counters, Driver};
use failure_detector::Monitor;
use foreign::{grpc, mpi, ucx};
pub use introduction::Exchange;
use ledger::{Command, Ledger};
pub use listeners::{Listener, News};
pub use orders::Order;
use orders::Orders;
use paceline_executor::OperationSpec;
use paceline_executor::handle::Handle;
use paceline_executor::timeline::Timeline;
use paceline_os::sync::atomic::{AtomicBool, Ordering};
use paceline_os::sync::{Arc, Mutex, Weak};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};
use paceline_transport::offload::DeviceSupport;
pub use peers::Peer;
pub use start::exchange_over_mpi;

use crate::settings::Settings;

/// The engine's state as callers and communicators use it. Each part knows only those above it.
pub struct EngineShared {
    /// This process's rank.
    pub rank: u32,
    /// Ranks of the job.
    pub settings: Settings,
    /// The ranks of the job, in order.
    pub peers: Arc<[Peer]>,
    /// By rank: the name of its host; equal for ranks that share memory.
    pub hosts: Vec<u32>,
    /// By rank: whether its memory can be read from here.
    pub zero_copy: Vec<bool>,
    /// The timeline of this rank.
    pub timeline: Arc<Timeline>,
    ledger: Arc<Ledger>,
    /// The failure detector's inbox.
    monitor: Arc<Monitor>,
    driver: Arc<Driver>,
    orders: Arc<Orders>,
    forked: AtomicBool,
    /// Which MPI was loaded, if it carries messages.
    library: Option<mpi::About>,
    /// The UCX that carries messages, if one does.
    ucx: Option<UcxUse>,
    /// Support of MPI for the memory of CUDA devices on all ranks, if it carries messages.
    pub devices: Option<DeviceSupport>,
    /// Descriptors that a forked child must not keep open: peers would not see this process end.
    sockets: Vec<i32>,
}

/// UCX in a job.
struct UcxUse {
    library: Arc<ucx::Library>,
    /// By rank: the transports that UCX has chosen, with their devices.
    transports: Vec<Vec<String>>,
}

/// An operation that asked for a notice has completed.
#[derive(Debug)]
pub struct Notice {
    /// The number it was submitted with.
    pub number: u64,
    /// Why it failed.
    pub error: Option<RunError>,
}

/// How the end of a thread is awaited.
enum End {
    /// A thread of this job.
    Thread(paceline_os::thread::JoinHandle<()>),
    /// A thread that the process keeps; it ends with the job's work, or is stuck in the library.
    Work(paceline_os::sync::mpsc::Receiver<()>),
}

/// How long the offload library may delay the end of a job.
const STUCK: Duration = Duration::from_secs(5);

/// This process's part of a job; closed when dropped.
pub struct Engine {
    /// State shared by its threads and the communicators.
    pub shared: Arc<EngineShared>,
    threads: Mutex<Vec<End>>,
    /// The gRPC thread, if there is one.
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

    /// Begins to record what this rank does, into this file, which grows meanwhile. All ranks may do so, each into its
    /// own file.
    ///
    /// # Errors
    /// The file cannot be written, or a timeline has been started already.
    pub fn start_timeline(&self, path: &str) -> Result<()> {
        self.shared.timeline.start(path)
    }

    /// The CUDA driver's library that the settings name.
    #[must_use]
    pub fn cuda_library(&self) -> Option<&str> {
        self.shared.settings.cuda_library.as_deref()
    }

    /// Ends recording and completes the file; does nothing if no recording was started, or in a forked child.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn stop_timeline(&self) -> Result<()> {
        if self.is_forked() { Ok(()) } else { self.shared.timeline.stop() }
    }

    /// Adds an event of the script to the timeline; times in nanoseconds on the monotonic clock. A forked child has no
    /// timeline.
    pub fn mark(&self, category: &str, name: &str, begin: u64, end: u64) {
        if !self.is_forked() {
            self.shared.timeline.mark(category, name, begin, end);
        }
    }

    /// The next completed operation that asked for a notice; `None` after the time, when the engine is closed, or in a
    /// forked child.
    #[must_use]
    pub fn next_notice(&self, timeout: Duration) -> Option<Notice> {
        if self.is_forked() {
            return None;
        }
        self.shared.ledger.next_notice(timeout, || self.shared.driver.closing())
    }

    /// Owners of the memory of completed operations. They are handed out because dropping some needs a lock that the
    /// engine's threads must not take. A forked child leaves them to its parent: the lock may stay taken there.
    #[must_use]
    pub fn take_finished(&self) -> Vec<Box<dyn Any + Send>> {
        if self.is_forked() { Vec::new() } else { self.shared.ledger.take_finished() }
    }

    /// Whether this process was forked from the one that joined the job. No lock may be waited for in it: who held it may
    /// not exist here.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.shared.of_this_process().is_err()
    }

    /// Counters for users and tests, as JSON.
    #[must_use]
    pub fn status(&self) -> serde_json::Value {
        let Counters { transports, bytes, multicast } = self.shared.driver.counters();
        let operations = self.shared.ledger.operations();
        let in_flight: Vec<_> =
            operations.groups.values().flat_map(|g| g.in_flight.iter().map(|w| w.describe(&g.naming))).collect();
        serde_json::json!({
            "rank": self.shared.rank,
            "size": self.size(),
            "peers": *self.shared.peers,
            "hosts": self.shared.hosts,
            "transports": transports,
            "multicast": multicast,
            "mpi": self.shared.library.as_ref().map(|about| serde_json::json!({
                "library": about.library,
                "version": about.version,
                "abi": about.abi,
                "cuda": about.devices,
            })),
            "ucx": self.shared.ucx.as_ref().map(|ucx| serde_json::json!({
                "library": ucx.library.path,
                "version": ucx.library.version,
                "transports": ucx.transports,
            })),
            "bytes_sent": bytes[0],
            "bytes_received": bytes[1],
            "in_flight": in_flight,
            "closed": self.shared.driver.closing(),
        })
    }

    /// Says goodbye to the other ranks and ends the threads; operations in flight fail. Later calls do nothing.
    pub fn close(&self) {
        self.close_with(Some(Duration::ZERO), &|| false);
    }

    /// The same, after what this rank has begun is complete: it waits for other ranks to begin it, too, for so long while
    /// nothing moves (`None`: as long as a caller would wait), and no longer when `interrupted`.
    pub fn close_with(&self, patience: Option<Duration>, interrupted: &dyn Fn() -> bool) {
        if self.is_forked() {
            return;
        }
        self.shared.close(patience, interrupted);
        let threads = std::mem::take(&mut *self.threads.lock());
        for end in threads {
            match end {
                End::Thread(thread) => drop(thread.join()),
                End::Work(work) => drop(work.recv_timeout(STUCK)),
            }
        }
        // The others have been told: they do not mistake the end of the connections for a broken network.
        self.shared.driver.disconnect();
        if let Some(thread) = self.grpc.lock().take() {
            thread.close();
        }
        if let Err(error) = self.stop_timeline() {
            paceline_os::report!("paceline: {error}");
        }
    }

    /// In a child after `fork`: the threads do not exist there, and the connections are the parent's. All later calls
    /// but this one fail.
    pub fn forget_after_fork(&self) {
        self.shared.forked.store(true, Ordering::SeqCst);
        paceline_os::process::release(&self.shared.sockets);
        // Even a lock must not be waited for: its holder may not exist here.
        if let Some(thread) = self.grpc.try_lock().as_deref().and_then(Option::as_ref) {
            paceline_os::process::release(&thread.descriptors());
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

impl EngineShared {
    /// Ranks that train; helpers follow them if they are processes of their own.
    pub fn workers(&self) -> u32 {
        self.peers.len() as u32 - self.settings.helpers()
    }

    /// Fails if nothing can be submitted any more.
    ///
    /// # Errors
    /// The engine is closed, or its process was forked.
    pub fn usable(&self) -> Result<()> {
        self.of_this_process()?;
        if self.driver.closing() { Err(closed()) } else { Ok(()) }
    }

    /// Fails in a forked child, which has no threads that would complete anything, and whose locks may stay taken.
    ///
    /// # Errors
    /// The process was forked.
    pub fn of_this_process(&self) -> Result<()> {
        if self.forked.load(Ordering::Relaxed) {
            return Err(RunError::Usage(
                "this process was forked from one that had joined the job; it is not a rank. Start processes with the \
                 spawn method, or fork before joining the job"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Registers a communicator. `me`: this process's place in it.
    ///
    /// # Errors
    /// The engine is closed, or the name is taken.
    pub fn add_group(&self, id: u32, name: &str, ranks: Vec<u32>, me: u32) -> Result<()> {
        self.usable()?;
        self.ledger.add_group(id, name, ranks, me)?;
        self.driver.announce();
        Ok(())
    }

    /// Fails a communicator on all its ranks, and waits until its memory is no longer touched here.
    pub fn abandon(&self, id: u32, error: &RunError) {
        self.ledger.fail(id, error, &error.to_string());
        self.monitor.tell_failed(id, &self.ledger.ranks_of(id), error, None);
        self.driver.announce();
        self.driver.let_go_of(id, error);
    }

    /// Notes why something has failed here, unless something has before: if this rank leaves, that is the reason. What
    /// fails because it leaves is none.
    pub fn note_cause(&self, cause: &str) {
        if self.of_this_process().is_ok() && !self.driver.closing() {
            self.ledger.operations().note_cause(cause);
        }
    }

    /// As `note_cause`: something has failed with this error, because one of these groups has.
    pub fn note_cause_of(&self, mut groups: impl Iterator<Item = u32>, error: &RunError) {
        let cause = {
            let operations = self.ledger.operations();
            groups.find_map(|group| operations.groups.get(&group)?.cause.clone())
        };
        self.note_cause(&cause.unwrap_or_else(|| error.to_string()));
    }

    /// That this group fails is no reason to leave, unless a caller waits for an operation in flight: who uses it notes
    /// whether anything else has failed with it.
    pub fn make_internal(&self, group: u32) {
        if let Some(group) = self.ledger.operations().groups.get_mut(&group) {
            group.internal = true;
        }
    }

    /// Has messages call a group by another name.
    pub fn show_as(&self, group: u32, name: &str) {
        self.ledger.show_as(group, name);
        self.driver.announce();
    }

    /// A group is made: from now on, a script calls its operations, which messages count; or they are on named tensors.
    pub fn begin_naming(&self, group: u32, named_tensors: bool) {
        self.ledger.begin_naming(group, named_tensors);
        self.driver.announce();
    }

    /// How many operations of the group are in flight, and how far they are: fragments and bytes.
    #[must_use]
    pub fn in_flight(&self, group: u32) -> (usize, u64) {
        let operations = self.ledger.operations();
        let in_flight = operations.groups.get(&group).into_iter().flat_map(|group| &group.in_flight);
        let moved = in_flight.filter(|waiting| !waiting.handle.done());
        moved.fold((0, 0), |(count, moved), waiting| (count + 1, moved + waiting.handle.moved.load(Ordering::Relaxed)))
    }

    /// Registers a listener for what happens to the group.
    pub fn listen(&self, group: u32, listener: Weak<dyn Listener>) {
        self.ledger.listeners.lock().add(group, listener);
        // Events from before it was registered.
        let failed = self.ledger.operations().groups.get(&group).and_then(|group| group.failed.clone());
        if let Some(error) = failed {
            self.ledger.listeners.lock().tell(group, &News::Failed(error));
        }
    }

    /// Removes the listener of the group.
    pub fn listen_no_more(&self, group: u32) {
        self.ledger.listeners.lock().remove(group);
    }

    /// Hands a duplicate communicator of the offload library to `to`, a group of the same ranks as `from`.
    pub fn inherit(&self, from: u32, to: u32) {
        self.ledger.operations().inbox.push(Command::Inherit { from, to });
        self.driver.announce();
    }

    /// Tells the other ranks of a group that its coordinator has begun a cycle.
    pub fn invite(&self, group: u32, ranks: &[u32], cycle: u64) {
        self.monitor.invite(group, ranks.iter().copied().filter(|&rank| rank != self.rank), cycle);
    }

    /// Tells servers which all-reduce the workers have begun.
    pub fn order(&self, servers: &[u32], order: &Order) {
        self.monitor.order(servers, order);
    }

    /// Operations that the workers have begun since the last call; waits at most this long. `None`: all of them have left.
    #[must_use]
    pub fn next_orders(&self, timeout: Duration) -> Option<VecDeque<Order>> {
        self.orders.next(self.workers(), timeout)
    }

    /// Why a group has failed, if it has.
    #[must_use]
    pub fn failure_of(&self, group: u32) -> Option<RunError> {
        self.ledger.operations().groups.get(&group).and_then(|group| group.failed.clone())
    }

    /// Ranks with their hosts, for messages.
    #[must_use]
    pub fn describe(&self, ranks: &[u32]) -> String {
        peers::describe(&self.peers, ranks)
    }

    /// Restricts the progress thread to this core.
    ///
    /// # Errors
    /// There is no such core.
    pub fn pin_progress_thread(&self, core: usize) -> Result<()> {
        self.driver
            .pin_progress_thread(core)
            .map_err(|e| RunError::Usage(format!("cannot pin a thread to core {core}: {e}")))
    }

    /// Destroys a communicator; its operations in flight fail on all its ranks.
    pub fn remove_group(&self, id: u32) {
        if let Some(ranks) = self.ledger.remove_group(id) {
            let text = format!("rank {} has destroyed the communicator while operations were in flight", self.rank);
            let error = RunError::Failed(text).with_remedy("handle.wait() before the group goes");
            self.monitor.tell_failed(id, &ranks, &error, None);
        }
        self.driver.announce();
    }

    /// Registers an operation for the driving thread.
    ///
    /// # Errors
    /// The engine is closed, or the communicator has failed or was destroyed.
    pub fn submit(&self, group: u32, spec: OperationSpec, how: &Submission) -> Result<Arc<Handle>> {
        self.usable()?;
        let handle = self.ledger.enter(group, spec, how, self.settings.timeout(), &self.timeline)?;
        self.driver.announce();
        if how.background {
            self.driver.wake_progress_thread();
        }
        Ok(handle)
    }

    /// Fails an operation that could not be submitted after all.
    pub fn refuse(&self, handle: &Handle, error: RunError) {
        handle.fail(error);
        self.ledger.refused(handle);
        self.driver.announce();
    }

    /// Waits until the operation is complete; `false` at the time limit.
    #[must_use]
    pub fn wait(&self, handle: &Arc<Handle>, until: Option<Instant>) -> bool {
        self.driver.wait(handle, until)
    }

    /// As `wait`, for a thread that shares its core with training.
    #[must_use]
    pub fn wait_quietly(&self, handle: &Arc<Handle>, until: Option<Instant>) -> bool {
        self.driver.wait_quietly(handle, until)
    }

    /// Leaves the job.
    fn close(&self, patience: Option<Duration>, interrupted: &dyn Fn() -> bool) {
        if self.driver.close(patience, interrupted) {
            self.monitor.leave();
            self.ledger.close(&closed());
            self.driver.wake_parked();
        }
    }
}

/// Why operations fail when the job is left.
fn closed() -> RunError {
    RunError::Failed("this rank has left the job: the engine is closed".into()).with_remedy("paceline.job.join()")
}

/// How an operation is submitted.
#[derive(Clone, Default)]
pub struct Submission {
    /// Silence after which it fails; `None`: the job's.
    pub timeout: Option<Duration>,
    /// It is driven even if no caller waits.
    pub background: bool,
    /// No caller ever waits: that it fails is no reason to leave the job.
    pub patient: bool,
    /// For how long there had been silence before: part of what errors call its time limit.
    pub silent: Duration,
    /// Name for messages where the script knows it by no operation and no tensor.
    pub about: Option<Arc<str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever held a lock when the process was forked does not exist in the child, which must not wait for it.
    #[test]
    fn a_forked_child_waits_for_no_lock() {
        let engine = std::sync::Arc::new(Engine::start(0, 1, Settings::default(), None).unwrap());
        let (child, (said, heard)) = (engine.clone(), std::sync::mpsc::channel());
        let held = engine.shared.ledger.hold();
        engine.forget_after_fork();
        let calls = std::thread::spawn(move || {
            child.mark("script", "step", 0, 1);
            child.shared.note_cause("the child has failed");
            let given = (child.take_finished().len(), child.next_notice(Duration::from_secs(60)).is_some());
            let refused = [child.shared.usable().is_err(), child.stop_timeline().is_ok()];
            child.close();
            said.send((given, refused)).unwrap();
        });
        assert_eq!(heard.recv_timeout(Duration::from_secs(20)), Ok(((0, false), [true, true])));
        drop(held);
        calls.join().unwrap();
        // The connections and threads are those of the test itself.
        engine.shared.forked.store(false, Ordering::SeqCst);
    }
}
