//! Aligns the clocks of all ranks with the first rank's. Ranks on its host already share that clock. The others ask it
//! for the time several times and use the answer with the shortest round trip (D. Mills, RFC 5905, section 10: the
//! clock filter).
#![allow(unsafe_code, reason = "numbers on the stack are handed to operations that are waited for")]
use crate::communicator::{CollectiveRequest, Communicator};
use paceline_engine::Submission;
use paceline_executor::timeline::now;
use paceline_kernels::dtype::Dtype;
use paceline_transport::error::Result;
use paceline_transport::header::Collective;

const ASKED: usize = 16;
/// Tag of these messages. No other send or receive between the same ranks is in flight meanwhile.
const TAG: u32 = u32::MAX;

/// Collective over all ranks.
///
/// # Errors
/// A rank does not answer.
pub(crate) fn align(world: &Communicator) -> Result<()> {
    let shared = &world.shared;
    let away = |&rank: &u32| shared.hosts[rank as usize] != shared.hosts[0];
    let (mut offset, mut quickest) = (0i64, u64::MAX);
    for other in (0..world.size()).filter(away) {
        for _ in 0..ASKED {
            if world.rank() == 0 {
                let mut question = [0u64];
                transfer(world, other, false, &mut question)?;
                transfer(world, other, true, &mut [now()])?;
            } else if world.rank() == other {
                let asked = now();
                transfer(world, 0, true, &mut [asked])?;
                let mut answer = [0u64];
                transfer(world, 0, false, &mut answer)?;
                let took = now() - asked;
                if took < quickest {
                    (offset, quickest) = (answer[0].cast_signed() - (asked + took / 2).cast_signed(), took);
                }
            }
        }
    }
    shared.timeline.set_offset(offset);
    Ok(())
}

fn transfer(world: &Communicator, other: u32, sends: bool, numbers: &mut [u64; 1]) -> Result<()> {
    let request = CollectiveRequest {
        collective: Collective::SendRecv,
        dtype: Dtype::Int64,
        root: other,
        tag: TAG,
        sends,
        ..CollectiveRequest::default()
    };
    one(world, &request, numbers)
}

fn one(world: &Communicator, request: &CollectiveRequest<'_>, numbers: &mut [u64; 1]) -> Result<()> {
    let memory = [(numbers.as_mut_ptr() as usize, 1)];
    let arrives = request.collective == Collective::SendRecv && !request.sends;
    let (inputs, outputs): (&[_], &[_]) = if arrives { (&[], &memory) } else { (&memory, &[]) };
    let request = CollectiveRequest { inputs, outputs, ..*request };
    // SAFETY: borrowed exclusively until the wait below returns, and it returns only after the operation has completed.
    let handle = unsafe { world.submit(&request, None, Submission::default())? };
    world.wait(&handle, None).map(drop)
}
