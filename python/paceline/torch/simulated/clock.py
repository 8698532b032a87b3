"""The time of a GPU that is not there: operators are kept in their order, and timed once marks are read."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.operators.kernels import Work
from paceline.operators.machine import Machine
from paceline.operators.operator import SYNCHRONIZE, Operator
from paceline.operators.schedule import Schedule
from paceline.torch.recorder.clock import Clock, Mark


class SimulatedClock(Clock):
    """Marks are positions in the list of operators; their times are those of CUDA events on the stream."""

    def __init__(self, machine: Machine) -> None:
        """Take the GPU."""
        self.machine = machine
        self.operators: list[Operator] = []
        self._schedule = Schedule(machine)

    @property
    def works(self) -> Sequence[Work]:
        """The cost of each operator that `advance` has seen."""
        return self._schedule.works

    def run(self, operator: Operator) -> int:
        """Dispatch an operator, and return its place."""
        self.operators.append(operator)
        return len(self.operators) - 1

    def synchronize(self) -> None:
        """Let the host wait for the device (`.item()`)."""
        self.run(Operator(SYNCHRONIZE))

    def mark(self) -> Mark:
        """Return how many operators have been dispatched."""
        return len(self.operators)

    def seconds(self, marks: Sequence[Mark]) -> list[float]:
        """Return the time of every mark in seconds since the first one."""
        self.advance()
        times = self._schedule.done_s
        return [times[mark] - times[marks[0]] for mark in marks]

    def advance(self) -> None:
        """Time what has been dispatched so far, the ends of whole steps."""
        self._schedule.extend(self.operators)
