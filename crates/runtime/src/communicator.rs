//! A group of ranks and the operations between them.
#[cfg(feature = "foreign")]
mod by_ipc;
#[cfg(feature = "foreign")]
mod by_mpi;
#[cfg(feature = "foreign")]
mod by_nccl;
mod deferred;
mod lowering;
#[cfg(feature = "foreign")]
mod on_device;
mod request;
use std::any::Any;
use std::collections::HashMap;

#[cfg(feature = "foreign")]
pub use by_ipc::IpcCounters;
pub use deferred::Gate;
use lowering::Prepared;
#[cfg(feature = "foreign")]
pub use on_device::{OnDevice, Stages};
use paceline_engine::{EngineShared, Order, Submission};
use paceline_executor::handle::Handle;
use paceline_executor::program::{Barrier, Native, OffloadRequest, Program, Scheduled};
use paceline_executor::{Finish, OperationSpec};
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::sync::atomic::{AtomicU32, Ordering};
use paceline_os::sync::{Arc, Mutex};
use paceline_os::time::{Duration, Instant};
use paceline_schedule::{self as schedule, Bucket, Topology};
use paceline_transport::channel::LARGEST_FRAGMENT;
use paceline_transport::error::{Result, RunError};
use paceline_transport::header::{Collective, Signature};
use paceline_transport::space::Space;
pub use request::{CollectiveRequest, Memory};

use crate::digest::digest;
use crate::selection::{Algorithm, AlgorithmSelection, BuiltAlgorithm, is_offloaded};

/// Bytes of an operation that a switch holds: while one fragment arrives, another leaves.
const PASSING: u64 = 2 * LARGEST_FRAGMENT as u64;

/// Most bytes of a bucket for which a server takes memory.
const MOST_SERVED: u64 = 1 << 40;

/// Duplicate communicators made in advance for the plans of coordinators, so that later groups of the same ranks need
/// not wait for each other.
const DUPLICATES: usize = 4;

/// A group of ranks. All of them call the same operations in the same order; sends and receives are outside that order.
pub struct Communicator {
    pub(crate) shared: Arc<EngineShared>,
    id: u32,
    ranks: Vec<u32>,
    me: u32,
    topology: Topology,
    selection: Mutex<AlgorithmSelection>,
    named: Mutex<HashMap<String, Arc<BuiltAlgorithm>>>,
    /// The first of its ranks train; the others are servers.
    workers: u32,
    /// Name of the group of its workers.
    name: String,
    /// The same ranks and the servers, if these are processes of their own.
    served: Option<Box<Communicator>>,
    /// Buckets counted so far.
    buckets: AtomicU32,
    deferred: deferred::Queue,
    /// NCCL's communicator of the same ranks, once one was needed.
    #[cfg(feature = "foreign")]
    nccl: Mutex<Option<Arc<by_nccl::NcclGroup>>>,
    /// Whether NCCL is its default, once its ranks have compared their devices.
    #[cfg(feature = "foreign")]
    prefers_nccl: Mutex<Option<bool>>,
    /// The same ranks in each other's device memory, once that was tried; none if they do not reach it.
    #[cfg(feature = "foreign")]
    ipc: Mutex<Option<Option<Arc<by_ipc::IpcGroup>>>>,
    /// Streams for what MPI is given, once it was given something.
    #[cfg(feature = "foreign")]
    mpi: Mutex<Option<Arc<by_mpi::MpiStreams>>>,
}

impl Communicator {
    pub(crate) fn new(shared: &Arc<EngineShared>, ranks: Vec<u32>, name: &str) -> Result<Communicator> {
        let size = shared.workers();
        let mut seen = ranks.clone();
        seen.sort_unstable();
        seen.dedup();
        if seen.len() != ranks.len() || seen.last().is_none_or(|&last| last >= size) {
            return Err(RunError::Usage(format!(
                "group '{name}': {ranks:?} must be distinct ranks of a job of {size}"
            )));
        }
        let Some(me) = ranks.iter().position(|&rank| rank == shared.rank) else {
            return Err(RunError::Usage(format!(
                "group '{name}' of ranks {ranks:?} does not contain rank {}",
                shared.rank
            )));
        };
        let workers = ranks.len() as u32;
        let served = (shared.settings.helpers() > 0).then(|| Communicator::served(shared, &ranks, name)).transpose()?;
        let mut communicator = Communicator::assemble(shared, ranks, name, (workers, me as u32))?;
        communicator.served = served.map(Box::new);
        if shared.settings.has_library() {
            communicator.join_library()?;
        }
        Ok(communicator)
    }

