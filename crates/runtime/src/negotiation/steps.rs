//! Optimizer steps under the policy `graph`: tensors fill the slots of a plan, and a bucket begins when it is complete,
//! on the thread that submits the last tensor. No thread is woken, and no rank is asked.
#![allow(unsafe_code, reason = "the caller's promise about its memory is passed on")]
use std::collections::BTreeMap;

use paceline_coordinator::{
    Agreed, AgreedBucket, Assignment, Graph, Issue, Limits, Prescribed, Proposal, Request, Seen, can_be_planned,
};
use paceline_engine::Submission;
use paceline_executor::handle::Handle;
use paceline_kernels::dtype::Dtype;
use paceline_os::sync::atomic::{AtomicU64, Ordering};
use paceline_os::sync::{Arc, Mutex};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};

use super::begin;
use super::named::Named;
use super::status_words::StatusWords;
use crate::communicator::Communicator;

/// What to do about a plan of other tensors.
const REMEDY: &str = "paceline plan of this step's graph, or drop --coordinator-plan";

/// The state of one optimizer.
struct Steps {
    policy: Graph,
    /// Carries the planned buckets of this optimizer and nothing else, so that their order needs no agreement.
    tensors: Option<Arc<Communicator>>,
    /// Slots of the current plan.
    slots: Vec<Seen>,
    /// Its buckets, by their first slot.
    buckets: BTreeMap<usize, AgreedBucket>,
    /// Tensors in slots whose bucket has not begun.
    waiting: Vec<Option<Arc<Named>>>,
    /// Buckets that have begun in this step.
    begun: Vec<(Arc<Handle>, Arc<StatusWords>)>,
    /// Negotiated operations of this step.
    negotiated: Vec<Arc<Named>>,
    /// The gather of the ranks' proposals.
    proposal: Option<Arc<Named>>,
    /// The same, once all ranks have decided to compare them at the end of this step.
    comparing: Option<Arc<Named>>,
    /// The value of `Planner::joined` at the last access.
    joined: u64,
}

/// The remainder of the work at the end of a step.
pub(super) enum Ended {
    /// Nothing.
    Done,
    /// Something has not completed yet.
    NotYet,
    /// This rank proposes an order. Pass the gather of all proposals to `proposed`.
    Propose(Proposal),
    /// All ranks' proposals have been gathered. Pass them to `agree`.
    Compare(Arc<Named>),
}

/// The optimizers of a coordinator.
pub(super) struct Planner {
    limits: Limits,
    /// The plan that was made before the run, if any.
    prescribed: Option<Arc<Prescribed>>,
    name: String,
    /// Time limit of a planned bucket for a rank that does not answer.
    patience: Duration,
    all: Mutex<BTreeMap<String, Arc<Mutex<Steps>>>>,
    /// How often all ranks have joined. Plans start afresh after that.
    joined: AtomicU64,
    /// Counts of planned buckets that have begun, of those that have been waited for, and of plans.
    pub planned: AtomicU64,
    waited: AtomicU64,
    pub plans: AtomicU64,
}

