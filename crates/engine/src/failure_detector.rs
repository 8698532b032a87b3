//! The thread that owns the control connections.
//!
//! A rank that dies closes its connections, so every other rank learns of it at once. A rank that leaves sends a
//! goodbye with the number of operations it has called, so that others know what will never come. A stopped rank, or
//! one whose host is gone, does not answer when asked; one that is busy elsewhere answers that it has not called the
//! operation yet. No rank is asked while operations move.
use paceline_os::fd::OwnedFd;
use paceline_os::sync::Arc;
use paceline_os::sync::atomic::Ordering;
use paceline_os::time::{Duration, Instant};
use std::collections::HashMap;

use paceline_os::event::{PollFd, PollFlags, Timespec, poll};
use paceline_os::sync::Mutex;

use super::control::{Control, Departure, Message};
use super::driver::Driver;
use super::ledger::{Answer, InFlight, Ledger, Operations};
use super::listeners::News;
use super::orders::{Order, Orders};
use super::peers::{Peer, describe};
use super::settings::Settings;
use paceline_transport::error::RunError;

/// How often the ledger is checked while something is in flight, and how often a rank is asked.
const TICK: Duration = Duration::from_millis(250);
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often it is checked while nothing is in flight.
const IDLE: Duration = Duration::from_secs(1);
/// A stall is reported after this or a third of the time limit, and again each time it has lasted twice as long.
const REPORT_AFTER: Duration = Duration::from_secs(10);
/// Time for what a rank sent before it left to arrive.
const GRACE: Duration = Duration::from_secs(2);
/// Older answers count as missing.
const STALE: Duration = Duration::from_secs(3);

/// What other threads use of it.
pub(super) struct Monitor {
    outbox: Mutex<Vec<MonitorCommand>>,
    wake_pipe: (OwnedFd, OwnedFd),
}

enum MonitorCommand {
    Send(u32, Message),
    Lost(u32, String),
    Leave,
}

impl Monitor {
    pub fn new() -> std::io::Result<Monitor> {
        use paceline_os::pipe::{PipeFlags, pipe_with};
        let wake_pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Monitor { outbox: Mutex::new(Vec::new()), wake_pipe })
    }

    fn post(&self, commands: impl IntoIterator<Item = MonitorCommand>) {
        self.outbox.lock().extend(commands);
        let _ = paceline_os::io::write(&self.wake_pipe.1, &[1]);
    }

    /// Tells the other ranks of a group that it has failed here.
    pub fn tell_failed(&self, group: u32, ranks: &[u32], error: &RunError) {
        let why = error.to_string();
        self.post(ranks.iter().map(|&rank| MonitorCommand::Send(rank, Message::Abort { group, why: why.clone() })));
    }

    /// Tells servers which all-reduce the workers have begun.
    pub fn order(&self, servers: &[u32], order: &Order) {
        self.post(servers.iter().map(|&rank| MonitorCommand::Send(rank, Message::Serve(order.clone()))));
    }

    /// Tells the other ranks of a group that its coordinator has begun a cycle.
    pub fn invite(&self, group: u32, ranks: impl Iterator<Item = u32>, cycle: u64) {
        self.post(ranks.map(|rank| MonitorCommand::Send(rank, Message::Invite { group, cycle })));
    }

    pub fn connection_lost(&self, rank: u32, reason: &str) {
        self.post([MonitorCommand::Lost(rank, reason.into())]);
    }

    pub fn leave(&self) {
        self.post([MonitorCommand::Leave]);
    }
}

/// What is known about a rank.
enum PeerState {
    Here,
    /// It said goodbye; how many operations of each communicator it had called.
    Left(HashMap<u32, u32>),
    Dead(String),
}

