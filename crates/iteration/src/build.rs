//! Makes the plan of an iteration.
//!
//! The order of steps is that of the libraries: FSDP2 (PyTorch 2.x, torch/distributed/fsdp/_fully_shard) for sharded
//! parameters, DDP's buckets otherwise. What a step waits for, besides the step before it on its stream:
//!
//! | step | waits for |
//! | --- | --- |
//! | all-gather of a unit | the beginning of the unit that is `prefetch` gathers ahead of it |
//! | a part of a pass | the gathers of its units |
//! | reduce-scatter, all-reduce of a bucket | the part of the backward pass that completes it |
//! | the part of the backward pass after unit *i* | the reduce-scatter of the unit before *i*: only one is in flight (`_fsdp_param_group.py`, `post_backward`) |
//! | all-reduce of shards between groups | their reduce-scatter |
//! | optimizer | the last of each kind |
//! | compressing a bucket ([`crate::compression`]) | as its exchange would |
//! | an exchange of a compressed bucket | the exchange of a bucket before it: a process group has one stream of NCCL |
//! | exchanges after several iterations | the optimizer's step of the last one |
//! | a part of the forward pass whose parameters servers send back | their exchange in the iteration before |
//!
//! Exchanges in the background (Paceline's runtime, parameter servers) do not wait for each other.
mod backward;
mod exchanges;
mod forward;

use paceline_model::Trace;
use paceline_model::trace::{Dtype, WorkerTrace};

use crate::compression::{Legs, Method};
use crate::options::{Exchanges, IterationError, IterationOptions, Optimizer, Pull, Reshard, Sharding, is_of_experts};
use crate::plan::{Buffer, BufferKind, Collective, FORMAT, Group, Plan, Step, Stream, Unit, VERSION, Work};
use crate::units::{
    Bucket, Cut, Segment, buckets, buckets_with_experts_apart, handing_over, into_blocks, into_buckets, ready_order,
};

