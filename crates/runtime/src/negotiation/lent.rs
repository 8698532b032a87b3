//! The coordinator's core under `partitioned:dynamic`: its own while operations are pending, and lent to the process's
//! other threads otherwise.
//!
//! S. Pumma et al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning", section IV-C: a core
//! of its own keeps others from preempting the coordinator, but is idle most of the time. The thread that submits the
//! first operation takes the core, so that the coordinator finds it free. The coordinator's thread gives it back when it
//! has found nothing in flight twice in a row.
use paceline_engine::LentCore;
use paceline_os::sync::{Arc, Mutex, OnceLock, Weak};
use paceline_os::time::{Duration, Instant};

use super::named::Named;

/// How long nothing is pending before the core is given back. Taking it anew takes some ten microseconds per thread.
const IDLE: Duration = Duration::from_millis(2);

/// A process has one such core, whatever the number of its coordinators.
static OF_THIS_PROCESS: OnceLock<Mutex<Weak<Lent>>> = OnceLock::new();

/// The core, and what is pending.
pub(super) struct Lent {
    core: LentCore,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    operations: Vec<Weak<Named>>,
    /// When to look next; `None`: the core is lent.
    look: Option<Instant>,
    /// Nothing was pending at the last look.
    idle: bool,
}

impl Lent {
    /// The process's core. `sets`: sets of cores that have it, and the same without it.
    pub fn of_this_process(sets: &[(Vec<usize>, Vec<usize>)]) -> Arc<Lent> {
        let mut known = OF_THIS_PROCESS.get_or_init(Mutex::default).lock();
        known.upgrade().unwrap_or_else(|| {
            let lent = Arc::new(Lent { core: LentCore::new(sets), pending: Mutex::default() });
            *known = Arc::downgrade(&lent);
            lent
        })
    }

    /// These operations are pending from now on. Returns whether the core was lent until now.
    pub fn borrow(&self, operations: &[Arc<Named>]) -> bool {
        let mut pending = self.pending.lock();
        pending.operations.extend(operations.iter().map(Arc::downgrade));
        pending.idle = false;
        if pending.look.is_some() {
            return false;
        }
        self.core.take();
        pending.look = Some(Instant::now() + IDLE);
        true
    }

    /// When to call `look`; `None`: the core is lent.
    pub fn due(&self) -> Option<Instant> {
        self.pending.lock().look
    }

    /// Gives the core back if nothing has been pending since the last look.
    pub fn look(&self) {
        let mut pending = self.pending.lock();
        let Some(due) = pending.look else { return };
        if due > Instant::now() {
            return;
        }
        pending.operations.retain(|operation| operation.upgrade().is_some_and(|operation| !operation.ready()));
        if pending.operations.is_empty() && std::mem::replace(&mut pending.idle, true) {
            self.core.give_back();
            pending.look = None;
        } else {
            pending.look = Some(Instant::now() + IDLE);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.due().is_some() {
            self.core.give_back();
        }
    }
}
