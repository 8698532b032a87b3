//! Who watches a simulation. `()` does not, and costs nothing.

/// What a worker does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Forward layer of this number.
    Layer(u32),
    /// Waits for the parameters of this layer.
    Wait(u32),
    Backward,
    Optimizer,
    /// Waits for the sums, or for the others.
    WaitForSums,
}

/// Told of every span of a link or worker, in the order of their ends being known.
pub(crate) trait Observer {
    /// Spans are wanted; without, the simulation does not gather them.
    const ACTIVE: bool;
    /// A link was occupied by a message of a bucket.
    fn link(&mut self, link: u32, start: u64, end: u64, inst: u32, src: u32, dst: u32);
    /// A worker did something.
    fn worker(&mut self, worker: u32, activity: Activity, start: u64, end: u64);
}

impl Observer for () {
    const ACTIVE: bool = false;
    #[inline]
    fn link(&mut self, _: u32, _: u64, _: u64, _: u32, _: u32, _: u32) {}
    #[inline]
    fn worker(&mut self, _: u32, _: Activity, _: u64, _: u64) {}
}
