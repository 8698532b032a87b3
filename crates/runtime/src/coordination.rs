//! Operations on named tensors, which ranks ask for in any order: the driver of `paceline-coordinator`.
//!
//! A coordinator has two communicators: one for what ranks tell each other, one for the tensors. Whoever waits for an
//! operation drives the coordinator itself, so that a small one costs no change of threads; a thread of its own answers
//! when other ranks have something new, and sleeps otherwise. Another rank's cycle is announced by its monitor.
//!
//! | module | holds |
//! | --- | --- |
//! | `named` | an operation on a named tensor, and how one waits for it |
//! | `thread` | what has come, and the thread that looks at it if nobody else does |
//! | `machine` | the policy, and what is done for its actions |
//! | `exchange` | what its actions mean between ranks |
//! | `begin` | from tensors that were agreed on to an operation of the runtime |
//! | `planned`, `steps` | the policy `graph`: tensors that are planned, and not agreed on |
//! | `status_words` | words that travel with planned tensors: what was not as planned |
//! | `output` | memory for results whose size is known late |
mod begin;
mod exchange;
mod machine;
mod named;
mod output;
mod planned;
mod status_words;
mod steps;
mod thread;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use paceline_coordinator::Event;
pub use paceline_coordinator::{Limits, PolicyKind, Settings};
use parking_lot::{Condvar, Mutex};

use crate::communicator::Communicator;
use crate::job::Job;
use machine::{Counts, Machine};
pub use named::{Named, Wanted};
pub use output::Output;
use paceline_executor::timeline;
use paceline_transport::error::{Result, RunError};
use steps::Planner;
use thread::{Arrival, CoordinatorShared, When};

/// Where no limit is set.
const FOREVER: Duration = Duration::from_secs(30 * 86_400);
/// From so many names on those that are in use no more are forgotten.
const MANY_NAMES: usize = 1 << 16;

/// Agrees with the other ranks of a group on what is ready.
pub struct Coordinator {
    shared: Arc<CoordinatorShared>,
    data: Arc<Communicator>,
    control: Arc<Communicator>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Under the policy `graph`.
    planner: Option<Arc<Planner>>,
    counts: Arc<Counts>,
    /// By name what was asked for last, while it may be in flight.
    flying: Mutex<HashMap<String, Weak<Named>>>,
}

/// How a coordinator works.
#[derive(Clone, Debug)]
pub struct CoordinatorOptions {
    /// Its policy.
    pub kind: PolicyKind,
    /// Of what is negotiated.
    pub settings: Settings,
    /// Of planned buckets.
    pub limits: Limits,
    /// Where its thread and the progress thread run.
    pub core: Option<usize>,
    /// The parameter server of tensors by name; others are placed in turn.
    pub placement: BTreeMap<String, u32>,
}

impl Job {
    /// A coordinator of these ranks, in this order. Each of them calls this with the same name and options, and waits for the
    /// others.
    ///
    /// # Errors
    /// As for [`Job::group`]; a core that is not there.
    pub fn coordinator(&self, ranks: &[u32], name: &str, options: CoordinatorOptions) -> Result<Coordinator> {
        let CoordinatorOptions { kind, settings, limits, core, placement } = options;
        let data = Arc::new(self.group(ranks.to_vec(), &format!("{name}, tensors"))?);
        let control = Arc::new(self.group(ranks.to_vec(), &format!("{name}, agreement"))?);
        if let Some(core) = core {
            self.engine.shared.pin_progress_thread(core)?;
        }
        let patience = settings.give_up_after.map_or(FOREVER, Duration::from_nanos);
        let planner = (kind == PolicyKind::Graph).then(|| Arc::new(Planner::new(limits, name, patience)));
        let cycle_time = Duration::from_nanos(settings.cycle_time);
        let machine = Machine::new(control.clone(), data.clone(), (kind, settings), placement, planner.clone());
        let counts = machine.counts();
        let shared = Arc::new(CoordinatorShared {
            inbox: Mutex::default(),
            wakeup: Condvar::new(),
            machine: Mutex::new(machine),
            cycle_time,
            timeline: self.engine.shared.timeline.clone(),
        });
        self.engine.shared.listen(control.id(), Arc::<CoordinatorShared>::downgrade(&shared));
        self.engine.shared.listen(data.id(), Arc::<CoordinatorShared>::downgrade(&shared));
        let driver = shared.clone();
        let thread = std::thread::Builder::new()
            .name("paceline-coordinator".into())
            .spawn(move || {
                if let Some(core) = core {
                    let _ = paceline_engine::pin(None, core);
                }
                driver.run_thread();
            })
            .map_err(|e| RunError::Failed(format!("cannot start a thread: {e}")))?;
        Ok(Coordinator {
            shared,
            data,
            control,
            thread: Mutex::new(Some(thread)),
            planner,
            counts,
            flying: Mutex::default(),
        })
    }
}

