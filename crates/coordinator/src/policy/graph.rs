//! Order from the graph: ranks agree once on a plan, and then exchange only tensors.
//!
//! S. Pumma et al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning", the variant TOPO:
//! the graph gives each tensor a number, so every rank issues the same buckets in the same order without coordination.
//! There the graph is static. Here a step that deviates is detected on all ranks at once, through numbers that travel
//! with the tensors: one says that something was out of order on a rank, and one per tensor says that a rank lacked it.
//!
//! The steps of each optimizer have their own state machine. In the first step, tensors are negotiated and their order
//! is recorded. At its end each rank proposes its order and continues; once all have proposed the same tensors, the
//! first rank's order becomes the plan. In later steps, bucket k begins when it is complete and bucket k-1 has begun.
//! Deviations from the plan are negotiated, and all ranks learn of them at the end of the step.
//!
//! No rank waits for another to compare, because that one might be waiting for something else first. Proposals are
//! negotiated like any tensor, and negotiated operations begin in the same order on all ranks. The plan takes effect
//! after the first step in which a gradient began after the proposals did.
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::prescribed::Prescribed;
use super::proposal::{Proposal, Seen};
use crate::request::{Request, Terms};

/// Limits on buckets, in bytes. A larger tensor gets its own bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Limit of the first bucket: the sooner it is complete, the sooner the network has work.
    pub first: u64,
    /// Limit of the others.
    pub most: u64,
}

/// How a submitted tensor is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Assignment {
    /// It is negotiated.
    Negotiated,
    /// It fills this slot of the plan.
    Slot(usize),
}

/// A bucket that must begin now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Issue {
    /// Its range of slots.
    pub slots: Range<usize>,
    /// Those slots for which this rank has no tensor; zeros are sent instead.
    pub absent: Vec<usize>,
    /// Something deviated from the plan on this rank, in this step so far.
    pub irregular: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SlotPlan {
    slots: Vec<Seen>,
    by_name: BTreeMap<String, usize>,
    buckets: Vec<Range<usize>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Tensors of this step; whether one occurred twice; whether ranks are comparing an earlier step's.
    Learning {
        seen: Vec<Seen>,
        twice: bool,
        proposed: bool,
    },
    Planned {
        plan: SlotPlan,
        filled: Vec<bool>,
        next: usize,
        irregular: bool,
    },
}

impl Phase {
    const FRESH: Phase = Phase::Learning { seen: Vec::new(), twice: false, proposed: false };
}

/// A plan that lasted for fewer steps than this was not worthwhile.
const WORTH_IT: u32 = 8;
/// After each plan that was not worthwhile, the number of steps until the next is doubled, up to 2 to this power.
const MOST_DOUBLINGS: u32 = 6;

/// The optimizer steps on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Graph {
    limits: Limits,
    /// The plan that steps must follow, if it was made before the run.
    prescribed: Option<Arc<Prescribed>>,
    phase: Phase,
    /// Steps with this plan.
    lived: u32,
    /// Consecutive plans that were not worthwhile.
    failures: u32,
    /// Steps until ranks compare again.
    rest: u32,
}

impl Graph {
    /// Nothing has been recorded yet.
    #[must_use]
    pub fn new(limits: Limits) -> Graph {
        Graph { limits, prescribed: None, phase: Phase::FRESH, lived: 0, failures: 0, rest: 0 }
    }

    /// The same, with this plan's order and buckets instead of those of the first step.
    #[must_use]
    pub fn following(self, prescribed: Option<Arc<Prescribed>>) -> Graph {
        Graph { prescribed, ..self }
    }

    /// Whether there is a plan.
    #[must_use]
    pub fn planned(&self) -> bool {
        matches!(self.phase, Phase::Planned { .. })
    }

    /// The tensors of the plan.
    #[must_use]
    pub fn slots(&self) -> &[Seen] {
        match &self.phase {
            Phase::Planned { plan, .. } => &plan.slots,
            Phase::Learning { .. } => &[],
        }
    }

