//! Exchanges of whole buckets, rounds of several iterations, and the optimizer's step.
use std::collections::HashMap;

use super::{Builder, DIFFERENCES, stream_of};
use crate::compression::{Legs, Sent};
use crate::options::Sharding;
use crate::plan::{BufferKind, Collective, Stream, Work};
use crate::units::Segment;

impl Builder<'_> {
    /// Exchanges a bucket of replicated parameters after `step`, and after a computation of `more_ps`; the last step.
    pub(super) fn send(&mut self, unit: u32, pass: u32, step: u32, more_ps: u64) -> u32 {
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
                let work = Work::Exchange { collective, group: self.all_of(unit), elements, dtype };
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
    pub(super) fn alone(&mut self, iterations: u64, optimizer: u64) {
        let passes = iterations * u64::from(self.options.accumulate);
        let total = |segments: &[Segment]| segments.iter().map(|segment| segment.duration.0).sum::<u64>() * passes;
        let (forward, backward) = (total(&self.alone.forward), total(&self.alone.backward));
        self.compute(Work::Forward { duration_ps: forward }, None, 0, Vec::new());
        self.compute(Work::Backward { duration_ps: backward }, None, 0, Vec::new());
        self.compute(Work::Optimizer { duration_ps: optimizer * iterations }, None, 0, Vec::new());
    }

    /// Exchanges the change of parameters over several iterations.
    pub(super) fn round(&mut self, optimizer: u64) {
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

    pub(super) fn optimizer(&mut self, duration_ps: u64) {
        let after = self.exchanged();
        let pass = self.options.accumulate - 1;
        let step = self.compute(Work::Optimizer { duration_ps }, None, pass, after);
        let whole = self.gradients.iter_mut().flat_map(std::mem::take);
        let left: Vec<u32> = whole.chain(self.shards.iter_mut().filter_map(Option::take)).collect();
        if self.options.releases_gradients {
            self.release(&left);
        } else {
            self.at(step).frees.extend(left);
        }
        let bytes = self.temporaries();
        self.pass_by(BufferKind::OptimizerStates, bytes, None, step);
        if matches!(self.options.sharding, Sharding::Zero1 | Sharding::Zero2)
            && self.options.prefetch.is_none()
            && self.shard.size > 1
        {
            for unit in self.backward_order().into_iter().rev() {
                let group = self.shard_of(unit);
                if group.size > 1 {
                    self.exchange(Collective::AllGather, group, self.elements(unit), unit, pass, vec![step]);
                }
            }
        }
    }

    /// Lets gradients go after the exchange of their unit; without one, after the step that allocates them.
    fn release(&mut self, gradients: &[u32]) {
        let allocated: HashMap<u32, usize> = (0..self.steps.len())
            .flat_map(|step| self.steps[step].allocates.iter().map(move |&buffer| (buffer, step)))
            .collect();
        for &gradient in gradients {
            let exchange = self.buffers[gradient as usize].unit.and_then(|unit| self.exchange_of[unit as usize]);
            if let Some(step) = exchange.map(|it| it as usize).or_else(|| allocated.get(&gradient).copied()) {
                self.steps[step].frees.push(gradient);
            }
        }
    }

    /// Bytes that only the optimizer's step needs, of the parameters that a rank updates.
    fn temporaries(&self) -> u64 {
        let (all, one) = self.options.held.map_or((0, 0), |held| held.temporaries);
        let whole: u64 = (0..self.cut.units.len() as u32).map(|unit| self.elements(unit)).sum();
        let largest = self.cut.backward.iter().map(|segment| segment.largest).max().unwrap_or(0);
        (self.share() * (whole * all + largest * one + self.options.update_bytes) as f64).ceil() as u64
    }

    /// The last step of each stream, and everything in the background.
    pub(super) fn exchanged(&self) -> Vec<u32> {
        self.last_exchange.iter().flatten().chain(&self.background).copied().collect()
    }

    /// Units in the order in which the backward pass completes them.
    pub(super) fn backward_order(&self) -> Vec<u32> {
        self.cut.backward.iter().flat_map(|segment| segment.units.iter().copied()).collect()
    }

    /// Layers wait for the parameters that servers have sent back since the iteration before.
    pub(super) fn wait_for_parameters(&mut self) {
        for (step, units) in std::mem::take(&mut self.needs) {
            let exchanges = units.iter().filter_map(|&unit| self.exchange_of[unit as usize]);
            self.steps[step as usize].after_previous = exchanges.collect();
        }
    }
}