/// Makes the plan of `world` ranks.
///
/// # Errors
/// Options that have no effect or do not fit the world or the trace; the message names the option.
pub fn build(trace: &Trace, world: u32, options: &IterationOptions) -> Result<Plan, IterationError> {
    check(world, options)?;
    let sharding = options.sharding;
    let recorded = &trace.workers[options.recorded];
    let updating = (options.exchanges == Exchanges::Servers(Pull::Layer)).then(|| updating(trace, recorded));
    let worker = updating.as_ref().unwrap_or(recorded);
    let experts_apart = options.expert_parallel > 1;
    let buckets = match (sharding.gathers_units(), experts_apart) {
        (true, _) => Vec::new(),
        (false, true) => buckets_with_experts_apart(trace, options.bucket_size),
        (false, false) => buckets(trace, options.bucket_size, options.exchanges.have_servers()),
    };
    let cut_of = |worker: &WorkerTrace| {
        if sharding.gathers_units() {
            return into_blocks(trace, worker, options.unit.as_deref(), options.bucket_size, experts_apart);
        }
        let order = options.common_order.then(|| ready_order(trace, &trace.workers[0], &buckets));
        Ok(into_buckets(trace, worker, &buckets, order.as_deref(), options.exchanges.are_background()))
    };
    let alone = cut_of(worker)?;
    let calling = handing_over(worker, world, options.call, options.agreement);
    let cut = calling.as_ref().map_or_else(|| Ok(alone.clone()), cut_of)?;
    let shard_ranks = match sharding {
        Sharding::None => 1,
        _ => options.group.unwrap_or(world),
    };
    let mut notes = Vec::new();
    if sharding == Sharding::Hsdp && shard_ranks == world && world > 1 {
        notes.push(format!("hsdp with one group of all {world} ranks is zero3"));
    }
    let param = options.param_dtype.unwrap_or(trace.dtype);
    let reduce = options.reduce_dtype.unwrap_or(trace.dtype);
    // What was recorded with its optimizer was trained in these types.
    let states = trace.optimizer_bytes.filter(|_| options.optimizer.is_none());
    let as_recorded = trace.optimizer_bytes.is_some() && param == trace.dtype;
    let held = match options.held {
        Some(by_recipe) => by_recipe.parameters,
        None if sharding.gathers_units() && param.size() < 4 && !as_recorded => Dtype::Float32,
        None => param,
    };
    let iterations = if world > 1 { options.sync_every } else { 1 };
    let round_s = worker.compute_time().seconds() * f64::from(iterations) * f64::from(options.accumulate);
    if iterations > 1 && round_s > LONGEST_ROUND_S {
        return Err(IterationError::about(
            "sync_every",
            format!("{iterations} iterations take {round_s:.0} s, more than {LONGEST_ROUND_S:.0} s"),
        )
        .remedy("{sync_every=100}"));
    }
    // What ranks exchange after several iterations are parameters.
    let legs = legs(trace, &buckets, world, options, if iterations > 1 { param } else { reduce })?;
    let mut builder = Builder {
        options,
        param,
        reduce,
        held,
        accumulated: options.held.map_or(if sharding.gathers_units() { held } else { param }, |it| it.gradients),
        states,
        has_copy: held.size() < 4 && !as_recorded,
        reshard: match options.reshard_after_forward {
            Reshard::Ranks(1) => Reshard::No,
            Reshard::Ranks(ranks) if ranks == shard_ranks => Reshard::Yes,
            other => other,
        },
        batch: u64::from(trace.batch),
        shard: Group { size: shard_ranks, stride: 1 },
        all: Group { size: world, stride: 1 },
        of_experts: of_experts(trace, &cut, options),
        between: Group { size: world / shard_ranks, stride: shard_ranks },
        steps: Vec::new(),
        buffers: Vec::new(),
        computed: None,
        gathered: vec![None; cut.units.len()],
        copied: Vec::new(),
        kept: vec![None; cut.units.len()],
        passing: Vec::new(),
        copied_from: Vec::new(),
        scattered: None,
        scattered_to: Vec::new(),
        gradients: vec![Vec::new(); cut.units.len()],
        parts: vec![Vec::new(); cut.units.len()],
        shards: vec![None; cut.units.len()],
        last_exchange: [None; Stream::ALL.len()],
        unfinished: Vec::new(),
        background: Vec::new(),
        exchange_of: vec![None; cut.units.len()],
        needs: Vec::new(),
        cut: &cut,
        alone: &alone,
        buckets: &buckets,
        legs,
        last_sent: None,
        rounds: iterations > 1,
    };
    let resident = builder.resident();
    let optimizer = worker.optimizer.scaled(builder.share()).0;
    if iterations > 1 {
        builder.alone(u64::from(iterations - 1), optimizer);
    }
    for pass in 0..options.accumulate {
        let activations = builder.forward(pass);
        if pass == 0 && options.accumulated {
            builder.accumulated();
        }
        builder.backward(pass, activations);
    }
    if updating.is_none() {
        builder.optimizer(optimizer);
    }
    if iterations > 1 {
        builder.round(optimizer);
    }
    builder.wait_for_parameters();
    let Builder { steps, buffers, .. } = builder;
    let plan = Plan {
        format: FORMAT.into(),
        version: VERSION,
        trace: trace.name.clone(),
        sharding,
        world,
        shard_ranks,
        samples: u64::from(trace.batch) * u64::from(options.accumulate) * u64::from(iterations),
        passes: options.accumulate,
        iterations,
        units: (0..).zip(&cut.units).map(|(number, unit)| described(number, unit, &cut, &buckets, options)).collect(),
        frozen_elsewhere: cut.frozen_elsewhere,
        buffers,
        resident,
        steps,
        ends_with_compute: updating.is_some(),
        has_activations: worker.activation_bytes().is_some(),
        notes,
    };
    debug_assert_eq!(plan.check(), Ok(()));
    Ok(plan)
}

/// A worker that updates parameters layer by layer, each before its first use.
fn updating(trace: &Trace, worker: &WorkerTrace) -> WorkerTrace {
    let total: u64 = trace.tensors.iter().map(|tensor| tensor.bytes).sum();
    let mut updated = vec![false; trace.tensors.len()];
    let mut worker = worker.clone();
    for layer in &mut worker.forward {
        let mut bytes = 0;
        for &tensor in &layer.tensors {
            if !std::mem::replace(&mut updated[tensor as usize], true) {
                bytes += trace.tensors[tensor as usize].bytes;
            }
        }
        if total > 0 {
            layer.duration += worker.optimizer.scaled(bytes as f64 / total as f64);
        }
    }
    worker
}

