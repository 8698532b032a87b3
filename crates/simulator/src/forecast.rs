//! Chooses how an iteration is simulated.
use paceline_model::{Cluster, Trace};

use crate::asynchronous::simulate_asynchronous;
use crate::coordination::coordinate;
use crate::degraded;
use crate::iteration::simulate_as;
use crate::options::{Options, SimulationError};
use crate::outcome::Outcome;
use crate::prepare::MAX_ROLES;
use crate::run::simulate_recorded;
use crate::timeline::Timeline;

/// Forecasts one configuration.
///
/// # Errors
/// Options that contradict each other or do not fit the cluster; the message names the option and says what to do.
pub fn simulate(trace: &Trace, cluster: &Cluster, options: &Options) -> Result<Outcome, SimulationError> {
    Ok(degraded::forecast(trace, cluster, options, false, |cluster, _| forecast(trace, cluster, options, None))?.0)
}

/// Also returns a timeline of every worker and link, or only of the first `ranks` workers and the first server.
///
/// # Errors
/// Those of [`simulate`].
pub fn simulate_with_timeline(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    ranks: Option<u32>,
) -> Result<(Outcome, Timeline), SimulationError> {
    degraded::forecast(trace, cluster, options, true, |cluster, with_timeline| {
        forecast(trace, cluster, options, with_timeline.then_some(ranks))
    })
}

/// Chooses how the plan is run; `timeline`: whether one is wanted, and of how many ranks.
fn forecast(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
    timeline: Option<Option<u32>>,
) -> Result<(Outcome, Timeline), SimulationError> {
    if options.is_planned() {
        return simulate_as(trace, cluster, options, timeline, None);
    }
    if let Some(coordination) = &options.coordination {
        if !options.entry()?.is_synchronous() {
            return Err(SimulationError::about(
                "coordinator",
                "agrees on sums, and asynchronous workers have none".to_string(),
            )
            .remedy("drop {coordinator}, or {strategy=ps}"));
        }
        if options.workers > MAX_ROLES {
            return Err(SimulationError::about(
                "workers",
                format!("a coordinator is simulated with at most {MAX_ROLES}, not {}", options.workers),
            )
            .remedy(format!("{{workers={MAX_ROLES}}}")));
        }
        return coordinate(trace, cluster, options, coordination, timeline.is_some());
    }
    if options.entry()?.is_synchronous() {
        simulate_recorded(trace, cluster, options, timeline)
    } else {
        simulate_asynchronous(trace, cluster, options, timeline)
    }
}