    /// The groups in which its operations run: itself, and with its servers.
    pub(crate) fn groups(&self) -> impl Iterator<Item = u32> + '_ {
        let with_servers =
            if paceline_os::mutant("servers make it a reason to leave") { None } else { self.served.as_ref() };
        std::iter::once(self.id).chain(with_servers.map(|served| served.id))
    }

    /// The same ranks once more, with what was measured of them: nobody waits for anybody. Without servers.
    ///
    /// # Errors
    /// A name that is taken.
    pub(crate) fn like(&self, name: &str) -> Result<Communicator> {
        let communicator = Communicator::assemble(&self.shared, self.ranks.clone(), name, (self.workers, self.me))?;
        self.shared.begin_naming(communicator.id, true);
        *communicator.selection.lock() = self.selection.lock().clone();
        if self.shared.settings.has_library() {
            self.shared.inherit(self.id, communicator.id);
        }
        Ok(communicator)
    }

    /// Has the offload library create what it needs for this group. Collective over its ranks.
    fn join_library(&self) -> Result<()> {
        let native = self.shared.settings.strategy.as_deref().is_some_and(is_offloaded);
        let then = OffloadRequest::Join(if native { DUPLICATES } else { 0 });
        let signature = Signature {
            collective: Collective::Barrier,
            dtype: Dtype::Uint8,
            op: ReduceOp::Sum,
            root: 0,
            count: 0,
            plan: 0,
        };
        let program = Box::new(Native { barrier: Barrier { size: self.size() }, then });
        let handle = self.meet(signature, program, ("communicator of the library", None), &Submission::default())?;
        self.wait(&handle, None).map(drop)
    }

    /// Begins an operation without memory, which the other ranks know by its signature. `notify`: as in a request.
    fn meet(
        &self,
        signature: Signature,
        program: Box<dyn Program>,
        (label, notify): (&str, Option<u64>),
        how: &Submission,
    ) -> Result<Arc<Handle>> {
        let spec = OperationSpec {
            signature,
            program,
            roles: vec![(self.me, Space::new(1))],
            zero_copy: false,
            point_to_point: None,
            step: None,
            factor: None,
            finish: None,
            label: label.into(),
            handle: Arc::new(Handle::new(notify)),
            keep: None,
        };
        self.shared.submit(self.id, spec, how)
    }

    /// These workers, and the servers behind them. A server makes it when it hears of it.
    pub(crate) fn served(shared: &Arc<EngineShared>, workers: &[u32], name: &str) -> Result<Communicator> {
        let servers = shared.workers()..shared.peers.len() as u32;
        let ranks: Vec<u32> = workers.iter().copied().chain(servers).collect();
        let me = ranks.iter().position(|&rank| rank == shared.rank).unwrap_or(0) as u32;
        let mut served =
            Communicator::assemble(shared, ranks, &format!("{name}, servers"), (workers.len() as u32, me))?;
        name.clone_into(&mut served.name);
        Ok(served)
    }

    fn assemble(
        shared: &Arc<EngineShared>,
        ranks: Vec<u32>,
        name: &str,
        (workers, me): (u32, u32),
    ) -> Result<Communicator> {
        let id = group_id(name, &ranks);
        let topology = topology(shared, &ranks[..workers as usize]);
        let selection = Mutex::new(AlgorithmSelection::new(&shared.settings, &topology)?);
        shared.add_group(id, name, ranks.clone(), me)?;
        let (shared, named, buckets) = (shared.clone(), Mutex::default(), AtomicU32::new(0));
        let (served, deferred) = (None, deferred::Queue::default());
        Ok(Communicator {
            shared,
            id,
            name: name.into(),
            ranks,
            me,
            topology,
            selection,
            named,
            workers,
            served,
            buckets,
            deferred,
            #[cfg(feature = "foreign")]
            nccl: Mutex::new(None),
            #[cfg(feature = "foreign")]
            prefers_nccl: Mutex::new(None),
            #[cfg(feature = "foreign")]
            ipc: Mutex::new(None),
            #[cfg(feature = "foreign")]
            mpi: Mutex::new(None),
        })
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

    /// Equal on all its ranks.
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

    /// The strategy of an all-reduce, by size in bytes.
    #[must_use]
    pub fn choices(&self) -> Vec<(u64, String)> {
        self.selection.lock().describe()
    }

    pub(crate) fn selection(&self) -> &Mutex<AlgorithmSelection> {
        &self.selection
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Fails the communicator: an operation whose caller cannot wait any longer must not touch its memory again.
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
        request: &CollectiveRequest<'_>,
        keep: Option<Box<dyn Any + Send>>,
        how: Submission,
    ) -> Result<Arc<Handle>> {
        if self.defers() {
            let open = Arc::new(Gate::default());
            open.open();
            // SAFETY: promised by the caller.
            return Ok(unsafe { self.submit_behind(&open, request, keep, how) });
        }
        // SAFETY: promised by the caller.
        unsafe { self.submit_now(request, keep, how) }
    }

    /// # Safety
    /// As for `submit`.
    #[allow(unsafe_code, reason = "the promise about the memory is passed on")]
    unsafe fn submit_now(
        &self,
        request: &CollectiveRequest<'_>,
        keep: Option<Box<dyn Any + Send>>,
        how: Submission,
    ) -> Result<Arc<Handle>> {
        let request = &request.in_range();
        #[cfg(feature = "foreign")]
        if let Some(enter) = request.device {
            return self.submit_to_library(enter, request, keep, &how);
        }
        let built = self.algorithm_for(request)?;
        if (request.step.is_some() || request.pull_only)
            && !built.as_ref().is_some_and(|built| built.algorithm.has_servers())
        {
            return Err(RunError::Usage("step, pull_only: only all-reduces by parameter servers have them".into()));
        }
        if let (Some(served), Some(built)) = (&self.served, &built)
            && built.algorithm.has_helpers(&self.shared.settings)
        {
            let built = served.build(&built.algorithm)?;
            let bucket = request.bucket.unwrap_or_else(|| served.buckets.fetch_add(1, Ordering::Relaxed));
            // SAFETY: promised by the caller.
            return unsafe { served.submit_built(request, Some(built), bucket, keep, how) };
        }
        // SAFETY: promised by the caller.
        unsafe { self.submit_built(request, built, request.bucket.unwrap_or(0), keep, how) }
    }

    /// # Safety
    /// As for `submit`.
    #[allow(unsafe_code, reason = "the promise about the memory is passed on")]
    unsafe fn submit_built(
        &self,
        request: &CollectiveRequest<'_>,
        built: Option<Arc<BuiltAlgorithm>>,
        bucket: u32,
        keep: Option<Box<dyn Any + Send>>,
        how: Submission,
    ) -> Result<Arc<Handle>> {
        // SAFETY: promised by the caller.
        let prepared = unsafe { lowering::prepare(request, (self.me, self.size()), built.is_some())? };
        let Prepared { program, mut space, count, plan, mut finish, point_to_point } = prepared;
        let (mut factor, step, pull_only) = (None, request.step, request.pull_only);
        let mut roles = Vec::with_capacity(1);
        let mut signature =
            Signature { collective: request.collective, dtype: request.dtype, op: request.op, root: 0, count, plan };
        if request.collective.rooted() {
            signature.root = request.root as u16;
        }
        let zero_copy =
            built.as_ref().map_or_else(|| self.selection.lock().zero_copy(), |built| built.algorithm.zero_copy);
        let ordered = built.as_ref().filter(|_| self.me == 0 && self.workers < self.size()).cloned();
        let native = built.as_ref().filter(|built| built.algorithm.is_offloaded());
        let program = match (program, native) {
            (Some(program), _) => {
                roles.push((self.me, space));
                program
            }
            (None, Some(built)) => {
                signature.plan = built.digest ^ digest(request.postscale.to_bits().to_le_bytes());
                lowering::prescale(&mut space, request);
                roles.push((self.me, space));
                Box::new(Native { barrier: Barrier { size: self.size() }, then: OffloadRequest::AllReduce })
            }
            (None, None) => {
                let (Some(built), Some(collective)) = (built, lowering::of_strategies(request)) else {
                    return Err(RunError::Failed(format!("{}: no algorithm", request.collective.name())));
                };
                let schedule = built.schedule(collective, &self.topology, request.dtype.size())?;
                signature.plan = built.digest;
                if collective == schedule::Collective::AllReduce
                    && schedule.roles().total() > 1
                    && let Some(Finish { factor: each, .. }) = finish.take()
                {
                    // The rank that completes a piece multiplies it for all, so all ranks need the same factor.
                    signature.plan ^= digest(each.to_bits().to_le_bytes());
                    factor = Some(each);
                }
                if request.step.is_some() || request.pull_only {
                    signature.plan ^= digest(format!("{:?} {}", request.step, request.pull_only).bytes());
                }
                if collective.reduces() {
                    lowering::prescale(&mut space, request);
                }
                // Every role of this process; servers and switches have memory of their own.
                if self.me < self.workers {
                    roles.push((self.me, space));
                }
                let all = schedule.roles();
                for role in (all.workers..all.total()).filter(|role| role % self.size() == self.me) {
                    let element = request.dtype.size();
                    let memory = if role < all.workers + all.servers {
                        let mut scratch = Space::new(element);
                        scratch.push_scratch(count);
                        scratch
                    } else {
                        // A switch sends sums on as they are complete.
                        Space::windowed(element, count, PASSING / element as u64)
                    };
                    roles.push((role, memory));
                }
                Box::new(Scheduled { schedule, bucket: Bucket { id: bucket, len: count, pull_only } })
            }
        };
        let handle = request.handle.cloned().unwrap_or_else(|| Arc::new(Handle::new(request.notify)));
        let label = request.label.to_owned();
        let spec = OperationSpec {
            signature,
            program,
            roles,
            zero_copy,
            point_to_point,
            step,
            factor,
            finish,
            label,
            handle,
            keep,
        };
        // Before the data: behind it, the message would wait in the network card's queue.
        if let Some(built) = ordered {
            self.order(request, &built.algorithm, bucket, how.timeout);
        }
        self.shared.submit(self.id, spec, &how)
    }

    /// Tells the servers which all-reduce the workers have begun.
    fn order(&self, request: &CollectiveRequest<'_>, algorithm: &Algorithm, bucket: u32, timeout: Option<Duration>) {
        let order = Order {
            group: self.name.clone(),
            workers: self.ranks[..self.workers as usize].to_vec(),
            strategy: algorithm.strategy.clone(),
            dtype: request.dtype,
            op: request.op,
            count: request.inputs.iter().map(|memory| memory.1).sum(),
            postscale: request.postscale,
            step: request.step,
            pull_only: request.pull_only,
            bucket,
            label: request.label.into(),
            timeout_s: timeout.map(|timeout| timeout.as_secs_f64()),
        };
        self.shared.order(&self.ranks[self.workers as usize..], &order);
    }

    /// On a server: takes part in what the workers have begun.
    ///
    /// # Errors
    /// An order that makes no sense, or a group that has failed.
    #[allow(unsafe_code, reason = "no memory is given: a server has its own")]
    pub(crate) fn serve(&self, order: &Order) -> Result<Arc<Handle>> {
        let wrong = || RunError::Failed(format!("invalid order from the workers: {order:?}"));
        let Order { dtype, op, .. } = *order;
        if order.count.checked_mul(dtype.size() as u64).is_none_or(|bytes| bytes > MOST_SERVED) {
            return Err(wrong());
        }
        let memory = [(0, order.count)];
        let request = CollectiveRequest {
            collective: Collective::AllReduce,
            dtype,
            op,
            label: &order.label,
            ..CollectiveRequest::default()
        };
        let request = CollectiveRequest { inputs: &memory, postscale: order.postscale, step: order.step, ..request };
        let request = CollectiveRequest { pull_only: order.pull_only, ..request };
        let built = self.build(&Algorithm::named(&order.strategy, &self.shared.settings)?)?;
        let timeout = order.timeout_s.map(paceline_engine::settings::seconds);
        // SAFETY: a server is no worker, so that the addresses, of which it has none, are not used.
        unsafe {
            self.submit_built(
                &request,
                Some(built),
                order.bucket,
                None,
                Submission { timeout, background: true, ..Submission::default() },
            )
        }
    }

    /// The schedules of an algorithm for the topology of this group.
    fn build(&self, algorithm: &Algorithm) -> Result<Arc<BuiltAlgorithm>> {
        let mut named = self.named.lock();
        if let Some(built) = named.get(&algorithm.strategy) {
            return Ok(built.clone());
        }
        let built = BuiltAlgorithm::new(algorithm.clone(), &self.topology)?;
        named.insert(algorithm.strategy.clone(), built.clone());
        Ok(built)
    }

    /// Whether parameter servers carry out this operation.
    #[cfg(feature = "foreign")]
    pub(crate) fn is_for_servers(&self, request: &CollectiveRequest<'_>) -> Result<bool> {
        let built = self.algorithm_for(request)?;
        Ok(self.served.is_some() || built.is_some_and(|built| built.algorithm.has_servers()))
    }

    /// Waits for an operation; `false` at the time limit.
    ///
    /// # Errors
    /// Why it failed.
    pub fn wait(&self, handle: &Arc<Handle>, until: Option<Instant>) -> Result<bool> {
        if !handle.done() {
            self.of_this_process()?;
        }
        let done = self.shared.wait(handle, until);
        handle.result()?;
        Ok(done)
    }

    /// Fails in a forked child.
    ///
    /// # Errors
    /// The process was forked.
    pub fn of_this_process(&self) -> Result<()> {
        self.shared.of_this_process()
    }

    /// As `wait`, for a thread that shares its core with the training.
    pub(crate) fn wait_quietly(&self, handle: &Arc<Handle>, until: Option<Instant>) -> Result<bool> {
        let done = self.shared.wait_quietly(handle, until);
        handle.result()?;
        Ok(done)
    }

    /// The name of the communicator of all ranks, by which they find it.
    pub(crate) const WORLD: &str = "world";

    /// Has messages call it by another name.
    pub(crate) fn show_as(&self, name: &str) {
        self.groups().for_each(|group| self.shared.show_as(group, name));
    }

    /// It is made: from now on, a script calls its operations. With `named_tensors`, it calls tensors by name instead.
    pub(crate) fn begin_naming(&self, named_tensors: bool) {
        self.groups().for_each(|group| self.shared.begin_naming(group, named_tensors));
    }

    /// How many operations are in flight, and how far they are.
    #[must_use]
    pub fn in_flight(&self) -> (usize, u64) {
        let each = self.groups().map(|group| self.shared.in_flight(group));
        each.fold((0, 0), |(count, moved), (more, further)| (count + more, moved + further))
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// A rank does not come.
    #[allow(unsafe_code, reason = "no memory is given")]
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: a barrier has no memory.
        let handle = unsafe { self.submit(&CollectiveRequest::default(), None, Submission::default())? };
        self.wait(&handle, None).map(drop)
    }

    fn algorithm_for(&self, request: &CollectiveRequest<'_>) -> Result<Option<Arc<BuiltAlgorithm>>> {
        let what = request.collective.name();
        let Some(collective) = lowering::of_strategies(request) else {
            return match request.strategy {
                None => Ok(None),
                Some(name) => Err(RunError::Usage(format!(
                    "strategy '{name}': {what} has no strategy{}",
                    if request.counts.is_some() { " if counts differ" } else { "" }
                ))
                .with_remedy("drop strategy=")),
            };
        };
        if collective != schedule::Collective::AllReduce {
            let Some(name) = request.strategy else {
                return Ok(self.selection.lock().named_for(collective, &self.shared.settings));
            };
            let built = self.build(&Algorithm::named(name, &self.shared.settings)?)?;
            // Says which strategies have this collective.
            built.schedule(collective, &self.topology, request.dtype.size())?;
            if !built.algorithm.offers(collective) {
                let why = format!("strategy '{name}': a communication library has no such program of {what} here");
                return Err(RunError::Usage(why).with_remedy("drop strategy="));
            }
            return Ok(Some(built));
        }
        let bytes = request.inputs.iter().map(|m| m.1).sum::<u64>() * request.dtype.size() as u64;
        match request.strategy {
            None => Ok(Some(self.selection.lock().of(bytes))),
            Some(name) => {
                // Strategies that have been built are found without a look at the settings.
                let known = self.named.lock().get(name).cloned();
                known.map_or_else(|| self.build(&Algorithm::named(name, &self.shared.settings)?), Ok).map(Some)
            }
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.of_this_process().is_err() {
            return;
        }
        #[cfg(feature = "foreign")]
        if let Some(Some(group)) = &*self.ipc.lock() {
            group.drain(self.shared.settings.timeout());
        }
        self.refuse_deferred();
        self.shared.remove_group(self.id);
    }
}

/// A number that every member computes alike.
fn group_id(name: &str, ranks: &[u32]) -> u32 {
    digest(name.bytes().chain(ranks.iter().flat_map(|rank| rank.to_le_bytes())))
}

/// Ranks per node if neighboring ranks share hosts and all hosts but the last have equally many; otherwise 1.
fn topology(shared: &EngineShared, ranks: &[u32]) -> Topology {
    let hosts: Vec<u32> = ranks.iter().map(|&rank| shared.hosts[rank as usize]).collect();
    let per_node = hosts.iter().take_while(|&&host| host == hosts[0]).count();
    let mut nodes: Vec<u32> = hosts.clone();
    nodes.dedup();
    let regular = hosts.chunks(per_node).zip(&nodes).all(|(chunk, node)| chunk.iter().all(|host| host == node))
        && nodes.len() == hosts.len().div_ceil(per_node);
    let topology = Topology {
        workers: ranks.len() as u32,
        ranks_per_node: if regular { per_node as u32 } else { 1 },
        servers: shared.settings.servers,
        racks: None,
        pods: None,
        switch_radix: None,
        switch_memory: None,
    };
    topology.in_racks(shared.settings.nodes_per_rack)
}
