//! Runs a scenario: what each rank does, and what becomes of it.
#![allow(unsafe_code, reason = "buffers are handed over by address, as a caller does")]
use std::cell::RefCell;
use std::rc::Rc;

use paceline_engine::Submission;
use paceline_engine::settings::{Settings, Transport};
use paceline_executor::InStep;
use paceline_executor::handle::Handle;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::net::address_of;
use paceline_os::sync::Arc;
use paceline_os::thread;
use paceline_os::time::{Duration, Instant, monotonic};
use paceline_os::world::{Choices, Outcome, World, decide, run};
use paceline_runtime::communicator::{CollectiveRequest, Communicator};
use paceline_runtime::negotiation::Coordinator;
use paceline_runtime::server::Groups;
use paceline_runtime::session::Session;
use paceline_transport::error::RunError;
use paceline_transport::header::Collective;

use crate::named;
use crate::scenario::{Call, Scenario, Step, What};

/// Fate of an operation at a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Result {
    /// It has completed with the right values.
    Good,
    /// It has completed with wrong values.
    Wrong(String),
    /// It has failed.
    Failed(String),
}

/// An operation at a rank.
#[derive(Clone, Debug)]
pub struct Record {
    /// Number of the step.
    pub step: usize,
    /// When it was called and when its wait ended, nanoseconds.
    pub times: (u64, u64),
    /// Its fate.
    pub result: Result,
}

/// Fate of a process.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// It has joined the job.
    pub joined: bool,
    /// When, nanoseconds.
    pub joined_at: u64,
    /// Why it could not, or could not make its groups.
    pub error: Option<String>,
    /// Its operations.
    pub records: Vec<Record>,
    /// When it returned.
    pub ended: Option<u64>,
    /// Operations in flight and other leftovers after the last one had completed.
    pub left_over: Vec<String>,
}

/// A scenario that has been run.
#[derive(Debug)]
pub struct Run {
    /// By process.
    pub stories: Vec<Story>,
    /// The world's course.
    pub outcome: Outcome,
}

type Stories = Rc<RefCell<Vec<Story>>>;

fn settings(scenario: &Scenario, process: usize) -> Settings {
    let transport = match scenario.transport.as_str() {
        "tcp" => Transport::Tcp,
        "shm" => Transport::Shm,
        _ => Transport::Auto,
    };
    Settings {
        transport,
        interface: address_of(scenario.hosts[process]).to_string(),
        secret: Some("the secret of a simulated job".into()),
        rendezvous: Some(format!("{}:29400", address_of(scenario.hosts[0]))),
        timeout_s: scenario.timeout,
        start_timeout_s: Some(scenario.start_timeout),
        strategy: scenario.strategy.clone(),
        servers: scenario.servers,
        dedicated: scenario.dedicated,
        streams: scenario.streams,
        multicast: scenario.multicast.then(|| "239.77.0.0:47700".parse().expect("an address")),
        ..Settings::default()
    }
}

/// Runs it in a world.
pub fn execute(scenario: &Scenario, log: bool, choices: Option<&mut Choices>) -> Run {
    let stories: Stories = Rc::new(RefCell::new(vec![Story::default(); scenario.hosts.len()]));
    let scenario = Rc::new(scenario.clone());
    let outcome = run(scenario.config(log), choices, |world| prepare(world, &scenario, &stories));
    let stories = stories.borrow().clone();
    Run { stories, outcome }
}

fn prepare(world: &mut World, scenario: &Rc<Scenario>, stories: &Stories) {
    let hosts = scenario.hosts.iter().max().map_or(1, |most| most + 1);
    for _ in 0..hosts {
        world.add_host();
    }
    for (process, &host) in scenario.hosts.iter().enumerate() {
        let (scenario, stories) = (scenario.clone(), stories.clone());
        world.add_process(host, move || {
            thread::sleep(Duration::from_micros(scenario.starts[process]));
            let mut story = Rank { process, scenario: &scenario, stories: &stories };
            story.live();
            stories.borrow_mut()[process].ended = Some(monotonic());
        });
    }
    for fault in &scenario.faults {
        let at = fault.at * 1000;
        match fault.what {
            What::Kill(process) => world.act_at(at, move |world| world.kill(process)),
            What::Stop(process, time) => {
                world.act_at(at, move |world| world.stop(process));
                if let Some(time) = time {
                    world.act_at(at + time * 1000, move |world| world.cont(process));
                }
            }
            What::Starve(process, of, time) => {
                world.act_at(at, move |world| world.starve(process, of));
                world.act_at(at + time * 1000, move |world| world.starve(process, 0));
            }
            What::Cut(a, b, time) => {
                world.act_at(at, move |world| world.partition(a, b, true));
                world.act_at(at + time * 1000, move |world| world.partition(a, b, false));
            }
            What::Slow(a, b, per_kilobyte) => {
                let mut link = scenario.config(false).network;
                link.per_kilobyte = per_kilobyte;
                world.act_at(at, move |world| world.set_link(a, b, link));
            }
        }
    }
}

