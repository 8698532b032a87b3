//! The event loop: workers compute, programs advance, the network carries messages.
use paceline_model::{Cluster, Time};
use paceline_schedule::{Op, Peers, Piece, Step};

use crate::event::{Event, EventKind};
use crate::event_queue::EventQueue;
use crate::lanes::{AT_BARRIER, Arrival, Lanes};
use crate::network::fifo;
use crate::network::fluid::Fluid;
use crate::network::switch::Memory;
use crate::network::topology::NetworkLinks;
use crate::observer::{Activity, Observer};
use crate::path::{Chain, Part};
use crate::prepare::Prepared;
use crate::worker::{Phase, Worker};

/// The start or end of a measured iteration, and the chain of causes behind it.
#[derive(Clone, Copy)]
pub(crate) struct Mark<C> {
    pub time: u64,
    pub chain: C,
}

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

pub(crate) struct Simulation<'a, C, O> {
    pub prepared: &'a Prepared,
    pub cluster: &'a Cluster,
    pub boundary: Boundary,
    /// All workers begin an iteration together.
    pub together: bool,
    /// The mark at which measuring begins; 0 is the start.
    pub first_mark: usize,
    /// Marks after which the simulation stops.
    pub marks_wanted: usize,
    pub marks: Vec<Mark<C>>,
    pub wires: NetworkLinks,
    pub observer: O,
    events: EventQueue<C>,
    fluid: Option<Fluid<C>>,
    memory: Option<Memory<C>>,
    lanes: Lanes,
    pub workers: Vec<Worker<C>>,
    lanes_of: Vec<u32>,
    at_barrier: Vec<(u32, u32, u32)>,
    barriers: usize,
    /// Workers that have finished each iteration.
    ended: Vec<Ended<C>>,
}

impl<'a, C: Chain, O: Observer> Simulation<'a, C, O> {
    #[expect(clippy::too_many_arguments, reason = "called once")]
    pub fn new(
        prepared: &'a Prepared,
        cluster: &'a Cluster,
        workers: Vec<Worker<C>>,
        boundary: Boundary,
        together: bool,
        (first_mark, marks_wanted): (usize, usize),
        wires: NetworkLinks,
        fluid: bool,
        observer: O,
    ) -> Self {
        let roles = prepared.schedule.roles();
        let all_barriers = |bucket| (0..roles.total()).map(move |role| prepared.schedule.barriers(bucket, role));
        let memory = cluster.switch.memory.filter(|_| roles.switches > 0);
        Simulation {
            prepared,
            cluster,
            boundary,
            together,
            first_mark,
            marks_wanted,
            marks: Vec::with_capacity(marks_wanted),
            events: EventQueue::new(wires.links.len()),
            fluid: fluid.then(|| Fluid::new(&wires)),
            wires,
            observer,
            memory: memory.map(|bytes| Memory::new(bytes, roles.workers)),
            lanes: Lanes::new(
                roles.total(),
                roles.workers,
                prepared.buckets.len(),
                prepared.schedule.slots(),
                prepared.schedule.senders(),
            ),
            workers,
            lanes_of: prepared.buckets.iter().map(|bucket| prepared.schedule.lanes(bucket)).collect(),
            at_barrier: Vec::new(),
            barriers: prepared.buckets.iter().flat_map(all_barriers).sum::<u32>() as usize,
            ended: Vec::new(),
        }
    }

    /// Runs until all marks have been made.
    ///
    /// # Errors
    /// No events are left before that: a program waits for a message that is never sent.
    pub fn run(&mut self) -> Result<(), String> {
        for worker in 0..self.workers.len() as u32 {
            self.begin_iteration(worker, 0, C::default());
        }
        while !self.is_over() {
            let event = self.events.pop();
            if event.kind == EventKind::Nothing {
                return Err(self.standstill());
            }
            self.handle(event);
        }
        Ok(())
    }

