//! Operations on the memory of a CUDA device, through page-locked memory of the host.
//!
//! An all-reduce goes in pieces, each an operation of its own: while one is between the hosts, the next comes from the device
//! and the one before returns to it. Ranks with the same elements in the host's memory take part as they do otherwise.
#![allow(unsafe_code, reason = "the promise about the memory is passed on")]
use std::any::Any;
use std::collections::HashMap;

use paceline_cuda::{CallerStream, Copies, CudaError, Device, Driver, Event, Region, Stage, Staged, Stream};
use paceline_engine::Submission;
use paceline_executor::handle::Handle;
use paceline_os::sync::atomic::{AtomicU64, Ordering};
use paceline_os::sync::{Arc, Mutex, Weak};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError, of};
use paceline_transport::header::Collective;
use paceline_transport::waiting::{Reports, TIMEOUT};

use super::by_ipc::{IpcCounters, IpcGroup, IpcOperation};
use super::by_mpi::MpiOperation;
use super::by_nccl::NcclOperation;
use super::{CollectiveRequest, Communicator, Gate, Memory};

/// Bytes of an all-reduce that go as one: long enough that a copy takes longer than its call.
const PIECE: u64 = 4 << 20;
/// Waits are cut into slices, between which the device is looked at.
const SLICE: Duration = Duration::from_millis(100);

fn failed(error: CudaError) -> RunError {
    RunError::Failed(error.0)
}

impl CollectiveRequest<'_> {
    /// `all_reduce of 'weights'`.
    pub(super) fn described(&self) -> String {
        self.collective.name().to_owned() + &of(self.label)
    }

    /// Elements that all ranks of a group of this size must agree on, for a collective of equal shares.
    ///
    /// # Errors
    /// Input and output do not fit, or there is no such root.
    pub(super) fn count(&self, size: u32) -> Result<u64> {
        let total = |memory: &[Memory]| memory.iter().map(|&(_, elements)| elements).sum::<u64>();
        let (inputs, outputs, ranks) = (total(self.inputs), total(self.outputs), u64::from(size));
        let wrong = |what: &str, is: u64, wanted: u64| {
            RunError::Usage(format!("{}: the {what} has {is} elements; it needs {wanted}", self.collective.name()))
        };
        if self.collective.rooted() && self.root >= size {
            let (what, root) = (self.collective.name(), self.root);
            return Err(RunError::Usage(format!("{what}: rank {root} is not in a group of {size}")));
        }
        match self.collective {
            Collective::AllGather if outputs != inputs * ranks => Err(wrong("output", outputs, inputs * ranks)),
            Collective::ReduceScatter if inputs != outputs * ranks => Err(wrong("input", inputs, outputs * ranks)),
            Collective::AllGather => Ok(outputs),
            _ => Ok(inputs),
        }
    }
}

/// Where memory lies, in bytes.
pub(super) fn regions(memory: &[Memory], element: u64) -> Vec<Region> {
    memory.iter().map(|&(address, elements)| (address as u64, elements * element)).collect()
}

/// The devices that a job uses.
#[derive(Default)]
pub struct Stages {
    /// By number.
    stages: Mutex<Vec<Option<Arc<Stage>>>>,
    /// Operations whose result has not landed, as far as anybody still has them.
    under_way: Mutex<Vec<Weak<dyn Landing>>>,
    /// Groups whose ranks reach each other's memory.
    groups: Mutex<Vec<Weak<IpcGroup>>>,
    /// Streams in which operations begin that were called in others: by communicator.
    behind: Mutex<HashMap<u32, (Arc<Stage>, Stream)>>,
    /// Operations whose memory was given to MPI, and their bytes.
    by_mpi: [AtomicU64; 2],
    /// Operations by NCCL.
    by_nccl: AtomicU64,
}

/// An operation on device memory that others may have to wait for.
pub(super) trait Landing: Send + Sync {
    /// The group in whose stream it is; `None`: in none.
    fn group(&self) -> Option<u32>;

    /// Whether it writes into any of these regions.
    fn writes_into(&self, regions: &[Region]) -> bool;

    /// Waits until the caller's stream can be told to wait for the result, and tells it.
    fn land(&self) -> Result<()>;
}

