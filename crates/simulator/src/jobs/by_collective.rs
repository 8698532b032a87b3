//! Runs jobs with their collectives as single events. All ranks of a job do the same, so one of them stands for all: that
//! which computes longest, for which the others wait.
//!
//! A collective takes as long as alone where nobody else needs its links. Where together they need more of a link than
//! there is, those that share it slow down: on the fluid network so that every connection gets as much as others (max-min
//! fair), on the FIFO network all alike, because who sends more has more in the queue.
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use paceline_model::Cluster;

use super::alone::{Alone, PARTS, Use};
use super::watch::Watch;
use crate::plan_run::{PlanRun, Progress, Task};
use crate::planning::{Factors, Kind};
use crate::simulation::Until;
use crate::worker::Worker;

/// A job to run.
pub(super) struct Running<'a> {
    pub plan: &'a PlanRun,
    /// All ranks; the slowest one's factors count.
    pub ranks: Vec<Worker<()>>,
    /// The collective of each bucket.
    pub collectives: &'a [Arc<Collective>],
    pub first_mark: usize,
    pub until: Until,
    pub start: u64,
    /// How many times longer its collectives take than by themselves, because several of its own run at once.
    pub pace: f64,
    pub marks: Vec<u64>,
    pub marks_before: usize,
    state: State,
}

/// How far a job is.
#[derive(Default)]
struct State {
    iteration: u32,
    progress: Progress,
    factors: Factors,
    /// When the run of computation began in which it is.
    run: u64,
}

/// A collective as others meet it.
#[derive(Debug)]
pub(super) struct Collective {
    pub alone: Arc<Alone>,
    phases: Vec<Phase>,
    /// Numbers all collectives of all jobs.
    pub number: u32,
}

/// A part of a collective in which it uses links evenly.
#[derive(Debug)]
struct Phase {
    /// Rest of the collective at its end, in picoseconds of its time alone.
    left: f64,
    uses: Vec<OfClass>,
}

/// The use of each link of a class.
#[derive(Clone, Copy, Debug)]
struct OfClass {
    class: u32,
    /// Of the time.
    share: f64,
    /// Connections that share it.
    flows: f64,
}

/// The links that a collective uses alike with all others.
#[derive(Debug)]
pub(super) struct Classes {
    /// How many links are of each.
    links: Vec<f64>,
    pub collectives: usize,
}

/// Parts of a collective are one phase if their use of links differs by less.
const EVEN: f64 = 0.05;
/// The same where many run at once, whose differences cancel out.
const NEARLY_EVEN: f64 = 0.25;

/// So much may the connections differ of a collective on two links that are compared.
const ALIKE: f64 = 0.25;

/// How many parallel links there are, and the parts of their use, with who uses them.
type Used = (u32, Vec<(u32, i64)>);

/// Equal uses of two collectives differ by the rounding of times only.
fn digits(number: f64) -> i64 {
    (number * 1e4).round() as i64
}