struct Rank<'a> {
    process: usize,
    scenario: &'a Scenario,
    stories: &'a Stories,
}

/// An operation whose end has not been waited for.
struct Pending {
    step: usize,
    begun: u64,
    handle: Arc<Handle>,
    buffers: Buffers,
}

#[derive(Default)]
struct Buffers {
    input: Vec<f32>,
    output: Vec<f32>,
}

/// Values repeat after so many elements: to check them is then cheaper than to move them.
const PERIOD: usize = 64;

/// A rank's contribution to a step, from an element on. Small integers, whose sums are exact.
fn values(rank: u32, step: usize, from: u64) -> [f32; PERIOD] {
    let first = rank as usize * 31 + step * 17 + from as usize;
    std::array::from_fn(|at| ((first + at) % PERIOD) as f32)
}

fn repeated(pattern: &[f32; PERIOD], count: u64) -> Vec<f32> {
    let mut all = Vec::with_capacity(count as usize);
    while all.len() < count as usize {
        all.extend_from_slice(&pattern[..PERIOD.min(count as usize - all.len())]);
    }
    all
}

/// Where these are not the repeated pattern.
fn differs(got: &[f32], pattern: &[f32; PERIOD]) -> Option<usize> {
    let wrong = got.chunks(PERIOD).position(|part| *part != pattern[..part.len()])?;
    (wrong * PERIOD..got.len()).find(|&at| got[at].to_bits() != pattern[at % PERIOD].to_bits())
}