    #[cold]
    fn standstill(&self) -> String {
        let waiting = self.workers.iter().filter(|w| w.phase != Phase::Idle).count();
        format!(
            "the simulation is stuck: {waiting} workers wait after {} marks, {} of {} lanes are at the barrier; this \
             is a bug in paceline",
            self.marks.len(),
            self.at_barrier.len(),
            self.barriers
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
            EventKind::LayerDone => self.layer_done(event.to(), event.time, event.chain),
            EventKind::GradientReady => self.gradients_ready(event.to(), event.time, event.chain),
            EventKind::BackwardDone => self.backward_done(event.to(), event.time, event.chain),
            EventKind::OptimizerDone => self.optimizer_done(event.to(), event.time, event.chain),
            EventKind::BarrierRelease => self.release_barrier(event.time, event.chain),
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
        let (role, bucket) = (event.to(), self.prepared.buckets[(event.inst >> 1) as usize]);
        let step = |pc| self.prepared.schedule.step(&bucket, role, event.lane, pc);
        let steps = (0..).map(step).take_while(|step| *step != Step::Done);
        let mut receives = steps.filter_map(|step| match step {
            Step::Recv { from, slot, op, .. } if slot == event.slot => Some((from.count, op)),
            _ => None,
        });
        receives.next().is_some_and(|(count, op)| op == Op::Reduce || op == Op::AssignThenReduce && count > 1)
    }

    fn arrived(&mut self, event: &Event<C>) {
        let (role, inst) = (event.to(), event.inst);
        let lanes = self.lanes_of[(inst >> 1) as usize];
        if self.memory.is_some() && self.wires.is_switch(event.from()) {
            self.free_switch_memory(event);
        }
        match self.lanes.arrive(role, inst, lanes, event.lane, event.slot) {
            Arrival::Now => self.advance(role, inst, event.lane, event.time, event.chain),
            // Servers and switches start a bucket with its first message, workers when it is ready.
            Arrival::Early if role >= self.workers.len() as u32 => self.issue(role, inst, event.time, event.chain),
            Arrival::Early => {}
        }
    }

    fn issue(&mut self, role: u32, inst: u32, now: u64, chain: C) {
        let lanes = self.lanes_of[(inst >> 1) as usize];
        if lanes == 0 {
            if role < self.workers.len() as u32 {
                self.bucket_done(role, inst, now, chain);
            }
            return;
        }
        self.lanes.issue(role, inst, lanes);
        for lane in 0..lanes {
            self.advance(role, inst, lane, now, chain);
        }
    }

    /// Executes the lane's program until it blocks or ends.
    fn advance(&mut self, role: u32, inst: u32, lane: u32, now: u64, chain: C) {
        let bucket = self.prepared.buckets[(inst >> 1) as usize];
        loop {
            let pc = self.lanes.counter(role, inst, lane);
            if pc & AT_BARRIER != 0 {
                return;
            }
            match self.prepared.schedule.step(&bucket, role, lane, u32::from(pc)) {
                Step::Recv { from, slot, .. } => {
                    if !self.lanes.take(role, inst, lane, slot, from.count) {
                        return;
                    }
                    self.lanes.set_counter(role, inst, lane, pc + 1);
                }
                Step::Send { to, multicast, slot, piece } => {
                    self.lanes.set_counter(role, inst, lane, pc + 1);
                    self.send(role, inst, lane, to, multicast, slot, piece, now, chain);
                }
                Step::Barrier => {
                    self.lanes.set_counter(role, inst, lane, pc | AT_BARRIER);
                    self.at_barrier.push((role, inst, lane));
                    if self.at_barrier.len() == self.barriers {
                        self.barrier_complete(now, chain);
                    }
                    return;
                }
                Step::Done => {
                    if self.lanes.finish(role, inst) && role < self.workers.len() as u32 {
                        self.bucket_done(role, inst, now, chain);
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
        if self.boundary == Boundary::FirstSend && role >= self.workers.len() as u32 {
            self.server_sends(role, inst, now, chain);
        }
        let bytes = piece.len * self.prepared.element_bytes;
        let event = Event {
            time: now,
            bytes,
            inst,
            lane,
            src: role as u16,
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
        if let Some(memory) = &mut self.memory
            && self.wires.is_switch(event.to())
            && !memory.admit(event)
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
        let Some(memory) = &mut self.memory else { return };
        for held in memory.release(event.from(), event.inst, event.lane, event.bytes) {
            self.transmit(Event { time: event.time, chain: event.chain, ..held });
        }
    }

    // ---- marks and barrier

    /// Nothing is started after the last mark, because it would occupy links.
    fn is_over(&self) -> bool {
        self.marks.len() >= self.marks_wanted
    }

    fn mark(&mut self, time: u64, chain: C) {
        self.marks.push(Mark { time, chain });
        if self.marks.len() == self.first_mark {
            // Busy time before this mark is not measured.
            self.wires.links.iter_mut().for_each(|link| link.busy = 0);
            self.workers.iter_mut().for_each(|worker| worker.busy = 0);
        }
    }

    fn barrier_complete(&mut self, now: u64, chain: C) {
        if self.boundary == Boundary::Barrier {
            self.mark(now, chain);
            if self.is_over() {
                return;
            }
        }
        let wait = self.wires.barrier_time();
        if wait == Time::ZERO {
            self.release_barrier(now, chain);
        } else {
            let mut chain = chain;
            chain.add(Part::Latency, wait.0, 0);
            self.events.push(Event::at_worker(now + wait.0, EventKind::BarrierRelease, 0, chain));
        }
    }

    fn release_barrier(&mut self, now: u64, chain: C) {
        let mut released = std::mem::take(&mut self.at_barrier);
        let prepared = self.prepared;
        released.sort_unstable_by_key(|&(role, inst, lane)| {
            let bucket = inst >> 1;
            let group = prepared.schedule.release_group(&prepared.buckets[bucket as usize], lane);
            (role, group, prepared.priority[bucket as usize], lane)
        });
        for (role, inst, lane) in released {
            let pc = self.lanes.counter(role, inst, lane) & !AT_BARRIER;
            self.lanes.set_counter(role, inst, lane, pc + 1);
            self.advance(role, inst, lane, now, chain);
        }
    }

    fn server_sends(&mut self, role: u32, inst: u32, now: u64, chain: C) {
        let expected = self.marks.len() as u32 & 1;
        if !self.wires.is_switch(role) && inst & 1 == expected {
            self.mark(now, chain);
        }
    }

    // ---- workers

    fn begin_iteration(&mut self, worker: u32, now: u64, chain: C) {
        let w = &mut self.workers[worker as usize];
        w.vary(self.cluster);
        (w.layer, w.next_ready, w.chain, w.since) = (0, 0, chain, now);
        if self.prepared.pull_by_layer && w.iteration > 0 {
            self.next_layer(worker, now, chain);
            return;
        }
        // There is nothing to wait for between layers.
        w.phase = Phase::Forward;
        let recorded = &self.prepared.workers[w.recorded];
        w.layer = recorded.layers.len();
        let time = recorded.forward.scaled(w.factor).0;
        if O::ACTIVE {
            let mut start = now;
            for (number, layer) in (0..).zip(&recorded.layers) {
                let end = start + layer.duration.scaled(w.factor).0;
                self.observer.worker(worker, Activity::Layer(number), start, end);
                start = end;
            }
        }
        self.after(worker, now, time, EventKind::LayerDone, chain);
    }

    fn after(&mut self, worker: u32, now: u64, time: u64, kind: EventKind, mut chain: C) {
        if kind != EventKind::GradientReady {
            self.workers[worker as usize].busy += time;
        }
        chain.add(Part::Compute, time, 0);
        self.events.push(Event::at_worker(now + time, kind, worker, chain));
    }

    /// Starts the next forward layer if its parameters have arrived, or the backward pass.
    fn next_layer(&mut self, worker: u32, now: u64, chain: C) {
        let w = &mut self.workers[worker as usize];
        let recorded = &self.prepared.workers[w.recorded];
        let Some(layer) = recorded.layers.get(w.layer) else {
            self.begin_backward(worker, now, chain);
            return;
        };
        let needs = &recorded.needs[layer.needs.clone()];
        if needs.iter().any(|&bucket| w.held[bucket as usize] < w.iteration) {
            if w.phase != Phase::Parameters {
                (w.phase, w.since) = (Phase::Parameters, now);
            }
            return;
        }
        if w.phase == Phase::Parameters && now > w.since {
            self.observer.worker(worker, Activity::Wait(w.layer as u32), w.since, now);
        }
        w.phase = Phase::Forward;
        let time = layer.duration.scaled(w.factor).0;
        self.observer.worker(worker, Activity::Layer(w.layer as u32), now, now + time);
        w.layer += 1;
        self.after(worker, now, time, EventKind::LayerDone, chain);
    }

    fn layer_done(&mut self, worker: u32, now: u64, chain: C) {
        self.next_layer(worker, now, chain);
    }

    fn begin_backward(&mut self, worker: u32, now: u64, chain: C) {
        let w = &mut self.workers[worker as usize];
        (w.phase, w.backward_start, w.chain) = (Phase::Backward, now, chain);
        let recorded = &self.prepared.workers[w.recorded];
        let time = recorded.backward.scaled(w.backward_factor).0;
        self.observer.worker(worker, Activity::Backward, now, now + time);
        self.plan_gradient(worker);
        self.after(worker, now, time, EventKind::BackwardDone, chain);
    }

    fn plan_gradient(&mut self, worker: u32) {
        let w = &self.workers[worker as usize];
        if let Some((ready, _)) = self.prepared.workers[w.recorded].ready.get(w.next_ready) {
            let time = ready.scaled(w.backward_factor).0;
            self.after(worker, w.backward_start, time, EventKind::GradientReady, w.chain);
        }
    }

    fn gradients_ready(&mut self, worker: u32, now: u64, chain: C) {
        let prepared = self.prepared;
        let w = &self.workers[worker as usize];
        let (parity, start) = (w.iteration & 1, w.next_ready);
        let ready = &prepared.workers[w.recorded].ready[start..];
        let at = ready[0].0;
        let count = ready.iter().take_while(|(time, _)| *time == at).count();
        self.workers[worker as usize].next_ready += count;
        for &(_, bucket) in &ready[..count] {
            self.issue(worker, 2 * bucket + parity, now, chain);
        }
        self.plan_gradient(worker);
    }

    fn backward_done(&mut self, worker: u32, now: u64, chain: C) {
        let w = &mut self.workers[worker as usize];
        // Gradients that become ready at the end of the pass are issued before anything that follows it.
        if w.next_ready < self.prepared.workers[w.recorded].ready.len() {
            self.events.push(Event::at_worker(now, EventKind::BackwardDone, worker, chain));
            return;
        }
        (w.phase, w.since) = (Phase::Sums, now);
        if self.prepared.pull_by_layer {
            w.iteration += 1;
            self.begin_iteration(worker, now, chain);
        } else {
            self.sums_complete(worker, now, chain);
        }
    }

    /// The worker has the sum of a bucket, or its new parameters.
    fn bucket_done(&mut self, worker: u32, inst: u32, now: u64, chain: C) {
        let w = &mut self.workers[worker as usize];
        w.held[(inst >> 1) as usize] += 1;
        w.held_total += 1;
        match w.phase {
            Phase::Parameters => self.next_layer(worker, now, chain),
            Phase::Sums => self.sums_complete(worker, now, chain),
            _ => {}
        }
    }

    fn sums_complete(&mut self, worker: u32, now: u64, chain: C) {
        let w = &mut self.workers[worker as usize];
        if w.held_total < (u64::from(w.iteration) + 1) * self.prepared.buckets.len() as u64 {
            return;
        }
        if now > w.since {
            self.observer.worker(worker, Activity::WaitForSums, w.since, now);
        }
        w.phase = Phase::Optimizer;
        let time = self.prepared.workers[w.recorded].optimizer.scaled(w.factor).0;
        if time == 0 {
            self.optimizer_done(worker, now, chain);
            return;
        }
        self.observer.worker(worker, Activity::Optimizer, now, now + time);
        self.after(worker, now, time, EventKind::OptimizerDone, chain);
    }

    fn optimizer_done(&mut self, worker: u32, now: u64, chain: C) {
        let w = &mut self.workers[worker as usize];
        (w.phase, w.since) = (Phase::Idle, now);
        let iteration = w.iteration as usize;
        w.iteration += 1;
        if self.ended.len() <= iteration {
            self.ended.resize(iteration + 1, Ended { workers: 0, time: 0, rank: 0, chain: C::default() });
        }
        let ended = &mut self.ended[iteration];
        ended.workers += 1;
        if now > ended.time || worker < ended.rank || ended.workers == 1 {
            (ended.time, ended.rank, ended.chain) = (now, worker, chain);
        }
        let last = *ended;
        let all = last.workers == self.workers.len() as u32;
        if all && self.boundary == Boundary::Sums {
            self.mark(now, last.chain);
        }
        if self.is_over() {
            return;
        }
        if !self.together {
            self.begin_iteration(worker, now, chain);
        } else if all {
            for worker in 0..self.workers.len() as u32 {
                let since = self.workers[worker as usize].since;
                if now > since {
                    self.observer.worker(worker, Activity::WaitForSums, since, now);
                }
                self.begin_iteration(worker, now, last.chain);
            }
        }
    }
}