/// The collectives of each job. Links that all collectives use alike are one class.
///
/// `side_by_side`: for each job, whether any number of its collectives run at once.
pub(super) fn classified(jobs: &[Vec<Arc<Alone>>], side_by_side: &[bool]) -> (Vec<Vec<Arc<Collective>>>, Classes) {
    let mut numbers: HashMap<*const Alone, u32> = HashMap::new();
    let mut distinct: Vec<&Arc<Alone>> = Vec::new();
    let mut beside: Vec<bool> = Vec::new();
    let every = jobs.iter().zip(side_by_side).flat_map(|(job, own)| job.iter().map(move |alone| (alone, own)));
    for (alone, own) in every {
        numbers.entry(Arc::as_ptr(alone)).or_insert_with(|| {
            distinct.push(alone);
            beside.push(*own);
            distinct.len() as u32 - 1
        });
    }
    // How each link is used by whom.
    let mut used: BTreeMap<u32, Used> = BTreeMap::new();
    for (number, alone) in (0..).zip(&distinct) {
        for it in &alone.uses {
            let (parallel, of) = used.entry(it.link).or_default();
            *parallel = it.parallel;
            of.extend(it.shares.iter().chain([&it.flows]).map(|&one| (number, digits(one))));
        }
    }
    let used = binding(used, &distinct);
    let mut links: Vec<f64> = Vec::new();
    let mut known: HashMap<&[(u32, i64)], u32> = HashMap::new();
    let mut class_of: HashMap<u32, u32> = HashMap::new();
    for (&link, (parallel, of)) in &used {
        let class = *known.entry(of).or_insert_with(|| {
            links.push(0.0);
            links.len() as u32 - 1
        });
        links[class as usize] += f64::from(*parallel);
        class_of.insert(link, class);
    }
    let all: Vec<Arc<Collective>> = (0..)
        .zip(&distinct)
        .map(|(number, alone)| Arc::new(Collective::new(alone, number, &class_of, beside[number as usize])))
        .collect();
    let of =
        |job: &Vec<Arc<Alone>>| job.iter().map(|it| Arc::clone(&all[numbers[&Arc::as_ptr(it)] as usize])).collect();
    (jobs.iter().map(of).collect(), Classes { links, collectives: all.len() })
}

/// The links that may be full before others: one that everybody uses less than another one, in every part, never is.
fn binding(mut used: BTreeMap<u32, Used>, distinct: &[&Arc<Alone>]) -> BTreeMap<u32, Used> {
    let find = |number: u32, link: u32| {
        let uses = &distinct[number as usize].uses;
        uses.binary_search_by_key(&link, |it| it.link).ok().map(|place| &uses[place])
    };
    let whose = |of: &[(u32, i64)]| {
        let mut numbers: Vec<u32> = of.iter().map(|&(number, _)| number).collect();
        numbers.dedup();
        numbers
    };
    let total = |link: u32, numbers: &[u32]| -> f64 {
        numbers.iter().filter_map(|&it| find(it, link)).map(|it| it.shares.iter().sum::<f64>()).sum()
    };
    let mut links: Vec<(u32, Vec<u32>, f64)> = used
        .iter()
        .map(|(&link, (_, of))| {
            let numbers = whose(of);
            let total = total(link, &numbers);
            (link, numbers, total)
        })
        .collect();
    // The most used first, so that each needs to be compared with those that stay only.
    links.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
    let totals: HashMap<u32, f64> = links.iter().map(|(link, _, total)| (*link, *total)).collect();
    let (mut stay, mut more): (Vec<u32>, Vec<(u32, u32)>) = Default::default();
    for (link, numbers, total) in &links {
        let is_less_than = |other: u32| {
            numbers.iter().all(|&number| match (find(number, *link), find(number, other)) {
                (Some(own), Some(theirs)) => {
                    let mut parts = own.shares.iter().zip(theirs.shares);
                    parts.all(|(own, theirs)| *own <= theirs + EVEN) && (own.flows / theirs.flows - 1.0).abs() < ALIKE
                }
                (own, _) => own.is_none(),
            })
        };
        match stay.iter().find(|&&other| is_less_than(other)) {
            None => stay.push(*link),
            // As full as the other one.
            Some(other) if *total >= 0.9 * totals[other] => more.push((*other, used[link].0)),
            Some(_) => {}
        }
    }
    for (link, parallel) in more {
        used.entry(link).and_modify(|it| it.0 += parallel);
    }
    used.retain(|link, _| stay.contains(link));
    used
}

