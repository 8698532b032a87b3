//! What a rank has seen of a step, from which ranks make a plan.
use serde::{Deserialize, Serialize};

use crate::request::Terms;

/// A tensor of a step, as a rank saw it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// The terms on which all ranks must agree.
    pub terms: Terms,
    /// It was not computed in the backward pass, but stands in for a gradient that was missing at its end.
    pub late: bool,
}

/// A rank's record of a step, in its order; empty if it cannot be planned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Proposal {
    /// Each name occurs once.
    pub tensors: Vec<Seen>,
}
