//! The world: virtual time, hosts, processes, threads, timers, and the scheduler that decides who runs next.
//!
//! All threads of all processes are coroutines on one thread of the system. Only one runs at a time, until it blocks or until
//! the scheduler takes its turn away at a *point*: an atomic operation, a lock, a system call. Time passes only as far as
//! calls cost something, and jumps to the next timer when nobody can run. So a schedule is a function of the seed.
#![allow(unsafe_code, reason = "the stack of the coroutine that runs holds what suspends it")]
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::memory::Anonymous;
use super::pipe_ends::Pipe;
use super::poll::{Descriptor, EpollSet};
use super::random_bits::Chance;
use super::stack::{PooledStack, give_back, take_stack};
use super::stream::{Listening, Stream};
use super::udp::Udp;

/// Nanoseconds of virtual time.
pub type Nanoseconds = u64;

/// One second.
pub const SECOND: Nanoseconds = 1_000_000_000;

/// How a world behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// Decides all that is left to chance.
    pub seed: u64,
    /// Cores of a host, as its processes see them.
    pub cores: usize,
    /// Mean number of points between two that take a thread's turn away; 0: never.
    pub points: u64,
    /// Cost of reading the clock.
    pub clock: Nanoseconds,
    /// Most that a fruitless turn of a spinning thread costs.
    pub idle: Nanoseconds,
    /// Network between hosts.
    pub network: Link,
    /// Network inside a host.
    pub inside: Link,
    /// Bytes of a socket's send and receive buffer.
    pub buffers: (usize, usize),
    /// Largest segment, bytes.
    pub segment: usize,
    /// One write in so many is accepted in part although there is room, because the system is short of memory; 0: none.
    pub pressure: u64,
    /// A socket that is closed with unread bytes resets its connection, as TCP does (RFC 2525, 2.17).
    pub resets: bool,
    /// Datagrams of so many that are lost, repeated, late; 0: none.
    pub datagrams: [u64; 3],
    /// Virtual time at which the run ends as one that hangs.
    pub limit: Nanoseconds,
    /// Turns after which it does.
    pub turns: u64,
    /// Processes believe that they run under a real-time policy.
    pub real_time: bool,
    /// Limits of the runtime that are smaller here than they usually are.
    pub limits: BTreeMap<String, usize>,
    /// Keeps what happens as text, for a person.
    pub log: bool,
}

/// A network between two hosts.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// One way.
    pub latency: Nanoseconds,
    /// At most this much more, at random.
    pub jitter: Nanoseconds,
    /// Time for a kilobyte.
    pub per_kilobyte: Nanoseconds,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            seed: 0,
            cores: 8,
            points: 50,
            clock: 100,
            idle: 200_000,
            network: Link { latency: 50_000, jitter: 10_000, per_kilobyte: 800 },
            inside: Link { latency: 5_000, jitter: 1_000, per_kilobyte: 100 },
            buffers: (64 << 10, 64 << 10),
            segment: 16 << 10,
            pressure: 0,
            resets: true,
            datagrams: [0; 3],
            limit: 600 * SECOND,
            turns: 3_000_000,
            real_time: false,
            limits: BTreeMap::new(),
            log: false,
        }
    }
}

/// Why a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All processes that could run have ended.
    Finished,
    /// Nobody can run and no timer is set. Who waits for what.
    Deadlock(String),
    /// The limit of virtual time is reached.
    TimeLimit,
    /// The limit of turns is reached.
    TurnLimit,
}

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Why it ended.
    pub ending: Ending,
    /// Virtual time at the end.
    pub time: Nanoseconds,
    /// Turns of threads.
    pub turns: u64,
    /// Digest of all that happened, in order.
    pub digest: u64,
    /// Events, if the world keeps them.
    pub log: Vec<String>,
    /// Lines that processes wrote to standard error.
    pub reports: Vec<String>,
    /// Panics: process, text.
    pub panics: Vec<(usize, String)>,
    /// Processes whose first thread returned while others still ran, and the names of those.
    pub threads_left: Vec<(usize, Vec<String>)>,
    /// Processes whose first thread returned with open descriptors, and how many.
    pub descriptors_left: Vec<(usize, usize)>,
    /// How often each branch that is counted was taken.
    pub counters: BTreeMap<&'static str, u64>,
}

