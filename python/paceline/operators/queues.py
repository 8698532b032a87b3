"""Host and device as two queues: the host dispatches operators, and the device runs their kernels behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.operators.machine import Machine
from paceline.operators.operator import Operator

_COMPILED, _FUSED = 0.2, 0.15
"""Shares of an operator's host time in what torch.compile has made: operators that it calls, and kernels of its own."""
_TENSOR_S = {"_fused_": 0.5e-6, "multi_tensor_": 0.5e-6, "_foreach_": 1e-6}
"""Host time of each tensor of an optimizer's operator, by the beginning of its name."""
_LAUNCH_DELAY_S = 3e-6
"""From the launch on the host until the kernel begins on an idle device."""
_WAKE_S = 10e-6
"""From the end of the device's work until the host goes on after a wait."""


@dataclass
class Queues:
    """Times of the host and of the device, in seconds since the start."""

    host_s: float = 0.0
    device_s: float = 0.0

    def dispatch(self, kernels: Sequence[float], host_s: float, *, waits: bool = False) -> None:
        """Run an operator.

        Args:
            kernels: Seconds of each kernel on the device.
            host_s: Of the host, before the first one is launched.
            waits: Whether the host waits until they are done.
        """
        self.host_s += host_s
        for seconds in kernels:
            self.device_s = max(self.device_s, self.host_s + _LAUNCH_DELAY_S) + seconds
        if waits:
            self.host_s = max(self.host_s, self.device_s) + _WAKE_S

    @property
    def done_s(self) -> float:
        """When all that was dispatched is done."""
        return max(self.host_s, self.device_s)


class OneThread(Queues):
    """The thread of a CPU, which runs each operator before it dispatches the next."""

    def dispatch(self, kernels: Sequence[float], host_s: float, *, waits: bool = False) -> None:
        """Run an operator; `waits` has no effect."""
        self.host_s += host_s + sum(kernels)


def dispatch_s(operator: Operator, machine: Machine, *, fused: bool = False) -> float:
    """Return the host's time to dispatch an operator.

    Args:
        operator: What is dispatched.
        machine: To where.
        fused: Whether it ends a chain of fused operators, and stands for all of them.
    """
    alone = machine.dispatch_s(operator.phase)
    if fused:
        return alone * _FUSED
    tensors = next((each for name, each in _TENSOR_S.items() if operator.name.startswith(name)), 0.0)
    share = _COMPILED if operator.compiled else operator.host * operator.launches
    return alone * share + tensors * len(operator.inputs)


class Program(NamedTuple):
    """The times that operators, one after the other, add to both queues: later ones wait for the latest of both.

    A time of the host or of the device afterwards is the larger of what it was and of what the other was before, each
    with a time added (max-plus algebra), so that programs in a row are a program.
    """

    host: tuple[float, float] = (0.0, -math.inf)
    """Added to the host's time before, and to the device's, for the host's time afterwards."""
    device: tuple[float, float] = (-math.inf, 0.0)
    """Likewise for the device's time afterwards."""

    @classmethod
    def of(cls, kernels: Sequence[float], host_s: float, *, waits: bool = False) -> Program:
        """Return that of one operator; the arguments are those of `Queues.dispatch`."""
        device = (host_s + _LAUNCH_DELAY_S + sum(kernels), sum(kernels)) if kernels else (-math.inf, 0.0)
        if not waits:
            return cls((host_s, -math.inf), device)
        return cls((max(host_s, device[0]) + _WAKE_S, device[1] + _WAKE_S), device)

    def then(self, later: Program) -> Program:
        """Return this program and another one after it."""
        (host, host_of_device), (device_of_host, device) = self
        (to_host, from_device), (from_host, to_device) = later
        return Program(
            (max(to_host + host, from_device + device_of_host), max(to_host + host_of_device, from_device + device)),
            (max(from_host + host, to_device + device_of_host), max(from_host + host_of_device, to_device + device)),
        )

    @property
    def period_s(self) -> float:
        """Seconds of each of its runs when it runs again and again.

        It is the eigenvalue of the max-plus matrix, which is the largest mean of a cycle: as the queues go, at most
        through the host alone, the device alone, or both. No time of an operator that grows makes it smaller.
        """
        return max(self.host[0], self.device[1], (self.host[1] + self.device[0]) / 2)

    @property
    def steady(self) -> Queues:
        """Both queues at the start of one of these runs, all of which take `period_s`; the later one is at zero."""
        period = self.period_s
        host, device = self.host[1] - period, 0.0
        if self.device[1] < period:
            host, device = 0.0, self.device[0] - period
        later = max(host, device)
        return Queues(host - later, device - later)

    def run(self, queues: Queues) -> None:
        """Advance both queues."""
        host, device = queues.host_s, queues.device_s
        queues.host_s = max(self.host[0] + host, self.host[1] + device)
        queues.device_s = max(self.device[0] + host, self.device[1] + device)