impl Stages {
    /// The streams of a device. `library`: of the driver, in place of the system's.
    ///
    /// # Errors
    /// There is no driver or no such device.
    pub fn of(&self, library: Option<&str>, ordinal: u32) -> Result<Arc<Stage>> {
        let usage = |error: CudaError| RunError::Usage(error.0);
        let device = Driver::get(library).and_then(|driver| driver.device(ordinal)).map_err(usage)?;
        let mut stages = self.stages.lock();
        let at = ordinal as usize;
        if stages.len() <= at {
            stages.resize(at + 1, None);
        }
        match &stages[at] {
            Some(stage) => Ok(stage.clone()),
            None => Ok(stages[at].insert(Stage::new(&device).map_err(failed)?).clone()),
        }
    }

    /// A stream of this communicator that comes where it is now once all of these have happened.
    pub(crate) fn behind<'a>(
        &self,
        communicator: u32,
        stage: &Arc<Stage>,
        events: impl Iterator<Item = &'a Event>,
    ) -> Result<CallerStream> {
        let mut all = self.behind.lock();
        let known = all.remove(&communicator).filter(|(of, _)| Arc::ptr_eq(of, stage));
        let (of, stream) = match known {
            Some(known) => known,
            None => (stage.clone(), Stream::new(stage.device()).map_err(failed)?),
        };
        let waits = events.into_iter().try_for_each(|event| stream.wait_for(event));
        let caller = stream.caller();
        all.insert(communicator, (of, stream));
        waits.map(|()| caller).map_err(failed)
    }

    /// Copies so far, by device.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, paceline_cuda::Counters)> {
        let stages = self.stages.lock();
        stages.iter().flatten().map(|stage| (format!("{:?}", stage.device()), stage.counters())).collect()
    }
}

impl Stages {
    /// Lands what has been called before and writes into these regions: an operation on the result of another sees it, as on
    /// the host and with NCCL. Not what goes through the stream of `group`, if that is where the next operation goes.
    pub(super) fn settle(&self, regions: &[Region], group: Option<u32>) -> Result<()> {
        let before: Vec<_> = {
            let mut under_way = self.under_way.lock();
            under_way.retain(|operation| operation.strong_count() > 0);
            let elsewhere = |operation: &Arc<dyn Landing>| operation.group().is_none() || operation.group() != group;
            under_way
                .iter()
                .filter_map(Weak::upgrade)
                .filter(|operation| elsewhere(operation) && operation.writes_into(regions))
                .collect()
        };
        before.iter().try_for_each(|operation| operation.land())
    }

    /// Counts what this group does from now on.
    pub(super) fn count(&self, group: &Arc<IpcGroup>) {
        self.groups.lock().push(Arc::downgrade(group));
    }

    /// Waits until the devices have done what they were told in the memory of other ranks, at most so long for each group.
    pub fn drain(&self, most: Duration) {
        let groups: Vec<_> = self.groups.lock().iter().filter_map(Weak::upgrade).collect();
        groups.iter().for_each(|group| group.drain(most));
    }

    /// Work of ranks in each other's memory, in all groups that exist.
    #[must_use]
    pub fn ipc_counters(&self) -> IpcCounters {
        let groups = self.groups.lock();
        let all = groups.iter().filter_map(Weak::upgrade).map(|group| group.counters());
        all.fold(IpcCounters::default(), |sum, more| IpcCounters {
            operations: sum.operations + more.operations,
            exported: sum.exported + more.exported,
            known: sum.known + more.known,
            opened: sum.opened + more.opened,
            open: sum.open + more.open,
        })
    }

    /// Counts an operation whose memory is given to MPI.
    pub(super) fn count_mpi(&self, bytes: u64) {
        self.by_mpi[0].fetch_add(1, Ordering::Relaxed);
        self.by_mpi[1].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Operations whose memory was given to MPI, and the bytes of it.
    #[must_use]
    pub fn mpi_counters(&self) -> (u64, u64) {
        (self.by_mpi[0].load(Ordering::Relaxed), self.by_mpi[1].load(Ordering::Relaxed))
    }

    /// Counts an operation by NCCL.
    pub(super) fn count_nccl(&self) {
        self.by_nccl.fetch_add(1, Ordering::Relaxed);
    }

    /// Operations by NCCL.
    #[must_use]
    pub fn nccl_operations(&self) -> u64 {
        self.by_nccl.load(Ordering::Relaxed)
    }

    /// Remembers an operation for those after it.
    pub(super) fn note(&self, operation: &Arc<dyn Landing>) {
        self.under_way.lock().push(Arc::downgrade(operation));
    }
}

/// A piece of an operation: the byte of the result up to which it goes, and its handle.
struct Piece {
    upto: u64,
    handle: Arc<Handle>,
}

/// An operation on device memory, by how it is done.
#[derive(Clone)]
pub enum OnDevice {
    /// Through the host's memory.
    Staged(Arc<DeviceOperation>),
    /// In each other's memory.
    Ipc(Arc<IpcOperation>),
    /// By NCCL.
    Nccl(Arc<NcclOperation>),
    /// By MPI.
    Mpi(Arc<MpiOperation>),
}

impl OnDevice {
    /// Whether the device has the result, or it has failed.
    #[must_use]
    pub fn done(&self) -> bool {
        match self {
            OnDevice::Staged(operation) => operation.done(),
            OnDevice::Ipc(operation) => operation.done(),
            OnDevice::Nccl(operation) => operation.done(),
            OnDevice::Mpi(operation) => operation.done(),
        }
    }

