//! Drives the executor: progress, then spinning, then yielding the core, then sleep.
use paceline_executor::Executor;
use paceline_executor::handle::Handle;
use paceline_executor::timeline::Timeline;
use paceline_os::event::{PollFd, PollFlags, Timespec, poll};
use paceline_os::process::Pid;
use paceline_os::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use paceline_os::sync::{Arc, Condvar, Mutex, MutexGuard};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::RunError;
use paceline_transport::multicast::Multicast;
use paceline_transport::shm::Waker;

use super::core_placement::{CorePlacement, pin};
use super::failure_detector::Monitor;
use super::foreign::mpi;
use super::ledger::{Command, GroupOperations, Ledger};
use super::{STUCK, closed};

/// How a thread waits when it finds nothing to do.
#[derive(Clone, Copy)]
struct Backoff {
    /// How long it spins, with a pause instruction between checks.
    spin: Duration,
    /// Until then it yields the core between checks; afterwards it sleeps.
    offer: Duration,
    /// Checks between two readings of the clock.
    looks: u32,
    /// Checks after which fragments that no operation expects yet, and that block others, are queued as unexpected.
    /// Most are expected a moment later, and the copy would be wasted.
    unexpected: u32,
}

/// A caller with a core of its own.
///
/// The second phase is as long as others may keep the core of the awaited rank. A rank that sleeps earlier has to be
/// woken, and while it wakes the other falls asleep: with another program on the cores, two ranks that sleep after 0.1
/// ms took 340 us for 4 KiB instead of 7.
const ALONE: Backoff =
    Backoff { spin: Duration::from_micros(50), offer: Duration::from_millis(10), looks: 4, unexpected: 100 };
/// More ranks than cores: the awaited peer may need this core.
const CROWDED: Backoff = Backoff { spin: Duration::ZERO, offer: Duration::from_millis(10), looks: 4, unexpected: 30 };
/// The progress thread, which shares its core with training.
const BACKGROUND: Backoff =
    Backoff { spin: Duration::from_micros(5), offer: Duration::from_millis(1), looks: 4, unexpected: 20 };
/// Under a real-time policy, yielding lets only threads of the same priority run, not those of the kernel that deliver
/// the data. 8 ranks on 2 cores that did so spent a third of the cores' time on it.
const REAL_TIME: Backoff = Backoff { spin: Duration::ZERO, offer: Duration::ZERO, looks: 1, unexpected: 2 };
/// After this long without progress, fragments are queued as unexpected however many are queued already.
const FORCE_UNEXPECTED: Duration = Duration::from_secs(1);
/// How long a leaving rank waits for what it has sent, if nothing of it moves; the same for what it has begun and others
/// have not, or if a communicator has failed.
const LEAVING: Duration = Duration::from_secs(5);
const LEAVING_SOON: Duration = Duration::from_secs(1);
/// A leaving rank that has waited so long has reported it, and reports how it ends.
const REPORTED: Duration = Duration::from_secs(10);
/// How often it looks whether that moves.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The longest sleep: wakers and sockets end it earlier; this bounds the cost of a lost event.
const NAP: Duration = Duration::from_millis(500);

/// The executor and the thread that drives it: a waiting caller or the progress thread. All others sleep.
pub(super) struct Driver {
    core: Mutex<Executor>,
    ledger: Arc<Ledger>,
    monitor: Arc<Monitor>,
    timeline: Arc<Timeline>,
    placement: CorePlacement,
    /// Used by peers on this host to wake this rank.
    waker: Waker,
    /// Callers that sleep because another thread drives.
    parked: AtomicUsize,
    turn: Mutex<()>,
    changed: Condvar,
    /// The progress thread has something to do; it sleeps on this.
    wanted: Mutex<bool>,
    kick: Condvar,
    /// Data that belongs to no operation any more waits for room in a socket.
    unflushed: AtomicBool,
    /// Turns of the driving thread, counted only by it.
    looks: AtomicU64,
    closing: AtomicBool,
    /// How long a leaving rank waits for what it has begun and others have not, if nothing of it moves, in milliseconds.
    patience: AtomicU64,
    /// It does not wait any longer.
    hurries: AtomicBool,
    /// Kernel thread id of the progress thread; `None` until it has started.
    progress_thread: Mutex<Option<Pid>>,
    started: Condvar,
    host: Host,
    /// This rank has left the job.
    left: Mutex<bool>,
    gone: Condvar,
    /// As last counted, and how often that was.
    counters: Mutex<(Counters, u64)>,
}

