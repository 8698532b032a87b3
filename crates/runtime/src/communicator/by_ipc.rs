//! Collectives on the memory of the CUDA devices of one host: ranks read and write each other's memory.
//!
//! A strategy's program becomes commands for a stream of each rank ([`paceline_executor::in_stream`]): kernels that combine, and waits for the
//! signals of other streams. The host exchanges where the memory of each rank lies, which also tells ranks that call different
//! things, and one that does not come; then it submits all commands at once. The signals are numbers in page-locked memory
//! that all ranks share. If a rank dies they are raised by the host, so that no stream waits for ever.
#![allow(unsafe_code, reason = "the promise about the memory is passed on")]
mod commands;
mod operation;
mod plans;
mod under_way;

use std::any::Any;
use std::collections::HashMap;
use std::collections::VecDeque;

use paceline_cuda::{
    CallerStream, CudaError, DeviceMemory, Event, Exported, Exports, Flags, FlagsAddress, Imports, Region, Stage,
    Stream,
};
use paceline_engine::settings::CudaBy;
use paceline_engine::{EngineShared, Listener, News, Submission};
use paceline_executor::OperationSpec;
use paceline_executor::handle::Handle;
use paceline_executor::program::Exchange;
use paceline_kernels::dtype::Dtype;
use paceline_os::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use paceline_os::sync::{Arc, Mutex};
use paceline_os::time::{Duration, Instant};
use paceline_schedule::Piece;
use paceline_transport::error::{Result, RunError};
use paceline_transport::header::{Collective, Signature};
use paceline_transport::space::Space;
use paceline_transport::waiting::Reports;

use self::plans::{Layout, Plan, PlanKey, layout};
use self::under_way::{Bell, go_on};
use super::on_device::{Landing, Stages, regions};
use super::{CollectiveRequest, Communicator};
use crate::digest::digest;

/// Bytes that describe a piece of memory to the other ranks.
const DESCRIPTION: usize = Exported::BYTES;
/// Where a rank's first words to the others have the address of the signals, and its device.
const SIGNALS: usize = 1 + DESCRIPTION;
const DEVICE: usize = SIGNALS + FlagsAddress::BYTES;
/// Bytes of the memory that ranks open to see whether they can.
const PROBE: u64 = 4096;

fn failed(error: CudaError) -> RunError {
    RunError::Failed(error.0)
}

/// The descriptions of all ranks, which the host exchanges.
struct Blocks {
    /// Written by the exchange, and read once that is over.
    memory: *mut [u8],
    each: usize,
}

// SAFETY: the exchange is over before another thread reads, and nothing writes then.
unsafe impl Send for Blocks {}
// SAFETY: likewise.
unsafe impl Sync for Blocks {}

impl Blocks {
    fn new(bytes: Box<[u8]>, each: usize) -> Blocks {
        Blocks { memory: Box::into_raw(bytes), each }
    }