    /// The user submits an operation. `late`: its tensor was missing at the end of the backward pass.
    pub fn asked(&mut self, request: &Request, late: bool) -> Assignment {
        match &mut self.phase {
            Phase::Learning { proposed: true, .. } => Assignment::Negotiated,
            Phase::Learning { seen, twice, .. } => {
                *twice |= seen.iter().any(|other| other.name == request.name);
                seen.push(Seen { name: request.name.clone(), terms: request.terms.clone(), late });
                Assignment::Negotiated
            }
            Phase::Planned { plan, filled, irregular, .. } => {
                let slot = plan.by_name.get(&request.name).copied();
                let fits = slot.filter(|&slot| !filled[slot] && plan.slots[slot].terms == request.terms);
                *irregular |= fits.is_none_or(|slot| late && !plan.slots[slot].late);
                fits.map_or(Assignment::Negotiated, |slot| {
                    filled[slot] = true;
                    Assignment::Slot(slot)
                })
            }
        }
    }

    /// The buckets that can begin now, in order.
    pub fn due(&mut self) -> Vec<Issue> {
        let Phase::Planned { plan, filled, next, irregular } = &mut self.phase else { return Vec::new() };
        let mut issues = Vec::new();
        while let Some(slots) = plan.buckets.get(*next).filter(|slots| filled[(*slots).clone()].iter().all(|&is| is)) {
            issues.push(Issue { slots: slots.clone(), absent: Vec::new(), irregular: *irregular });
            *next += 1;
        }
        issues
    }

    /// Ends the submissions of this step: everything that has not begun begins now.
    pub fn flush(&mut self) -> Vec<Issue> {
        let mut issues = self.due();
        let Phase::Planned { plan, filled, next, irregular } = &mut self.phase else { return issues };
        for slots in &plan.buckets[*next..] {
            let absent: Vec<usize> = slots.clone().filter(|&slot| !filled[slot]).collect();
            *irregular |= !absent.is_empty();
            issues.push(Issue { slots: slots.clone(), absent, irregular: *irregular });
        }
        filled.fill(false);
        *next = 0;
        // Deviations after the last bucket began are reported with the first bucket of the next step.
        *irregular &= !issues.iter().any(|issue| issue.irregular);
        issues
    }

    /// This rank has no more data: it sends zeros for the rest of the step, which tells the others that the plan has
    /// ended.
    pub fn leave(&mut self) -> Vec<Issue> {
        if let Phase::Planned { irregular, .. } = &mut self.phase {
            *irregular = true;
        }
        let issues = self.flush().into_iter().map(|issue| Issue { absent: Vec::new(), ..issue }).collect();
        self.phase = Phase::FRESH;
        issues
    }

    /// All ranks have joined, and continue together.
    pub fn restart(&mut self) {
        *self = Graph::new(self.limits).following(self.prescribed.take());
    }

    /// Ends a step; returns this rank's proposal, if it makes one now. `irregular`: some rank deviated from the plan.
    /// The flag is the same on all ranks, and all propose after the same step.
    pub fn ended(&mut self, irregular: bool) -> Option<Proposal> {
        match &mut self.phase {
            Phase::Planned { .. } => {
                self.lived = self.lived.saturating_add(1);
                if irregular {
                    let was_worth_it = self.lived >= WORTH_IT;
                    self.phase = Phase::FRESH;
                    self.failed(was_worth_it);
                }
                None
            }
            Phase::Learning { proposed: true, .. } => None,
            Phase::Learning { .. } if self.rest > 0 => {
                self.rest -= 1;
                self.phase = Phase::FRESH;
                None
            }
            Phase::Learning { seen, twice, proposed } => {
                *proposed = true;
                let tensors = std::mem::take(seen);
                Some(if *twice { Proposal::default() } else { Proposal { tensors } })
            }
        }
    }