impl Rank<'_> {
    fn story(&self, change: impl FnOnce(&mut Story)) {
        change(&mut self.stories.borrow_mut()[self.process]);
    }

    fn fails(&self, error: &RunError) {
        let text = error.to_string();
        self.story(|story| story.error = Some(text));
    }

    fn live(&mut self) {
        let Scenario { ranks, hosts, .. } = self.scenario;
        let rank = self.process as u32;
        let job = match Session::start(rank, hosts.len() as u32, settings(self.scenario, self.process), None) {
            Ok(job) => job,
            Err(error) => return self.fails(&error),
        };
        let now = monotonic();
        self.story(|story| (story.joined, story.joined_at) = (true, now));
        if rank >= *ranks {
            let mut groups = Groups::default();
            loop {
                match job.serve(&mut groups, Duration::from_secs(1)) {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(error) => return self.fails(&error),
                }
            }
        }
        let mut communicators = Vec::new();
        for (number, members) in self.scenario.groups.iter().enumerate() {
            let made = members.contains(&rank).then(|| job.group(members.clone(), &format!("group{number}")));
            match made.transpose() {
                Ok(made) => communicators.push(made),
                Err(error) => return self.fails(&error),
            }
        }
        let coordinator = match named::coordinator(&job, self.scenario) {
            Ok(coordinator) => coordinator,
            Err(error) => return self.fails(&error),
        };
        // Declared before the operations end, dropped after the job: what a failed operation leaves may be read until then.
        let mut kept = Vec::new();
        let mut tensors = Vec::new();
        let whole = self.run_steps(&job, &communicators, coordinator.as_ref(), (&mut kept, &mut tensors));
        // A coordinator counts votes all the time.
        if whole && coordinator.is_none() {
            self.look_for_leftovers(&job);
        }
        drop(coordinator);
        drop(communicators);
        drop(job);
        drop(kept);
    }

    /// Runs its part of the program; returns whether all of it succeeded. A rank whose operation has failed leaves, as a
    /// training script does.
    fn run_steps(
        &mut self,
        job: &Session,
        groups: &[Option<Communicator>],
        coordinator: Option<&Coordinator>,
        (kept, tensors): (&mut Vec<Buffers>, &mut Vec<Vec<f32>>),
    ) -> bool {
        let rank = self.process as u32;
        let mut pending: Vec<Pending> = Vec::new();
        let mut whole = true;
        decide(true);
        for (number, step) in self.scenario.steps.iter().enumerate() {
            if self.scenario.leaves[self.process] == Some(number) {
                // What it has called, it waits for.
                while whole && let Some(one) = pending.pop() {
                    whole = self.finish(groups, one, kept);
                }
                whole = false;
                break;
            }
            let members = &self.scenario.groups[step.group];
            let Some(place) = members.iter().position(|&member| member == rank) else { continue };
            let place = place as u32;
            if step.call == Call::Transfer && place != step.root && place != step.other {
                continue;
            }
            let Some(communicator) = &groups[step.group] else { continue };
            if step.delays[self.process] > 0 {
                thread::sleep(Duration::from_micros(step.delays[self.process]));
            }
            if let (Call::Named, Some(coordinator)) = (step.call, coordinator) {
                // Its groups are others than those of the operations in flight.
                let begun = monotonic();
                let slice = || self.slice();
                let planned = self.scenario.coordinator.as_deref() == Some("graph");
                let result = match named::run(coordinator, step, rank, self.scenario.ranks, (slice, planned), tensors) {
                    Ok(None) => Result::Good,
                    Ok(Some(wrong)) => Result::Wrong(wrong),
                    Err(error) => Result::Failed(error.to_string()),
                };
                whole = result == Result::Good;
                self.record(number, begun, result);
                if whole {
                    continue;
                }
                break;
            }
            let mut buffers = inputs(step, number, rank, place, members);
            let begun = monotonic();
            match begin(communicator, step, place, &mut buffers, number) {
                Ok(handle) => pending.push(Pending { step: number, begun, handle, buffers }),
                Err(error) => {
                    self.record(number, begun, Result::Failed(error.to_string()));
                    kept.push(buffers);
                    whole = false;
                    break;
                }
            }
            if step.later >> rank & 1 == 0 {
                // In an order that is neither that of the calls nor its reverse.
                while !pending.is_empty() {
                    let at = (number * 7 + self.process) % pending.len();
                    let one = pending.swap_remove(at);
                    if !self.finish(groups, one, kept) {
                        whole = false;
                        break;
                    }
                }
                if !whole {
                    break;
                }
            }
        }
        while whole && let Some(one) = pending.pop() {
            whole = self.finish(groups, one, kept);
        }
        decide(false);
        // What is in flight fails with the job.
        if !whole {
            job.engine().close();
        }
        kept.extend(pending.into_iter().map(|one| one.buffers));
        whole && self.scenario.leaves[self.process].is_none()
    }

    fn finish(&self, groups: &[Option<Communicator>], one: Pending, kept: &mut Vec<Buffers>) -> bool {
        let step = &self.scenario.steps[one.step];
        let members = &self.scenario.groups[step.group];
        let Some(communicator) = &groups[step.group] else { return false };
        let result = loop {
            match communicator.wait(&one.handle, self.slice()) {
                Ok(false) if self.scenario.sliced => {}
                other => break other,
            }
        };
        let result = match result {
            Ok(true) => verify(step, one.step, self.process as u32, members, &one.buffers),
            Ok(false) => Result::Wrong("the wait ended without a result".into()),
            Err(error) => Result::Failed(error.to_string()),
        };
        let good = result == Result::Good;
        self.record(one.step, one.begun, result);
        kept.push(one.buffers);
        good
    }

    fn slice(&self) -> Option<Instant> {
        self.scenario.sliced.then(|| Instant::now() + Duration::from_millis(100))
    }

    fn record(&self, step: usize, begun: u64, result: Result) {
        let times = (begun, monotonic());
        self.story(|story| story.records.push(Record { step, times, result }));
    }

    fn look_for_leftovers(&self, job: &Session) {
        let status = job.engine().status();
        let in_flight = status["in_flight"].as_array().cloned().unwrap_or_default();
        let left: Vec<String> = in_flight.iter().map(ToString::to_string).collect();
        self.story(|story| story.left_over = left);
    }
}

fn inputs(step: &Step, number: usize, rank: u32, place: u32, members: &[u32]) -> Buffers {
    let (n, size) = (step.elements, members.len() as u64);
    let fill = |count: u64| repeated(&values(rank, number, 0), count);
    let empty = |count: u64| vec![-1.0; count as usize];
    let is_root = place == step.root;
    let (input, output) = match step.call {
        Call::AllReduce | Call::Reduce => (fill(n), Vec::new()),
        Call::Broadcast => (if is_root { fill(n) } else { empty(n) }, Vec::new()),
        Call::AllGather => (fill(n), empty(n * size)),
        Call::Gather => (fill(n), if is_root { empty(n * size) } else { Vec::new() }),
        Call::Scatter => (if is_root { fill(n * size) } else { Vec::new() }, empty(n)),
        Call::ReduceScatter => (fill(n * size), empty(n)),
        Call::AllToAll => (fill(n * size), empty(n * size)),
        Call::Barrier | Call::Named => (Vec::new(), Vec::new()),
        Call::Transfer if is_root => (fill(n), Vec::new()),
        Call::Transfer => (Vec::new(), empty(n)),
    };
    Buffers { input, output }
}

