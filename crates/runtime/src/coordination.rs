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
//! | `steps` | the policy `graph`: tensors that are planned, and not agreed on |
//! | `marks` | what travels with planned tensors |
//! | `output` | memory for results whose size is known late |
mod begin;
mod machine;
mod marks;
mod named;
mod output;
mod steps;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use paceline_coordinator::{Event, Proposal};
pub use paceline_coordinator::{Kind, Limits, Settings};

use crate::communicator::Communicator;
use crate::engine::{Engine, Listener, News, lock};
use crate::error::{Result, RunError};
use crate::tag::Call;
use crate::timeline::{self, Timeline};
use machine::{Counts, Machine, decode, encode};
pub use named::{Named, Wanted};
pub use output::Output;
use steps::Planner;

/// Votes are waited for in such pieces, between which the thread looks at what else there is.
const COUNTING: Duration = Duration::from_millis(50);

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
    /// Under the policy `graph`.
    planner: Option<Arc<Planner>>,
    counts: Arc<Counts>,
}

/// How a coordinator works.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its policy.
    pub kind: Kind,
    /// Of what is negotiated.
    pub settings: Settings,
    /// Of planned buckets.
    pub limits: Limits,
    /// Where its thread and the progress thread run.
    pub core: Option<usize>,
    /// The parameter server of tensors by name; others are placed in turn.
    pub placement: BTreeMap<String, u32>,
}

impl Engine {
    /// A coordinator of these ranks, in this order. Each of them calls this with the same name and plan, and waits for the
    /// others.
    ///
    /// # Errors
    /// As for [`Engine::group`]; a core that is not there.
    pub fn coordinator(&self, ranks: &[u32], name: &str, plan: Plan) -> Result<Coordinator> {
        let Plan { kind, settings, limits, core, placement } = plan;
        let data = Arc::new(self.group(ranks.to_vec(), &format!("{name}, tensors"))?);
        let control = Arc::new(self.group(ranks.to_vec(), &format!("{name}, agreement"))?);
        if let Some(core) = core {
            self.shared.pin_progress_thread(core)?;
        }
        let planner = (kind == Kind::Graph).then(|| Arc::new(Planner::new(limits, name)));
        let cycle_time = Duration::from_nanos(settings.cycle_time);
        let machine = Machine::new(control.clone(), data.clone(), (kind, settings), placement, planner.clone());
        let counts = machine.counts();
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            bell: Condvar::new(),
            machine: Mutex::new(machine),
            cycle_time,
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
        Ok(Coordinator { shared, data, control, thread: Mutex::new(Some(thread)), planner, counts })
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
        self.asks(operations)?;
        self.post(operations, waits)
    }

    /// The same for tensors of a step of optimizer `of`, whose order may be planned. `late`: they were not computed, but
    /// stand for what was missing at the end of the backward pass.
    ///
    /// # Errors
    /// As for `submit`.
    ///
    /// # Safety
    /// As for `submit`.
    #[allow(unsafe_code, reason = "the promise about the memory is passed on")]
    pub unsafe fn submit_step(&self, of: u32, operations: &[Arc<Named>], late: bool) -> Result<()> {
        self.asks(operations)?;
        match &self.planner {
            None => self.post(operations, false),
            Some(planner) => {
                self.closed()?;
                self.post(&planner.ask(of, operations, late)?, false)
            }
        }
    }

    /// No more tensors come in this step of optimizer `of`.
    ///
    /// # Errors
    /// The coordinator has failed or was closed.
    pub fn flush(&self, of: u32) -> Result<()> {
        self.closed()?;
        self.planner.as_ref().map_or(Ok(()), |planner| planner.flush(of))
    }

    /// A step of optimizer `of` is over, and its tensors have been waited for. If it has no plan, ranks may compare what
    /// they have seen, for which they wait for each other.
    ///
    /// # Errors
    /// The coordinator has failed or was closed; a rank that does not come.
    #[allow(unsafe_code, reason = "the memory belongs to the operation")]
    pub fn ended(&self, of: u32) -> Result<()> {
        let Some(planner) = &self.planner else { return Ok(()) };
        let Some(proposal) = planner.ended(of)? else { return Ok(()) };
        let text = encode(&proposal)?;
        let memory = Arc::new(Output::with(&text));
        let length = text.len() as u64;
        let wanted = Wanted {
            call: Call::AllGather,
            name: &format!("plan {of}"),
            inputs: &[(memory.address(), length)],
            dtype: "uint8",
            shape: &[],
            device: "cpu",
            op: None,
            own: &[length],
            root: None,
            prescale: 1.0,
            postscale: 1.0,
        };
        let operation = Arc::new(Named::new(&wanted, self.size(), Some(Box::new(memory)))?);
        // SAFETY: the operation owns the memory.
        unsafe { self.submit(std::slice::from_ref(&operation), true) }?;
        while !self.wait(&operation, Some(Instant::now() + Duration::from_secs(1)))? {
            self.closed()?;
        }
        let bytes = operation.output().map(|output| output.copy()).unwrap_or_default();
        let mut rest = &bytes[..];
        let mut proposals: Vec<Option<Proposal>> = Vec::new();
        for own in operation.own() {
            let (one, more) = rest.split_at(own.first().map_or(0, |&length| length as usize));
            rest = more;
            // Of a rank that has joined there is nothing.
            proposals.push(if one.is_empty() { None } else { Some(decode(one)?) });
        }
        planner.agree(of, &proposals, &self.data)
    }

    /// What ranks have told each other besides tensors, and what has begun; for people and tests.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let planner = self.planner.as_deref();
        BTreeMap::from([
            ("votes", self.counts.votes.load(Ordering::Relaxed)),
            ("reports", self.counts.reports.load(Ordering::Relaxed)),
            ("decisions", self.counts.decisions.load(Ordering::Relaxed)),
            ("negotiated", self.counts.negotiated.load(Ordering::Relaxed)),
            ("planned", planner.map_or(0, |planner| planner.planned.load(Ordering::Relaxed))),
            ("plans", planner.map_or(0, |planner| planner.plans.load(Ordering::Relaxed))),
        ])
    }

    fn asks(&self, operations: &[Arc<Named>]) -> Result<()> {
        let now = if self.data.shared.timeline.on() { timeline::now() } else { 0 };
        for operation in operations {
            operation.ask()?;
            operation.asked_at.store(now, Ordering::Relaxed);
        }
        Ok(())
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
                lock(&self.shared.inbox).events.push(Arrival::Event(Event::Awaited));
                self.shared.drive(operation.name());
                continue;
            }
            operation.wait_for_a_change(until);
        }
    }

    /// Ends the thread; what is in flight fails.
    pub fn close(&self) {
        let error = RunError::Failed("the coordinator was closed".into());
        self.shared.close(&error);
        if let Some(planner) = &self.planner {
            planner.fail(&error);
        }
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
            machine.take_all(arrivals, &|| self.closed());
        }
        machine.look_at_the_clock(&|| self.closed());
        let mut inbox = lock(&self.inbox);
        if let Some(error) = machine.failure() {
            inbox.closed.get_or_insert_with(|| error.clone());
        }
        let before = std::mem::replace(&mut inbox.due, machine.due());
        if machine.counting().is_some() {
            inbox.wanted = true;
            self.bell.notify_one();
        }
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
                    machine.take_all(rest, &|| None);
                    return;
                }
            }
            let counting = lock(&self.machine).counting();
            if let Some((control, handle)) = counting {
                // How it ended is looked at with the machine.
                let _ = control.wait_quietly(&handle, Some(Instant::now() + COUNTING));
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
