"""The time of a GPU that is not there: operators are kept in their order, and timed once marks are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.operators.fused import Fusion
from paceline.operators.kernels import Work, work_of
from paceline.operators.machine import Machine
from paceline.operators.operator import SYNCHRONIZE, Operator
from paceline.operators.queues import Queues, dispatch_s
from paceline.torch.recorder.clock import Clock, Mark


class SimulatedClock(Clock):
    """Marks are positions in the list of operators; their times are those of CUDA events on the stream."""

    def __init__(self, machine: Machine) -> None:
        """Take the GPU."""
        self.machine = machine
        self.operators: list[Operator] = []
        self.works: list[Work] = []
        """The cost of each operator; in a chain of fused ones, the last one has the costs of all."""
        self._queues = Queues()
        self._times: list[float] = [0.0]
        """When the device is done with so many operators."""

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
        return [self._times[mark] - self._times[marks[0]] for mark in marks]

    def advance(self) -> None:
        """Time what has been dispatched so far, the ends of whole steps."""
        begin, end = len(self.works), len(self.operators)
        if begin == end:
            return
        for place in range(begin, end):
            last = self.operators[place - 1] if place else None
            previous = last.outputs[0] if last is not None and last.outputs else None
            operator = self.operators[place]
            self.works.append(work_of(operator, self.machine, previous))
        fused: set[int] = set()
        if any(operator.compiled for operator in self.operators[begin:end]):
            fusion = Fusion(self.operators)
            for chain in fusion.chains:
                if chain[0] >= begin:
                    work = fusion.work_of(chain, self.machine)
                    fused.update(chain)
                    for place in chain:
                        self.works[place] = replace(self.works[place], bytes=0, kernels=())
                    self.works[chain[-1]] = work
        for place in range(begin, end):
            operator, work = self.operators[place], self.works[place]
            host = dispatch_s(operator, fused=place in fused) if work.kernels or place not in fused else 0.0
            self._queues.dispatch(work.kernels, host, waits=operator.name == SYNCHRONIZE)
            self._times.append(self._queues.done_s)