fn begin(
    communicator: &Communicator,
    step: &Step,
    place: u32,
    buffers: &mut Buffers,
    number: usize,
) -> paceline_transport::error::Result<Arc<Handle>> {
    let collective = match step.call {
        Call::AllReduce => Collective::AllReduce,
        Call::Broadcast => Collective::Broadcast,
        Call::Reduce => Collective::Reduce,
        Call::AllGather => Collective::AllGather,
        Call::Gather => Collective::Gather,
        Call::Scatter => Collective::Scatter,
        Call::ReduceScatter => Collective::ReduceScatter,
        Call::AllToAll => Collective::AllToAll,
        Call::Barrier | Call::Named => Collective::Barrier,
        Call::Transfer => Collective::SendRecv,
    };
    let memory = |of: &mut Vec<f32>| [(of.as_mut_ptr() as usize, of.len() as u64)];
    let (inputs, outputs) = (memory(&mut buffers.input), memory(&mut buffers.output));
    let sends = step.call == Call::Transfer && place == step.root;
    let root = if sends { step.other } else { step.root };
    let label = format!("step{number}");
    let request = CollectiveRequest {
        collective,
        dtype: Dtype::Float32,
        op: ReduceOp::Sum,
        inputs: &inputs,
        outputs: &outputs,
        root,
        tag: number as u32,
        sends,
        from_anybody: step.from_anybody && step.call == Call::Transfer && !sends,
        label: &label,
        step: step.in_step.map(|(priority, last)| InStep { priority, last }),
        ..CollectiveRequest::default()
    };
    let request = if matches!(step.call, Call::Barrier | Call::Named) {
        CollectiveRequest { inputs: &[], outputs: &[], dtype: Dtype::Uint8, ..request }
    } else {
        request
    };
    // SAFETY: the buffers do not move, and are kept until the job is closed.
    unsafe { communicator.submit(&request, None, Submission { background: step.later != 0, ..Submission::default() }) }
}

fn verify(step: &Step, number: usize, rank: u32, members: &[u32], buffers: &Buffers) -> Result {
    let n = step.elements;
    let place = members.iter().position(|&member| member == rank).unwrap_or(0) as u64;
    let root = members[step.root as usize];
    let is_root = rank == root;
    let of = |rank: u32, from: u64| values(rank, number, from);
    let sum = |from: u64| {
        let mut sum = [0.0; PERIOD];
        members.iter().for_each(|&member| sum.iter_mut().zip(of(member, from)).for_each(|(all, one)| *all += one));
        sum
    };
    let expect = |got: &[f32], count: u64, pattern: [f32; PERIOD]| {
        if got.len() as u64 != count {
            return Some(format!("{} elements instead of {count}", got.len()));
        }
        let at = differs(got, &pattern)?;
        Some(format!("element {at} is {} instead of {}", got[at], pattern[at % PERIOD]))
    };
    // The part of each member, in order.
    let parts = |got: &[f32], from: u64| {
        let each = got.chunks_exact((n as usize).max(1)).zip(members);
        each.filter(|_| n > 0).find_map(|(part, &member)| expect(part, n, of(member, from)))
    };
    let (input, output) = (&buffers.input[..], &buffers.output[..]);
    let wrong = match step.call {
        Call::AllReduce => expect(input, n, sum(0)),
        Call::Broadcast => expect(input, n, of(root, 0)),
        Call::Reduce if is_root => expect(input, n, sum(0)),
        Call::Reduce => expect(input, n, of(rank, 0)),
        Call::AllGather => parts(output, 0),
        Call::Gather if is_root => parts(output, 0),
        Call::Scatter => expect(output, n, of(root, place * n)),
        Call::ReduceScatter => expect(output, n, sum(place * n)),
        Call::AllToAll => parts(output, place * n),
        Call::Transfer if !is_root => expect(output, n, of(root, 0)),
        Call::Gather | Call::Barrier | Call::Transfer | Call::Named => None,
    };
    wrong.map_or(Result::Good, Result::Wrong)
}
