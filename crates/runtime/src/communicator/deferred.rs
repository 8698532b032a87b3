//! Operations that have their place in the order of calls, and may not begin yet: a device has not written their memory.
//!
//! They are submitted later, in the order in which they were called, with those that were called after them. To the other
//! ranks an operation that is deferred here has not been called.
use std::any::Any;
use std::collections::VecDeque;

use paceline_engine::Submission;
use paceline_executor::InStep;
use paceline_executor::handle::Handle;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use paceline_os::sync::{Arc, Mutex};
use paceline_transport::error::RunError;
use paceline_transport::header::Collective;
use paceline_transport::offload::EnterDevice;

use super::{CollectiveRequest, Communicator, Memory};

/// Opens once the memory of an operation may be touched.
#[derive(Debug, Default)]
pub struct Gate(AtomicBool);

impl Gate {
    /// From now on it may be. [`Communicator::go_on`] then submits what waits.
    pub fn open(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether it may be.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Waiting operations, in order.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<VecDeque<Deferred>>,
    /// How many wait.
    count: AtomicUsize,
}

struct Deferred {
    gate: Arc<Gate>,
    request: OwnedRequest,
    keep: Option<Box<dyn Any + Send>>,
    how: Submission,
}

/// A request that outlives its caller.
struct OwnedRequest {
    collective: Collective,
    dtype: Dtype,
    op: ReduceOp,
    inputs: Vec<Memory>,
    outputs: Vec<Memory>,
    root: u32,
    tag: u32,
    sends: bool,
    from_anybody: bool,
    counts: Option<Vec<u64>>,
    out_counts: Option<Vec<u64>>,
    prescale: f64,
    postscale: f64,
    strategy: Option<String>,
    bucket: Option<u32>,
    step: Option<InStep>,
    pull_only: bool,
    label: String,
    handle: Arc<Handle>,
    device: Option<EnterDevice>,
}

impl OwnedRequest {
    fn new(request: &CollectiveRequest<'_>, handle: &Arc<Handle>) -> OwnedRequest {
        let CollectiveRequest { collective, dtype, op, root, tag, sends, from_anybody, .. } = *request;
        let CollectiveRequest { prescale, postscale, bucket, step, pull_only, .. } = *request;
        OwnedRequest {
            collective,
            dtype,
            op,
            inputs: request.inputs.to_vec(),
            outputs: request.outputs.to_vec(),
            root,
            tag,
            sends,
            from_anybody,
            counts: request.counts.map(<[u64]>::to_vec),
            out_counts: request.out_counts.map(<[u64]>::to_vec),
            prescale,
            postscale,
            strategy: request.strategy.map(str::to_owned),
            bucket,
            step,
            pull_only,
            label: request.label.to_owned(),
            handle: handle.clone(),
            device: request.device.cloned(),
        }
    }

    fn borrow(&self) -> CollectiveRequest<'_> {
        let OwnedRequest { collective, dtype, op, root, tag, sends, from_anybody, .. } = *self;
        let OwnedRequest { prescale, postscale, bucket, step, pull_only, .. } = *self;
        CollectiveRequest {
            collective,
            dtype,
            op,
            inputs: &self.inputs,
            outputs: &self.outputs,
            root,
            tag,
            sends,
            from_anybody,
            counts: self.counts.as_deref(),
            out_counts: self.out_counts.as_deref(),
            prescale,
            postscale,
            strategy: self.strategy.as_deref(),
            bucket,
            step,
            pull_only,
            label: &self.label,
            notify: self.handle.notify,
            handle: Some(&self.handle),
            device: self.device.as_ref(),
        }
    }
}

impl Communicator {
    /// As [`submit`](Communicator::submit), once the gate is open. An error of the submission is the operation's.
    ///
    /// # Safety
    /// As for `submit`; until the gate is open, others may write the memory.
    #[allow(unsafe_code, reason = "the promise about the memory is passed on")]
    pub unsafe fn submit_behind(
        &self,
        gate: &Arc<Gate>,
        request: &CollectiveRequest<'_>,
        keep: Option<Box<dyn Any + Send>>,
        how: Submission,
    ) -> Arc<Handle> {
        let handle = request.handle.cloned().unwrap_or_else(|| Arc::new(Handle::new(request.notify)));
        let mut waiting = self.deferred.waiting.lock();
        self.deferred.count.fetch_add(1, Ordering::SeqCst);
        let request = OwnedRequest::new(request, &handle);
        waiting.push_back(Deferred { gate: gate.clone(), request, keep, how });
        drop(waiting);
        // It may have opened meanwhile.
        self.go_on();
        handle
    }

    /// Whether something waits that was called before.
    pub(super) fn defers(&self) -> bool {
        self.deferred.count.load(Ordering::SeqCst) > 0
    }

    /// Submits what waits for nothing any more.
    #[allow(unsafe_code, reason = "the promise about the memory is passed on")]
    pub fn go_on(&self) {
        // Held while they are submitted: what is called meanwhile comes after them.
        let mut waiting = self.deferred.waiting.lock();
        while waiting.front().is_some_and(|first| first.gate.is_open()) {
            let Some(Deferred { request, keep, how, .. }) = waiting.pop_front() else { return };
            // SAFETY: promised by the caller of `submit_behind`.
            if let Err(error) = unsafe { self.submit_now(&request.borrow(), keep, how) } {
                self.shared.refuse(&request.handle, error);
            }
            self.deferred.count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Fails what waits: the communicator ends.
    pub(super) fn refuse_deferred(&self) {
        for Deferred { request, .. } in self.deferred.waiting.lock().drain(..) {
            let why = "the communicator was destroyed before this rank's device had reached the operation";
            self.shared.refuse(&request.handle, RunError::Failed(why.into()));
            self.deferred.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