    /// Whether `land` returns at once. A device may still be at work.
    #[must_use]
    pub fn ready(&self) -> bool {
        match self {
            OnDevice::Staged(operation) => operation.done(),
            OnDevice::Ipc(operation) => operation.ready(),
            OnDevice::Nccl(operation) => operation.ready(),
            OnDevice::Mpi(operation) => operation.done(),
        }
    }

    /// Waits until streams can be told to wait for the result, and tells the caller's. `false`: not before this time.
    ///
    /// # Errors
    /// Why it failed.
    pub fn land(&self, until: Option<Instant>) -> Result<bool> {
        match self {
            OnDevice::Staged(operation) => operation.land(until),
            OnDevice::Ipc(operation) => operation.land(until),
            OnDevice::Nccl(operation) => operation.land().map(|()| true),
            OnDevice::Mpi(operation) => operation.land(until),
        }
    }

    /// Once it has landed: what this stream is told from now on sees the result.
    ///
    /// # Errors
    /// The driver's error.
    pub fn hold(&self, stream: CallerStream) -> Result<()> {
        match self {
            OnDevice::Staged(operation) => operation.hold(stream),
            OnDevice::Ipc(operation) => operation.hold(stream),
            OnDevice::Nccl(operation) => operation.hold(stream),
            OnDevice::Mpi(operation) => operation.hold(stream),
        }
    }

    /// The sender that a receive from any rank was matched with.
    #[must_use]
    pub fn source(&self) -> u32 {
        match self {
            OnDevice::Staged(operation) => operation.source(),
            OnDevice::Ipc(_) | OnDevice::Nccl(_) | OnDevice::Mpi(_) => 0,
        }
    }

    /// Its number in the timeline; 0: not recorded.
    #[must_use]
    pub(crate) fn number(&self) -> u64 {
        match self {
            OnDevice::Staged(operation) => operation.number(),
            OnDevice::Ipc(operation) => operation.number(),
            OnDevice::Nccl(operation) => operation.number(),
            OnDevice::Mpi(operation) => operation.number(),
        }
    }
}

/// That a device comes to an operation is awaited.
pub(super) struct Awaited {
    communicator: Arc<Communicator>,
    gates: Vec<Arc<Gate>>,
    label: String,
    began: Instant,
    timeout: Duration,
    reports: Mutex<Reports>,
}

impl Awaited {
    pub fn new(communicator: &Arc<Communicator>, request: &CollectiveRequest<'_>, how: &Submission) -> Awaited {
        let timeout = how.timeout.unwrap_or_else(|| communicator.shared.settings.timeout());
        let began = Instant::now();
        Awaited {
            communicator: communicator.clone(),
            gates: Vec::new(),
            label: request.described(),
            began,
            timeout,
            reports: Mutex::new(Reports::new(began, timeout, TIMEOUT)),
        }
    }

    /// A gate, and what opens it.
    pub fn gate(&mut self) -> (Arc<Gate>, Box<dyn FnOnce() + Send>) {
        let gate = Arc::new(Gate::default());
        self.gates.push(gate.clone());
        let (opened, communicator) = (gate.clone(), Arc::downgrade(&self.communicator));
        let open = Box::new(move || {
            opened.open();
            if let Some(communicator) = communicator.upgrade() {
                communicator.go_on();
            }
        });
        (gate, open)
    }

    /// Waits for a part of the operation, in which the device is looked at with `healthy`; `false`: not before this time.
    pub fn wait(
        &self,
        handle: &Arc<Handle>,
        until: Option<Instant>,
        device: &Device,
        healthy: impl Fn() -> std::result::Result<(), CudaError>,
    ) -> Result<bool> {
        loop {
            let slice = Instant::now() + SLICE;
            if self.communicator.wait(handle, Some(until.map_or(slice, |until| until.min(slice))))? {
                return Ok(true);
            }
            self.look(device, healthy())?;
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
        }
    }

