//! The library's own all-reduce (`MPI_Iallreduce`), on a communicator for each group of ranks; and more collectives on the
//! memory of devices, whose addresses the library is given as they are.
//!
//! It uses the caller's memory if that is contiguous, otherwise a copy. The 16-bit types, which some libraries lack,
//! are widened to float32, reduced, and rounded once; bytes are widened to int32, and wrap as they do elsewhere.
#![allow(unsafe_code, reason = "MPI is given the caller's memory; `abandon` says who may release it and when")]
use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use half::{bf16, f16};

use super::abi::Handle;
use super::calls::Mpi;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_transport::header::Collective;
use paceline_transport::offload::{DeviceCall, OffloadTicket};
use paceline_transport::space::Space;

/// MPI counts elements in an `int`; a larger buffer takes several calls, in the same order on all ranks.
const MOST_ELEMENTS: usize = 1 << 30;
/// Every library accepts tags of `MPI_Comm_create_group` up to this (MPI 5.0, 9.1.2).
const TAGS: u32 = 32_767;

/// A collective was abandoned in flight: from then on this process must not call MPI again.
static ABANDONED: AtomicBool = AtomicBool::new(false);

/// Whether MPI must not be called any more.
pub(super) fn abandoned() -> bool {
    ABANDONED.load(Ordering::SeqCst)
}

/// Memory in which MPI reduces.
enum Buffer {
    /// In the caller's memory.
    Callers,
    Copy(Vec<u8>),
    Floats(Vec<f32>),
    Ints(Vec<i32>),
}

struct Running {
    requests: Vec<Handle>,
    /// Why not all of its calls were made.
    failed: Option<String>,
    buffer: Buffer,
    dtype: Dtype,
}

/// Communicator of a group.
struct Communicators {
    own: Handle,
    /// Preallocated for later groups of the same ranks, which can then be created without waiting for each other.
    duplicates: VecDeque<Handle>,
}

pub(super) struct Collectives {
    mpi: Arc<Mpi>,
    groups: HashMap<u32, Communicators>,
    running: HashMap<u64, Running>,
    next: u64,
}

impl Collectives {
    pub fn new(mpi: &Arc<Mpi>) -> Collectives {
        Collectives { mpi: mpi.clone(), groups: HashMap::new(), running: HashMap::new(), next: 0 }
    }

    pub fn join(&mut self, all: Handle, group: u32, ranks: &[u32], duplicates: usize) -> Result<(), String> {
        let own = self.mpi.create(all, ranks, (group % TAGS) as c_int)?;
        let duplicates = (0..duplicates).map(|_| self.mpi.duplicate(own)).collect::<Result<_, _>>()?;
        self.groups.insert(group, Communicators { own, duplicates });
        Ok(())
    }

    pub fn inherit(&mut self, from: u32, to: u32) {
        if let Some(own) = self.groups.get_mut(&from).and_then(|group| group.duplicates.pop_front()) {
            self.groups.insert(to, Communicators { own, duplicates: VecDeque::new() });
        }
    }

    /// Frees a group's communicators: libraries support only a few thousand at a time.
    pub fn part(&mut self, group: u32) {
        if let Some(group) = self.groups.remove(&group)
            && !abandoned()
        {
            self.free(group);
        }
    }

    fn free(&self, group: Communicators) {
        group.duplicates.into_iter().chain([group.own]).for_each(|comm| self.mpi.free(comm));
    }

    fn communicator(&self, group: u32) -> Result<Handle, String> {
        self.groups.get(&group).map(|group| group.own).ok_or_else(|| {
            "strategy native: this group has no MPI communicator; set the strategy for the whole job \
             (PACELINE_STRATEGY=native)"
                .into()
        })
    }

    pub fn begin(&mut self, group: u32, kind: (Dtype, ReduceOp), space: &mut Space) -> Result<OffloadTicket, String> {
        let comm = self.communicator(group)?;
        let ((own, op), elements) = (self.mpi.arithmetic(kind.0, kind.1), space.len() as usize);
        let mut buffer = choose_buffer(space, kind.0, own.is_some());
        let (address, element) = match &mut buffer {
            Buffer::Callers => (space.run(0, elements as u64).as_mut_ptr(), kind.0.size()),
            Buffer::Copy(copy) => (copy.as_mut_ptr(), kind.0.size()),
            Buffer::Floats(wide) => (wide.as_mut_ptr().cast(), size_of::<f32>()),
            Buffer::Ints(wide) => (wide.as_mut_ptr().cast(), size_of::<i32>()),
        };
        let wide = if kind.0 == Dtype::Uint8 { Dtype::Int32 } else { Dtype::Float32 };
        let dtype = own.or(self.mpi.arithmetic(wide, kind.1).0).unwrap_or(Handle::NOTHING);
        // SAFETY: within the memory. `running` holds the copy and the operation the caller's memory until the request
        // completes, or `abandon` ensures that MPI is never called again.
        let calls = cut(address, elements, element)
            .map(|(at, count)| unsafe { self.mpi.all_reduce(at, count, (dtype, op), comm) });
        let (requests, failed) = take(calls);
        self.run(Running { requests, failed, buffer, dtype: kind.0 })
    }

