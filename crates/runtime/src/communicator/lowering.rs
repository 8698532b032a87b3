//! Turns a request into a program and its memory.
#![allow(unsafe_code, reason = "the caller's promise about its memory is passed on to the space")]
use paceline_schedule::Piece;

use super::{CollectiveRequest, Memory};
use crate::digest::digest;
use paceline_executor::program::{Barrier, Broadcast, Exchange, Program, Reduce, ReduceScatter, SendRecv};
use paceline_executor::{Finish, PointToPoint};
use paceline_kernels::reduce::scale;
use paceline_transport::error::{Result, RunError};
use paceline_transport::header::Collective;
use paceline_transport::space::Space;

/// Piece size where data flows one way, so that one rank copies in while the other copies out: a shared-memory
/// fragment.
const PASSED_BYTES: u64 = 64 << 10;
/// Piece size where data flows both ways and all ranks are busy anyway: large enough for zero-copy sends.
const EXCHANGED_BYTES: u64 = 256 << 10;

/// An operation that is ready to begin.
pub(crate) struct Prepared {
    /// `None` if the program comes from a strategy.
    pub program: Option<Box<dyn Program>>,
    pub space: Space,
    /// Elements that all ranks must agree on, or 0.
    pub count: u64,
    /// A digest of the counts by rank, if all ranks must agree on them, or 0.
    pub plan: u32,
    pub finish: Option<Finish>,
    pub point_to_point: Option<PointToPoint>,
}

fn elements(memory: &[Memory]) -> u64 {
    memory.iter().map(|m| m.1).sum()
}

/// The offset of each rank's elements.
fn pieces(start: u64, counts: &[u64]) -> Vec<Piece> {
    let mut off = start;
    let piece = |&len: &u64| {
        off += len;
        Piece { off: off - len, len }
    };
    counts.iter().map(piece).collect()
}

fn nothing(size: u32) -> Vec<Piece> {
    vec![Piece { off: 0, len: 0 }; size as usize]
}

fn usage<T>(message: String) -> Result<T> {
    Err(RunError::Usage(message))
}

/// `None`: more than can be counted.
fn sum(counts: &[u64]) -> Option<u64> {
    counts.iter().try_fold(0, |sum: u64, &count| sum.checked_add(count))
}

/// A digest of the counts of all ranks, which must be equal everywhere. Equal counts follow from their sum.
fn plan(counts: &[u64]) -> u32 {
    let equal = counts.windows(2).all(|pair| pair[0] == pair[1]);
    if equal { 0 } else { digest(counts.iter().flat_map(|count| count.to_le_bytes())) }
}

/// The counts of all ranks: as given, or equal shares of `total`.
fn shares(
    request: &CollectiveRequest<'_>,
    given: Option<&[u64]>,
    total: u64,
    size: u32,
    what: &str,
) -> Result<Vec<u64>> {
    let name = request.collective.name();
    match given {
        Some(counts) if counts.len() != size as usize => {
            usage(format!("{name}: {} counts for {size} ranks", counts.len()))
        }
        Some(counts) if sum(counts) != Some(total) => {
            usage(format!("{name}: counts {counts:?} do not add up to the {total} elements of the {what}"))
        }
        Some(counts) => Ok(counts.to_vec()),
        None if !total.is_multiple_of(u64::from(size)) => usage(format!(
            "{name}: the {total} elements of the {what} cannot be divided equally among {size} ranks; give counts"
        )),
        None => Ok(vec![total / u64::from(size); size as usize]),
    }
}

fn expect(request: &CollectiveRequest<'_>, what: &str, is: u64, wanted: u64) -> Result<()> {
    if is == wanted {
        return Ok(());
    }
    usage(format!("{}: the {what} has {is} elements; it needs {wanted}", request.collective.name()))
}

/// The collective that a strategy has a schedule for, if the request is one: shards must be equal.
pub(crate) fn of_strategies(request: &CollectiveRequest<'_>) -> Option<paceline_schedule::Collective> {
    match request.collective {
        Collective::AllReduce => Some(paceline_schedule::Collective::AllReduce),
        Collective::AllGather => Some(paceline_schedule::Collective::AllGather),
        Collective::ReduceScatter => Some(paceline_schedule::Collective::ReduceScatter),
        _ => None,
    }
    .filter(|_| !request.is_uneven())
}

