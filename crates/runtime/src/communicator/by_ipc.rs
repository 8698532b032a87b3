//! Collectives on the memory of the CUDA devices of one host: ranks read and write each other's memory.
//!
//! A strategy's program becomes commands for a stream of each rank ([`in_stream`]): kernels that combine, and waits for the
//! signals of other streams. The host exchanges where the memory of each rank lies, which also tells ranks that call different
//! things, and one that does not come; then it submits all commands at once. The signals are numbers in page-locked memory
//! that all ranks share. If a rank dies they are raised by the host, so that no stream waits for ever.
#![allow(unsafe_code, reason = "the promise about the memory is passed on")]
use std::any::Any;
use std::collections::HashMap;
use std::collections::VecDeque;

use paceline_cuda::{
    CallerStream, Combine, CudaError, DeviceMemory, Event, Exported, Exports, Flags, FlagsAddress, Imports, Region,
    Stage, Stream,
};
use paceline_engine::settings::CudaBy;
use paceline_engine::{EngineShared, Listener, News, Submission};
use paceline_executor::OperationSpec;
use paceline_executor::handle::Handle;
use paceline_executor::in_stream::{Command, Extent, InStream, Place, in_stream};
use paceline_executor::program::{
    Broadcast, DirectAllGather, DirectAllReduce, DirectReduceScatter, Exchange, Program, Reduce, Scheduled,
};
use paceline_kernels::dtype::Dtype;
use paceline_os::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use paceline_os::sync::{Arc, Condvar, Mutex, Weak};
use paceline_os::time::{Duration, Instant};
use paceline_schedule::{Bucket, Piece};
use paceline_transport::error::{Result, RunError};
use paceline_transport::header::{Collective, Signature};
use paceline_transport::space::Space;

use super::on_device::{Landing, Stages, regions};
use super::{CollectiveRequest, Communicator, Memory};
use crate::digest::digest;

/// How often what is under way is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long an operation is left to its caller.
const PATIENCE: Duration = Duration::from_millis(1);
/// Operations that are remembered before it is looked which are over.
const REMEMBERED: usize = 64;
/// How long a rank whose own stream has come to an operation waits longer than the limit: the rank whose stream has not
/// says so itself.
const GRACE: Duration = Duration::from_secs(2);
/// How far signals are raised for streams that would wait for ever.
const RAISED: u32 = 1 << 30;
/// How long a stream whose waits are released may take to end.
const RELEASE: Duration = Duration::from_secs(30);
/// Parts of a direct all-reduce begin at multiples of so many bytes: kernels move 16 at once.
const ALIGN: u64 = 256;
/// A broadcast is passed on in pieces of so many bytes.
const PASSED: u64 = 8 << 20;
/// Most lanes times roles of a program that is run this way.
const MOST_STEPS: u64 = 1 << 14;
/// Compiled programs that are kept.
const PLANS: usize = 256;
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

/// What decides the commands, besides the group.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PlanKey {
    collective: Collective,
    /// Of the strategy, or 0.
    digest: u32,
    element: usize,
    root: u32,
    count: u64,
    scaled: bool,
}

/// A program of a collective, compiled.
pub(super) struct Plan {
    stream: InStream,
    /// Roles beyond the ranks, each with memory for so many elements.
    helpers: u32,
    count: u64,
    /// Elements of a shard, for a reduce-scatter by a strategy: it works in spare memory.
    aside: Option<u64>,
    /// An all-gather by a strategy expects a rank's shard in its place among the results.
    in_place: bool,
}

impl Plan {
    /// Where in a rank's spare memory its helper roles begin, where that of the program does, and where it ends, in elements.
    fn spare(&self, rank: u32, size: u32) -> (u64, u64, u64) {
        let aside = if self.aside.is_some() { padded(self.count) } else { 0 };
        let helpers = (size..size + self.helpers).filter(|role| role % size == rank).count() as u64;
        let of_program = aside + helpers * padded(self.count);
        (aside, of_program, of_program + self.stream.spare[rank as usize])
    }
}

