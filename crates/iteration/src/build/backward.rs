//! The backward pass of a plan: gradients that become complete, are copied, and leave the rank as they are ready.
use super::{Activations, Builder, last_uses};
use crate::options::{Exchanges, Pull, Reshard, Sharding};
use crate::plan::{BufferKind, Collective, Group, Stream, Work};
use crate::units::Segment;

impl Builder<'_> {
    pub(super) fn backward(&mut self, pass: u32, mut activations: Activations) {
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
            Reshard::Ranks(ranks) if sharded => Some(Group { size: ranks, stride: 1 }),
            _ => None,
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
            _ if !sharded => self.accumulated.size(),
            (param, reduce) if synchronizes => param.min(reduce),
            (_, reduce) => reduce,
        };
        for (number, segment) in cut.backward.iter().enumerate() {
            begins.push(self.computed);
            while let Some((position, gather)) = next.next_if(|(_, gather)| gather.segment == number) {
                let unit = gather.unit;
                let group = group.unwrap_or_else(|| self.shard_of(unit));
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

    /// Gradients of earlier passes, which the first step finds. They have not been exchanged.
    pub(super) fn accumulated(&mut self) {
        let dtype = if self.options.sharding.gathers_units() { self.reduce } else { self.accumulated };
        for unit in 0..self.cut.units.len() as u32 {
            let elements = self.elements(unit);
            if elements == 0 || self.steps.is_empty() || self.has_main_gradients() {
                continue;
            }
            let buffer = self.buffer(BufferKind::Gradients, elements * dtype.size(), Some(unit));
            self.at(0).allocates.push(buffer);
            self.gradients[unit as usize].push(buffer);
        }
    }

    /// Allocates the gradients of a segment, whose elements have `size` bytes, for `step`. Units in `accumulates` have those of
    /// earlier passes, to which they are added. Larger ones are added to as they are; otherwise each is converted first.
    pub(super) fn complete(&mut self, segment: &Segment, step: u32, accumulates: &[bool], size: u64) {
        let param = self.param.size();
        let adds = |unit: u32| accumulates[unit as usize];
        let converts = |unit: u32| size < param || size > param && !adds(unit);
        let own = self.has_main_gradients();
        for &(unit, elements) in segment.begun.iter().filter(|&&(unit, _)| !own && !adds(unit)) {
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

    /// Adds a buffer that exists only during a step.
    pub(super) fn pass_by(&mut self, kind: BufferKind, bytes: u64, unit: Option<u32>, step: u32) {
        if bytes > 0 {
            let buffer = self.buffer(kind, bytes, unit);
            self.at(step).allocates.push(buffer);
            self.at(step).frees.push(buffer);
        }
    }

    /// Exchanges the gradients of a unit, which `step` completes. `idle`: no computation follows before the exchange.
    pub(super) fn reduce(&mut self, unit: u32, pass: u32, step: u32, idle: bool) -> Option<u32> {
        let elements = self.elements(unit);
        if elements == 0 {
            return None;
        }
        let group = self.shard_of(unit);
        if self.options.sharding.gathers_units() && group.size == 1 {
            self.copy_gradients(unit, step, idle);
        }
        if self.all_of(unit).size == 1 && !self.options.exchanges.have_servers() {
            return None;
        }
        if self.options.sharding == Sharding::None {
            return Some(self.send(unit, pass, step, 0));
        }
        let shard = elements.div_ceil(u64::from(group.size));
        let mut sent = step;
        if group.size > 1 {
            sent = self.exchange(Collective::ReduceScatter, group, elements, unit, pass, vec![step]);
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
            if group.size == 1 {
                return Some(summed);
            }
        }
        Some(sent)
    }

    /// Adds FSDP2's buffers for the reduce-scatter `sent` of a unit, whose gradients `step` completes (`foreach_reduce` in
    /// `_fsdp_collectives.py`): its input, into which they are copied; its output; and this rank's shard, which is the output
    /// unless that has another type.
    pub(super) fn scatter_copies(&mut self, unit: u32, step: u32, sent: u32, idle: bool) {
        let ranks = u64::from(self.shard_of(unit).size);
        let shard = self.elements(unit).div_ceil(ranks);
        let input = self.buffer(BufferKind::Communication, shard * ranks * self.reduce.size(), Some(unit));
        self.at(sent).allocates.push(input);
        self.at(sent).frees.push(input);
        // It is kept until those of the next unit are copied (`ReduceScatterState` in `_fsdp_param_group.py`).
        if let Some(before) = self.scattered.replace(input) {
            self.at(step).frees.push(before);
        }
        // What is received, which is added to a shard that exists; if it has another type, it is converted before.
        let (received, own) = (shard * self.reduce.size(), shard * self.accumulated.size());
        let is_new = self.shards[unit as usize].is_none();
        let passing = match (is_new, self.accumulated == self.reduce) {
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
    pub(super) fn copy_gradients(&mut self, unit: u32, step: u32, idle: bool) {
        let elements = self.elements(unit);
        let input = self.buffer(BufferKind::Communication, elements * self.reduce.size(), Some(unit));
        self.copied.push(input);
        self.passing.push(input);
        let is_added = self.shards[unit as usize].is_some();
        if !is_added || idle {
            let own = self.buffer(BufferKind::Gradients, elements * self.accumulated.size(), Some(unit));
            self.copied.push(own);
            if is_added {
                self.passing.push(own);
            } else {
                self.shards[unit as usize] = Some(own);
            }
            if idle && self.accumulated != self.reduce {
                let output = self.buffer(BufferKind::Communication, elements * self.reduce.size(), Some(unit));
                self.copied.push(output);
                self.passing.push(output);
            }
        }
        let whole = std::mem::take(&mut self.gradients[unit as usize]);
        self.at(step).frees.extend(whole);
    }
}