    /// A rank's export of a buffer. Only once the exchange is over.
    fn exported(&self, rank: u32, number: usize) -> Exported {
        let at = rank as usize * self.each + number * DESCRIPTION;
        // SAFETY: it exists as long as this does, and nothing writes it any more.
        let bytes = unsafe { &*self.memory };
        let mut block = [0; DESCRIPTION];
        block.copy_from_slice(&bytes[at..at + DESCRIPTION]);
        Exported::from_bytes(&block)
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        // SAFETY: made by `into_raw` in `new`.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

/// A collective that ranks do in each other's memory.
pub struct IpcOperation {
    group: Arc<IpcGroup>,
    /// Of the exchange of descriptions.
    met: Arc<Handle>,
    blocks: Arc<Blocks>,
    plan: Arc<Plan>,
    what: What,
    stream: CallerStream,
    /// The caller's stream has come to the call; the result is there.
    reached: Event,
    done: Arc<Event>,
    state: Mutex<Told>,
    keep: Mutex<Option<Box<dyn Any + Send>>>,
    spare: Option<Arc<DeviceMemory>>,
    label: String,
    timeout: Duration,
}

/// The request, as far as it is needed later.
struct What {
    dtype: Dtype,
    op: paceline_kernels::dtype::ReduceOp,
    prescale: f64,
    factor: Option<f64>,
    buffers: Vec<Region>,
    layout: Layout,
    inputs: usize,
    writes: Vec<Region>,
}

/// How far the stream has been told.
enum Told {
    NotYet,
    All(Instant),
    Failed(RunError),
}

/// An exchange under way.
#[derive(Default)]
struct UnderWay {
    /// Called, and not told to the stream yet; in order.
    waiting: VecDeque<Arc<IpcOperation>>,
    /// Told, and perhaps not over.
    told: VecDeque<Arc<IpcOperation>>,
    /// Signals so far, to and from each rank.
    given: Vec<u32>,
    taken: Vec<u32>,
    /// Spare memory; the event is that of the last operation that uses it.
    spare: Option<Arc<DeviceMemory>>,
}

/// Counts of what the exchange of memory has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpcCounters {
    /// Operations.
    pub operations: u64,
    /// Handles that were asked of the driver.
    pub exported: u64,
    /// Handles that were known.
    pub known: u64,
    /// Allocations of other ranks that were opened.
    pub opened: u64,
    /// Those that were open already.
    pub open: u64,
}

/// The ranks of a group that reach each other's device memory.
pub(super) struct IpcGroup {
    shared: Arc<EngineShared>,
    id: u32,
    me: u32,
    size: u32,
    stage: Arc<Stage>,
    lane: Stream,
    flags: Flags,
    /// By rank: the first that shares its device, whose stream works for all of them.
    by: Vec<u32>,
    exports: Exports,
    imports: Imports,
    plans: Mutex<HashMap<PlanKey, Arc<Plan>>>,
    under_way: Mutex<UnderWay>,
    broken: AtomicBool,
    /// This rank leaves, or gives the group up: no failure.
    ends: AtomicBool,
    bell: Arc<Bell>,
    /// Goes on with operations that nobody waits for.
    thread: Mutex<Option<paceline_os::thread::JoinHandle<()>>>,
    operations: AtomicUsize,
    /// Of the wait that began then for this rank's stream.
    reports: Mutex<Option<(Instant, Reports)>>,
    /// Memory that the others have opened as a probe.
    _probe: Option<DeviceMemory>,
}

impl Listener for IpcGroup {
    fn notify(&self, news: News) {
        if let News::Failed(_) = news
            && !self.ends.load(Ordering::SeqCst)
        {
            self.broken.store(true, Ordering::SeqCst);
            self.bell.ring(false);
        }
    }
}

impl Drop for IpcGroup {
    fn drop(&mut self) {
        self.bell.ring(true);
    }
}

impl Communicator {
    /// Whether ranks are to do this operation on device memory in each other's memory, as far as this rank can tell; the
    /// same on all ranks.
    fn suits_ipc(&self, request: &CollectiveRequest<'_>) -> bool {
        let of_servers = request.step.is_some() || request.bucket.is_some() || request.pull_only;
        let uneven = request.is_uneven();
        #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
        let scaled = request.prescale != 1.0;
        let hosts = &self.shared.hosts;
        let here = self.ranks.iter().all(|&rank| hosts[rank as usize] == hosts[self.ranks[0] as usize]);
        here && self.size() > 1
            && self.served.is_none()
            && !of_servers
            && match request.collective {
                Collective::AllReduce | Collective::Broadcast => true,
                Collective::Reduce => !scaled,
                Collective::AllGather => !uneven,
                Collective::ReduceScatter => !uneven && !scaled,
                _ => false,
            }
    }

    /// The group for an operation that ranks do in each other's device memory; `None`: it is not one. The first call waits
    /// for all ranks.
    ///
    /// # Errors
    /// The job's settings want it, and it cannot be; or a rank does not come.
    pub(super) fn ipc_group(
        self: &Arc<Communicator>,
        stage: &Arc<Stage>,
        request: &CollectiveRequest<'_>,
    ) -> Result<Option<Arc<IpcGroup>>> {
        let wanted = self.shared.settings.cuda;
        if !matches!(wanted, CudaBy::Auto | CudaBy::Ipc) || !self.suits_ipc(request) {
            return Ok(None);
        }
        let mut made = self.ipc.lock();
        if let Some(group) = &*made {
            if let Some(group) = group.as_ref().filter(|group| !Arc::ptr_eq(group.stage.device(), stage.device())) {
                return Err(RunError::Usage(format!(
                    "{}: the memory is on {:?}, and earlier operations of this group were on {:?}",
                    request.collective.name(),
                    stage.device(),
                    group.stage.device()
                ))
                .with_remedy("one device per group, or {cuda=host}"));
            }
            return Ok(group.clone());
        }
        let group = self.make_ipc_group(stage, request)?;
        Ok(made.insert(group).clone())
    }

