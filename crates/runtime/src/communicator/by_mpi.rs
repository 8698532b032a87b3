//! Collectives on the memory of CUDA devices by an MPI library that takes its addresses (CUDA-aware MPI).
//!
//! Once the caller's stream has come to the call, the ranks meet as for every collective of the library, and it is given the
//! addresses. When MPI says that it is done, the result is there; averages are divided then, on a stream of ours. Nothing is
//! copied through the host by this process; what the library does is its own affair.
#![allow(unsafe_code, reason = "the promise about the memory is passed on")]
use std::any::Any;

use paceline_cuda::{CallerStream, Combine, CudaError, Event, Region, Stage, Stream};
use paceline_engine::Submission;
use paceline_engine::settings::CudaBy;
use paceline_executor::OperationSpec;
use paceline_executor::handle::Handle;
use paceline_executor::program::{Barrier, Native, OffloadRequest};
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::sync::atomic::Ordering;
use paceline_os::sync::{Arc, Mutex};
use paceline_os::time::Instant;
use paceline_transport::error::Result;
use paceline_transport::header::{Collective, Signature};
use paceline_transport::offload::{DeviceCall, EnterDevice, OnDevices};
use paceline_transport::space::Space;

use super::on_device::{Awaited, Landing, Stages, regions};
use super::{CollectiveRequest, Communicator, Memory};
use crate::digest::digest;
use crate::selection::is_offloaded;

/// Most bytes of a shard: MPI counts in an `int`, and a gather cannot be cut.
const MOST_SHARD: u64 = 1 << 30;

/// Streams of a group, for what comes before MPI and after it, so that neither waits for the other.
pub(super) struct MpiStreams {
    stage: Arc<Stage>,
    before: Stream,
    after: Stream,
    /// Owners of memory that is multiplied before MPI gets it or after, each with the event after which it is not.
    kept: Mutex<Vec<(Arc<Event>, Keep)>>,
}

/// The owner of an operation's memory.
type Keep = Arc<Mutex<Option<Box<dyn Any + Send>>>>;

impl MpiStreams {
    fn new(stage: &Arc<Stage>) -> std::result::Result<Arc<MpiStreams>, CudaError> {
        let (before, after) = (Stream::new(stage.device())?, Stream::new(stage.device())?);
        Ok(Arc::new(MpiStreams { stage: stage.clone(), before, after, kept: Mutex::default() }))
    }

    /// Keeps memory until the first stream has come here, also if the operation fails meanwhile.
    fn keep(&self, keep: &Keep) -> std::result::Result<(), CudaError> {
        let until = Event::new(self.stage.device())?;
        until.record(&self.before)?;
        self.keep_until(Arc::new(until), keep);
        Ok(())
    }

    fn keep_until(&self, until: Arc<Event>, keep: &Keep) {
        let mut kept = self.kept.lock();
        // After an error of the context nothing uses it any more.
        kept.retain(|(until, _)| !until.happened().unwrap_or(true));
        kept.push((until, keep.clone()));
    }
}

/// A collective in MPI.
pub struct MpiOperation {
    streams: Arc<MpiStreams>,
    awaited: Awaited,
    handle: Arc<Handle>,
    stream: CallerStream,
    writes: Vec<Region>,
    scaling: Option<Scaling>,
    /// The caller's stream has been told to wait for the result.
    landed: Mutex<bool>,
}

/// Factor of results.
struct Scaling {
    dtype: Dtype,
    op: ReduceOp,
    factor: f64,
    /// It has been done.
    done: Arc<Event>,
    /// MPI is done before.
    keep: Keep,
}

/// Multiplies regions in place.
///
/// # Safety
/// They are memory of the stream's device, and nothing else uses them until the stream has come there.
unsafe fn multiply(
    stream: &Stream,
    memory: &[Region],
    (dtype, op): (Dtype, ReduceOp),
    factor: f64,
) -> std::result::Result<(), CudaError> {
    memory.iter().filter(|region| region.1 > 0).try_for_each(|&(address, bytes)| {
        let (to, from, elements) = (&[address], &[address], bytes / dtype.size() as u64);
        // SAFETY: promised by the caller.
        unsafe { stream.combine(&Combine { to, from, elements, dtype, op, factor: Some(factor) }) }
    })
}

