//! Collectives on the memory of CUDA devices by NCCL, watched by the failure detector.
//!
//! NCCL moves the data, and the host waits for nothing. Beside each of its collectives the ranks meet in a barrier that
//! bears its description: so ranks that call different things are told, a rank that does not come is named within the time
//! limit, and when one has died, NCCL's communicator is aborted and its streams go on.
#![allow(unsafe_code, reason = "the promise about the memory is passed on")]
use std::any::Any;

use paceline_cuda::{
    CallerStream, CudaError, Event, ID_BYTES, Nccl, NcclCall, NcclComm, NcclOp, NcclType, Stage, UniqueId,
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

use super::{CollectiveRequest, Communicator, Memory};

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
    /// Whether NCCL is to run this operation on device memory: it has it, and the job wants that. The same on all ranks.
    pub fn is_for_nccl(&self, request: &CollectiveRequest<'_>) -> bool {
        let of_servers = request.step.is_some() || request.bucket.is_some() || request.strategy.is_some();
        let uneven = request.is_uneven();
        let one = |memory: &[Memory]| memory.len() <= 1;
        self.shared.settings.cuda == CudaBy::Nccl
            && !of_servers
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

    /// Begins a collective in NCCL. The first one makes its communicator, for which all ranks are waited for.
    ///
    /// # Errors
    /// As for `submit`; NCCL cannot be loaded, or fails.
    ///
    /// # Safety
    /// As for [`submit_on_device`](Communicator::submit_on_device).
    pub unsafe fn submit_to_nccl(
        self: &Arc<Communicator>,
        (stage, stream): (&Arc<Stage>, CallerStream),
        request: &CollectiveRequest<'_>,
        keep: Option<Box<dyn Any + Send>>,
        how: &Submission,
    ) -> Result<NcclOperation> {
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
        Ok(NcclOperation { group, communicator: self.clone(), met, done, stream })
    }

    /// What has been called before has its place in the order.
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
        let how = Submission { background: true, patient: false, ..*how };
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
                    "rank {}: NCCL {} has not made a communicator of {} ranks within {:.0} s; set NCCL_DEBUG=INFO to see why",
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

    /// What the caller's stream is told from now on sees the result. It does not wait.
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