/// The thread's state: what it knows about the other ranks, and what it has told them.
pub(super) struct FailureDetector {
    rank: u32,
    peers: Arc<[Peer]>,
    /// Ranks that train; servers and the switch follow them.
    workers: u32,
    /// The job's time limit: silence after which an operation fails.
    timeout: Duration,
    ledger: Arc<Ledger>,
    driver: Arc<Driver>,
    monitor: Arc<Monitor>,
    orders: Arc<Orders>,
    controls: Vec<Option<Control>>,
    states: Vec<PeerState>,
    last_heard: Vec<Option<Instant>>,
    /// Data connections that broke while the control connection did not.
    lost: Vec<(u32, String, Instant)>,
    /// Which rank went first, and how: others go because of it, and their goodbyes may arrive before its own.
    first: Option<Departure>,
}

impl FailureDetector {
    pub fn new(
        (rank, peers, settings): (u32, Arc<[Peer]>, &Settings),
        controls: Vec<Option<Control>>,
        (ledger, driver, monitor, orders): (Arc<Ledger>, Arc<Driver>, Arc<Monitor>, Arc<Orders>),
    ) -> FailureDetector {
        let states = controls.iter().map(|_| PeerState::Here).collect();
        let last_heard = controls.iter().map(|_| None).collect();
        FailureDetector {
            rank,
            workers: peers.len() as u32 - settings.helpers(),
            peers,
            timeout: settings.timeout(),
            ledger,
            driver,
            monitor,
            orders,
            controls,
            states,
            last_heard,
            lost: Vec::new(),
            first: None,
        }
    }

    /// The thread.
    pub fn run(mut self) {
        let mut tick = IDLE;
        loop {
            self.wait(tick);
            let commands = std::mem::take(&mut *self.monitor.outbox.lock());
            for command in commands {
                match command {
                    MonitorCommand::Send(rank, message) => self.send(rank, &message),
                    MonitorCommand::Lost(rank, why) => self.lost.push((rank, why, Instant::now())),
                    MonitorCommand::Leave => return self.leave(),
                }
            }
            for rank in 0..self.controls.len() as u32 {
                self.receive(rank);
            }
            tick = if self.ledger.operations().in_flight() || !self.lost.is_empty() { TICK } else { IDLE };
            self.inspect();
        }
    }

