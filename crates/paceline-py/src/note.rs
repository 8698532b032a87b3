//! Degenerate cases that a user should know about.
use pyo3::prelude::*;

/// A degenerate case.
#[pyclass(frozen, eq, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub enum Note {
    NoSwitch {},
    SwitchLimits { levels: Option<(u32, u32)>, pieces: Option<(u64, u64)> },
    SharedTensors {},
    NoRing {},
    RingOfNodes {},
    OneGroup { ranks: u32 },
    ClosedForm { strategy: String, workers: u32 },
}

impl From<paceline_schedule::Note> for Note {
    fn from(note: paceline_schedule::Note) -> Note {
        use paceline_schedule::Note as Core;
        match note {
            Core::NoSwitch => Note::NoSwitch {},
            Core::SwitchLimits { levels, pieces } => Note::SwitchLimits { levels, pieces },
            Core::SharedTensors => Note::SharedTensors {},
            Core::NoRing => Note::NoRing {},
            Core::RingOfNodes => Note::RingOfNodes {},
            Core::OneGroup { ranks } => Note::OneGroup { ranks },
            Core::ClosedForm { strategy, workers } => Note::ClosedForm { strategy: strategy.into(), workers },
        }
    }
}
