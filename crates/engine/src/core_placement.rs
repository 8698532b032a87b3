//! Separates two ranks that wait for each other on one core although each could have its own.
//!
//! The scheduler does not separate two threads that both look busy if another program runs on the other core. Each
//! exchange then costs two thread switches (110 us instead of 4 for 4 KiB). MPI binds ranks to cores. Paceline does
//! not, because what a rank starts, such as data loaders, would be bound with it. Instead every waiting rank publishes
//! its core. A rank that finds a peer on its own core moves once and may run anywhere afterwards.
use paceline_os::process::Pid;
use paceline_os::sync::atomic::Ordering;
use paceline_os::sync::{Arc, Mutex};
use paceline_os::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use paceline_os::time::{Duration, Instant};
use paceline_transport::shm::Segment;

/// Shortest time between two moves: a move costs some microseconds, and the scheduler may have its reasons.
const EVERY: Duration = Duration::from_millis(5);
/// How long a rank waits before it looks.
const AFTER: Duration = Duration::from_micros(30);

/// Binds the given thread, or the current one, to a core.
pub fn pin(thread: Option<Pid>, core: usize) -> std::io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput));
    }
    let mut only = CpuSet::new();
    only.set(core);
    Ok(sched_setaffinity(thread, &only)?)
}

/// A core that the threads of this process, and of processes that it has forked, use unless it is taken.
///
/// Only threads are moved whose cores are one of the given sets: those that their launcher, their library or the script
/// has bound elsewhere stay there.
pub struct LentCore {
    /// Sets that have the core, and the same without it.
    sets: Vec<(CpuSet, CpuSet)>,
}

impl LentCore {
    /// Pairs of a set that has the core, and the same set without it.
    #[must_use]
    pub fn new(sets: &[(Vec<usize>, Vec<usize>)]) -> LentCore {
        let set = |cores: &Vec<usize>| {
            let mut set = CpuSet::new();
            cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| set.set(core));
            set
        };
        LentCore { sets: sets.iter().map(|(with, without)| (set(with), set(without))).collect() }
    }

    /// From now on no other thread runs on the core.
    pub fn take(&self) {
        self.turn(|(with, without)| (with, without));
    }

    /// From now on other threads may run on it.
    pub fn give_back(&self) {
        self.turn(|(with, without)| (without, with));
    }

    fn turn(&self, which: impl Fn(&(CpuSet, CpuSet)) -> (&CpuSet, &CpuSet)) {
        for thread in paceline_os::thread::family() {
            // A thread that has ended meanwhile has no cores.
            let Ok(cores) = sched_getaffinity(Some(thread)) else { continue };
            if let Some((_, to)) = self.sets.iter().map(&which).find(|(from, _)| **from == cores) {
                let _ = sched_setaffinity(Some(thread), to);
            }
        }
    }
}

/// Cores that these processes of this host may use together: launchers bind each to its own. Those of this process alone if
/// its time is limited, and of those others that cannot be asked.
pub fn cores_of(processes: impl Iterator<Item = u32>) -> usize {
    let own = paceline_os::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let Ok(mut all) = sched_getaffinity(None) else { return own };
    if own < all.count() as usize {
        return own;
    }
    let pids = processes.filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    for allowed in pids.filter_map(|pid| sched_getaffinity(Some(pid)).ok()) {
        (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).for_each(|cpu| all.set(cpu));
    }
    all.count() as usize
}

/// Where the ranks of this host wait.
pub(super) struct CorePlacement {
    own: Arc<Segment>,
    /// The segments of the lower ranks on the host: the higher rank of two moves.
    lower: Vec<Arc<Segment>>,
    others: Vec<Arc<Segment>>,
    moved: Mutex<Option<Instant>>,
}

impl CorePlacement {
    pub fn new(own: Arc<Segment>, lower: Vec<Arc<Segment>>, higher: Vec<Arc<Segment>>) -> CorePlacement {
        let others = lower.iter().chain(&higher).cloned().collect();
        CorePlacement { own, lower, others, moved: Mutex::new(None) }
    }

    /// Called repeatedly while waiting.
    pub fn look(&self, waited: Duration) {
        if waited < AFTER || self.others.is_empty() {
            return;
        }
        let here = sched_getcpu() as u32 + 1;
        self.own.waits_on().store(here, Ordering::Relaxed);
        let shared = self.lower.iter().any(|segment| segment.waits_on().load(Ordering::Relaxed) == here);
        if shared {
            let mut moved = self.moved.lock();
            if moved.is_none_or(|at| at.elapsed() > EVERY) {
                *moved = Some(Instant::now());
                self.step_aside(here as usize - 1);
            }
        }
    }

    /// Called when the wait has ended.
    pub fn leave(&self) {
        if self.own.waits_on().load(Ordering::Relaxed) != 0 {
            self.own.waits_on().store(0, Ordering::Relaxed);
        }
    }

    fn step_aside(&self, here: usize) {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let taken = |cpu: usize| {
            cpu == here || self.others.iter().any(|s| s.waits_on().load(Ordering::Relaxed) == cpu as u32 + 1)
        };
        let Some(free) = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu) && !taken(cpu)) else { return };
        let mut only = CpuSet::new();
        only.set(free);
        if sched_setaffinity(None, &only).is_ok() {
            let _ = sched_setaffinity(None, &allowed);
        }
    }
}
