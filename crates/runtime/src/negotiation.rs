//! Operations on named tensors, which ranks may submit in any order: the driver of `paceline-coordinator`.
//!
//! A coordinator has two communicators, one for negotiation messages and one for tensors. The thread that waits for an
//! operation drives the coordinator itself, so that a small operation costs no thread switch. A thread of the
//! coordinator's own answers when other ranks have something new, and sleeps otherwise. Another rank's cycle is
//! announced by the failure detector's connection.
//!
//! | module | holds |
//! | --- | --- |
//! | `named` | an operation on a named tensor, and how to wait for it |
//! | `thread` | the inbox of new events, and the thread that handles them if no caller does |
//! | `machine` | the policy, and how its actions are carried out |
//! | `exchange` | how its actions are carried out between ranks |
//! | `begin` | turns agreed tensors into an operation of the runtime |
//! | `lent` | the coordinator's core, which other threads use while it has nothing to do |
//! | `begun` | an operation of the runtime, on memory of the host or of a device |
//! | `planned`, `steps` | the policy `graph`: tensors that follow a plan and need no negotiation |
//! | `status_words` | words that travel with planned tensors and report deviations from the plan |
//! | `output` | memory for results whose size is not known in advance |
mod begin;
mod begun;
mod exchange;
mod lent;
mod machine;
mod named;
mod output;
mod planned;
mod status_words;
mod steps;
mod thread;

use std::collections::{BTreeMap, HashMap, HashSet};

use lent::Lent;
use machine::{Counts, Machine};
pub use named::{Named, Wanted};
pub use output::Output;
use paceline_coordinator::Event;
pub use paceline_coordinator::{Limits, Planned, PolicyKind, Prescribed, Settings};
use paceline_executor::timeline;
use paceline_os::sync::atomic::Ordering;
use paceline_os::sync::{Arc, Condvar, Mutex, Weak};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};
use steps::Planner;
use thread::{Arrival, CoordinatorShared, When};

use crate::communicator::Communicator;
use crate::session::Session;

/// Stands for no time limit.
const FOREVER: Duration = Duration::from_secs(30 * 86_400);
/// Above this many names, those that are not in use are forgotten.
const MANY_NAMES: usize = 1 << 16;

/// Agrees with the other ranks of a group on which tensors are ready.
pub struct Coordinator {
    shared: Arc<CoordinatorShared>,
    data: Arc<Communicator>,
    control: Arc<Communicator>,
    thread: Mutex<Option<paceline_os::thread::JoinHandle<()>>>,
    /// `Some` under the policy `graph`.
    planner: Option<Arc<Planner>>,
    counts: Arc<Counts>,
    placement: Arc<Mutex<BTreeMap<String, u32>>>,
    /// The last operation submitted under each name, while it may be in flight.
    flying: Mutex<HashMap<String, Weak<Named>>>,
}

/// How a coordinator works.
#[derive(Clone, Debug)]
pub struct CoordinatorOptions {
    /// Its policy.
    pub kind: PolicyKind,
    /// Limits of negotiated buckets.
    pub settings: Settings,
    /// Limits of planned buckets.
    pub limits: Limits,
    /// The plan of the policy `graph`, if it was made before the run.
    pub prescribed: Option<Prescribed>,
    /// Core of its thread and of the progress thread.
    pub core: Option<usize>,
    /// Other threads use the core while there is nothing to do: sets of cores that have it, and the same without it.
    pub lent: Vec<(Vec<usize>, Vec<usize>)>,
    /// The parameter server of tensors, by name; others are assigned in turn.
    pub placement: BTreeMap<String, u32>,
}

impl Session {
    /// Creates a coordinator for these ranks, in this order. Collective: each of them calls this with the same name and
    /// options, and waits for the others.
    ///
    /// # Errors
    /// As for [`Session::group`]; a core that does not exist.
    pub fn coordinator(&self, ranks: &[u32], name: &str, options: CoordinatorOptions) -> Result<Coordinator> {
        let CoordinatorOptions { kind, settings, limits, prescribed, core, lent, placement } = options;
        let data = Arc::new(self.group(ranks.to_vec(), &format!("{name}, tensors"))?);
        let control = Arc::new(self.group(ranks.to_vec(), &format!("{name}, agreement"))?);
        control.groups().for_each(|group| self.engine.shared.make_internal(group));
        control.begin_naming(true);
        data.begin_naming(true);
        if !paceline_os::mutant("a comparison of plans is a reason to leave") {
            data.groups().for_each(|group| self.engine.shared.make_internal(group));
        }
        if let Some(core) = core {
            self.engine.shared.pin_progress_thread(core)?;
        }
        let patience = settings.give_up_after.map_or(FOREVER, Duration::from_nanos);
        let planner = (kind == PolicyKind::Graph).then(|| Arc::new(Planner::new(limits, prescribed, name, patience)));
        let cycle_time = Duration::from_nanos(settings.cycle_time);
        let placement = Arc::new(Mutex::new(placement));
        let machine = Machine::new(control.clone(), data.clone(), (kind, settings), placement.clone(), planner.clone());
        let (counts, closed_here) = (machine.counts(), machine.closed_here());
        let shared = Arc::new(CoordinatorShared {
            inbox: Mutex::default(),
            wakeup: Condvar::new(),
            machine: Mutex::new(machine),
            closed_here,
            cycle_time,
            timeline: self.engine.shared.timeline.clone(),
            lent: (!lent.is_empty()).then(|| Lent::of_this_process(&lent)),
        });
        self.engine.shared.listen(control.id(), Arc::<CoordinatorShared>::downgrade(&shared));
        self.engine.shared.listen(data.id(), Arc::<CoordinatorShared>::downgrade(&shared));
        let driver = shared.clone();
        let thread = paceline_os::thread::Builder::new()
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
            placement,
            flying: Mutex::default(),
        })
    }
}