impl Coordinator {
    /// This process's place in the group.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.data.rank()
    }

    /// Ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.data.size()
    }

    /// Ranks of the job, in order.
    #[must_use]
    pub fn ranks(&self) -> &[u32] {
        self.data.ranks()
    }

    /// Asks for operations, which begin together or not at all. `waits`: the caller waits for them at once.
    ///
    /// # Errors
    /// The coordinator has failed or was closed, or an operation was asked for before.
    ///
    /// # Safety
    /// The memory of the operations is valid, and nobody else touches it until they are over (or what was to be kept has
    /// been handed back).
    #[allow(unsafe_code, reason = "the promise about the memory is passed on")]
    pub unsafe fn submit(&self, operations: &[Arc<Named>], waits: bool) -> Result<()> {
        let operations = self.asks(operations)?;
        self.post(&operations, waits)
    }

    /// Those that can be asked for; of the others a name is in flight, and they fail.
    fn asks(&self, operations: &[Arc<Named>]) -> Result<Vec<Arc<Named>>> {
        let now = if self.data.shared.timeline.on() { timeline::now() } else { 0 };
        for operation in operations {
            operation.ask()?;
            operation.asked_at.store(now, Ordering::Relaxed);
        }
        let mut flying = self.flying.lock();
        let in_flight = |operation: &Arc<Named>| {
            flying.get(operation.name()).and_then(Weak::upgrade).is_some_and(|other| !other.done())
        };
        if let Some(twice) = operations.iter().find(|operation| in_flight(operation)) {
            let text = format!(
                "'{}' is in flight on this rank already; give each tensor a name of its own, or wait for it",
                twice.name()
            );
            operations.iter().for_each(|operation| operation.fail(RunError::Usage(text.clone())));
            return Ok(Vec::new());
        }
        if flying.len() > MANY_NAMES {
            flying.retain(|_, operation| operation.strong_count() > 0);
        }
        for operation in operations {
            flying.insert(operation.name().to_owned(), Arc::downgrade(operation));
        }
        Ok(operations.to_vec())
    }

    fn post(&self, operations: &[Arc<Named>], waits: bool) -> Result<()> {
        if operations.is_empty() {
            return Ok(());
        }
        self.shared.post(Arrival::Asked(operations.to_vec()), if waits { When::ByMe } else { When::Soon })
    }

    fn closed(&self) -> Result<()> {
        self.shared.closed().map_or(Ok(()), Err)
    }

    /// From now on this rank takes part with zeros, until all have joined: then the operation that is given is over.
    ///
    /// # Errors
    /// The coordinator has failed or was closed.
    pub fn join(&self) -> Result<Arc<Named>> {
        if let Some(planner) = &self.planner {
            planner.leave()?;
        }
        let operation = Arc::new(Named::of_join());
        operation.ask()?;
        self.shared.post(Arrival::Joins(operation.clone()), When::Soon)?;
        Ok(operation)
    }

    /// Waits for an operation; `false` at the time limit.
    ///
    /// # Errors
    /// Why it failed.
    pub fn wait(&self, operation: &Named, until: Option<Instant>) -> Result<bool> {
        let mut told = false;
        loop {
            if let Some(handle) = operation.begun()? {
                let over = self.data.wait(&handle, until)?;
                return if over { operation.complete().map(|()| true) } else { Ok(false) };
            }
            if operation.over() {
                return Ok(true);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
            if !std::mem::replace(&mut told, true) {
                self.shared.inbox.lock().events.push(Arrival::Event(Event::Awaited));
                self.shared.drive(operation.name());
                continue;
            }
            operation.wait_for_a_change(until);
        }
    }

    /// Ends the thread; what is in flight fails.
    pub fn close(&self) {
        let error = RunError::Failed(
            "the coordinator was closed by hvd.shutdown() or with its process set; create optimizers and process sets again \
             after hvd.init()".into(),
        );
        self.shared.close(&error);
        if let Some(planner) = &self.planner {
            planner.fail(&error);
        }
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.control.shared.listen_no_more(self.control.id());
        self.control.shared.listen_no_more(self.data.id());
        self.close();
    }
}
