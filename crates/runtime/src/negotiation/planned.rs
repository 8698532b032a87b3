//! The coordinator's interface for optimizer steps.
use std::collections::BTreeMap;

use paceline_coordinator::Proposal;
use paceline_os::sync::Arc;
use paceline_os::sync::atomic::Ordering;
use paceline_os::time::Instant;
use paceline_transport::error::Result;
use paceline_transport::header::Collective;

use super::Coordinator;
use super::exchange::{decode, encode};
use super::named::{Named, Wanted};
use super::output::Output;
use super::steps::{Ended, Planner};
use super::thread::{Arrival, When};

impl Coordinator {
    /// As `submit`, for tensors of a step of optimizer `of`, whose order may be planned. `late`: they were not
    /// computed, but stand in for gradients that were missing at the end of the backward pass.
    ///
    /// # Errors
    /// As for `submit`.
    ///
    /// # Safety
    /// As for `submit`.
    #[allow(unsafe_code, reason = "the promise about the memory is passed on")]
    pub unsafe fn submit_step(&self, of: &str, operations: &[Arc<Named>], late: bool) -> Result<()> {
        self.asks(operations)?;
        self.shared.borrow_core(operations);
        match &self.planner {
            None => self.post(operations, false),
            Some(planner) => {
                self.closed()?;
                self.post(&planner.ask(of, operations, late)?, false)
            }
        }
    }

    /// Ends the submissions of this step of optimizer `of`.
    ///
    /// # Errors
    /// Something is left to begin, but cannot, because a rank that needs nothing more from this one may already have
    /// left.
    pub fn flush(&self, of: &str) -> Result<()> {
        self.of_this_process()?;
        self.planner.as_ref().map_or(Ok(()), |planner| planner.flush(of))
    }

    /// Ends a step of optimizer `of` whose tensors have been waited for. Returns `false` if something has not completed
    /// yet; call it again then. It does not wait for ranks that have not reached this point, and compares nothing with
    /// a rank that has left.
    ///
    /// # Errors
    /// A planned bucket has failed.
    pub fn ended(&self, of: &str, until: Instant) -> Result<bool> {
        self.of_this_process()?;
        let Some(planner) = &self.planner else { return Ok(true) };
        let ended = self.end_step(planner, of, until);
        let closed = match paceline_os::mutant("proposals are a reason to leave") {
            true => self.closed().is_err(),
            false => self.shared.closed().is_some(),
        };
        if closed { Ok(true) } else { ended }
    }

    fn end_step(&self, planner: &Planner, of: &str, until: Instant) -> Result<bool> {
        match planner.ended(of, until)? {
            Ended::Done => Ok(true),
            Ended::NotYet => Ok(false),
            Ended::Propose(proposal) => {
                planner.proposed(of, self.gather_of(of, &proposal)?);
                Ok(true)
            }
            Ended::Compare(gather) => {
                // It has begun on all ranks.
                if !self.wait(&gather, Some(until))? {
                    return Ok(false);
                }
                planner.agree(of, &proposals(&gather)?, &self.data).map(|()| true)
            }
        }
    }

    /// Counts of negotiation messages and of buckets that have begun, for diagnostics and tests.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let planner = self.planner.as_deref();
        BTreeMap::from([
            ("votes", self.counts.votes.load(Ordering::Relaxed)),
            ("sleeps", self.counts.sleeps.load(Ordering::Relaxed)),
            ("reports", self.counts.reports.load(Ordering::Relaxed)),
            ("decisions", self.counts.decisions.load(Ordering::Relaxed)),
            ("negotiated", self.counts.negotiated.load(Ordering::Relaxed)),
            ("planned", planner.map_or(0, |planner| planner.planned.load(Ordering::Relaxed))),
            ("plans", planner.map_or(0, |planner| planner.plans.load(Ordering::Relaxed))),
        ])
    }

    /// Gathers the proposals of all ranks, and continues.
    fn gather_of(&self, of: &str, proposal: &Proposal) -> Result<Arc<Named>> {
        let text = encode(proposal)?;
        let memory = Arc::new(Output::with(&text));
        let length = text.len() as u64;
        let wanted = Wanted {
            collective: Collective::AllGather,
            name: &format!("plan of {of}"),
            inputs: &[(memory.address(), length)],
            dtype: "uint8",
            shape: &[],
            device: "cpu",
            op: None,
            own: &[length],
            root: None,
            prescale: 1.0,
            postscale: 1.0,
        };
        let operation = Arc::new(Named::new(&wanted, self.size(), Some(Box::new(memory)))?.patient());
        operation.ask()?;
        // Not `hand_over`: that nobody is there to compare with is no reason to leave.
        self.shared.post(Arrival::Asked(vec![operation.clone()]), When::Soon)?;
        Ok(operation)
    }
}

fn proposals(gather: &Named) -> Result<Vec<Option<Proposal>>> {
    let bytes = gather.output().map(|output| output.copy()).unwrap_or_default();
    let mut rest = &bytes[..];
    let mut proposals = Vec::new();
    for own in gather.own() {
        let (one, more) = rest.split_at(own.first().map_or(0, |&length| length as usize));
        rest = more;
        // A rank that has joined contributes nothing.
        proposals.push(if one.is_empty() { None } else { Some(decode(one)?) });
    }
    Ok(proposals)
}