/// Pieces of spare memory begin where kernels are fast.
fn padded(elements: u64) -> u64 {
    elements.next_multiple_of(ALIGN)
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

    /// What a rank says of a buffer. Only once the exchange is over.
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

/// Which pieces of memory make up a rank's part of the program, in order: number of the buffer and elements.
type Layout = Vec<(usize, u64)>;

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

/// What is under way.
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

/// Wakes the thread that goes on with operations that nobody waits for.
#[derive(Default)]
struct Bell {
    rung: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self, ends: bool) {
        let mut rung = self.rung.lock();
        *rung = (true, rung.1 | ends);
        self.changed.notify_all();
    }

    /// Waits until it is rung, at most so long; `false`: it is over.
    fn wait(&self, most: Option<Duration>) -> bool {
        let mut rung = self.rung.lock();
        if !rung.0 && !rung.1 {
            match most {
                None => self.changed.wait(&mut rung),
                Some(most) => drop(self.changed.wait_for(&mut rung, most)),
            }
        }
        rung.0 = false;
        !rung.1
    }
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
    /// What the others have opened to see whether they can.
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
                    "{}: the memory is on {:?}, and earlier operations of this group were on {:?}; keep to one device, or \
                     use --cuda host",
                    request.collective.name(),
                    stage.device(),
                    group.stage.device()
                )));
            }
            return Ok(group.clone());
        }
        let group = self.make_ipc_group(stage, request)?;
        Ok(made.insert(group).clone())
    }

    /// Exchanges a block of bytes between all ranks.
    fn exchange(&self, own: &[u8], what: &str) -> Result<Vec<u8>> {
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
                return Err(RunError::Usage(format!(
                    "cuda ipc: the ranks cannot use each other's memory: {why}; use --cuda host"
                )));
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

    /// The strategy that the caller or the job has named for a collective; `None`: the direct exchange.
    fn algorithm_of_device(
        &self,
        request: &CollectiveRequest<'_>,
    ) -> Result<Option<Arc<crate::selection::BuiltAlgorithm>>> {
        let named = request.strategy.is_some() || self.shared.settings.strategy.is_some();
        if named { self.algorithm_for(request) } else { Ok(None) }
    }

    /// The commands of a collective, with a digest of the strategy; `None`: there are too many.
    ///
    /// # Errors
    /// The caller's mistake.
    pub(super) fn ipc_plan(
        &self,
        group: &IpcGroup,
        request: &CollectiveRequest<'_>,
    ) -> Result<Option<(Arc<Plan>, u32)>> {
        let count = request.count(group.size)?;
        let built = self.algorithm_of_device(request)?;
        let element = request.dtype.size();
        let digest = built.as_ref().map_or(0, |built| built.digest);
        #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
        let scaled = request.postscale != 1.0;
        let root = if request.collective.rooted() { request.root } else { 0 };
        let key = PlanKey { collective: request.collective, digest, element, root, count, scaled };
        let mut plans = group.plans.lock();
        if let Some(plan) = plans.get(&key) {
            return Ok(Some((plan.clone(), digest)));
        }
        let (size, of_bytes) = (group.size, |bytes: u64| (bytes / element as u64).max(1));
        let shard = count / u64::from(size);
        let whole = Piece { off: 0, len: count };
        let (mut roles, mut end, mut aside, mut in_place) = (size, None, None, false);
        let program: Box<dyn Program> = match (super::lowering::of_strategies(request), built) {
            (Some(_), Some(built)) if built.algorithm.is_offloaded() => return Ok(None),
            (Some(collective), Some(built)) => {
                let schedule = built.schedule(collective, &self.topology, element)?;
                roles = schedule.roles().total();
                match collective {
                    paceline_schedule::Collective::AllReduce => {}
                    paceline_schedule::Collective::AllGather => in_place = true,
                    paceline_schedule::Collective::ReduceScatter => aside = Some(shard),
                }
                Box::new(Scheduled { schedule, bucket: Bucket { id: 0, len: count, pull_only: false } })
            }
            _ => match request.collective {
                Collective::AllReduce => {
                    let owners = (0..size).filter(|&rank| group.by[rank as usize] == rank).collect();
                    let align = of_bytes(ALIGN);
                    Box::new(DirectAllReduce { size, owners, len: count, align })
                }
                Collective::AllGather => Box::new(DirectAllGather { size, shard }),
                Collective::ReduceScatter => Box::new(DirectReduceScatter { size, shard }),
                Collective::Reduce => {
                    end = Some((root, whole));
                    Box::new(Reduce { size, root, len: count, chunk: count.max(1) })
                }
                _ => Box::new(Broadcast { size, root, len: count, chunk: of_bytes(PASSED) }),
            },
        };
        if u64::from(program.lanes()) * u64::from(roles) > MOST_STEPS {
            return Ok(None);
        }
        let of_rank = |rank: u32| {
            let (at, piece) = end.filter(|_| scaled)?;
            (at == rank).then_some(piece)
        };
        let Some(stream) = in_stream(&*program, (roles, size), &group.by, of_rank) else { return Ok(None) };
        let plan = Arc::new(Plan { stream, helpers: roles - size, count, aside, in_place });
        if plans.len() == PLANS {
            plans.clear();
        }
        plans.insert(key, plan.clone());
        Ok(Some((plan, digest)))
    }
}

