//! The inbox of new events, and the thread that handles them if no caller does.
use paceline_coordinator::Event;
use paceline_engine::{Listener, News};
use paceline_executor::timeline::{self, Timeline};
use paceline_os::sync::atomic::{AtomicBool, Ordering};
use paceline_os::sync::{Arc, Condvar, Mutex};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};

use super::lent::Lent;
use super::machine::Machine;
use super::named::Named;

/// Waits for a vote are cut into slices of this length; between them the thread handles other events.
const COUNTING: Duration = Duration::from_millis(50);

/// Events that have not been handled yet.
#[derive(Default)]
pub(super) struct Inbox {
    pub events: Vec<Arrival>,
    /// When to run the machine even if no event arrives.
    due: Option<Instant>,
    /// The thread must run the machine now.
    wanted: bool,
    closed: Option<RunError>,
}

/// When to handle a new event, unless a caller does so earlier.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Now,
    /// Within a cycle time.
    Soon,
    /// The thread that posts the event handles it.
    ByMe,
}

pub(super) enum Arrival {
    Event(Event),
    Asked(Vec<Arc<Named>>),
    Joins(Arc<Named>),
    Left(String),
}

pub(super) struct CoordinatorShared {
    pub inbox: Mutex<Inbox>,
    pub wakeup: Condvar,
    pub machine: Mutex<Machine>,
    /// This rank has closed it.
    pub closed_here: Arc<AtomicBool>,
    pub cycle_time: Duration,
    pub timeline: Arc<Timeline>,
    /// Its core, if other threads use it while there is nothing to do.
    pub lent: Option<Arc<Lent>>,
}

impl CoordinatorShared {
    /// Operations are pending: the core is the coordinator's until they are over.
    pub fn borrow_core(&self, operations: &[Arc<Named>]) {
        if self.lent.as_ref().is_some_and(|lent| lent.borrow(operations)) {
            // The thread learns when to look.
            let _inbox = self.inbox.lock();
            self.wakeup.notify_one();
        }
    }

    pub fn post(&self, arrival: Arrival, when: When) -> Result<()> {
        let mut inbox = self.inbox.lock();
        if let Some(error) = &inbox.closed {
            return Err(error.clone());
        }
        inbox.events.push(arrival);
        let late = |due: Option<Instant>| due.is_none_or(|due| due > Instant::now() + self.cycle_time);
        if when == When::Now || (when == When::Soon && late(inbox.due)) {
            inbox.wanted = true;
            self.wakeup.notify_one();
        }
        Ok(())
    }

    /// Something has failed.
    pub fn fail(&self, error: &RunError) {
        self.inbox.lock().closed.get_or_insert_with(|| error.clone());
        self.wakeup.notify_all();
    }

    /// This rank closes the coordinator.
    pub fn close(&self, error: &RunError) {
        self.closed_here.store(true, Ordering::SeqCst);
        self.fail(error);
    }

    pub fn closed(&self) -> Option<RunError> {
        self.inbox.lock().closed.clone()
    }

    /// Handles new events, unless another thread is doing so; that one then handles these too.
    pub fn drive(&self, waited: &str) {
        loop {
            match self.machine.try_lock() {
                Some(mut machine) => {
                    machine.waited = Some(waited.to_owned());
                    self.look(&mut machine);
                    machine.waited = None;
                }
                None => return,
            }
            if self.inbox.lock().events.is_empty() {
                return;
            }
        }
    }

    fn look(&self, machine: &mut Machine) {
        loop {
            let arrivals = std::mem::take(&mut self.inbox.lock().events);
            if arrivals.is_empty() {
                break;
            }
            machine.take_all(arrivals, &|| self.closed());
        }
        machine.look_at_the_clock(&|| self.closed());
        let mut inbox = self.inbox.lock();
        if let Some(error) = machine.failure() {
            inbox.closed.get_or_insert_with(|| error.clone());
        }
        let before = std::mem::replace(&mut inbox.due, machine.due());
        if machine.counting().is_some() {
            inbox.wanted = true;
            self.wakeup.notify_one();
        }
        if inbox.due.is_some_and(|due| before.is_none_or(|before| due < before)) {
            self.wakeup.notify_one();
        }
    }

    /// The coordinator's thread.
    pub fn run_thread(&self) {
        loop {
            {
                let mut inbox = self.inbox.lock();
                let since = if self.timeline.on() { timeline::now() } else { 0 };
                while inbox.closed.is_none() && !inbox.wanted {
                    if let Some(lent) = &self.lent {
                        lent.look();
                    }
                    let left = inbox.due.map(|due| due.saturating_duration_since(Instant::now()));
                    let until = self.lent.as_ref().and_then(|lent| lent.due());
                    let look = until.map(|until| until.saturating_duration_since(Instant::now()));
                    if let Some(look) = look.filter(|look| left.is_none_or(|left| *look < left)) {
                        let _ = self.wakeup.wait_for(&mut inbox, look);
                        continue;
                    }
                    match left {
                        Some(Duration::ZERO) => {
                            self.show_sleep(since, inbox.due);
                            break;
                        }
                        Some(left) => drop(self.wakeup.wait_for(&mut inbox, left)),
                        None => self.wakeup.wait(&mut inbox),
                    }
                }
                (inbox.wanted, inbox.due) = (false, None);
                if let Some(error) = inbox.closed.clone() {
                    drop(inbox);
                    let mut machine = self.machine.lock();
                    machine.fail(&error);
                    // Events posted just before.
                    let rest = std::mem::take(&mut self.inbox.lock().events);
                    machine.take_all(rest, &|| None);
                    return;
                }
            }
            let counting = self.machine.lock().counting();
            if let Some((control, handle)) = counting {
                // The machine checks the result.
                let _ = control.wait_quietly(&handle, Some(Instant::now() + COUNTING));
            }
            self.look(&mut self.machine.lock());
            let mut inbox = self.inbox.lock();
            inbox.wanted |= !inbox.events.is_empty();
        }
    }
}

impl CoordinatorShared {
    /// Records that the thread slept for the cycle time: until its deadline, and how much later it woke up.
    fn show_sleep(&self, since: u64, due: Option<Instant>) {
        let late = due.map_or(Duration::ZERO, |due| due.elapsed()).as_nanos() as u64;
        let now = timeline::now();
        if since > 0 && since + late < now {
            self.timeline.agreement_until("sleep", since, now - late);
            self.timeline.agreement_until("late wake-up", now - late, now);
        }
    }
}

impl Listener for CoordinatorShared {
    fn notify(&self, news: News) {
        match news {
            News::Invited(cycle) => drop(self.post(Arrival::Event(Event::Invited(cycle)), When::Now)),
            News::Left(who) => drop(self.post(Arrival::Left(who), When::Now)),
            News::Failed(error) => self.fail(&error),
        }
    }
}
