"""Operators on a GPU one after the other: what each costs, and when the device is done with it."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.operators.kernels import Work
from paceline.operators.machine import Machine
from paceline.operators.operator import SYNCHRONIZE, Operator
from paceline.operators.queues import OneThread, Queues
from paceline.operators.works import host_of, works_of


class Schedule:
    """A growing list of operators with their costs and times."""

    def __init__(self, machine: Machine) -> None:
        """Take the GPU."""
        self.machine = machine
        self.works: list[Work] = []
        """The cost of each operator; in a chain of fused ones, the last one has the costs of all."""
        self.done_s: list[float] = [0.0]
        """When the device is done with so many operators, in seconds since the start."""
        self._queues = OneThread() if machine.hardware.is_cpu else Queues()

    def extend(self, operators: Sequence[Operator]) -> None:
        """Time what has no time yet: the ends of whole steps, because a fused operator's cost depends on its readers.

        Args:
            operators: All, those that have times included.
        """
        begin, end = len(self.works), len(operators)
        if begin == end:
            return
        works, fused = works_of(operators, self.machine, begin)
        self.works.extend(works)
        for place in range(begin, end):
            operator, work = operators[place], self.works[place]
            host = host_of(operator, work, self.machine, fused=place in fused)
            self._queues.dispatch(work.kernels, host, waits=operator.name == SYNCHRONIZE)
            self.done_s.append(self._queues.done_s)
