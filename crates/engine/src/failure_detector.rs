//! The thread that owns the control connections.
//!
//! A rank that dies closes its connections, so every other rank learns of it at once. A rank that leaves sends a
//! goodbye that says what it has called, completed and sent, so that others know what will never come, and why it leaves,
//! so that they name what happened first. A stopped rank, or one whose host is gone, does not answer when asked; one that
//! is busy elsewhere answers that it has not called the operation yet. No rank is asked while operations move; what that
//! means is defined in [`progress`](super::progress).
use std::collections::{HashMap, HashSet};

use paceline_os::event::{PollFd, PollFlags, Timespec, poll};
use paceline_os::fd::OwnedFd;
use paceline_os::sync::atomic::Ordering;
use paceline_os::sync::{Arc, Mutex};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Naming, RunError, SAME_CALLS, of};
use paceline_transport::traffic::Traffic;
use paceline_transport::waiting::{TIMEOUT, first_report};

use super::control::{Control, Departure, Goodbye, Message};
use super::driver::Driver;
use super::joining::Joining;
use super::ledger::{Answer, Called, Done, Elsewhere, InFlight, Ledger, MOST_SENT, Operations};
use super::listeners::News;
use super::orders::{Order, Orders};
use super::peers::{Peer, describe};
use super::progress::{OperationId, Progress, Reports};
use super::settings::Settings;

/// How often the ledger is checked while something is in flight, and how often a rank is asked.
const TICK: Duration = Duration::from_millis(250);
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often it is checked while nothing is in flight.
const IDLE: Duration = Duration::from_secs(1);
/// After a rank has left, how long what it has given up may still move before it counts as lost.
const GRACE: Duration = Duration::from_secs(2);
/// Answers older than this may be overtaken by data that is on its way.
const STALE: Duration = Duration::from_secs(3);
/// Time to answer, at least: on a busy host, or if the limit is very short.
const TO_ANSWER: Duration = Duration::from_secs(1);
/// How long two ranks wait for each other to make different groups until that is an error: a thread of one of them may be
/// about to make the other's.
const DEADLOCK: Duration = Duration::from_secs(3);

/// The setting of the limit of planned gradients.
const STALL_SHUTDOWN: &str = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS";
/// Remedies: of an operation that has waited too long, and of one with a rank that has called its last.
const LONGER: &str = "a longer --timeout (PACELINE_TIMEOUT, or the process group's timeout=)";
const SAME_STEPS: &str = "the same number of steps on all ranks (drop_last=True, or a join at the end)";

/// The part of the detector that other threads use.
pub(super) struct Monitor {
    pub joining: Joining,
    /// Operations called by ranks that have begun to leave.
    pub leaving: Mutex<HashMap<u32, Called>>,
    outbox: Mutex<Vec<MonitorCommand>>,
    wake_pipe: (OwnedFd, OwnedFd),
}

enum MonitorCommand {
    Send(u32, Message),
    Lost(u32, String),
    BeginToLeave,
    Leave,
}

impl Monitor {
    /// `others`: the ranks that will report that they are ready.
    pub fn new(others: impl Iterator<Item = u32>) -> std::io::Result<Monitor> {
        use paceline_os::pipe::{PipeFlags, pipe_with};
        let wake_pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let joining = Joining::new(others);
        Ok(Monitor { joining, leaving: Mutex::default(), outbox: Mutex::new(Vec::new()), wake_pipe })
    }

    fn post(&self, commands: impl IntoIterator<Item = MonitorCommand>) {
        self.outbox.lock().extend(commands);
        let _ = paceline_os::io::write(&self.wake_pipe.1, &[1]);
    }

    /// Tells the other ranks of a group that it has failed here. `cause`: what happened first, if not this.
    pub fn tell_failed(&self, group: u32, ranks: &[u32], error: &RunError, cause: Option<&str>) {
        let abort = || Message::Abort {
            group,
            why: error.to_string(),
            remedy: error.remedy().map(str::to_owned),
            cause: cause.map(str::to_owned),
        };
        self.post(ranks.iter().map(|&rank| MonitorCommand::Send(rank, abort())));
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

    /// Tells the other ranks that this one calls nothing more.
    pub fn begin_to_leave(&self) {
        self.post([MonitorCommand::BeginToLeave]);
    }

    pub fn leave(&self) {
        self.post([MonitorCommand::Leave]);
    }
}

/// State of another rank.
enum PeerState {
    Here,
    Left(Left),
    Dead(String),
}

/// A rank that has said goodbye.
struct Left {
    goodbye: Goodbye,
    at: Instant,
    /// Turns of the driving thread until then: two turns later it has seen whatever the rank had done.
    turns: u64,
}

impl Left {
    /// The rank's completed operations in a communicator, if it had called any there.
    fn done(&self, group: u32) -> Option<&Done> {
        self.goodbye.done.iter().find(|(id, _)| *id == group).map(|(_, done)| done)
    }

    /// Whether the operation will never be called: it had not been when the rank left.
    fn never_called(&self, group: u32, id: Option<OperationId>) -> bool {
        let done = self.done(group);
        match id {
            Some(OperationId::Collective(seq)) => done.is_none_or(|done| done.called <= seq),
            Some(OperationId::Transfer { to, tag, number, .. }) => {
                let sent = done.and_then(|done| done.sent.iter().find(|(t, g, _)| (*t, *g) == (to, tag)));
                let all_told = self.goodbye.done.iter().map(|(_, done)| done.sent.len()).sum::<usize>() < MOST_SENT;
                all_told && sent.is_none_or(|(.., count)| *count <= number)
            }
            None => false,
        }
    }

