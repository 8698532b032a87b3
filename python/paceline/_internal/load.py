"""How the machine disturbed this process: preemptions, stolen time, CPU time."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STEAL = 8  # field of the line "cpu" in /proc/stat (proc(5))


@dataclass(frozen=True)
class Load:
    """Counts since the start, or a difference."""

    involuntary_switches: int
    cpu_s: float
    steal_s: float
    """Of the whole machine: time that its host gave to others."""

    def since(self, before: Load) -> Load:
        """Return the difference."""
        return Load(
            self.involuntary_switches - before.involuntary_switches,
            self.cpu_s - before.cpu_s,
            self.steal_s - before.steal_s,
        )


def load() -> Load:
    """Return the counts of this process and this machine so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Load(usage.ru_nivcsw, usage.ru_utime + usage.ru_stime, _steal_s())


def _steal_s() -> float:
    with suppress(OSError, ValueError, IndexError):
        with Path("/proc/stat").open() as stat:
            ticks = int(stat.readline().split()[_STEAL])
        return ticks / os.sysconf("SC_CLK_TCK")
    return 0.0