    /// Fails the communicator if the device will not reach the operation.
    fn look(&self, device: &Device, healthy: std::result::Result<(), CudaError>) -> Result<()> {
        let waits = self.gates.iter().any(|gate| !gate.is_open());
        let late = waits && self.began.elapsed() > self.timeout;
        if waits && !late {
            self.reports.lock().report(Instant::now(), |waited| {
                let (rank, waited) = (self.communicator.shared.rank, waited.as_secs_f64());
                format!("rank {rank}: {device:?} of this rank has not reached {} within {waited:.0} s", self.label)
            });
        }
        let why = match healthy {
            Err(error) => format!("{error}; {} is waiting for it", self.label),
            Ok(()) if late => format!(
                "{device:?} of this rank has not reached {} within {:.0} s: something that was submitted to it before does \
                 not end",
                self.label,
                self.timeout.as_secs_f64()
            ),
            Ok(()) => return Ok(()),
        };
        let why = format!("rank {}: {why}", self.communicator.shared.rank);
        self.communicator.abandon(&why);
        Err(RunError::Failed(why))
    }

    pub fn failed(&self, error: &CudaError) -> RunError {
        RunError::Failed(format!("rank {}: {error}, in {}", self.communicator.shared.rank, self.label))
    }
}

/// An operation on device memory, through the host's.
pub struct DeviceOperation {
    awaited: Awaited,
    staged: Arc<Staged>,
    pieces: Vec<Piece>,
    /// Pieces whose result is on its way to the device, and whether all are and the caller's stream waits for them.
    landed: Mutex<(usize, bool)>,
}

impl Communicator {
    /// As [`submit`](Communicator::submit), for memory of a device; the addresses are those that its driver gives out. The
    /// result is there, for what the stream is told from then on, once [`DeviceOperation::land`] has returned `true`.
    ///
    /// # Errors
    /// As for `submit`, and those of the driver.
    ///
    /// # Safety
    /// As for `submit`; also the stream exists, and the memory is kept until the stream has passed the operation's end.
    pub unsafe fn submit_on_device(
        self: &Arc<Communicator>,
        (stages, stage, stream): (&Stages, &Arc<Stage>, CallerStream),
        request: &CollectiveRequest<'_>,
        keep: Option<Box<dyn Any + Send>>,
        how: Submission,
    ) -> Result<OnDevice> {
        if self.is_for_mpi(request) {
            // SAFETY: promised by the caller.
            return unsafe { self.submit_by_mpi((stages, stage, stream), request, keep, how) }.map(OnDevice::Mpi);
        }
        if self.is_for_nccl(stage, request)? {
            // SAFETY: promised by the caller.
            return unsafe { self.submit_to_nccl((stages, stage, stream), request, keep, &how) }.map(OnDevice::Nccl);
        }
        if let Some(group) = self.ipc_group(stage, request)?
            && let Some(plan) = self.ipc_plan(&group, request)?
        {
            // SAFETY: promised by the caller.
            let begun = unsafe { self.submit_by_ipc((&group, plan), (stages, stream), request, keep, how) };
            return begun.map(OnDevice::Ipc);
        }
        // SAFETY: promised by the caller.
        unsafe { self.submit_staged((stages, stage, stream), request, keep, how) }.map(OnDevice::Staged)
    }