    /// Whether the rank has called the operation and not completed it.
    fn gave_up(&self, group: u32, id: Option<OperationId>) -> bool {
        matches!(id, Some(OperationId::Collective(seq)) if self.done(group).is_some_and(|done| done.completed <= seq))
    }
}

/// A data connection that has ended while the control connection has not. The rank may have left or died: what says so
/// is on its way. If it answers this question, it is still there.
struct Broken {
    why: String,
    question: u64,
    /// It has answered.
    confirmed: bool,
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
    /// By rank: what moves on the data connections.
    traffic: Vec<Arc<Traffic>>,
    flows: Vec<Flow>,
    reports: Reports,
    /// When a stall was last reported on standard error.
    reported: Option<Instant>,
    /// By rank.
    broken: HashMap<u32, Broken>,
    /// Questions asked to confirm that a connection broke.
    questions: u64,
    /// Which rank went first, and how: others go because of it, and their goodbyes may arrive before its own.
    first: Option<Departure>,
}

/// Bytes moved between this rank and another.
#[derive(Clone, Copy)]
struct Flow {
    counted: [u64; 2],
    /// Since the last look.
    received: bool,
    sent: bool,
    /// When it last did.
    received_at: Option<Instant>,
    sent_at: Option<Instant>,
}

impl Flow {
    fn look(&mut self, traffic: &Traffic, now: Instant) {
        let counted = traffic.read();
        (self.received, self.sent) = (counted[0] != self.counted[0], counted[1] != self.counted[1]);
        self.counted = counted;
        if self.received {
            self.received_at = Some(now);
        }
        if self.sent {
            self.sent_at = Some(now);
        }
    }

    fn at(&self) -> Option<Instant> {
        self.received_at.max(self.sent_at)
    }
}

impl FailureDetector {
    pub fn new(
        (rank, peers, settings): (u32, Arc<[Peer]>, &Settings),
        (controls, traffic): (Vec<Option<Control>>, Vec<Arc<Traffic>>),
        (ledger, driver, monitor, orders): (Arc<Ledger>, Arc<Driver>, Arc<Monitor>, Arc<Orders>),
    ) -> FailureDetector {
        let states = controls.iter().map(|_| PeerState::Here).collect();
        let last_heard = controls.iter().map(|_| None).collect();
        let flow = Flow { counted: [0; 2], received: false, sent: false, received_at: None, sent_at: None };
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
            flows: vec![flow; traffic.len()],
            traffic,
            reports: Reports::default(),
            reported: None,
            broken: HashMap::new(),
            questions: 0,
            first: None,
        }
    }

