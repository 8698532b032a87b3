//! Collectives on the memory of CUDA devices by NCCL, watched by the failure detector.
//!
//! NCCL moves the data, and the host waits for nothing. Beside each of its collectives the ranks meet in a barrier that
//! bears its description: so ranks that call different things are told, a rank that does not come is named within the time
//! limit, and when one has died, NCCL's communicator is aborted and its streams go on.
#![allow(unsafe_code, reason = "the promise about the memory is passed on")]
use std::any::Any;

use paceline_cuda::{
    CallerStream, CudaError, Event, ID_BYTES, Nccl, NcclCall, NcclComm, NcclOp, NcclType, Region, Stage, UniqueId,
};
use paceline_engine::settings::CudaBy;
use paceline_engine::{Listener, News, Submission};
use paceline_executor::handle::Handle;
use paceline_executor::program::Barrier;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::sync::atomic::Ordering;
use paceline_os::sync::{Arc, Mutex};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};
use paceline_transport::header::{Collective, Signature};

use super::on_device::{Landing, Stages, regions};
use super::{CollectiveRequest, Communicator, Memory};
use crate::selection::is_offloaded;

/// How often it is looked whether NCCL has finished what it does on the host.
const LOOK: Duration = Duration::from_millis(1);

fn failed(error: CudaError) -> RunError {
    RunError::Failed(error.0)
}

/// NCCL's communicator of a group.
pub(super) struct NcclGroup {
    comm: Arc<NcclComm>,
    /// Owners of memory that NCCL may still use, each with the event after which it does not.
    kept: Mutex<Vec<Kept>>,
}

/// The event, and the owner.
type Kept = (Arc<Event>, Box<dyn Any + Send>);

impl Listener for NcclGroup {
    fn notify(&self, news: News) {
        if let News::Failed(_) = news {
            // Its streams wait for a rank that will not come. Not in this thread, which has to answer other ranks.
            let comm = self.comm.clone();
            let _ = paceline_os::thread::Builder::new().name("paceline-abort".into()).spawn(move || comm.abort());
        }
    }
}

impl NcclGroup {
    fn keep(&self, done: Arc<Event>, keep: Option<Box<dyn Any + Send>>) {
        let mut kept = self.kept.lock();
        // After an error of the context nothing uses it any more.
        kept.retain(|(done, _)| !done.happened().unwrap_or(true));
        kept.extend(keep.map(|keep| (done, keep)));
    }
}

/// A collective in NCCL.
pub struct NcclOperation {
    group: Arc<NcclGroup>,
    communicator: Arc<Communicator>,
    /// Of the barrier.
    met: Arc<Handle>,
    done: Arc<Event>,
    stream: CallerStream,
    writes: Vec<Region>,
}

/// A rank's description of itself when a group decides whether NCCL is its default.
#[derive(Clone, Copy, PartialEq)]
struct Candidate {
    uuid: [u8; 16],
    version: i32,
}

impl Candidate {
    /// The description, or why there is none, in as many bytes on each rank.
    const BYTES: usize = 256;
    /// Where the text begins.
    const TEXT: usize = 22;

    fn new(library: Option<&str>, stage: &Stage) -> std::result::Result<Candidate, CudaError> {
        let version = Nccl::get(library)?.number();
        Ok(Candidate { uuid: stage.device().uuid()?, version })
    }

