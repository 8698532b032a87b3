//! Operations under way: told to the stream in order, watched, and let go when ranks are gone.
use paceline_cuda::DeviceMemory;
use paceline_os::sync::atomic::Ordering;
use paceline_os::sync::{Arc, Condvar, Mutex, Weak};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};
use paceline_transport::waiting::{Reports, TIMEOUT};

use super::{IpcGroup, IpcOperation, Told, UnderWay, failed};

/// How often what is under way is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long an operation is left to its caller.
const PATIENCE: Duration = Duration::from_millis(1);
/// Operations that are remembered before it is looked which are over.
const REMEMBERED: usize = 64;
/// How long a rank whose own stream has come to an operation waits longer than the limit: the rank whose stream has not
/// says so itself.
const GRACE: Duration = Duration::from_secs(2);
/// How far signals are raised for streams that would wait for ever.
const RAISED: u32 = 1 << 30;
/// How long a stream whose waits are released may take to end.
const RELEASE: Duration = Duration::from_secs(30);

/// Wakes the thread that goes on with operations that nobody waits for.
#[derive(Default)]
pub(super) struct Bell {
    rung: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Bell {
    pub(super) fn ring(&self, ends: bool) {
        let mut rung = self.rung.lock();
        *rung = (true, rung.1 | ends);
        self.changed.notify_all();
    }

    /// Waits until it is rung, at most so long; `false`: it is over.
    pub(super) fn wait(&self, most: Option<Duration>) -> bool {
        let mut rung = self.rung.lock();
        if !rung.0 && !rung.1 {
            match most {
                None => self.changed.wait(&mut rung),
                Some(most) => drop(self.changed.wait_for(&mut rung, most)),
            }
        }
        rung.0 = false;
        !rung.1
    }
}

/// Goes on with operations that nobody waits for, and watches those under way, until the group is gone.
pub(super) fn go_on(group: &Weak<IpcGroup>, bell: &Bell) {
    let mut most = None;
    while bell.wait(most) {
        // Whoever has called an operation usually waits for it, and is faster.
        paceline_os::thread::sleep(PATIENCE);
        let Some(group) = group.upgrade() else { return };
        most = group.look();
    }
}

impl IpcGroup {
    /// Tells the stream what can be told, and looks at what is under way; returns when to look again.
    pub(super) fn look(&self) -> Option<Duration> {
        loop {
            if self.broken.load(Ordering::SeqCst) {
                self.release();
                return None;
            }
            self.tell();
            let mut under_way = self.under_way.lock();
            self.forget_ended(&mut under_way);
            if let Some(late) = self.late(&under_way) {
                drop(under_way);
                let error = RunError::Failed(late);
                self.shared.abandon(self.id, &error);
                self.broken.store(true, Ordering::SeqCst);
                continue;
            }
            let Some(first) = under_way.waiting.front().map(|operation| operation.met.clone()) else {
                return (!under_way.told.is_empty()).then_some(LOOK);
            };
            drop(under_way);
            if !self.shared.wait_quietly(&first, Some(Instant::now() + LOOK)) {
                return Some(Duration::ZERO);
            }
        }
    }

    /// Why the job fails, if a stream does not come to an operation within its limit.
    pub(super) fn late(&self, under_way: &UnderWay) -> Option<String> {
        let mine = self.shared.rank;
        if let Err(error) = self.lane.healthy() {
            let first = under_way.told.front().or(under_way.waiting.front())?;
            return Some(format!("rank {mine}: {error}; {} is waiting for it", first.label));
        }
        let now = Instant::now();
        let not_over = |operation: &&Arc<IpcOperation>| !operation.done.happened().unwrap_or(true);
        let first = under_way.told.iter().find(not_over)?;
        let Told::All(since) = *first.state.lock() else { return None };
        let (label, limit, device) = (&first.label, first.timeout.as_secs_f64(), self.stage.device());
        if now < since + first.timeout {
            if !first.reached.happened().unwrap_or(true) {
                let mut reports = self.reports.lock();
                let known = reports.take().filter(|(of, _)| *of == since).map(|(_, known)| known);
                let mut of_this = known.unwrap_or_else(|| Reports::new(since, first.timeout, TIMEOUT));
                of_this.report(now, |waited| {
                    let waited = waited.as_secs_f64();
                    format!("rank {mine}: {device:?} of this rank has not reached {label} within {waited:.0} s")
                });
                *reports = Some((since, of_this));
            }
            return None;
        }
        if !first.reached.happened().unwrap_or(true) {
            return Some(format!(
                "rank {mine}: {device:?} of this rank has not reached {label} within {limit:.0} s: something that was \
                 submitted to it before does not end"
            ));
        }
        (now > since + first.timeout + GRACE).then(|| {
            format!(
                "rank {mine}: {label} has not ended on {device:?} within {limit:.0} s although all ranks have called it"
            )
        })
    }