    /// The thread.
    pub fn run(mut self) {
        let mut tick = IDLE;
        for rank in 0..self.controls.len() as u32 {
            self.send(rank, &Message::Ready);
        }
        loop {
            self.wait(tick);
            let commands = std::mem::take(&mut *self.monitor.outbox.lock());
            for command in commands {
                match command {
                    MonitorCommand::Send(rank, message) => self.send(rank, &message),
                    MonitorCommand::Lost(rank, why) => self.lost(rank, why),
                    MonitorCommand::BeginToLeave => {
                        for rank in 0..self.controls.len() as u32 {
                            let called = self.ledger.operations().called(rank);
                            self.send(rank, &Message::Leaving(called));
                        }
                    }
                    MonitorCommand::Leave => return self.leave(),
                }
            }
            for rank in 0..self.controls.len() as u32 {
                self.receive(rank);
            }
            tick = if self.ledger.operations().in_flight() { TICK } else { IDLE };
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

    fn lost(&mut self, rank: u32, why: String) {
        if matches!(self.states[rank as usize], PeerState::Here) && !self.broken.contains_key(&rank) {
            self.questions += 1;
            let question = self.questions;
            self.broken.insert(rank, Broken { why, question, confirmed: false });
            self.send(rank, &Message::Ping(question));
        }
    }

    fn leave(mut self) {
        let (done, undelivered) = std::mem::take(&mut *self.ledger.stock.lock());
        // What these have not taken, others may miss as well: this rank leaves because of them.
        let stuck =
            (!undelivered.is_empty() && !paceline_os::mutant("who takes nothing is no reason to leave")).then(|| {
                paceline_os::reached!("detector: left because a rank takes nothing");
                let (who, have) =
                    (describe(&self.peers, &undelivered), if undelivered.len() == 1 { "has" } else { "have" });
                format!("{who} {have} not taken what {} sent before it left", self.peers[self.rank as usize].describe())
            });
        let cause = self.ledger.operations().cause.clone().or(stuck);
        for rank in 0..self.controls.len() as u32 {
            let mut room = MOST_SENT;
            let done = done.iter().map(|(group, all)| {
                let sent: Vec<_> = all.sent.iter().filter(|(to, ..)| *to == rank).take(room).copied().collect();
                room -= sent.len();
                (*group, Done { sent, ..*all })
            });
            let done = done.collect();
            let undelivered = undelivered.contains(&rank);
            let (cause, after) = (cause.clone(), self.first.clone());
            self.send(rank, &Message::Bye(Goodbye { done, undelivered, cause, after }));
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
                self.first.get_or_insert_with(|| Departure::died(rank, &how));
                let why = self.death(rank, &how);
                self.monitor.joining.gone(rank, || why);
                self.states[rank as usize] = PeerState::Dead(how);
                self.gone(rank);
                self.bury(rank);
            }
        }
    }

    fn handle(&mut self, rank: u32, message: Message) {
        match message {
            Message::Ready => self.monitor.joining.ready(rank),
            Message::Leaving(called) => {
                self.monitor.leaving.lock().insert(rank, called);
            }
            Message::Bye(mut goodbye) => {
                paceline_os::reached!("detector: goodbye");
                // Checks what a peer sends before it is used.
                goodbye.after = goodbye.after.filter(|first| (first.rank as usize) < self.states.len());
                self.first.get_or_insert_with(|| goodbye.after.clone().unwrap_or_else(|| Departure::left(rank)));
                let (at, turns) = (Instant::now(), self.driver.turns());
                self.states[rank as usize] = PeerState::Left(Left { goodbye, at, turns });
                let all: Vec<u32> = (0..self.states.len() as u32).collect();
                self.monitor.joining.gone(rank, || self.departure(rank, &all).0);
                self.gone(rank);
                // The driving thread looks for what the rank has done, and for the end of the data connection.
                self.driver.announce();
                let with: Vec<(u32, Vec<u32>)> = {
                    let operations = self.ledger.operations();
                    let with = operations.groups.iter().filter(|(_, group)| group.ranks.contains(&rank));
                    with.map(|(&id, group)| (id, group.ranks.clone())).collect()
                };
                for (group, ranks) in with {
                    let news = News::Left(self.departure(rank, &ranks).0);
                    self.ledger.listeners.lock().tell(group, &news);
                }
            }
            Message::Abort { group, why, remedy, cause } => {
                paceline_os::reached!("detector: told that a group has failed");
                let cause = cause.unwrap_or_else(|| why.clone());
                self.fail(group, &RunError::failed_like(why, remedy.as_deref()), &cause);
            }
            Message::Ask { group, id } => {
                paceline_os::reached!("detector: asked");
                let (answer, progress, failed) = self.ledger.operations().answer(self.rank, (group, id), rank);
                // The asking rank has not been told, perhaps because it made the group after the group had failed here.
                let reply = match (answer, failed) {
                    (Answer::Later(..) | Answer::InFlight(..), Some(error)) => {
                        paceline_os::reached!("detector: asked about a group that has failed");
                        let operations = self.ledger.operations();
                        let of_group = || operations.groups.get(&group).and_then(|group| group.cause.clone());
                        let cause = operations.cause.clone().or_else(of_group);
                        let remedy = error.remedy().map(str::to_owned);
                        Message::Abort { group, why: error.to_string(), remedy, cause }
                    }
                    (answer, _) => Message::Tell { group, id, answer, progress },
                };
                self.send(rank, &reply);
            }
            Message::Tell { group, id, answer, progress } => {
                let now = Instant::now();
                match &answer {
                    Answer::InFlight(..) => self.reports.note(rank, group, id, progress, now),
                    Answer::Later(_, Some(elsewhere)) => {
                        self.reports.note(rank, elsewhere.group, elsewhere.id, elsewhere.progress, now);
                    }
                    Answer::Later(_, None) | Answer::Past(..) => {}
                }
                if let Some(group) = self.ledger.operations().groups.get_mut(&group)
                    && let Some(index) = group.in_flight.iter().position(|w| w.id(self.rank, &group.ranks) == Some(id))
                {
                    group.in_flight[index].answers.insert(rank, (answer, now));
                }
            }
            Message::Serve(order) => self.orders.push(order),
            Message::Invite { group, cycle } => self.ledger.listeners.lock().invited(group, cycle),
            Message::Ping(question) => self.send(rank, &Message::Pong(question)),
            Message::Pong(question) => {
                if let Some(broken) = self.broken.get_mut(&rank) {
                    broken.confirmed |= broken.question == question;
                }
            }
        }
    }

    /// A rank has died: its communicators fail.
    fn bury(&self, rank: u32) {
        paceline_os::reached!("detector: death");
        let PeerState::Dead(how) = &self.states[rank as usize] else { return };
        let cause = self.death(rank, how);
        let remedy = self.look_there(rank);
        let failures: Vec<_> = {
            let operations = self.ledger.operations();
            let with = operations.groups.iter().filter(|(_, group)| group.ranks.contains(&rank));
            with.map(|(&id, group)| {
                let waited = |w: &InFlight| self.was_waiting(&w.during(&group.naming));
                let waited = group.oldest().map_or(String::new(), waited);
                (id, RunError::Failed(format!("{cause}{waited}")).with_remedy(&remedy))
            })
            .collect()
        };
        for (id, error) in failures {
            self.fail(id, &error, &cause);
        }
    }

    /// `rank 1 (host a, pid 7) died (connection closed)`.
    fn death(&self, rank: u32, how: &str) -> String {
        format!("{} {}", self.peers[rank as usize].describe(), Departure::died(rank, how).how)
    }

    /// `; rank 0 was waiting for it in all_reduce (float32[1000], sum; op 5)`.
    fn was_waiting(&self, during: &str) -> String {
        format!("; {} was waiting for it {during}", self.peers[self.rank as usize].name())
    }

    /// The remedy if a rank has died.
    fn look_there(&self, rank: u32) -> String {
        let peer = &self.peers[rank as usize];
        format!("the output of {}, or dmesg on host {} (out of memory?)", peer.name(), peer.host)
    }

    /// A group has failed because of this: the driving thread ends its operations.
    fn fail(&self, group: u32, error: &RunError, cause: &str) {
        if self.ledger.fail(group, error, cause) {
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
        for (flow, traffic) in self.flows.iter_mut().zip(&self.traffic) {
            flow.look(traffic, now);
        }
        self.reports.forget_old(now);
        let (mut messages, mut failures, mut reports) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut operations = self.ledger.operations();
            let Operations { groups, .. } = &mut *operations;
            let mut earlier = Vec::new();
            for (&id, group) in groups.iter_mut().filter(|(_, group)| group.failed.is_none()) {
                for waiting in &mut group.in_flight {
                    let moved = self.update(waiting, id, &group.ranks, now);
                    earlier.push((waiting.order, moved));
                }
            }
            let earlier = Earlier::new(earlier);
            let known: HashSet<u32> = groups.keys().copied().collect();
            for (&id, group) in groups.iter_mut().filter(|(_, group)| group.failed.is_none()) {
                let (ranks, naming) = (&group.ranks, &group.naming);
                // Later operations wait for the oldest; sends and receives are independent of each other.
                let mut first = true;
                for waiting in &mut group.in_flight {
                    if waiting.seq.is_some() && !std::mem::take(&mut first) {
                        continue;
                    }
                    let named = waiting.id(self.rank, ranks);
                    let others = self.others(waiting, named, ranks);
                    if let Some(tell) = self.tell_about(waiting, (id, named), now) {
                        messages.extend(others.iter().map(|&rank| (rank, tell.clone())));
                    }
                    let moved = waiting.moved.own.max(earlier.than(waiting.order));
                    let what = (waiting.during(naming), naming, &known);
                    match self.look_at(waiting, (id, named), what, &others, (moved, now)) {
                        Finding::Fine => {}
                        // Nobody can know about a send or receive that has no number.
                        Finding::Ask => messages.extend(others.iter().map(|&rank| match named {
                            Some(named) if !waiting.sends() => (rank, Message::Ask { group: id, id: named }),
                            _ => (rank, Message::Ping(0)),
                        })),
                        Finding::Report(stalled, text) => reports.push((stalled, text)),
                        Finding::Fail { cause, error } => {
                            failures.push((id, cause, error));
                            break;
                        }
                    }
                }
            }
        }
        for (rank, message) in messages {
            if matches!(self.states[rank as usize], PeerState::Here) {
                self.send(rank, &message);
            }
        }
        // One line for all: many receives may wait for one rank.
        let others = reports.len().saturating_sub(1);
        if let Some((_, text)) = reports.into_iter().max_by_key(|(stalled, _)| *stalled) {
            paceline_os::reached!("detector: stall reported");
            self.reported = Some(now);
            let more = match others {
                0 => String::new(),
                1 => "; another operation waits, too".into(),
                _ => format!("; {others} other operations wait, too"),
            };
            paceline_os::report!("paceline: {text}{more}");
        }
        for (id, cause, error) in failures {
            let ranks = self.ledger.operations().groups.get(&id).map(|group| group.ranks.clone()).unwrap_or_default();
            self.monitor.tell_failed(id, &ranks, &error, Some(&cause));
            self.fail(id, &error, &cause);
        }
    }

    /// The other ranks that an operation waits for. `named`: its name; the sender of a receive from any rank is that of the
    /// name, as the driving thread may find one at any time.
    fn others(&self, waiting: &InFlight, named: Option<OperationId>, ranks: &[u32]) -> Vec<u32> {
        let found = match named {
            Some(OperationId::Transfer { from, to, .. }) => Some(if from == self.rank { to } else { from }),
            _ => None,
        };
        let peer = waiting.peer.or(found);
        ranks.iter().copied().filter(|&rank| rank != self.rank && peer.is_none_or(|peer| peer == rank)).collect()
    }

    /// Looks how far an operation is, here and elsewhere. Returns when fragments of it last moved.
    fn update(&self, waiting: &mut InFlight, group: u32, ranks: &[u32], now: Instant) -> Instant {
        let mut progress = Progress { own: waiting.handle.moved.load(Ordering::Relaxed), ..waiting.moved.progress };
        let within = waiting.handle.within.load(Ordering::Relaxed);
        if !paceline_os::mutant("what goes to itself does not move") {
            progress.ahead += u64::from(std::mem::replace(&mut waiting.within, within) != within);
        }
        let id = waiting.id(self.rank, ranks);
        let (mut own, mut ahead, mut before) = (None, None, None);
        for rank in self.others(waiting, id, ranks) {
            let flow = &self.flows[rank as usize];
            let flows = match waiting.transfer {
                Some(_) if paceline_os::mutant("transfers do not move") => false,
                Some((_, true)) => flow.sent,
                Some((_, false)) => flow.received,
                None => flow.received || flow.sent,
            };
            let called = match waiting.answers.get(&rank) {
                // Whether it has called it, its goodbye has said.
                _ if matches!(self.states[rank as usize], PeerState::Left(_)) => Some(true),
                Some((Answer::InFlight(..) | Answer::Past(..), _)) => Some(true),
                Some((Answer::Later(..), at)) if !self.is_overtaken(rank, *at, now) => Some(false),
                _ => None,
            };
            progress.ahead += u64::from(flows && called != Some(false));
            match (id, called) {
                _ if paceline_os::mutant("only what moves here counts") => {}
                (Some(id), Some(true)) => {
                    let reported = self.reports.of(rank, group, id);
                    (own, ahead) = (own.max(reported.0), ahead.max(reported.1));
                }
                // What keeps a rank busy that has not called this operation comes before it.
                _ => before = before.max(self.reports.latest(rank)),
            }
        }
        if waiting.moved.update(progress, now) {
            waiting.asked = None;
        }
        waiting.moved.ahead = waiting.moved.ahead.max(ahead.unwrap_or(waiting.began));
        let moved = waiting.moved.own.max(own.unwrap_or(waiting.began));
        waiting.moved.own = moved.max(before.unwrap_or(waiting.began));
        moved
    }

    /// Whether what a rank answered then may not be true any more: newer answers may be queued behind its data.
    fn is_overtaken(&self, rank: u32, answered: Instant, now: Instant) -> bool {
        let flow = self.flows[rank as usize].at();
        now - answered > STALE && flow.is_some_and(|at| now - at < STALE)
    }

    /// Reports a long operation that moves here to the other ranks, unasked.
    fn tell_about(
        &self,
        waiting: &mut InFlight,
        (group, id): (u32, Option<OperationId>),
        now: Instant,
    ) -> Option<Message> {
        let (id, progress) = (id?, waiting.moved.progress);
        if now - waiting.told.0 < ASK_EVERY || waiting.told.1 == progress {
            return None;
        }
        waiting.told = (now, progress);
        let answer = Answer::InFlight(waiting.signature.describe(), waiting.signature.plan);
        Some(Message::Tell { group, id, answer, progress })
    }

    /// Since when nothing has come from a rank, and nothing could be sent to it: not before it was first asked.
    fn silent_since(&self, rank: u32, asked: Instant) -> Instant {
        let heard = self.last_heard[rank as usize].max(self.flows[rank as usize].at());
        heard.map_or(asked, |heard| heard.max(asked))
    }

    /// `moved`: when the operation itself, or one before it, last moved.
    fn look_at(
        &self,
        waiting: &mut InFlight,
        (group, id): (u32, Option<OperationId>),
        (during, naming, known): (String, &Naming, &HashSet<u32>),
        others: &[u32],
        (moved, now): (Instant, Instant),
    ) -> Finding {
        let peers = &self.peers;
        let fail = |(cause, remedy): (String, String)| {
            let error = RunError::Failed(format!("{cause}{}", self.was_waiting(&during))).with_remedy(remedy);
            Finding::Fail { cause, error }
        };
        for &rank in others {
            // It died before this communicator was made; otherwise `bury` has failed it.
            if let PeerState::Dead(how) = &self.states[rank as usize] {
                paceline_os::reached!("detector: operation with a rank that died before");
                return fail((self.death(rank, how), self.look_there(rank)));
            }
            // A rank that leaves or dies loses its data connections, too; that is reported elsewhere.
            if let (PeerState::Here, Some(Broken { why, confirmed: true, .. })) =
                (&self.states[rank as usize], self.broken.get(&rank))
            {
                let cause = format!("the data connection to {} broke: {why}", peers[rank as usize].describe());
                paceline_os::reached!("detector: data connection broke");
                let me = &peers[self.rank as usize];
                let remedy = format!("the network between hosts {} and {}", me.host, peers[rank as usize].host);
                return fail((cause, remedy));
            }
        }
        // A rank that leaves itself completes what it can. Coordinators say themselves that they end.
        if let Some(id) = id.filter(|_| !waiting.sends() && !naming.is_hidden() && !self.driver.closing()) {
            let leaving = self.monitor.leaving.lock();
            let never = |rank: &&u32| leaving.get(*rank).is_some_and(|called| called.never_calls(group, id));
            let here = |rank: &&u32| matches!(self.states[**rank as usize], PeerState::Here);
            if let Some(&rank) = others.iter().filter(here).find(never) {
                paceline_os::reached!("detector: operation with a rank that begins to leave");
                return fail(self.departure(rank, others));
            }
        }
        // What a rank had sent before it left may still be on its way, or here and not looked at.
        let turns = self.driver.turns();
        let still = waiting.moved.any().max(moved);
        let settled = |gone: &Left| turns >= gone.turns + 2 && now - still.max(gone.at) > GRACE;
        let anybody = waiting.transfer.is_some() && others.len() > 1 && id.is_none();
        // A receive from any rank can still be satisfied by one that is left.
        if anybody
            && others.iter().all(|&rank| matches!(&self.states[rank as usize], PeerState::Left(gone) if settled(gone)))
        {
            paceline_os::reached!("detector: receive from any rank, and all have left");
            return fail(self.departures(others));
        }
        for &rank in others.iter().filter(|_| !anybody) {
            let PeerState::Left(gone) = &self.states[rank as usize] else { continue };
            let settled = settled(gone);
            // A rank whose communicator has failed counts what it never sent as sent, because it was called.
            let failed = gone.goodbye.cause.is_some() && !paceline_os::mutant("what has failed was sent");
            let lost = failed || gone.goodbye.undelivered || gone.gave_up(group, id) || waiting.sends();
            let (settled, lost) = match paceline_os::mutant("a departure loses what is on its way") {
                true => (now - waiting.moved.own > GRACE, true),
                false => (settled, lost),
            };
            let hopeless = if id.is_none() && waiting.transfer.is_some() {
                settled
            } else {
                (!waiting.sends() && gone.never_called(group, id)) || (settled && lost)
            };
            if hopeless {
                paceline_os::reached!("detector: operation with a rank that has left");
                return fail(self.departure(rank, others));
            }
        }
        let stalled = now - moved;
        let own = now - waiting.moved.own;
        if own < ASK_EVERY.min(waiting.timeout / 4) {
            return Finding::Fine;
        }
        // A rank that has not been asked cannot count as silent.
        let Some((asked, last)) = waiting.asked else {
            waiting.asked = Some((now, now));
            return Finding::Ask;
        };
        let mine = waiting.signature.describe();
        for (&rank, (answer, _)) in &waiting.answers {
            if let Answer::InFlight(theirs, plan) | Answer::Past(theirs, plan) = answer
                && !theirs.is_empty()
                && (*theirs != mine || *plan != waiting.signature.plan)
            {
                let [them, me] = [rank, self.rank].map(|rank| peers[rank as usize].name());
                let (them, me) = ((them.as_str(), theirs.as_str()), (me.as_str(), mine.as_str()));
                paceline_os::reached!("detector: ranks called different operations");
                let call = waiting.signature.collective.name();
                let what = match waiting.seq {
                    Some(seq) => naming.disagreed(call, seq, &waiting.label),
                    None => call.to_owned() + &of(&waiting.label),
                };
                let error = RunError::mismatch(&what, them, me, waiting.signature.plan_differs());
                return Finding::Fail { cause: error.to_string(), error };
            }
        }
        if naming.is_new() && own >= DEADLOCK {
            // Making a group blocks its caller: two ranks that wait for each other to make different ones never go on.
            for (&rank, (answer, _)) in &waiting.answers {
                if let Answer::Later(_, Some(Elsewhere { what: theirs, group: other, makes: Some(ranks), .. })) = answer
                    && ranks.contains(&self.rank)
                    && !known.contains(other)
                {
                    paceline_os::reached!("detector: groups made in different orders");
                    let [them, me] = [rank, self.rank].map(|rank| peers[rank as usize].name());
                    let mine = waiting.describe(naming);
                    let cause = format!("ranks make groups in different orders: {me} is {mine}, {them} is {theirs}");
                    let error =
                        RunError::Failed(cause.clone()).with_remedy("the same groups in the same order on all ranks");
                    return Finding::Fail { error, cause };
                }
            }
        }
        let limit = self.limit(waiting, others, stalled, now);
        // Again each time it has lasted twice as long.
        let first = first_report(waiting.timeout + waiting.silent);
        let report_after = waiting.reported.map_or(first, |last| 2 * last);
        let just_reported = self.reported.is_some_and(|at| now - at < first);
        let over = stalled >= limit && !self.may_go_on(waiting, others, limit, now);
        // The ranks need time to answer, however long there was silence before.
        let fresh = stalled < first.min(2 * TO_ANSWER);
        let quiet = stalled + waiting.silent < report_after || stalled >= limit || just_reported || fresh;
        let ask = now - last >= ASK_EVERY.min((waiting.timeout / 4).max(TICK));
        // Questions first: a report can wait for their answers, but under a short limit every answer counts.
        if !over && ask && (quiet || !paceline_os::mutant("a report takes the place of a question")) {
            waiting.asked = Some((asked, now));
            return Finding::Ask;
        }
        if !over && quiet {
            return Finding::Fine;
        }
        let Blame { who, how, remedy, because } = self.blame(waiting, naming, others, (stalled, now));
        if let Some(cause) = because.filter(|_| over && !paceline_os::mutant("the limit hides why others have left")) {
            paceline_os::reached!("detector: time limit, and others have left because of something");
            return fail(cause);
        }
        let since = (stalled + waiting.silent).as_secs_f64();
        let limit = (limit + waiting.silent).as_secs_f64();
        let me = peers[self.rank as usize].name();
        // Planned gradients have a limit of their own.
        let planned = naming.is_hidden() && waiting.timeout > self.timeout;
        if !over {
            waiting.reported = Some(stalled + waiting.silent);
            let knob = if planned { STALL_SHUTDOWN } else { TIMEOUT };
            let text =
                format!("{me} has waited {since:.0} s for {who} {during}; {how}; the limit is {limit:.0} s ({knob})");
            return Finding::Report(stalled, text);
        }
        paceline_os::reached!("detector: time limit");
        // Torch's tests of its backends look for the word " timeout ".
        let text =
            format!("{me} waited {since:.0} s for {who} {during}; {how}: timeout after {limit:.0} s without progress");
        let longer = || if planned { format!("a larger {STALL_SHUTDOWN}") } else { LONGER.to_owned() };
        let error = RunError::Failed(text).with_remedy(remedy.unwrap_or_else(longer));
        Finding::Fail { cause: error.to_string(), error }
    }

    /// Whether an operation that has not moved for so long should be waited for: something ahead of it moves, and every
    /// rank is there and has called it; or the ranks have had too little time to answer.
    fn may_go_on(&self, waiting: &InFlight, others: &[u32], limit: Duration, now: Instant) -> bool {
        let Some((asked, _)) = waiting.asked else { return true };
        let here = |rank: u32| matches!(self.states[rank as usize], PeerState::Here);
        let unheard = |&&rank: &&u32| here(rank) && self.last_heard[rank as usize].is_none_or(|heard| heard < asked);
        if now - asked < TO_ANSWER && others.iter().any(|rank| unheard(&rank)) {
            return true;
        }
        let silent = |rank: u32| here(rank) && now - self.silent_since(rank, asked) >= limit;
        let absent = |rank: u32| match waiting.answers.get(&rank) {
            Some((Answer::Later(..), at)) if here(rank) => !self.is_overtaken(rank, *at, now),
            _ => false,
        };
        now - waiting.moved.ahead < limit && !others.iter().any(|&rank| silent(rank) || absent(rank))
    }

    /// How long an operation may stall. Some wait longer, for ranks that are busy elsewhere (a planned gradient), but
    /// not for a rank that does not answer: that one is stopped.
    fn limit(&self, waiting: &InFlight, others: &[u32], stalled: Duration, now: Instant) -> Duration {
        let usual = self.timeout;
        let mute = |rank: u32| {
            let asked = waiting.asked.map_or(now, |(asked, _)| asked);
            now - self.silent_since(rank, asked) >= usual
        };
        let stopped = waiting.timeout > usual && stalled >= usual && others.iter().any(|&rank| mute(rank));
        if stopped {
            paceline_os::reached!("detector: stopped rank in an operation with a long limit");
        }
        if stopped { usual } else { waiting.timeout }
    }

    /// Why some ranks cannot continue when one has left: what happened first, and the remedy.
    fn departure(&self, rank: u32, ranks: &[u32]) -> (String, String) {
        let who = |rank: u32| self.peers[rank as usize].describe();
        if let PeerState::Left(Left { goodbye: Goodbye { cause: Some(cause), .. }, .. }) = &self.states[rank as usize]
            && !paceline_os::mutant("who leaves last is blamed")
        {
            let remedy = format!("the output of {}", self.peers[rank as usize].name());
            return (format!("{cause}; {} has left the job because of that", who(rank)), remedy);
        }
        // A rank that left earlier without a reason had done its part: it keeps nobody waiting.
        let died = |first: &Departure| first.how != Departure::left(first.rank).how;
        let first =
            self.first.clone().filter(|first| ranks.contains(&first.rank) && (first.rank == rank || died(first)));
        let first = first.unwrap_or_else(|| Departure::left(rank));
        let remedy = if died(&first) { self.look_there(first.rank) } else { SAME_STEPS.to_owned() };
        (format!("{} {}", who(first.rank), first.how), remedy)
    }

    /// Why a receive from any of these ranks, all of which have left, cannot continue: what happened first, or that none is
    /// left; and the remedy.
    fn departures(&self, ranks: &[u32]) -> (String, String) {
        if paceline_os::mutant("one of those that have left is blamed") {
            return self.departure(ranks[ranks.len() - 1], ranks);
        }
        let died = self.first.as_ref().is_some_and(|first| first.how != Departure::left(first.rank).how);
        match ranks.iter().find(|&&rank| self.has_left_because(rank)).or_else(|| ranks.first().filter(|_| died)) {
            Some(&rank) => self.departure(rank, ranks),
            None => (format!("{} have left the job", describe(&self.peers, ranks)), SAME_STEPS.to_owned()),
        }
    }

    /// Whether a rank has left because of something else.
    fn has_left_because(&self, rank: u32) -> bool {
        matches!(&self.states[rank as usize], PeerState::Left(Left { goodbye, .. }) if goodbye.cause.is_some())
    }

    /// Which ranks an operation waits for, and how far they are. If all are there or have left, also why one has left.
    fn blame(&self, waiting: &InFlight, naming: &Naming, others: &[u32], (stalled, now): (Duration, Instant)) -> Blame {
        let peers = &self.peers;
        let (mut silent, mut late, mut absent, mut here, mut done, mut left) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let asked = waiting.asked.map_or(now, |(asked, _)| asked);
        for &rank in others {
            let quiet = now - self.silent_since(rank, asked);
            let heard = self.last_heard[rank as usize].is_some_and(|heard| heard >= asked);
            match waiting.answers.get(&rank) {
                _ if matches!(self.states[rank as usize], PeerState::Left(_)) => left.push(rank),
                // On a busy host an answer may take long: who has given one is not silent yet.
                _ if quiet >= TO_ANSWER && (!heard || quiet >= stalled * 3 / 4) => silent.push(rank),
                Some((Answer::Later(..), _)) if paceline_os::mutant("who has not called is silent") => {
                    silent.push(rank)
                }
                _ if !heard => late.push(rank),
                Some((Answer::Later(..), _)) | None => absent.push(rank),
                Some((Answer::Past(..), _)) => done.push(rank),
                Some((Answer::InFlight(..), _)) => here.push(rank),
            }
        }
        if !silent.is_empty() {
            // Who is waiting in another operation has been kept from calling this one, most likely by a silent rank, too.
            let waits = |rank: &u32| matches!(waiting.answers.get(rank), Some((Answer::Later(_, Some(_)), _)));
            absent.retain(|rank| !waits(rank));
        }
        let because = left.iter().find(|&&rank| self.has_left_because(rank)).map(|&rank| self.departure(rank, others));
        let mut blame = Blame { because, ..Blame::default() };
        if !silent.is_empty() {
            let host = &peers[silent[0] as usize];
            blame.add(&silent, ["is", "are"], "silent: stopped, or its host cannot be reached", peers);
            blame.remedy = Some(format!("ps -o stat,args {} on host {} (T: it is stopped)", host.pid, host.host));
        }
        if !late.is_empty() {
            blame.add(&late, ["has", "have"], "not answered yet", peers);
        }
        if !absent.is_empty() {
            let answer = |rank: &u32| waiting.answers.get(rank).map(|(answer, _)| answer);
            let (reached, elsewhere) = match (&absent[..], absent.first().and_then(answer)) {
                ([_], Some(Answer::Later(called, elsewhere))) => {
                    (waiting.seq.map(|_| naming.counted(*called)).filter(|_| !naming.is_hidden()), elsewhere.as_ref())
                }
                _ => (None, None),
            };
            let how = match (reached, waiting.transfer) {
                (Some(0), _) => "not called an op yet".to_owned(),
                (Some(last), _) => format!("called nothing after op {last}"),
                (None, None) => "not reached it".to_owned(),
                (None, Some((_, true))) => "not received it".to_owned(),
                (None, Some((_, false))) => "not sent it".to_owned(),
            };
            let have = if absent.len() == 1 { "has" } else { "have" };
            let at = elsewhere.map_or(String::new(), |elsewhere| format!(" and waits {}", elsewhere.during()));
            blame.add(&absent, ["is", "are"], &format!("alive but {have} {how}{at}"), peers);
            let stuck = || {
                let peer = &peers[absent[0] as usize];
                format!("py-spy dump --pid {} on host {} while it waits, or {LONGER}", peer.pid, peer.host)
            };
            let elsewhere = elsewhere.map(|_| SAME_CALLS.to_owned());
            blame.remedy =
                blame.remedy.or(elsewhere).or_else(|| (absent.len() == 1 && !naming.is_hidden()).then(stuck));
        }
        if !blame.who.is_empty() {
            blame.because = None;
            return blame;
        }
        if !here.is_empty() {
            blame.add(&here, ["is", "are"], "also waiting in it", peers);
        }
        if !done.is_empty() {
            blame.add(&done, ["has", "have"], "completed it", peers);
            // That the ranks agree on sizes is noticed with the first fragment, unless there is none.
            if waiting.signature.collective.has_parts() {
                blame.remedy = Some("the same numbers of elements where they are sent and received".to_owned());
            }
        }
        if blame.who.is_empty() {
            blame.add(&left, ["has", "have"], "left the job", peers);
        }
        blame
    }
}

/// The ranks that an operation waits for.
#[derive(Default)]
struct Blame {
    /// `rank 1 (host a, pid 7)`.
    who: String,
    /// `rank 1 is alive but has called nothing after op 4`.
    how: String,
    /// What to do about these, if not to wait longer.
    remedy: Option<String>,
    /// Why one of them has left, and the remedy.
    because: Option<(String, String)>,
}

impl Blame {
    /// Adds ranks that are in the same state. `verb`: for one, and for several.
    fn add(&mut self, ranks: &[u32], verb: [&str; 2], state: &str, peers: &[Peer]) {
        let names: Vec<String> = ranks.iter().take(4).map(|&rank| peers[rank as usize].name()).collect();
        let (who, names) = match ranks.len() {
            0..=4 => (describe(peers, ranks), names.join(", ")),
            _ => (describe(peers, ranks), describe(peers, ranks)),
        };
        let join = |text: &mut String, more: &str, between: &str| {
            *text += if text.is_empty() { "" } else { between };
            *text += more;
        };
        join(&mut self.who, &who, ", ");
        join(&mut self.how, &format!("{names} {} {state}", verb[usize::from(ranks.len() > 1)]), "; ");
    }
}

/// When operations moved, in the order in which they were submitted.
struct Earlier(Vec<(u64, Instant)>);

impl Earlier {
    fn new(mut moved: Vec<(u64, Instant)>) -> Earlier {
        moved.sort_unstable_by_key(|(order, _)| *order);
        // From here on: when anything up to there last moved.
        for index in 1..moved.len() {
            moved[index].1 = moved[index].1.max(moved[index - 1].1);
        }
        Earlier(moved)
    }