    fn to_bytes(this: &std::result::Result<Candidate, CudaError>) -> [u8; Candidate::BYTES] {
        let mut bytes = [0; Candidate::BYTES];
        match this {
            Ok(candidate) => {
                bytes[0] = 1;
                bytes[1..17].copy_from_slice(&candidate.uuid);
                bytes[17..21].copy_from_slice(&candidate.version.to_le_bytes());
            }
            Err(CudaError(why)) => {
                let length = why.len().min(Candidate::BYTES - Candidate::TEXT);
                bytes[21] = length as u8;
                bytes[Candidate::TEXT..Candidate::TEXT + length].copy_from_slice(&why.as_bytes()[..length]);
            }
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> std::result::Result<Candidate, String> {
        if bytes[0] == 0 {
            let text = &bytes[Candidate::TEXT..Candidate::TEXT + usize::from(bytes[21])];
            return Err(String::from_utf8_lossy(text).into_owned());
        }
        let (mut uuid, mut version) = ([0; 16], [0; 4]);
        uuid.copy_from_slice(&bytes[1..17]);
        version.copy_from_slice(&bytes[17..21]);
        Ok(Candidate { uuid, version: i32::from_le_bytes(version) })
    }
}

/// Why NCCL is not the default of ranks with these descriptions; `None`: it is.
fn refusal(ranks: &[u32], candidates: &[std::result::Result<Candidate, String>]) -> Option<String> {
    let mut seen: Vec<(u32, Candidate)> = Vec::new();
    for (&rank, candidate) in ranks.iter().zip(candidates) {
        let candidate = match candidate {
            Ok(candidate) => *candidate,
            Err(why) => return Some(format!("rank {rank}: {why}")),
        };
        if let Some((other, _)) = seen.iter().find(|(_, other)| other.uuid == candidate.uuid) {
            return Some(format!("ranks {other} and {rank} share a device"));
        }
        if let Some((other, first)) = seen.first().filter(|(_, first)| first.version != candidate.version) {
            let (theirs, ours) = (Nccl::spelled(first.version), Nccl::spelled(candidate.version));
            return Some(format!("rank {other} has NCCL {theirs}, rank {rank} {ours}"));
        }
        seen.push((rank, candidate));
    }
    None
}

/// The elements as NCCL knows them.
fn kind(dtype: Dtype) -> NcclType {
    match dtype {
        Dtype::Float32 => NcclType::Float32,
        Dtype::Float64 => NcclType::Float64,
        Dtype::Float16 => NcclType::Float16,
        Dtype::Bfloat16 => NcclType::Bfloat16,
        Dtype::Int32 => NcclType::Int32,
        Dtype::Int64 => NcclType::Int64,
        Dtype::Uint8 => NcclType::Uint8,
    }
}

/// The reduction as NCCL knows it; `None`: it has none.
fn operator(request: &CollectiveRequest<'_>, size: u32) -> Option<NcclOp> {
    let each = 1.0 / f64::from(size);
    #[expect(clippy::float_cmp, reason = "the caller computes the same quotient")]
    let (plain, average) = (request.postscale == 1.0, request.postscale == each);
    #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
    let scaled = request.prescale != 1.0;
    match request.op {
        _ if scaled => None,
        ReduceOp::Sum if plain => Some(NcclOp::Sum),
        ReduceOp::Sum if average => Some(NcclOp::Average),
        _ if !plain => None,
        ReduceOp::Min => Some(NcclOp::Min),
        ReduceOp::Max => Some(NcclOp::Max),
        ReduceOp::Product => Some(NcclOp::Product),
        ReduceOp::Sum => None,
    }
}

impl Communicator {
    /// Whether NCCL has this operation. The same on all ranks.
    fn suits_nccl(&self, request: &CollectiveRequest<'_>) -> bool {
        let of_servers = request.step.is_some() || request.bucket.is_some() || request.strategy.is_some();
        let uneven = request.is_uneven();
        let one = |memory: &[Memory]| memory.len() <= 1;
        !of_servers
            && match request.collective {
                Collective::AllReduce | Collective::Reduce => operator(request, self.size()).is_some(),
                Collective::Broadcast => true,
                Collective::AllGather => !uneven && one(request.inputs) && one(request.outputs),
                Collective::ReduceScatter => {
                    !uneven && one(request.inputs) && one(request.outputs) && operator(request, self.size()).is_some()
                }
                _ => false,
            }
    }

    /// Whether NCCL is to run this operation on device memory: it has it, and the job wants that or, with `auto`, each rank
    /// of the group has a device of its own. The same on all ranks; with `auto`, the first call waits for all of them.
    ///
    /// # Errors
    /// A rank does not come.
    pub(super) fn is_for_nccl(
        self: &Arc<Communicator>,
        stage: &Arc<Stage>,
        request: &CollectiveRequest<'_>,
    ) -> Result<bool> {
        let settings = &self.shared.settings;
        match settings.cuda {
            CudaBy::Nccl => Ok(self.suits_nccl(request)),
            // A strategy that is named runs as it is.
            CudaBy::Auto if settings.strategy.as_deref().is_none_or(is_offloaded) => {
                Ok(self.size() > 1 && self.served.is_none() && self.suits_nccl(request) && self.prefers_nccl(stage)?)
            }
            _ => Ok(false),
        }
    }

    /// Whether NCCL is this group's default: all ranks can load the same release, and no two share a device.
    fn prefers_nccl(self: &Arc<Communicator>, stage: &Arc<Stage>) -> Result<bool> {
        let mut known = self.prefers_nccl.lock();
        if let Some(known) = *known {
            return Ok(known);
        }
        self.wait_for_deferred()?;
        let settings = &self.shared.settings;
        let own = Candidate::to_bytes(&Candidate::new(settings.nccl_library.as_deref(), stage));
        let all = self.exchange(&own, "devices of the ranks")?;
        let candidates: Vec<_> = all.chunks(own.len()).map(Candidate::from_bytes).collect();
        let why_not = refusal(&self.ranks, &candidates);
        if settings.verbose && self.me == 0 {
            match &why_not {
                None => eprintln!("paceline: CUDA tensors go by NCCL: each of the {} ranks has a device", self.size()),
                Some(why) => eprintln!("paceline: CUDA tensors do not go by NCCL: {why}"),
            }
        }
        Ok(*known.insert(why_not.is_none()))
    }

    /// Begins a collective in NCCL. The first one makes its communicator, for which all ranks are waited for.
    ///
    /// # Errors
    /// As for `submit`; NCCL cannot be loaded, or fails.
    ///
    /// # Safety
    /// As for [`submit_on_device`](Communicator::submit_on_device).
    pub(super) unsafe fn submit_to_nccl(
        self: &Arc<Communicator>,
        (stages, stage, stream): (&Stages, &Arc<Stage>, CallerStream),
        request: &CollectiveRequest<'_>,
        keep: Option<Box<dyn Any + Send>>,
        how: &Submission,
    ) -> Result<Arc<NcclOperation>> {
        let count = request.count(self.size())?;
        let at = |memory: &[Memory]| memory.first().map_or((0, 0), |&(address, elements)| (address as u64, elements));
        let buffers: Vec<(u64, u64)> =
            request.inputs.iter().map(|&(address, elements)| (address as u64, elements)).collect();
        let op = operator(request, self.size()).unwrap_or(NcclOp::Sum);
        let (input, output) = (at(request.inputs), at(request.outputs));
        let call = match request.collective {
            Collective::Broadcast => NcclCall::Broadcast(&buffers, request.root),
            Collective::Reduce => NcclCall::Reduce(&buffers, op, request.root),
            Collective::AllGather => NcclCall::AllGather(input.0, output.0, input.1),
            Collective::ReduceScatter => NcclCall::ReduceScatter(input.0, output.0, output.1, op),
            _ => NcclCall::AllReduce(&buffers, op),
        };
        let element = request.dtype.size() as u64;
        let (reads, outputs) = (regions(request.inputs, element), regions(request.outputs, element));
        let writes = if request.outputs.is_empty() { reads.clone() } else { outputs };
        stages.settle(&reads, None)?;
        stages.settle(&writes, None)?;
        self.wait_for_deferred()?;
        let group = self.nccl_group(stage)?;
        let met = self.announce(request, count, &buffers, how)?;
        let done = Arc::new(Event::new(stage.device()).map_err(failed)?);
        // SAFETY: promised by the caller.
        unsafe { group.comm.submit(stream, &call, kind(request.dtype), &done) }.map_err(|error| {
            let why = self.shared.failure_of(self.id).unwrap_or_else(|| {
                RunError::Failed(format!("rank {}: {error}, in {}", self.shared.rank, request.collective.name()))
            });
            self.abandon(&why.to_string());
            why
        })?;
        group.keep(done.clone(), keep);
        let operation = Arc::new(NcclOperation { group, communicator: self.clone(), met, done, stream, writes });
        let landing: Arc<dyn Landing> = operation.clone();
        stages.note(&landing);
        stages.count_nccl();
        Ok(operation)
    }

    /// Returns once earlier calls have their place in the order.
    pub(super) fn wait_for_deferred(&self) -> Result<()> {
        let until = Instant::now() + self.shared.settings.timeout();
        while self.defers() {
            if Instant::now() > until {
                let why = "this rank's device has not reached an operation that was called before";
                return Err(RunError::Failed(format!("rank {}: {why}", self.shared.rank)));
            }
            paceline_os::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Begins the barrier beside a collective, which bears its description.
    fn announce(
        &self,
        request: &CollectiveRequest<'_>,
        count: u64,
        buffers: &[(u64, u64)],
        how: &Submission,
    ) -> Result<Arc<Handle>> {
        let lengths = if buffers.len() > 1 { buffers } else { &[] };
        let plan = crate::digest::digest(
            lengths.iter().flat_map(|buffer| buffer.1.to_le_bytes()).chain(request.postscale.to_bits().to_le_bytes()),
        );
        let root = if request.collective.rooted() { request.root as u16 } else { 0 };
        let signature =
            Signature { collective: request.collective, dtype: request.dtype, op: request.op, root, count, plan };
        // Nobody waits for it as a caller of the host does: it goes on in the background.
        let how = Submission { background: true, patient: false, ..how.clone() };
        self.meet(signature, Box::new(Barrier { size: self.size() }), (request.label, request.notify), &how)
    }

    /// NCCL's communicator of these ranks, made by the first call.
    fn nccl_group(self: &Arc<Communicator>, stage: &Arc<Stage>) -> Result<Arc<NcclGroup>> {
        let mut made = self.nccl.lock();
        if let Some(group) = &*made {
            return Ok(group.clone());
        }
        let settings = &self.shared.settings;
        let nccl = Nccl::get(settings.nccl_library.as_deref()).map_err(|error| RunError::Usage(error.0))?;
        let mut id = if self.me == 0 { nccl.unique_id().map_err(failed)? } else { UniqueId([0; ID_BYTES]) };
        let memory = [(id.0.as_mut_ptr() as usize, ID_BYTES as u64)];
        let request = CollectiveRequest {
            collective: Collective::Broadcast,
            inputs: &memory,
            label: "NCCL's unique id",
            ..CollectiveRequest::default()
        };
        // SAFETY: `id` outlives the wait, which ends with the operation.
        let handle = unsafe { self.submit_now(&request, None, Submission::default())? };
        while !self.wait(&handle, Some(Instant::now() + Duration::from_millis(100)))? {}
        let comm = NcclComm::begin(&nccl, stage.device(), &id, (self.me, self.size())).map_err(failed)?;
        let group = Arc::new(NcclGroup { comm: Arc::new(comm), kept: Mutex::default() });
        let listener: Arc<dyn Listener> = group.clone();
        self.shared.listen(self.id, Arc::downgrade(&listener));
        let until = Instant::now() + settings.start_timeout();
        while !group.comm.ready().map_err(|error| self.shared.failure_of(self.id).unwrap_or_else(|| failed(error)))? {
            if Instant::now() > until {
                let why = format!(
                    "rank {}: NCCL {} has not made a communicator of {} ranks within {:.0} s; set NCCL_DEBUG=INFO to see why, \
                     or do without NCCL: --cuda ipc or --cuda host",
                    self.shared.rank,
                    nccl.version(),
                    self.size(),
                    settings.start_timeout().as_secs_f64()
                );
                self.abandon(&why);
                return Err(RunError::Failed(why));
            }
            paceline_os::thread::sleep(LOOK);
        }
        Ok(made.insert(group).clone())
    }
}

impl Landing for NcclOperation {
    fn group(&self) -> Option<u32> {
        None
    }

    fn writes_into(&self, regions: &[Region]) -> bool {
        paceline_cuda::overlap(&self.writes, regions)
    }

    fn land(&self) -> Result<()> {
        NcclOperation::land(self)
    }
}

impl NcclOperation {
    /// Whether the device has the result, or it has failed.
    #[must_use]
    pub fn done(&self) -> bool {
        self.met.result().is_err() || (self.met.done() && self.done.happened().unwrap_or(true))
    }

    /// Whether all ranks have called it.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.met.done()
    }

    pub(super) fn number(&self) -> u64 {
        self.met.number.load(Ordering::Relaxed)
    }

    /// Makes the caller's stream wait for the result. It does not wait itself.
    ///
    /// # Errors
    /// It has failed, as far as is known.
    pub fn land(&self) -> Result<()> {
        self.met.result()?;
        if let Err(error) = self.group.comm.ready() {
            let why = self.communicator.shared.failure_of(self.communicator.id).unwrap_or_else(|| failed(error));
            self.communicator.abandon(&why.to_string());
            return Err(why);
        }
        self.hold(self.stream)
    }

    /// The same for another stream.
    ///
    /// # Errors
    /// The driver's error.
    pub fn hold(&self, stream: CallerStream) -> Result<()> {
        // SAFETY: it is the caller's.
        unsafe { self.done.hold(stream) }.map_err(failed)
    }
}
