//! An operation on a named tensor, and how to wait for it.
use std::any::Any;

use paceline_coordinator::{Request, Terms};
#[cfg(feature = "foreign")]
use paceline_cuda::{CallerStream, Stage};
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::sync::atomic::AtomicU64;
use paceline_os::sync::{Arc, Condvar, Mutex, OnceLock};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};
use paceline_transport::header::Collective;

use super::begun::Begun;
#[cfg(feature = "foreign")]
use super::begun::Moment;
use super::output::Output;
use super::status_words::StatusWords;
use crate::communicator::Memory;
#[cfg(feature = "foreign")]
use crate::communicator::Stages;

/// Owner of memory, held until the operation on it has completed.
pub(super) type Keep = Box<dyn Any + Send>;
/// Longest sleep of a waiting thread; a change of state ends it earlier.
const NAP: Duration = Duration::from_millis(500);

/// An operation as the caller requests it.
pub struct Wanted<'a> {
    /// All-reduce, broadcast, all-gather, reduce-scatter, all-to-all or barrier.
    pub collective: Collective,
    /// Name of the tensor.
    pub name: &'a str,
    /// Buffers, treated as one in order; bytes, possibly, if the tensor is not reduced.
    pub inputs: &'a [Memory],
    /// The user's name of the element type. A type that the runtime does not know is moved as bytes.
    pub dtype: &'a str,
    /// Shape of the tensor, or of a row where rows are gathered or exchanged.
    pub shape: &'a [u64],
    /// Device of the tensor.
    pub device: &'a str,
    /// How elements are combined.
    pub op: Option<ReduceOp>,
    /// Rows of this rank, or rows for each rank.
    pub own: &'a [u64],
    /// Root of a broadcast.
    pub root: Option<u32>,
    /// Multiplies every contribution.
    pub prescale: f64,
    /// Multiplies the result.
    pub postscale: f64,
}

enum State {
    New,
    /// Waits for other ranks.
    Asked,
    Begun(Begun),
    /// All ranks have joined; this is the last one to do so.
    Joined(u32),
    Failed(RunError),
}

/// An operation on a named tensor.
pub struct Named {
    pub(super) request: Request,
    pub(super) inputs: Vec<Memory>,
    /// Its memory is on a device.
    #[cfg(feature = "foreign")]
    moment: Option<Moment>,
    keep: Mutex<Option<Keep>>,
    state: Mutex<State>,
    changed: Condvar,
    /// When it was submitted, for the timeline.
    pub(super) asked_at: AtomicU64,
    /// The result, where the caller could not know its size in advance.
    pub(super) output: OnceLock<Arc<Output>>,
    /// The rank-specific part of each rank's request.
    pub(super) own: OnceLock<Vec<Vec<u64>>>,
    /// Its number among all negotiated operations, and whether some rank had joined by then.
    order: OnceLock<(u64, bool)>,
    /// The status words that travelled with it and its index in them, if it was planned.
    pub(super) status: OnceLock<(Arc<StatusWords>, usize)>,
}

