"""Two clocks behind one interface: the host's for CPU models, the stream's for CUDA models.

A mark must be cheap, since hundreds are set in a step; turning marks into seconds may be slow, since it is done once
the steps are over. So no mark waits for the device.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

Mark = Any
"""What a clock's `mark` returns; opaque to everything but that clock."""


class Clock(ABC):
    """Sets marks while the step runs; tells the seconds between them afterwards."""

    @abstractmethod
    def mark(self) -> Mark:
        """Set a mark now: on the host's time line or on the current stream's."""

    @abstractmethod
    def seconds(self, marks: Sequence[Mark]) -> list[float]:
        """Give the seconds of every mark since the first one; may wait for the device."""


class CpuClock(Clock):
    """The host's monotonic clock. Right for CPU tensors alone, whose operations end before they return."""

    def mark(self) -> Mark:
        """Return nanoseconds of `time.perf_counter_ns`."""
        return time.perf_counter_ns()

    def seconds(self, marks: Sequence[Mark]) -> list[float]:
        """Give the seconds of every mark since the first one."""
        return [(mark - marks[0]) * 1e-9 for mark in marks]


class CudaClock(Clock):
    """CUDA events on the current stream of one device.

    `cudaEventElapsedTime` gives milliseconds as float32; marks are therefore taken relative to the first mark of *one*
    step, never of the whole run, where a microsecond would be rounded away.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        new_event: Callable[[], Any] | None = None,
        current_stream: Callable[[], Any] | None = None,
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        """Make a clock for `device`; the three functions are there for tests without a GPU."""
        self._new_event = new_event or _timing_event
        # The stream is named: hooks run in autograd's threads, and the current device need not be the model's.
        self._current_stream = current_stream or (lambda: torch.cuda.current_stream(device))
        self._synchronize = synchronize or (lambda: torch.cuda.synchronize(device))

    def mark(self) -> Mark:
        """Record a new event on the current stream and return it."""
        event = self._new_event()
        event.record(self._current_stream())
        return event

    def seconds(self, marks: Sequence[Mark]) -> list[float]:
        """Wait for the device, then give the seconds of every event since the first one."""
        self._synchronize()
        return [marks[0].elapsed_time(mark) * 1e-3 for mark in marks]


def _timing_event() -> Any:  # noqa: ANN401, torch's events are untyped
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def clock_for(device: torch.device) -> Clock:
    """Return the clock that tells the truth about work on `device`; ValueError for devices that have none here."""
    if device.type == "cpu":
        return CpuClock()
    if device.type == "cuda":
        return CudaClock(device)
    raise ValueError(f"cannot time work on a device of type {device.type!r}: only cpu and cuda are recorded")