/// State of the driving thread alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    /// By rank: the channel's name.
    pub transports: Vec<&'static str>,
    /// Payload bytes sent and received.
    pub bytes: [u64; 2],
    /// Statistics of multicasts, if they are sent as such.
    pub multicast: Option<serde_json::Value>,
}

impl Counters {
    fn of(core: &mut Executor) -> Counters {
        let wires = core.wires();
        Counters { transports: wires.names(), bytes: wires.bytes, multicast: wires.multicast().map(Multicast::status) }
    }
}

/// Decides how a thread waits.
#[derive(Clone, Copy)]
pub(super) struct Host {
    /// This rank of the job.
    pub rank: u32,
    /// More ranks on this host than cores.
    pub crowded: bool,
    /// This process was started under a real-time scheduling policy.
    pub real_time: bool,
    /// Only the progress thread drives, because no other may call MPI (`MPI_THREAD_FUNNELED`).
    pub funneled: bool,
}

impl Driver {
    pub fn new(
        core: Executor,
        (ledger, monitor, timeline): (Arc<Ledger>, Arc<Monitor>, Arc<Timeline>),
        (placement, waker, host): (CorePlacement, Waker, Host),
    ) -> Driver {
        Driver {
            core: Mutex::new(core),
            ledger,
            monitor,
            timeline,
            placement,
            waker,
            parked: AtomicUsize::new(0),
            turn: Mutex::new(()),
            changed: Condvar::new(),
            wanted: Mutex::new(false),
            kick: Condvar::new(),
            unflushed: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            patience: AtomicU64::new(0),
            hurries: AtomicBool::new(false),
            progress_thread: Mutex::new(None),
            started: Condvar::new(),
            host,
            left: Mutex::new(false),
            gone: Condvar::new(),
            counters: Mutex::default(),
        }
    }

    /// Bytes sent and received up to now. Asks the driving thread, which may go on for as long as a peer takes nothing; if it is
    /// stuck in a library, returns its last count.
    pub fn counters(&self) -> Counters {
        let (before, until) = (self.counters.lock().1, Instant::now() + STUCK);
        self.ledger.operations().inbox.push(Command::Count);
        loop {
            if let Some(mut core) = self.core.try_lock() {
                return Counters::of(&mut core);
            }
            if paceline_os::mutant("counting waits for the driver") {
                return Counters::of(&mut self.core.lock());
            }
            self.announce();
            paceline_os::thread::sleep(Duration::from_micros(200));
            let (counters, times) = &*self.counters.lock();
            if *times != before || Instant::now() > until {
                return counters.clone();
            }
        }
    }

    /// Whether this rank is leaving the job or has left it.
    pub fn closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Turns of the driving thread so far.
    pub fn turns(&self) -> u64 {
        self.looks.load(Ordering::Acquire)
    }

    /// Wakes the driving thread if it sleeps: the ledger has something new.
    pub fn announce(&self) {
        self.ledger.mark_news();
        self.waker.wake();
    }

