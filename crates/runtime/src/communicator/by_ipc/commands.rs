//! The commands of an operation, submitted to this rank's stream.
use std::collections::VecDeque;

use paceline_cuda::{Combine, CudaError, Region};
use paceline_executor::in_stream::{Command, Extent, Place};
use paceline_transport::error::{Result, RunError};

use super::plans::{Layout, Plan, padded};
use super::{IpcGroup, IpcOperation, UnderWay, What};

impl IpcGroup {
    /// Submits the commands of an operation.
    pub(super) fn submit(&self, operation: &IpcOperation, under_way: &mut UnderWay) -> Result<()> {
        let mut opened = Vec::new();
        let memory = self.memory(operation, &mut opened);
        let told = memory.and_then(|memory| self.run(operation, &memory, under_way));
        if told.is_err() {
            // Also what was told before an error uses the memory.
            let _ = operation.done.record(&self.lane);
        }
        self.imports.retire(&opened, &operation.done);
        told.map_err(|error| RunError::Failed(format!("rank {}: {error}, in {}", self.shared.rank, operation.label)))?;
        let signals = &operation.plan.stream.signals;
        let (given, taken) = (&mut under_way.given, &mut under_way.taken);
        for ((given, taken), (to, from)) in
            given.iter_mut().zip(taken).zip(signals[self.me as usize].iter().zip(signals))
        {
            *given = given.wrapping_add(*to);
            *taken = taken.wrapping_add(from[self.me as usize]);
        }
        Ok(())
    }

    /// Where the memory of all ranks lies here: by rank, its buffers and its spare memory. Notes what it has `opened`.
    pub(super) fn memory(
        &self,
        operation: &IpcOperation,
        opened: &mut Vec<u64>,
    ) -> std::result::Result<Vec<Vec<u64>>, CudaError> {
        let own: Vec<u64> = operation.what.buffers.iter().map(|buffer| buffer.0).collect();
        let spare = operation.spare.as_ref().map_or(0, |spare| spare.address());
        let mut memory = Vec::with_capacity(self.size as usize);
        for rank in 0..self.size {
            if rank == self.me {
                memory.push(own.iter().copied().chain([spare]).collect());
                continue;
            }
            let mut addresses = Vec::with_capacity(own.len() + 1);
            for number in 0..=own.len() {
                let exported = operation.blocks.exported(rank, number);
                let address = if exported.bytes == 0 { 0 } else { self.imports.open(rank, &exported)? };
                if address != 0 {
                    opened.push(address);
                }
                addresses.push(address);
            }
            memory.push(addresses);
        }
        Ok(memory)
    }

    pub(super) fn run(
        &self,
        operation: &IpcOperation,
        memory: &[Vec<u64>],
        under_way: &UnderWay,
    ) -> std::result::Result<(), CudaError> {
        let (what, plan) = (&operation.what, &*operation.plan);
        let (element, lane) = (what.dtype.size() as u64, &self.lane);
        let reach = Reach { memory, plan, layout: &what.layout, element, size: self.size };
        let own = &memory[self.me as usize];
        let (inputs, outputs) = what.buffers.split_at(what.inputs);
        let spare = own.last().copied().unwrap_or(0);
        let shard = |elements: u64| u64::from(self.me) * elements * element;
        lane.wait_for(&operation.reached)?;
        #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
        let prescaled = what.prescale != 1.0;
        if prescaled {
            for &(address, bytes) in inputs {
                self.combine(what, &[address], &[address], bytes / element, Some(what.prescale))?;
            }
        }
        if plan.in_place {
            self.copy(inputs, outputs, shard(plan.count / u64::from(self.size)))?;
        }
        if plan.aside.is_some() {
            let bytes = inputs.iter().map(|input| input.1).sum();
            self.copy(inputs, &[(spare, bytes)], 0)?;
        }
        let mut given = under_way.given.clone();
        for command in &plan.stream.commands[self.me as usize] {
            match command {
                Command::Wait { rank, signals } => {
                    let least = under_way.taken[*rank as usize].wrapping_add(*signals);
                    let at = self.flags.at(self.signal(*rank, self.me));
                    // SAFETY: the signals are registered as long as the group exists, whose stream this is.
                    unsafe { lane.wait_value(at, least)? };
                }
                Command::Signal { to } => {
                    for &rank in to {
                        let given = &mut given[rank as usize];
                        *given = given.wrapping_add(1);
                        // SAFETY: as above.
                        unsafe { lane.write_value(self.flags.at(self.signal(self.me, rank)), *given)? };
                    }
                }
                Command::Combine { to, from, len, complete } => {
                    let mut done = 0;
                    while done < *len {
                        let mut now = len - done;
                        let mut runs = |extents: &[Extent]| -> Vec<u64> {
                            let run = |at: &Extent| {
                                let (address, elements) = reach.run(Extent { off: at.off + done, ..*at });
                                now = now.min(elements);
                                address
                            };
                            extents.iter().map(run).collect()
                        };
                        let (to, from) = (runs(to), runs(from));
                        self.combine(what, &to, &from, now, what.factor.filter(|_| *complete))?;
                        done += now;
                    }
                }
            }
        }
        if let Some(own) = plan.aside {
            let mut from = spare + shard(own);
            for &(address, bytes) in outputs {
                self.combine(what, &[address], &[from], bytes / element, what.factor)?;
                from += bytes;
            }
        }
        operation.done.record(lane)
    }

