//! A group of ranks and the operations between them.
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use paceline_schedule::{Bucket, Topology};

use crate::choice::{Choice, Plan, Planned};
use crate::digest::digest;
use crate::dtype::{Dtype, ReduceOp};
use crate::engine::{Shared, Submission, lock};
use crate::error::{Result, RunError};
use crate::executor::Begin;
use crate::handle::Handle;
use crate::program::Scheduled;
use crate::request::{self, Prepared};
use crate::space::Space;
use crate::tag::{Call, Signature};

/// Memory of the caller: an address and elements.
pub type Memory = (usize, u64);

/// An operation as the caller asks for it. Buffers are taken one after the other as if they were one.
pub struct Request<'a> {
    /// Which.
    pub call: Call,
    /// Of the elements.
    pub dtype: Dtype,
    /// How they are combined.
    pub op: ReduceOp,
    /// What goes in; for all-reduce, broadcast and reduce also what comes out.
    pub inputs: &'a [Memory],
    /// What comes out.
    pub outputs: &'a [Memory],
    /// The root; of a transfer the other rank.
    pub root: u32,
    /// Of a transfer.
    pub tag: u32,
    /// Of a transfer: this rank sends.
    pub sends: bool,
    /// Of a transfer: receives from whoever comes first.
    pub from_anybody: bool,
    /// Elements of each rank; none: all alike.
    pub counts: Option<&'a [u64]>,
    /// Of an all-to-all: elements from each rank.
    pub out_counts: Option<&'a [u64]>,
    /// Multiplies every contribution.
    pub prescale: f64,
    /// Multiplies the result.
    pub postscale: f64,
    /// Of an all-reduce; none: the job's, or by size.
    pub strategy: Option<&'a str>,
    /// The user's name of the tensors, for messages.
    pub label: &'a str,
    /// The caller wants to be told by [`Engine::next_notice`](crate::engine::Engine::next_notice).
    pub notify: Option<u64>,
}

impl Default for Request<'_> {
    fn default() -> Self {
        Request {
            call: Call::Barrier,
            dtype: Dtype::Uint8,
            op: ReduceOp::Sum,
            inputs: &[],
            outputs: &[],
            root: 0,
            tag: 0,
            sends: false,
            from_anybody: false,
            counts: None,
            out_counts: None,
            prescale: 1.0,
            postscale: 1.0,
            strategy: None,
            label: "",
            notify: None,
        }
    }
}

/// A group of ranks. Each of them calls the same operations in the same order; transfers are outside of that order.
pub struct Communicator {
    pub(crate) shared: Arc<Shared>,
    id: u32,
    ranks: Vec<u32>,
    me: u32,
    topology: Topology,
    choice: Mutex<Choice>,
    named: Mutex<HashMap<String, Arc<Planned>>>,
}

impl Communicator {
    pub(crate) fn new(shared: &Arc<Shared>, ranks: Vec<u32>, name: &str) -> Result<Communicator> {
        let size = shared.peers.len() as u32;
        let mut seen = ranks.clone();
        seen.sort_unstable();
        seen.dedup();
        if seen.len() != ranks.len() || seen.last().is_none_or(|&last| last >= size) {
            return Err(RunError::Usage(format!(
                "group '{name}': {ranks:?} are no ranks of a job of {size}; each may come once"
            )));
        }
        let Some(me) = ranks.iter().position(|&rank| rank == shared.rank) else {
            return Err(RunError::Usage(format!(
                "group '{name}' of ranks {ranks:?} has no place for rank {}",
                shared.rank
            )));
        };
        let id = group_id(name, &ranks);
        let topology = topology(shared, &ranks);
        let choice = Choice::new(&shared.settings, &topology)?;
        shared.add_group(id, name, ranks.clone(), me as u32)?;
        let (me, choice, named) = (me as u32, Mutex::new(choice), Mutex::default());
        let communicator = Communicator { shared: shared.clone(), id, ranks, me, topology, choice, named };
        crate::choice::tune(&communicator)?;
        Ok(communicator)
    }

