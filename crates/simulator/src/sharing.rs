//! How flows share links.
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