    pub(super) fn combine(
        &self,
        what: &What,
        to: &[u64],
        from: &[u64],
        elements: u64,
        factor: Option<f64>,
    ) -> std::result::Result<(), CudaError> {
        let (dtype, op) = (what.dtype, what.op);
        // SAFETY: the memory is that of the operations of all ranks, which keep it until they are over; that nothing else
        // uses it meanwhile is what the commands' waits are for.
        unsafe { self.lane.combine(&Combine { to, from, elements, dtype, op, factor }) }
    }

    /// Copies pieces of memory to others, from byte `into` of all that is written on, as much as both have.
    pub(super) fn copy(&self, from: &[Region], to: &[Region], into: u64) -> std::result::Result<(), CudaError> {
        let mut from: VecDeque<Region> = from.iter().copied().filter(|region| region.1 > 0).collect();
        let mut skip = into;
        let rest = to.iter().filter_map(|&(address, bytes)| {
            let now = skip.min(bytes);
            skip -= now;
            (bytes > now).then_some((address + now, bytes - now))
        });
        let mut to: VecDeque<Region> = rest.collect();
        while let (Some(source), Some(target)) = (from.front_mut(), to.front_mut()) {
            let bytes = source.1.min(target.1);
            // SAFETY: as in `combine`.
            unsafe { self.lane.copy(target.0, source.0, bytes)? };
            *source = (source.0 + bytes, source.1 - bytes);
            *target = (target.0 + bytes, target.1 - bytes);
            if source.1 == 0 {
                from.pop_front();
            }
            if target.1 == 0 {
                to.pop_front();
            }
        }
        Ok(())
    }
}

/// The memory of all ranks during an operation, as it is reached here.
struct Reach<'a> {
    /// By rank: its buffers, and its spare memory.
    memory: &'a [Vec<u64>],
    plan: &'a Plan,
    layout: &'a Layout,
    element: u64,
    size: u32,
}

impl Reach<'_> {
    /// Where an element lies, and how many follow it there.
    pub(super) fn run(&self, Extent { place, off }: Extent) -> (u64, u64) {
        let spare = |rank: u32, at: u64| {
            let base = self.memory[rank as usize].last().copied().unwrap_or(0);
            (base + (at + off) * self.element, u64::MAX)
        };
        match place {
            Place::Spare(rank) => spare(rank, self.plan.spare(rank, self.size).1),
            Place::Role(role) if role >= self.size => {
                let rank = role % self.size;
                let number = u64::from((role - rank) / self.size) - 1;
                spare(rank, self.plan.spare(rank, self.size).0 + number * padded(self.plan.count))
            }
            Place::Role(rank) if self.plan.aside.is_some() => spare(rank, 0),
            Place::Role(rank) => {
                let mut start = 0;
                for &(buffer, elements) in self.layout {
                    if off < start + elements {
                        let inside = off - start;
                        return (self.memory[rank as usize][buffer] + inside * self.element, elements - inside);
                    }
                    start += elements;
                }
                (0, u64::MAX)
            }
        }
    }
}
