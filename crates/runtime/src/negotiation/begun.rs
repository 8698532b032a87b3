//! A named operation once the ranks have agreed on it.
use std::any::Any;

#[cfg(feature = "foreign")]
use paceline_cuda::{CallerStream, Event, Stage};
use paceline_engine::Submission;
use paceline_executor::handle::Handle;
use paceline_os::sync::Arc;
use paceline_os::sync::atomic::Ordering;
use paceline_os::time::Instant;
use paceline_transport::error::Result;
#[cfg(feature = "foreign")]
use paceline_transport::error::RunError;

use super::named::Named;
use crate::communicator::{CollectiveRequest, Communicator};
#[cfg(feature = "foreign")]
use crate::communicator::{OnDevice, Stages};

/// An operation in flight.
#[derive(Clone)]
pub(super) enum Begun {
    /// On memory of the host.
    Host(Arc<Handle>),
    /// On memory of a device.
    #[cfg(feature = "foreign")]
    Device(OnDevice),
}

impl Begun {
    /// Whether the memory holds the result, or it has failed.
    pub fn done(&self) -> bool {
        match self {
            Begun::Host(handle) => handle.done(),
            #[cfg(feature = "foreign")]
            Begun::Device(operation) => operation.done(),
        }
    }

    /// Whether `wait` returns at once.
    pub fn ready(&self) -> bool {
        match self {
            Begun::Host(handle) => handle.done(),
            #[cfg(feature = "foreign")]
            Begun::Device(operation) => operation.ready(),
        }
    }

    /// Waits for it; of a device, until streams can be told to wait for the result. `false` at the time limit.
    pub fn wait(&self, data: &Communicator, until: Option<Instant>) -> Result<bool> {
        match self {
            Begun::Host(handle) => data.wait(handle, until),
            #[cfg(feature = "foreign")]
            Begun::Device(operation) => operation.land(until),
        }
    }

    /// Its number in the timeline; 0: not recorded.
    pub fn number(&self) -> u64 {
        match self {
            Begun::Host(handle) => handle.number.load(Ordering::Relaxed),
            #[cfg(feature = "foreign")]
            Begun::Device(operation) => operation.number(),
        }
    }

    /// The handle of an operation on memory of the host.
    pub fn on_host(self) -> Result<Arc<Handle>> {
        match self {
            Begun::Host(handle) => Ok(handle),
            #[cfg(feature = "foreign")]
            Begun::Device(_) => Err(RunError::Failed("a planned operation is on a device".into())),
        }
    }
}

/// From when on the memory of an operation may be read: when a stream of the caller has come where it was at the call.
#[cfg(feature = "foreign")]
pub(super) struct Moment {
    stages: Arc<Stages>,
    stage: Arc<Stage>,
    reached: Event,
}

#[cfg(feature = "foreign")]
impl Moment {
    /// # Safety
    /// The stream exists, and is of this device.
    #[allow(unsafe_code, reason = "the promise about the stream is passed on")]
    pub unsafe fn now(stages: &Arc<Stages>, stage: &Arc<Stage>, stream: CallerStream) -> Result<Moment> {
        let failed = |error: paceline_cuda::CudaError| RunError::Failed(error.0);
        let reached = Event::new(stage.device()).map_err(failed)?;
        // SAFETY: promised by the caller.
        unsafe { reached.record_at(stream) }.map_err(failed)?;
        Ok(Moment { stages: stages.clone(), stage: stage.clone(), reached })
    }
}

/// Begins the operation that the ranks have agreed on. `named`: this rank's tensors. `alone`: some rank has joined, and
/// contributes from memory of the host.
///
/// # Safety
/// As for [`Communicator::submit`].
#[allow(unsafe_code, reason = "the promise about the memory is passed on")]
#[cfg_attr(not(feature = "foreign"), expect(unused_variables, reason = "they are about devices"))]
pub(super) unsafe fn submit(
    data: &Arc<Communicator>,
    (named, alone): (&[Option<Arc<Named>>], bool),
    request: &CollectiveRequest<'_>,
    keep: Option<Box<dyn Any + Send>>,
    how: Submission,
) -> Result<Begun> {
    #[cfg(feature = "foreign")]
    {
        let moments: Vec<&Moment> = named.iter().flatten().filter_map(|operation| operation.moment()).collect();
        if let Some(first) = moments.first() {
            if moments.iter().any(|moment| !Arc::ptr_eq(&moment.stage, &first.stage)) {
                let devices: Vec<_> = moments.iter().map(|moment| moment.stage.device()).collect();
                return Err(RunError::Failed(format!(
                    "rank {}: tensors that are reduced together lie on several devices ({devices:?}); keep the tensors of a \
                     rank on one",
                    data.shared.rank
                )));
            }
            let events = moments.iter().map(|moment| &moment.reached);
            let stream = first.stages.behind(data.id(), &first.stage, events)?;
            let of_servers = data.is_for_servers(request)?;
            let place = (&*first.stages, &first.stage, stream);
            if alone || of_servers {
                // SAFETY: promised by the caller; the stream is of the job.
                let staged = unsafe { data.submit_staged(place, request, keep, how) };
                return staged.map(OnDevice::Staged).map(Begun::Device);
            }
            // Only servers count buckets.
            let request = CollectiveRequest { bucket: None, ..*request };
            // SAFETY: as above.
            return unsafe { data.submit_on_device(place, &request, keep, how) }.map(Begun::Device);
        }
    }
    // SAFETY: promised by the caller.
    unsafe { data.submit(request, keep, how) }.map(Begun::Host)
}
