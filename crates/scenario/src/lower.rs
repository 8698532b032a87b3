//! The scenario as a cluster and options of the simulator. Explicit options win over a library's habits.
use std::sync::Arc;

use paceline_model::cluster::{Channel, Degraded, Fabric, Shape};
use paceline_model::{Cluster, Rate, Time, Trace};
use paceline_schedule::{Inside, Knob, Refusal};
use paceline_simulator::{NcclTimes, Options};

use crate::given::{BucketSize, Given};
use crate::library::Library;
use crate::plan;
use crate::scenario::{Scenario, ScenarioError};

/// Strategies in which a node sends to one other node only. Elsewhere several connections share its link.
const ONE_NEIGHBOR: [&str; 4] = ["ring", "ring-multicast", "native", "hierarchical"];

/// A scenario in the terms of the simulator.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The cluster, with what the library's processes cost on it.
    pub cluster: Cluster,
    /// Strategy, workers and options.
    pub options: Options,
    /// Carrier of messages between nodes; `Unknown`: they get the whole bandwidth.
    pub channel: Channel,
    /// Rate that the messages of a node get of its link, in bits per second.
    pub flow_bps: f64,
}

impl Scenario {
    /// Lowers the scenario.
    ///
    /// # Errors
    /// Options that contradict each other; the message names the setting.
    pub fn lowered(&self, trace: &Trace, cluster: &Cluster) -> Result<Lowered, ScenarioError> {
        let &Scenario { strategy, workers, ref library, .. } = self;
        let nodes = workers.div_ceil(cluster.gpus_per_node);
        let mut given = self.given.clone();
        library.fill(&mut given, strategy, nodes);
        let (payload, flow) = self.flow(cluster);
        let mut costs = cluster.clone();
        costs.bandwidth = Rate(flow);
        behind_the_flows(&mut costs, payload / flow);
        self.machines(&mut costs)?;
        let mut costs = costs.checked("cluster")?;
        limit_by_mesh(&mut costs, &given, workers.min(cluster.gpus_per_node));
        let mut options = options(strategy.name, workers, &given);
        options.call = seconds("call_s", library.call.unwrap_or(0.0))?;
        if self.coordination.is_none() {
            options.agreement = seconds("agreement_s", library.agreement.unwrap_or(0.0) * f64::from(workers))?;
        }
        let is_named = cluster.channel != Channel::Unknown;
        if nodes > 1 && is_named && !library.is_bare() && cluster.jitter.is_none() {
            options.spread = self.channels.jitter(cluster.channel);
        }
        let by_library = || {
            // Of the links that a ring uses.
            let (rate, wait) =
                if nodes > 1 { (flow, costs.latency) } else { (costs.intra_bandwidth.0, costs.intra_latency) };
            library.fusion(rate, wait.seconds(), workers)
        };
        options.bucket_size = match given.bucket_size.unwrap_or_else(by_library) {
            BucketSize::None => None,
            BucketSize::Bytes(bytes) => Some(bytes),
        };
        options.iteration = plan::iteration(self, &options, cluster.gpus_per_node, trace.dtype)?;
        options.coordination.clone_from(&self.coordination);
        if strategy.name == "native" {
            options.nccl = library.nccl.unwrap_or(options.nccl);
        }
        if self.coordination.is_none() {
            self.add_gpus(cluster, &mut options)?;
        }
        Ok(Lowered { cluster: costs, options, channel: cluster.channel, flow_bps: flow })
    }

    /// Whether the connections of a node to its next one carry less than its link.
    #[must_use]
    pub fn is_limited_by_connections(&self, cluster: &Cluster) -> bool {
        let (payload, flow) = self.flow(cluster);
        self.workers > cluster.gpus_per_node && flow < payload
    }

