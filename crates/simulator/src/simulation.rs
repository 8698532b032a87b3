//! The event loop: workers compute, programs advance, the network carries messages.
use paceline_model::{Cluster, Time};
use paceline_schedule::{Op, Peers, Piece, Step};

use crate::event::{Event, EventKind};
use crate::event_queue::EventQueue;
use crate::jobs::Watch;
use crate::lanes::{AT_BARRIER, Arrival, Lanes};
use crate::network::fifo;
use crate::network::fluid::Fluid;
use crate::network::switch::Memory;
use crate::network::topology::NetworkLinks;
use crate::observer::{Activity, Observer};
use crate::path::{Chain, Part};
use crate::plan_run::{PlanRun, Run, Task};
use crate::planning::Kind;
use crate::run_types::{JobPlace, Mark, Prepared};
use crate::staleness::Updates;
use crate::worker::{Moments, Worker};

/// Which events make a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Boundary {
    /// All workers have all sums.
    Sums,
    /// All servers have all updates.
    Barrier,
    /// The first server sends the first sum; used without the barrier.
    FirstSend,
}

/// Workers that have finished an iteration, and the last of them. Of several that end together it is the first rank, so
/// that the critical path does not depend on the order of simultaneous events.
#[derive(Clone, Copy)]
struct Ended<C> {
    workers: u32,
    time: u64,
    rank: u32,
    chain: C,
}

/// How long a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// To this mark.
    Mark(usize),
    /// For this many iterations after all jobs have passed their first mark.
    Iterations(usize),
}

/// A job: what its roles execute, and which of the simulation's roles and buckets are its own.
pub(crate) struct JobRun<'a, C> {
    pub prepared: &'a Prepared,
    pub boundary: Boundary,
    /// All workers begin an iteration together.
    pub together: bool,
    /// The mark at which measuring may begin; 0 is the start.
    pub first_mark: usize,
    pub until: Until,
    /// When its workers begin.
    pub start: u64,
    pub marks: Vec<Mark<C>>,
    /// Marks that had been made when measuring began.
    pub marks_before: usize,
    place: JobPlace,
    memory: Option<Memory<C>>,
    lanes: Lanes,
    lanes_of: Vec<u32>,
    at_barrier: Vec<(u32, u32, u32)>,
    barriers: usize,
    /// Workers and buckets that cannot begin before others have finished the bucket of the iteration two before. That takes a tensor
    /// that no layer waits for.
    delayed: Vec<(u32, u32)>,
    /// Workers that have finished each iteration.
    ended: Vec<Ended<C>>,
}

impl<'a, C: Chain> JobRun<'a, C> {
    pub fn new(
        prepared: &'a Prepared,
        place: JobPlace,
        (boundary, together): (Boundary, bool),
        (first_mark, until): (usize, Until),
        memory: Option<Memory<C>>,
    ) -> Self {
        let schedule = &prepared.schedule;
        let roles = schedule.roles();
        let all_barriers = |bucket| (0..roles.total()).map(move |role| schedule.barriers(bucket, role));
        JobRun {
            prepared,
            boundary,
            together,
            first_mark,
            until,
            start: 0,
            marks: Vec::new(),
            marks_before: 0,
            place,
            memory: memory.filter(|_| roles.switches > 0),
            lanes: Lanes::new(
                roles.total(),
                roles.workers,
                prepared.buckets.len(),
                schedule.slots(),
                schedule.senders(),
            ),
            lanes_of: prepared.buckets.iter().map(|bucket| schedule.lanes(bucket)).collect(),
            at_barrier: Vec::new(),
            delayed: Vec::new(),
            barriers: prepared.buckets.iter().flat_map(all_barriers).sum::<u32>() as usize,
            ended: Vec::new(),
        }
    }

    /// Numbers of its workers among those of all jobs.
    pub fn workers(&self) -> std::ops::Range<u32> {
        self.place.first_worker..self.place.first_worker + self.place.roles.workers
    }