/// The buffers of a rank as its program counts their elements.
fn layout(request: &CollectiveRequest<'_>, aside: bool) -> Layout {
    let lengths = |memory: &[Memory], first: usize| -> Layout {
        (first..).zip(memory).map(|(number, &(_, elements))| (number, elements)).collect()
    };
    let inputs = lengths(request.inputs, 0);
    let outputs = lengths(request.outputs, request.inputs.len());
    match request.collective {
        Collective::AllGather => outputs.into_iter().chain(inputs).collect(),
        Collective::ReduceScatter if aside => Vec::new(),
        Collective::ReduceScatter => inputs.into_iter().chain(outputs).collect(),
        _ => inputs,
    }
}

/// Goes on with operations that nobody waits for, and watches those under way, until the group is gone.
fn go_on(group: &Weak<IpcGroup>, bell: &Bell) {
    let mut most = None;
    while bell.wait(most) {
        // Whoever has called an operation usually waits for it, and is faster.
        paceline_os::thread::sleep(PATIENCE);
        let Some(group) = group.upgrade() else { return };
        most = group.look();
    }
}

impl IpcGroup {
    /// What the exchange of device memory has cost so far.
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

    /// Tells the stream what can be told, and looks at what is under way; returns when to look again.
    fn look(&self) -> Option<Duration> {
        loop {
            if self.broken.load(Ordering::SeqCst) {
                self.release();
                return None;
            }
            self.tell();
            let mut under_way = self.under_way.lock();
            self.forget_ended(&mut under_way);
            if let Some(late) = self.late(&under_way) {
                drop(under_way);
                let error = RunError::Failed(late);
                self.shared.abandon(self.id, &error);
                self.broken.store(true, Ordering::SeqCst);
                continue;
            }
            let Some(first) = under_way.waiting.front().map(|operation| operation.met.clone()) else {
                return (!under_way.told.is_empty()).then_some(LOOK);
            };
            drop(under_way);
            if !self.shared.wait_quietly(&first, Some(Instant::now() + LOOK)) {
                return Some(Duration::ZERO);
            }
        }
    }

    /// Why the job fails, if a stream does not come to an operation within its limit.
    fn late(&self, under_way: &UnderWay) -> Option<String> {
        let mine = self.shared.rank;
        if let Err(error) = self.lane.healthy() {
            let first = under_way.told.front().or(under_way.waiting.front())?;
            return Some(format!("rank {mine}: {error}; {} is waiting for it", first.label));
        }
        let now = Instant::now();
        let not_over = |operation: &&Arc<IpcOperation>| !operation.done.happened().unwrap_or(true);
        let first = under_way.told.iter().find(not_over)?;
        let Told::All(since) = *first.state.lock() else { return None };
        if now < since + first.timeout {
            return None;
        }
        let (label, limit, device) = (&first.label, first.timeout.as_secs_f64(), self.stage.device());
        if !first.reached.happened().unwrap_or(true) {
            return Some(format!(
                "rank {mine}: {device:?} of this rank has not reached {label} within {limit:.0} s: something that was \
                 submitted to it before does not end"
            ));
        }
        (now > since + first.timeout + GRACE).then(|| {
            format!(
                "rank {mine}: {label} has not ended on {device:?} within {limit:.0} s although all ranks have called it"
            )
        })
    }

    /// Forgets operations that are over, and with them the memory that they use.
    fn forget_ended(&self, under_way: &mut UnderWay) {
        while under_way.told.front().is_some_and(|operation| operation.done.happened().unwrap_or(false)) {
            if let Some(operation) = under_way.told.pop_front() {
                operation.keep.lock().take();
            }
        }
    }

