//! The plan of an iteration, as typed steps.

use paceline_iteration as iteration;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use crate::fields::getters;
use crate::user_error;

/// Ranks of one exchange.
#[pyclass(frozen, eq, hash, get_all, module = "paceline._core")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RankGroup {
    size: u32,
    stride: u32,
}

#[pymethods]
impl RankGroup {
    #[new]
    fn new(size: u32, stride: u32) -> RankGroup {
        RankGroup { size, stride }
    }

    fn around(&self, rank: u32) -> Vec<u32> {
        let first = rank - rank % (self.size * self.stride) + rank % self.stride;
        (0..self.size).map(|number| first + number * self.stride).collect()
    }

    fn __repr__(&self) -> String {
        format!("RankGroup({}, {})", self.size, self.stride)
    }
}

/// The exchange of a step.
#[pyclass(frozen, eq, hash, get_all, module = "paceline._core")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Exchanged {
    collective: &'static str,
    group: RankGroup,
    elements: u64,
    dtype: &'static str,
    size: u64,
}

#[pymethods]
impl Exchanged {
    fn __repr__(&self) -> String {
        let Exchanged { collective, group, elements, dtype, .. } = self;
        format!("Exchanged({collective}, {}, {elements} {dtype})", group.__repr__())
    }
}

/// A step.
#[pyclass(frozen, get_all, module = "paceline._core")]
pub struct PlanStep {
    number: u32,
    stream: &'static str,
    kind: &'static str,
    name: String,
    duration_s: f64,
    exchanged: Option<Exchanged>,
    after: Vec<u32>,
    after_previous: Vec<u32>,
    unit: Option<u32>,
}

#[pymethods]
impl PlanStep {
    fn __repr__(&self) -> String {
        format!("PlanStep({}, {}, {:?})", self.number, self.stream, self.name)
    }
}

impl PlanStep {
    fn of(number: u32, step: &iteration::Step, units: &[iteration::Unit]) -> PlanStep {
        let exchanged = match &step.work {
            &iteration::Work::Exchange { collective, group, elements, dtype } => Some(Exchanged {
                collective: collective.name(),
                group: RankGroup { size: group.size, stride: group.stride },
                elements,
                dtype: dtype.name(),
                size: elements * dtype.size(),
            }),
            _ => None,
        };
        PlanStep {
            number,
            stream: step.stream.name(),
            kind: step.work.kind(),
            name: step.name(units),
            duration_s: step.work.duration_ps() as f64 * 1e-12,
            exchanged,
            after: step.after.clone(),
            after_previous: step.after_previous.clone(),
            unit: step.unit,
        }
    }
}

/// A unit of exchange.
#[pyclass(frozen, eq, get_all, module = "paceline._core")]
#[derive(Clone, PartialEq)]
pub struct PlanUnit {
    name: String,
    elements: u64,
    frozen: u64,
    pull_only: bool,
    priority: Option<u32>,
}

/// One rank's work in one iteration.
#[pyclass(frozen, module = "paceline._core")]
pub struct Plan {
    plan: iteration::Plan,
    /// Made when they are read first.
    steps: PyOnceLock<Py<PyTuple>>,
}

impl From<iteration::Plan> for Plan {
    fn from(plan: iteration::Plan) -> Plan {
        Plan { plan, steps: PyOnceLock::new() }
    }
}

getters! { Plan, self {
    trace: &str = &self.plan.trace;
    sharding: &str = self.plan.sharding.name();
    world: u32 = self.plan.world;
    ends_with_compute: bool = self.plan.ends_with_compute;
    has_servers: bool = self.plan.units.iter().any(|unit| unit.priority.is_some());
    exchanges_only: bool = self.plan.steps.iter().all(|step| step.work.duration_ps() == 0);
}

    #[staticmethod]
    fn from_json(text: &str, source: &str) -> PyResult<Plan> {
        iteration::Plan::from_json(text, source).map(Plan::from).map_err(user_error)
    }

    fn to_json(&self) -> String {
        self.plan.to_json()
    }

    #[getter]
    fn steps(&self, py: Python<'_>) -> PyResult<Py<PyTuple>> {
        let made = || {
            let steps = (0u32..)
                .zip(&self.plan.steps)
                .map(|(number, step)| Py::new(py, PlanStep::of(number, step, &self.plan.units)));
            let steps = steps.collect::<PyResult<Vec<_>>>()?;
            PyTuple::new(py, steps).map(Bound::unbind)
        };
        self.steps.get_or_try_init(py, made).map(|steps| steps.clone_ref(py))
    }

    #[getter]
    fn units(&self) -> Vec<PlanUnit> {
        let unit = |unit: &iteration::Unit| {
            let iteration::Unit { name, elements, frozen, pull_only, priority } = unit.clone();
            PlanUnit { name, elements, frozen, pull_only, priority }
        };
        self.plan.units.iter().map(unit).collect()
    }

    fn __repr__(&self) -> String {
        format!("Plan({:?}, {}, {} steps)", self.plan.trace, self.plan.sharding.name(), self.plan.steps.len())
    }
}