    fn is_worker(&self, role: u32) -> bool {
        role < self.place.roles.workers
    }
}

pub(crate) struct Simulation<'a, C, O> {
    pub cluster: &'a Cluster,
    pub wires: NetworkLinks,
    pub observer: O,
    pub jobs: Vec<JobRun<'a, C>>,
    /// Of all jobs.
    pub workers: Vec<Worker<C>>,
    /// When measuring began.
    pub measured_from: u64,
    events: EventQueue<C>,
    fluid: Option<Fluid<C>>,
    /// The job of each role.
    job_of: Vec<u16>,
    /// Jobs that have not reached their first mark, and their last.
    to_begin: usize,
    to_end: usize,
    /// Iterations that all jobs have made.
    pub rounds: usize,
    /// If each job is a worker that does not wait for the others: what servers have applied, and who may pull.
    pub updates: Option<Updates>,
    /// Who may stop it; `None`: nobody.
    pub watch: Option<&'a Watch>,
}

impl<'a, C: Chain, O: Observer> Simulation<'a, C, O> {
    pub fn new(
        cluster: &'a Cluster,
        wires: NetworkLinks,
        jobs: Vec<JobRun<'a, C>>,
        workers: Vec<Worker<C>>,
        fluid: bool,
        observer: O,
    ) -> Self {
        let global =
            |job: &JobRun<'a, C>| (0..job.place.roles.total()).map(|role| job.place.global(role) as usize).max();
        let roles = jobs.iter().filter_map(global).max().map_or(0, |last| last + 1);
        let mut job_of = vec![0; roles];
        for (number, job) in (0u16..).zip(&jobs) {
            (0..job.place.roles.total()).for_each(|role| job_of[job.place.global(role) as usize] = number);
        }
        let to_begin = jobs.iter().filter(|job| job.first_mark > 0).count();
        let mut simulation = Simulation {
            cluster,
            events: EventQueue::new(wires.links.len()),
            fluid: fluid.then(|| Fluid::new(&wires)),
            wires,
            observer,
            to_end: jobs.len(),
            jobs,
            workers,
            measured_from: 0,
            job_of,
            to_begin,
            rounds: 0,
            updates: None,
            watch: None,
        };
        if to_begin == 0 {
            simulation.begin_measuring(0);
        }
        simulation
    }

    /// Runs until every job has made its last mark, or it is stopped.
    ///
    /// # Errors
    /// No events are left before that: a program waits for a message that is never sent.
    pub fn run(&mut self) -> Result<(), String> {
        for job in 0..self.jobs.len() {
            let start = self.jobs[job].start;
            for worker in self.jobs[job].workers() {
                if start == 0 {
                    self.begin_iteration(worker, 0, C::default());
                } else {
                    self.events.push(Event::at_worker(start, EventKind::Begin, worker, C::default()));
                }
            }
        }
        while !self.is_over() && !self.watch.is_some_and(Watch::is_stopped) {
            // Some milliseconds.
            for _ in 0..10_000 {
                if self.is_over() {
                    break;
                }
                let event = self.events.pop();
                if event.kind == EventKind::Nothing {
                    return Err(self.standstill());
                }
                self.handle(event);
            }
        }
        Ok(())
    }

    #[inline]
    fn job_of(&self, role: u32) -> usize {
        usize::from(self.job_of[role as usize])
    }

    /// The job of a message: servers that several jobs share tell by its bucket.
    #[inline]
    fn job_of_message(&self, event: &Event<C>) -> usize {
        match &self.updates {
            None => self.job_of(event.to()),
            Some(updates) => ((event.inst >> 1) / updates.buckets) as usize,
        }
    }