    fn wait(&self, tick: Duration) {
        let mut fds = vec![PollFd::new(&self.monitor.wake_pipe.0, PollFlags::IN)];
        for control in self.controls.iter().flatten() {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, control.full());
            fds.push(PollFd::new(&control.socket, flags));
        }
        let time = Timespec { tv_sec: tick.as_secs().cast_signed(), tv_nsec: i64::from(tick.subsec_nanos()) };
        let _ = poll(&mut fds, Some(&time));
        let mut drained = [0u8; 64];
        while paceline_os::io::read(&self.monitor.wake_pipe.0, &mut drained).is_ok_and(|n| n == drained.len()) {}
    }

    fn send(&mut self, rank: u32, message: &Message) {
        if let Some(control) = &mut self.controls[rank as usize] {
            // A broken connection is noticed when it is read.
            let _ = control.send(message);
        }
    }

    fn leave(mut self) {
        let called = self.ledger.operations().groups.iter().map(|(&id, group)| (id, group.next)).collect();
        let bye = Message::Bye { called, after: self.first.clone() };
        for rank in 0..self.controls.len() as u32 {
            self.send(rank, &bye);
        }
        let until = Instant::now() + Duration::from_secs(1);
        while self.controls.iter().flatten().any(Control::full) && Instant::now() < until {
            for control in self.controls.iter_mut().flatten() {
                let _ = control.flush();
            }
            paceline_os::thread::sleep(Duration::from_millis(5));
        }
        for control in self.controls.iter().flatten() {
            let _ = control.socket.shutdown(paceline_os::net::Shutdown::Write);
        }
    }

    fn receive(&mut self, rank: u32) {
        let Some(control) = &mut self.controls[rank as usize] else { return };
        let _ = control.flush();
        let (messages, end) = control.receive();
        if !messages.is_empty() {
            self.last_heard[rank as usize] = Some(Instant::now());
        }
        for message in messages {
            self.handle(rank, message);
        }
        if let Some(how) = end {
            self.controls[rank as usize] = None;
            if matches!(self.states[rank as usize], PeerState::Here) {
                self.first.get_or_insert_with(|| Departure { rank, how: format!("died: {how}") });
                self.states[rank as usize] = PeerState::Dead(how);
                self.gone(rank);
                self.bury(rank);
            }
        }
    }

    fn handle(&mut self, rank: u32, message: Message) {
        match message {
            Message::Bye { called, after } => {
                paceline_os::reached!("detector: goodbye");
                // Checks what a peer sends before it is used.
                let after = after.filter(|first| (first.rank as usize) < self.states.len());
                self.first.get_or_insert_with(|| after.unwrap_or_else(|| Departure::left(rank)));
                self.states[rank as usize] = PeerState::Left(called.into_iter().collect());
                self.gone(rank);
                let with: Vec<(u32, Vec<u32>)> = {
                    let operations = self.ledger.operations();
                    let with = operations.groups.iter().filter(|(_, group)| group.ranks.contains(&rank));
                    with.map(|(&id, group)| (id, group.ranks.clone())).collect()
                };
                for (group, ranks) in with {
                    let news = News::Left(self.departure(rank, &ranks, &self.peers));
                    self.ledger.listeners.lock().tell(group, &news);
                }
            }
            Message::Abort { group, why } => self.fail(group, &RunError::Failed(why)),
            Message::Ask { group, seq } => {
                paceline_os::reached!("detector: asked");
                let (answer, failed) = self.ledger.operations().answer(group, seq, rank);
                // The asking rank has not been told, perhaps because it made the group after the group had failed here.
                let reply = match (answer, failed) {
                    (Answer::Later(..) | Answer::InFlight(..), Some(error)) => {
                        Message::Abort { group, why: error.to_string() }
                    }
                    (answer, _) => Message::Tell { group, seq, answer },
                };
                self.send(rank, &reply);
            }
            Message::Tell { group, seq, answer } => {
                if let Some(group) = self.ledger.operations().groups.get_mut(&group)
                    && let Some(waiting) = group.in_flight.iter_mut().find(|w| w.seq == Some(seq))
                {
                    waiting.answers.insert(rank, answer);
                }
            }
            Message::Serve(order) => self.orders.push(order),
            Message::Invite { group, cycle } => self.ledger.listeners.lock().invited(group, cycle),
            Message::Ping => self.send(rank, &Message::Pong),
            Message::Pong => {}
        }
    }

    /// A rank has died: its communicators fail.
    fn bury(&self, rank: u32) {
        paceline_os::reached!("detector: death");
        let PeerState::Dead(how) = &self.states[rank as usize] else { return };
        let failures: Vec<_> = {
            let operations = self.ledger.operations();
            let with = operations.groups.iter().filter(|(_, group)| group.ranks.contains(&rank));
            with.map(|(&id, group)| {
                let waited = group.oldest().map_or(String::new(), |w| format!("; {} is waiting for it", w.describe()));
                (id, RunError::Failed(format!("{} died: {how}{waited}", self.peers[rank as usize].describe())))
            })
            .collect()
        };
        for (id, error) in failures {
            self.fail(id, &error);
        }
    }

    /// A group has failed: the driving thread ends its operations.
    fn fail(&self, group: u32, error: &RunError) {
        if self.ledger.fail(group, error) {
            self.driver.announce();
            // Perhaps no thread drives now, and a caller sleeps until the operation ends.
            self.driver.wake_progress_thread();
        }
    }

    /// A rank has left or died.
    fn gone(&self, rank: u32) {
        if rank < self.workers {
            self.orders.worker_gone();
        }
    }

    /// Finds operations that do not move, asks the ranks they wait for, reports, and gives up at the time limit.
    fn inspect(&mut self) {
        let now = Instant::now();
        let (mut asks, mut failures, mut reports) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut operations = self.ledger.operations();
            let Operations { groups, .. } = &mut *operations;
            for (&id, group) in groups.iter_mut().filter(|(_, group)| group.failed.is_none()) {
                let ranks = group.ranks.clone();
                // Later operations wait for the oldest; sends and receives are independent of each other.
                let mut first = true;
                for waiting in &mut group.in_flight {
                    if waiting.seq.is_some() && !std::mem::take(&mut first) {
                        continue;
                    }
                    let others =
                        ranks.iter().copied().filter(|&r| r != self.rank && waiting.peer.is_none_or(|p| p == r));
                    let others: Vec<u32> = others.collect();
                    match self.look_at(waiting, id, &others, now) {
                        Finding::Fine => {}
                        Finding::Ask => asks.push((id, waiting.seq, others)),
                        Finding::Report(text) => reports.push(text),
                        Finding::Fail(error) => {
                            failures.push((id, error));
                            break;
                        }
                    }
                }
            }
        }
        for (group, seq, others) in asks {
            let message = seq.map_or(Message::Ping, |seq| Message::Ask { group, seq });
            for rank in others {
                self.send(rank, &message);
            }
        }
        for text in reports {
            paceline_os::reached!("detector: stall reported");
            paceline_os::report!("paceline: {text}");
        }
        for (id, error) in failures {
            let ranks = self.ledger.operations().groups.get(&id).map(|group| group.ranks.clone()).unwrap_or_default();
            self.monitor.tell_failed(id, &ranks, &error);
            self.fail(id, &error);
        }
    }

    fn look_at(&self, waiting: &mut InFlight, id: u32, others: &[u32], now: Instant) -> Finding {
        let moved = waiting.handle.moved.load(Ordering::Relaxed);
        if moved != waiting.moved.1 {
            waiting.moved = (now, moved);
            waiting.asked = None;
        }
        let stalled = now - waiting.moved.0;
        let peers = &self.peers;
        let what = waiting.describe();
        // A rank that leaves or dies loses its data connections, too; that is reported elsewhere.
        let here = |rank: u32| matches!(self.states[rank as usize], PeerState::Here);
        let broken = |(r, _, at): &&(u32, String, Instant)| others.contains(r) && here(*r) && now - *at > GRACE;
        if let Some((rank, why, _)) = self.lost.iter().find(broken) {
            let text = format!("the data connection to {} broke: {why}; {what}", peers[*rank as usize].describe());
            return Finding::Fail(RunError::Failed(text));
        }
        let gone = |&&rank: &&u32| matches!(self.states[rank as usize], PeerState::Left(_));
        // A receive from any rank can still be satisfied by one that is left.
        let hopeless =
            waiting.seq.is_some() || waiting.peer.is_some() || others.iter().filter(gone).count() == others.len();
        for &rank in others {
            // It died before this communicator was made; otherwise `bury` has failed it.
            if let PeerState::Dead(how) = &self.states[rank as usize] {
                let text = format!("{} died: {how}; {what} is waiting for it", peers[rank as usize].describe());
                return Finding::Fail(RunError::Failed(text));
            }
        }
        for &rank in others.iter().filter(|_| hopeless) {
            let PeerState::Left(called) = &self.states[rank as usize] else { continue };
            let never = waiting.seq.is_some_and(|seq| called.get(&id).copied().unwrap_or(0) <= seq);
            if never || stalled > GRACE {
                let text = format!("{}; {what} is waiting for it", self.departure(rank, others, peers));
                return Finding::Fail(RunError::Failed(text));
            }
        }
        if stalled < ASK_EVERY.min(waiting.timeout / 4) {
            return Finding::Fine;
        }
        // A rank that has not been asked cannot count as silent.
        if waiting.asked.is_none() {
            waiting.asked = Some(now);
            return Finding::Ask;
        }
        let mine = waiting.signature.describe();
        for (&rank, answer) in &waiting.answers {
            if let Answer::InFlight(theirs, plan) | Answer::Past(theirs, plan) = answer
                && !theirs.is_empty()
                && (*theirs != mine || *plan != waiting.signature.plan)
            {
                let [them, me] = [rank, self.rank].map(|rank| peers[rank as usize].name());
                let (them, me) = ((them.as_str(), theirs.as_str()), (me.as_str(), mine.as_str()));
                return Finding::Fail(RunError::mismatch(waiting.seq.unwrap_or(0), &waiting.label, them, me));
            }
        }
        let report_after = waiting.reported.map_or(REPORT_AFTER.min(waiting.timeout / 3), |last| 2 * last);
        let limit = self.limit(waiting, others, stalled, now);
        if stalled < limit && stalled < report_after {
            let due = waiting.asked.is_some_and(|at| now - at >= ASK_EVERY);
            if due {
                waiting.asked = Some(now);
                return Finding::Ask;
            }
            return Finding::Fine;
        }
        let who = self.blame(waiting, others, peers, now);
        let text = format!("rank {}: {what} has waited {:.0} s for {who}", self.rank, stalled.as_secs_f64());
        if stalled < limit {
            waiting.reported = Some(stalled);
            return Finding::Report(text);
        }
        Finding::Fail(RunError::Failed(format!(
            "{text}. The limit is {:.0} s without progress; change it with PACELINE_TIMEOUT or the timeout of the \
             process group",
            limit.as_secs_f64()
        )))
    }

    /// How long an operation may stall. Some wait longer, for ranks that are busy elsewhere (a planned gradient), but
    /// not for a rank that does not answer: that one is stopped.
    fn limit(&self, waiting: &InFlight, others: &[u32], stalled: Duration, now: Instant) -> Duration {
        let usual = self.timeout;
        let mute = |rank: &&u32| self.last_heard[**rank as usize].is_none_or(|at| now - at >= usual);
        let stopped = waiting.timeout > usual && stalled >= usual && others.iter().any(|rank| mute(&rank));
        if stopped { usual } else { waiting.timeout }
    }

    /// Why some ranks cannot continue when one has left: the rank that went first.
    fn departure(&self, rank: u32, ranks: &[u32], peers: &[Peer]) -> String {
        let first = self.first.clone().filter(|first| ranks.contains(&first.rank));
        let Departure { rank, how } = first.unwrap_or_else(|| Departure::left(rank));
        format!("{} {how}", peers[rank as usize].describe())
    }

    /// Which ranks an operation waits for, and how far they are.
    fn blame(&self, waiting: &InFlight, others: &[u32], peers: &[Peer], now: Instant) -> String {
        let (mut silent, mut absent, mut here) = (Vec::new(), Vec::new(), Vec::new());
        for &rank in others {
            let fresh = self.last_heard[rank as usize].is_some_and(|at| now - at < STALE);
            match (fresh, waiting.answers.get(&rank)) {
                (false, _) => silent.push(rank),
                (true, Some(Answer::Later(..)) | None) => absent.push(rank),
                (true, Some(_)) => here.push(rank),
            }
        }
        let mut parts = Vec::new();
        if !silent.is_empty() {
            parts.push(format!("{}, silent: stopped, or its host cannot be reached", describe(peers, &silent)));
        }
        if !absent.is_empty() {
            let at = match (&absent[..], absent.first().and_then(|rank| waiting.answers.get(rank))) {
                ([_], Some(Answer::Later(called, Some(waits)))) => {
                    format!(" (it has called {called} so far, and is waiting in {waits})")
                }
                ([_], Some(Answer::Later(called, None))) => format!(" (it has called {called} so far)"),
                _ => String::new(),
            };
            let verb = if waiting.seq.is_some() { "called it" } else { "sent or received it" };
            let have = if absent.len() == 1 { "has" } else { "have" };
            parts.push(format!("{}, which {have} not {verb}{at}", describe(peers, &absent)));
        }
        if parts.is_empty() {
            let are = if here.len() == 1 { "is" } else { "are" };
            parts.push(format!("{}, which {are} also waiting in it", describe(peers, &here)));
        }
        parts.join("; and for ")
    }
}

enum Finding {
    Fine,
    Ask,
    Report(String),
    Fail(RunError),
}
