//! Steps of optimizers, as a coordinator offers them.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use paceline_coordinator::Proposal;

use super::Coordinator;
use super::exchange::{decode, encode};
use super::named::{Named, Wanted};
use super::output::Output;
use crate::error::Result;
use crate::tag::Call;

impl Coordinator {
    /// The same for tensors of a step of optimizer `of`, whose order may be planned. `late`: they were not computed, but
    /// stand for what was missing at the end of the backward pass.
    ///
    /// # Errors
    /// As for `submit`.
    ///
    /// # Safety
    /// As for `submit`.
    #[allow(unsafe_code, reason = "the promise about the memory is passed on")]
    pub unsafe fn submit_step(&self, of: u32, operations: &[Arc<Named>], late: bool) -> Result<()> {
        self.asks(operations)?;
        match &self.planner {
            None => self.post(operations, false),
            Some(planner) => {
                self.closed()?;
                self.post(&planner.ask(of, operations, late)?, false)
            }
        }
    }

    /// No more tensors come in this step of optimizer `of`.
    ///
    /// # Errors
    /// The coordinator has failed or was closed.
    pub fn flush(&self, of: u32) -> Result<()> {
        self.closed()?;
        self.planner.as_ref().map_or(Ok(()), |planner| planner.flush(of))
    }

    /// A step of optimizer `of` is over, and its tensors have been waited for. If it has no plan, ranks may compare what
    /// they have seen, for which they wait for each other.
    ///
    /// # Errors
    /// The coordinator has failed or was closed; a rank that does not come.
    #[allow(unsafe_code, reason = "the memory belongs to the operation")]
    pub fn ended(&self, of: u32) -> Result<()> {
        let Some(planner) = &self.planner else { return Ok(()) };
        let Some(proposal) = planner.ended(of)? else { return Ok(()) };
        let text = encode(&proposal)?;
        let memory = Arc::new(Output::with(&text));
        let length = text.len() as u64;
        let wanted = Wanted {
            call: Call::AllGather,
            name: &format!("plan {of}"),
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
        let operation = Arc::new(Named::new(&wanted, self.size(), Some(Box::new(memory)))?);
        // SAFETY: the operation owns the memory.
        unsafe { self.submit(std::slice::from_ref(&operation), true) }?;
        while !self.wait(&operation, Some(Instant::now() + Duration::from_secs(1)))? {
            self.closed()?;
        }
        let bytes = operation.output().map(|output| output.copy()).unwrap_or_default();
        let mut rest = &bytes[..];
        let mut proposals: Vec<Option<Proposal>> = Vec::new();
        for own in operation.own() {
            let (one, more) = rest.split_at(own.first().map_or(0, |&length| length as usize));
            rest = more;
            // Of a rank that has joined there is nothing.
            proposals.push(if one.is_empty() { None } else { Some(decode(one)?) });
        }
        planner.agree(of, &proposals, &self.data)
    }

    /// What ranks have told each other besides tensors, and what has begun; for people and tests.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let planner = self.planner.as_deref();
        BTreeMap::from([
            ("votes", self.counts.votes.load(Ordering::Relaxed)),
            ("reports", self.counts.reports.load(Ordering::Relaxed)),
            ("decisions", self.counts.decisions.load(Ordering::Relaxed)),
            ("negotiated", self.counts.negotiated.load(Ordering::Relaxed)),
            ("planned", planner.map_or(0, |planner| planner.planned.load(Ordering::Relaxed))),
            ("plans", planner.map_or(0, |planner| planner.plans.load(Ordering::Relaxed))),
        ])
    }
}
