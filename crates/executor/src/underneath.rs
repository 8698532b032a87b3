//! Operations that the library underneath does, once all ranks have met.
use super::live::{Live, Part};
use super::wires::Wires;
use crate::program::Underneath;
use paceline_transport::error::RunError;
use paceline_transport::offload::OffloadTicket;

/// How far such an operation is.
pub(super) enum Stage {
    /// It waits for the other ranks, or for an earlier one: a library must be asked in the same order on all ranks.
    Waits(Underneath),
    /// The library is at it.
    Runs(OffloadTicket),
    /// There is nothing to ask a library for, or it is done.
    Over,
}

/// Goes on; whether anything was done. `earlier`: one before it in the group still waits.
pub(super) fn advance(
    live: &mut Live,
    group: u32,
    ranks: &[u32],
    earlier: bool,
    wires: &mut Wires,
) -> Result<bool, RunError> {
    let failed = |why: String| RunError::Failed(why);
    let missing = || RunError::Failed("there is no library underneath".into());
    match &live.underneath {
        Stage::Over => return Ok(false),
        Stage::Waits(_) if earlier || !live.parts.iter().all(Part::over) => return Ok(false),
        Stage::Waits(Underneath::Join(heirs)) => {
            wires.offload().ok_or_else(missing)?.join(group, ranks, *heirs).map_err(failed)?;
            live.underneath = Stage::Over;
        }
        Stage::Waits(Underneath::AllReduce) => {
            let kind = (live.signature.dtype, live.signature.op);
            let Some(part) = live.parts.first_mut() else { return Ok(false) };
            let library = wires.offload().ok_or_else(missing)?;
            live.underneath = Stage::Runs(library.all_reduce(group, kind, &mut part.space).map_err(failed)?);
        }
        Stage::Runs(ticket) => {
            let Some(part) = live.parts.first_mut() else { return Ok(false) };
            if !wires.offload().ok_or_else(missing)?.all_reduced(ticket, &mut part.space).map_err(failed)? {
                return Ok(false);
            }
            live.underneath = Stage::Over;
        }
    }
    live.moved += 1;
    Ok(true)
}

/// The operation has failed. If the library is at it, it may go on to touch the memory: then its owner is kept for ever.
pub(super) fn give_up(live: &mut Live, wires: &mut Wires) {
    if let Stage::Runs(ticket) = &live.underneath {
        if let Some(library) = wires.offload() {
            library.abandon(ticket);
        }
        std::mem::forget(live.keep.take());
    }
}