impl Named {
    /// An operation among `size` ranks that has not been submitted yet.
    ///
    /// # Errors
    /// Arguments that contradict each other.
    pub fn new(wanted: &Wanted<'_>, size: u32, keep: Option<Keep>) -> Result<Named> {
        let Wanted { collective, name, inputs, dtype, shape, device, op, own, root, prescale, postscale } = *wanted;
        let wrong = |what: String| Err(RunError::Usage(format!("{} of '{name}': {what}", collective.name())));
        let known = dtype.parse::<Dtype>().ok();
        let given: u64 = inputs.iter().map(|memory| memory.1).sum();
        let product = shape.iter().try_fold(1u64, |all, &length| all.checked_mul(length));
        let Some(row) = product else { return wrong(format!("the shape {shape:?} has too many elements")) };
        let rows: u64 = own.iter().sum();
        let (elements, parts) = match collective {
            Collective::AllReduce | Collective::Broadcast | Collective::ReduceScatter => (Some(row), 0),
            Collective::AllGather => (row.checked_mul(rows), 1),
            Collective::AllToAll => (row.checked_mul(rows), size as usize),
            Collective::Barrier => (Some(0), 0),
            _ => return wrong("coordinators do not support this operation".into()),
        };
        if own.len() != parts {
            return wrong(format!("got {} row counts; {parts} needed", own.len()));
        }
        if elements != Some(given) {
            return wrong(format!(
                "the memory has {given} elements, which does not match shape {shape:?} with rows {own:?}"
            ));
        }
        if collective.reduces() && (op.is_none() || known.is_none()) {
            return wrong(format!(
                "elements of {dtype} cannot be combined; give op and a dtype that the runtime supports"
            ));
        }
        if collective == Collective::ReduceScatter && shape.is_empty() {
            return wrong("a scalar cannot be scattered".into());
        }
        if (collective == Collective::Broadcast) != root.is_some() || root.is_some_and(|root| root >= size) {
            return wrong(format!("root {root:?} is invalid in a group of {size}"));
        }
        let op = op.filter(|_| collective.reduces());
        let bytes = row.saturating_mul(known.unwrap_or(Dtype::Uint8).size() as u64);
        let terms = Terms {
            call: collective.name().into(),
            op: op.map_or("", ReduceOp::name).into(),
            dtype: if collective == Collective::Barrier { "" } else { dtype }.into(),
            device: device.into(),
            shape: shape.to_vec(),
            root,
            scale: [prescale.to_bits(), postscale.to_bits()],
            bytes: if collective == Collective::Barrier { 0 } else { bytes },
            fusible: matches!(collective, Collective::AllReduce | Collective::Broadcast),
            // As in Horovod: nothing but sums and barriers goes on without those that have joined.
            neutral: collective == Collective::Barrier
                || op == Some(ReduceOp::Sum) && collective == Collective::AllReduce,
        };
        let request = Request { name: name.into(), terms, own: own.to_vec(), together: None, patient: false };
        Ok(Named::with(request, inputs.to_vec(), keep))
    }

    pub(super) fn of_join() -> Named {
        let terms = Terms {
            call: "join".into(),
            op: String::new(),
            dtype: String::new(),
            device: String::new(),
            shape: Vec::new(),
            root: None,
            scale: [0; 2],
            bytes: 0,
            fusible: false,
            neutral: true,
        };
        Named::with(
            Request { name: "join".into(), terms, own: Vec::new(), together: None, patient: false },
            Vec::new(),
            None,
        )
    }

    fn with(request: Request, inputs: Vec<Memory>, keep: Option<Keep>) -> Named {
        Named {
            request,
            inputs,
            #[cfg(feature = "foreign")]
            moment: None,
            keep: Mutex::new(keep),
            state: Mutex::new(State::New),
            changed: Condvar::new(),
            asked_at: AtomicU64::new(0),
            output: OnceLock::new(),
            own: OnceLock::new(),
            order: OnceLock::new(),
            status: OnceLock::new(),
        }
    }

    /// Its memory is on a device, and may be read once the stream has come here.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// The stream exists, and is of this device.
    #[cfg(feature = "foreign")]
    #[allow(unsafe_code, reason = "the promise about the stream is passed on")]
    pub unsafe fn behind(mut self, stages: &Arc<Stages>, stage: &Arc<Stage>, stream: CallerStream) -> Result<Named> {
        // SAFETY: promised by the caller.
        self.moment = Some(unsafe { Moment::now(stages, stage, stream) }?);
        Ok(self)
    }

    #[cfg(feature = "foreign")]
    pub(super) fn moment(&self) -> Option<&Moment> {
        self.moment.as_ref()
    }

    /// Once it has been waited for: what this stream is told from now on sees the result, if that is on a device.
    ///
    /// # Errors
    /// The driver's error.
    #[cfg(feature = "foreign")]
    pub fn hold(&self, stream: CallerStream) -> Result<()> {
        match &*self.state.lock() {
            State::Begun(Begun::Device(operation)) => operation.hold(stream),
            _ => Ok(()),
        }
    }

