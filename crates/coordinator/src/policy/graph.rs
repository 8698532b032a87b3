//! Order from the graph: a plan agreed on once, after which ranks tell each other nothing but tensors.
//!
//! S. Pumma et al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning", the variant TOPO: each
//! tensor has a number that follows from the graph, so every rank issues the same buckets in the same order by itself.
//! There the graph is static. Here a step in which it was not is found on all ranks at once, by numbers that travel with
//! the tensors: one says that something was out of order on a rank, one for each tensor that a rank had none of.
//!
//! An optimizer's steps have a state machine of their own. In the first step tensors are negotiated and their order is
//! written down. At its end ranks propose it, and go on; when all have proposed the same tensors, the first rank's order
//! becomes the plan. In each step that follows, bucket k begins when all of it is there and bucket k-1 has begun. What is not
//! as planned is negotiated, and with the step's end all ranks learn anew.
//!
//! No rank waits for another to compare: that could be one that waits for something else first. Proposals are negotiated as
//! any tensor is, and what is negotiated begins in one order on all ranks; the plan holds after the first step in which a
//! gradient began after the proposals did.
use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::request::{Request, Terms};

/// How large buckets are, in bytes. A tensor that is larger has one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Of the first one: the sooner it is complete the sooner the network has work.
    pub first: u64,
    /// Of the others.
    pub most: u64,
}

/// A tensor of a step, as a rank saw it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// What all ranks must ask for alike.
    pub terms: Terms,
    /// It was not computed in the backward pass, but stands for one that was missing at its end.
    pub late: bool,
}

/// What a rank has seen in a step, in its order; nothing if it cannot be planned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Proposal {
    /// Each name once.
    pub tensors: Vec<Seen>,
}

/// Who takes care of a tensor that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Assignment {
    /// It is negotiated.
    Negotiated,
    /// It has this slot of the plan.
    Slot(usize),
}

/// A bucket that is to begin now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Issue {
    /// Its slots.
    pub slots: Range<usize>,
    /// Those of them for which this rank has nothing though it should; zeros go in their place.
    pub absent: Vec<usize>,
    /// Something was not as planned on this rank, in this step so far.
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
    /// What was asked for in this step; whether something came twice; whether ranks are comparing an earlier step's.
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

/// A plan that lived for fewer steps than this was not worth it.
const WORTH_IT: u32 = 8;
/// After each plan that was not, twice as many steps pass until the next, at most 2 to this power.
const MOST_DOUBLINGS: u32 = 6;

/// The steps of one optimizer on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Graph {
    limits: Limits,
    phase: Phase,
    /// Steps by this plan.
    lived: u32,
    /// Plans in a row that were not worth it.
    failures: u32,
    /// Steps until ranks compare again.
    rest: u32,
}

impl Graph {
    /// Nothing has been seen yet.
    #[must_use]
    pub fn new(limits: Limits) -> Graph {
        Graph { limits, phase: Phase::FRESH, lived: 0, failures: 0, rest: 0 }
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

    /// The user asks for an operation. `late`: its tensor was missing at the end of the backward pass.
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

    /// Nothing more comes in this step: all that has not begun begins now.
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
        // What was seen after the last bucket had begun is told with the first of the next step.
        *irregular &= !issues.iter().any(|issue| issue.irregular);
        issues
    }

    /// This rank has no more data: the rest of a step with zeros, by which the others learn that there is no plan any more.
    pub fn leave(&mut self) -> Vec<Issue> {
        if let Phase::Planned { irregular, .. } = &mut self.phase {
            *irregular = true;
        }
        let issues = self.flush().into_iter().map(|issue| Issue { absent: Vec::new(), ..issue }).collect();
        self.phase = Phase::FRESH;
        issues
    }

    /// All ranks have joined, and go on together.
    pub fn restart(&mut self) {
        *self = Graph::new(self.limits);
    }

    /// A step is over: what this rank proposes, if it does now. `irregular`: on some rank something was not as planned. All
    /// ranks say the same, and propose after the same step.
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

    /// What all ranks propose, in rank order; none of a rank that has joined. Whether there is a plan now.
    pub fn agree(&mut self, proposals: &[Option<Proposal>]) -> bool {
        self.lived = 0;
        let Some(slots) = common(proposals) else {
            self.phase = Phase::FRESH;
            self.failed(false);
            return false;
        };
        let by_name = slots.iter().enumerate().map(|(slot, seen)| (seen.name.clone(), slot)).collect();
        let buckets = buckets(&slots, self.limits);
        let filled = vec![false; slots.len()];
        let plan = SlotPlan { slots, by_name, buckets };
        self.phase = Phase::Planned { plan, filled, next: 0, irregular: false };
        true
    }
}

/// The first rank's order, if all ranks have seen the same; what came late on some rank comes last.
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

/// Neighbours that may go together. Gradients do not need each other's sums, so that all of them are concurrent.
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

/// Whether a tensor can be planned: zeros change nothing, and a number that travels with it arrives.
#[must_use]
pub fn can_be_planned(terms: &Terms) -> bool {
    let floats = ["float16", "bfloat16", "float32", "float64"];
    // What is multiplied by less may be nothing, or too much for half precision.
    let [before, after] = terms.scale.map(f64::from_bits);
    let is_kept = |factor: f64| (1e-5..=1e5).contains(&factor.abs());
    let is_float = floats.contains(&terms.dtype.as_str());
    terms.call == "all_reduce"
        && terms.neutral
        && terms.fusible
        && is_float
        && is_kept(before)
        && is_kept(before * after)
}