    /// Waits until the stream has done what it was told, at most so long: others read this rank's memory until then. Nothing is
    /// called any more afterwards.
    pub(super) fn drain(&self, most: Duration) {
        self.ends.store(true, Ordering::SeqCst);
        let until = Instant::now() + most;
        while Instant::now() < until && !self.broken.load(Ordering::SeqCst) {
            self.tell();
            let mut under_way = self.under_way.lock();
            self.forget_ended(&mut under_way);
            if under_way.told.is_empty() || self.lane.healthy().is_err() {
                break;
            }
            drop(under_way);
            paceline_os::thread::sleep(PATIENCE);
        }
        // It must not call the driver while the process ends.
        self.bell.ring(true);
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    /// Has the stream go on although ranks are gone. What all ranks have told their streams ends by itself, so that is waited
    /// for; of the rest, what is computed is not used. Only this rank's stream is released.
    fn release(&self) {
        let (begun, until) = (Instant::now(), Instant::now() + RELEASE);
        loop {
            let mut under_way = self.under_way.lock();
            for operation in std::mem::take(&mut under_way.waiting) {
                let error = self.failure();
                *operation.state.lock() = Told::Failed(error);
                operation.keep.lock().take();
            }
            self.forget_ended(&mut under_way);
            if under_way.told.is_empty() || self.lane.healthy().is_err() || Instant::now() > until {
                return;
            }
            if begun.elapsed() > GRACE {
                for (rank, taken) in under_way.taken.iter().enumerate() {
                    self.flags.write(self.signal(rank as u32, self.me), taken.wrapping_add(RAISED));
                }
            }
            drop(under_way);
            paceline_os::thread::sleep(PATIENCE);
        }
    }

    /// The number of the signals from one rank to another.
    fn signal(&self, from: u32, to: u32) -> usize {
        (to * self.size + from) as usize
    }

    fn failure(&self) -> RunError {
        self.shared.failure_of(self.id).unwrap_or_else(|| RunError::Failed("the communicator has failed".into()))
    }

    /// Spare memory of at least so many bytes.
    fn spare(&self, bytes: u64) -> Result<Option<Arc<DeviceMemory>>> {
        let mut under_way = self.under_way.lock();
        let enough = under_way.spare.as_ref().is_some_and(|spare| spare.bytes() >= bytes);
        if bytes > 0 && !enough {
            let memory = self.stage.device().memory(bytes.next_power_of_two()).map_err(failed)?;
            // Operations under way keep the old one.
            under_way.spare = Some(Arc::new(memory));
        }
        Ok(under_way.spare.clone())
    }

    /// Tells the stream, in order, about the operations whose memory is known of all ranks.
    fn tell(&self) {
        let mut under_way = self.under_way.lock();
        while under_way.waiting.front().is_some_and(|operation| operation.met.done()) {
            let Some(operation) = under_way.waiting.pop_front() else { return };
            let told = match operation.met.result() {
                Ok(()) => self.submit(&operation, &mut under_way),
                Err(error) => Err(error),
            };
            match told {
                Ok(()) => {
                    *operation.state.lock() = Told::All(Instant::now());
                    under_way.told.push_back(operation);
                    if under_way.told.len() >= REMEMBERED {
                        self.forget_ended(&mut under_way);
                    }
                }
                Err(error) => {
                    if self.shared.failure_of(self.id).is_none() {
                        self.shared.abandon(self.id, &error);
                    }
                    self.broken.store(true, Ordering::SeqCst);
                    *operation.state.lock() = Told::Failed(error);
                    under_way.told.push_back(operation);
                    self.bell.ring(false);
                }
            }
        }
    }

    /// Submits the commands of an operation.
    fn submit(&self, operation: &IpcOperation, under_way: &mut UnderWay) -> Result<()> {
        let mut opened = Vec::new();
        let memory = self.memory(operation, &mut opened);
        let told = memory.and_then(|memory| self.run(operation, &memory, under_way));
        if told.is_err() {
            // Also what was told before an error uses the memory.
            let _ = operation.done.record(&self.lane);
        }
        self.imports.retire(&opened, &operation.done);
        told.map_err(|error| RunError::Failed(format!("rank {}: {error}, in {}", self.shared.rank, operation.label)))?;
        let signals = &operation.plan.stream.signals;
        let (given, taken) = (&mut under_way.given, &mut under_way.taken);
        for ((given, taken), (to, from)) in
            given.iter_mut().zip(taken).zip(signals[self.me as usize].iter().zip(signals))
        {
            *given = given.wrapping_add(*to);
            *taken = taken.wrapping_add(from[self.me as usize]);
        }
        Ok(())
    }

    /// Where the memory of all ranks lies here: by rank, its buffers and its spare memory. Notes what it has `opened`.
    fn memory(&self, operation: &IpcOperation, opened: &mut Vec<u64>) -> std::result::Result<Vec<Vec<u64>>, CudaError> {
        let own: Vec<u64> = operation.what.buffers.iter().map(|buffer| buffer.0).collect();
        let spare = operation.spare.as_ref().map_or(0, |spare| spare.address());
        let mut memory = Vec::with_capacity(self.size as usize);
        for rank in 0..self.size {
            if rank == self.me {
                memory.push(own.iter().copied().chain([spare]).collect());
                continue;
            }
            let mut addresses = Vec::with_capacity(own.len() + 1);
            for number in 0..=own.len() {
                let exported = operation.blocks.exported(rank, number);
                let address = if exported.bytes == 0 { 0 } else { self.imports.open(rank, &exported)? };
                if address != 0 {
                    opened.push(address);
                }
                addresses.push(address);
            }
            memory.push(addresses);
        }
        Ok(memory)
    }
}

/// The memory of all ranks during an operation, as it is reached here.
struct Reach<'a> {
    /// By rank: its buffers, and its spare memory.
    memory: &'a [Vec<u64>],
    plan: &'a Plan,
    layout: &'a Layout,
    element: u64,
    size: u32,
}