    /// No caller waits for it, and it goes on without those that have joined.
    pub(super) fn patient(mut self) -> Named {
        (self.request.patient, self.request.terms.neutral) = (true, true);
        self
    }

    /// Once it has been negotiated and has begun: its number, and whether some rank had joined by then.
    pub(super) fn order(&self) -> Option<(u64, bool)> {
        self.order.get().copied()
    }

    pub(super) fn ordered(&self, number: u64, some_joined: bool) {
        let _ = self.order.set((number, some_joined));
    }

    /// Name of the tensor.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.request.name
    }

    /// Whether it has completed or failed.
    #[must_use]
    pub fn done(&self) -> bool {
        match &*self.state.lock() {
            State::New | State::Asked => false,
            State::Begun(begun) => begun.done(),
            State::Joined(_) | State::Failed(_) => true,
        }
    }

    /// Whether a wait for it returns at once. A device may still be at work.
    pub(super) fn ready(&self) -> bool {
        match &*self.state.lock() {
            State::New | State::Asked => false,
            State::Begun(begun) => begun.ready(),
            State::Joined(_) | State::Failed(_) => true,
        }
    }

    /// The result after completion, where the caller could not know its size in advance.
    #[must_use]
    pub fn output(&self) -> Option<Arc<Output>> {
        self.output.get().filter(|_| self.done()).cloned()
    }

    /// The rank-specific part of each rank's request; empty for a rank that has joined.
    #[must_use]
    pub fn own(&self) -> &[Vec<u64>] {
        self.own.get().map_or(&[], Vec::as_slice)
    }

    /// For a completed join: the rank that joined last.
    #[must_use]
    pub fn last_joined(&self) -> Option<u32> {
        match &*self.state.lock() {
            State::Joined(rank) => Some(*rank),
            _ => None,
        }
    }

    pub(super) fn ask(&self) -> Result<()> {
        let mut state = self.state.lock();
        if !matches!(*state, State::New) {
            return Err(RunError::Usage(format!("'{}' has been submitted before", self.name()))
                .with_remedy("a new request for each submission"));
        }
        *state = State::Asked;
        Ok(())
    }

    pub(super) fn begun(&self) -> Result<Option<Begun>> {
        match &*self.state.lock() {
            State::Begun(begun) => Ok(Some(begun.clone())),
            State::Failed(error) => Err(error.clone()),
            State::New => Err(RunError::Usage(format!("'{}' has not been submitted", self.name()))),
            State::Asked | State::Joined(_) => Ok(None),
        }
    }

    /// After completion of a planned operation: whether every rank had this tensor.
    pub(super) fn complete(&self) -> Result<()> {
        match self.status.get() {
            Some((status, place)) if status.absent(*place) => Err(RunError::Failed(format!(
                "tensor '{}': another rank did not have it in this step, or had it with another shape or dtype; change the \
                 model on all ranks together, or use --coordinator negotiate, which names the rank",
                self.name()
            ))),
            _ => Ok(()),
        }
    }

    pub(super) fn over(&self) -> bool {
        matches!(*self.state.lock(), State::Joined(_))
    }

    /// Sleeps until other ranks are ready, or for a short while.
    pub(super) fn wait_for_a_change(&self, until: Option<Instant>) {
        let mut state = self.state.lock();
        if matches!(*state, State::New | State::Asked) {
            let left = until.map_or(NAP, |until| until.saturating_duration_since(Instant::now()).min(NAP));
            let _ = self.changed.wait_for(&mut state, left);
        }
    }

    fn turn(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    pub(super) fn begin(&self, begun: Begun) {
        self.turn(State::Begun(begun));
    }

    pub(super) fn joined(&self, last: u32) {
        self.turn(State::Joined(last));
    }

    pub(super) fn fail(&self, error: RunError) {
        drop(self.take_keep());
        self.turn(State::Failed(error));
    }

    pub(super) fn take_keep(&self) -> Option<Keep> {
        self.keep.lock().take()
    }
}
