//! The interface of a strategy.
use crate::step::{Bucket, Step};

/// Roles are numbered workers first, then servers, then switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Ranks that train.
    pub workers: u32,
    /// Parameter servers.
    pub servers: u32,
    /// Aggregating switches.
    pub switches: u32,
}

impl Roles {
    /// All of them.
    #[must_use]
    pub fn total(self) -> u32 {
        self.workers + self.servers + self.switches
    }
}

/// What one bucket costs, in closed form: the oracle of the programs, documented in docs/explanation/models.md.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Messages of all roles; a multicast counts once.
    pub messages: u64,
    /// Elements that workers send, all together.
    pub worker_elements: u64,
    /// Elements that servers send; a multicast counts once.
    pub server_elements: u64,
    /// Elements that switches send.
    pub switch_elements: u64,
    /// Longest chain of messages that depend on each other. Exact where the number of workers is a power of two (and
    /// a multiple of the ranks per node), else an upper bound.
    pub hops: u64,
}

/// A homogeneous network for the closed forms of time.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Seconds from sender to receiver, and the fixed cost of a message.
    pub latency_s: f64,
    /// Seconds an element occupies a link.
    pub s_per_element: f64,
}

/// Nodes of several ranks that share a card, for the closed forms of time.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// A node's card.
    pub between: Link,
    /// A rank's link inside its node.
    pub inside: Link,
}

/// Latencies that a network of any speed does not undercut, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Least {
    /// From one node to another.
    pub between_s: f64,
    /// From one rank of a node to another.
    pub inside_s: f64,
}

/// A strategy for a given topology and given knobs.
///
/// `step` is called once for every step of every role: it costs a few nanoseconds and must not allocate.
pub trait Schedule: Send + Sync {
    /// How many take part.
    fn roles(&self) -> Roles;

    /// Lanes of a bucket; 0 where nothing is to be done.
    fn lanes(&self, bucket: &Bucket) -> u32;

    /// Slots of a lane: receives are numbered below this.
    fn slots(&self) -> u16;

    /// The most messages that one receive waits for.
    fn senders(&self) -> u32 {
        1
    }

    /// Step `pc` of `role` in `lane`. After `Done` it is not asked again.
    fn step(&self, bucket: &Bucket, role: u32, lane: u32, pc: u32) -> Step;

    /// How many lanes of this bucket meet the barrier at this role.
    fn barriers(&self, _bucket: &Bucket, _role: u32) -> u32 {
        0
    }

    /// The order in which the lanes that met the barrier go on: by this, then by the priority of the bucket, then by
    /// lane. Round-robin distribution (for each tensor, for each worker) has one group; block distribution (for each
    /// worker, for each tensor) has one per worker.
    fn release_group(&self, _bucket: &Bucket, _lane: u32) -> u32 {
        0
    }

    /// Messages and elements of a bucket.
    fn volume(&self, bucket: &Bucket) -> Volume;

    /// Seconds that one bucket alone takes on a homogeneous network with one rank per node, if there is a closed
    /// form. Property-tested against the program in the simulator.
    fn closed_form(&self, _bucket: &Bucket, _link: Link) -> Option<f64> {
        None
    }

    /// Seconds that one bucket alone takes on nodes of several ranks, for numbers of them that no event simulation
    /// reaches. An approximation where pipelines fill and drain; docs/explanation/models.md says how far it is off.
    fn closed_form_on_nodes(&self, _bucket: &Bucket, _links: Links) -> Option<f64> {
        None
    }

    /// What a message of this bucket takes at least, where a library's publications say: between nodes and inside one.
    fn least_latency(&self, _bucket: &Bucket) -> Option<Least> {
        None
    }

    /// What a degenerate case became ("hierarchical with one GPU per node is a ring"), for the user.
    fn note(&self) -> Option<String> {
        None
    }
}