impl Communicator {
    /// Whether MPI is to run this operation on device memory: it has it, and the job wants that. The same on all ranks.
    pub(super) fn is_for_mpi(&self, request: &CollectiveRequest<'_>) -> bool {
        let settings = &self.shared.settings;
        let takes = self.shared.devices.as_ref().map_or(OnDevices::Nothing, |devices| devices.takes);
        // By default all or nothing: a library that only moves data is used where the user wants it.
        let wanted = settings.cuda == CudaBy::Mpi || (settings.cuda == CudaBy::Auto && takes == OnDevices::Combines);
        let all_reduces = request.collective == Collective::AllReduce;
        let strategy = request.strategy.filter(|_| all_reduces).or(settings.strategy.as_deref());
        let of_servers = request.step.is_some() || request.bucket.is_some() || request.pull_only;
        #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
        let scaled = request.prescale != 1.0;
        let shard = |memory: &[Memory]| {
            let fits = |&(_, elements): &Memory| elements * request.dtype.size() as u64 <= MOST_SHARD;
            memory.len() <= 1 && memory.iter().all(fits)
        };
        let one = |shards: &[Memory], whole: &[Memory]| !request.is_uneven() && shard(shards) && whole.len() <= 1;
        wanted
            && takes.runs(request.collective, request.dtype)
            && strategy.is_some_and(is_offloaded)
            && (all_reduces || request.strategy.is_none())
            && self.served.is_none()
            && !of_servers
            && match request.collective {
                Collective::Reduce => !scaled,
                Collective::AllGather => one(request.inputs, request.outputs),
                Collective::ReduceScatter => !scaled && one(request.outputs, request.inputs),
                _ => true,
            }
    }

    /// Begins a collective in MPI.
    ///
    /// # Errors
    /// As for `submit`, and those of the driver.
    ///
    /// # Safety
    /// As for [`submit_on_device`](Communicator::submit_on_device).
    pub(super) unsafe fn submit_by_mpi(
        self: &Arc<Communicator>,
        (stages, stage, stream): (&Stages, &Arc<Stage>, CallerStream),
        request: &CollectiveRequest<'_>,
        keep: Option<Box<dyn Any + Send>>,
        how: Submission,
    ) -> Result<Arc<MpiOperation>> {
        request.count(self.size())?;
        let (dtype, op, element) = (request.dtype, request.op, request.dtype.size() as u64);
        let (inputs, outputs) = (regions(request.inputs, element), regions(request.outputs, element));
        let writes = if request.outputs.is_empty() { inputs.clone() } else { outputs };
        stages.settle(&inputs, None)?;
        stages.settle(&writes, None)?;
        let wrong = |error: CudaError| self.of_device(&error, request);
        let streams = self.mpi_streams(stage).map_err(wrong)?;
        #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
        let (prescaled, postscaled) = (request.prescale != 1.0, request.postscale != 1.0);
        let here = request.collective != Collective::Reduce || request.root == self.me;
        let done = (postscaled && request.collective.reduces() && here).then(|| Event::new(stage.device()));
        let done = done.transpose().map_err(wrong)?;
        let keep = Arc::new(Mutex::new(keep));
        let factor = request.postscale;
        let scaling = done.map(|done| Scaling { dtype, op, factor, done: Arc::new(done), keep: keep.clone() });
        // SAFETY: promised by the caller; the contributions are this operation's from here on.
        unsafe {
            stage.follow(&streams.before, stream, &[&inputs, &writes]).map_err(wrong)?;
            if prescaled && request.collective.reduces() {
                multiply(&streams.before, &inputs, (dtype, op), request.prescale).map_err(wrong)?;
                streams.keep(&keep).map_err(wrong)?;
            }
        }
        let mut awaited = Awaited::new(self, request, &how);
        let (gate, ready) = awaited.gate();
        let device = stage.device().clone();
        let enter: EnterDevice = Arc::new(move || device.make_current().map_err(|error| error.0));
        let on_device = CollectiveRequest { device: Some(&enter), ..*request };
        // SAFETY: promised by the caller.
        let handle = unsafe { self.submit_behind(&gate, &on_device, Some(Box::new(keep)), how) };
        if let Err(error) = streams.before.call(ready) {
            // Its place in the order is taken.
            let why = wrong(error);
            self.abandon(&why.to_string());
            return Err(why);
        }
        stages.count_mpi(inputs.iter().map(|region| region.1).sum());
        let landed = Mutex::new(false);
        let operation = Arc::new(MpiOperation { streams, awaited, handle, stream, writes, scaling, landed });
        let landing: Arc<dyn Landing> = operation.clone();
        stages.note(&landing);
        Ok(operation)
    }