    /// The payload of a node's link, and what its messages get of it: less if it sends on few connections.
    fn flow(&self, cluster: &Cluster) -> (f64, f64) {
        let (link, channel) = (cluster.bandwidth.0, cluster.channel);
        let payload = link * cluster.efficiency.unwrap_or_else(|| self.channels.share(channel, link));
        match self.library.streams {
            Some(streams) if !self.library.is_bare() && ONE_NEIGHBOR.contains(&self.strategy.name) => {
                let own = cluster.stream_bandwidth.map(|rate| rate.0);
                let one = own.unwrap_or_else(|| self.channels.stream_bps(channel, link));
                (payload, payload.min(streams * one))
            }
            _ => (payload, payload),
        }
    }

    /// Adds what the library's processes cost on a machine; what the cluster says explicitly wins.
    fn machines(&self, cluster: &mut Cluster) -> Result<(), Refusal> {
        let &Scenario { strategy, workers, ref library, .. } = self;
        if let (None, Some(host)) = (cluster.host_bandwidth, library.host_bandwidth) {
            let seconds_per_byte = 8.0 / host + library.polling.unwrap_or(0.0) * f64::from(workers);
            cluster.host_bandwidth = Some(Rate(8.0 / seconds_per_byte));
        }
        if cluster.reduction_bandwidth.is_none() {
            cluster.reduction_bandwidth = library.reduction_bandwidth.map(Rate);
        }
        if let Some(inside) = library.intra_bandwidth {
            cluster.intra_bandwidth = Rate(inside.min(cluster.intra_bandwidth.0));
        }
        // NCCL's choice has the time of its own steps, and where the switch adds up, cards cut what they get into pieces.
        let of_cards = strategy.uses(Knob::Rates) || self.sums_in_switches();
        if let (false, Some(overhead)) = (of_cards, library.message_overhead) {
            let whole = cluster.message_overhead.seconds() + overhead;
            if !(0.0..=86_400.0).contains(&whole) {
                return Err(Refusal::new(format!("message_overhead_s: must be 0 s to a day, not {whole} s"))
                    .remedy("\"message_overhead_s\": 1e-5"));
            }
            cluster.message_overhead = Time::from_seconds(whole);
        }
        if strategy.name == library.strategy {
            cluster.servers = library.server_place.unwrap_or(cluster.servers);
        }
        Ok(())
    }

    /// Whether switches do its all-reduces; the other collectives of `hsdp` are then the library's.
    fn sums_in_switches(&self) -> bool {
        self.strategy.uses(Knob::Aggregation) && !self.strategy.uses(Knob::Servers)
    }

    /// Adds what NCCL's collectives take and do to the computation beside them, if the GPUs are known.
    ///
    /// That is so for DDP, too, but not for Horovod's fusion, nor for strategies with servers or a switch, unless the
    /// iteration is planned in another way.
    fn add_gpus(&self, cluster: &Cluster, options: &mut Options) -> Result<(), Refusal> {
        let is_known = !cluster.gpu.is_empty();
        let bare = self.library.is_bare() || self.library.name == Library::DEFAULT;
        let of_ranks =
            [Knob::Servers, Knob::Multicast, Knob::Aggregation].iter().all(|&knob| !self.strategy.uses(knob));
        let is_nccl = is_known && bare && of_ranks;
        if !is_nccl && !options.is_planned() {
            return Ok(());
        }
        // Switches add up between nodes, and the other collectives of the iteration are NCCL's.
        if self.strategy.uses(Knob::Rates) || self.sums_in_switches() {
            let times = NcclTimes::of(cluster, self.calibration.clone(), self.channels.rdma_latency_s);
            options.collectives = times.map(Arc::new);
        }
        if is_known {
            // Measured with NCCL's kernels; those of another strategy would need the same multiprocessors.
            options.slowdown = self.calibration.value("overlap.slowdown");
            if !(0.0..1.0).contains(&options.slowdown) {
                return Err(
                    Refusal::new(format!("slowdown: must be a share below 1, not {}", options.slowdown)).remedy("0.04")
                );
            }
            // A channel's spread was measured with all-reduces of DDP and Horovod, before NCCL's model of today.
            options.spread = 0.0;
        }
        Ok(())
    }
}

