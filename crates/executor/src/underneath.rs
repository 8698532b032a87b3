//! Operations that the library underneath does, once all ranks have met.
use super::operation::{Operation, Part};
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
    Done,
}

/// Goes on; whether anything was done. `earlier`: one before it in the group still waits.
pub(super) fn advance(
    operation: &mut Operation,
    group: u32,
    ranks: &[u32],
    earlier: bool,
    wires: &mut Wires,
) -> Result<bool, RunError> {
    let failed = |why: String| RunError::Failed(why);
    let missing = || RunError::Failed("there is no library underneath".into());
    match &operation.underneath {
        Stage::Done => return Ok(false),
        Stage::Waits(_) if earlier || !operation.parts.iter().all(Part::is_done) => return Ok(false),
        Stage::Waits(Underneath::Join(heirs)) => {
            wires.offload().ok_or_else(missing)?.join(group, ranks, *heirs).map_err(failed)?;
            operation.underneath = Stage::Done;
        }
        Stage::Waits(Underneath::AllReduce) => {
            let kind = (operation.signature.dtype, operation.signature.op);
            let Some(part) = operation.parts.first_mut() else { return Ok(false) };
            let library = wires.offload().ok_or_else(missing)?;
            operation.underneath = Stage::Runs(library.all_reduce(group, kind, &mut part.space).map_err(failed)?);
        }
        Stage::Runs(ticket) => {
            let Some(part) = operation.parts.first_mut() else { return Ok(false) };
            if !wires.offload().ok_or_else(missing)?.all_reduced(ticket, &mut part.space).map_err(failed)? {
                return Ok(false);
            }
            operation.underneath = Stage::Done;
        }
    }
    operation.moved += 1;
    Ok(true)
}

/// The operation has failed. If the library is at it, it may go on to touch the memory: then its owner is kept for ever.
pub(super) fn give_up(operation: &mut Operation, wires: &mut Wires) {
    if let Stage::Runs(ticket) = &operation.underneath {
        if let Some(library) = wires.offload() {
            library.abandon(ticket);
        }
        std::mem::forget(operation.keep.take());
    }
}