    /// Begins a collective on the memory of a device.
    pub fn begin_on_device(&mut self, group: u32, call: &DeviceCall) -> Result<OffloadTicket, String> {
        let (comm, mpi) = (self.communicator(group)?, &self.mpi);
        let (dtype, op) = mpi.arithmetic(call.dtype, call.op);
        let kind = dtype.map(|dtype| (dtype, op));
        let kind = || kind.ok_or_else(|| format!("MPI has no {} for {}", call.collective.name(), call.dtype.name()));
        let size = call.dtype.size();
        // The library may look for a context when it is called first, and whenever it is called again.
        (call.enter)()?;
        let elements = call.inputs.iter().flat_map(|&(address, count)| cut(address as *mut u8, count as usize, size));
        let bytes = call.inputs.iter().flat_map(|&(address, count)| cut(address as *mut u8, count as usize * size, 1));
        let one =
            |memory: &[(usize, u64)]| memory.first().map_or((0, 0), |&(address, count)| (address, count as usize));
        let ((from, given), (to, taken)) = (one(&call.inputs), one(&call.outputs));
        let pair = (from as *const u8, to as *mut u8);
        // SAFETY: the caller of the operation has promised the device's memory, which the operation holds until the
        // requests have completed; if it is given up before, it is never freed.
        let (requests, failed) = unsafe {
            match call.collective {
                Collective::AllReduce => {
                    let kind = kind()?;
                    take(elements.map(|(at, count)| mpi.all_reduce(at, count, kind, comm)))
                }
                Collective::Reduce => {
                    let (kind, root) = (kind()?, (call.root, call.root == call.me));
                    take(elements.map(|(at, count)| mpi.reduce(at, count, kind, root, comm)))
                }
                Collective::Broadcast => take(bytes.map(|(at, count)| mpi.broadcast(at, count, call.root, comm))),
                Collective::AllGather => take([mpi.all_gather(pair, given * size, comm)]),
                Collective::ReduceScatter => take([mpi.reduce_scatter(pair, taken, kind()?, comm)]),
                other => return Err(format!("{} does not run on the memory of devices", other.name())),
            }
        };
        self.run(Running { requests, failed, buffer: Buffer::Callers, dtype: call.dtype })
    }

    /// Keeps what MPI may be working on. Where no call was made, nothing is.
    fn run(&mut self, running: Running) -> Result<OffloadTicket, String> {
        if let (Some(why), []) = (&running.failed, &running.requests[..]) {
            return Err(why.clone());
        }
        self.next += 1;
        self.running.insert(self.next, running);
        Ok(OffloadTicket(self.next))
    }

    pub fn over(&mut self, ticket: &OffloadTicket, space: &mut Space) -> Result<bool, String> {
        let Some(running) = self.running.get_mut(&ticket.0) else { return Ok(true) };
        if let Some(why) = &running.failed {
            return Err(why.clone());
        }
        for request in &mut running.requests {
            if *request != self.mpi.none() && !self.mpi.test(request)? {
                return Ok(false);
            }
        }
        if let Some(Running { buffer, dtype, .. }) = self.running.remove(&ticket.0) {
            copy_back(buffer, dtype, space);
        }
        Ok(true)
    }

    /// MPI cannot cancel a collective operation, and may continue it in any later call.
    pub fn abandon(&mut self, ticket: &OffloadTicket) {
        if let Some(running) = self.running.remove(&ticket.0) {
            ABANDONED.store(true, Ordering::SeqCst);
            std::mem::forget(running.buffer);
        }
    }

    pub fn close(mut self) {
        for group in std::mem::take(&mut self.groups).into_values() {
            self.free(group);
        }
    }
}

/// Memory in pieces that MPI can count: address and elements of each.
fn cut(address: *mut u8, elements: usize, element: usize) -> impl Iterator<Item = (*mut u8, usize)> {
    let pieces = (0..elements).step_by(MOST_ELEMENTS);
    pieces.map(move |from| (address.wrapping_add(from * element), MOST_ELEMENTS.min(elements - from)))
}

