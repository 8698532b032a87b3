//! Collectives that a communication library runs itself: the all-reduce of MPI, and more on the memory of devices.
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::sync::Arc;
use paceline_os::time::Duration;
use serde::{Deserialize, Serialize};

use crate::header::Collective;
use crate::space::Space;

/// A collective in flight in the library.
#[derive(Debug, PartialEq, Eq)]
pub struct OffloadTicket(pub u64);

/// A library's ability with addresses of the memory of CUDA devices, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDevices {
    /// It takes none.
    Nothing,
    /// It moves their contents.
    Moves,
    /// It also combines them.
    Combines,
}

impl OnDevices {
    /// Whether the library runs this collective on elements of this type in the memory of devices.
    #[must_use]
    pub fn runs(self, collective: Collective, dtype: Dtype) -> bool {
        let known = matches!(dtype, Dtype::Float32 | Dtype::Float64 | Dtype::Int32 | Dtype::Int64);
        match collective {
            Collective::Broadcast | Collective::AllGather => self >= OnDevices::Moves,
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {
                known && self == OnDevices::Combines
            }
            _ => false,
        }
    }
}

/// A library's own statement about the memory of CUDA devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSupport {
    /// Its ability.
    pub takes: OnDevices,
    /// Who says so, and why not more.
    pub said: String,
}

/// Makes the context of a device current in the calling thread, where it stays. Errors are the driver's text.
pub type EnterDevice = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A collective on the memory of a device: addresses of its driver, which only the library may use.
pub struct DeviceCall {
    /// The collective; of equal shards.
    pub collective: Collective,
    /// Type of the elements.
    pub dtype: Dtype,
    /// How the elements are combined.
    pub op: ReduceOp,
    /// This process's place in the group.
    pub me: u32,
    /// The root.
    pub root: u32,
    /// Addresses and elements; for all-reduce, broadcast and reduce also the output. All-gather and reduce-scatter have one.
    pub inputs: Vec<(usize, u64)>,
    /// Addresses and elements.
    pub outputs: Vec<(usize, u64)>,
    /// The device.
    pub enter: EnterDevice,
}

/// A library with collectives of its own that makes progress only when called. Errors are the library's text.
pub trait Offload: Send {
    /// Lets the library progress; returns whether anything moved.
    fn progress(&mut self) -> bool;

    /// How long to sleep when there is nothing to do: the library does not wake sleepers.
    fn nap(&self) -> Duration;

    /// Creates a communicator for a group, and `duplicates` more for later groups of the same ranks. Collective: it waits
    /// for all ranks of the group.
    ///
    /// # Errors
    /// The library's error.
    fn join(&mut self, group: u32, ranks: &[u32], duplicates: usize) -> Result<(), String>;

    /// Hands one of the duplicates made for `from` to `to`. All ranks must do so in the same order.
    fn inherit(&mut self, from: u32, to: u32);

    /// Frees what belongs to a group. All its ranks call this, at any time.
    fn part(&mut self, group: u32);

    /// Begins an all-reduce of all elements of a space. The memory must not be touched until the all-reduce is done or
    /// abandoned.
    ///
    /// # Errors
    /// The library's error.
    fn all_reduce(&mut self, group: u32, kind: (Dtype, ReduceOp), space: &mut Space) -> Result<OffloadTicket, String>;

    /// Begins a collective on the memory of a device, under the same condition.
    ///
    /// # Errors
    /// The library's or the driver's error; the library then does not touch the memory.
    fn on_device(&mut self, group: u32, call: &DeviceCall) -> Result<OffloadTicket, String>;

    /// Whether what was begun is done; the space of an all-reduce then holds the result.
    ///
    /// # Errors
    /// The library's error.
    fn done(&mut self, ticket: &OffloadTicket, space: &mut Space) -> Result<bool, String>;

    /// Abandons what may be in flight. This process's part of the library does not touch the caller's memory afterwards.
    fn abandon(&mut self, ticket: &OffloadTicket);

    /// Shuts the library down; returns whether nothing is left in flight.
    fn close(self: Box<Self>) -> bool;
}
