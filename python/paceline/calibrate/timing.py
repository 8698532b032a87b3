"""The times of the operators of a training step: on a CPU by a clock of the thread, on a GPU by CUDA's events."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.calibrate.programs import Program
from paceline.operators.operator import Operator
from paceline.torch.recorder.backward import inside_backward
from paceline.torch.simulated.calls import operator_of

PHASES = ("forward", "backward", "update")
_AHEAD_CYCLES = 200_000_000
"""Of a GPU's clock, some 0.1 s: for so long the device waits while the host dispatches a step, so that its kernels run
without gaps."""


class Clock(ABC):
    """Reads the time of a device between two operators."""

    is_host: bool
    """Whether the thread that dispatches operators runs them as well."""

    @abstractmethod
    def mark(self) -> Any:  # noqa: ANN401
        """Return a mark at this place of the stream of operators."""

    @abstractmethod
    def seconds(self, begin: Any, end: Any) -> float:  # noqa: ANN401
        """Return the time between two marks, after `wait`."""

    @abstractmethod
    def host(self) -> float:
        """Return the time of the thread that dispatches, in seconds."""

    @abstractmethod
    def begin(self) -> None:
        """Prepare for a step whose operators are timed."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until the device has passed all marks."""


class CpuClock(Clock):
    """The wall clock; or, for a single thread, the time for which it ran: what other processes take does not count."""

    is_host = True

    def __init__(self, threads: int) -> None:
        """Take the number of threads that operators use."""
        self._now = time.thread_time if threads == 1 else time.perf_counter

    def mark(self) -> float:
        """Return the time in seconds."""
        return self._now()

    def seconds(self, begin: float, end: float) -> float:
        """Return the difference."""
        return end - begin

    def host(self) -> float:
        """Return the time in seconds: the thread that dispatches runs the operators."""
        return self._now()

    def begin(self) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Do nothing."""


class CudaClock(Clock):
    """CUDA's events on the current stream; ROCm has them under the same names."""

    is_host = False

    def mark(self) -> torch.cuda.Event:
        """Return an event that was recorded here."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the time between two events."""
        return float(begin.elapsed_time(end)) / 1e3

    def host(self) -> float:
        """Return the wall clock in seconds."""
        return time.perf_counter()

    def begin(self) -> None:
        """Keep the device waiting while the host dispatches."""
        torch.cuda.synchronize()
        torch.cuda._sleep(_AHEAD_CYCLES)  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait for all work."""
        torch.cuda.synchronize()


class _Timed(TorchDispatchMode):
    """Marks the beginning and the end of every operator below autograd."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.clock = clock
        self.updating = False
        self.calls: list[tuple[Operator, Any, Any]] = []

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        given = dict(kwargs or {})
        mark = self.clock.mark
        begin = mark()
        out = func(*args, **given)
        end = mark()
        phase = PHASES[2] if self.updating else PHASES[1] if inside_backward() else PHASES[0]
        tf32 = torch.backends.cuda.matmul.allow_tf32
        operator = operator_of(func, args, given, out, phase=phase, tf32=tf32, writers={})
        if operator is not None:
            self.calls.append((operator, begin, end))
        return out


def timed_step(program: Program, clock: Clock) -> list[tuple[Operator, float]]:
    """Run a step, and return its operators with their seconds."""
    clock.begin()
    with _Timed(clock) as timed:
        torch.autograd.backward(program.loss())
        timed.updating = True
        program.optimizer.step()
        program.optimizer.zero_grad()
    clock.wait()
    return [(operator, clock.seconds(begin, end)) for operator, begin, end in timed.calls]


def bare_step(program: Program, clock: Clock) -> dict[str, float]:
    """Run a step without timing its operators, and return the seconds of each phase, on a GPU those of the host."""
    clock.wait()
    marks = [clock.host()]
    loss = program.loss()
    marks.append(clock.host())
    torch.autograd.backward(loss)
    marks.append(clock.host())
    program.optimizer.step()
    program.optimizer.zero_grad()
    marks.append(clock.host())
    clock.wait()
    return {phase: end - begin for phase, (begin, end) in zip(PHASES, pairwise(marks), strict=True)}