fn described(
    number: usize,
    (name, elements): &(String, u64),
    cut: &Cut,
    buckets: &[Bucket],
    options: &IterationOptions,
) -> Unit {
    let bucket = buckets.get(number).filter(|_| options.exchanges.have_servers());
    Unit {
        name: name.clone(),
        elements: *elements,
        frozen: cut.frozen[number],
        pull_only: bucket.is_some_and(|bucket| bucket.pull_only),
        priority: bucket.map(|bucket| bucket.priority),
    }
}

fn check(world: u32, options: &IterationOptions) -> Result<(), IterationError> {
    let wrong = |setting, reason: &str, remedy: String| Err(IterationError::about(setting, reason).remedy(remedy));
    let sharding = options.sharding;
    let idle = |setting, able: [&str; 2]| {
        let reason = format!("needs sharding that gathers or scatters, not {}", sharding.name());
        wrong(setting, &reason, format!("{{sharding={}}} or {}, or drop {{{setting}}}", able[0], able[1]))
    };
    if world == 0 {
        return wrong("workers", "must be at least 1, not 0", "{workers=8}".into());
    }
    if options.accumulate == 0 {
        return wrong("accumulate", "must be at least 1, not 0", "{accumulate=1}".into());
    }
    if !sharding.gathers_units() {
        if options.reshard_after_forward != Reshard::Yes {
            return idle("reshard_after_forward", ["zero3", "hsdp"]);
        }
        if options.unit.is_some() {
            return idle("unit", ["zero3", "hsdp"]);
        }
    }
    if sharding == Sharding::None && options.prefetch.is_some() {
        return idle("prefetch", ["zero1", "zero3"]);
    }
    if options.synchronize.is_some() && options.accumulate == 1 {
        return wrong("accumulate_sync", "needs accumulation", "{accumulate=4}, or drop {accumulate_sync}".into());
    }
    let plain = options.compression.method == Method::None;
    if options.sync_every == 0 {
        return wrong("sync_every", "must be at least 1, not 0", "{sync_every=1}".into());
    }
    if sharding != Sharding::None {
        let setting = if plain { "sync_every" } else { "compression" };
        if !plain || options.sync_every > 1 {
            let reason = format!("needs all-reduces, and {} reduce-scatters in every iteration", sharding.name());
            return wrong(setting, &reason, format!("{{sharding=none}}, or drop {{{setting}}}"));
        }
    }
    if options.exchanges.are_background() && (!plain || options.sync_every > 1) {
        let setting = if plain { "sync_every" } else { "compression" };
        return wrong(setting, "needs exchanges that wait for each other", format!("drop {{{setting}}}"));
    }
    if options.sync_every > 1 && options.synchronize.is_some() {
        return wrong(
            "accumulate_sync",
            "needs gradients to exchange, and sync-every exchanges parameters",
            "drop {accumulate_sync}, or drop {sync_every}".into(),
        );
    }
    if options.reduce_dtype.is_some() && (!plain || options.sync_every > 1) {
        let what = if plain { "and sync-every exchanges parameters" } else { "and compression says what is sent" };
        let reason = format!("needs plain gradients, {what}");
        return wrong("reduce_dtype", &reason, "drop {reduce_dtype}".into());
    }
    if options.group.is_some() && !sharding.has_groups() {
        return wrong(
            "sharding",
            &format!("{} has no groups", sharding.name()),
            "{sharding=hsdp:8}, zero1:8 or zero2:8".into(),
        );
    }
    check_experts(world, options)?;
    let group = options.group.unwrap_or(world);
    if group == 0 || !world.is_multiple_of(group) {
        return wrong(
            "sharding",
            &format!("groups of {group} do not divide {world} data-parallel workers"),
            format!("{{sharding={}:{}}}", sharding.name(), divisor(world, group)),
        );
    }
    if let Reshard::Ranks(ranks) = options.reshard_after_forward
        && (ranks == 0 || !group.is_multiple_of(ranks))
    {
        return wrong(
            "reshard_after_forward",
            &format!("{ranks} must divide the {group} ranks that shard the parameters"),
            format!("{{reshard_after_forward={}}}", divisor(group, ranks)),
        );
    }
    Ok(())
}

/// The largest number up to `wanted` that divides a whole.
fn divisor(whole: u32, wanted: u32) -> u32 {
    (1..=wanted.clamp(1, whole.max(1))).rev().find(|&it| whole.is_multiple_of(it)).unwrap_or(1)
}