fn options(strategy: &str, workers: u32, given: &Given) -> Options {
    let default = Options::new(strategy, workers);
    Options {
        servers: given.servers.unwrap_or(default.servers),
        chunk: given.chunk,
        placement: given.placement.clone().unwrap_or(default.placement),
        distribution: given.distribution.unwrap_or(default.distribution),
        pull: given.pull.unwrap_or(default.pull),
        inside: given.inside.unwrap_or(default.inside),
        network: given.network.unwrap_or(default.network),
        barrier: given.barrier.unwrap_or(default.barrier),
        staleness: given.staleness,
        overlap: given.overlap.unwrap_or(default.overlap),
        iterations: given.iterations,
        seed: given.seed.unwrap_or(default.seed),
        critical_path: given.critical_path.unwrap_or(default.critical_path),
        detail: given.detail.unwrap_or(default.detail),
        compute_speedup: given.compute_speedup.unwrap_or(default.compute_speedup),
        offloaded: given.offloaded.unwrap_or_default(),
        ..default
    }
}

/// Keeps what follows from a link's rate where the flows of a node carry less. `room`: the link's payload over their rate.
///
/// A slow link slows flows down only below what they carry, and the uplinks of racks are shared before they are full.
fn behind_the_flows(cluster: &mut Cluster, room: f64) {
    let over = match (&cluster.racks, &cluster.fabric) {
        (Some(racks), _) => racks.oversubscription,
        (None, Some(fabric)) => oversubscription(fabric),
        (None, None) => 1.0,
    };
    let left = (over / room).max(1.0);
    let has_own_rate = cluster.fabric.as_ref().is_some_and(|fabric| fabric.link_bandwidth.is_some());
    if left != over && over > 1.0 {
        if let Some(racks) = &mut cluster.racks {
            racks.oversubscription = left;
        } else if let Some(fabric) = &mut cluster.fabric {
            match &mut fabric.shape {
                Shape::LeafSpine { oversubscription, .. } | Shape::Rails { oversubscription, .. } => {
                    *oversubscription = left;
                }
                Shape::FatTree { .. } | Shape::Dragonfly { .. } | Shape::Torus { .. } => {}
            }
        }
    }
    for one in &mut cluster.degraded {
        let is_card = ["node", "worker", "server"].iter().any(|card| one.link.trim_start().starts_with(card));
        if !is_card && has_own_rate {
            continue; // It has its own rate, whatever a node sends.
        }
        let Degraded { factor, .. } = one;
        *factor = (*factor * if is_card { room } else { room * (left / over) }).min(1.0);
    }
}

/// Of the links between switches. That of a fat tree says how many nodes it has.
fn oversubscription(fabric: &Fabric) -> f64 {
    match fabric.shape {
        Shape::LeafSpine { oversubscription, .. } | Shape::Rails { oversubscription, .. }
            if fabric.link_bandwidth.is_none() =>
        {
            oversubscription
        }
        _ => 1.0,
    }
}

/// The GPUs of a node exchange with all others at once, over own links and a shared bus.
fn limit_by_mesh(cluster: &mut Cluster, given: &Given, gpus: u32) {
    let Some(mesh) = cluster.mesh else { return };
    if given.inside != Some(Inside::Root) || gpus <= mesh.peers + 1 {
        return;
    }
    // All gradients arrive when the last one over the bus does.
    let most = f64::from(gpus - 1) / f64::from(gpus - 1 - mesh.peers) * mesh.bridge.0;
    cluster.intra_bandwidth = Rate(most.min(cluster.intra_bandwidth.0));
}

fn seconds(name: &str, seconds: f64) -> Result<Time, Refusal> {
    if (0.0..=60.0).contains(&seconds) {
        return Ok(Time::from_seconds(seconds));
    }
    Err(Refusal::new(format!("{name}: must be 0-60 s, not {seconds}")).remedy("1e-5"))
}
