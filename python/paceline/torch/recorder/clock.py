"""Two clocks behind one interface: the host's for CPU models, the stream's for CUDA models.

A step sets hundreds of marks, so a mark must be cheap and never waits for the device. Conversion to seconds may be
slow, because it happens after the steps.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

Mark = Any
"""The result of a clock's `mark`; opaque to all other code."""


class Clock(ABC):
    """A clock that sets marks during a step, and returns the seconds between them afterwards."""

    @abstractmethod
    def mark(self) -> Mark:
        """Set a mark now, on the host's time line or on the current stream's."""

    @abstractmethod
    def seconds(self, marks: Sequence[Mark]) -> list[float]:
        """Return the time of every mark in seconds since the first one; may wait for the device.

        Args:
            marks: Results of `mark`, at least one.
        """


class CpuClock(Clock):
    """The host's monotonic clock. Correct only for CPU tensors, whose operations are synchronous.

    Example:
        >>> clock = paceline.torch.CpuClock()
        >>> clock.seconds([clock.mark()])
        [0.0]
    """

    def mark(self) -> Mark:
        """Return nanoseconds of `time.perf_counter_ns`."""
        return time.perf_counter_ns()

    def seconds(self, marks: Sequence[Mark]) -> list[float]:
        """Return the time of every mark in seconds since the first one.

        Args:
            marks: Results of `mark`, at least one.
        """
        return [(mark - marks[0]) * 1e-9 for mark in marks]


class CudaClock(Clock):
    """CUDA events on the current stream of one device.

    `cudaEventElapsedTime` returns milliseconds as float32; marks are therefore relative to the first mark of one step,
    not of the whole run, where microseconds would be rounded away.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        new_event: Callable[[], Any] | None = None,
        current_stream: Callable[[], Any] | None = None,
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        """Make a clock for a device.

        Args:
            device: The CUDA device.
            new_event: Makes an event; for tests without a GPU.
            current_stream: Returns the stream; for tests without a GPU.
            synchronize: Waits for the device; for tests without a GPU.
        """
        self._new_event = new_event or _timing_event
        # The device is given, because hooks run in autograd's threads, whose current device may not be the model's.
        self._current_stream = current_stream or (lambda: torch.cuda.current_stream(device))
        self._synchronize = synchronize or (lambda: torch.cuda.synchronize(device))

    def mark(self) -> Mark:
        """Record a new event on the current stream and return it."""
        event = self._new_event()
        event.record(self._current_stream())
        return event

    def seconds(self, marks: Sequence[Mark]) -> list[float]:
        """Return the time of every event in seconds since the first one, after waiting for the device.

        Args:
            marks: Results of `mark`, at least one.
        """
        self._synchronize()
        return [marks[0].elapsed_time(mark) * 1e-3 for mark in marks]


def _timing_event() -> Any:  # noqa: ANN401, torch's events are untyped
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def clock_for(device: torch.device) -> Clock:
    """Return the clock for work on `device`. Raises ValueError for a device that is neither CPU nor CUDA."""
    if device.type == "cpu":
        return CpuClock()
    if device.type == "cuda":
        return CudaClock(device)
    raise ValueError(f"cannot time work on a device of type {device.type!r}: only cpu and cuda are recorded")