impl Reach<'_> {
    /// Where an element lies, and how many follow it there.
    fn run(&self, Extent { place, off }: Extent) -> (u64, u64) {
        let spare = |rank: u32, at: u64| {
            let base = self.memory[rank as usize].last().copied().unwrap_or(0);
            (base + (at + off) * self.element, u64::MAX)
        };
        match place {
            Place::Spare(rank) => spare(rank, self.plan.spare(rank, self.size).1),
            Place::Role(role) if role >= self.size => {
                let rank = role % self.size;
                let number = u64::from((role - rank) / self.size) - 1;
                spare(rank, self.plan.spare(rank, self.size).0 + number * padded(self.plan.count))
            }
            Place::Role(rank) if self.plan.aside.is_some() => spare(rank, 0),
            Place::Role(rank) => {
                let mut start = 0;
                for &(buffer, elements) in self.layout {
                    if off < start + elements {
                        let inside = off - start;
                        return (self.memory[rank as usize][buffer] + inside * self.element, elements - inside);
                    }
                    start += elements;
                }
                (0, u64::MAX)
            }
        }
    }
}

impl IpcGroup {
    fn run(
        &self,
        operation: &IpcOperation,
        memory: &[Vec<u64>],
        under_way: &UnderWay,
    ) -> std::result::Result<(), CudaError> {
        let (what, plan) = (&operation.what, &*operation.plan);
        let (element, lane) = (what.dtype.size() as u64, &self.lane);
        let reach = Reach { memory, plan, layout: &what.layout, element, size: self.size };
        let own = &memory[self.me as usize];
        let (inputs, outputs) = what.buffers.split_at(what.inputs);
        let spare = own.last().copied().unwrap_or(0);
        let shard = |elements: u64| u64::from(self.me) * elements * element;
        lane.wait_for(&operation.reached)?;
        #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
        let prescaled = what.prescale != 1.0;
        if prescaled {
            for &(address, bytes) in inputs {
                self.combine(what, &[address], &[address], bytes / element, Some(what.prescale))?;
            }
        }
        if plan.in_place {
            self.copy(inputs, outputs, shard(plan.count / u64::from(self.size)))?;
        }
        if plan.aside.is_some() {
            let bytes = inputs.iter().map(|input| input.1).sum();
            self.copy(inputs, &[(spare, bytes)], 0)?;
        }
        let mut given = under_way.given.clone();
        for command in &plan.stream.commands[self.me as usize] {
            match command {
                Command::Wait { rank, signals } => {
                    let least = under_way.taken[*rank as usize].wrapping_add(*signals);
                    let at = self.flags.at(self.signal(*rank, self.me));
                    // SAFETY: the signals are registered as long as the group exists, whose stream this is.
                    unsafe { lane.wait_value(at, least)? };
                }
                Command::Signal { to } => {
                    for &rank in to {
                        let given = &mut given[rank as usize];
                        *given = given.wrapping_add(1);
                        // SAFETY: as above.
                        unsafe { lane.write_value(self.flags.at(self.signal(self.me, rank)), *given)? };
                    }
                }
                Command::Combine { to, from, len, complete } => {
                    let mut done = 0;
                    while done < *len {
                        let mut now = len - done;
                        let mut runs = |extents: &[Extent]| -> Vec<u64> {
                            let run = |at: &Extent| {
                                let (address, elements) = reach.run(Extent { off: at.off + done, ..*at });
                                now = now.min(elements);
                                address
                            };
                            extents.iter().map(run).collect()
                        };
                        let (to, from) = (runs(to), runs(from));
                        self.combine(what, &to, &from, now, what.factor.filter(|_| *complete))?;
                        done += now;
                    }
                }
            }
        }
        if let Some(own) = plan.aside {
            let mut from = spare + shard(own);
            for &(address, bytes) in outputs {
                self.combine(what, &[address], &[from], bytes / element, what.factor)?;
                from += bytes;
            }
        }
        operation.done.record(lane)
    }

