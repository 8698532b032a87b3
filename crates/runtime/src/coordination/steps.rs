//! The steps of optimizers under the policy `graph`: tensors go into the slots of a plan, and buckets begin as they are
//! complete, on the thread that brings the last tensor. No thread is woken and no rank is asked.
#![allow(unsafe_code, reason = "the caller's promise about its memory is passed on")]
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use paceline_coordinator::{Agreed, Bucket, Graph, Issue, Limits, Place, Proposal, Request, Seen, can_be_planned};

use super::begin;
use super::marks::Marks;
use super::named::Named;
use crate::communicator::Communicator;
use crate::dtype::Dtype;
use crate::engine::lock;
use crate::error::{Result, RunError};
use crate::handle::Handle;

/// One optimizer's.
struct Steps {
    policy: Graph,
    /// All planned buckets of this optimizer, and nothing else, so that their order needs no agreement.
    tensors: Option<Arc<Communicator>>,
    /// Of the last plan.
    slots: Vec<Seen>,
    /// Its buckets, by the slots they begin with.
    buckets: BTreeMap<usize, Bucket>,
    /// In slots, not begun.
    waiting: Vec<Option<Arc<Named>>>,
    /// Of this step.
    begun: Vec<(Arc<Handle>, Arc<Marks>)>,
    /// All had joined so often when this was last looked at.
    joined: u64,
}

/// Those of all optimizers of a coordinator.
pub(super) struct Planner {
    limits: Limits,
    name: String,
    all: Mutex<BTreeMap<u32, Arc<Mutex<Steps>>>>,
    /// How often all ranks have joined: afterwards all begin anew.
    joined: AtomicU64,
    /// Buckets that began by a plan, and plans.
    pub planned: AtomicU64,
    pub plans: AtomicU64,
}

impl Planner {
    pub fn new(limits: Limits, name: &str) -> Planner {
        Planner {
            limits,
            name: name.to_owned(),
            all: Mutex::default(),
            joined: AtomicU64::new(0),
            planned: AtomicU64::new(0),
            plans: AtomicU64::new(0),
        }
    }

    fn steps(&self, of: u32) -> Arc<Mutex<Steps>> {
        let new = || {
            Arc::new(Mutex::new(Steps {
                policy: Graph::new(self.limits),
                tensors: None,
                slots: Vec::new(),
                buckets: BTreeMap::new(),
                waiting: Vec::new(),
                begun: Vec::new(),
                joined: self.joined.load(Ordering::SeqCst),
            }))
        };
        let steps = lock(&self.all).entry(of).or_insert_with(new).clone();
        let mut these = lock(&steps);
        let joined = self.joined.load(Ordering::SeqCst);
        if std::mem::replace(&mut these.joined, joined) != joined {
            these.policy.restart();
        }
        drop(these);
        steps
    }

    /// All ranks have joined.
    pub fn all_joined(&self) {
        self.joined.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes what is planned; gives back what is to be negotiated.
    pub fn ask(&self, of: u32, operations: &[Arc<Named>], late: bool) -> Result<Vec<Arc<Named>>> {
        let steps = self.steps(of);
        let mut steps = lock(&steps);
        let mut others = Vec::new();
        for operation in operations {
            let request = &operation.request;
            let place =
                if can_be_planned(&request.terms) { steps.policy.asked(request, late) } else { Place::Negotiated };
            match place {
                Place::Negotiated => others.push(operation.clone()),
                Place::Slot(slot) => steps.waiting[slot] = Some(operation.clone()),
            }
        }
        let due = steps.policy.due();
        self.begin(&mut steps, due)?;
        Ok(others)
    }

    /// Nothing more comes in this step.
    pub fn flush(&self, of: u32) -> Result<()> {
        let steps = self.steps(of);
        let mut steps = lock(&steps);
        let due = steps.policy.flush();
        self.begin(&mut steps, due)
    }

    /// This rank has no more data.
    pub fn leave(&self) -> Result<()> {
        let all: Vec<_> = lock(&self.all).values().cloned().collect();
        for steps in all {
            let mut steps = lock(&steps);
            let due = steps.policy.leave();
            self.begin(&mut steps, due)?;
            steps.begun.clear();
        }
        Ok(())
    }

    /// A step is over: waits for its buckets. What is to be compared with the other ranks, if they compare now.
    pub fn ended(&self, of: u32) -> Result<Option<Proposal>> {
        let steps = self.steps(of);
        let mut steps = lock(&steps);
        let mut irregular = false;
        for (handle, marks) in std::mem::take(&mut steps.begun) {
            if let Some(tensors) = &steps.tensors {
                tensors.wait(&handle, None)?;
            }
            irregular |= marks.irregular();
        }
        let compares = steps.policy.ended(irregular);
        Ok(compares.then(|| steps.policy.proposal()))
    }

    /// What all ranks have seen. A plan has a communicator, for which ranks wait for each other.
    pub fn agree(&self, of: u32, proposals: &[Option<Proposal>], ranks: &Communicator) -> Result<()> {
        let steps = self.steps(of);
        let mut steps = lock(&steps);
        if !steps.policy.agree(proposals) {
            return Ok(());
        }
        self.plans.fetch_add(1, Ordering::Relaxed);
        steps.slots = steps.policy.slots().to_vec();
        steps.waiting = vec![None; steps.slots.len()];
        steps.buckets.clear();
        if steps.tensors.is_none() {
            let name = format!("{}, plan {of}", self.name);
            let group = Communicator::new(&ranks.shared, ranks.ranks().to_vec(), &name)?;
            steps.tensors = Some(Arc::new(group));
        }
        Ok(())
    }

    /// Nothing goes on.
    pub fn fail(&self, error: &RunError) {
        for steps in lock(&self.all).values() {
            for operation in lock(steps).waiting.iter_mut().filter_map(Option::take) {
                operation.fail(error.clone());
            }
        }
    }

    fn begin(&self, steps: &mut Steps, due: Vec<Issue>) -> Result<()> {
        let Some(tensors) = steps.tensors.clone() else { return Ok(()) };
        for Issue { slots, absent, irregular } in due {
            let named: Vec<_> = steps.waiting[slots.clone()].iter_mut().map(Option::take).collect();
            let planned = &steps.slots[slots.clone()];
            let bucket = steps.buckets.entry(slots.start).or_insert_with(|| Bucket {
                bytes: planned.iter().map(|seen| seen.terms.bytes).sum(),
                tensors: planned
                    .iter()
                    .map(|seen| Agreed {
                        request: Request {
                            name: seen.name.clone(),
                            terms: seen.terms.clone(),
                            own: Vec::new(),
                            together: None,
                        },
                        own: Vec::new(),
                    })
                    .collect(),
            });
            let dtype = planned.first().and_then(|seen| Dtype::parse(&seen.terms.dtype)).unwrap_or(Dtype::Float32);
            let places = absent.iter().map(|slot| slot - slots.start);
            let marks = Arc::new(Marks::new(dtype, slots.len(), irregular, places));
            let handle = begin::begin(&tensors, bucket, &named, (0, true), Some(&marks))?;
            steps.begun.push((handle, marks));
            self.planned.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
