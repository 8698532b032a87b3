//! How flows share links, and why a simulation cannot run: what networks and options have in common.
use paceline_schedule::Refusal;
use serde::Deserialize;

/// How links are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// One message after the other, cut-through.
    Fifo,
    /// Max-min fair between connections, which TCP approximates.
    Fluid,
}

/// Why a simulation cannot run; the message names the option and says what to do.
pub type SimulationError = Refusal;