    /// Forgets operations that are over, and with them the memory that they use.
    pub(super) fn forget_ended(&self, under_way: &mut UnderWay) {
        while under_way.told.front().is_some_and(|operation| operation.done.happened().unwrap_or(false)) {
            if let Some(operation) = under_way.told.pop_front() {
                operation.keep.lock().take();
            }
        }
    }

    /// Waits until the stream has done what it was told, at most so long: others read this rank's memory until then. Nothing is
    /// called any more afterwards.
    pub(in super::super) fn drain(&self, most: Duration) {
        self.ends.store(true, Ordering::SeqCst);
        let until = Instant::now() + most;
        while Instant::now() < until && !self.broken.load(Ordering::SeqCst) {
            self.tell();
            let mut under_way = self.under_way.lock();
            self.forget_ended(&mut under_way);
            if under_way.told.is_empty() || self.lane.healthy().is_err() {
                break;
            }
            drop(under_way);
            paceline_os::thread::sleep(PATIENCE);
        }
        // It must not call the driver while the process ends.
        self.bell.ring(true);
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    /// Has the stream go on although ranks are gone. What all ranks have told their streams ends by itself, so that is waited
    /// for; of the rest, what is computed is not used. Only this rank's stream is released.
    pub(super) fn release(&self) {
        let (begun, until) = (Instant::now(), Instant::now() + RELEASE);
        loop {
            let mut under_way = self.under_way.lock();
            for operation in std::mem::take(&mut under_way.waiting) {
                let error = self.failure();
                *operation.state.lock() = Told::Failed(error);
                operation.keep.lock().take();
            }
            self.forget_ended(&mut under_way);
            if under_way.told.is_empty() || self.lane.healthy().is_err() || Instant::now() > until {
                return;
            }
            if begun.elapsed() > GRACE {
                for (rank, taken) in under_way.taken.iter().enumerate() {
                    self.flags.write(self.signal(rank as u32, self.me), taken.wrapping_add(RAISED));
                }
            }
            drop(under_way);
            paceline_os::thread::sleep(PATIENCE);
        }
    }

    /// The number of the signals from one rank to another.
    pub(super) fn signal(&self, from: u32, to: u32) -> usize {
        (to * self.size + from) as usize
    }

    pub(super) fn failure(&self) -> RunError {
        self.shared.failure_of(self.id).unwrap_or_else(|| RunError::Failed("the communicator has failed".into()))
    }

    /// Spare memory of at least so many bytes.
    pub(super) fn spare(&self, bytes: u64) -> Result<Option<Arc<DeviceMemory>>> {
        let mut under_way = self.under_way.lock();
        let enough = under_way.spare.as_ref().is_some_and(|spare| spare.bytes() >= bytes);
        if bytes > 0 && !enough {
            let memory = self.stage.device().memory(bytes.next_power_of_two()).map_err(failed)?;
            // Operations under way keep the old one.
            under_way.spare = Some(Arc::new(memory));
        }
        Ok(under_way.spare.clone())
    }

    /// Tells the stream, in order, about the operations whose memory is known of all ranks.
    pub(super) fn tell(&self) {
        let mut under_way = self.under_way.lock();
        while under_way.waiting.front().is_some_and(|operation| operation.met.done()) {
            let Some(operation) = under_way.waiting.pop_front() else { return };
            let told = match operation.met.result() {
                Ok(()) => self.submit(&operation, &mut under_way),
                Err(error) => Err(error),
            };
            match told {
                Ok(()) => {
                    *operation.state.lock() = Told::All(Instant::now());
                    under_way.told.push_back(operation);
                    if under_way.told.len() >= REMEMBERED {
                        self.forget_ended(&mut under_way);
                    }
                }
                Err(error) => {
                    if self.shared.failure_of(self.id).is_none() {
                        self.shared.abandon(self.id, &error);
                    }
                    self.broken.store(true, Ordering::SeqCst);
                    *operation.state.lock() = Told::Failed(error);
                    under_way.told.push_back(operation);
                    self.bell.ring(false);
                }
            }
        }
    }
}
