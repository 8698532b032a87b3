//! Operations on named tensors, which ranks ask for in any order: the driver of `paceline-coordinator`.
//!
//! A coordinator has two communicators: one for what ranks tell each other, one for the tensors. Whoever waits for an
//! operation drives the coordinator itself, so that a small one costs no change of threads; a thread of its own answers
//! when other ranks have something new, and sleeps otherwise. Another rank's cycle is announced by its monitor.
//!
//! | module | holds |
//! | --- | --- |
//! | `named` | an operation on a named tensor, and how one waits for it |
//! | `machine` | the policy, and what its actions mean between ranks |
//! | `begin` | from tensors that were agreed on to an operation of the runtime |
//! | `output` | memory for results whose size is known late |
mod begin;
mod machine;
mod named;
mod output;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use paceline_coordinator::Event;
pub use paceline_coordinator::Settings;

use crate::communicator::Communicator;
use crate::engine::{Engine, Listener, News, lock};
use crate::error::{Result, RunError};
use crate::timeline::{self, Timeline};
use machine::Machine;
pub use named::{Named, Wanted};
pub use output::Output;

/// What has come and was not looked at yet.
#[derive(Default)]
struct Inbox {
    events: Vec<Arrival>,
    /// When the machine is to be looked at although nothing comes.
    due: Option<Instant>,
    /// The thread is to look now.
    wanted: bool,
    closed: Option<RunError>,
}

/// When something that has come is to be looked at, if nobody does so by himself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Now,
    /// Not later than a cycle from now.
    Soon,
    /// Whoever posts it will look.
    ByMe,
}

enum Arrival {
    Event(Event),
    Asked(Vec<Arc<Named>>),
    Joins(Arc<Named>),
    Left(String),
}

struct Shared {
    inbox: Mutex<Inbox>,
    bell: Condvar,
    machine: Mutex<Machine>,
    cycle_time: Duration,
    timeline: Arc<Timeline>,
}