/// Whether each unit is of experts that neighboring ranks divide among them.
fn of_experts(trace: &Trace, cut: &Cut, options: &IterationOptions) -> Vec<bool> {
    let mut found = vec![false; cut.units.len()];
    if options.expert_parallel > 1 {
        for (tensor, unit) in trace.tensors.iter().zip(&cut.unit_of) {
            if let Some(unit) = unit.filter(|_| is_of_experts(&tensor.name)) {
                found[unit as usize] = true;
            }
        }
    }
    found
}

fn check_experts(world: u32, options: &IterationOptions) -> Result<(), IterationError> {
    let ways = options.expert_parallel;
    if ways == 1 {
        return Ok(());
    }
    let wrong = |reason: String, remedy: &str| Err(IterationError::about("expert_parallel", reason).remedy(remedy));
    if ways == 0 || !world.is_multiple_of(ways) {
        return wrong(
            format!("{ways} ranks with a part of the experts each do not divide {world} workers"),
            &format!("{{expert_parallel={}}}", divisor(world, ways)),
        );
    }
    if options.sharding == Sharding::Hsdp || options.group.is_some() {
        let reason = format!("is not modeled with {} in groups of ranks", options.sharding.name());
        return wrong(reason, "{sharding=zero3} or zero1");
    }
    if matches!(options.reshard_after_forward, Reshard::Ranks(_)) {
        return wrong("is not modeled with groups that reshard".into(), "{reshard_after_forward=yes} or no");
    }
    if options.compression.method != Method::None || options.sync_every > 1 {
        return wrong(
            "is not modeled with compression or sync-every".into(),
            "drop {expert_parallel}, or drop {compression} and {sync_every}",
        );
    }
    if options.exchanges.have_servers() || options.collective != Collective::AllReduce {
        return wrong("needs all-reduces between ranks".into(), "{strategy=native} or ring");
    }
    Ok(())
}

/// Longer than any training step: times are 64 bits of picoseconds.
const LONGEST_ROUND_S: f64 = 1e6;
/// An outer optimizer with momentum reads the parameters, their copy and its momentum, and writes all three: about as much
/// as the optimizer of the iteration moves. A third of it are the differences, before they are exchanged.
const DIFFERENCES: u64 = 3;

/// How each bucket is exchanged, if nothing is sharded.
fn legs(
    trace: &Trace,
    buckets: &[Bucket],
    world: u32,
    options: &IterationOptions,
    dtype: Dtype,
) -> Result<Vec<Legs>, IterationError> {
    if options.sharding != Sharding::None || (world == 1 && !options.exchanges.have_servers()) {
        return Ok(Vec::new());
    }
    let of_bucket = |bucket: &Bucket| {
        if bucket.pull_only {
            return Ok(Legs::uncompressed(options.collective, bucket.elements, dtype));
        }
        let tensors: Vec<_> = bucket.tensors.iter().map(|&tensor| &trace.tensors[tensor as usize]).collect();
        options.compression.legs(&tensors, trace.dtype, dtype, options.collective, world)
    };
    buckets.iter().map(of_bucket).collect::<Result<_, _>>().map_err(|name| {
        IterationError::about(
            "compression",
            format!("PowerSGD needs the shape of {name}, which trace '{}' does not say", trace.name),
        )
        .remedy("{compression=fp16}, or \"shape\": [rows, columns] of its gradients")
    })
}

