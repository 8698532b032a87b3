//! Communication libraries: how they group, hand over and send gradients. Their files are Python's
//! (`paceline/catalog/libraries`).
use paceline_iteration::Pull;
use paceline_model::cluster::ServerPlace;
use paceline_nccl::Release;
use paceline_schedule::{ChunkBytes, Entry, Inside, Knob};

use crate::given::{BucketSize, Given};

/// The number of parameter servers that a library has by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Servers {
    /// One on every node.
    PerNode,
    /// So many.
    Count(u32),
}

/// The options that a library implies; those of a strategy only under its own, but for `pull`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Habits {
    /// How many servers it has.
    pub servers: Option<Servers>,
    /// How it cuts buckets into messages.
    pub chunk: Option<ChunkBytes>,
    /// When its workers wait for parameters.
    pub pull: Option<Pull>,
    /// How it reduces inside a node.
    pub inside: Option<Inside>,
    /// Whether it sends gradients while the backward pass is still running.
    pub overlap: Option<bool>,
    /// Whether its iterations start on all workers at once.
    pub barrier: Option<bool>,
}

/// A library: its habits, and its constants in SI units.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Library {
    /// Its name; `none` stands for the bare schedule.
    pub name: String,
    /// The strategy that it uses by itself.
    pub strategy: String,
    /// Where its parameter servers run; `None`: as the cluster says.
    pub server_place: Option<ServerPlace>,
    /// The release of NCCL that chooses under `native`; `None`: the newest one that is known.
    pub nccl: Option<Release>,
    /// The options that it implies.
    pub habits: Habits,
    /// Gradients are fused into buckets of up to this size.
    pub bucket_size: Option<f64>,
    /// Gradients are fused as they become ready: the bytes of one cycle.
    pub fused_per_cycle: Option<f64>,
    /// The most that is fused.
    pub fusion_threshold: Option<f64>,
    /// Seconds that handing over a gradient adds to the backward pass.
    pub call: Option<f64>,
    /// Seconds of its coordinator for a gradient and rank, beside the backward pass.
    pub agreement: Option<f64>,
    /// Seconds of a message at its sender, beside the channel's.
    pub message_overhead: Option<f64>,
    /// Rate at which a rank copies between a GPU and the network.
    pub host_bandwidth: Option<f64>,
    /// Seconds that copying a byte takes longer for each rank of the job.
    pub polling: Option<f64>,
    /// Rate at which a rank adds received data.
    pub reduction_bandwidth: Option<f64>,
    /// Rate of a GPU inside its node, if below the node's.
    pub intra_bandwidth: Option<f64>,
    /// TCP connections between two nodes.
    pub streams: Option<f64>,
}

impl Library {
    /// The name of the bare schedule.
    pub const NONE: &str = "none";
    /// The library of forecasts that name none.
    pub const DEFAULT: &str = "ddp";

    /// Whether it stands for the bare schedule.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        self.name == Library::NONE
    }

    /// Fills options in that were not given.
    pub(crate) fn fill(&self, given: &mut Given, entry: &Entry, nodes: u32) {
        let Habits { servers, chunk, pull, inside, overlap, barrier } = self.habits;
        let own = |knob: Knob| entry.uses(knob) && entry.name == self.strategy;
        if own(Knob::Servers) {
            let count = |servers| match servers {
                Servers::PerNode => nodes,
                Servers::Count(count) => count,
            };
            given.servers = given.servers.or(servers.map(count));
        }
        if own(Knob::Chunk) {
            given.chunk = given.chunk.or(chunk);
        }
        if own(Knob::Inside) {
            given.inside = given.inside.or(inside);
        }
        if entry.uses(Knob::Pull) {
            given.pull = given.pull.or(pull);
        }
        given.overlap = given.overlap.or(overlap);
        given.barrier = given.barrier.or(barrier);
    }

    /// The size up to which it fuses gradients. Horovod fuses what is ready when it looks: one cycle's tensors, or more
    /// if an all-reduce waits long for a ring's steps.
    pub(crate) fn fusion(&self, flow_bps: f64, latency_s: f64, ranks: u32) -> BucketSize {
        if let Some(size) = self.bucket_size {
            return BucketSize::Bytes(size as u64);
        }
        let (Some(most), Some(cycle)) = (self.fusion_threshold, self.fused_per_cycle) else { return BucketSize::None };
        let sent_while_waiting = flow_bps / 8.0 * 2.0 * f64::from(ranks.saturating_sub(1)) * latency_s;
        BucketSize::Bytes(most.min(cycle.max(sent_while_waiting)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn horovod_fuses_more_where_steps_take_longer() {
        let (cycle, most) = (8e6, 64e6);
        let horovod = Library { fused_per_cycle: Some(cycle), fusion_threshold: Some(most), ..Library::default() };
        assert_eq!(horovod.fusion(1e9, 0.0, 8), BucketSize::Bytes(8_000_000));
        assert_eq!(horovod.fusion(100e9, 10e-6, 512), BucketSize::Bytes(64_000_000));
        assert_eq!(horovod.fusion(25e9, 37e-6, 128), BucketSize::Bytes((25e9 / 8.0 * 254.0 * 37e-6) as u64));
        let ddp = Library { bucket_size: Some(26_214_400.0), ..Library::default() };
        assert_eq!(ddp.fusion(1e9, 1.0, 8), BucketSize::Bytes(26_214_400));
        assert_eq!(Library::default().fusion(1e9, 1.0, 8), BucketSize::None);
    }

    #[test]
    fn habits_of_a_strategy_hold_only_under_it() {
        let habits = Habits {
            servers: Some(Servers::PerNode),
            pull: Some(Pull::Step),
            overlap: Some(false),
            ..Habits::default()
        };
        let library = Library { strategy: "sharded-ps".into(), habits, ..Library::default() };
        let filled = |strategy: &str, given: &Given| {
            let mut given = given.clone();
            library.fill(&mut given, paceline_schedule::find(strategy).unwrap(), 5);
            (given.servers, given.pull, given.overlap)
        };
        let none = Given::default();
        assert_eq!(filled("sharded-ps", &none), (Some(5), Some(Pull::Step), Some(false)));
        assert_eq!(filled("ps", &none), (None, Some(Pull::Step), Some(false)));
        assert_eq!(filled("ring", &none), (None, None, Some(false)));
        let own = Given { servers: Some(2), pull: Some(Pull::Layer), overlap: Some(true), ..none };
        assert_eq!(filled("sharded-ps", &own), (Some(2), Some(Pull::Layer), Some(true)));
    }
}
