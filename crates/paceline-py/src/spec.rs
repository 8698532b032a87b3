//! Parses the options of a simulation from JSON.
use paceline_model::Time;
use paceline_schedule::{ChunkBytes, Collective, Distribution, Inside, Placement};
use paceline_simulator::{Network, Options, Pull};
use serde::Deserialize;

use crate::coordination;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    strategy: String,
    workers: u32,
    collective: Option<Collective>,
    servers: Option<u32>,
    chunk: Option<ChunkBytes>,
    placement: Option<Placement>,
    distribution: Option<Distribution>,
    barrier: Option<bool>,
    pull: Option<Pull>,
    inside: Option<Inside>,
    bucket_size: Option<u64>,
    network: Option<Network>,
    overlap: Option<bool>,
    compute_speedup: Option<f64>,
    call_s: Option<f64>,
    agreement_s: Option<f64>,
    spread: Option<f64>,
    iterations: Option<u32>,
    seed: Option<u64>,
    coordination: Option<coordination::Spec>,
    critical_path: Option<bool>,
    detail: Option<bool>,
}

pub fn options(text: &str) -> Result<Options, String> {
    let spec: Spec = serde_json::from_str(text).map_err(|e| format!("options: {e}"))?;
    let mut options = Options::new(&spec.strategy, spec.workers);
    options.collective = spec.collective.unwrap_or(options.collective);
    options.chunk = spec.chunk;
    options.placement = spec.placement.unwrap_or(options.placement);
    options.distribution = spec.distribution.unwrap_or(options.distribution);
    options.pull = spec.pull.unwrap_or(options.pull);
    options.inside = spec.inside.unwrap_or(options.inside);
    options.network = spec.network.unwrap_or(options.network);
    options.servers = spec.servers.unwrap_or(options.servers);
    options.barrier = spec.barrier.unwrap_or(options.barrier);
    options.bucket_size = spec.bucket_size;
    options.overlap = spec.overlap.unwrap_or(options.overlap);
    options.compute_speedup = spec.compute_speedup.unwrap_or(options.compute_speedup);
    options.call = seconds("call_s", spec.call_s)?;
    options.agreement = seconds("agreement_s", spec.agreement_s)?;
    options.spread = spec.spread.unwrap_or(options.spread);
    options.iterations = spec.iterations;
    options.seed = spec.seed.unwrap_or(options.seed);
    options.coordination = spec.coordination.map(coordination::Spec::coordination).transpose()?;
    options.critical_path = spec.critical_path.unwrap_or(options.critical_path);
    options.detail = spec.detail.unwrap_or(options.detail);
    Ok(options)
}

fn seconds(name: &str, value: Option<f64>) -> Result<Time, String> {
    match value {
        None => Ok(Time::ZERO),
        Some(seconds) if (0.0..=60.0).contains(&seconds) => Ok(Time::from_seconds(seconds)),
        Some(seconds) => Err(format!("{name}: {seconds} is not between 0 and 60 s")),
    }
}