    /// Exchanges a block of bytes between all ranks.
    pub(super) fn exchange(&self, own: &[u8], what: &str) -> Result<Vec<u8>> {
        let mut all = vec![0; own.len() * self.size() as usize];
        let (input, output) =
            ([(own.as_ptr() as usize, own.len() as u64)], [(all.as_mut_ptr() as usize, all.len() as u64)]);
        let request = CollectiveRequest {
            collective: Collective::AllGather,
            inputs: &input,
            outputs: &output,
            label: what,
            ..CollectiveRequest::default()
        };
        // SAFETY: both outlive the wait, which ends with the operation.
        let handle = unsafe { self.submit_now(&request, None, Submission::default())? };
        while !self.wait(&handle, Some(Instant::now() + Duration::from_millis(100)))? {}
        Ok(all)
    }

    /// Tries whether all ranks reach each other's memory: they all come to the same answer.
    fn make_ipc_group(
        self: &Arc<Communicator>,
        stage: &Arc<Stage>,
        request: &CollectiveRequest<'_>,
    ) -> Result<Option<Arc<IpcGroup>>> {
        const WHAT: &str = "CUDA memory of the ranks";
        let (me, size) = (self.me, self.size());
        let device = stage.device();
        self.wait_for_deferred()?;
        let cached = self.shared.settings.cuda_pointer_cache;
        let (exports, imports) = (Exports::new(device, cached), Imports::new(device, cached));
        // A piece of memory for the others to open, and where the signals are.
        let mut why: Option<String> = None;
        let mut note = |error: String| {
            why.get_or_insert(error);
        };
        let probe = device.memory(PROBE).map_err(|error| note(error.0)).ok();
        let exported =
            probe.as_ref().and_then(|probe| exports.export(probe.address(), PROBE).map_err(|error| note(error.0)).ok());
        // Memory of the caller's allocator may be of a kind that cannot be shared.
        let mut buffers = request.inputs.iter().chain(request.outputs);
        if let Some(&(address, elements)) = buffers.find(|buffer| buffer.1 > 0) {
            let bytes = elements * request.dtype.size() as u64;
            if let Err(CudaError(error)) = exports.export(address as u64, bytes) {
                note(error);
            }
        }
        let no_signals = |error: std::io::Error| format!("the signals cannot be shared: {error}");
        let flags = if me == 0 {
            Flags::create((size * size) as usize).map_err(|error| note(no_signals(error))).ok()
        } else {
            None
        };
        let uuid = device.uuid().map_err(|error| note(error.0)).ok();
        let mut block = [0; DEVICE + 16];
        if let (Some(exported), Some(uuid), true) = (&exported, uuid, me != 0 || flags.is_some()) {
            block[0] = 1;
            block[1..SIGNALS].copy_from_slice(&exported.to_bytes());
            block[DEVICE..].copy_from_slice(&uuid);
        }
        if let Some((_, address)) = &flags {
            block[SIGNALS..DEVICE].copy_from_slice(&address.to_bytes());
        }
        let all = self.exchange(&block, WHAT)?;
        let blocks: Vec<&[u8]> = all.chunks(block.len()).collect();
        let mut flags = flags.map(|(flags, _)| flags);
        if blocks.iter().all(|block| block[0] == 1) {
            if me > 0 {
                let address = FlagsAddress::from_bytes(
                    blocks[0][SIGNALS..DEVICE].try_into().unwrap_or(&[0; FlagsAddress::BYTES]),
                );
                flags = Flags::open(&address, (size * size) as usize).map_err(|error| note(no_signals(error))).ok();
            }
            for (rank, block) in (0..size).zip(&blocks).filter(|&(rank, _)| rank != me) {
                let other = Exported::from_bytes(block[1..SIGNALS].try_into().unwrap_or(&[0; DESCRIPTION]));
                if let Err(CudaError(error)) = imports.open(rank, &other) {
                    note(error);
                }
            }
            if let Some(Err(CudaError(error))) = flags.as_ref().map(|flags| flags.register(device)) {
                note(error);
            }
        }
        // What every rank says of the others.
        let text = why.as_deref().unwrap_or_default();
        let mut verdict = [0; 256];
        let length = text.len().min(255);
        verdict[0] = length as u8;
        verdict[1..=length].copy_from_slice(&text.as_bytes()[..length]);
        let all = self.exchange(&verdict, WHAT)?;
        let refused = (0..).zip(all.chunks(256)).find(|(_, verdict)| verdict[0] > 0);
        let silent = blocks.iter().any(|block| block[0] != 1).then_some((0, &[][..]));
        if let Some((rank, verdict)) = refused.or(silent) {
            let text = verdict.first().map_or(&[][..], |&length| &verdict[1..=usize::from(length)]);
            let text = String::from_utf8_lossy(text).into_owned();
            let why = format!("rank {}: {text}", self.ranks[rank as usize]);
            if self.shared.settings.cuda == CudaBy::Ipc {
                return Err(RunError::Usage(format!("cuda ipc: the ranks cannot use each other's memory: {why}"))
                    .with_remedy("{cuda=host}"));
            }
            if self.shared.settings.verbose && me == 0 {
                eprintln!("paceline: CUDA tensors go through the host: {why}");
            }
            return Ok(None);
        }
        let Some(flags) = flags else { return Ok(None) };
        let devices: Vec<&[u8]> = blocks.iter().map(|block| &block[DEVICE..]).collect();
        let first_there = |device: &&[u8]| devices.iter().position(|other| other == device).unwrap_or(0) as u32;
        let by: Vec<u32> = devices.iter().map(first_there).collect();
        let group = Arc::new(IpcGroup {
            shared: self.shared.clone(),
            id: self.id,
            me,
            size,
            stage: stage.clone(),
            lane: Stream::new(device).map_err(failed)?,
            flags,
            by,
            exports,
            imports,
            plans: Mutex::default(),
            reports: Mutex::default(),
            under_way: Mutex::new(UnderWay {
                given: vec![0; size as usize],
                taken: vec![0; size as usize],
                ..UnderWay::default()
            }),
            broken: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            bell: Arc::default(),
            thread: Mutex::default(),
            operations: AtomicUsize::new(0),
            _probe: probe,
        });
        let listener: Arc<dyn Listener> = group.clone();
        self.shared.listen(self.id, Arc::downgrade(&listener));
        let (weak, bell) = (Arc::downgrade(&group), group.bell.clone());
        let thread = paceline_os::thread::Builder::new()
            .name("paceline-device".into())
            .spawn(move || go_on(&weak, &bell))
            .map_err(|error| RunError::Failed(format!("no thread for the device: {error}")))?;
        *group.thread.lock() = Some(thread);
        Ok(Some(group))
    }

