"""Additions to a forecast whose workers do not wait for each other: staleness, and waiting for the bound on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline import _core


@dataclass(frozen=True)
class Asynchronous:
    """The steady state of asynchronous workers. Times are seconds.

    The staleness of a gradient is the number of others' updates of its tensor between its worker's pull and its own
    update (Q. Ho et al., NIPS 2013).
    """

    bound: int | None
    """Iterations that a worker may be ahead of the slowest; None: any number."""
    iterations: int
    """Measured iterations of the worker with the fewest."""
    mean_staleness: float
    median_staleness: int
    p90_staleness: int
    """At most this in 90 % of the gradients."""
    max_staleness: int
    staleness: tuple[tuple[int, int], ...]
    """The histogram: each staleness, and how many gradients had it."""
    blocked_s: float
    """Seconds of an iteration in which the bound holds a worker back: the mean of all workers."""
    fastest_s: float
    """An iteration of the fastest worker."""
    slowest_s: float
    """An iteration of the slowest worker."""

    @classmethod
    def of(cls, own: _core.Asynchronous | None) -> Asynchronous | None:
        """Return what the native module says; None if workers wait for each other."""
        if own is None:
            return None
        counts = tuple(own.staleness)
        return cls(
            bound=own.bound,
            iterations=own.iterations,
            mean_staleness=own.mean,
            median_staleness=own.median,
            p90_staleness=own.p90,
            max_staleness=max((staleness for staleness, _ in counts), default=0),
            staleness=counts,
            blocked_s=own.blocked_s,
            fastest_s=own.fastest_s,
            slowest_s=own.slowest_s,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it: the histogram as pairs of a staleness and how many gradients had it."""
        return vars(self) | {"staleness": [list(pair) for pair in self.staleness]}