    fn failed(&mut self, was_worth_it: bool) {
        self.rest = if was_worth_it { 0 } else { (1 << self.failures) - 1 };
        self.failures = if was_worth_it { 0 } else { (self.failures + 1).min(MOST_DOUBLINGS) };
    }

    /// Compares all ranks' proposals, in rank order; `None` for a rank that has joined. Returns whether there is a plan
    /// now.
    pub fn agree(&mut self, proposals: &[Option<Proposal>]) -> bool {
        self.lived = 0;
        let Some(slots) = common(proposals) else {
            self.phase = Phase::FRESH;
            self.failed(false);
            return false;
        };
        let arranged = match &self.prescribed {
            Some(prescribed) => prescribed.arranged(slots),
            None => {
                let buckets = buckets(&slots, self.limits);
                Some((slots, buckets))
            }
        };
        let Some((slots, buckets)) = arranged else {
            self.phase = Phase::FRESH;
            self.failed(false);
            return false;
        };
        let by_name = slots.iter().enumerate().map(|(slot, seen)| (seen.name.clone(), slot)).collect();
        let filled = vec![false; slots.len()];
        let plan = SlotPlan { slots, by_name, buckets };
        self.phase = Phase::Planned { plan, filled, next: 0, irregular: false };
        true
    }
}

/// The first rank's order, if all ranks have recorded the same tensors; tensors that were late on some rank come last.
fn common(proposals: &[Option<Proposal>]) -> Option<Vec<Seen>> {
    let all: Option<Vec<&Proposal>> = proposals.iter().map(Option::as_ref).collect();
    let mut all = all?;
    let first = all.remove(0);
    let mut late: BTreeMap<&str, (&Terms, bool)> = BTreeMap::new();
    for seen in &first.tensors {
        late.insert(&seen.name, (&seen.terms, seen.late));
    }
    for other in all {
        if other.tensors.len() != first.tensors.len() {
            return None;
        }
        for seen in &other.tensors {
            let (terms, is_late) = late.get_mut(seen.name.as_str())?;
            if **terms != seen.terms {
                return None;
            }
            *is_late |= seen.late;
        }
    }
    let mut slots: Vec<Seen> =
        first.tensors.iter().map(|seen| Seen { late: late[seen.name.as_str()].1, ..seen.clone() }).collect();
    slots.sort_by_key(|seen| seen.late);
    (!slots.is_empty()).then_some(slots)
}

/// Whether neighbors can be fused. Gradients do not need each other's sums, so all of them are concurrent.
fn buckets(slots: &[Seen], limits: Limits) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (at, seen) in slots.iter().enumerate() {
        let most = if found.len() <= 1 { limits.first } else { limits.most };
        match found.last_mut().filter(|last| {
            let before = &slots[last.start];
            before.late == seen.late && before.terms.fuses_with(&seen.terms) && bytes + seen.terms.bytes <= most
        }) {
            Some(last) => {
                last.end = at + 1;
                bytes += seen.terms.bytes;
            }
            None => {
                found.push(at..at + 1);
                bytes = seen.terms.bytes;
            }
        }
    }
    found
}

/// Whether a tensor can be planned: zeros must not change the result, and the status number must survive the scaling.
#[must_use]
pub fn can_be_planned(terms: &Terms) -> bool {
    let floats = ["float16", "bfloat16", "float32", "float64"];
    // Smaller factors may underflow, and larger ones overflow half precision.
    let [before, after] = terms.scale.map(f64::from_bits);
    let is_kept = |factor: f64| (1e-5..=1e5).contains(&factor.abs());
    let is_float = floats.contains(&terms.dtype.as_str());
    terms.call == "all_reduce"
        // The status words that travel behind planned tensors are in the host's memory.
        && terms.device == "cpu"
        && terms.neutral
        && terms.fusible
        && is_float
        && is_kept(before)
        && is_kept(before * after)
}