    fn combine(
        &self,
        what: &What,
        to: &[u64],
        from: &[u64],
        elements: u64,
        factor: Option<f64>,
    ) -> std::result::Result<(), CudaError> {
        let (dtype, op) = (what.dtype, what.op);
        // SAFETY: the memory is that of the operations of all ranks, which keep it until they are over; that nothing else
        // uses it meanwhile is what the commands' waits are for.
        unsafe { self.lane.combine(&Combine { to, from, elements, dtype, op, factor }) }
    }

    /// Copies pieces of memory to others, from byte `into` of all that is written on, as much as both have.
    fn copy(&self, from: &[Region], to: &[Region], into: u64) -> std::result::Result<(), CudaError> {
        let mut from: VecDeque<Region> = from.iter().copied().filter(|region| region.1 > 0).collect();
        let mut skip = into;
        let rest = to.iter().filter_map(|&(address, bytes)| {
            let now = skip.min(bytes);
            skip -= now;
            (bytes > now).then_some((address + now, bytes - now))
        });
        let mut to: VecDeque<Region> = rest.collect();
        while let (Some(source), Some(target)) = (from.front_mut(), to.front_mut()) {
            let bytes = source.1.min(target.1);
            // SAFETY: as in `combine`.
            unsafe { self.lane.copy(target.0, source.0, bytes)? };
            *source = (source.0 + bytes, source.1 - bytes);
            *target = (target.0 + bytes, target.1 - bytes);
            if source.1 == 0 {
                from.pop_front();
            }
            if target.1 == 0 {
                to.pop_front();
            }
        }
        Ok(())
    }
}

impl IpcOperation {
    /// Whether the device has the result, or it has failed.
    #[must_use]
    pub fn done(&self) -> bool {
        match &*self.state.lock() {
            Told::NotYet => self.met.result().is_err(),
            Told::All(_) => self.done.happened().unwrap_or(true),
            Told::Failed(_) => true,
        }
    }

    /// Whether all ranks have called it.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.met.done()
    }

    pub(super) fn number(&self) -> u64 {
        self.met.number.load(Ordering::Relaxed)
    }

    /// Waits until all ranks have called it and the stream has been told; what the caller's stream is told from then on sees
    /// the result. `false`: not before this time.
    ///
    /// # Errors
    /// Why it failed.
    pub fn land(&self, until: Option<Instant>) -> Result<bool> {
        loop {
            self.group.tell();
            match &*self.state.lock() {
                Told::All(_) => break,
                Told::Failed(error) => {
                    return Err(self.group.shared.failure_of(self.group.id).unwrap_or_else(|| error.clone()));
                }
                Told::NotYet => {}
            }
            // Those before it come first.
            let first = self.group.under_way.lock().waiting.front().map(|first| first.met.clone());
            let Some(first) = first else { continue };
            if !self.group.shared.wait(&first, until) {
                return Ok(false);
            }
        }
        if self.group.broken.load(Ordering::SeqCst) {
            return Err(self.group.failure());
        }
        self.hold(self.stream)?;
        Ok(true)
    }

    /// Once it has landed: what this stream is told from now on sees the result.
    ///
    /// # Errors
    /// The driver's error.
    pub fn hold(&self, stream: CallerStream) -> Result<()> {
        // SAFETY: it is the caller's.
        unsafe { self.done.hold(stream) }.map_err(failed)
    }
}

impl Landing for IpcOperation {
    fn group(&self) -> Option<u32> {
        Some(self.group.id)
    }

    fn writes_into(&self, regions: &[Region]) -> bool {
        paceline_cuda::overlap(&self.what.writes, regions)
    }

    fn land(&self) -> Result<()> {
        IpcOperation::land(self, None).map(drop)
    }
}