/// Checks a request and lays out its memory. Elements that stay at this rank are copied here. `scheduled`: the program
/// comes from a strategy, whose elements are those of the whole bucket, in rank order.
///
/// # Safety
/// As for [`Communicator::submit`](crate::communicator::Communicator::submit).
pub(crate) unsafe fn prepare(
    request: &CollectiveRequest<'_>,
    (me, size): (u32, u32),
    scheduled: bool,
) -> Result<Prepared> {
    let element = request.dtype.size();
    let (passed, exchanged) = (PASSED_BYTES / element as u64, EXCHANGED_BYTES / element as u64);
    let mut space = Space::new(element);
    let (inputs, outputs) = (elements(request.inputs), elements(request.outputs));
    let root = request.root;
    let is_root = me == root;
    if (request.collective.rooted() || (request.collective == Collective::SendRecv && !request.from_anybody))
        && root >= size
    {
        return usage(format!("{}: rank {root} is not in a group of {size}", request.collective.name()));
    }
    let lay = |space: &mut Space, memory: &[Memory]| {
        for &(address, elements) in memory {
            // SAFETY: promised by the caller.
            unsafe { space.push(address as *mut u8, elements) };
        }
    };
    let prepared =
        |program, space, count, finish| Ok(Prepared { program, space, count, plan: 0, finish, point_to_point: None });
    let scaled = |off: u64, len: u64| {
        #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
        let asked = request.postscale != 1.0;
        asked.then_some(Finish { scaled: (off, len), factor: request.postscale })
    };
    match request.collective {
        Collective::AllReduce => {
            lay(&mut space, request.inputs);
            prepared(None, space, inputs, scaled(0, inputs))
        }
        Collective::Broadcast => {
            lay(&mut space, request.inputs);
            let program = Broadcast { size, root, len: inputs, chunk: passed };
            prepared(Some(Box::new(program) as Box<dyn Program>), space, inputs, None)
        }
        Collective::Reduce => {
            lay(&mut space, request.inputs);
            if is_root {
                prescale(&mut space, request);
            } else {
                space = contribution(space, request);
            }
            let program = Reduce { size, root, len: inputs, chunk: passed };
            prepared(Some(Box::new(program)), space, inputs, if is_root { scaled(0, inputs) } else { None })
        }
        Collective::AllGather | Collective::Gather => {
            let gathers = request.collective == Collective::AllGather || is_root;
            let count = if request.collective == Collective::AllGather { outputs } else { 0 };
            let (mut sends, mut recvs, mut agreed) = (nothing(size), nothing(size), 0);
            lay(&mut space, request.outputs);
            lay(&mut space, request.inputs);
            let own = Piece { off: outputs, len: inputs };
            if gathers {
                let counts = shares(request, request.counts, outputs, size, "output")?;
                expect(request, "input", inputs, counts[me as usize])?;
                agreed = if request.collective == Collective::AllGather { plan(&counts) } else { 0 };
                recvs = pieces(0, &counts);
                space.copy_within(own.off, recvs[me as usize].off, own.len);
            } else {
                expect(request, "output", outputs, 0)?;
            }
            if request.collective == Collective::AllGather {
                sends = vec![own; size as usize];
            } else if !is_root {
                sends[root as usize] = own;
            }
            let program = if scheduled { None } else { exchange(me, size, sends, recvs, exchanged) };
            Ok(Prepared { plan: agreed, ..prepared(program, space, count, None)? })
        }
        Collective::Scatter => {
            let (mut sends, mut recvs) = (nothing(size), nothing(size));
            lay(&mut space, request.inputs);
            lay(&mut space, request.outputs);
            if is_root {
                let counts = shares(request, request.counts, inputs, size, "input")?;
                expect(request, "output", outputs, counts[me as usize])?;
                sends = pieces(0, &counts);
                space.copy_within(sends[me as usize].off, inputs, outputs);
            } else {
                recvs[root as usize] = Piece { off: inputs, len: outputs };
            }
            prepared(exchange(me, size, sends, recvs, exchanged), space, 0, None)
        }
        Collective::ReduceScatter => {
            let counts = shares(request, request.counts, inputs, size, "input")?;
            expect(request, "output", outputs, counts[me as usize])?;
            lay(&mut space, request.inputs);
            let parts = pieces(0, &counts);
            if scheduled {
                // Sums of other shards pass through this rank, and the caller's input must not change.
                let own = parts[me as usize];
                let mut bucket = Space::new(element);
                bucket.push_scratch(own.off);
                lay(&mut bucket, request.outputs);
                bucket.push_scratch(inputs - own.off - own.len);
                bucket.copy_from(&mut space);
                return prepared(None, bucket, inputs, scaled(own.off, own.len));
            }
            space = contribution(space, request);
            lay(&mut space, request.outputs);
            space.copy_within(parts[me as usize].off, inputs, outputs);
            let own = Piece { off: inputs, len: outputs };
            let program = ReduceScatter { parts, own, chunk: exchanged };
            let prepared = prepared(Some(Box::new(program)), space, inputs, scaled(inputs, outputs))?;
            Ok(Prepared { plan: plan(&counts), ..prepared })
        }
        Collective::AllToAll => {
            let sent = shares(request, request.counts, inputs, size, "input")?;
            let received = shares(request, request.out_counts, outputs, size, "output")?;
            expect(request, "part for itself", sent[me as usize], received[me as usize])?;
            lay(&mut space, request.inputs);
            lay(&mut space, request.outputs);
            let (sends, recvs) = (pieces(0, &sent), pieces(inputs, &received));
            space.copy_within(sends[me as usize].off, recvs[me as usize].off, sent[me as usize]);
            prepared(exchange(me, size, sends, recvs, exchanged), space, 0, None)
        }
        Collective::Barrier => prepared(Some(Box::new(Barrier { size })), space, 0, None),
        Collective::SendRecv => {
            let (memory, len) = if request.sends { (request.inputs, inputs) } else { (request.outputs, outputs) };
            lay(&mut space, memory);
            let peer = (!request.from_anybody).then_some(root);
            if peer == Some(me) {
                return usage(format!("send/recv: rank {me} cannot exchange with itself"));
            }
            let program = SendRecv { peer: root, sends: request.sends, len };
            let point_to_point = Some(PointToPoint { peer, tag: request.tag, sends: request.sends });
            Ok(Prepared { program: Some(Box::new(program)), space, count: len, plan: 0, finish: None, point_to_point })
        }
    }
}

