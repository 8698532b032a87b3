"""One worker's actions in each iteration, taken from the simulator, so that nothing is defined twice."""

from __future__ import annotations

from dataclasses import dataclass

from paceline import _core
from paceline._core import Plan

COMPUTE, BACKGROUND = "compute", "background"
"""The streams of the model's computation, and of exchanges that begin in order and do not wait for each other."""


@dataclass(frozen=True)
class Factors:
    """Factors of the times of one iteration."""

    compute: float
    backward: float

    def of(self, kind: str) -> float:
        """Return the factor of a kind of step."""
        return self.backward if kind == "backward" else self.compute


@dataclass(frozen=True)
class WorkerSchedule:
    """The plan of one worker, and by how much its times differ."""

    plan: Plan
    factors: tuple[Factors, ...]
    """By iteration."""
    same_order: bool
    """Whether all recorded workers hand over buckets in one order; otherwise ranks use the first recorded one's."""

    @classmethod
    def of(cls, scenario: _core.Scenario, worker: int, iterations: int) -> WorkerSchedule:
        """Return the schedule of one worker. Raises InvalidArgumentError."""
        part = scenario.replay(worker, iterations)
        return cls(part.plan, tuple(Factors(*factors) for factors in part.factors), part.same_order)
