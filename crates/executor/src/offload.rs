//! Operations that the offload library runs once all ranks have met.
use super::operation::{Operation, Part, Stage};
use super::wires::Wires;
use crate::program::OffloadRequest;
use paceline_transport::error::{RunError, of};

/// Advances the operation; returns whether anything was done. `earlier`: one before it in the group still waits.
pub(super) fn advance(
    operation: &mut Operation,
    group: u32,
    ranks: &[u32],
    earlier: bool,
    wires: &mut Wires,
) -> Result<bool, RunError> {
    let rank = wires.rank();
    go_on(operation, group, ranks, earlier, wires).map_err(|why| {
        let label = of(&operation.label);
        RunError::Failed(format!("rank {rank}: {why}, in {}{label}", operation.signature.collective.name()))
    })
}

fn go_on(
    operation: &mut Operation,
    group: u32,
    ranks: &[u32],
    earlier: bool,
    wires: &mut Wires,
) -> Result<bool, String> {
    let missing = || String::from("no offload library is loaded");
    match &operation.offload {
        Stage::Done => return Ok(false),
        Stage::Waits(_) if earlier || !operation.parts.iter().all(Part::is_done) => return Ok(false),
        Stage::Waits(OffloadRequest::Join(duplicates)) => {
            wires.offload().ok_or_else(missing)?.join(group, ranks, *duplicates)?;
            operation.offload = Stage::Done;
        }
        Stage::Waits(OffloadRequest::AllReduce) => {
            let kind = (operation.signature.dtype, operation.signature.op);
            let Some(part) = operation.parts.first_mut() else { return Ok(false) };
            let library = wires.offload().ok_or_else(missing)?;
            operation.offload = Stage::Runs(library.all_reduce(group, kind, &mut part.space)?);
        }
        Stage::Waits(OffloadRequest::OnDevice(call)) => {
            let library = wires.offload().ok_or_else(missing)?;
            operation.offload = Stage::Runs(library.on_device(group, call)?);
        }
        Stage::Runs(ticket) => {
            let Some(part) = operation.parts.first_mut() else { return Ok(false) };
            if !wires.offload().ok_or_else(missing)?.done(ticket, &mut part.space)? {
                return Ok(false);
            }
            operation.offload = Stage::Done;
        }
    }
    operation.count(0, false);
    Ok(true)
}

/// Gives up a failed operation. A library that is running it may still touch the memory, so its owner is leaked.
pub(super) fn give_up(operation: &mut Operation, wires: &mut Wires) {
    if let Stage::Runs(ticket) = &operation.offload {
        if let Some(library) = wires.offload() {
            library.abandon(ticket);
        }
        std::mem::forget(operation.keep.take());
    }
}