    /// As [`submit_on_device`](Communicator::submit_on_device), through the host's memory: other ranks may have their elements
    /// there.
    ///
    /// # Errors
    /// As for `submit_on_device`.
    ///
    /// # Safety
    /// As for `submit_on_device`.
    pub(crate) unsafe fn submit_staged(
        self: &Arc<Communicator>,
        (stages, stage, stream): (&Stages, &Arc<Stage>, CallerStream),
        request: &CollectiveRequest<'_>,
        keep: Option<Box<dyn Any + Send>>,
        how: Submission,
    ) -> Result<Arc<DeviceOperation>> {
        let element = request.dtype.size() as u64;
        let total = |memory: &[Memory]| memory.iter().map(|&(_, elements)| elements).sum::<u64>();
        let (inputs, outputs) = (regions(request.inputs, element), regions(request.outputs, element));
        let in_place = request.outputs.is_empty() && !(request.collective == Collective::SendRecv && request.sends);
        let writes = if in_place { &inputs } else { &outputs };
        let copies = Copies { reads: &inputs, writes, in_place };
        stages.settle(&inputs, None)?;
        stages.settle(writes, None)?;
        // SAFETY: promised by the caller.
        let staged = unsafe { stage.begin(stream, &copies) };
        let staged = Arc::new(staged.map_err(|error| self.of_device(&error, request))?);
        let (elements, results) = (total(request.inputs), total(request.outputs));
        // Servers count buckets and steps, and other collectives have parts.
        let whole = request.collective != Collective::AllReduce || request.step.is_some() || request.bucket.is_some();
        let each = if whole { elements.max(1) } else { PIECE / element };
        let mut operation = DeviceOperation {
            awaited: Awaited::new(self, request, &how),
            staged: staged.clone(),
            pieces: Vec::new(),
            landed: Mutex::default(),
        };
        let keep = Arc::new(Mutex::new(keep));
        let mut from = 0;
        loop {
            let upto = (from + each).min(elements);
            let last = upto == elements;
            let (gate, ready) = operation.awaited.gate();
            let address = |base: *mut u8, element_at: u64| base as usize + (element_at * element) as usize;
            let input = [(address(staged.input(), from), upto - from)];
            let output = [(staged.output() as usize, results)];
            let piece = CollectiveRequest {
                inputs: if request.inputs.is_empty() { &[] } else { &input },
                outputs: if request.outputs.is_empty() { &[] } else { &output },
                // Only the last piece is news.
                notify: request.notify.filter(|_| last),
                handle: None,
                ..*request
            };
            let kept: Box<dyn Any + Send> = Box::new((staged.clone(), staged.memory(), keep.clone()));
            // SAFETY: `kept` owns the host's memory, and the caller has promised that of the device.
            let handle = unsafe { self.submit_behind(&gate, &piece, Some(kept), how.clone()) };
            let bytes = if in_place { upto * element } else { results * element };
            operation.pieces.push(Piece { upto: bytes, handle });
            if let Err(error) = staged.read(upto * element, ready) {
                // What has been called before may still be needed by others, but its place in the order is taken.
                let why = self.of_device(&error, request);
                self.abandon(&why.to_string());
                return Err(why);
            }
            if last {
                let operation = Arc::new(operation);
                let landing: Arc<dyn Landing> = operation.clone();
                stages.note(&landing);
                return Ok(operation);
            }
            from = upto;
        }
    }
}

impl Landing for DeviceOperation {
    fn group(&self) -> Option<u32> {
        None
    }

    fn writes_into(&self, regions: &[Region]) -> bool {
        self.staged.writes_into(regions)
    }

    fn land(&self) -> Result<()> {
        DeviceOperation::land(self, None).map(drop)
    }
}

impl Communicator {
    pub(super) fn of_device(&self, error: &CudaError, request: &CollectiveRequest<'_>) -> RunError {
        RunError::Failed(format!("rank {}: {error}, in {}", self.shared.rank, request.described()))
    }
}

impl DeviceOperation {
    /// Whether all of it has been exchanged, so that `land` does not wait.
    #[must_use]
    pub fn done(&self) -> bool {
        self.pieces.iter().all(|piece| piece.handle.done())
    }

    /// Waits until the result has been exchanged, and has it copied to the device: what the caller's stream is told from
    /// then on sees it. `false`: not before this time.
    ///
    /// # Errors
    /// Why it failed, also if the device has not reached it within the time limit. The memory then holds no result.
    pub fn land(&self, until: Option<Instant>) -> Result<bool> {
        let mut landed = self.landed.lock();
        while let Some(piece) = self.pieces.get(landed.0) {
            if !self.awaited.wait(&piece.handle, until, self.staged.device(), || self.staged.healthy())? {
                return Ok(false);
            }
            self.staged.write(piece.upto).map_err(|error| self.awaited.failed(&error))?;
            landed.0 += 1;
        }
        if !landed.1 {
            self.staged.end().map_err(|error| self.awaited.failed(&error))?;
            landed.1 = true;
        }
        Ok(true)
    }

    /// Once it has landed: what this stream is told from now on sees the result.
    ///
    /// # Errors
    /// The driver's error.
    pub fn hold(&self, stream: CallerStream) -> Result<()> {
        self.staged.hold(stream).map_err(|error| self.awaited.failed(&error))
    }

    /// The sender that a receive from any rank was matched with.
    #[must_use]
    pub fn source(&self) -> u32 {
        self.pieces.first().map_or(0, |piece| piece.handle.source())
    }

    fn number(&self) -> u64 {
        self.pieces.first().map_or(0, |piece| piece.handle.number.load(Ordering::Relaxed))
    }
}