fn exchange(me: u32, size: u32, sends: Vec<Piece>, recvs: Vec<Piece>, chunk: u64) -> Option<Box<dyn Program>> {
    if size == 1 {
        // A single rank has nobody to exchange with, and a barrier of one has no lanes.
        return Some(Box::new(Barrier { size }));
    }
    Some(Box::new(Exchange { me, sends, recvs, chunk }))
}

/// This rank's contribution, multiplied in a copy because the caller's input must not change.
fn contribution(mut given: Space, request: &CollectiveRequest<'_>) -> Space {
    #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
    if request.prescale == 1.0 {
        return given;
    }
    let mut copy = Space::new(given.element());
    copy.push_scratch(given.len());
    copy.copy_from(&mut given);
    prescale(&mut copy, request);
    copy
}

/// Multiplies this rank's contribution.
pub(crate) fn prescale(space: &mut Space, request: &CollectiveRequest<'_>) {
    #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
    if request.prescale != 1.0 {
        space.for_each(|run| scale(request.dtype, run, request.prescale));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_counts(counts: &[u64], total: u64) -> Result<Vec<u64>> {
        let request = CollectiveRequest { collective: Collective::AllGather, ..CollectiveRequest::default() };
        shares(&request, Some(counts), total, counts.len() as u32, "output")
    }

    #[test]
    fn counts_beyond_all_bounds_are_refused() {
        assert_eq!(of_counts(&[1, 0, 3], 4), Ok(vec![1, 0, 3]));
        // Their sum is 4 modulo 2^64.
        let error = of_counts(&[1 << 63, 1 << 63, 4], 4).expect_err("too many").to_string();
        assert!(error.ends_with("do not add up to the 4 elements of the output"), "{error}");
    }

    #[test]
    fn ranks_notice_counts_that_differ() {
        let plans = [[4, 0], [0, 4], [1, 3], [3, 1], [2, 2]].map(|counts| plan(&counts));
        assert!(plans.iter().enumerate().all(|(at, plan)| !plans[..at].contains(plan)), "{plans:?}");
        // As without counts.
        assert_eq!(plan(&[2, 2]), 0);
    }
}