impl Collective {
    fn new(alone: &Arc<Alone>, number: u32, class_of: &HashMap<u32, u32>, side_by_side: bool) -> Collective {
        let mut seen = HashSet::new();
        let classes = alone.uses.iter().filter_map(|it| Some((*class_of.get(&it.link)?, it)));
        let uses: Vec<(u32, &Use)> = classes.filter(|&(class, _)| seen.insert(class)).collect();
        let even = if side_by_side { NEARLY_EVEN } else { EVEN };
        let mut phases = Vec::new();
        let mut first = 0;
        for part in 0..PARTS {
            let is_even = |it: &Use| {
                let mut next = it.shares[part..].iter().take(2);
                next.all(|share| (share - it.shares[first]).abs() < even)
            };
            if part + 1 < PARTS && uses.iter().all(|(_, it)| is_even(it)) {
                continue;
            }
            let count = (part + 1 - first) as f64;
            let mean = |it: &Use| it.shares[first..=part].iter().sum::<f64>() / count;
            let of_class = |&(class, it): &(u32, &Use)| OfClass { class, share: mean(it), flows: it.flows };
            phases.push(Phase {
                left: alone.time * (PARTS - 1 - part) as f64 / PARTS as f64,
                uses: uses.iter().map(of_class).filter(|it| it.share > 0.0).collect(),
            });
            first = part + 1;
        }
        Collective { alone: Arc::clone(alone), phases, number }
    }
}

/// A collective on its way.
struct Active {
    job: usize,
    inst: u32,
    collective: Arc<Collective>,
    /// Picoseconds that it would still take alone.
    left: f64,
    phase: usize,
    speed: f64,
}

impl Active {
    fn now(&self) -> &Phase {
        &self.collective.phases[self.phase]
    }
}

/// An event at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Begin,
    TaskDone(u32),
}

pub(super) struct Run<'a> {
    pub jobs: Vec<Running<'a>>,
    cluster: &'a Cluster,
    sharing: Sharing<'a>,
    /// Times, in the order in which they were added where they are the same, with the job.
    events: BinaryHeap<Reverse<(u64, u64, usize, Happening)>>,
    added: u64,
    active: Vec<Active>,
    changed: bool,
    pub now: u64,
    pub measured_from: u64,
    /// How often each collective ran while all jobs were measured.
    pub ran: Vec<f64>,
    to_begin: usize,
    to_end: usize,
    /// Iterations that all jobs have made.
    rounds: usize,
    watch: &'a Watch,
}

impl<'a> Running<'a> {
    pub fn new(
        plan: &'a PlanRun,
        ranks: Vec<Worker<()>>,
        collectives: &'a [Arc<Collective>],
        (first_mark, until): (usize, Until),
        (start, pace): (u64, f64),
    ) -> Running<'a> {
        let state = State::default();
        Running { plan, ranks, collectives, first_mark, until, start, pace, marks: Vec::new(), marks_before: 0, state }
    }
}

