//! The options of an iteration's plan.
use paceline_iteration::{Compression, Cost, IterationOptions, Method, Reshard, Sharding};
use paceline_model::trace::Dtype;
use paceline_schedule::Refusal;
use paceline_simulator::Options;

use crate::given::{Given, ShardedBy};
use crate::scenario::Scenario;

/// The plan of an iteration as it was recorded.
pub(crate) fn plain(options: &Options) -> IterationOptions {
    IterationOptions {
        bucket_size: options.bucket_size,
        overlap: options.overlap,
        ..IterationOptions::new(Sharding::None)
    }
}

/// The plan, if one was asked for, something else is exchanged than the recorded gradients, or a recipe says what is held.
///
/// With the stages of a pipeline, units are gathered once for all microbatches by default, as by torchtitan. Unless FSDP
/// converts them, gradients have the type of their parameters, which is `recorded` if none is given.
///
/// # Errors
/// `hsdp` without a size, if there is no node to take it from; costs of compression that are none.
pub(crate) fn iteration(
    scenario: &Scenario,
    options: &Options,
    gpus_per_node: u32,
    recorded: Dtype,
) -> Result<Option<IterationOptions>, Refusal> {
    let &Scenario { workers, parallel, ref given, .. } = scenario;
    let compression = scenario.compression.filter(|_| workers > 1).map(checked).transpose()?;
    let sync_every = given.sync_every.filter(|&every| every > 1);
    let has_hooks = compression.is_some() || sync_every.is_some();
    let mut plan = None;
    if given.sharding.is_some() || given.accumulate.is_some() || given.held.is_some() {
        plan =
            Some(asked(given, options, workers, gpus_per_node, (!has_hooks).then_some(recorded), parallel.pipeline)?);
    }
    // One rank by itself has nobody to exchange its part of the experts with.
    if parallel.expert_ranks > 1 && workers > 1 {
        plan.get_or_insert_with(|| plain(options)).expert_parallel = parallel.expert_ranks;
    }
    if has_hooks {
        let plan = plan.get_or_insert_with(|| plain(options));
        plan.compression = compression.unwrap_or(Compression::NONE);
        plan.sync_every = sync_every.unwrap_or(plan.sync_every);
    }
    Ok(plan)
}

fn asked(
    given: &Given,
    options: &Options,
    workers: u32,
    gpus_per_node: u32,
    recorded: Option<Dtype>,
    stages: u32,
) -> Result<IterationOptions, Refusal> {
    let ShardedBy { sharding, mut group } = given.sharding.unwrap_or(ShardedBy::NONE);
    if sharding == Sharding::Hsdp && group.is_none() {
        if gpus_per_node == 1 && workers > 1 {
            return Err(Refusal::about(
                "sharding",
                "hsdp shards within a node, and there is one data-parallel rank per node",
            )
            .remedy("{gpus_per_node=8}, or {sharding=zero3}"));
        }
        group = Some(gpus_per_node.min(workers));
    }
    let gathers = sharding.gathers_units();
    let mut plan = IterationOptions { group, ..plain(options) };
    plan.sharding = sharding;
    if let (false, Some(recorded), Some(own)) = (gathers, recorded, given.param_dtype) {
        plan.reduce_dtype = (own != recorded).then_some(own);
    }
    // The type of the trace's gradients is that of their exchange anyway.
    plan.reduce_dtype = given.reduce_dtype.or(plan.reduce_dtype).filter(|&dtype| Some(dtype) != recorded);
    plan.param_dtype = given.param_dtype;
    if gathers {
        let by_default = if stages > 1 { Reshard::No } else { plan.reshard_after_forward };
        plan.reshard_after_forward = given.reshard_after_forward.unwrap_or(by_default);
        plan.unit.clone_from(&given.unit);
    }
    if sharding != Sharding::None {
        plan.prefetch = given.prefetch;
    }
    plan.accumulate = given.accumulate.unwrap_or(plan.accumulate);
    plan.synchronize = given.accumulate_sync;
    plan.optimizer = given.optimizer;
    plan.held = given.held;
    plan.update_bytes = given.update_bytes.unwrap_or(0);
    plan.state_bytes = given.state_bytes;
    plan.releases_gradients = given.releases_gradients.unwrap_or(false);
    plan.offloads_parameters = given.offloads_parameters.unwrap_or(false);
    Ok(plan)
}

/// Refuses costs that are none.
fn checked(compression: Compression) -> Result<Compression, Refusal> {
    let Compression { method, compress, between, decompress } = compression;
    let seconds = |cost: Cost| [cost.bucket_s, cost.tensor_s, cost.element_s, cost.received_s];
    let mut all = [compress, between, decompress].into_iter().flat_map(seconds);
    if let Some(wrong) = all.find(|it| !(0.0..=60.0).contains(it)) {
        return Err(Refusal::about("compression", format!("costs must be 0-60 s, not {wrong} s"))
            .remedy("paceline probe --compression fp16 (measures them)"));
    }
    debug_assert!(method != Method::None);
    Ok(compression)
}