/// Agrees with the other ranks of a group on what is ready.
pub struct Coordinator {
    shared: Arc<Shared>,
    data: Arc<Communicator>,
    control: Arc<Communicator>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Engine {
    /// A coordinator of these ranks, in this order. Each of them calls this with the same name and settings, and waits
    /// for the others. `core`: where its thread and the progress thread run. `placement`: the parameter server of tensors by
    /// name; others are placed in turn.
    ///
    /// # Errors
    /// As for [`Engine::group`]; a core that is not there.
    pub fn coordinator(
        &self,
        ranks: &[u32],
        name: &str,
        settings: &Settings,
        core: Option<usize>,
        placement: BTreeMap<String, u32>,
    ) -> Result<Coordinator> {
        let data = Arc::new(self.group(ranks.to_vec(), &format!("{name}, tensors"))?);
        let control = Arc::new(self.group(ranks.to_vec(), &format!("{name}, agreement"))?);
        if let Some(core) = core {
            self.shared.pin_progress_thread(core)?;
        }
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            bell: Condvar::new(),
            machine: Mutex::new(Machine::new(control.clone(), data.clone(), settings.clone(), placement)),
            cycle_time: Duration::from_nanos(settings.cycle_time),
            timeline: self.shared.timeline.clone(),
        });
        self.shared.listen(control.id(), Arc::<Shared>::downgrade(&shared));
        self.shared.listen(data.id(), Arc::<Shared>::downgrade(&shared));
        let driver = shared.clone();
        let thread = std::thread::Builder::new()
            .name("paceline-coordinator".into())
            .spawn(move || {
                if let Some(core) = core {
                    let _ = crate::engine::pin(None, core);
                }
                driver.run_thread();
            })
            .map_err(|e| RunError::Failed(format!("a thread cannot be started: {e}")))?;
        Ok(Coordinator { shared, data, control, thread: Mutex::new(Some(thread)) })
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
        if operations.is_empty() {
            return Ok(());
        }
        let now = if self.data.shared.timeline.on() { timeline::now() } else { 0 };
        for operation in operations {
            operation.ask()?;
            operation.asked_at.store(now, Ordering::Relaxed);
        }
        self.shared.post(Arrival::Asked(operations.to_vec()), if waits { When::ByMe } else { When::Soon })
    }

    /// From now on this rank takes part with zeros, until all have joined: then the operation that is given is over.
    ///
    /// # Errors
    /// The coordinator has failed or was closed.
    pub fn join(&self) -> Result<Arc<Named>> {
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
                return self.data.wait(&handle, until);
            }
            if operation.over() {
                return Ok(true);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
            if !std::mem::replace(&mut told, true) {
                lock(&self.shared.inbox).events.push(Arrival::Event(Event::Awaited));
                self.shared.drive(operation.name());
                continue;
            }
            operation.wait_for_a_change(until);
        }
    }

    /// Ends the thread; what is in flight fails.
    pub fn close(&self) {
        self.shared.close(&RunError::Failed("the coordinator was closed".into()));
        if let Some(thread) = lock(&self.thread).take() {
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

impl Shared {
    fn post(&self, arrival: Arrival, when: When) -> Result<()> {
        let mut inbox = lock(&self.inbox);
        if let Some(error) = &inbox.closed {
            return Err(error.clone());
        }
        inbox.events.push(arrival);
        let late = |due: Option<Instant>| due.is_none_or(|due| due > Instant::now() + self.cycle_time);
        if when == When::Now || (when == When::Soon && late(inbox.due)) {
            inbox.wanted = true;
            self.bell.notify_one();
        }
        Ok(())
    }

    fn close(&self, error: &RunError) {
        lock(&self.inbox).closed.get_or_insert_with(|| error.clone());
        self.bell.notify_all();
    }

    fn closed(&self) -> Option<RunError> {
        lock(&self.inbox).closed.clone()
    }

    /// Looks at what has come, unless another thread does so; it will then look at this, too.
    fn drive(&self, waited: &str) {
        loop {
            match self.machine.try_lock() {
                Ok(mut machine) => {
                    machine.waited = Some(waited.to_owned());
                    self.look(&mut machine);
                    machine.waited = None;
                }
                Err(TryLockError::Poisoned(poisoned)) => self.look(&mut poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => return,
            }
            if lock(&self.inbox).events.is_empty() {
                return;
            }
        }
    }

    fn look(&self, machine: &mut Machine) {
        loop {
            let arrivals = std::mem::take(&mut lock(&self.inbox).events);
            if arrivals.is_empty() {
                break;
            }
            for arrival in arrivals {
                machine.take(arrival, &|| self.closed());
            }
        }
        machine.look_at_the_clock(&|| self.closed());
        let mut inbox = lock(&self.inbox);
        if let Some(error) = machine.failure() {
            inbox.closed.get_or_insert_with(|| error.clone());
        }
        let before = std::mem::replace(&mut inbox.due, machine.due());
        if inbox.due.is_some_and(|due| before.is_none_or(|before| due < before)) {
            self.bell.notify_one();
        }
    }

    /// The thread.
    fn run_thread(&self) {
        loop {
            {
                let mut inbox = lock(&self.inbox);
                let since = if self.timeline.on() { timeline::now() } else { 0 };
                while inbox.closed.is_none() && !inbox.wanted {
                    let left = inbox.due.map(|due| due.saturating_duration_since(Instant::now()));
                    inbox = match left {
                        Some(Duration::ZERO) => {
                            self.show_sleep(since, inbox.due);
                            break;
                        }
                        Some(left) => self.bell.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0,
                        None => self.bell.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                    };
                }
                (inbox.wanted, inbox.due) = (false, None);
                if let Some(error) = inbox.closed.clone() {
                    drop(inbox);
                    let mut machine = lock(&self.machine);
                    machine.fail(&error);
                    // What was posted just before.
                    let rest = std::mem::take(&mut lock(&self.inbox).events);
                    rest.into_iter().for_each(|arrival| machine.take(arrival, &|| None));
                    return;
                }
            }
            self.look(&mut lock(&self.machine));
            let mut inbox = lock(&self.inbox);
            inbox.wanted |= !inbox.events.is_empty();
        }
    }
}

impl Shared {
    /// The thread slept for the cycle time: until when it wanted to, and how much longer the system let it.
    fn show_sleep(&self, since: u64, due: Option<Instant>) {
        let late = due.map_or(Duration::ZERO, |due| due.elapsed()).as_nanos() as u64;
        let now = timeline::now();
        if since > 0 && since + late < now {
            self.timeline.agreement_until("sleep", since, now - late);
            self.timeline.agreement_until("late wake-up", now - late, now);
        }
    }
}

impl Listener for Shared {
    fn hear(&self, news: News) {
        match news {
            News::Invited(cycle) => drop(self.post(Arrival::Event(Event::Invited(cycle)), When::Now)),
            News::Left(who) => drop(self.post(Arrival::Left(who), When::Now)),
            News::Failed(error) => self.close(&error),
        }
    }
}