impl Coordinator {
    /// This process's rank in the group.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.data.rank()
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.data.size()
    }

    /// Global ranks of the members, in order.
    #[must_use]
    pub fn ranks(&self) -> &[u32] {
        self.data.ranks()
    }

    /// Assigns tensors to parameter servers, by name. Every rank does the same before it submits any of them.
    pub fn place(&self, servers: BTreeMap<String, u32>) {
        self.placement.lock().extend(servers);
    }

    /// Submits operations, which begin together or not at all. `waits`: the caller will wait for them immediately.
    ///
    /// # Errors
    /// The coordinator has failed or was closed, an operation was submitted before, or one of its name is in flight.
    ///
    /// # Safety
    /// The memory of the operations stays valid, and nothing else accesses it, until they have completed (or `keep` has
    /// been returned).
    #[allow(unsafe_code, reason = "the promise about the memory is passed on")]
    pub unsafe fn submit(&self, operations: &[Arc<Named>], waits: bool) -> Result<()> {
        self.asks(operations)?;
        self.shared.borrow_core(operations);
        self.post(operations, waits)
    }

    /// Records that operations have been submitted. None may have the name of one that is in flight, or of another.
    fn asks(&self, operations: &[Arc<Named>]) -> Result<()> {
        self.of_this_process()?;
        let now = if self.data.shared.timeline.on() { timeline::now() } else { 0 };
        for operation in operations {
            operation.ask()?;
            operation.asked_at.store(now, Ordering::Relaxed);
        }
        let mut flying = self.flying.lock();
        let mut names = HashSet::new();
        let twice = operations.iter().find(|operation| {
            let other = flying.get(operation.name()).and_then(Weak::upgrade);
            other.is_some_and(|other| !other.ready()) || !names.insert(operation.name())
        });
        if let Some(twice) = twice {
            // Horovod's words to begin with.
            let error = RunError::Usage(format!(
                "Duplicate tensor name '{}': it is in flight on this rank already",
                twice.name()
            ))
            .with_remedy("a name of its own for each tensor, or wait for it");
            operations.iter().for_each(|operation| operation.fail(error.clone()));
            return Err(error);
        }
        if flying.len() > MANY_NAMES {
            flying.retain(|_, operation| operation.strong_count() > 0);
        }
        for operation in operations {
            flying.insert(operation.name().to_owned(), Arc::downgrade(operation));
        }
        Ok(())
    }

    fn post(&self, operations: &[Arc<Named>], waits: bool) -> Result<()> {
        if operations.is_empty() {
            return Ok(());
        }
        self.hand_over(Arrival::Asked(operations.to_vec()), if waits { When::ByMe } else { When::Soon })
    }

    fn hand_over(&self, arrival: Arrival, when: When) -> Result<()> {
        self.shared.post(arrival, when).inspect_err(|error| self.refused(error))
    }

    fn closed(&self) -> Result<()> {
        self.shared.closed().map_or(Ok(()), Err).inspect_err(|error| self.refused(error))
    }

    /// Notes what ended the coordinator, unless it was closed here: if this rank leaves, that is the reason.
    fn refused(&self, error: &RunError) {
        if self.thread.lock().is_some() && !paceline_os::mutant("who submits too late has no reason") {
            self.control.shared.note_cause_of(self.control.groups().chain(self.data.groups()), error);
        }
    }

    /// From now on this rank contributes zeros, until all ranks have joined; then the given operation completes.
    ///
    /// # Errors
    /// The coordinator has failed or was closed.
    pub fn join(&self) -> Result<Arc<Named>> {
        self.of_this_process()?;
        if let Some(planner) = &self.planner {
            planner.leave()?;
        }
        let operation = Arc::new(Named::of_join());
        operation.ask()?;
        self.hand_over(Arrival::Joins(operation.clone()), When::Soon)?;
        Ok(operation)
    }

    /// Waits for an operation; `false` at the time limit.
    ///
    /// # Errors
    /// Why it failed.
    pub fn wait(&self, operation: &Named, until: Option<Instant>) -> Result<bool> {
        // In a forked child, not even its lock may be waited for.
        self.of_this_process()?;
        let mut told = false;
        loop {
            if let Some(begun) = operation.begun()? {
                let over = begun.wait(&self.data, until)?;
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

    /// Fails in a forked child.
    ///
    /// # Errors
    /// The process was forked.
    pub fn of_this_process(&self) -> Result<()> {
        self.control.shared.of_this_process()
    }

    /// Stops the thread; operations in flight fail. Does nothing in a forked child.
    pub fn close(&self) {
        if self.of_this_process().is_err() {
            // There is no thread to join.
            return;
        }
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
        if self.of_this_process().is_err() {
            return;
        }
        self.control.shared.listen_no_more(self.control.id());
        self.control.shared.listen_no_more(self.data.id());
        self.close();
    }
}
