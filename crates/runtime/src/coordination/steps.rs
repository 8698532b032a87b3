//! The steps of optimizers under the policy `graph`: tensors go into the slots of a plan, and buckets begin as they are
//! complete, on the thread that brings the last tensor. No thread is woken and no rank is asked.
#![allow(unsafe_code, reason = "the caller's promise about its memory is passed on")]
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paceline_coordinator::{
    Agreed, AgreedBucket, Assignment, Graph, Issue, Limits, Proposal, Request, Seen, can_be_planned,
};
use parking_lot::Mutex;

use super::begin;
use super::named::Named;
use super::status_words::StatusWords;
use crate::communicator::Communicator;
use paceline_engine::Submission;
use paceline_executor::handle::Handle;
use paceline_kernels::dtype::Dtype;
use paceline_transport::error::{Result, RunError};

/// One optimizer's.
struct Steps {
    policy: Graph,
    /// All planned buckets of this optimizer, and nothing else, so that their order needs no agreement.
    tensors: Option<Arc<Communicator>>,
    /// Of the last plan.
    slots: Vec<Seen>,
    /// Its buckets, by the slots they begin with.
    buckets: BTreeMap<usize, AgreedBucket>,
    /// In slots, not begun.
    waiting: Vec<Option<Arc<Named>>>,
    /// Of this step.
    begun: Vec<(Arc<Handle>, Arc<StatusWords>)>,
    /// Of this step, negotiated.
    negotiated: Vec<Arc<Named>>,
    /// What ranks gather of each other's proposals.
    proposal: Option<Arc<Named>>,
    /// All had joined so often when this was last looked at.
    joined: u64,
}

/// What is left to do at the end of a step.
pub(super) enum Ended {
    /// Nothing.
    Done,
    /// Something is not over yet.
    NotYet,
    /// This rank proposes an order; the gather of all proposals is to be handed back by `proposed`.
    Propose(Proposal),
    /// Here are all ranks' proposals, for `agree`.
    Compare(Arc<Named>),
}

/// Those of all optimizers of a coordinator.
pub(super) struct Planner {
    limits: Limits,
    name: String,
    /// A planned bucket waits so long for a rank that answers.
    patience: Duration,
    all: Mutex<BTreeMap<String, Arc<Mutex<Steps>>>>,
    /// How often all ranks have joined: afterwards all begin anew.
    joined: AtomicU64,
    /// Buckets that began by a plan, those of them that have been waited for, and plans.
    pub planned: AtomicU64,
    waited: AtomicU64,
    pub plans: AtomicU64,
}

impl Planner {
    pub fn new(limits: Limits, name: &str, patience: Duration) -> Planner {
        Planner {
            limits,
            name: name.to_owned(),
            patience,
            all: Mutex::default(),
            joined: AtomicU64::new(0),
            planned: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            plans: AtomicU64::new(0),
        }
    }

    fn steps(&self, of: &str) -> Arc<Mutex<Steps>> {
        let new = || {
            Arc::new(Mutex::new(Steps {
                policy: Graph::new(self.limits),
                tensors: None,
                slots: Vec::new(),
                buckets: BTreeMap::new(),
                waiting: Vec::new(),
                begun: Vec::new(),
                negotiated: Vec::new(),
                proposal: None,
                joined: self.joined.load(Ordering::SeqCst),
            }))
        };
        let steps = self.all.lock().entry(of.to_owned()).or_insert_with(new).clone();
        let mut these = steps.lock();
        let joined = self.joined.load(Ordering::SeqCst);
        if std::mem::replace(&mut these.joined, joined) != joined {
            these.policy.restart();
            (these.tensors, these.proposal) = (None, None);
            these.begun.clear();
            these.negotiated.clear();
        }
        drop(these);
        steps
    }

    /// All ranks have joined.
    pub fn all_joined(&self) {
        self.joined.fetch_add(1, Ordering::SeqCst);
    }

    /// Planned buckets that nobody has seen the end of: how many have begun so far; none if there are none.
    pub fn under_way(&self) -> Option<u64> {
        let planned = self.planned.load(Ordering::Relaxed);
        (self.waited.load(Ordering::Relaxed) < planned).then_some(planned)
    }

    /// Takes what is planned; gives back what is to be negotiated.
    pub fn ask(&self, of: &str, operations: &[Arc<Named>], late: bool) -> Result<Vec<Arc<Named>>> {
        let steps = self.steps(of);
        let mut steps = steps.lock();
        let mut others = Vec::new();
        for operation in operations {
            let request = &operation.request;
            let place =
                if can_be_planned(&request.terms) { steps.policy.asked(request, late) } else { Assignment::Negotiated };
            match place {
                Assignment::Negotiated => others.push(operation.clone()),
                Assignment::Slot(slot) => steps.waiting[slot] = Some(operation.clone()),
            }
        }
        steps.negotiated.extend(others.iter().cloned());
        let due = steps.policy.due();
        self.begin(&mut steps, due)?;
        Ok(others)
    }

