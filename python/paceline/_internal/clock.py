"""Sleeping until a moment, and how late the thread wakes up. Times are nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

_PR_SET_TIMERSLACK = 29
_LEAST_SLACK_NS = 1


@dataclass(frozen=True)
class Lateness:
    """How late a rank was for its deadlines, in seconds."""

    count: int
    median_s: float
    p99_s: float
    worst_s: float

    @classmethod
    def of(cls, late_ns: Sequence[int]) -> Lateness:
        """Return the lateness over all deadlines of an iteration."""
        ordered = sorted(late_ns) or [0]
        at = [ordered[int(share * (len(ordered) - 1))] * 1e-9 for share in (0.5, 0.99, 1)]
        return cls(len(late_ns), *at)


class Clock:
    """This machine's clock, which all its processes share."""

    name: str | None = None
    """For tests: the name of a clock that only some ranks have; None: this machine's clock."""

    def __init__(self) -> None:
        """Ask the kernel to wake this thread without slack (50 us by default)."""
        self._late: list[int] = []
        self.ahead = 0
        """How far the first rank's clock is ahead of this one."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _LEAST_SLACK_NS, 0, 0, 0)

    def now(self) -> int:
        """Return nanoseconds."""
        return time.monotonic_ns()

    def sleep_until(self, moment: int) -> None:
        """Return at `moment` or later, and record by how much later."""
        left = moment - self.now()
        while left > 0:
            time.sleep(left * 1e-9)  # Sleeps until an absolute time: clock_nanosleep with TIMER_ABSTIME.
            left = moment - self.now()
        self._late.append(-left)

    def lateness(self) -> Lateness:
        """Return the lateness since the last call."""
        late, self._late = self._late, []
        return Lateness.of(late)
