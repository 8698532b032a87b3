//! Waits of a rank's computation, and its memory over time.
use paceline_iteration::{BufferKind, Plan, Stream};

use crate::planning::{Factors, Spans, duration, predecessors};
use crate::sharded::{ExposedBy, Memory, Resolution, Watched};

pub(super) struct Account {
    pub exposed: ExposedBy,
    pub computed_s: f64,
    pub memory: Memory,
}

/// `end`: of the iteration, when all ranks have ended.
pub(super) fn account(plan: &Plan, spans: &Spans, end: u64) -> Account {
    let mut gaps = Gaps { plan, spans, before: predecessors(plan), exposed: [0; Stream::ALL.len()] };
    let mut computed = 0;
    let mut free = 0;
    for (number, step) in plan.steps.iter().enumerate().filter(|(_, step)| step.stream == Stream::Compute) {
        let (start, ended) = spans[number];
        if start > free {
            gaps.blame(number, free, start);
        }
        computed += ended - start;
        free = ended;
        debug_assert!(ended >= start, "step {} ends before it begins", step.name(&plan.units));
    }
    // Exchanges that nothing in this iteration waits for.
    let last =
        (0..plan.steps.len()).filter(|&it| plan.steps[it].stream != Stream::Compute).max_by_key(|&it| spans[it].1);
    if let Some(last) = last.filter(|&last| spans[last].1 > free) {
        let ended = spans[last].1;
        gaps.during(last, free, ended);
        free = ended;
    }
    // Other ranks end later: that is what the last exchange is slow for.
    if end > free {
        let stream = last.map_or(Stream::AllReduce, |last| plan.steps[last].stream);
        gaps.exposed[stream as usize] += end - free;
    }
    let seconds = |picoseconds: u64| picoseconds as f64 * 1e-12;
    let by = |stream: Stream| seconds(gaps.exposed[stream as usize]);
    Account {
        exposed: ExposedBy {
            all_gather_s: by(Stream::AllGather),
            reduce_scatter_s: by(Stream::ReduceScatter),
            all_reduce_s: by(Stream::AllReduce) + by(Stream::Background),
            compression_s: by(Stream::Compression),
        },
        computed_s: seconds(computed),
        memory: memory(plan, spans),
    }
}

struct Gaps<'a> {
    plan: &'a Plan,
    spans: &'a Spans,
    before: Vec<Vec<u32>>,
    /// Picoseconds by stream.
    exposed: [u64; Stream::ALL.len()],
}

impl Gaps<'_> {
    /// The gap before a step is what its latest predecessor took.
    fn blame(&mut self, step: usize, from: u64, to: u64) {
        let latest = self.before[step].iter().copied().max_by_key(|&it| self.spans[it as usize].1);
        if let Some(latest) = latest {
            self.during(latest as usize, from, to);
        }
    }

    /// The part of a gap in which `step` ran is its own, what is left its predecessors'.
    fn during(&mut self, step: usize, from: u64, to: u64) {
        let begun = self.spans[step].0.clamp(from, to);
        self.exposed[self.plan.steps[step].stream as usize] += to - begun;
        if begun > from {
            self.blame(step, from, begun);
        }
    }
}

/// The peak of a rank's memory if exchanges take no time.
pub(super) fn unhindered(plan: &Plan) -> Memory {
    let mut spans: Spans = Vec::with_capacity(plan.steps.len());
    for (step, before) in plan.steps.iter().zip(predecessors(plan)) {
        let start = before.iter().map(|&it| spans[it as usize].1).max().unwrap_or(0);
        spans.push((start, start + duration(&step.work, &Factors::default()).unwrap_or(0)));
    }
    memory(plan, &spans)
}

/// The account of a plan without its steps, if nothing is sharded: its exchanges are all-reduces, and their time changes
/// nothing of its memory, because only computation allocates and frees.
pub(crate) fn unwatched(plan: &Plan, exposed_s: f64) -> Watched {
    Watched {
        exposed: ExposedBy { all_reduce_s: exposed_s, ..ExposedBy::default() },
        straggling_s: 0.0,
        slowed_s: 0.0,
        calls_s: 0.0,
        memory: unhindered(plan),
        resolution: Resolution::Messages,
    }
}

/// The peak of a rank's memory. Buffers exist from the beginning of the step that allocates them to the end of the last
/// one that frees them.
fn memory(plan: &Plan, spans: &Spans) -> Memory {
    let kind = |buffer: u32| plan.buffers[buffer as usize].kind as usize;
    // What is freed makes room for what is allocated at the same moment, except what a step has that takes no time: these
    // run in the order of the plan.
    let (begins, ends) = (0, 1);
    let mut changes = Vec::new();
    let mut freed = vec![None; plan.buffers.len()];
    for ((number, step), &(start, end)) in plan.steps.iter().enumerate().zip(spans) {
        changes.extend(step.allocates.iter().map(|&buffer| ((start, true, number, begins), buffer)));
        for &buffer in &step.frees {
            freed[buffer as usize] = freed[buffer as usize].max(Some((end, start == end, number, ends)));
        }
    }
    changes.extend((0..).zip(freed).filter_map(|(buffer, moment)| Some((moment?, buffer))));
    changes.sort_unstable();
    let mut now = [0i128; BufferKind::ALL.len()];
    for &buffer in &plan.resident {
        now[kind(buffer)] += i128::from(plan.buffers[buffer as usize].bytes);
    }
    let (mut peak, mut most) = (now, now);
    for ((.., change), buffer) in changes {
        let bytes = i128::from(plan.buffers[buffer as usize].bytes);
        let held = &mut now[kind(buffer)];
        *held += if change == begins { bytes } else { -bytes };
        most[kind(buffer)] = most[kind(buffer)].max(*held);
        if now.iter().sum::<i128>() > peak.iter().sum() {
            peak = now;
        }
    }
    let of = |kind: BufferKind| u64::try_from(peak[kind as usize]).unwrap_or(0);
    let most_of = |kind: BufferKind| u64::try_from(most[kind as usize]).unwrap_or(0);
    let state = [BufferKind::Parameters, BufferKind::Gradients, BufferKind::OptimizerStates];
    Memory {
        peak_bytes: BufferKind::ALL.into_iter().map(of).sum(),
        parameters_bytes: of(BufferKind::Parameters),
        gradients_bytes: of(BufferKind::Gradients),
        optimizer_bytes: of(BufferKind::OptimizerStates),
        gathered_bytes: of(BufferKind::Gathered),
        communication_bytes: of(BufferKind::Communication),
        activations_bytes: plan.has_activations.then(|| of(BufferKind::Activations)),
        apart_bytes: BufferKind::ALL.into_iter().map(most_of).sum(),
        state_bytes: state.into_iter().map(most_of).sum(),
    }
}