pub(super) type ThreadId = usize;
type Body = Box<dyn FnOnce()>;

/// A thread, and which of its waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token {
    pub thread: ThreadId,
    number: u64,
}

type Fiber = Coroutine<(), (), (), PooledStack>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Ready,
    Running,
    /// Waits until it is woken, or for the timer with this number.
    Blocked(u64),
    Ended,
}

pub(super) struct Thread {
    pub process: usize,
    pub name: String,
    pub state: State,
    /// Reason of its wait, for a person.
    pub waits: &'static str,
    /// Fruitless turns in a row.
    pub idle: u32,
    fiber: Option<Fiber>,
    joiners: Vec<Token>,
    yielder: *const Yielder<(), ()>,
    /// CPU time.
    pub used: Nanoseconds,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Runs,
    Stopped,
    Dead,
}

pub(super) struct Process {
    pub host: usize,
    pub life: Life,
    pub first: ThreadId,
    /// Gets one turn of so many; 0: all.
    pub starved: u64,
}

pub(super) enum Event {
    Wake(ThreadId, u64),
    Deliver(usize),
    Acknowledge(usize, usize),
    Room(usize),
    Connect(usize, u32),
    Established(usize),
    Refuse(usize, i32),
    Datagram(usize, Vec<u8>),
    Act(Box<dyn FnOnce(&mut World)>),
}

struct Timer {
    at: Nanoseconds,
    number: u64,
    event: Event,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Timer) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// All there is.
pub struct World {
    pub(super) config: Config,
    pub(super) now: Nanoseconds,
    pub(super) chance: Chance,
    pub(super) threads: Vec<Thread>,
    ready: Vec<ThreadId>,
    pub(super) running: Option<ThreadId>,
    pub(super) processes: Vec<Process>,
    timers: BinaryHeap<Reverse<Timer>>,
    numbers: u64,
    pub(super) descriptors: Vec<Option<Descriptor>>,
    pub(super) pipes: Vec<Pipe>,
    pub(super) streams: Vec<Stream>,
    pub(super) listeners: Vec<Listening>,
    pub(super) bound: BTreeMap<SocketAddr, usize>,
    pub(super) epolls: Vec<EpollSet>,
    pub(super) anonymous: Vec<Anonymous>,
    pub(super) udp: Vec<Udp>,
    /// By host: when its network card is free again.
    pub(super) card_free: Vec<Nanoseconds>,
    pub(super) ports: u16,
    /// Pairs of hosts without a connection.
    pub(super) partitions: Vec<(usize, usize)>,
    /// Slower links than the others.
    pub(super) links: BTreeMap<(usize, usize), Link>,
    pub(super) machine: u64,
    digest: u64,
    turns: u64,
    log: Vec<String>,
    pub(super) reports: Vec<String>,
    panics: Vec<(usize, String)>,
    threads_left: Vec<(usize, Vec<String>)>,
    descriptors_left: Vec<(usize, usize)>,
    pub(super) counters: BTreeMap<&'static str, u64>,
    choices: Option<Choices>,
    /// Acts that are still to come.
    acts: usize,
    stacks: Vec<PooledStack>,
}

/// The scheduler's decisions, for a search through all of them with few deviations from the first choice (M. Emmi,
/// S. Qadeer, Z. Rakamaric, Delay-Bounded Scheduling, POPL 2011).
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// Choices to make, in order; afterwards the first of each.
    pub prefix: Vec<u32>,
    /// Choices made, each with the number of alternatives.
    pub taken: Vec<(u32, u32)>,
    /// How many decisions may be another than the first.
    pub deviations: usize,
    /// Decisions are offered only while this is set.
    active: bool,
}

impl Choices {
    /// No decision yet, and so many deviations.
    #[must_use]
    pub fn new(deviations: usize) -> Choices {
        Choices { deviations, ..Choices::default() }
    }

    /// The next course, after one has been run; `false` if that was the last.
    pub fn advance(&mut self) -> bool {
        self.active = false;
        while let Some((chosen, of)) = self.taken.pop() {
            if chosen + 1 < of {
                self.prefix = self.taken.drain(..).map(|(chosen, _)| chosen).chain([chosen + 1]).collect();
                return true;
            }
        }
        false
    }
}