    /// Begins a collective in the memory of all ranks.
    ///
    /// # Errors
    /// As for `submit`, and those of the driver.
    ///
    /// # Safety
    /// As for [`submit_on_device`](Communicator::submit_on_device).
    pub(super) unsafe fn submit_by_ipc(
        self: &Arc<Communicator>,
        (group, (plan, plan_digest)): (&Arc<IpcGroup>, (Arc<Plan>, u32)),
        (stages, stream): (&Stages, CallerStream),
        request: &CollectiveRequest<'_>,
        keep: Option<Box<dyn Any + Send>>,
        how: Submission,
    ) -> Result<Arc<IpcOperation>> {
        let size = u64::from(group.size);
        let element = request.dtype.size() as u64;
        let count = plan.count;
        let mut buffers = regions(request.inputs, element);
        buffers.extend(regions(request.outputs, element));
        let writes = if request.outputs.is_empty() { &buffers[..] } else { &buffers[request.inputs.len()..] };
        let writes = writes.to_vec();
        stages.settle(&buffers, Some(group.id))?;
        self.wait_for_deferred()?;
        let device = group.stage.device();
        let reached = Event::new(device).map_err(failed)?;
        // SAFETY: promised by the caller.
        unsafe { reached.record_at(stream) }.map_err(failed)?;
        // What the others must know of this rank's memory.
        let spare = group.spare(plan.spare(group.me, group.size).2 * element)?;
        let each = (buffers.len() + 1) * DESCRIPTION;
        let mut bytes = vec![0; each * group.size as usize].into_boxed_slice();
        let own = &mut bytes[group.me as usize * each..][..each];
        let with_spare = buffers.iter().copied().chain(spare.iter().map(|spare| (spare.address(), spare.bytes())));
        for (block, (address, length)) in own.chunks_mut(DESCRIPTION).zip(with_spare) {
            if length > 0 {
                let exported = group.exports.export(address, length).map_err(|error| self.refuses(&error, request))?;
                block.copy_from_slice(&exported.to_bytes());
            }
        }
        let blocks = Arc::new(Blocks::new(bytes, each));
        let mut space = Space::new(element as usize);
        // SAFETY: the operation keeps the blocks, which are read once it is over.
        unsafe { space.push(blocks.memory.cast(), each as u64 * size / element) };
        let of = |rank: u32| Piece { off: u64::from(rank) * each as u64 / element, len: each as u64 / element };
        let program = Exchange {
            me: group.me,
            sends: vec![of(group.me); group.size as usize],
            recvs: (0..group.size).map(of).collect(),
            chunk: u64::MAX,
        };
        let lengths = if buffers.len() > 1 { &buffers[..] } else { &[] };
        let plan_word = digest(
            lengths
                .iter()
                .flat_map(|buffer| buffer.1.to_le_bytes())
                .chain(request.postscale.to_bits().to_le_bytes())
                .chain(plan_digest.to_le_bytes())
                .chain(*b"ipc"),
        );
        let root = if request.collective.rooted() { request.root as u16 } else { 0 };
        let signature = Signature {
            collective: request.collective,
            dtype: request.dtype,
            op: request.op,
            root,
            count,
            plan: plan_word,
        };
        let handle = request.handle.cloned().unwrap_or_else(|| Arc::new(Handle::new(request.notify)));
        let layout = layout(request, plan.aside.is_some());
        #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
        let factor = (request.postscale != 1.0 && request.collective.reduces()).then_some(request.postscale);
        let operation = Arc::new(IpcOperation {
            group: group.clone(),
            met: handle.clone(),
            blocks: blocks.clone(),
            plan,
            what: What {
                dtype: request.dtype,
                op: request.op,
                prescale: request.prescale,
                factor,
                buffers,
                layout,
                inputs: request.inputs.len(),
                writes,
            },
            stream,
            reached,
            done: Arc::new(Event::new(device).map_err(failed)?),
            state: Mutex::new(Told::NotYet),
            keep: Mutex::new(keep),
            spare,
            label: request.described(),
            timeout: how.timeout.unwrap_or_else(|| self.shared.settings.timeout()),
        });
        let spec = OperationSpec {
            signature,
            program: Box::new(program),
            roles: vec![(group.me, space)],
            zero_copy: false,
            point_to_point: None,
            step: None,
            factor: None,
            finish: None,
            label: request.label.into(),
            handle,
            keep: Some(Box::new(blocks)),
        };
        // In the order of the exchanges, which is that of the calls.
        let mut under_way = group.under_way.lock();
        self.shared.submit(self.id, spec, &how)?;
        under_way.waiting.push_back(operation.clone());
        drop(under_way);
        if group.operations.fetch_add(1, Ordering::Relaxed) == 0 {
            stages.count(group);
        }
        group.bell.ring(false);
        let landing: Arc<dyn Landing> = operation.clone();
        stages.note(&landing);
        Ok(operation)
    }

    fn refuses(&self, error: &CudaError, request: &CollectiveRequest<'_>) -> RunError {
        let why = format!("rank {}: {error}, in {}", self.shared.rank, request.collective.name());
        self.abandon(&why);
        RunError::Failed(why)
    }
}

impl IpcGroup {
    /// Costs of the exchange of device memory so far.
    pub(super) fn counters(&self) -> IpcCounters {
        let (exports, imports) = (self.exports.counters(), self.imports.counters());
        IpcCounters {
            operations: self.operations.load(Ordering::Relaxed) as u64,
            exported: exports.misses,
            known: exports.hits,
            opened: imports.misses,
            open: imports.hits,
        }
    }
}