    /// When anything before this operation last moved, or this one.
    fn than(&self, order: u64) -> Instant {
        let index = self.0.partition_point(|(other, _)| *other <= order);
        self.0[index - 1].1
    }
}

enum Finding {
    Fine,
    Ask,
    Report(Duration, String),
    Fail { cause: String, error: RunError },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_waits_for_what_was_submitted_before_it() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let earlier = Earlier::new(vec![(4, at(9)), (1, at(3)), (2, at(1))]);
        assert_eq!([1, 2, 4].map(|order| earlier.than(order)), [at(3), at(3), at(9)]);
    }

    #[test]
    fn a_goodbye_says_what_will_never_come() {
        let done = Done { called: 5, completed: 3, sent: vec![(1, 7, 2)] };
        let goodbye = Goodbye { done: vec![(9, done)], ..Goodbye::default() };
        let left = Left { goodbye, at: Instant::now(), turns: 0 };
        let collective = |seq| Some(OperationId::Collective(seq));
        let message = |tag, number| Some(OperationId::Transfer { from: 0, to: 1, tag, number });
        let never = [collective(4), collective(5), message(7, 1), message(7, 2), message(8, 0), None];
        assert_eq!(never.map(|id| left.never_called(9, id)), [false, true, false, true, true, false]);
        // It never knew of this communicator.
        assert!(left.never_called(10, collective(0)));
        assert_eq!([2, 3, 4].map(|seq| left.gave_up(9, collective(seq))), [false, true, true]);
    }
}
