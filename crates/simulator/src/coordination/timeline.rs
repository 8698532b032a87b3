//! The timeline of one iteration under a coordinator: what every rank computes, and what its coordinator does.
use super::draws::Rank;
use super::iteration::Shown;
use super::workload::Workload;
use crate::timeline::{Drawing, Timeline};

/// Ranks that are drawn; of more, these and the latest one.
const MOST_RANKS: u32 = 256;

/// Draws an iteration.
pub(super) fn draw(workers: u32, workload: &Workload, shown: &Shown) -> Timeline {
    let Shown { ranks: late, issued } = shown;
    let mut drawing = Drawing::default();
    let latest = late.iter().max_by(|a, b| a.late.total_cmp(&b.late)).map_or(0, |rank| rank.rank);
    let shown = (0..workers.min(MOST_RANKS)).chain((latest >= MOST_RANKS).then_some(latest));
    let sums = issued.last().map_or(workload.compute, |bucket| bucket.end).max(workload.compute);
    for rank in shown {
        let own = late.binary_search_by_key(&rank, |it| it.rank).ok().map(|place| late[place]);
        let own = own.unwrap_or(Rank { rank, ..Rank::default() });
        let computed = workload.compute + own.late;
        let name = format!("worker {rank}");
        let compute = drawing.track(rank + 1, 0, &name, "compute");
        drawing.span(&compute, "forward", "forward", 0.0, workload.forward);
        drawing.span(&compute, "backward", "backward", workload.forward, workload.compute);
        drawing.span(&compute, "preempted", "wait", workload.compute, computed);
        drawing.span(&compute, "wait for sums", "wait", computed, sums);
        drawing.span(&compute, "optimizer", "optimizer", sums, sums + workload.optimizer);
        let coordinator = drawing.track(rank + 1, 1, &name, "coordinator");
        let mut free = 0.0f64;
        for bucket in issued {
            let from = free.max(bucket.ready);
            // In graph order a rank begins by itself; otherwise all begin at the agreement.
            let begun = bucket.agreed.unwrap_or(bucket.ready + own.begun).min(bucket.start);
            let what = format!("{} tensors, {:.3} MB", bucket.tensors, bucket.bytes as f64 * 1e-6);
            drawing.span(&coordinator, "negotiate", "negotiation", from, begun.max(from));
            drawing.span(&coordinator, "wait for late ranks", "wait", begun.max(from), bucket.start);
            drawing.span(&coordinator, "order", "negotiation", bucket.start, bucket.start + bucket.own);
            let (copied, half) = (bucket.start + bucket.own, bucket.copies / 2.0);
            drawing.span(&coordinator, "copy in", "copy", copied, copied + half);
            drawing.span(&coordinator, &what, "collective", copied + half, bucket.end - half);
            drawing.span(&coordinator, "copy out", "copy", bucket.end - half, bucket.end);
            free = bucket.end;
        }
    }
    drawing.finish()
}
