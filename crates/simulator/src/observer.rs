//! Observers of a simulation. `()` observes nothing and costs nothing.

/// A worker's activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Computes the forward layer with this number.
    Layer(u32),
    /// Waits for the parameters of this layer.
    Wait(u32),
    Backward,
    Optimizer,
    /// Waits for the sums, or for the other workers.
    WaitForSums,
}

/// Receives every span of a link or worker, in the order in which their ends become known.
pub(crate) trait Observer {
    /// Whether spans are wanted; if not, the simulation does not collect them.
    const ACTIVE: bool;
    /// A link was occupied by a message of a bucket.
    fn link(&mut self, link: u32, start: u64, end: u64, inst: u32, src: u32, dst: u32);
    /// Measuring begins.
    fn begin(&mut self) {}
    /// A worker was active.
    fn worker(&mut self, worker: u32, activity: Activity, start: u64, end: u64);
}

impl Observer for () {
    const ACTIVE: bool = false;
    #[inline]
    fn link(&mut self, _: u32, _: u64, _: u64, _: u32, _: u32, _: u32) {}
    #[inline]
    fn worker(&mut self, _: u32, _: Activity, _: u64, _: u64) {}
}