    /// Nothing more comes in this step.
    pub fn flush(&self, of: &str) -> Result<()> {
        let steps = self.steps(of);
        let mut steps = steps.lock();
        let due = steps.policy.flush();
        self.begin(&mut steps, due)
    }

    /// This rank has no more data.
    pub fn leave(&self) -> Result<()> {
        let all: Vec<_> = self.all.lock().values().cloned().collect();
        for steps in all {
            let mut steps = steps.lock();
            let due = steps.policy.leave();
            self.begin(&mut steps, due)?;
            self.waited.fetch_add(steps.begun.len() as u64, Ordering::Relaxed);
            steps.begun.clear();
            steps.negotiated.clear();
        }
        Ok(())
    }

    /// A step is over, and its tensors have been waited for; until then at most.
    pub fn ended(&self, of: &str, until: Instant) -> Result<Ended> {
        let steps = self.steps(of);
        let mut steps = steps.lock();
        if let Some(tensors) = &steps.tensors {
            for (handle, _) in &steps.begun {
                if !tensors.wait(handle, Some(until))? {
                    return Ok(Ended::NotYet);
                }
            }
        }
        let begun = std::mem::take(&mut steps.begun);
        self.waited.fetch_add(begun.len() as u64, Ordering::Relaxed);
        let irregular = begun.iter().any(|(_, status)| status.irregular());
        // What was negotiated began in the same order on all ranks, and so did the gather of their proposals.
        let negotiated = std::mem::take(&mut steps.negotiated);
        let orders: Vec<(u64, bool)> = negotiated.iter().filter_map(|operation| operation.order()).collect();
        let last = orders.iter().map(|(number, _)| *number).max();
        let alone = orders.iter().any(|(_, some_joined)| *some_joined);
        if let Some(proposal) = steps.proposal.clone() {
            let began = proposal.order().map(|(number, _)| number);
            let holds = began.is_some_and(|began| last.is_some_and(|last| began < last)) && !alone;
            return Ok(if holds { Ended::Compare(proposal) } else { Ended::Done });
        }
        Ok(steps.policy.ended(irregular).map_or(Ended::Done, Ended::Propose))
    }

    /// All ranks' proposals are being gathered.
    pub fn proposed(&self, of: &str, gather: Arc<Named>) {
        self.steps(of).lock().proposal = Some(gather);
    }

    /// What all ranks propose. The plan has a communicator of its own.
    pub fn agree(&self, of: &str, proposals: &[Option<Proposal>], ranks: &Communicator) -> Result<()> {
        let steps = self.steps(of);
        let mut steps = steps.lock();
        steps.proposal = None;
        if !steps.policy.agree(proposals) {
            return Ok(());
        }
        self.plans.fetch_add(1, Ordering::Relaxed);
        steps.slots = steps.policy.slots().to_vec();
        steps.waiting = vec![None; steps.slots.len()];
        steps.buckets.clear();
        if steps.tensors.is_none() {
            // A rank that joined may have begun what nobody else will: what follows is apart from it.
            let name = format!("{}, plan of {of} after {} joins", self.name, steps.joined);
            steps.tensors = Some(Arc::new(ranks.like(&name)?));
        }
        Ok(())
    }

    /// Nothing goes on.
    pub fn fail(&self, error: &RunError) {
        for steps in self.all.lock().values() {
            for operation in steps.lock().waiting.iter_mut().filter_map(Option::take) {
                operation.fail(error.clone());
            }
        }
    }

    fn begin(&self, steps: &mut Steps, due: Vec<Issue>) -> Result<()> {
        let Some(tensors) = steps.tensors.clone() else { return Ok(()) };
        for Issue { slots, absent, irregular } in due {
            let named: Vec<_> = steps.waiting[slots.clone()].iter_mut().map(Option::take).collect();
            let planned = &steps.slots[slots.clone()];
            let bucket = steps.buckets.entry(slots.start).or_insert_with(|| bucket_of(planned));
            let Some(seen) = planned.first() else { continue };
            let dtype: Dtype = seen
                .terms
                .dtype
                .parse()
                .map_err(|error| RunError::Failed(format!("'{}': {error}", seen.terms.call)))?;
            let places = absent.iter().map(|slot| slot - slots.start);
            let status = Arc::new(StatusWords::new(dtype, slots.len(), irregular, places));
            let how = Submission { timeout: Some(self.patience), background: true };
            let handle = begin::begin(&tensors, bucket, &named, (0, how), Some(&status))?;
            steps.begun.push((handle, status));
            self.planned.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn bucket_of(planned: &[Seen]) -> AgreedBucket {
    let agreed = |seen: &Seen| Agreed {
        request: Request {
            name: seen.name.clone(),
            terms: seen.terms.clone(),
            own: Vec::new(),
            together: None,
            patient: false,
        },
        own: Vec::new(),
    };
    AgreedBucket {
        bytes: planned.iter().map(|seen| seen.terms.bytes).sum(),
        tensors: planned.iter().map(agreed).collect(),
    }
}
