//! The options of a simulation as JSON.
use paceline_schedule::{Distribution, Inside, Placement};
use paceline_simulator::{ChunkBytes, Network, Options, Pull};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ChunkWord {
    Whole,
    PerWorker,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ChunkSpec {
    Word(ChunkWord),
    Bytes(u64),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PlacementWord {
    RoundRobin,
    Even,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PlacementSpec {
    Word(PlacementWord),
    Servers(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DistributionSpec {
    RoundRobin,
    Block,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PullSpec {
    Layer,
    Step,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum InsideSpec {
    Root,
    Ring,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum NetworkSpec {
    Fifo,
    Fluid,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    strategy: String,
    workers: u32,
    servers: Option<u32>,
    chunk: Option<ChunkSpec>,
    placement: Option<PlacementSpec>,
    distribution: Option<DistributionSpec>,
    barrier: Option<bool>,
    pull: Option<PullSpec>,
    inside: Option<InsideSpec>,
    bucket_size: Option<u64>,
    network: Option<NetworkSpec>,
    overlap: Option<bool>,
    compute_speedup: Option<f64>,
    iterations: Option<u32>,
    seed: Option<u64>,
    critical_path: Option<bool>,
    detail: Option<bool>,
}

pub fn options(text: &str) -> Result<Options, String> {
    let spec: Spec = serde_json::from_str(text).map_err(|e| format!("options: {e}"))?;
    let mut options = Options::new(&spec.strategy, spec.workers);
    options.chunk = spec.chunk.map(|chunk| match chunk {
        ChunkSpec::Word(ChunkWord::Whole) => ChunkBytes::Whole,
        ChunkSpec::Word(ChunkWord::PerWorker) => ChunkBytes::PerWorker,
        ChunkSpec::Bytes(bytes) => ChunkBytes::Size(bytes),
    });
    options.placement = match spec.placement {
        None | Some(PlacementSpec::Word(PlacementWord::RoundRobin)) => Placement::RoundRobin,
        Some(PlacementSpec::Word(PlacementWord::Even)) => Placement::Even,
        Some(PlacementSpec::Servers(table)) => Placement::Table(table.into()),
    };
    options.distribution = match spec.distribution {
        None | Some(DistributionSpec::RoundRobin) => Distribution::RoundRobin,
        Some(DistributionSpec::Block) => Distribution::Block,
    };
    options.pull = match spec.pull {
        None | Some(PullSpec::Layer) => Pull::Layer,
        Some(PullSpec::Step) => Pull::Step,
    };
    options.inside = match spec.inside {
        None | Some(InsideSpec::Ring) => Inside::Ring,
        Some(InsideSpec::Root) => Inside::Root,
    };
    options.network = match spec.network {
        None | Some(NetworkSpec::Fifo) => Network::Fifo,
        Some(NetworkSpec::Fluid) => Network::Fluid,
    };
    options.servers = spec.servers.unwrap_or(options.servers);
    options.barrier = spec.barrier.unwrap_or(options.barrier);
    options.bucket_size = spec.bucket_size;
    options.overlap = spec.overlap.unwrap_or(options.overlap);
    options.compute_speedup = spec.compute_speedup.unwrap_or(options.compute_speedup);
    options.iterations = spec.iterations;
    options.seed = spec.seed.unwrap_or(options.seed);
    options.critical_path = spec.critical_path.unwrap_or(options.critical_path);
    options.detail = spec.detail.unwrap_or(options.detail);
    Ok(options)
}
