"""When a wait for other ranks is reported on standard error, where it is not the native module that waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_FIRST_S = 10.0
"""A wait is first reported after this time, or a third of its limit."""


class WaitReports:
    """The reports of one wait: each comes when the wait has lasted twice as long as at the last one."""

    def __init__(self, limit_s: float, knob: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Of a wait that begins now and has this limit in seconds, which `knob` changes."""
        self._limit_s, self._knob, self._clock, self._began = limit_s, knob, clock, clock()
        self._next_s = min(_FIRST_S, limit_s / 3)

    def due(self) -> bool:
        """Return whether it is time for a report."""
        return self._clock() - self._began >= self._next_s

    def report(self, what: Callable[[str], str]) -> None:
        """Report the wait, if it is time; `what` is given how long it has lasted, and says who is missing, for what."""
        if self.due():
            waited_s = self._clock() - self._began
            self._next_s = 2 * waited_s
            # One write: print() writes the line's end by itself, after what another thread may have written.
            limit = f"the limit is {self._limit_s:.0f} s ({self._knob})"
            sys.stderr.write(f"paceline: {what(f'{waited_s:.0f} s')}; {limit}\n")