impl Planner {
    pub fn new(limits: Limits, prescribed: Option<Prescribed>, name: &str, patience: Duration) -> Planner {
        Planner {
            limits,
            prescribed: prescribed.map(Arc::new),
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
                policy: Graph::new(self.limits).following(self.prescribed.clone()),
                tensors: None,
                slots: Vec::new(),
                buckets: BTreeMap::new(),
                waiting: Vec::new(),
                begun: Vec::new(),
                negotiated: Vec::new(),
                proposal: None,
                comparing: None,
                joined: self.joined.load(Ordering::SeqCst),
            }))
        };
        let steps = self.all.lock().entry(of.to_owned()).or_insert_with(new).clone();
        let mut these = steps.lock();
        let joined = self.joined.load(Ordering::SeqCst);
        if std::mem::replace(&mut these.joined, joined) != joined {
            these.policy.restart();
            (these.tensors, these.proposal, these.comparing) = (None, None, None);
            these.begun.clear();
            these.negotiated.clear();
        }
        drop(these);
        steps
    }

    /// Called when all ranks have joined.
    pub fn all_joined(&self) {
        self.joined.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of planned buckets begun so far, if some of them have not been waited for.
    pub fn under_way(&self) -> Option<u64> {
        let planned = self.planned.load(Ordering::Relaxed);
        (self.waited.load(Ordering::Relaxed) < planned).then_some(planned)
    }

    /// Takes the planned operations; returns those to be negotiated.
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

    /// Ends the submissions of this step.
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

    /// Ends a step whose tensors have been waited for. Waits no longer than `until`.
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
        if let Some(gather) = &steps.comparing {
            return Ok(Ended::Compare(gather.clone()));
        }
        let begun = std::mem::take(&mut steps.begun);
        self.waited.fetch_add(begun.len() as u64, Ordering::Relaxed);
        let irregular = begun.iter().any(|(_, status)| status.irregular());
        // Negotiated operations began in the same order on all ranks, and so did the gather of the proposals.
        let negotiated = std::mem::take(&mut steps.negotiated);
        let orders: Vec<(u64, bool)> = negotiated.iter().filter_map(|operation| operation.order()).collect();
        let last = orders.iter().map(|(number, _)| *number).max();
        let alone = orders.iter().any(|(_, some_joined)| *some_joined);
        if let Some(proposal) = steps.proposal.clone() {
            let began = proposal.order().map(|(number, _)| number);
            let holds = began.is_some_and(|began| last.is_some_and(|last| began < last)) && !alone;
            // Decided once: what it was decided from is gone when this is called again, because the gather takes longer.
            steps.comparing =
                (holds && !paceline_os::mutant("proposals are compared in time or never")).then(|| proposal.clone());
            return Ok(if holds { Ended::Compare(proposal) } else { Ended::Done });
        }
        let proposal = steps.policy.ended(irregular);
        if let Some((prescribed, proposal)) = self.prescribed.as_ref().zip(proposal.as_ref()) {
            prescribed.check(proposal).map_err(|differs| RunError::Usage(differs).with_remedy(REMEDY))?;
        }
        Ok(proposal.map_or(Ended::Done, Ended::Propose))
    }

    /// Keeps the gather of all ranks' proposals.
    pub fn proposed(&self, of: &str, gather: Arc<Named>) {
        self.steps(of).lock().proposal = Some(gather);
    }

    /// Compares the proposals of all ranks and adopts a plan if they agree. The plan has its own communicator.
    pub fn agree(&self, of: &str, proposals: &[Option<Proposal>], ranks: &Communicator) -> Result<()> {
        let steps = self.steps(of);
        let mut steps = steps.lock();
        (steps.proposal, steps.comparing) = (None, None);
        if !steps.policy.agree(proposals) {
            paceline_os::reached!("planner: proposals differ");
            return Ok(());
        }
        paceline_os::reached!("planner: plan adopted");
        self.plans.fetch_add(1, Ordering::Relaxed);
        steps.slots = steps.policy.slots().to_vec();
        steps.waiting = vec![None; steps.slots.len()];
        steps.buckets.clear();
        if steps.tensors.is_none() {
            // A rank that joined may have begun buckets that no other rank will begin, so later ones get a new
            // communicator.
            let name = format!("{}, plan of {of} after {} joins", self.name, steps.joined);
            steps.tensors = Some(Arc::new(ranks.like(&name)?));
        }
        Ok(())
    }

    /// Fails the tensors that wait in slots.
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
            let how = Submission { timeout: Some(self.patience), background: true, ..Submission::default() };
            let handle = begin::begin(&tensors, bucket, (&named, false), (0, how), Some(&status))?.on_host()?;
            paceline_os::reached!("planner: planned bucket begun");
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
