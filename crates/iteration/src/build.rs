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
use paceline_model::Trace;
use paceline_model::trace::{Dtype, WorkerTrace};

use crate::compression::{Legs, Method, Sent};
use crate::options::{Exchanges, IterationError, IterationOptions, Pull, Reshard, Sharding};
use crate::plan::{Buffer, BufferKind, Collective, FORMAT, Group, Plan, Step, Stream, Unit, VERSION, Work};
use crate::units::{Bucket, Cut, Segment, buckets, handing_over, into_blocks, into_buckets, ready_order};

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
    let buckets = if sharding.gathers_units() {
        Vec::new()
    } else {
        buckets(trace, options.bucket_size, options.exchanges.have_servers())
    };
    let cut_of = |worker: &WorkerTrace| {
        if sharding.gathers_units() {
            return into_blocks(trace, worker, options.unit.as_deref(), options.bucket_size);
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
    let held = if sharding.gathers_units() && param.size() < 4 { Dtype::Float32 } else { param };
    let iterations = if world > 1 { options.sync_every } else { 1 };
    let round_s = worker.compute_time().seconds() * f64::from(iterations) * f64::from(options.accumulate);
    if iterations > 1 && round_s > LONGEST_ROUND_S {
        return Err(IterationError(format!(
            "sync-every: {iterations} iterations take {round_s:.0} s, longer than the {LONGEST_ROUND_S:.0} s that a \
             round may take; give fewer"
        )));
    }
    // What ranks exchange after several iterations are parameters.
    let legs = legs(trace, &buckets, world, options, if iterations > 1 { param } else { reduce })?;
    let mut builder = Builder {
        options,
        param,
        reduce,
        held,
        reshard: match options.reshard_after_forward {
            Reshard::Ranks(1) => Reshard::No,
            Reshard::Ranks(ranks) if ranks == shard_ranks => Reshard::Yes,
            other => other,
        },
        batch: u64::from(trace.batch),
        shard: Group { size: shard_ranks, stride: 1 },
        all: Group { size: world, stride: 1 },
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
    let optimizer = worker.optimizer.scaled(1.0 / f64::from(shard_ranks)).0;
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
        units: (0..).zip(&cut.units).map(|(number, unit)| described(number, unit, &buckets, options)).collect(),
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

fn described(number: usize, (name, elements): &(String, u64), buckets: &[Bucket], options: &IterationOptions) -> Unit {
    let bucket = buckets.get(number).filter(|_| options.exchanges.have_servers());
    Unit {
        name: name.clone(),
        elements: *elements,
        pull_only: bucket.is_some_and(|bucket| bucket.pull_only),
        priority: bucket.map(|bucket| bucket.priority),
    }
}

fn check(world: u32, options: &IterationOptions) -> Result<(), IterationError> {
    let wrong = |message: String| Err(IterationError(message));
    let sharding = options.sharding;
    let idle = |option: &str, needs: &str| {
        wrong(format!("{option}: has no effect with sharding {}, only with {needs}; leave it out", sharding.name()))
    };
    if world == 0 {
        return wrong("workers: 0 is too few; at least one worker trains".into());
    }
    if options.accumulate == 0 {
        return wrong("accumulate: 0 passes are too few; give 1 or more".into());
    }
    if !sharding.gathers_units() {
        if options.reshard_after_forward != Reshard::Yes {
            return idle("reshard-after-forward", "zero3 and hsdp");
        }
        if options.unit.is_some() {
            return idle("unit", "zero3 and hsdp");
        }
    }
    if sharding == Sharding::None && options.prefetch.is_some() {
        return idle("prefetch", "zero1, zero2, zero3 and hsdp");
    }
    if options.synchronize.is_some() && options.accumulate == 1 {
        return wrong("accumulate-sync: has no effect without accumulation; add --accumulate or leave it out".into());
    }
    let plain = options.compression.method == Method::None;
    if options.sync_every == 0 {
        return wrong("sync-every: 0 iterations are too few; give 1 or more".into());
    }
    if sharding != Sharding::None {
        let what = if plain { "sync-every" } else { "compression" };
        if !plain || options.sync_every > 1 {
            return wrong(format!(
                "{what}: {} reduce-scatters its gradients in every iteration, as they are; use --sharding none, or leave \
                 {what} out",
                sharding.name()
            ));
        }
    }
    if options.exchanges.are_background() && (!plain || options.sync_every > 1) {
        let what = if plain { "sync-every" } else { "compression" };
        return wrong(format!("{what}: needs exchanges that wait for each other; leave it out"));
    }
    if options.sync_every > 1 && options.synchronize.is_some() {
        return wrong(
            "accumulate-sync: has no effect with sync-every, which exchanges no gradients; leave it out".into(),
        );
    }
    if options.reduce_dtype.is_some() && (!plain || options.sync_every > 1) {
        let what =
            if plain { "sync-every, which exchanges parameters" } else { "compression, which says what is sent" };
        return wrong(format!("reduce-dtype: has no effect with {what}; leave it out"));
    }
    if options.group.is_some() && !sharding.has_groups() {
        return wrong(format!("sharding: {} has no groups; use zero1, zero2 or hsdp", sharding.name()));
    }
    let group = options.group.unwrap_or(world);
    if group == 0 || !world.is_multiple_of(group) {
        return wrong(format!(
            "sharding: {}:{group} does not fit {world} workers; the ranks of a group must divide them",
            sharding.name()
        ));
    }
    if let Reshard::Ranks(ranks) = options.reshard_after_forward
        && (ranks == 0 || !group.is_multiple_of(ranks))
    {
        return wrong(format!(
            "reshard-after-forward: groups of {ranks} ranks do not divide the {group} ranks over which parameters are \
             sharded"
        ));
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
        IterationError(format!(
            "compression: trace '{}' does not say the shape of {name}, which decides what PowerSGD sends; record it again, \
             or add \"shape\": [rows, columns] to its gradients",
            trace.name
        ))
    })
}

struct Builder<'a> {
    options: &'a IterationOptions,
    cut: &'a Cut,
    /// The same for a pass that exchanges no gradients.
    alone: &'a Cut,
    param: Dtype,
    reduce: Dtype,
    /// What a rank keeps its parameters in, and with FSDP2 its shards of gradients: that keeps them in float32 if it computes in
    /// 16 bits (`_fsdp_param.py`, `orig_dtype`), where others have a copy among the optimizer's states.
    held: Dtype,
    reshard: Reshard,
    batch: u64,
    shard: Group,
    all: Group,
    between: Group,
    steps: Vec<Step>,
    buffers: Vec<Buffer>,
    /// The last step of the compute stream.
    computed: Option<u32>,
    /// Buffer and all-gather of each gathered unit.
    gathered: Vec<Option<(Option<u32>, Option<u32>)>>,
    /// What the next computation begins with: units, copied out of their gathers or of a rank's own shards, and where a
    /// rank has the whole unit also the copies of gradients.
    copied: Vec<u32>,
    /// What of it only that computation has.
    passing: Vec<u32>,
    /// Outputs of all-gathers, which the forward pass keeps until it copies out the next one.
    copied_from: Vec<u32>,
    /// The input of the last reduce-scatter.
    scattered: Option<u32>,
    /// Shards of gradients that exist from the next step on.
    scattered_to: Vec<u32>,
    /// What is left of a unit after the forward pass, with `Reshard::Ranks`.
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

    fn elements(&self, unit: u32) -> u64 {
        self.cut.units[unit as usize].1
    }

    /// What exists during the whole iteration.
    fn resident(&mut self) -> Vec<u32> {
        let ranks = u64::from(self.shard.size);
        let whole: u64 = (0..self.cut.units.len() as u32)
            .filter(|&unit| !self.is_pull_only(unit))
            .map(|unit| self.elements(unit))
            .sum();
        // Every unit is padded to a multiple of the ranks.
        let part: u64 = (0..self.cut.units.len() as u32)
            .filter(|&unit| !self.is_pull_only(unit))
            .map(|unit| self.elements(unit).div_ceil(ranks))
            .sum();
        let elements = if self.options.sharding.gathers_units() { part } else { whole };
        let parameters = self.buffer(BufferKind::Parameters, elements * self.held.size(), None);
        let states = part * self.options.optimizer.state_bytes(self.held);
        let mut resident = vec![parameters];
        if states > 0 {
            resident.push(self.buffer(BufferKind::OptimizerStates, states, None));
        }
        // DDP's buckets, into which gradients are copied unless they are views of them (`gradient_as_bucket_view`).
        if self.options.sharding == Sharding::None && self.all.size > 1 && !self.rounds {
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

    /// Gathers the units of a pass ahead of the segments that need them.
    fn gather(
        &mut self,
        gathers: &[Gather],
        number: usize,
        begins: &[Option<u32>],
        ahead: u32,
        pass: u32,
        group: Group,
    ) {
        let unit = gathers[number].unit;
        // As far ahead as possible is the beginning of the pass, after the last computation of the one before.
        let from = number.checked_sub(ahead as usize).map_or(0, |from| gathers[from].segment);
        let after = begins[from].into_iter().chain(self.unfinished.iter().copied()).collect();
        let elements = self.elements(unit);
        let (mut buffer, mut step) = (None, None);
        if group.size > 1 && elements > 0 {
            step = Some(self.exchange(Collective::AllGather, group, elements, unit, pass, after));
        }
        if self.options.sharding.gathers_units() && elements > 0 {
            let bytes = elements * self.param.size();
            // Unsharded parameters are copies, out of the all-gather's output or of the only rank's shard, from when the
            // unit computes (`_fsdp_param_group.py`, `wait_for_unshard`).
            let whole = self.buffer(BufferKind::Gathered, bytes, Some(unit));
            self.copied.push(whole);
            buffer = Some(whole);
            if let Some(sent) = step {
                let output = self.buffer(BufferKind::Communication, bytes, Some(unit));
                self.at(sent).allocates.push(output);
                self.copied_from.push(output);
                if self.held != self.param && group.size == self.shard.size {
                    // The rank's shard, converted. What a smaller group gathers has been.
                    let bytes = elements.div_ceil(u64::from(group.size)) * self.param.size();
                    self.pass_by(BufferKind::Communication, bytes, Some(unit), sent);
                }
            }
        }
        self.gathered[unit as usize] = Some((buffer, step));
    }

    /// Frees outputs of all-gathers when the computations until now and the gathers of `units` have ended: then, in the
    /// order of the host, these are copied out.
    fn copy_out(&mut self, outputs: Vec<u32>, units: &[u32]) {
        let before: Vec<u32> = self.awaited(units).into_iter().chain(self.computed).collect();
        for output in outputs {
            before.iter().for_each(|&step| self.steps[step as usize].frees.push(output));
        }
    }

    /// The gathers that segments wait for.
    fn awaited(&self, units: &[u32]) -> Vec<u32> {
        units.iter().filter_map(|&unit| self.gathered[unit as usize].and_then(|(_, step)| step)).collect()
    }

    /// Units that are gathered during a pass, in order.
    fn gathers(&self, segments: &[Segment]) -> Vec<Gather> {
        let mut missing: Vec<bool> = self.gathered.iter().map(Option::is_none).collect();
        let mut gathers = Vec::new();
        for (segment, part) in segments.iter().enumerate() {
            for &unit in &part.units {
                if std::mem::replace(&mut missing[unit as usize], false) {
                    gathers.push(Gather { unit, segment });
                }
            }
        }
        gathers
    }

    fn forward(&mut self, pass: u32) -> Activations {
        let cut = self.cut;
        let sharded = self.options.sharding.gathers_units();
        // With replicated parameters, what was updated is gathered in the first forward pass, if it is at all.
        let gathers = match (sharded, self.options.prefetch) {
            (true, _) => self.gathers(&cut.forward),
            (false, Some(_)) if pass == 0 => self.gathers(&cut.forward),
            _ => Vec::new(),
        };
        let ahead = self.options.prefetch.unwrap_or(1);
        let last_use = last_uses(&cut.forward, cut.units.len());
        let mut next = gathers.iter().enumerate().peekable();
        let mut begins = Vec::with_capacity(cut.forward.len());
        let mut activations = vec![None; cut.forward.len()];
        for (number, segment) in cut.forward.iter().enumerate() {
            begins.push(self.computed);
            let before = std::mem::take(&mut self.copied_from);
            while let Some((position, _)) = next.next_if(|(_, gather)| gather.segment == number) {
                self.gather(&gathers, position, &begins, ahead, pass, self.shard);
            }
            if self.copied_from.is_empty() {
                self.copied_from = before;
            } else {
                // The next copy-out frees them (`AllGatherState` in `_fsdp_param_group.py`).
                self.copy_out(before, &segment.units);
            }
            let mut after = self.awaited(&segment.units);
            after.append(&mut self.unfinished);
            let unit = segment.units.first().copied();
            let step = self.compute(Work::Forward { duration_ps: segment.duration.0 }, unit, pass, after);
            self.at(step).layer.clone_from(&segment.layer);
            if pass == 0 && self.options.exchanges == Exchanges::Servers(Pull::Layer) {
                self.needs.push((step, segment.units.clone()));
            }
            if segment.activation_bytes > 0 {
                let bytes = segment.activation_bytes.saturating_mul(self.batch);
                let buffer = self.buffer(BufferKind::Activations, bytes, unit);
                self.at(step).allocates.push(buffer);
                activations[number] = Some(buffer);
            }
            if sharded {
                for &unit in &segment.units {
                    let ended = last_use[unit as usize] == Some(number) && cut.root != Some(unit);
                    if ended && self.reshard != Reshard::No {
                        self.free_gathered(unit, step, self.reshard);
                    }
                }
            }
        }
        // The root frees the last one (`_post_forward` in `_fsdp_state.py`).
        let left = std::mem::take(&mut self.copied_from);
        self.copy_out(left, &[]);
        activations
    }

    /// Gradients of earlier passes, which the first step finds. They have not been exchanged.
    fn accumulated(&mut self) {
        let dtype = if self.options.sharding.gathers_units() { self.reduce } else { self.param };
        for unit in 0..self.cut.units.len() as u32 {
            let elements = self.elements(unit);
            if elements == 0 || self.steps.is_empty() {
                continue;
            }
            let buffer = self.buffer(BufferKind::Gradients, elements * dtype.size(), Some(unit));
            self.at(0).allocates.push(buffer);
            self.gradients[unit as usize].push(buffer);
        }
    }

    /// Frees a unit when `step` has ended. With `Reshard::Ranks`, a larger shard is left.
    fn free_gathered(&mut self, unit: u32, step: u32, reshard: Reshard) {
        let Some((buffer, _)) = self.gathered[unit as usize].take() else { return };
        if let Some(buffer) = buffer {
            self.at(step).frees.push(buffer);
            if let Reshard::Ranks(ranks) = reshard {
                let bytes = self.elements(unit).div_ceil(u64::from(ranks)) * self.param.size();
                let kept = self.buffer(BufferKind::Gathered, bytes, Some(unit));
                self.at(step).allocates.push(kept);
                self.kept[unit as usize] = Some(kept);
            }
        }
    }

    fn backward(&mut self, pass: u32, mut activations: Activations) {
        let sharding = self.options.sharding;
        let sharded = sharding.gathers_units();
        let after_every = || {
            let by_itself = matches!(sharding, Sharding::Zero2 | Sharding::Zero3 | Sharding::Hsdp);
            self.options.synchronize.unwrap_or(by_itself)
        };
        let synchronizes = !self.rounds && (pass + 1 == self.options.accumulate || after_every());
        let cut = if synchronizes { self.cut } else { self.alone };
        let gathers = if sharded { self.gathers(&cut.backward) } else { Vec::new() };
        let group = match self.reshard {
            Reshard::Ranks(ranks) if sharded => Group { size: ranks, stride: 1 },
            _ => self.shard,
        };
        let last_use = last_uses(&cut.backward, cut.units.len());
        let mut next = gathers.iter().enumerate().peekable();
        let mut begins = Vec::with_capacity(cut.backward.len());
        let mut in_flight: [Option<u32>; 2] = [None, None];
        let mut waiting: Vec<u32> = Vec::new();
        let last = cut.backward.len().saturating_sub(1);
        // Later passes add to the gradients of earlier ones.
        let accumulates: Vec<bool> = self.gradients.iter().map(|whole| !whole.is_empty()).collect();
        // FSDP2 converts gradients to the type of the reduction, unless the copy for the reduce-scatter does
        // (`_set_unsharded_grad_dtypes` in `_fsdp_param_group.py`).
        let size = match (self.param.size(), self.reduce.size()) {
            (param, _) if !sharded => param,
            (param, reduce) if synchronizes => param.min(reduce),
            (_, reduce) => reduce,
        };
        for (number, segment) in cut.backward.iter().enumerate() {
            begins.push(self.computed);
            while let Some((position, gather)) = next.next_if(|(_, gather)| gather.segment == number) {
                let unit = gather.unit;
                self.gather(&gathers, position, &begins, self.options.backward_prefetch, pass, group);
                if let (Some(kept), Some((_, Some(step)))) =
                    (self.kept[unit as usize].take(), self.gathered[unit as usize])
                {
                    self.at(step).frees.push(kept);
                }
            }
            let outputs = std::mem::take(&mut self.copied_from);
            self.copy_out(outputs, &segment.units);
            let mut after = self.awaited(&segment.units);
            // Only one reduce-scatter is in flight while the next unit computes.
            if sharded && self.options.overlap {
                after.extend(in_flight[0].take());
            }
            let unit = segment.units.first().copied();
            let step = self.compute(Work::Backward { duration_ps: segment.duration.0 }, unit, pass, after);
            self.pass_by(BufferKind::Activations, segment.backward_bytes.saturating_mul(self.batch), unit, step);
            self.complete(segment, step, &accumulates, size);
            let is_last = number == last;
            for &unit in &segment.units {
                if last_use[unit as usize] != Some(number) {
                    continue;
                }
                if sharded {
                    self.free_gathered(unit, step, Reshard::Yes);
                }
                if synchronizes {
                    // What servers only distribute waits for no gradient.
                    if self.options.overlap || self.is_pull_only(unit) {
                        if let Some(sent) = self.reduce(unit, pass, step, is_last) {
                            in_flight = [in_flight[1].or(in_flight[0]), Some(sent)];
                        }
                    } else {
                        waiting.push(unit);
                    }
                }
            }
            let passed = segment.undone.iter().filter_map(|&part| activations[part as usize].take());
            self.steps[step as usize].frees.extend(passed);
        }
        if let Some(step) = self.computed {
            for unit in waiting {
                self.reduce(unit, pass, step, true);
            }
            for unit in 0..cut.units.len() as u32 {
                if sharded {
                    self.free_gathered(unit, step, Reshard::Yes);
                }
            }
        }
        self.scattered = None;
        // At the end of a pass, DDP and FSDP2 wait for all of its exchanges (`finalize_backward` in `reducer.cpp` and in
        // `_fsdp_param_group.py`).
        let by_layer = self.options.exchanges == Exchanges::Servers(Pull::Layer);
        if synchronizes && pass + 1 < self.options.accumulate && !by_layer {
            self.unfinished = self.exchanged();
        }
        if !sharded && pass == 0 {
            self.gathered.iter_mut().for_each(|gathered| *gathered = None);
        }
    }

    /// Allocates the gradients of a segment, whose elements have `size` bytes, for `step`. Units in `accumulates` have those of
    /// earlier passes, to which they are added. Larger ones are added to as they are; otherwise each is converted first.
    fn complete(&mut self, segment: &Segment, step: u32, accumulates: &[bool], size: u64) {
        let param = self.param.size();
        let adds = |unit: u32| accumulates[unit as usize];
        let converts = |unit: u32| size < param || size > param && !adds(unit);
        for &(unit, elements) in segment.begun.iter().filter(|&&(unit, _)| !adds(unit)) {
            let buffer = self.buffer(BufferKind::Gradients, elements * size, Some(unit));
            self.at(step).allocates.push(buffer);
            self.gradients[unit as usize].push(buffer);
        }
        let shared = segment.shared.iter().filter(|&&(unit, _)| converts(unit)).map(|&(_, elements)| elements).max();
        let one = if segment.begun.iter().any(|&(unit, _)| adds(unit) || converts(unit)) { segment.largest } else { 0 };
        let passing = one.max(shared.unwrap_or(0)) * param;
        // What is summed exists at another time.
        if passing > 2 * param * segment.summed.iter().map(|(_, elements)| elements).sum::<u64>() {
            self.pass_by(BufferKind::Gradients, passing, segment.units.first().copied(), step);
        }
        for &(unit, elements) in segment.shared.iter().filter(|&&(unit, _)| adds(unit)) {
            let buffer = self.buffer(BufferKind::Gradients, elements * param.min(size), Some(unit));
            self.at(step).allocates.push(buffer);
            self.parts[unit as usize].push(buffer);
        }
        for &(unit, elements) in &segment.summed {
            let parts = std::mem::take(&mut self.parts[unit as usize]);
            self.at(step).frees.extend(parts);
            // The other layer's part, and the sum, which autograd makes in place only of what it has converted.
            let sum = if converts(unit) { size } else { param };
            self.pass_by(BufferKind::Gradients, elements * (param + sum), Some(unit), step);
        }
    }

    /// What exists only during a step.
    fn pass_by(&mut self, kind: BufferKind, bytes: u64, unit: Option<u32>, step: u32) {
        if bytes > 0 {
            let buffer = self.buffer(kind, bytes, unit);
            self.at(step).allocates.push(buffer);
            self.at(step).frees.push(buffer);
        }
    }

    /// Exchanges the gradients of a unit, which `step` completes. `idle`: no computation follows before the exchange.
    fn reduce(&mut self, unit: u32, pass: u32, step: u32, idle: bool) -> Option<u32> {
        let elements = self.elements(unit);
        if elements == 0 {
            return None;
        }
        if self.options.sharding.gathers_units() && self.shard.size == 1 {
            self.copy_gradients(unit, step, idle);
        }
        if self.all.size == 1 && !self.options.exchanges.have_servers() {
            return None;
        }
        if self.options.sharding == Sharding::None {
            return Some(self.send(unit, pass, step, 0));
        }
        let shard = elements.div_ceil(u64::from(self.shard.size));
        let mut sent = step;
        if self.shard.size > 1 {
            sent = self.exchange(Collective::ReduceScatter, self.shard, elements, unit, pass, vec![step]);
            self.last_exchange[Stream::ReduceScatter as usize] = Some(sent);
            match self.options.sharding {
                Sharding::Zero3 | Sharding::Hsdp => self.scatter_copies(unit, step, sent, idle),
                Sharding::Zero2 => {
                    if self.shards[unit as usize].is_none() {
                        let output = self.buffer(BufferKind::Gradients, shard * self.reduce.size(), Some(unit));
                        self.shards[unit as usize] = Some(output);
                        self.at(sent).allocates.push(output);
                    }
                    let whole = std::mem::take(&mut self.gradients[unit as usize]);
                    self.at(sent).frees.extend(whole);
                }
                Sharding::Zero1 | Sharding::None => {}
            }
        }
        if self.between.size > 1 {
            let summed = self.exchange(Collective::AllReduce, self.between, shard, unit, pass, vec![sent]);
            self.last_exchange[Stream::AllReduce as usize] = Some(summed);
            if self.shard.size == 1 {
                return Some(summed);
            }
        }
        Some(sent)
    }

    /// What FSDP2 has for the reduce-scatter `sent` of a unit, whose gradients `step` completes (`foreach_reduce` in
    /// `_fsdp_collectives.py`): its input, into which they are copied; its output; and this rank's shard, which is the output
    /// unless that has another type.
    fn scatter_copies(&mut self, unit: u32, step: u32, sent: u32, idle: bool) {
        let ranks = u64::from(self.shard.size);
        let shard = self.elements(unit).div_ceil(ranks);
        let input = self.buffer(BufferKind::Communication, shard * ranks * self.reduce.size(), Some(unit));
        self.at(sent).allocates.push(input);
        self.at(sent).frees.push(input);
        // It is kept until those of the next unit are copied (`ReduceScatterState` in `_fsdp_param_group.py`).
        if let Some(before) = self.scattered.replace(input) {
            self.at(step).frees.push(before);
        }
        // What is received, which is added to a shard that exists; if it has another type, it is converted before.
        let (received, own) = (shard * self.reduce.size(), shard * self.held.size());
        let is_new = self.shards[unit as usize].is_none();
        let passing = match (is_new, self.held == self.reduce) {
            (true, true) => 0,
            (true, false) | (false, true) => received,
            (false, false) => received + own,
        };
        let mut outputs = Vec::new();
        if is_new {
            let buffer = self.buffer(BufferKind::Gradients, own, Some(unit));
            self.shards[unit as usize] = Some(buffer);
            outputs.push(buffer);
        }
        // A copy is made at the beginning of the exchange, and what is received at its end. Unless computation goes on
        // meanwhile, most exists in one of the two.
        let whole = std::mem::take(&mut self.gradients[unit as usize]);
        let bytes: u64 = whole.iter().map(|&buffer| self.buffers[buffer as usize].bytes).sum();
        if idle && bytes >= passing + if is_new { own } else { 0 } {
            self.scattered_to.extend(outputs);
            self.at(sent).frees.extend(whole);
        } else {
            self.at(sent).allocates.extend(outputs);
            self.at(step).frees.extend(whole);
            self.pass_by(BufferKind::Communication, passing, Some(unit), sent);
        }
    }

    /// Copies the gradients of a unit of which a rank has all, after `step`: FSDP2 does so into the input of a
    /// reduce-scatter, and from there into its output (`foreach_reduce` in `_fsdp_collectives.py`).
    fn copy_gradients(&mut self, unit: u32, step: u32, idle: bool) {
        let elements = self.elements(unit);
        let input = self.buffer(BufferKind::Communication, elements * self.reduce.size(), Some(unit));
        self.copied.push(input);
        self.passing.push(input);
        let is_added = self.shards[unit as usize].is_some();
        if !is_added || idle {
            let own = self.buffer(BufferKind::Gradients, elements * self.held.size(), Some(unit));
            self.copied.push(own);
            if is_added {
                self.passing.push(own);
            } else {
                self.shards[unit as usize] = Some(own);
            }
            if idle && self.held != self.reduce {
                let output = self.buffer(BufferKind::Communication, elements * self.reduce.size(), Some(unit));
                self.copied.push(output);
                self.passing.push(output);
            }
        }
        let whole = std::mem::take(&mut self.gradients[unit as usize]);
        self.at(step).frees.extend(whole);
    }

    /// Exchanges a bucket of replicated parameters after `step`, and after a computation of `more_ps`; the last step.
    fn send(&mut self, unit: u32, pass: u32, step: u32, more_ps: u64) -> u32 {
        let Legs { legs, decompress_ps } = self.legs[unit as usize].clone();
        let mut before = step;
        for (number, leg) in legs.into_iter().enumerate() {
            let duration_ps = leg.duration_ps + if number == 0 { more_ps } else { 0 };
            if duration_ps > 0 {
                let (stream, work) =
                    (if number == 0 { Stream::Compute } else { Stream::Compression }, Work::Compress { duration_ps });
                before = self.step(stream, work, Some(unit), pass, vec![before]);
                if stream == Stream::Compute {
                    self.computed = Some(before);
                } else {
                    self.last_exchange[stream as usize] = Some(before);
                }
            }
            let mut last = before;
            for Sent { collective, elements, dtype } in leg.sent {
                let in_background = self.options.exchanges.are_background();
                let stream = if in_background { Stream::Background } else { stream_of(collective) };
                let work = Work::Exchange { collective, group: self.all, elements, dtype };
                // A process group has one stream of NCCL, whatever the collectives.
                let other = self.last_sent.filter(|&sent| !in_background && self.steps[sent as usize].stream != stream);
                last = self.step(stream, work, Some(unit), pass, [before].into_iter().chain(other).collect());
                self.last_sent = Some(last);
                if in_background {
                    self.background.push(last);
                } else {
                    self.last_exchange[stream as usize] = Some(last);
                }
                self.exchange_of[unit as usize] = Some(last);
            }
            before = last;
        }
        if decompress_ps > 0 {
            let work = Work::Decompress { duration_ps: decompress_ps };
            before = self.step(Stream::Compression, work, Some(unit), pass, vec![before]);
            self.last_exchange[Stream::Compression as usize] = Some(before);
        }
        before
    }

    /// Iterations in which nothing is exchanged, as one of their total length.
    fn alone(&mut self, iterations: u64, optimizer: u64) {
        let passes = iterations * u64::from(self.options.accumulate);
        let total = |segments: &[Segment]| segments.iter().map(|segment| segment.duration.0).sum::<u64>() * passes;
        let (forward, backward) = (total(&self.alone.forward), total(&self.alone.backward));
        self.compute(Work::Forward { duration_ps: forward }, None, 0, Vec::new());
        self.compute(Work::Backward { duration_ps: backward }, None, 0, Vec::new());
        self.compute(Work::Optimizer { duration_ps: optimizer * iterations }, None, 0, Vec::new());
    }

    /// What ranks exchange after several iterations: how their parameters have changed.
    fn round(&mut self, optimizer: u64) {
        let Some(updated) = self.computed else { return };
        self.last_exchange = [None; Stream::ALL.len()];
        self.background.clear();
        let pass = self.options.accumulate - 1;
        let whole: u64 = (0..self.cut.units.len() as u32).map(|unit| self.elements(unit)).sum();
        let differences = optimizer / DIFFERENCES;
        for unit in self.backward_order() {
            let elements = self.elements(unit);
            if elements == 0 {
                continue;
            }
            let own = (differences as f64 * elements as f64 / whole as f64) as u64;
            let first = self.steps.len();
            let last = self.send(unit, pass, self.computed.unwrap_or(updated), own);
            let buffer = self.buffer(BufferKind::Gradients, elements * self.param.size(), Some(unit));
            self.steps[first].allocates.push(buffer);
            self.at(last).frees.push(buffer);
        }
        let after = self.exchanged();
        self.compute(Work::OuterOptimizer { duration_ps: optimizer - differences }, None, pass, after);
    }

    /// What ends last on each stream, and everything in the background.
    fn exchanged(&self) -> Vec<u32> {
        self.last_exchange.iter().flatten().chain(&self.background).copied().collect()
    }

    /// Units in the order in which the backward pass completes them.
    fn backward_order(&self) -> Vec<u32> {
        self.cut.backward.iter().flat_map(|segment| segment.units.iter().copied()).collect()
    }

    /// Layers wait for the parameters that servers have sent back since the iteration before.
    fn wait_for_parameters(&mut self) {
        for (step, units) in std::mem::take(&mut self.needs) {
            let exchanges = units.iter().filter_map(|&unit| self.exchange_of[unit as usize]);
            self.steps[step as usize].after_previous = exchanges.collect();
        }
    }

    fn optimizer(&mut self, duration_ps: u64) {
        let after = self.exchanged();
        let pass = self.options.accumulate - 1;
        let step = self.compute(Work::Optimizer { duration_ps }, None, pass, after);
        let whole = self.gradients.iter_mut().flat_map(std::mem::take);
        let left: Vec<u32> = whole.chain(self.shards.iter_mut().filter_map(Option::take)).collect();
        self.at(step).frees.extend(left);
        if matches!(self.options.sharding, Sharding::Zero1 | Sharding::Zero2)
            && self.options.prefetch.is_none()
            && self.shard.size > 1
        {
            for unit in self.backward_order().into_iter().rev() {
                self.exchange(Collective::AllGather, self.shard, self.elements(unit), unit, pass, vec![step]);
            }
        }
    }
}

fn stream_of(collective: Collective) -> Stream {
    match collective {
        Collective::AllGather => Stream::AllGather,
        Collective::ReduceScatter => Stream::ReduceScatter,
        Collective::AllReduce => Stream::AllReduce,
    }
}

/// A unit that is gathered before a segment.
struct Gather {
    unit: u32,
    segment: usize,
}

/// The last segment of each unit.
fn last_uses(segments: &[Segment], units: usize) -> Vec<Option<usize>> {
    let mut last = vec![None; units];
    for (number, segment) in segments.iter().enumerate() {
        segment.units.iter().for_each(|&unit| last[unit as usize] = Some(number));
    }
    last
}