/// Offers the scheduler's decisions from now on, or no longer, where they are searched.
pub fn decide(active: bool) {
    let searched = with(|world| {
        let Some(choices) = &mut world.choices else { return false };
        choices.active = active;
        true
    });
    if searched {
        COUNTDOWN.with(|left| left.set(if active { 1 } else { u64::MAX }));
    }
}

thread_local! {
    static WORLD: RefCell<Option<Box<World>>> = const { RefCell::new(None) };
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
    static COUNTDOWN: Cell<u64> = const { Cell::new(u64::MAX) };
    static MUTANT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Whether this fault, which was mended once, is put back.
#[must_use]
pub fn mutant(name: &str) -> bool {
    MUTANT.with(|chosen| chosen.borrow().as_deref() == Some(name))
}

/// Puts a fault back in the worlds of this thread.
pub fn set_mutant(name: Option<&str>) {
    MUTANT.with(|chosen| *chosen.borrow_mut() = name.map(str::to_owned));
}

/// A limit of this name, as the world has it.
#[must_use]
pub fn limit(name: &str, usual: usize) -> usize {
    try_with(|world| world.config.limits.get(name).copied()).flatten().unwrap_or(usual)
}

/// Counts a branch.
pub fn count(name: &'static str) {
    WORLD.with(|world| {
        if let Some(world) = world.borrow_mut().as_mut() {
            *world.counters.entry(name).or_default() += 1;
        }
    });
}

pub(super) fn with<R>(act: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with(|world| act(world.borrow_mut().as_mut().expect("no world exists on this thread")))
}

/// As `with`; nothing if the world is gone, as when what it left behind is dropped.
pub(super) fn try_with<R>(act: impl FnOnce(&mut World) -> R) -> Option<R> {
    WORLD.with(|world| world.try_borrow_mut().ok()?.as_mut().map(|world| act(world)))
}

fn in_thread() -> bool {
    YIELDER.with(|yielder| !yielder.get().is_null())
}

/// Lets others run; the scheduler must know why.
fn suspend() {
    let yielder = YIELDER.with(Cell::get);
    assert!(!yielder.is_null(), "only a thread of a world can wait");
    // SAFETY: the yielder lives on the stack of the coroutine that runs, which is this one: `run` sets it before it resumes.
    unsafe { (*yielder).suspend(()) };
}

/// A point: the thread may lose its turn here.
#[inline]
pub fn point() {
    COUNTDOWN.with(|left| match left.get() {
        n if n > 1 => left.set(n - 1),
        _ => preempt(),
    });
}

#[cold]
fn preempt() {
    if !in_thread() {
        return;
    }
    let lose = with(|world| {
        let countdown = world.countdown();
        COUNTDOWN.with(|left| left.set(countdown));
        world.choices.is_none() || world.choose(2) == 1
    });
    if lose {
        with(World::requeue);
        suspend();
    }
}

/// Blocks until woken or until a time; returns whether it was woken. `register` hands the token to who may wake it.
pub(super) fn block(waits: &'static str, until: Option<Nanoseconds>, register: impl FnOnce(&mut World, Token)) -> bool {
    let thread = with(|world| {
        let token = world.prepare_block(waits, until);
        register(world, token);
        token.thread
    });
    suspend();
    with(|world| {
        let woken = std::mem::take(&mut world.threads[thread].waits) != TIMED_OUT;
        let Thread { process, name, .. } = &world.threads[thread];
        let text = world
            .config
            .log
            .then(|| format!("  {process} {name}: {} in {waits}", if woken { "woken" } else { "times out" }));
        world.say(|| text.unwrap_or_default());
        woken
    })
}

/// Reads the clock.
pub(super) fn read_clock() -> Nanoseconds {
    if with(World::pass_reading) {
        suspend();
    }
    with(|world| world.now)
}

/// A turn that found nothing to do.
pub(super) fn idle() {
    if !in_thread() {
        return;
    }
    with(|world| {
        world.pass_idle();
        world.requeue();
    });
    suspend();
}

impl World {
    fn new(config: Config) -> World {
        let mut chance = Chance::new(config.seed);
        let machine = chance.bits();
        World {
            now: SECOND,
            chance,
            threads: Vec::new(),
            ready: Vec::new(),
            running: None,
            processes: Vec::new(),
            timers: BinaryHeap::new(),
            numbers: 0,
            descriptors: Vec::new(),
            pipes: Vec::new(),
            streams: Vec::new(),
            listeners: Vec::new(),
            bound: BTreeMap::new(),
            epolls: Vec::new(),
            anonymous: Vec::new(),
            udp: Vec::new(),
            card_free: Vec::new(),
            ports: 40_000,
            partitions: Vec::new(),
            links: BTreeMap::new(),
            machine,
            digest: 0xcbf2_9ce4_8422_2325,
            turns: 0,
            log: Vec::new(),
            reports: Vec::new(),
            panics: Vec::new(),
            threads_left: Vec::new(),
            descriptors_left: Vec::new(),
            counters: BTreeMap::new(),
            choices: None,
            acts: 0,
            stacks: Vec::new(),
            config,
        }
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Nanoseconds {
        self.now
    }

    /// The world's chance, for faults.
    pub fn chance(&mut self) -> &mut Chance {
        &mut self.chance
    }

    pub(super) fn note(&mut self, what: u64) {
        self.digest = (self.digest ^ what).wrapping_mul(0x0100_0000_01b3);
    }

    /// Records something for a person.
    pub fn say(&mut self, text: impl FnOnce() -> String) {
        if self.config.log {
            let text = text();
            self.log.push(format!("{:>12.6} {text}", self.now as f64 / 1e9));
        }
    }

    fn countdown(&mut self) -> u64 {
        if let Some(choices) = &self.choices {
            return if choices.active { 1 } else { u64::MAX };
        }
        match self.config.points {
            // Nobody keeps a core for ever.
            0 => UNDISTURBED,
            mean => self.chance.within(1, 2 * mean),
        }
    }

    fn choose(&mut self, of: u32) -> u32 {
        let Some(choices) = &mut self.choices else { return self.chance.below(u64::from(of)) as u32 };
        let deviated = choices.taken.iter().filter(|(chosen, _)| *chosen > 0).count();
        if !choices.active || of < 2 || deviated >= choices.deviations {
            return 0;
        }
        let chosen = choices.prefix.get(choices.taken.len()).copied().unwrap_or(0);
        choices.taken.push((chosen, of));
        chosen
    }

    fn me(&self) -> ThreadId {
        self.running.expect("only a thread of the world can call this")
    }

    pub(super) fn my_process(&self) -> usize {
        self.threads[self.me()].process
    }

    pub(super) fn my_host(&self) -> usize {
        self.processes[self.my_process()].host
    }

    /// The running thread has achieved something.
    pub(super) fn busy(&mut self) {
        if let Some(me) = self.running {
            self.threads[me].idle = 0;
        }
    }

    /// Time passes for a thread that reads the clock. Whoever reads it again and again with nothing achieved in between spins:
    /// that costs ever more, and then others have their turn.
    fn pass_reading(&mut self) -> bool {
        let Some(me) = self.running else { return false };
        let thread = &mut self.threads[me];
        thread.idle += 1;
        let cost = (self.config.clock << (thread.idle / 4).min(6)).min(self.config.idle.max(self.config.clock));
        thread.used += cost;
        self.now += cost;
        let spins = thread.idle > SPINS;
        if spins {
            self.requeue();
        }
        spins
    }

    /// A system call: it costs a little.
    pub(super) fn call(&mut self) -> Nanoseconds {
        self.now += CALL;
        self.now
    }

    fn pass_idle(&mut self) {
        let me = self.me();
        let thread = &mut self.threads[me];
        thread.idle += 1;
        let cost = (500_u64 << (thread.idle / 2).min(20)).min(self.config.idle);
        self.now += cost;
    }

    fn requeue(&mut self) {
        let me = self.me();
        self.threads[me].state = State::Ready;
        self.ready.push(me);
    }

    fn prepare_block(&mut self, waits: &'static str, until: Option<Nanoseconds>) -> Token {
        let me = self.me();
        self.numbers += 1;
        let number = self.numbers;
        let thread = &mut self.threads[me];
        (thread.state, thread.waits, thread.idle) = (State::Blocked(number), waits, 0);
        if let Some(until) = until {
            self.timers.push(Reverse(Timer { at: until.max(self.now), number, event: Event::Wake(me, number) }));
        }
        Token { thread: me, number }
    }

    /// Wakes a thread, unless it waits no longer.
    pub(super) fn wake(&mut self, token: Token) -> bool {
        let waits = self.threads[token.thread].state == State::Blocked(token.number);
        if waits {
            self.threads[token.thread].waits = "";
            self.make_ready(token.thread);
        }
        waits
    }

    fn make_ready(&mut self, thread: ThreadId) {
        self.threads[thread].state = State::Ready;
        self.ready.push(thread);
    }

    pub(super) fn at(&mut self, at: Nanoseconds, event: Event) {
        self.numbers += 1;
        self.timers.push(Reverse(Timer { at: at.max(self.now), number: self.numbers, event }));
    }

    /// Does something at a time, counted from the beginning of the world.
    pub fn act_at(&mut self, at: Nanoseconds, act: impl FnOnce(&mut World) + 'static) {
        self.acts += 1;
        self.at(SECOND + at, Event::Act(Box::new(act)));
    }

    fn fire(&mut self, event: Event) {
        match event {
            Event::Wake(thread, number) => {
                if self.threads[thread].state == State::Blocked(number) {
                    self.threads[thread].waits = TIMED_OUT;
                    self.make_ready(thread);
                }
            }
            Event::Deliver(stream) => self.deliver(stream),
            Event::Acknowledge(stream, bytes) => self.acknowledge(stream, bytes),
            Event::Room(stream) => self.room(stream),
            Event::Connect(stream, attempt) => self.connect_arrives(stream, attempt),
            Event::Established(stream) => self.established(stream),
            Event::Refuse(stream, error) => self.refuse(stream, error),
            Event::Datagram(socket, bytes) => self.datagram_arrives(socket, bytes),
            Event::Act(act) => {
                self.acts -= 1;
                act(self);
            }
        }
    }

    /// A new host; returns its number.
    pub fn add_host(&mut self) -> usize {
        self.card_free.push(0);
        self.card_free.len() - 1
    }

    /// A new process on a host, with this as its first thread; returns its number.
    pub fn add_process(&mut self, host: usize, main: impl FnOnce() + 'static) -> usize {
        let process = self.processes.len();
        self.processes.push(Process { host, life: Life::Runs, first: self.threads.len(), starved: 0 });
        self.add_thread(process, "main".into(), Box::new(main));
        process
    }

    pub(super) fn add_thread(&mut self, process: usize, name: String, body: Body) -> ThreadId {
        let number = self.threads.len();
        let run = move |yielder: &Yielder<(), ()>, ()| {
            YIELDER.with(|current| current.set(yielder));
            if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
                let text = text_of(&*panic);
                with(|world| {
                    let process = world.my_process();
                    world.panics.push((process, text));
                });
            }
        };
        let stack = take_stack();
        self.stacks.push(stack);
        let fiber = Fiber::with_stack(stack, run);
        self.threads.push(Thread {
            process,
            name,
            state: State::Ready,
            waits: "",
            idle: 0,
            fiber: Some(fiber),
            joiners: Vec::new(),
            yielder: std::ptr::null(),
            used: 0,
        });
        self.ready.push(number);
        number
    }

    pub(super) fn ended(&self, thread: ThreadId) -> bool {
        self.threads[thread].state == State::Ended
    }

    pub(super) fn join_later(&mut self, thread: ThreadId, token: Token) {
        self.threads[thread].joiners.push(token);
    }

    fn thread_ended(&mut self, thread: ThreadId) {
        self.threads[thread].state = State::Ended;
        for joiner in std::mem::take(&mut self.threads[thread].joiners) {
            self.wake(joiner);
        }
        let process = self.threads[thread].process;
        if self.processes[process].first != thread || self.processes[process].life == Life::Dead {
            return;
        }
        let left: Vec<String> = self
            .threads
            .iter()
            .filter(|t| t.process == process && t.state != State::Ended)
            .map(|t| t.name.clone())
            .collect();
        if !left.is_empty() {
            self.threads_left.push((process, left));
        }
        let open = self.descriptors.iter().flatten().filter(|d| d.process == process).count();
        if open > 0 {
            self.descriptors_left.push((process, open));
        }
        self.end_process(process);
    }

    fn end_process(&mut self, process: usize) {
        self.processes[process].life = Life::Dead;
        self.say(|| format!("process {process} ends"));
        self.note(0x1000 + process as u64);
        let threads: Vec<ThreadId> = (0..self.threads.len()).filter(|&t| self.threads[t].process == process).collect();
        for thread in threads {
            self.threads[thread].state = State::Ended;
            if let Some(fiber) = self.threads[thread].fiber.take()
                && Some(thread) != self.running
            {
                // What its stack owns is lost with it, as the memory of a dead process is: to unwind it would run code
                // that the process never ran.
                std::mem::forget(fiber);
            }
        }
        let threads = &self.threads;
        self.ready.retain(|&thread| threads[thread].state != State::Ended);
        for descriptor in 0..self.descriptors.len() {
            if self.descriptors[descriptor].as_ref().is_some_and(|d| d.process == process) {
                self.close(descriptor);
            }
        }
    }

    /// Kills a process (SIGKILL): its sockets close as the kernel closes them.
    pub fn kill(&mut self, process: usize) {
        if self.processes[process].life != Life::Dead {
            self.say(|| format!("process {process} is killed"));
            self.end_process(process);
        }
    }

    /// Stops a process (SIGSTOP).
    pub fn stop(&mut self, process: usize) {
        if self.processes[process].life == Life::Runs {
            self.processes[process].life = Life::Stopped;
            self.say(|| format!("process {process} is stopped"));
        }
    }

    /// Continues it.
    pub fn cont(&mut self, process: usize) {
        if self.processes[process].life == Life::Stopped {
            self.processes[process].life = Life::Runs;
            self.say(|| format!("process {process} continues"));
        }
    }

    /// Gives a process one turn of `of`; 0: all.
    pub fn starve(&mut self, process: usize, of: u64) {
        self.processes[process].starved = of;
        self.say(|| format!("process {process} gets one turn of {of}"));
    }

    /// Cuts the network between two hosts, or heals it.
    pub fn partition(&mut self, a: usize, b: usize, cut: bool) {
        let pair = (a.min(b), a.max(b));
        self.partitions.retain(|&other| other != pair);
        if cut {
            self.partitions.push(pair);
        }
        self.say(|| {
            format!("hosts {a} and {b} are {}", if cut { "cut off from each other" } else { "connected again" })
        });
    }

    /// Gives the link between two hosts other properties.
    pub fn set_link(&mut self, a: usize, b: usize, link: Link) {
        self.links.insert((a.min(b), a.max(b)), link);
        self.say(|| format!("the link of hosts {a} and {b}: {link:?}"));
    }

    /// Whether a process has ended.
    #[must_use]
    pub fn is_dead(&self, process: usize) -> bool {
        self.processes[process].life == Life::Dead
    }

    pub(super) fn cut(&self, a: usize, b: usize) -> bool {
        self.partitions.contains(&(a.min(b), a.max(b)))
    }

    fn next(&mut self) -> Result<ThreadId, Ending> {
        loop {
            while self.timers.peek().is_some_and(|Reverse(timer)| timer.at <= self.now) {
                if let Some(Reverse(timer)) = self.timers.pop() {
                    self.fire(timer.event);
                }
            }
            let runs = |process: &Process| process.life == Life::Runs;
            let continues = self.acts > 0 && self.processes.iter().any(|process| process.life == Life::Stopped);
            if !continues && !self.processes.iter().any(runs) {
                return Err(Ending::Finished);
            }
            if self.now > self.config.limit {
                return Err(Ending::TimeLimit);
            }
            if self.turns > self.config.turns {
                return Err(Ending::TurnLimit);
            }
            if let Some(thread) = self.pick() {
                return Ok(thread);
            }
            match self.timers.peek() {
                Some(Reverse(timer)) => self.now = self.now.max(timer.at),
                None => return Err(Ending::Deadlock(self.who_waits())),
            }
        }
    }

    fn pick(&mut self) -> Option<ThreadId> {
        if self.processes.iter().all(|process| process.life != Life::Stopped && process.starved == 0) {
            if self.ready.is_empty() {
                return None;
            }
            let at = self.choose(self.ready.len() as u32) as usize;
            // Where decisions are searched, the first choice must be fair.
            return Some(if self.choices.is_some() { self.ready.remove(at) } else { self.ready.swap_remove(at) });
        }
        let runs =
            |world: &World, at: usize| world.processes[world.threads[world.ready[at]].process].life == Life::Runs;
        let can: Vec<usize> = (0..self.ready.len()).filter(|&at| runs(self, at)).collect();
        if can.is_empty() {
            return None;
        }
        let mut at = can[self.choose(can.len() as u32) as usize];
        let starved = self.processes[self.threads[self.ready[at]].process].starved;
        if starved > 0 && !self.chance.once_in(starved) {
            let fed = |&at: &usize| self.processes[self.threads[self.ready[at]].process].starved == 0;
            let fed: Vec<usize> = can.into_iter().filter(fed).collect();
            if fed.is_empty() {
                // The core belongs to somebody else meanwhile.
                self.now += 100_000;
            } else {
                at = fed[self.chance.below(fed.len() as u64) as usize];
            }
        }
        Some(self.ready.swap_remove(at))
    }

    fn who_waits(&self) -> String {
        let waits = self.threads.iter().filter(|thread| matches!(thread.state, State::Blocked(_)));
        let waits =
            waits.map(|thread| format!("process {} '{}' waits in {}", thread.process, thread.name, thread.waits));
        waits.collect::<Vec<_>>().join("; ")
    }
}

/// Fruitless turns after which a thread that reads the clock loses its turn.
const SPINS: u32 = 16;
/// Points that a thread passes where turns are not taken away on purpose.
const UNDISTURBED: u64 = 3_000;
/// Cost of a system call.
const CALL: Nanoseconds = 300;
const TIMED_OUT: &str = "timed out";

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_else(|| "panic".into())
}