impl<'a> Run<'a> {
    pub fn new(
        jobs: Vec<Running<'a>>,
        cluster: &'a Cluster,
        classes: &'a Classes,
        fluid: bool,
        watch: &'a Watch,
    ) -> Run<'a> {
        let to_begin = jobs.iter().filter(|job| job.first_mark > 0).count();
        Run {
            to_end: jobs.len(),
            jobs,
            cluster,
            sharing: Sharing::new(&classes.links, fluid),
            events: BinaryHeap::new(),
            added: 0,
            active: Vec::new(),
            changed: false,
            now: 0,
            measured_from: 0,
            ran: vec![0.0; classes.collectives],
            rounds: 0,
            to_begin,
            watch,
        }
    }

    /// Runs until every job has made its last mark; whether it has not been stopped before.
    pub fn run(&mut self) -> bool {
        for job in 0..self.jobs.len() {
            self.plan_event(self.jobs[job].start, job, Happening::Begin);
        }
        while self.to_end > 0 {
            if self.watch.is_stopped() {
                return false;
            }
            if std::mem::take(&mut self.changed) {
                self.sharing.speeds(&mut self.active);
                for it in &mut self.active {
                    it.speed /= self.jobs[it.job].pace;
                }
            }
            let ends = self.active.iter().map(|it| self.now + ((it.left - it.now().left) / it.speed).ceil() as u64);
            let event = self.events.peek().map(|Reverse((time, ..))| *time);
            let Some(next) = ends.chain(event).min() else { return false };
            self.advance(next);
            // First what was planned, then collectives, in the order in which they began.
            while self.events.peek().is_some_and(|Reverse((time, ..))| *time == next) && self.to_end > 0 {
                let Some(Reverse((_, _, job, happening))) = self.events.pop() else { break };
                match happening {
                    Happening::Begin => self.begin_iteration(job),
                    Happening::TaskDone(task) => self.task_done(job, task),
                }
            }
            let mut ended = Vec::new();
            for it in self.active.iter_mut().filter(|it| it.left < it.now().left + 0.5) {
                it.phase += 1;
                self.changed = true;
                if it.phase == it.collective.phases.len() {
                    ended.push((it.job, it.inst));
                }
            }
            self.active.retain(|it| it.phase < it.collective.phases.len());
            for (job, inst) in ended {
                if self.to_end > 0 {
                    self.exchange_done(job, inst);
                }
            }
        }
        true
    }

    fn advance(&mut self, next: u64) {
        let passed = (next - self.now) as f64;
        for it in &mut self.active {
            let done = (passed * it.speed).min(it.left - it.now().left);
            it.left -= done;
            self.ran[it.collective.number as usize] += done / it.collective.alone.time;
        }
        self.now = next;
    }

    fn plan_event(&mut self, time: u64, job: usize, happening: Happening) {
        self.added += 1;
        self.events.push(Reverse((time, self.added, job, happening)));
    }

    fn begin_iteration(&mut self, number: usize) {
        let job = &mut self.jobs[number];
        for rank in &mut job.ranks {
            rank.vary(self.cluster);
        }
        job.state.factors = job.ranks.iter().map(|rank| rank.factors).reduce(Factors::max).unwrap_or_default();
        let plan = job.plan;
        plan.begin(&mut job.state.progress, job.state.iteration == 0);
        for &task in &plan.first {
            if plan.is_ready(&self.jobs[number].state.progress, task) {
                self.begin_task(number, task);
            }
        }
    }

    fn begin_task(&mut self, number: usize, task: u32) {
        let now = self.now;
        let job = &mut self.jobs[number];
        let (run, begins, end) = match job.plan.tasks[task as usize] {
            Task::Compute { run, begins, end } => (&job.plan.runs[run as usize], begins, end),
            Task::Exchange(bucket) => {
                let collective = Arc::clone(&job.collectives[bucket as usize]);
                let inst = 2 * bucket + (job.state.iteration & 1);
                if collective.alone.time < 1.0 {
                    self.exchange_done(number, inst);
                    return;
                }
                self.changed = true;
                let left = collective.alone.time;
                self.active.push(Active { job: number, inst, left, phase: 0, collective, speed: 1.0 });
                return;
            }
        };
        let factor = job.state.factors.of(run.kind);
        let start = if begins { now } else { job.state.run };
        if begins && run.is_models {
            job.state.run = start;
        }
        let time = end.scaled(factor).0;
        if time == 0 && run.kind == Kind::Optimizer {
            self.task_done(number, task);
        } else {
            self.plan_event((start + time).max(now), number, Happening::TaskDone(task));
        }
    }

    fn task_done(&mut self, number: usize, task: u32) {
        let job = &mut self.jobs[number];
        let (ready, is_over) = job.plan.end(&mut job.state.progress, task, self.now);
        for next in ready {
            self.begin_task(number, next);
        }
        if is_over {
            self.iteration_done(number);
        }
    }

    fn exchange_done(&mut self, number: usize, inst: u32) {
        let job = &mut self.jobs[number];
        let task = job.plan.task_of(inst >> 1);
        if inst & 1 == job.state.iteration & 1 {
            self.task_done(number, task);
            return;
        }
        for next in job.plan.end_previous(&mut job.state.progress, task) {
            self.begin_task(number, next);
        }
    }

    fn iteration_done(&mut self, number: usize) {
        let job = &mut self.jobs[number];
        job.state.iteration += 1;
        job.marks.push(self.now);
        self.watch.count(&mut self.rounds, self.jobs.iter().map(|job| job.marks.len()));
        let job = &self.jobs[number];
        if job.until == Until::Mark(job.marks.len()) {
            self.to_end -= 1;
        }
        if job.marks.len() == job.first_mark {
            self.to_begin -= 1;
            if self.to_begin == 0 {
                self.begin_measuring();
            }
        }
        if self.to_end > 0 {
            // Not now: what else happens at this moment comes first.
            self.plan_event(self.now, number, Happening::Begin);
        }
    }

    fn begin_measuring(&mut self) {
        self.measured_from = self.now;
        self.ran.fill(0.0);
        for job in &mut self.jobs {
            job.marks_before = job.marks.len();
            if let Until::Iterations(count) = job.until {
                job.until = Until::Mark(job.marks.len() + 1 + count);
            }
        }
    }
}