struct Builder<'a> {
    options: &'a IterationOptions,
    cut: &'a Cut,
    /// The same for a pass that exchanges no gradients.
    alone: &'a Cut,
    param: Dtype,
    reduce: Dtype,
    /// Element type of a rank's parameters, and with FSDP2 of its shards of gradients: float32 if it computes in 16 bits
    /// (`_fsdp_param.py`, `orig_dtype`), where others have a copy among the optimizer's states.
    held: Dtype,
    /// Element type of gradients as they accumulate, or of their shards.
    accumulated: Dtype,
    /// Bytes of the optimizer's states as they were recorded.
    states: Option<u64>,
    /// Whether they have a copy of the parameters.
    has_copy: bool,
    reshard: Reshard,
    batch: u64,
    shard: Group,
    all: Group,
    between: Group,
    /// Whether a unit is of experts, of which neighboring ranks have a part each.
    of_experts: Vec<bool>,
    steps: Vec<Step>,
    buffers: Vec<Buffer>,
    /// The last step of the compute stream.
    computed: Option<u32>,
    /// Buffer and all-gather of each gathered unit.
    gathered: Vec<Option<(Option<u32>, Option<u32>)>>,
    /// Buffers at the start of the next computation: units, copied out of their gathers or of a rank's own shards, and where a
    /// rank has the whole unit also the copies of gradients.
    copied: Vec<u32>,
    /// Those of them that only that computation has.
    passing: Vec<u32>,
    /// Outputs of all-gathers, which the forward pass keeps until it copies out the next one.
    copied_from: Vec<u32>,
    /// The input of the last reduce-scatter.
    scattered: Option<u32>,
    /// Shards of gradients that exist from the next step on.
    scattered_to: Vec<u32>,
    /// Buffers of a unit that remain after the forward pass, with `Reshard::Ranks`.
    kept: Vec<Option<u32>>,
    /// Buffers of whole gradients, and of shards of gradients.
    gradients: Vec<Vec<u32>>,
    shards: Vec<Option<u32>>,
    /// Gradients of shared parameters to which those of other layers are still to be added, if they are not yet part of what
    /// earlier passes left.
    parts: Vec<Vec<u32>>,
    /// The last exchange of gradients on each stream.
    last_exchange: [Option<u32>; Stream::ALL.len()],
    /// Exchanges that the next pass waits for before it gathers or computes anything.
    unfinished: Vec<u32>,
    /// How each bucket is exchanged, if nothing is sharded.
    legs: Vec<Legs>,
    /// The last exchange of a bucket.
    last_sent: Option<u32>,
    /// Whether parameters are exchanged after several iterations.
    rounds: bool,
    buckets: &'a [Bucket],
    /// The last exchange of each unit, and all that do not wait for each other.
    exchange_of: Vec<Option<u32>>,
    background: Vec<u32>,
    /// The units that each step of the first forward pass needs.
    needs: Vec<(u32, Vec<u32>)>,
}

/// The buffer of each part of the forward pass, which the backward pass frees.
type Activations = Vec<Option<u32>>;