/// Makes a world, lets `prepare` fill it with hosts and processes, and runs it to its end.
pub fn run(config: Config, choices: Option<&mut Choices>, prepare: impl FnOnce(&mut World)) -> Outcome {
    let mut world = Box::new(World::new(config));
    world.choices = choices.as_deref().cloned();
    prepare(&mut world);
    WORLD.with(|current| *current.borrow_mut() = Some(world));
    let ending = turn_until_end();
    let world = WORLD.with(|current| current.borrow_mut().take()).expect("put there above");
    COUNTDOWN.with(|left| left.set(u64::MAX));
    let mut world = *world;
    if let (Some(choices), Some(taken)) = (choices, world.choices.take()) {
        *choices = taken;
    }
    for thread in &mut world.threads {
        if let Some(fiber) = thread.fiber.take() {
            std::mem::forget(fiber);
        }
    }
    give_back(std::mem::take(&mut world.stacks));
    Outcome {
        ending,
        time: world.now,
        turns: world.turns,
        digest: world.digest,
        log: std::mem::take(&mut world.log),
        reports: std::mem::take(&mut world.reports),
        panics: std::mem::take(&mut world.panics),
        threads_left: std::mem::take(&mut world.threads_left),
        descriptors_left: std::mem::take(&mut world.descriptors_left),
        counters: std::mem::take(&mut world.counters),
    }
}

fn turn_until_end() -> Ending {
    loop {
        let next = with(|world| {
            let thread = world.next()?;
            world.turns += 1;
            world.note(world.now << 8 ^ thread as u64);
            world.running = Some(thread);
            world.threads[thread].state = State::Running;
            let countdown = world.countdown();
            COUNTDOWN.with(|left| left.set(countdown));
            let fiber = world.threads[thread].fiber.take().expect("a thread that can run has a fiber");
            Ok((thread, fiber))
        });
        let (thread, mut fiber) = match next {
            Ok(next) => next,
            Err(ending) => return ending,
        };
        let yielder = with(|world| world.threads[thread].yielder);
        YIELDER.with(|current| current.set(yielder));
        let result = fiber.resume(());
        let yielder = YIELDER.with(|current| current.replace(std::ptr::null()));
        with(|world| {
            world.threads[thread].yielder = yielder;
            match result {
                CoroutineResult::Yield(()) if world.threads[thread].state == State::Ended => std::mem::forget(fiber),
                CoroutineResult::Yield(()) => world.threads[thread].fiber = Some(fiber),
                CoroutineResult::Return(()) => world.thread_ended(thread),
            }
            world.running = None;
        });
    }
}