    /// Restricts the progress thread to this core, once it has started.
    pub fn pin_progress_thread(&self, core: usize) -> std::io::Result<()> {
        let until = Instant::now() + STUCK;
        let mut number = self.progress_thread.lock();
        while number.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it has not started"));
            }
            let _ = self.started.wait_for(&mut number, left);
        }
        pin(*number, core)
    }

    /// Waits until the memory of a failed group is no longer touched.
    pub fn let_go_of(&self, group: u32, error: &RunError) {
        // A driving thread sees the alarm within a moment and continues. If none drives, the alarm is handled here. The
        // offload library may be stuck.
        let until = Instant::now() + STUCK;
        while !self.host.funneled || Instant::now() < until {
            if let Some(mut core) = self.core.try_lock() {
                core.fail_group(group, error);
                return;
            }
            if self.ledger.operations().alarms.is_empty() && !self.ledger.has_news() {
                break;
            }
            paceline_os::thread::sleep(Duration::from_micros(200));
        }
        // The driver has taken the alarm; it finishes with it before its next look.
        let looks = self.looks.load(Ordering::SeqCst);
        while self.core.is_locked() && self.looks.load(Ordering::SeqCst) < looks + 2 {
            if self.host.funneled && Instant::now() > until {
                return;
            }
            self.announce();
            paceline_os::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until the operation is complete; `false` at the time limit.
    pub fn wait(&self, handle: &Arc<Handle>, until: Option<Instant>) -> bool {
        self.wait_with(self.backoff(), handle, until)
    }

    /// As `wait`, with the phases of the progress thread.
    pub fn wait_quietly(&self, handle: &Arc<Handle>, until: Option<Instant>) -> bool {
        self.wait_with(self.in_background(), handle, until)
    }

    fn wait_with(&self, backoff: Backoff, handle: &Arc<Handle>, until: Option<Instant>) -> bool {
        if self.host.funneled {
            return self.wait_for_driver(handle, until);
        }
        loop {
            if handle.done() {
                return true;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return handle.done();
            }
            if self.closing.load(Ordering::SeqCst) {
                // The thread that leaves drives to the end.
                paceline_os::reached!("driver: caller waits while the job is left");
                self.sleep_unless(|| handle.done(), until);
                return handle.done();
            }
            match self.core.try_lock() {
                Some(core) => {
                    let over = || handle.done() || self.closing.load(Ordering::Relaxed);
                    self.drive(core, backoff, until, over);
                    self.placement.leave();
                    self.hand_over();
                }
                None => {
                    self.park(handle, until);
                    if handle.done() {
                        // The previous driver may have handed over to this thread, which has nothing more to wait for.
                        self.hand_over();
                        return true;
                    }
                }
            }
        }
    }

    /// Waits while the progress thread drives, because no other may.
    fn wait_for_driver(&self, handle: &Arc<Handle>, until: Option<Instant>) -> bool {
        let mut seen = (self.looks.load(Ordering::Relaxed), Instant::now());
        loop {
            if handle.done() {
                return true;
            }
            let looks = self.looks.load(Ordering::Relaxed);
            if looks != seen.0 {
                seen = (looks, Instant::now());
            } else if seen.1.elapsed() > STUCK {
                self.fail_in_place_of_driver(handle);
            }
            if until.is_some_and(|until| Instant::now() >= until) || self.closing.load(Ordering::SeqCst) {
                return handle.done();
            }
            self.wake_progress_thread();
            let mut turn = self.turn.lock();
            self.parked.fetch_add(1, Ordering::SeqCst);
            if !handle.done() {
                let left = until.map_or(NAP, |until| until.saturating_duration_since(Instant::now()).min(NAP));
                self.changed.wait_for(&mut turn, left);
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
            drop(turn);
        }
    }

    /// The progress thread is stuck in the library, which waits for a rank that will not come: a communicator can only
    /// be created that way. What has failed is reported from here.
    fn fail_in_place_of_driver(&self, handle: &Arc<Handle>) {
        let operations = self.ledger.operations();
        let has = |group: &&GroupOperations| group.in_flight.iter().any(|waiting| Arc::ptr_eq(&waiting.handle, handle));
        if let Some(error) = operations.groups.values().find(has).and_then(|group| group.failed.clone()) {
            handle.fail(error);
        }
    }

    /// How a driving thread waits now, unless the caller decides.
    fn backoff(&self) -> Backoff {
        match (self.host.real_time, self.host.crowded, self.host.funneled && self.parked.load(Ordering::Relaxed) == 0) {
            (true, ..) => REAL_TIME,
            (_, _, true) => BACKGROUND,
            (_, true, _) => CROWDED,
            _ => ALONE,
        }
    }

    fn in_background(&self) -> Backoff {
        if self.host.real_time { REAL_TIME } else { BACKGROUND }
    }

    /// Sleeps while another thread drives.
    fn park(&self, handle: &Handle, until: Option<Instant>) {
        paceline_os::reached!("driver: caller parked");
        // The driver notifies after it has released the core.
        self.sleep_unless(|| handle.done() || !self.core.is_locked(), until);
    }

    /// Sleeps until the driver notifies, which it does under the same lock.
    fn sleep_unless(&self, changed: impl Fn() -> bool, until: Option<Instant>) {
        let mut turn = self.turn.lock();
        self.parked.fetch_add(1, Ordering::SeqCst);
        if !changed() {
            let left = until.map_or(NAP, |until| until.saturating_duration_since(Instant::now()).min(NAP));
            self.changed.wait_for(&mut turn, left);
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
        drop(turn);
    }

    /// Whether a thread should drive. The last fragment of a complete operation may still wait for room.
    fn busy(&self) -> bool {
        self.unflushed.load(Ordering::SeqCst) || self.ledger.operations().in_flight()
    }

    /// Called after releasing the core: another caller takes over, or the progress thread if there is work.
    fn hand_over(&self) {
        if self.parked.load(Ordering::SeqCst) > 0 {
            let _turn = self.turn.lock();
            self.changed.notify_all();
        } else if self.busy() {
            self.wake_progress_thread();
        }
    }

    pub(super) fn wake_progress_thread(&self) {
        let mut wanted = self.wanted.lock();
        if !*wanted {
            *wanted = true;
            self.kick.notify_one();
        }
    }

    /// The progress thread.
    pub(super) fn run_progress_thread(&self) {
        *self.progress_thread.lock() = Some(paceline_os::thread::gettid());
        self.started.notify_all();
        loop {
            {
                let mut wanted = self.wanted.lock();
                while !*wanted && !self.closing.load(Ordering::SeqCst) {
                    self.kick.wait(&mut wanted);
                }
                *wanted = false;
            }
            if self.closing.load(Ordering::SeqCst) {
                if self.host.funneled {
                    self.leave(&|| self.hurries.load(Ordering::SeqCst));
                    *self.left.lock() = true;
                    self.gone.notify_all();
                }
                return;
            }
            // A driving caller hands over when it leaves.
            if let Some(core) = self.core.try_lock() {
                let over = || self.closing.load(Ordering::Relaxed) || !self.busy();
                self.drive(core, self.in_background(), None, over);
                self.placement.leave();
                self.hand_over();
            }
        }
    }

    /// Drives until `over` is true or the time limit.
    fn drive(
        &self,
        mut core: MutexGuard<'_, Executor>,
        backoff: Backoff,
        until: Option<Instant>,
        over: impl Fn() -> bool,
    ) {
        let mut idle = 0u32;
        let mut since = Instant::now();
        loop {
            // Whether a caller waits for the progress thread changes while it drives.
            let backoff = if self.host.funneled { self.backoff() } else { backoff };
            let moved = self.turn_once(&mut core);
            if over() {
                return;
            }
            if moved {
                idle = 0;
                continue;
            }
            idle = idle.saturating_add(1);
            if (idle == backoff.unexpected || core.collects()) && core.queue_unexpected(false) {
                idle = 0;
                continue;
            }
            if idle <= backoff.looks {
                paceline_os::thread::spin_loop();
                continue;
            }
            let now = Instant::now();
            if idle == backoff.looks + 1 {
                since = now;
            }
            let waited = now - since;
            if until.is_some_and(|until| now >= until) {
                return;
            }
            if waited < backoff.spin {
                paceline_os::thread::spin_loop();
            } else if waited < backoff.offer {
                if !self.host.crowded && !self.host.funneled {
                    self.placement.look(waited);
                }
                paceline_os::thread::yield_now();
            } else {
                // Where yielding takes long, the clock gets here before the checks are counted.
                if core.queue_unexpected(false) {
                    (idle, core.stuck_since) = (0, None);
                    continue;
                }
                let stuck = now - *core.stuck_since.get_or_insert(since);
                let stuck = if paceline_os::mutant("stuck begins anew") { now - since } else { stuck };
                if stuck > FORCE_UNEXPECTED && core.queue_unexpected(true) {
                    paceline_os::reached!("driver: unexpected fragments queued by force");
                    // Everything that blocks is queued, not one fragment a second.
                    while !self.turn_once(&mut core) && !over() && core.queue_unexpected(true) {}
                    idle = 0;
                    continue;
                }
                if stuck > FORCE_UNEXPECTED && core.queue_unexpected_streams() {
                    paceline_os::reached!("driver: streaming sums queued by force");
                    (idle, core.stuck_since) = (0, Some(now));
                    continue;
                }
                let nap = until.map_or(NAP, |until| (until - now).min(NAP));
                if self.sleep(&mut core, nap, &over) {
                    return;
                }
                // What woke this thread is usually one fragment of several: spin a little before sleeping again. Not if
                // nothing can have woken it, and this is one of many short sleeps.
                idle = if core.wires().must_look() { backoff.looks + 1 } else { 0 };
            }
        }
    }

    /// One turn of everything; returns whether anything moved.
    fn turn_once(&self, core: &mut Executor) -> bool {
        let mut moved = false;
        self.looks.store(self.looks.load(Ordering::Relaxed) + 1, Ordering::Release);
        if self.ledger.take_news() {
            self.read_ledger(core);
            moved = true;
        }
        moved |= core.progress();
        if moved {
            core.stuck_since = None;
        }
        self.unflushed.store(core.wires().unflushed(), Ordering::SeqCst);
        if !core.completions.is_empty() || !core.failures.is_empty() || !core.wires().lost.is_empty() {
            self.settle(core);
        }
        moved
    }

    fn read_ledger(&self, core: &mut Executor) {
        let (inbox, alarms) = {
            let mut operations = self.ledger.operations();
            (std::mem::take(&mut operations.inbox), std::mem::take(&mut operations.alarms))
        };
        for command in inbox {
            match command {
                Command::Begin(group, spec) => core.begin(group, spec),
                Command::Group { id, ranks, me } => core.add_group(id, ranks, me),
                Command::Inherit { from, to } => core.inherit(from, to),
                Command::Remove(id) => core.remove_group(id),
                Command::Name(id, naming) => core.name(id, naming),
                Command::Count => {
                    let mut counters = self.counters.lock();
                    *counters = (Counters::of(core), counters.1 + 1);
                }
            }
        }
        for (group, error) in alarms {
            core.fail_group(group, &error);
        }
    }

    fn settle(&self, core: &mut Executor) {
        for (failure, ranks) in self.ledger.settle(core, &self.timeline) {
            self.monitor.tell_failed(failure.group, &ranks, &failure.error, None);
        }
        for lost in core.wires().lost.drain(..) {
            self.monitor.connection_lost(lost.rank, &lost.reason);
        }
        if self.parked.load(Ordering::SeqCst) > 0 {
            let _turn = self.turn.lock();
            self.changed.notify_all();
        }
    }

    /// Sleeps until a peer wakes this rank, a socket is ready or the time is up. Returns whether `over` became true
    /// first.
    fn sleep(&self, core: &mut Executor, nap: Duration, over: &impl Fn() -> bool) -> bool {
        paceline_os::reached!("driver: about to sleep");
        self.waker.about_to_sleep();
        // What the last turn has read, but may not deliver, wakes nobody any more: it is looked at once more.
        let before = core.wires().received();
        let missed = |core: &mut Executor| {
            (core.wires().reported() && !paceline_os::mutant("sleeps over a report"))
                || (core.wires().received() != before && !paceline_os::mutant("sleeps over what it has read"))
        };
        if self.turn_once(core) || missed(core) || over() {
            paceline_os::reached!("driver: did not sleep after all");
            self.waker.awake();
            return over();
        }
        {
            let nap = core.wires().nap().map_or(nap, |due| nap.min(due));
            let mut fds = vec![PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN)];
            core.wires().watch(&mut fds);
            let time = Timespec { tv_sec: nap.as_secs().cast_signed(), tv_nsec: i64::from(nap.subsec_nanos()) };
            let _ = poll(&mut fds, Some(&time));
        }
        self.waker.awake();
        false
    }

    /// Leaves the job; `false` if this rank had left before. What it has begun and others have not yet is waited for as
    /// long as this while nothing of it moves; by default as long as a caller would wait for it. Not after the caller is
    /// `interrupted`.
    pub fn close(&self, patience: Option<Duration>, interrupted: &dyn Fn() -> bool) -> bool {
        if self.closing.swap(true, Ordering::SeqCst) {
            return false;
        }
        let patience = patience.map_or(u64::MAX, |patience| patience.as_millis() as u64);
        self.patience.store(patience, Ordering::SeqCst);
        self.announce();
        self.wake_progress_thread();
        if self.host.funneled {
            let mut left = self.left.lock();
            let mut until = None;
            while !*left && until.is_none_or(|until| Instant::now() < until) {
                let _ = self.gone.wait_while_for(&mut left, |left| !*left, LOOK_AGAIN);
                if until.is_none() && (patience != u64::MAX || interrupted()) {
                    self.hurries.store(patience == u64::MAX, Ordering::SeqCst);
                    until = Some(Instant::now() + LEAVING + STUCK);
                }
            }
        } else {
            self.leave(interrupted);
        }
        true
    }

    /// Wakes all callers that sleep because another thread drove.
    pub fn wake_parked(&self) {
        let _turn = self.turn.lock();
        self.changed.notify_all();
    }

    /// Ends operations, on a thread that may drive.
    fn leave(&self, interrupted: &dyn Fn() -> bool) {
        self.finish(interrupted);
        let mut core = self.core.lock();
        self.read_ledger(&mut core);
        let undelivered = core.wires().undelivered().into_iter().map(|(rank, _)| rank).collect();
        *self.ledger.stock.lock() = (self.ledger.operations().done(), undelivered);
        core.fail_all(&closed());
        self.settle(&mut core);
        if self.host.funneled {
            self.disconnect_from(&mut core);
        }
    }

    /// Completes what has been begun, and waits until what was sent has arrived, as long as it moves.
    fn finish(&self, interrupted: &dyn Fn() -> bool) {
        let (mut seen, mut since) = (None, Instant::now());
        let (began, patience) = (since, Duration::from_millis(self.patience.load(Ordering::SeqCst)));
        let mut reported = false;
        if !self.ledger.operations().troubled {
            self.monitor.begin_to_leave();
        }
        loop {
            // The driver sees `closing` and releases the core.
            let core = self.core.lock();
            let until = Instant::now() + LOOK_AGAIN;
            self.drive(core, self.in_background(), Some(until), || !self.busy());
            let mut core = self.core.lock();
            let wires = core.wires();
            let (undelivered, unflushed, bytes) = (wires.undelivered(), wires.unflushed(), wires.bytes);
            // On a slow link the rest of a fragment may take longer than the limit, and what the system holds is refilled
            // before each look.
            let parts = if paceline_os::mutant("leaving counts whole fragments") { 0 } else { wires.sent() };
            drop(core);
            let (moved, troubled, hopeful) = {
                let operations = self.ledger.operations();
                let in_flight = operations.groups.values().flat_map(|group| &group.in_flight);
                let moved: Vec<_> = in_flight.map(|waiting| waiting.handle.moved.load(Ordering::Relaxed)).collect();
                let hopeful = operations.may_complete(&self.monitor.leaving.lock(), self.host.rank);
                (moved, operations.troubled, hopeful)
            };
            if troubled && began.elapsed() >= REPORTED && !std::mem::replace(&mut reported, true) {
                let failed = |group: &GroupOperations| group.failed.clone();
                if let Some(error) = self.ledger.operations().groups.values().find_map(failed) {
                    paceline_os::report!("paceline: while this rank left the job: {error}");
                }
            }
            if moved.is_empty() && undelivered.is_empty() && !unflushed {
                return;
            }
            let sent = undelivered.is_empty() && !unflushed;
            let soon = if troubled || sent { LEAVING_SOON } else { LEAVING };
            let limit = if hopeful && !troubled { patience.max(soon) } else { soon };
            let left = (undelivered, bytes, parts, moved);
            if seen.as_ref() != Some(&left) {
                (seen, since) = (Some(left), Instant::now());
            } else if since.elapsed() >= limit || interrupted() {
                paceline_os::reached!("driver: left with something undelivered");
                return;
            }
            // The system does not say when a peer has acknowledged.
            paceline_os::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends connections and shared memory: now, not when the last reference to the engine does.
    pub fn disconnect(&self) {
        if !self.host.funneled {
            self.disconnect_from(&mut self.core.lock());
        }
    }

    fn disconnect_from(&self, core: &mut Executor) {
        let whole = !self.ledger.operations().troubled;
        // Only MPI requires a single driving thread.
        if core.wires().disconnect(whole) && self.host.funneled && whole {
            mpi::left();
        }
    }
}
