//! The interface of a strategy.
use crate::collective::Collective;
use crate::note::Note;
use crate::step::{Bucket, Step};

/// Numbers of roles. Roles are numbered workers first, then servers, then switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Training ranks.
    pub workers: u32,
    /// Parameter servers.
    pub servers: u32,
    /// Aggregating switches.
    pub switches: u32,
}

impl Roles {
    /// Number of roles.
    #[must_use]
    pub fn total(self) -> u32 {
        self.workers + self.servers + self.switches
    }
}

/// Where an aggregating switch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchPlace {
    /// The switch: two roles of one switch (up and down) have the same.
    pub id: u32,
    /// The switch above it; `None`: the root.
    pub parent: Option<u32>,
    /// Edges to the nodes below it, at most.
    pub level: u32,
    /// The root's level.
    pub levels: u32,
    /// The switch of the network that it is, or a part of.
    pub stand: Stand,
}

/// A switch of the network, on the way up from the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// That of this rack.
    Rack(u32),
    /// One that connects the racks of this pod.
    Pod(u32),
    /// One that connects all pods, or all racks.
    Top,
}

/// The cost of one bucket in closed form: the oracle of the programs, documented in docs/explanation/models.md.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Messages of all roles; a multicast counts once.
    pub messages: u64,
    /// Elements that all workers send together.
    pub worker_elements: u64,
    /// Elements that servers send; a multicast counts once.
    pub server_elements: u64,
    /// Elements that switches send.
    pub switch_elements: u64,
    /// Longest chain of messages that depend on each other. Exact if the number of workers is a power of two (and a
    /// multiple of the ranks per node), otherwise an upper bound.
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

/// Nodes of several ranks that share a NIC, for the closed forms of time.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// A node's NIC.
    pub between: Link,
    /// A rank's link inside its node.
    pub inside: Link,
}

/// Minimum latencies on a network of any speed, in seconds.
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
    /// The collective of its programs.
    fn collective(&self) -> Collective {
        Collective::AllReduce
    }

    /// The number of roles.
    fn roles(&self) -> Roles;

    /// Where a switch stands; a single one is half-way between any two nodes.
    fn switch_place(&self, number: u32) -> SwitchPlace {
        SwitchPlace { id: number, parent: None, level: 1, levels: 1, stand: Stand::Top }
    }

    /// Lanes of a bucket; 0 if there is nothing to do.
    fn lanes(&self, bucket: &Bucket) -> u32;

    /// Slots of a lane: receives are numbered from 0 up to this.
    fn slots(&self) -> u16;

    /// The most messages that one receive waits for.
    fn senders(&self) -> u32 {
        1
    }

    /// Step `pc` of `role` in `lane`. Not called again after `Done`.
    fn step(&self, bucket: &Bucket, role: u32, lane: u32, pc: u32) -> Step;

    /// Number of lanes of this bucket that have a barrier at this role.
    fn barriers(&self, _bucket: &Bucket, _role: u32) -> u32 {
        0
    }

    /// The program of one worker and the servers, if workers share nothing but what the servers have: worker 0 is that worker,
    /// and its barrier is that of its own lanes. `None`: workers exchange with each other, through servers or without.
    fn part(&self) -> Option<Box<dyn Schedule>> {
        None
    }

    /// The group of a lane after the barrier: lanes continue in order of group, then of the bucket's priority, then of
    /// lane. Round-robin distribution (for each tensor, for each worker) has one group; block distribution (for each
    /// worker, for each tensor) has one per worker.
    fn release_group(&self, _bucket: &Bucket, _lane: u32) -> u32 {
        0
    }

    /// Adds the elements of a bucket to those of the servers that hold them; without servers there is nothing to add.
    fn held(&self, _bucket: &Bucket, _elements: &mut [u64]) {}

    /// Messages and elements of a bucket.
    fn volume(&self, bucket: &Bucket) -> Volume;

    /// Seconds that one bucket alone takes on a homogeneous network with one rank per node, if there is a closed
    /// form. Property-tested against the program in the simulator.
    fn closed_form(&self, _bucket: &Bucket, _link: Link) -> Option<f64> {
        None
    }

    /// Seconds that one bucket alone takes on nodes of several ranks, for sizes that no event simulation reaches. An
    /// approximation if pipelines fill and drain; docs/explanation/models.md gives its error.
    fn closed_form_on_nodes(&self, _bucket: &Bucket, _links: Links) -> Option<f64> {
        None
    }

    /// The worker at which this lane starts, if the lane is one piece that makes 2(W-1) hops (W-1 in a reduce-scatter or
    /// all-gather) over all workers in rank order, each worker forwarding it as soon as it has arrived, and is sent first by step 0 of that worker. The
    /// simulator then needs no programs.
    fn ring_origin(&self, _bucket: &Bucket, _lane: u32) -> Option<u32> {
        None
    }

    /// The minimum latency of a message of this bucket, if a library's publications give one: between nodes and inside
    /// one.
    fn least_latency(&self, _bucket: &Bucket) -> Option<Least> {
        None
    }

    /// A degenerate case that the user should know about.
    fn note(&self) -> Option<Note> {
        None
    }
}
