"""Operators on a GPU one after the other: what each costs, and when the device is done with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.operators.fused import Fusion
from paceline.operators.kernels import Work, work_of
from paceline.operators.machine import Machine
from paceline.operators.operator import SYNCHRONIZE, Operator
from paceline.operators.queues import OneThread, Queues, dispatch_s


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
        calibration = machine.hardware.calibration
        self._dispatch_s = None if calibration is None else calibration.dispatch_s

    def extend(self, operators: Sequence[Operator]) -> None:
        """Time what has no time yet: the ends of whole steps, because a fused operator's cost depends on its readers.

        Args:
            operators: All, those that have times included.
        """
        begin, end = len(self.works), len(operators)
        if begin == end:
            return
        for place in range(begin, end):
            last = operators[place - 1] if place else None
            previous = last.outputs[0] if last is not None and last.outputs else None
            self.works.append(work_of(operators[place], self.machine, previous))
        fused: set[int] = set()
        if any(operator.compiled for operator in operators[begin:end]):
            fusion = Fusion(operators)
            for chain in fusion.chains:
                if chain[0] >= begin:
                    work = fusion.work_of(chain, self.machine)
                    fused.update(chain)
                    for place in chain:
                        self.works[place] = replace(self.works[place], bytes=0, kernels=())
                    self.works[chain[-1]] = work
        for place in range(begin, end):
            operator, work = operators[place], self.works[place]
            alone = bool(work.kernels) or place not in fused
            host = dispatch_s(operator, fused=place in fused, measured=self._dispatch_s) if alone else 0.0
            self._queues.dispatch(work.kernels, host, waits=operator.name == SYNCHRONIZE)
            self.done_s.append(self._queues.done_s)