/// The requests of calls, up to the first that fails.
fn take(calls: impl IntoIterator<Item = Result<Handle, String>>) -> (Vec<Handle>, Option<String>) {
    let mut requests = Vec::with_capacity(1);
    for call in calls {
        match call {
            Ok(request) => requests.push(request),
            Err(why) => return (requests, Some(why)),
        }
    }
    (requests, None)
}

/// The memory to reduce in: the caller's if it is one run of whole elements of a type that MPI has.
fn choose_buffer(space: &mut Space, dtype: Dtype, known: bool) -> Buffer {
    let elements = space.len();
    if !known && dtype == Dtype::Uint8 {
        let mut wide = Vec::with_capacity(elements as usize);
        space.for_each(|run| wide.extend(run.iter().map(|&byte| i32::from(byte))));
        return Buffer::Ints(wide);
    }
    if !known {
        let mut wide = Vec::with_capacity(elements as usize);
        space.for_each(|run| wide.extend(run.as_chunks().0.iter().map(|&bytes| widen(dtype, bytes))));
        return Buffer::Floats(wide);
    }
    let first = space.run(0, elements);
    let whole = first.len() as u64 == elements * dtype.size() as u64;
    if whole && first.as_ptr().addr().is_multiple_of(dtype.size()) {
        return Buffer::Callers;
    }
    let mut copy = Vec::with_capacity(elements as usize * dtype.size());
    space.for_each(|run| copy.extend_from_slice(run));
    Buffer::Copy(copy)
}

fn copy_back(buffer: Buffer, dtype: Dtype, space: &mut Space) {
    let copy = match buffer {
        Buffer::Callers => return,
        Buffer::Copy(copy) => copy,
        Buffer::Ints(wide) => wide.iter().map(|&value| value as u8).collect(),
        Buffer::Floats(wide) => wide.iter().flat_map(|&value| narrow(dtype, value)).collect(),
    };
    space.zip(0, &copy, <[u8]>::copy_from_slice);
}

fn widen(dtype: Dtype, bytes: [u8; 2]) -> f32 {
    if dtype == Dtype::Bfloat16 { bf16::from_ne_bytes(bytes).to_f32() } else { f16::from_ne_bytes(bytes).to_f32() }
}

fn narrow(dtype: Dtype, value: f32) -> [u8; 2] {
    if dtype == Dtype::Bfloat16 { bf16::from_f32(value).to_ne_bytes() } else { f16::from_f32(value).to_ne_bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(element: usize, runs: &mut [Vec<u8>]) -> Space {
        let mut space = Space::new(element);
        for run in runs {
            // SAFETY: the test keeps the runs alive as long as the space.
            unsafe { space.push(run.as_mut_ptr(), (run.len() / element) as u64) };
        }
        space
    }

    #[test]
    fn several_runs_are_copied_and_come_back() {
        let mut runs = [vec![1u8, 2, 3, 4, 5, 6, 7, 8], vec![9, 10, 11, 12]];
        let mut all = space(4, &mut runs);
        let Buffer::Copy(mut copy) = choose_buffer(&mut all, Dtype::Int32, true) else { panic!("a copy") };
        assert_eq!(copy, (1..=12).collect::<Vec<u8>>());
        copy.iter_mut().for_each(|byte| *byte *= 2);
        copy_back(Buffer::Copy(copy), Dtype::Int32, &mut all);
        assert_eq!(runs, [(1..=8).map(|byte| 2 * byte).collect::<Vec<u8>>(), vec![18, 20, 22, 24]]);
    }

    #[test]
    fn bytes_are_widened_and_wrap() {
        let mut runs = [vec![200u8, 7]];
        let mut all = space(1, &mut runs);
        let Buffer::Ints(wide) = choose_buffer(&mut all, Dtype::Uint8, false) else { panic!("ints") };
        copy_back(Buffer::Ints(wide.iter().map(|value| value * 3).collect()), Dtype::Uint8, &mut all);
        assert_eq!(runs, [vec![(600 - 512) as u8, 21]]);
    }

    #[test]
    fn narrow_types_are_widened_and_rounded_once() {
        for dtype in [Dtype::Float16, Dtype::Bfloat16] {
            let mut runs = [[1.5f32, -2.0, 0.25].iter().flat_map(|&value| narrow(dtype, value)).collect()];
            let mut all = space(2, &mut runs);
            let Buffer::Floats(wide) = choose_buffer(&mut all, dtype, false) else { panic!("wide") };
            assert_eq!(wide, [1.5, -2.0, 0.25]);
            copy_back(Buffer::Floats(wide.iter().map(|value| value + 1.0).collect()), dtype, &mut all);
            let back: Vec<f32> = runs[0].as_chunks().0.iter().map(|&bytes| widen(dtype, bytes)).collect();
            assert_eq!(back, [2.5, -1.0, 1.25]);
        }
    }
}