/// How fast collectives are that share links.
struct Sharing<'a> {
    fluid: bool,
    /// How many links are of each class.
    links: &'a [f64],
    /// Of each class: what is left of a link, and its users with their shares and weights.
    left: Vec<f64>,
    users: Vec<Vec<User>>,
    touched: Vec<u32>,
    /// The speeds of collectives that have met before, in these phases: iterations are alike.
    known: HashMap<Meeting, Vec<f64>>,
}

/// Collectives with their phases, and how many there are of each.
type Meeting = Vec<((u32, usize), usize)>;

/// So many meetings are remembered.
const MOST_KNOWN: usize = 100_000;

/// Collectives of a job that are alike: of one kind and size, in the same phase.
struct Alike {
    job: usize,
    collective: Arc<Collective>,
    phase: usize,
    count: f64,
    speed: f64,
}

impl Alike {
    fn of(it: &Active, count: usize) -> Alike {
        let collective = Arc::clone(&it.collective);
        Alike { job: it.job, collective, phase: it.phase, count: count as f64, speed: 1.0 }
    }

    /// Bytes of all that are on their way.
    fn in_flight(&self) -> f64 {
        self.collective.alone.in_flight * self.count
    }
}

struct User {
    number: usize,
    share: f64,
    flows: f64,
    /// Its speed is this times the level of the link.
    weight: f64,
}