impl Builder<'_> {
    fn buffer(&mut self, kind: BufferKind, bytes: u64, unit: Option<u32>) -> u32 {
        self.buffers.push(Buffer { kind, bytes, unit });
        self.buffers.len() as u32 - 1
    }

    fn step(&mut self, stream: Stream, work: Work, unit: Option<u32>, pass: u32, after: Vec<u32>) -> u32 {
        self.steps.push(Step {
            stream,
            work,
            unit,
            layer: None,
            pass,
            after,
            after_previous: Vec::new(),
            allocates: std::mem::take(&mut self.scattered_to),
            frees: Vec::new(),
        });
        self.steps.len() as u32 - 1
    }

    fn at(&mut self, step: u32) -> &mut Step {
        &mut self.steps[step as usize]
    }

    fn is_pull_only(&self, unit: u32) -> bool {
        self.buckets.get(unit as usize).is_some_and(|bucket| bucket.pull_only)
    }

    /// Elements that are trained.
    fn elements(&self, unit: u32) -> u64 {
        self.cut.units[unit as usize].1
    }

    /// All elements.
    fn parameters(&self, unit: u32) -> u64 {
        self.elements(unit) + self.cut.frozen[unit as usize]
    }

    /// Ranks that have the same parameters of a unit.
    fn all_of(&self, unit: u32) -> Group {
        self.apart(self.all, unit)
    }

    /// Ranks over which a unit is sharded.
    fn shard_of(&self, unit: u32) -> Group {
        if self.shard.size == 1 { self.shard } else { self.apart(self.shard, unit) }
    }

    /// Of a group of all ranks, those that have the same experts.
    fn apart(&self, group: Group, unit: u32) -> Group {
        let ways = self.options.expert_parallel;
        if self.of_experts[unit as usize] { Group { size: group.size / ways, stride: ways } } else { group }
    }

    /// The share of a rank's parameters that it updates.
    fn share(&self) -> f64 {
        if self.options.expert_parallel == 1 {
            return 1.0 / f64::from(self.shard.size);
        }
        let units = 0..self.cut.units.len() as u32;
        let own = |unit: u32| self.elements(unit) as f64 / f64::from(self.shard_of(unit).size);
        units.clone().map(own).sum::<f64>() / units.map(|unit| self.elements(unit)).sum::<u64>().max(1) as f64
    }

    /// Buffers that exist during the whole iteration.
    fn resident(&mut self) -> Vec<u32> {
        let whole: u64 = (0..self.cut.units.len() as u32)
            .filter(|&unit| !self.is_pull_only(unit))
            .map(|unit| self.elements(unit))
            .sum();
        // Every unit is padded to a multiple of the ranks.
        let shards = |of: &dyn Fn(u32) -> u64| -> u64 {
            let units = (0..self.cut.units.len() as u32).filter(|&unit| !self.is_pull_only(unit));
            units.map(|unit| of(unit).div_ceil(u64::from(self.shard_of(unit).size))).sum()
        };
        let part = shards(&|unit| self.elements(unit));
        let elements = if self.options.sharding.gathers_units() {
            shards(&|unit| self.parameters(unit))
        } else {
            whole + self.cut.frozen_elsewhere
        };
        let states = match (self.options.state_bytes, self.states) {
            (Some(each), _) => (part as f64 * each).ceil() as u64,
            // As recorded, with the float32 copy that parameters have which are converted.
            (None, Some(bytes)) => {
                let own = u128::from(bytes) * u128::from(part) / u128::from(whole.max(1));
                u64::try_from(own).unwrap_or(u64::MAX) + if self.has_copy { 4 * part } else { 0 }
            }
            (None, None) => part * self.state_bytes(),
        };
        let mut resident = Vec::new();
        if !self.options.offloads_parameters {
            resident.push(self.buffer(BufferKind::Parameters, elements * self.held.size(), None));
        }
        if states > 0 {
            resident.push(self.buffer(BufferKind::OptimizerStates, states, None));
        }
        if self.has_main_gradients() {
            // They are the buffers of the exchange, too.
            resident.push(self.buffer(BufferKind::Gradients, whole * self.accumulated.size(), None));
        } else if self.options.sharding == Sharding::None && self.all.size > 1 && !self.rounds {
            // DDP's buckets, into which gradients are copied unless they are views of them (`gradient_as_bucket_view`).
            resident.push(self.buffer(BufferKind::Gradients, whole * self.param.size(), None));
        }
        if self.rounds {
            // The parameters at the last exchange, and the momentum of the outer optimizer.
            resident.push(self.buffer(BufferKind::OptimizerStates, 2 * whole * self.param.size(), None));
        }
        if self.all.size > 1 && self.options.compression.method.keeps_errors() {
            resident.push(self.buffer(BufferKind::Gradients, whole * self.reduce.size(), None));
        }
        resident
    }

    /// Bytes of the optimizer's state for each parameter that a rank updates.
    fn state_bytes(&self) -> u64 {
        let optimizer = self.options.optimizer.unwrap_or(Optimizer::Adam);
        self.options.held.map_or_else(|| optimizer.state_bytes(self.held), |held| held.state_bytes(optimizer))
    }

    /// Whether every rank has buffers of all gradients during the whole iteration.
    fn has_main_gradients(&self) -> bool {
        let is_whole = matches!(self.options.sharding, Sharding::None | Sharding::Zero1);
        is_whole && !self.rounds && self.options.held.is_some_and(|held| held.has_main_gradients())
    }

    fn compute(&mut self, work: Work, unit: Option<u32>, pass: u32, after: Vec<u32>) -> u32 {
        let step = self.step(Stream::Compute, work, unit, pass, after);
        let (copied, passing) = (std::mem::take(&mut self.copied), std::mem::take(&mut self.passing));
        self.at(step).allocates.extend(copied);
        self.at(step).frees = passing;
        self.computed = Some(step);
        step
    }

    fn exchange(
        &mut self,
        collective: Collective,
        group: Group,
        elements: u64,
        unit: u32,
        pass: u32,
        after: Vec<u32>,
    ) -> u32 {
        let dtype = if collective == Collective::AllGather { self.param } else { self.reduce };
        self.step(stream_of(collective), Work::Exchange { collective, group, elements, dtype }, Some(unit), pass, after)
    }
}

fn stream_of(collective: Collective) -> Stream {
    match collective {
        Collective::AllGather => Stream::AllGather,
        Collective::ReduceScatter => Stream::ReduceScatter,
        Collective::AllReduce => Stream::AllReduce,
    }
}

/// The last segment of each unit.
fn last_uses(segments: &[Segment], units: usize) -> Vec<Option<usize>> {
    let mut last = vec![None; units];
    for (number, segment) in segments.iter().enumerate() {
        segment.units.iter().for_each(|&unit| last[unit as usize] = Some(number));
    }
    last
}