    #[cold]
    fn standstill(&self) -> String {
        let waiting = self.workers.iter().filter(|w| !w.progress.is_over()).count();
        let sum = |count: fn(&JobRun<'a, C>) -> usize| self.jobs.iter().map(count).sum::<usize>();
        format!(
            "the simulation is stuck: {waiting} workers wait after {} marks, {} of {} lanes are at the barrier; this \
             is a bug in paceline",
            sum(|job| job.marks.len()),
            sum(|job| job.at_barrier.len()),
            sum(|job| job.barriers)
        )
    }

    #[inline]
    fn handle(&mut self, event: Event<C>) {
        match event.kind {
            EventKind::Head => fifo::head(&mut self.wires, &mut self.events, &mut self.observer, event),
            EventKind::Delivered if self.wires.adds => self.delivered(event),
            EventKind::Delivered | EventKind::Added => self.arrived(&event),
            EventKind::Multicast => fifo::multicast_head(&mut self.wires, &mut self.events, &mut self.observer, event),
            EventKind::Inside => fifo::inside(&mut self.wires, &mut self.events, &mut self.observer, event),
            EventKind::Resolve => {
                if let Some(fluid) = &mut self.fluid {
                    fluid.resolve(&mut self.events, event.time);
                }
            }
            EventKind::FlowEnd => {
                if let Some(fluid) = &mut self.fluid {
                    fluid.flow_end(&mut self.wires, &mut self.events, &mut self.observer, &event);
                }
            }
            EventKind::Begin => self.begin_iteration(event.to(), event.time, event.chain),
            EventKind::TaskDone => {
                self.task_done(self.plan_of(event.to()), event.to(), event.inst, event.time, event.chain);
            }
            EventKind::BarrierRelease => match self.updates.as_mut().and_then(|it| it.releasing.pop_front()) {
                None => self.release_barrier(self.job_of(event.to()), event.time, event.chain),
                Some(workers) => self.release_workers(&workers, event.time, event.chain),
            },
            EventKind::Nothing => {}
        }
    }

    // ---- programs

    /// Messages to be added go through the receiver's adder first, one after the other.
    fn delivered(&mut self, event: Event<C>) {
        if !self.wires.is_switch(event.to()) && self.reduces(&event) {
            fifo::add(&mut self.wires, &mut self.events, &mut self.observer, event);
        } else {
            self.arrived(&event);
        }
    }

    /// Whether the receive for this message adds it to others.
    fn reduces(&self, event: &Event<C>) -> bool {
        let job = &self.jobs[self.job_of_message(event)];
        let role = job.place.local(event.to());
        let bucket = job.prepared.buckets[((event.inst >> 1) - job.place.first_bucket) as usize];
        let step = |pc| job.prepared.schedule.step(&bucket, role, event.lane, pc);
        let steps = (0..).map(step).take_while(|step| *step != Step::Done);
        let mut receives = steps.filter_map(|step| match step {
            Step::Recv { from, slot, op, .. } if slot == event.slot => Some((from.count, op)),
            _ => None,
        });
        receives.next().is_some_and(|(count, op)| op == Op::Reduce || op == Op::AssignThenReduce && count > 1)
    }

    fn arrived(&mut self, event: &Event<C>) {
        let number = self.job_of_message(event);
        if self.jobs[number].memory.is_some() && self.wires.is_switch(event.from()) && !self.wires.is_switch(event.to())
        {
            self.free_switch_memory(event);
        }
        let job = &mut self.jobs[number];
        let (role, inst) = (job.place.local(event.to()), event.inst - 2 * job.place.first_bucket);
        let lanes = job.lanes_of[(inst >> 1) as usize];
        match job.lanes.arrive(role, inst, lanes, event.lane, event.slot) {
            Arrival::Now => self.advance(number, role, inst, event.lane, event.time, event.chain),
            // Servers and switches start a bucket with its first message, workers when it is ready.
            Arrival::Early if !job.is_worker(role) => self.issue(number, role, inst, event.time, event.chain),
            Arrival::Early => {}
        }
    }

    /// Roles and buckets from here on are counted within the job.
    fn issue(&mut self, number: usize, role: u32, inst: u32, now: u64, chain: C) {
        let job = &mut self.jobs[number];
        let lanes = job.lanes_of[(inst >> 1) as usize];
        if lanes == 0 {
            if job.is_worker(role) {
                self.bucket_done(number, role, inst, now, chain);
            }
            return;
        }
        if job.lanes.is_taken(role, inst) {
            job.delayed.push((role, inst));
            return;
        }
        job.lanes.issue(role, inst, lanes);
        for lane in 0..lanes {
            self.advance(number, role, inst, lane, now, chain);
        }
    }

    /// Begins what waited for the last worker to finish this bucket.
    #[inline]
    fn issue_delayed(&mut self, number: usize, inst: u32, now: u64, chain: C) {
        let job = &mut self.jobs[number];
        if job.delayed.is_empty() || job.delayed.iter().any(|&(role, of)| of == inst && job.lanes.is_taken(role, inst))
        {
            return;
        }
        for (role, _) in job.delayed.extract_if(.., |(_, of)| *of == inst).collect::<Vec<_>>() {
            self.issue(number, role, inst, now, chain);
        }
    }

    /// Executes the lane's program until it blocks or ends.
    fn advance(&mut self, number: usize, role: u32, inst: u32, lane: u32, now: u64, chain: C) {
        let prepared = self.jobs[number].prepared;
        let bucket = prepared.buckets[(inst >> 1) as usize];
        loop {
            let job = &mut self.jobs[number];
            let pc = job.lanes.counter(role, inst, lane);
            if pc & AT_BARRIER != 0 {
                return;
            }
            match prepared.schedule.step(&bucket, role, lane, u32::from(pc)) {
                Step::Recv { from, slot, .. } => {
                    if !job.lanes.take(role, inst, lane, slot, from.count) {
                        return;
                    }
                    job.lanes.set_counter(role, inst, lane, pc + 1);
                }
                Step::Send { to, multicast, slot, piece } => {
                    job.lanes.set_counter(role, inst, lane, pc + 1);
                    self.send(number, role, inst, lane, to, multicast, slot, piece, now, chain);
                }
                Step::Barrier => {
                    job.lanes.set_counter(role, inst, lane, pc | AT_BARRIER);
                    job.at_barrier.push((role, inst, lane));
                    let is_complete = job.at_barrier.len() == job.barriers;
                    if let Some(updates) = &mut self.updates {
                        updates.arrived(number as u32, inst >> 1, role - job.place.roles.workers);
                    }
                    if is_complete {
                        self.barrier_complete(number, now, chain);
                    }
                    return;
                }
                Step::Done => {
                    if job.lanes.finish(role, inst) && job.is_worker(role) {
                        self.bucket_done(number, role, inst, now, chain);
                        self.issue_delayed(number, inst, now, chain);
                    }
                    return;
                }
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a send step")]
    #[inline]
    fn send(
        &mut self,
        number: usize,
        role: u32,
        inst: u32,
        lane: u32,
        to: Peers,
        multicast: bool,
        slot: u16,
        piece: Piece,
        now: u64,
        chain: C,
    ) {
        let job = &self.jobs[number];
        let (prepared, place) = (job.prepared, job.place);
        if job.boundary == Boundary::FirstSend && !job.is_worker(role) {
            self.server_sends(number, role, inst, now, chain);
        }
        let bytes = piece.len * prepared.element_bytes;
        let inst = inst + 2 * place.first_bucket;
        // All receivers of a step are of one kind.
        let to = to.from_base(place.shift(to.get(0)));
        let event = Event {
            time: now,
            bytes,
            inst,
            lane,
            src: place.global(role) as u16,
            dst: 0,
            slot,
            stage: 0,
            kind: EventKind::Head,
            chain,
        };
        if multicast && to.count > 1 {
            match &mut self.fluid {
                None => fifo::multicast(&mut self.wires, &mut self.events, &mut self.observer, event, to),
                Some(fluid) => fluid.send(&self.wires, &mut self.events, event, Some(to)),
            }
            return;
        }
        for k in 0..to.count {
            self.unicast(Event { dst: to.get(k) as u16, ..event });
        }
    }

    #[inline]
    fn unicast(&mut self, event: Event<C>) {
        let job = self.job_of(event.from());
        if let Some(memory) = &mut self.jobs[job].memory
            && self.wires.is_switch(event.to())
            && !self.wires.is_switch(event.from())
            && !memory.admit(event, self.wires.switch(event.to()).id)
        {
            return;
        }
        self.transmit(event);
    }

    #[inline]
    fn transmit(&mut self, event: Event<C>) {
        match &mut self.fluid {
            None => fifo::send(&mut self.wires, &mut self.events, &mut self.observer, event),
            Some(fluid) => fluid.send(&self.wires, &mut self.events, event, None),
        }
    }

    fn free_switch_memory(&mut self, event: &Event<C>) {
        let job = self.job_of(event.to());
        let (Some(memory), wires) = (&mut self.jobs[job].memory, &self.wires) else { return };
        let switch = wires.switch(event.from()).id;
        for held in memory.release(event, switch, |message| wires.switch(message.to()).id) {
            self.transmit(Event { time: event.time, chain: event.chain, ..held });
        }
    }

    // ---- marks and barrier

    /// Nothing is started after the last mark, because it would occupy links.
    pub fn is_over(&self) -> bool {
        self.to_end == 0
    }

    fn mark(&mut self, number: usize, time: u64, chain: C) {
        let job = &mut self.jobs[number];
        job.marks.push(Mark { time, chain });
        if let Some(watch) = self.watch {
            watch.count(&mut self.rounds, self.jobs.iter().map(|job| job.marks.len()));
        }
        let job = &mut self.jobs[number];
        if job.until == Until::Mark(job.marks.len()) {
            self.to_end -= 1;
        }
        if job.marks.len() == job.first_mark && self.to_begin > 0 {
            self.to_begin -= 1;
            if self.to_begin == 0 {
                self.begin_measuring(time);
            }
        }
        if let Some(updates) = &mut self.updates {
            updates.ended += 1;
            let ended = updates.ended;
            if ended >= updates.most {
                self.to_end = 0;
            } else if ended >= updates.most / 2 && self.to_begin > 0 {
                self.to_begin = 0;
                self.begin_measuring(time);
            }
        }
    }

    /// Busy time before this is not measured.
    fn begin_measuring(&mut self, now: u64) {
        self.measured_from = now;
        self.wires.links.iter_mut().for_each(|link| link.busy = 0);
        self.workers.iter_mut().for_each(|worker| worker.busy = 0);
        self.observer.begin();
        if let Some(updates) = &mut self.updates {
            updates.begin_measuring(now);
        }
        for job in &mut self.jobs {
            job.marks_before = job.marks.len();
            if let Until::Iterations(count) = job.until {
                // From the next mark on: an iteration that is under way began without the others.
                job.until = Until::Mark(job.marks.len() + 1 + count);
            }
        }
    }

    fn barrier_complete(&mut self, number: usize, now: u64, chain: C) {
        if self.jobs[number].boundary == Boundary::Barrier {
            self.mark(number, now, chain);
            if self.is_over() {
                return;
            }
        }
        let job = &self.jobs[number];
        let wait = self.wires.barrier_time(job.place.first_server, job.place.roles.servers);
        if let Some(updates) = &mut self.updates {
            let workers = updates.finish(number as u32, now);
            if workers.is_empty() {
                return;
            }
            if wait == Time::ZERO {
                return self.release_workers(&workers, now, chain);
            }
            updates.releasing.push_back(workers);
        }
        if wait == Time::ZERO {
            self.release_barrier(number, now, chain);
        } else {
            let mut chain = chain;
            chain.add(Part::Latency, wait.0, 0);
            let worker = job.place.first_worker;
            self.events.push(Event::at_worker(now + wait.0, EventKind::BarrierRelease, worker, chain));
        }
    }

    fn release_barrier(&mut self, number: usize, now: u64, chain: C) {
        let job = &mut self.jobs[number];
        let mut released = std::mem::take(&mut job.at_barrier);
        let prepared = job.prepared;
        released.sort_unstable_by_key(|&(role, inst, lane)| {
            let bucket = inst >> 1;
            let group = prepared.schedule.release_group(&prepared.buckets[bucket as usize], lane);
            (role, group, prepared.priority[bucket as usize], lane)
        });
        for (role, inst, lane) in released {
            let lanes = &mut self.jobs[number].lanes;
            let pc = lanes.counter(role, inst, lane) & !AT_BARRIER;
            lanes.set_counter(role, inst, lane, pc + 1);
            self.advance(number, role, inst, lane, now, chain);
        }
    }

    /// Workers that do not wait for others pull all parameters, as if they had passed one barrier together.
    fn release_workers(&mut self, workers: &[u32], now: u64, chain: C) {
        let Some(updates) = &mut self.updates else { return };
        let mut released = Vec::new();
        for &worker in workers {
            updates.pull(worker);
            let job = &mut self.jobs[worker as usize];
            let group = if updates.block { worker } else { 0 };
            for (role, inst, lane) in std::mem::take(&mut job.at_barrier) {
                let priority = job.prepared.priority[(inst >> 1) as usize];
                released.push((role, group, priority, lane, worker, inst));
            }
        }
        released.sort_unstable();
        for (role, _, _, lane, worker, inst) in released {
            let lanes = &mut self.jobs[worker as usize].lanes;
            let pc = lanes.counter(role, inst, lane) & !AT_BARRIER;
            lanes.set_counter(role, inst, lane, pc + 1);
            self.advance(worker as usize, role, inst, lane, now, chain);
        }
    }

    fn server_sends(&mut self, number: usize, role: u32, inst: u32, now: u64, chain: C) {
        let job = &self.jobs[number];
        let expected = job.marks.len() as u32 & 1;
        if !self.wires.is_switch(job.place.global(role)) && inst & 1 == expected {
            self.mark(number, now, chain);
        }
    }

    // ---- workers

    fn begin_iteration(&mut self, worker: u32, now: u64, chain: C) {
        let plan = self.plan_of(worker);
        let w = &mut self.workers[worker as usize];
        w.vary(self.cluster);
        w.since = now;
        let iteration = w.iteration + 1;
        *w.now() = Moments { iteration, began: now, pulled: now, ..Moments::default() };
        plan.begin(&mut w.progress, w.iteration == 0);
        for &task in &plan.first {
            if plan.is_ready(&self.workers[worker as usize].progress, task) {
                self.begin_task(plan, worker, task, now, chain);
            }
        }
    }

    fn begin_task(&mut self, plan: &'a PlanRun, worker: u32, task: u32, now: u64, chain: C) {
        let number = self.job_of(worker);
        let w = &mut self.workers[worker as usize];
        if let Some(span) = w.progress.spans.get_mut(task as usize) {
            span.0 = now;
        }
        let (run, begins, end) = match plan.tasks[task as usize] {
            Task::Compute { run, begins, end } => (&plan.runs[run as usize], begins, end),
            Task::Exchange(bucket) => {
                let inst = 2 * bucket + (w.iteration & 1);
                self.issue(number, worker - self.jobs[number].place.first_worker, inst, now, chain);
                return;
            }
        };
        let factor = w.factors.of(run.kind);
        let mut start = if begins { Mark { time: now, chain } } else { w.run };
        if begins {
            w.busy += run.total.scaled(factor).0;
            if run.is_models {
                w.run = start;
                if run.kind == Kind::Backward && w.now().backward_end == 0 {
                    w.now().backward = now;
                }
                if run.kind == Kind::Backward {
                    w.now().backward_end = now + run.total.scaled(factor).0;
                }
                self.show(worker, run, now, factor);
            }
        }
        let time = end.scaled(factor).0;
        start.chain.add(Part::Compute, time, 0);
        if time == 0 && run.kind == Kind::Optimizer {
            self.task_done(plan, worker, task, now, start.chain);
            return;
        }
        let event = Event::at_worker(start.time + time, EventKind::TaskDone, worker, start.chain);
        self.events.push(Event { inst: task, ..event });
    }

    /// The waiting before a run, and its parts.
    fn show(&mut self, worker: u32, run: &Run, now: u64, factor: f64) {
        if !O::ACTIVE {
            return;
        }
        let since = self.workers[worker as usize].since;
        if now > since {
            self.observer.worker(worker, run.awaited, since, now);
        }
        let mut start = now;
        for &(activity, end) in &run.shown {
            let end = now + end.scaled(factor).0;
            if end > start || activity != Activity::Optimizer {
                self.observer.worker(worker, activity, start, end);
            }
            start = end;
        }
    }

    fn task_done(&mut self, plan: &'a PlanRun, worker: u32, task: u32, now: u64, chain: C) {
        let w = &mut self.workers[worker as usize];
        if let Task::Compute { run, .. } = plan.tasks[task as usize]
            && plan.runs[run as usize].is_models
        {
            w.since = now;
        }
        let (ready, is_over) = plan.end(&mut w.progress, task, now);
        for next in ready {
            self.begin_task(plan, worker, next, now, chain);
        }
        if is_over {
            self.iteration_done(worker, now, chain);
        }
    }

    /// The worker has the sum of a bucket, or its new parameters.
    fn bucket_done(&mut self, number: usize, role: u32, inst: u32, now: u64, chain: C) {
        let worker = self.jobs[number].place.global(role);
        let plan = self.plan_of(worker);
        let (task, w) = (plan.task_of(inst >> 1), &mut self.workers[worker as usize]);
        if inst & 1 == w.iteration & 1 {
            self.task_done(plan, worker, task, now, chain);
            return;
        }
        w.now().pulled = now;
        for next in plan.end_previous(&mut w.progress, task) {
            self.begin_task(plan, worker, next, now, chain);
        }
    }

    fn iteration_done(&mut self, worker: u32, now: u64, chain: C) {
        let w = &mut self.workers[worker as usize];
        w.since = now;
        let iteration = w.iteration as usize;
        w.iteration += 1;
        let number = self.job_of(worker);
        let job = &mut self.jobs[number];
        if job.ended.len() <= iteration {
            job.ended.resize(iteration + 1, Ended { workers: 0, time: 0, rank: 0, chain: C::default() });
        }
        let ended = &mut job.ended[iteration];
        ended.workers += 1;
        if now > ended.time || worker < ended.rank || ended.workers == 1 {
            (ended.time, ended.rank, ended.chain) = (now, worker, chain);
        }
        let last = *ended;
        let all = last.workers == job.place.roles.workers;
        let (together, boundary, workers) = (job.together, job.boundary, job.workers());
        if all && boundary == Boundary::Sums {
            self.mark(number, now, last.chain);
        }
        if self.is_over() {
            return;
        }
        if !together {
            self.begin_iteration(worker, now, chain);
        } else if all {
            for worker in workers {
                let since = self.workers[worker as usize].since;
                if now > since {
                    self.observer.worker(worker, Activity::WaitForSums, since, now);
                }
                self.begin_iteration(worker, now, last.chain);
            }
        }
    }

    fn plan_of(&self, worker: u32) -> &'a PlanRun {
        let plans = &self.jobs[self.job_of(worker)].prepared.workers;
        &plans[self.workers[worker as usize].plan]
    }
}
