//! Plans of exchanges in other ranks' memory: programs of strategies, or direct exchanges, compiled to commands of streams.
use paceline_executor::in_stream::{InStream, in_stream};
use paceline_executor::program::{
    Broadcast, DirectAllGather, DirectAllReduce, DirectReduceScatter, Program, Reduce, Scheduled,
};
use paceline_os::sync::Arc;
use paceline_schedule::{Bucket, Piece};
use paceline_transport::error::Result;
use paceline_transport::header::Collective;

use super::IpcGroup;
use crate::communicator::{CollectiveRequest, Communicator, Memory};

/// Parts of a direct all-reduce begin at multiples of so many bytes: kernels move 16 at once.
const ALIGN: u64 = 256;
/// A broadcast is passed on in pieces of so many bytes.
const PASSED: u64 = 8 << 20;
/// Most lanes times roles of a program that is run this way.
const MOST_STEPS: u64 = 1 << 14;
/// Compiled programs that are kept.
const PLANS: usize = 256;

/// Key of the commands, besides the group.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct PlanKey {
    collective: Collective,
    /// Of the strategy, or 0.
    digest: u32,
    element: usize,
    root: u32,
    count: u64,
    scaled: bool,
}

/// A program of a collective, compiled.
pub(in super::super) struct Plan {
    pub(super) stream: InStream,
    /// Roles beyond the ranks, each with memory for so many elements.
    pub(super) helpers: u32,
    pub(super) count: u64,
    /// Elements of a shard, for a reduce-scatter by a strategy: it works in spare memory.
    pub(super) aside: Option<u64>,
    /// An all-gather by a strategy expects a rank's shard in its place among the results.
    pub(super) in_place: bool,
}

impl Plan {
    /// Where in a rank's spare memory its helper roles begin, where that of the program does, and where it ends, in elements.
    pub(super) fn spare(&self, rank: u32, size: u32) -> (u64, u64, u64) {
        let aside = if self.aside.is_some() { padded(self.count) } else { 0 };
        let helpers = (size..size + self.helpers).filter(|role| role % size == rank).count() as u64;
        let of_program = aside + helpers * padded(self.count);
        (aside, of_program, of_program + self.stream.spare[rank as usize])
    }
}

/// Pieces of spare memory begin where kernels are fast.
pub(super) fn padded(elements: u64) -> u64 {
    elements.next_multiple_of(ALIGN)
}

/// Which pieces of memory make up a rank's part of the program, in order: number of the buffer and elements.
pub(super) type Layout = Vec<(usize, u64)>;

impl Communicator {
    /// The strategy that the caller or the job has named for a collective; `None`: the direct exchange.
    pub(super) fn algorithm_of_device(
        &self,
        request: &CollectiveRequest<'_>,
    ) -> Result<Option<Arc<crate::selection::BuiltAlgorithm>>> {
        let named = request.strategy.is_some() || self.shared.settings.strategy.is_some();
        if named { self.algorithm_for(request) } else { Ok(None) }
    }

    /// The commands of a collective, with a digest of the strategy; `None`: there are too many.
    ///
    /// # Errors
    /// The caller's mistake.
    pub(in super::super) fn ipc_plan(
        &self,
        group: &IpcGroup,
        request: &CollectiveRequest<'_>,
    ) -> Result<Option<(Arc<Plan>, u32)>> {
        let count = request.count(group.size)?;
        let built = self.algorithm_of_device(request)?;
        let element = request.dtype.size();
        let digest = built.as_ref().map_or(0, |built| built.digest);
        #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
        let scaled = request.postscale != 1.0;
        let root = if request.collective.rooted() { request.root } else { 0 };
        let key = PlanKey { collective: request.collective, digest, element, root, count, scaled };
        let mut plans = group.plans.lock();
        if let Some(plan) = plans.get(&key) {
            return Ok(Some((plan.clone(), digest)));
        }
        let (size, of_bytes) = (group.size, |bytes: u64| (bytes / element as u64).max(1));
        let shard = count / u64::from(size);
        let whole = Piece { off: 0, len: count };
        let (mut roles, mut end, mut aside, mut in_place) = (size, None, None, false);
        let program: Box<dyn Program> = match (crate::communicator::lowering::of_strategies(request), built) {
            (Some(_), Some(built)) if built.algorithm.is_offloaded() => return Ok(None),
            (Some(collective), Some(built)) => {
                let schedule = built.schedule(collective, &self.topology, element)?;
                roles = schedule.roles().total();
                match collective {
                    paceline_schedule::Collective::AllReduce => {}
                    paceline_schedule::Collective::AllGather => in_place = true,
                    paceline_schedule::Collective::ReduceScatter => aside = Some(shard),
                }
                Box::new(Scheduled { schedule, bucket: Bucket { id: 0, len: count, pull_only: false } })
            }
            _ => match request.collective {
                Collective::AllReduce => {
                    let owners = (0..size).filter(|&rank| group.by[rank as usize] == rank).collect();
                    let align = of_bytes(ALIGN);
                    Box::new(DirectAllReduce { size, owners, len: count, align })
                }
                Collective::AllGather => Box::new(DirectAllGather { size, shard }),
                Collective::ReduceScatter => Box::new(DirectReduceScatter { size, shard }),
                Collective::Reduce => {
                    end = Some((root, whole));
                    Box::new(Reduce { size, root, len: count, chunk: count.max(1) })
                }
                _ => Box::new(Broadcast { size, root, len: count, chunk: of_bytes(PASSED) }),
            },
        };
        if u64::from(program.lanes()) * u64::from(roles) > MOST_STEPS {
            return Ok(None);
        }
        let of_rank = |rank: u32| {
            let (at, piece) = end.filter(|_| scaled)?;
            (at == rank).then_some(piece)
        };
        let Some(stream) = in_stream(&*program, (roles, size), &group.by, of_rank) else { return Ok(None) };
        let plan = Arc::new(Plan { stream, helpers: roles - size, count, aside, in_place });
        if plans.len() == PLANS {
            plans.clear();
        }
        plans.insert(key, plan.clone());
        Ok(Some((plan, digest)))
    }
}

/// The buffers of a rank as its program counts their elements.
pub(super) fn layout(request: &CollectiveRequest<'_>, aside: bool) -> Layout {
    let lengths = |memory: &[Memory], first: usize| -> Layout {
        (first..).zip(memory).map(|(number, &(_, elements))| (number, elements)).collect()
    };
    let inputs = lengths(request.inputs, 0);
    let outputs = lengths(request.outputs, request.inputs.len());
    match request.collective {
        Collective::AllGather => outputs.into_iter().chain(inputs).collect(),
        Collective::ReduceScatter if aside => Vec::new(),
        Collective::ReduceScatter => inputs.into_iter().chain(outputs).collect(),
        _ => inputs,
    }
}
