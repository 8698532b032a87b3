//! The forward pass of a plan: what is gathered ahead of it, copied out, kept and let go.
use super::{Activations, Builder, last_uses};
use crate::options::{Exchanges, Pull, Reshard};
use crate::plan::{BufferKind, Collective, Group, Work};
use crate::units::Segment;

impl Builder<'_> {
    pub(super) fn forward(&mut self, pass: u32) -> Activations {
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
            while let Some((position, gather)) = next.next_if(|(_, gather)| gather.segment == number) {
                let group = self.shard_of(gather.unit);
                self.gather(&gathers, position, &begins, ahead, pass, group);
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

    /// Units that are gathered during a pass, in order.
    pub(super) fn gathers(&self, segments: &[Segment]) -> Vec<Gather> {
        let mut missing: Vec<bool> = self.gathered.iter().map(Option::is_none).collect();
        let mut gathers: Vec<Gather> = Vec::new();
        for (segment, part) in segments.iter().enumerate() {
            for &unit in &part.units {
                if std::mem::replace(&mut missing[unit as usize], false) {
                    let block = match gathers.last() {
                        Some(before) => {
                            let same = self.cut.block_of[before.unit as usize] == self.cut.block_of[unit as usize];
                            before.block + usize::from(!same)
                        }
                        None => 0,
                    };
                    gathers.push(Gather { unit, segment, block });
                }
            }
        }
        gathers
    }

    /// Gathers the units of a pass ahead of the segments that need them.
    pub(super) fn gather(
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
        // Experts are gathered with their block.
        let from = gathers[number]
            .block
            .checked_sub(ahead as usize)
            .map_or(0, |from| gathers.iter().find(|gather| gather.block == from).map_or(0, |gather| gather.segment));
        let after = begins[from].into_iter().chain(self.unfinished.iter().copied()).collect();
        let elements = self.parameters(unit);
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
                if self.held != self.param && group.size == self.shard_of(unit).size {
                    // The rank's shard, converted. What a smaller group gathers has been.
                    let bytes = elements.div_ceil(u64::from(group.size)) * self.param.size();
                    self.pass_by(BufferKind::Communication, bytes, Some(unit), sent);
                }
            }
        }
        self.gathered[unit as usize] = Some((buffer, step));
    }

    /// The gathers that segments wait for.
    pub(super) fn awaited(&self, units: &[u32]) -> Vec<u32> {
        units.iter().filter_map(|&unit| self.gathered[unit as usize].and_then(|(_, step)| step)).collect()
    }

    /// Frees outputs of all-gathers when the computations until now and the gathers of `units` have ended: then, in the
    /// order of the host, these are copied out.
    pub(super) fn copy_out(&mut self, outputs: Vec<u32>, units: &[u32]) {
        let before: Vec<u32> = self.awaited(units).into_iter().chain(self.computed).collect();
        for output in outputs {
            before.iter().for_each(|&step| self.steps[step as usize].frees.push(output));
        }
    }

    /// Frees a unit when `step` has ended. With `Reshard::Ranks`, a larger shard is left.
    pub(super) fn free_gathered(&mut self, unit: u32, step: u32, reshard: Reshard) {
        let Some((buffer, _)) = self.gathered[unit as usize].take() else { return };
        if let Some(buffer) = buffer {
            self.at(step).frees.push(buffer);
            if let Reshard::Ranks(ranks) = reshard {
                let bytes = self.parameters(unit).div_ceil(u64::from(ranks)) * self.param.size();
                let kept = self.buffer(BufferKind::Gathered, bytes, Some(unit));
                self.at(step).allocates.push(kept);
                self.kept[unit as usize] = Some(kept);
            }
        }
    }
}

/// A unit that is gathered before a segment.
pub(super) struct Gather {
    pub(super) unit: u32,
    pub(super) segment: usize,
    /// How many blocks are gathered before its own.
    pub(super) block: usize,
}
