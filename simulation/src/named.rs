//! Operations on named tensors, which each rank submits and waits for in an order of its own.
#![allow(unsafe_code, reason = "buffers are handed over by address, as a caller does")]
use paceline_kernels::dtype::ReduceOp;
use paceline_os::sync::Arc;
use paceline_os::time::{Duration, Instant};
use paceline_runtime::negotiation::{Coordinator, CoordinatorOptions, Limits, Named, PolicyKind, Settings, Wanted};
use paceline_runtime::session::Session;
use paceline_transport::error::Result;
use paceline_transport::header::Collective;

use crate::scenario::{Scenario, Step};

/// Tensors of a step.
pub const TENSORS: usize = 4;

/// The coordinator of all ranks, if the scenario has one.
///
/// # Errors
/// Ranks that do not come.
pub fn coordinator(job: &Session, scenario: &Scenario) -> Result<Option<Coordinator>> {
    let Some(name) = scenario.coordinator.as_deref() else {
        return Ok(None);
    };
    let kind = PolicyKind::find(name).unwrap_or_else(|error| panic!("{name}: {}", error.reason));
    let settings = Settings {
        cycle_time: 1_000_000,
        threshold: 4_000,
        capacity: 3,
        warn_after: None,
        give_up_after: None,
        sleep_every: kind.sleep_every(),
    };
    let limits = Limits { first: 1_000, most: 4_000 };
    let options = CoordinatorOptions {
        kind,
        settings,
        limits,
        prescribed: None,
        core: None,
        lent: Vec::new(),
        placement: Default::default(),
    };
    job.coordinator(&scenario.groups[0], "named", options).map(Some)
}

/// A rank's contribution to a tensor, and the sum.
fn value(rank: u32, tensor: usize, at: usize) -> f32 {
    ((rank as usize * 13 + tensor * 7 + at) & 63) as f32
}

/// The optimizer whose tensors the policy `graph` plans.
const OPTIMIZER: &str = "optimizer";

/// Runs a step at a rank; returns what is wrong with the sums. `planned`: as a step of an optimizer.
///
/// # Errors
/// Why an operation failed.
pub fn run(
    coordinator: &Coordinator,
    step: &Step,
    rank: u32,
    ranks: u32,
    (slice, planned): (impl Fn() -> Option<Instant>, bool),
    kept: &mut Vec<Vec<f32>>,
) -> Result<Option<String>> {
    let count = step.elements.max(1) as usize;
    let mut buffers: Vec<Vec<f32>> =
        (0..TENSORS).map(|tensor| (0..count).map(|at| value(rank, tensor, at)).collect()).collect();
    let mut operations = Vec::new();
    for (tensor, buffer) in buffers.iter_mut().enumerate() {
        let wanted = Wanted {
            collective: Collective::AllReduce,
            name: &format!("tensor{tensor}"),
            inputs: &[(buffer.as_mut_ptr() as usize, count as u64)],
            dtype: "float32",
            shape: &[count as u64],
            device: "cpu",
            op: Some(ReduceOp::Sum),
            own: &[],
            root: None,
            prescale: 1.0,
            postscale: 1.0,
        };
        operations.push(Arc::new(Named::new(&wanted, ranks, None)?));
    }
    // Kept until the job is closed, whatever becomes of the operations; the memory itself does not move.
    let first = kept.len();
    kept.append(&mut buffers);
    let from = (rank as usize + step.root as usize) % TENSORS;
    let order = (0..TENSORS).map(|at| (from + at * (1 + 2 * (rank as usize % 2))) % TENSORS);
    for at in order.clone() {
        // SAFETY: the buffers are kept until the job is closed.
        unsafe {
            match planned {
                true => coordinator.submit_step(OPTIMIZER, &operations[at..=at], false)?,
                false => coordinator.submit(&operations[at..=at], step.later >> rank & 1 == 0)?,
            }
        }
    }
    if planned {
        coordinator.flush(OPTIMIZER)?;
    }
    for at in order.collect::<Vec<_>>().into_iter().rev() {
        while !coordinator.wait(&operations[at], slice())? {}
    }
    while planned && !coordinator.ended(OPTIMIZER, Instant::now() + Duration::from_millis(100))? {}
    for tensor in 0..TENSORS {
        let sum = |at: usize| (0..ranks).map(|rank| value(rank, tensor, at)).sum::<f32>();
        let got = &kept[first + tensor];
        if let Some(at) = (0..count).find(|&at| got[at].to_bits() != sum(at).to_bits()) {
            return Ok(Some(format!("tensor{tensor}[{at}] is {} instead of {}", got[at], sum(at))));
        }
    }
    Ok(None)
}