    /// The streams of this group on a device; those of the device before are given up, if there was another.
    fn mpi_streams(&self, stage: &Arc<Stage>) -> std::result::Result<Arc<MpiStreams>, CudaError> {
        let mut made = self.mpi.lock();
        match made.as_ref().filter(|streams| Arc::ptr_eq(&streams.stage, stage)) {
            Some(streams) => Ok(streams.clone()),
            None => Ok(made.insert(MpiStreams::new(stage)?).clone()),
        }
    }

    /// Submits a request whose memory the library is given, once its device has come there.
    pub(super) fn submit_to_library(
        &self,
        enter: &EnterDevice,
        request: &CollectiveRequest<'_>,
        keep: Option<Box<dyn Any + Send>>,
        how: &Submission,
    ) -> Result<Arc<Handle>> {
        let lengths = if request.inputs.len() > 1 { request.inputs } else { &[] };
        let plan = lengths
            .iter()
            .flat_map(|buffer| buffer.1.to_le_bytes())
            .chain(request.postscale.to_bits().to_le_bytes())
            .chain(*b"mpi");
        let CollectiveRequest { collective, dtype, op, .. } = *request;
        let root = if collective.rooted() { request.root } else { 0 };
        let count = request.count(self.size())?;
        let call = DeviceCall {
            collective,
            dtype,
            op,
            me: self.me,
            root,
            inputs: request.inputs.to_vec(),
            outputs: request.outputs.to_vec(),
            enter: enter.clone(),
        };
        let then = OffloadRequest::OnDevice(Arc::new(call));
        let spec = OperationSpec {
            signature: Signature { collective, dtype, op, root: root as u16, count, plan: digest(plan) },
            program: Box::new(Native { barrier: Barrier { size: self.size() }, then }),
            roles: vec![(self.me, Space::new(dtype.size()))],
            zero_copy: false,
            point_to_point: None,
            step: None,
            factor: None,
            finish: None,
            label: request.label.into(),
            handle: request.handle.cloned().unwrap_or_else(|| Arc::new(Handle::new(request.notify))),
            keep,
        };
        self.shared.submit(self.id, spec, how)
    }
}

impl MpiOperation {
    /// Whether MPI is done, or it has failed.
    #[must_use]
    pub fn done(&self) -> bool {
        self.handle.done()
    }

    pub(super) fn number(&self) -> u64 {
        self.handle.number.load(Ordering::Relaxed)
    }

    /// Waits until MPI is done; what the caller's stream is told from then on sees the result. `false`: not before this time.
    ///
    /// # Errors
    /// Why it failed, also if the device has not reached it within the time limit. The memory then holds no result.
    pub fn land(&self, until: Option<Instant>) -> Result<bool> {
        let mut landed = self.landed.lock();
        if *landed {
            return Ok(true);
        }
        let streams = &self.streams;
        if !self.awaited.wait(&self.handle, until, streams.stage.device(), || streams.before.healthy())? {
            return Ok(false);
        }
        self.scale().map_err(|error| self.awaited.failed(&error))?;
        *landed = true;
        Ok(true)
    }

    fn scale(&self) -> std::result::Result<(), CudaError> {
        let Some(Scaling { dtype, op, factor, done, keep }) = &self.scaling else { return Ok(()) };
        // SAFETY: MPI is done with the memory, which is kept, and the caller's stream waits.
        unsafe { multiply(&self.streams.after, &self.writes, (*dtype, *op), *factor)? };
        done.record(&self.streams.after)?;
        self.streams.keep_until(done.clone(), keep);
        self.streams.stage.lands(&self.writes, done);
        // SAFETY: it is the caller's.
        unsafe { done.hold(self.stream) }
    }

    /// Once it has landed: what this stream is told from now on sees the result.
    ///
    /// # Errors
    /// The driver's error.
    pub fn hold(&self, stream: CallerStream) -> Result<()> {
        let Some(Scaling { done, .. }) = &self.scaling else { return Ok(()) };
        // SAFETY: it is the caller's.
        unsafe { done.hold(stream) }.map_err(|error| self.awaited.failed(&error))
    }
}

impl Landing for MpiOperation {
    fn group(&self) -> Option<u32> {
        None
    }

    fn writes_into(&self, regions: &[Region]) -> bool {
        paceline_cuda::overlap(&self.writes, regions)
    }

    fn land(&self) -> Result<()> {
        MpiOperation::land(self, None).map(drop)
    }
}
