//! Coordination messages between ranks: a vote is an all-reduce, a report a gather, a decision a broadcast.
#![allow(unsafe_code, reason = "the machine's own memory is handed to operations, which hold it")]
use paceline_coordinator::{Ballot, Decision, Report, Tally};
use paceline_engine::Submission;
use paceline_executor::handle::Handle;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::sync::Arc;
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};
use paceline_transport::header::Collective;
use paceline_transport::waiting::first_report;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::machine::{Closed, Counting, Machine};
use super::output::Output;
use crate::communicator::{CollectiveRequest, Memory};

/// Waits for other ranks are cut into slices of this length; between them the thread checks whether the coordinator was
/// closed.
const SLICE: Duration = Duration::from_millis(200);
/// Ranks that have something new vote on their own; the rest are invited after this delay. An invitation wakes two
/// threads on each of them: without it, a small all-reduce that all ranks wait for takes a third of the time.
const UNINVITED: Duration = Duration::from_micros(40);
/// Longest report or decision in bytes.
const LONGEST: u64 = 256 << 20;

impl Machine {
    /// `None`: the votes are still being counted.
    pub(super) fn vote(&mut self, cycle: u64, ballot: &Ballot, closed: Closed<'_>) -> Result<Option<Tally>> {
        self.cycle = cycle;
        let numbers: Vec<u8> = ballot.encode().into_iter().flat_map(i32::to_ne_bytes).collect();
        let memory = Arc::new(Output::with(&numbers));
        let count = numbers.len() as u64 / 4;
        let ballots = [(memory.address(), count)];
        let request = CollectiveRequest {
            collective: Collective::AllReduce,
            dtype: Dtype::Int32,
            op: ReduceOp::Min,
            inputs: &ballots,
            label: "which tensors are ready",
            ..CollectiveRequest::default()
        };
        if self.nonblocking {
            paceline_os::reached!("coordinator: vote counted in the background");
            let handle = self.send(&request, &memory, true)?;
            if self.invited < cycle {
                self.control.invite(cycle);
            }
            self.counting = Some(Counting { handle, memory, since: self.since() });
            return Ok(None);
        }
        self.exchange(&request, &memory, closed, (self.invited < cycle).then_some(cycle))?;
        self.tally(&memory).map(Some)
    }

    pub(super) fn tally(&mut self, memory: &Output) -> Result<Tally> {
        self.last_contact = Instant::now();
        let bytes = memory.copy();
        let numbers: Vec<i32> = bytes.as_chunks().0.iter().map(|&word| i32::from_ne_bytes(word)).collect();
        Tally::decode(&numbers).ok_or_else(|| RunError::Failed("invalid vote in the coordinator".into()))
    }

    /// Gathers all ranks' reports on the first rank.
    pub(super) fn gather(&self, report: &Report, closed: Closed<'_>) -> Result<Option<Vec<Report>>> {
        let text = encode(report)?;
        let lengths = self.lengths(text.len() as u64, closed)?;
        let own = Output::with(&text);
        let first = self.control.rank() == 0;
        let all = Output::new(if first { lengths.iter().sum::<u64>() as usize } else { 0 });
        let inputs = [(own.address(), text.len() as u64)];
        let outputs: &[Memory] = &[(all.address(), all.len() as u64)];
        let both = Arc::new((own, all));
        let request = CollectiveRequest {
            collective: Collective::Gather,
            inputs: &inputs,
            outputs: if first { outputs } else { &[] },
            counts: first.then_some(&lengths[..]),
            label: "requests of each rank",
            ..CollectiveRequest::default()
        };
        self.exchange(&request, &both, closed, None)?;
        if !first {
            return Ok(None);
        }
        let bytes = both.1.copy();
        let mut rest = &bytes[..];
        let mut reports = Vec::with_capacity(lengths.len());
        for length in lengths {
            let (one, more) = rest.split_at(length as usize);
            rest = more;
            reports.push(decode(one)?);
        }
        Ok(Some(reports))
    }

    /// Broadcasts the first rank's decision.
    pub(super) fn decision(&self, decided: Option<&Decision>, closed: Closed<'_>) -> Result<Decision> {
        let text = decided.map(encode).transpose()?.unwrap_or_default();
        let length = self.lengths(text.len() as u64, closed)?[0];
        let memory = Arc::new(if decided.is_some() { Output::with(&text) } else { Output::new(length as usize) });
        let inputs = [(memory.address(), length)];
        let label = "which operations begin";
        let request = CollectiveRequest {
            collective: Collective::Broadcast,
            inputs: &inputs,
            label,
            ..CollectiveRequest::default()
        };
        self.exchange(&request, &memory, closed, None)?;
        decode(&memory.copy())
    }

    /// Gathers a number from every rank. Sizes are checked before memory is allocated.
    fn lengths(&self, own: u64, closed: Closed<'_>) -> Result<Vec<u64>> {
        let size = self.control.size() as usize;
        let memory = Arc::new((Output::with(&own.to_ne_bytes()), Output::new(8 * size)));
        let (inputs, outputs) = ([(memory.0.address(), 1)], [(memory.1.address(), size as u64)]);
        let request = CollectiveRequest {
            collective: Collective::AllGather,
            dtype: Dtype::Int64,
            inputs: &inputs,
            outputs: &outputs,
            label: "lengths of the requests",
            ..CollectiveRequest::default()
        };
        self.exchange(&request, &memory, closed, None)?;
        let bytes = memory.1.copy();
        let lengths: Vec<u64> = bytes.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word)).collect();
        match lengths.iter().try_fold(0u64, |all, &length| all.checked_add(length)) {
            Some(all) if all <= LONGEST => Ok(lengths),
            _ => Err(RunError::Failed(format!("the requests of all ranks exceed {LONGEST} bytes"))),
        }
    }

    fn send<T: Send + Sync + 'static>(
        &self,
        request: &CollectiveRequest<'_>,
        memory: &Arc<T>,
        background: bool,
    ) -> Result<Arc<Handle>> {
        let keep = Box::new(memory.clone());
        // Part of the time limit may have passed in silence before all ranks were asked to vote.
        let limit = self.control.shared.settings.timeout();
        let silent = self.last_contact.elapsed().min(first_report(limit));
        let how = Submission {
            timeout: Some(limit - silent),
            background,
            patient: true,
            silent,
            about: Some(self.about().into()),
        };
        // SAFETY: `keep` owns the memory, and it is read only after the operation has completed.
        unsafe { self.control.submit(request, Some(keep), how) }
    }

    /// Runs an operation between coordinators to completion.
    fn exchange<T: Send + Sync + 'static>(
        &self,
        request: &CollectiveRequest<'_>,
        memory: &Arc<T>,
        closed: Closed<'_>,
        invites: Option<u64>,
    ) -> Result<()> {
        let handle = self.send(request, memory, false)?;
        if let Some(cycle) = invites
            && !self.control.wait_quietly(&handle, Some(Instant::now() + UNINVITED))?
        {
            self.control.invite(cycle);
        }
        while !self.control.wait_quietly(&handle, Some(Instant::now() + SLICE))? {
            if let Some(error) = closed() {
                return Err(error);
            }
            self.control.shared.usable()?;
        }
        Ok(())
    }
}

pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| RunError::Failed(format!("cannot encode a coordinator message: {e}")))
}

pub(super) fn decode<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|e| RunError::Failed(format!("invalid coordinator message: {e}")))
}