impl<'a> Sharing<'a> {
    fn new(links: &'a [f64], fluid: bool) -> Sharing<'a> {
        let users = links.iter().map(|_| Vec::new()).collect();
        Sharing { fluid, links, left: vec![1.0; links.len()], users, touched: Vec::new(), known: HashMap::new() }
    }

    /// Sets the speed of each, as a share of what it has alone.
    fn speeds(&mut self, active: &mut [Active]) {
        let key = |it: &Active| (it.collective.number, it.phase);
        let mut order: Vec<usize> = (0..active.len()).collect();
        order.sort_by_key(|&it| key(&active[it]));
        let alike = || order.chunk_by(|&a, &b| key(&active[a]) == key(&active[b]));
        let who: Meeting = alike().map(|them| (key(&active[them[0]]), them.len())).collect();
        if !self.known.contains_key(&who) {
            let mut groups: Vec<Alike> = alike().map(|them| Alike::of(&active[them[0]], them.len())).collect();
            self.solve(&mut groups);
            if self.known.len() == MOST_KNOWN {
                self.known.clear();
            }
            self.known.insert(who.clone(), groups.iter().map(|it| it.speed).collect());
        }
        let mut each = order.iter();
        for (speed, (_, count)) in self.known[&who].iter().zip(&who) {
            each.by_ref().take(*count).for_each(|&it| active[it].speed = *speed);
        }
    }

    fn solve(&mut self, active: &mut [Alike]) {
        for class in self.touched.drain(..) {
            self.users[class as usize].clear();
        }
        for (number, it) in active.iter().enumerate() {
            for &OfClass { class, share, flows } in &it.collective.phases[it.phase].uses {
                let users = &mut self.users[class as usize];
                if users.is_empty() {
                    self.touched.push(class);
                }
                users.push(User { number, share: share * it.count, flows, weight: 1.0 });
            }
        }
        // Only links of which more is wanted than there is slow anybody down.
        let wanted = |class: &&u32| self.users[**class as usize].iter().map(|it| it.share).sum::<f64>();
        let full: Vec<usize> =
            self.touched.iter().filter(|class| wanted(class) > 1.0 + 1e-9).map(|&class| class as usize).collect();
        if full.is_empty() {
            return;
        }
        if self.fluid {
            self.weigh_connections(&full, active)
        } else {
            self.weigh_queues(&full, active)
        }
        self.fill(&full, active);
    }

    /// Every connection gets as much of a link as others. Messages of a job between the same ranks are on one connection,
    /// one after the other, in turns of those that are on their way: of several collectives of a job, larger messages get
    /// more.
    fn weigh_connections(&mut self, full: &[usize], active: &[Alike]) {
        for &class in full {
            let mut jobs: HashMap<usize, (f64, f64)> = HashMap::new();
            for it in &self.users[class] {
                let (bytes, flows) = jobs.entry(active[it.number].job).or_default();
                (*bytes, *flows) = (*bytes + active[it.number].in_flight(), flows.max(it.flows));
            }
            for it in &mut self.users[class] {
                let (bytes, flows) = jobs[&active[it.number].job];
                it.weight = flows * active[it.number].in_flight() / bytes / it.share;
            }
        }
    }

    /// Who has more bytes in the queue of a link gets more of it. What is on its way waits at the links that are full.
    fn weigh_queues(&mut self, full: &[usize], active: &[Alike]) {
        let mut queues = vec![0.0; active.len()];
        for &class in full {
            for it in &self.users[class] {
                queues[it.number] += it.share * self.links[class];
            }
        }
        for &class in full {
            for it in &mut self.users[class] {
                it.weight = active[it.number].in_flight() / queues[it.number];
            }
        }
    }

    /// Raises the levels of all links together: max-min fair.
    fn fill(&mut self, full: &[usize], active: &mut [Alike]) {
        let Sharing { left, users, .. } = self;
        full.iter().for_each(|&class| left[class] = 1.0);
        let mut fixed = vec![false; active.len()];
        loop {
            let mut speeds: Vec<(f64, usize)> = vec![(1.0, usize::MAX); active.len()];
            for &class in full {
                let open = || users[class].iter().filter(|it| !fixed[it.number]);
                let demand: f64 = open().map(|it| it.share * it.weight).sum();
                if demand <= 0.0 {
                    continue;
                }
                let level = left[class].max(0.0) / demand;
                for it in open() {
                    if level * it.weight < speeds[it.number].0 {
                        speeds[it.number] = (level * it.weight, class);
                    }
                }
            }
            // Who gets all it wants leaves the rest to others; if nobody does, the slowest link decides.
            let open = || (0..active.len()).filter(|&it| !fixed[it]);
            let mut decided: Vec<usize> = open().filter(|&it| speeds[it].0 >= 1.0).collect();
            if decided.is_empty() {
                let Some(slowest) = open().min_by(|&a, &b| speeds[a].0.total_cmp(&speeds[b].0)) else { break };
                let class = speeds[slowest].1;
                decided = open().filter(|&it| speeds[it].1 == class).collect();
            }
            for &number in &decided {
                fixed[number] = true;
                active[number].speed = speeds[number].0.clamp(1e-9, 1.0);
            }
            for &class in full {
                for it in users[class].iter().filter(|it| decided.binary_search(&it.number).is_ok()) {
                    left[class] -= it.share * active[it.number].speed;
                }
            }
        }
    }
}