    /// This process's place in it.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.me
    }

    /// Ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The same at all its ranks.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Tells the others' coordinators that a cycle has begun.
    pub(crate) fn invite(&self, cycle: u64) {
        self.shared.invite(self.id, &self.ranks, cycle);
    }

    /// Ranks of the job, in order.
    #[must_use]
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// What an all-reduce of so many bytes takes, by size.
    #[must_use]
    pub fn choices(&self) -> Vec<(u64, String)> {
        lock(&self.choice).describe()
    }

    pub(crate) fn choice(&self) -> &Mutex<Choice> {
        &self.choice
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Gives up: an operation whose caller cannot wait for it any longer must not touch its memory again.
    pub fn abandon(&self, why: &str) {
        self.shared.abandon(self.id, &RunError::Failed(why.into()));
    }

    /// Begins an operation.
    ///
    /// # Errors
    /// The caller's mistake, or a job that has failed.
    ///
    /// # Safety
    /// The memory of the request is valid for its elements, and nobody else touches it until the operation is over (or
    /// `keep` has been handed back), however the caller goes on.
    #[allow(unsafe_code, reason = "the promise about the memory is passed on")]
    pub unsafe fn submit(
        &self,
        request: &Request<'_>,
        keep: Option<Box<dyn Any + Send>>,
        how: Submission,
    ) -> Result<Arc<Handle>> {
        let plan = self.plan(request)?;
        // SAFETY: promised by the caller.
        let prepared = unsafe { request::prepare(request, self.me, self.size())? };
        let Prepared { program, mut space, count, finish, transfer } = prepared;
        let mut roles = Vec::with_capacity(1);
        let mut signature =
            Signature { call: request.call, dtype: request.dtype, op: request.op, root: 0, count, plan: 0 };
        if request.call.rooted() {
            signature.root = request.root as u16;
        }
        let lends = plan.as_ref().map_or_else(|| lock(&self.choice).lends(), |planned| planned.plan.lends);
        let program = match program {
            Some(program) => {
                roles.push((self.me, space));
                program
            }
            None => {
                let plan = plan.ok_or_else(|| RunError::Failed("an all-reduce has a plan".into()))?;
                signature.plan = plan.digest;
                let schedule = plan.schedule(&self.topology, request.dtype.size())?;
                request::prescale(&mut space, request);
                // Every role of this process; servers and switches have memory of their own.
                roles.push((self.me, space));
                let all = schedule.roles();
                for role in (all.workers..all.total()).filter(|role| role % all.workers == self.me) {
                    let mut scratch = Space::new(request.dtype.size());
                    scratch.push_scratch(count);
                    roles.push((role, scratch));
                }
                Box::new(Scheduled { schedule, bucket: Bucket { id: 0, len: count, pull_only: false } })
            }
        };
        let handle = Arc::new(Handle::new(request.notify));
        let label = request.label.to_owned();
        let begin = Begin { signature, program, roles, lends, transfer, finish, label, handle, keep };
        self.shared.submit(self.id, begin, how)
    }

    /// Waits for an operation; `false` at the time limit.
    ///
    /// # Errors
    /// Why it failed.
    pub fn wait(&self, handle: &Arc<Handle>, until: Option<Instant>) -> Result<bool> {
        let done = self.shared.wait(handle, until);
        handle.result()?;
        Ok(done)
    }

    /// As `wait`, for a thread that shares its core with the training.
    pub(crate) fn wait_quietly(&self, handle: &Arc<Handle>, until: Option<Instant>) -> Result<bool> {
        let done = self.shared.wait_quietly(handle, until);
        handle.result()?;
        Ok(done)
    }

    /// Nobody goes on before all have come.
    ///
    /// # Errors
    /// A rank that does not come.
    #[allow(unsafe_code, reason = "no memory is given")]
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: a barrier has no memory.
        let handle = unsafe { self.submit(&Request::default(), None, Submission::default())? };
        self.wait(&handle, None).map(drop)
    }

    fn plan(&self, request: &Request<'_>) -> Result<Option<Arc<Planned>>> {
        if request.call != Call::AllReduce {
            if let Some(name) = request.strategy {
                return Err(RunError::Usage(format!("strategy '{name}': only an all_reduce has one")));
            }
            return Ok(None);
        }
        let bytes = request.inputs.iter().map(|m| m.1).sum::<u64>() * request.dtype.size() as u64;
        match request.strategy {
            None => Ok(Some(lock(&self.choice).of(bytes))),
            Some(name) => {
                let mut named = lock(&self.named);
                if let Some(plan) = named.get(name) {
                    return Ok(Some(plan.clone()));
                }
                let plan = Planned::new(Plan::named(name, &self.shared.settings)?, &self.topology)?;
                named.insert(name.into(), plan.clone());
                Ok(Some(plan))
            }
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.shared.remove_group(self.id);
    }
}

/// What every member computes alike.
fn group_id(name: &str, ranks: &[u32]) -> u32 {
    digest(name.bytes().chain(ranks.iter().flat_map(|rank| rank.to_le_bytes())))
}

/// Ranks per node, if neighbouring ranks share hosts and all hosts but the last have as many; else a rank a node.
fn topology(shared: &Shared, ranks: &[u32]) -> Topology {
    let hosts: Vec<u32> = ranks.iter().map(|&rank| shared.hosts[rank as usize]).collect();
    let per_node = hosts.iter().take_while(|&&host| host == hosts[0]).count();
    let mut nodes: Vec<u32> = hosts.clone();
    nodes.dedup();
    let regular = hosts.chunks(per_node).zip(&nodes).all(|(chunk, node)| chunk.iter().all(|host| host == node))
        && nodes.len() == hosts.len().div_ceil(per_node);
    Topology {
        workers: ranks.len() as u32,
        ranks_per_node: if regular { per_node as u32 } else { 1 },
        servers: shared.settings.servers,
        switch_radix: None,
    }
}
