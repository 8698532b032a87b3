"""The ranks' reports of a replay, and the iteration times over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from paceline._internal.clock import Lateness
from paceline._internal.load import Load
from paceline.errors import InvalidArgumentError

from paceline_lab.replay.player import Iteration

Boundary = Literal["start", "end", "handed", "own"]
"""The span that counts as an iteration; see docs/how-to/replay.md.

start: from the moment at which all ranks begin to the last rank's end. end: from the last rank's end to the next such
end. handed: from the moment at which the last rank hands over its last gradient to the next such moment. own:
workers do not wait for each other, and each has its own iterations.
"""
WINDOW = 10
"""Iterations of a worker in a window, by which workers that do not wait for each other are measured."""


@dataclass(frozen=True)
class Played:
    """One rank's result."""

    rank: int
    size: int
    host: str
    clock: str
    """The reference clock: that of the first rank."""
    trace: str
    strategy: str | None
    boundary: Boundary
    iterations: tuple[Iteration, ...]
    warmup: int
    sums_checked: int
    notes: tuple[str, ...] = ()
    clock_error_s: float = 0.0
    """The possible error of this rank's moments, if its clock is not the first rank's."""
    staleness: tuple[tuple[int, int], ...] = ()
    """At the first rank, if workers do not wait for each other: gradients of all by staleness, after the warm-up."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Played:
        """Return a result from JSON."""
        iterations = tuple(
            Iteration(**{**one, "late": Lateness(**one["late"]), "load": Load(**one["load"])})
            for one in values["iterations"]
        )
        stale = tuple((each, count) for each, count in values["staleness"])
        return cls(**{**values, "iterations": iterations, "notes": tuple(values["notes"]), "staleness": stale})


@dataclass(frozen=True)
class Measured:
    """One measured iteration of all ranks; or the mean of a window, if they do not wait for each other."""

    seconds: float
    late_s: float
    """The largest 99th percentile of a rank."""
    involuntary_switches: int
    """Of all ranks."""
    cpu_s: float
    """Of all ranks, without servers."""
    steal_s: float
    """Of the machine: the largest value that a rank saw."""


def boundary(*, servers: bool, exchange_only: bool, barrier: bool) -> Boundary:
    """Return how iterations are measured, as in the simulator."""
    if servers and not exchange_only:
        return "handed"
    return "start" if barrier else "end"


def measured(ranks: Sequence[Played]) -> list[Measured]:
    """Return the iterations after the warm-up. Raises InvalidArgumentError for ranks with different clocks."""
    if len({one.clock for one in ranks}) > 1:
        raise InvalidArgumentError("replay: these ranks have no common clock", remedy="ranks of one run")
    first = ranks[0]
    if first.boundary == "own":
        return _windows(ranks)
    begin = max(first.warmup, 0 if first.boundary == "start" else 1)
    return [_measured(ranks, number) for number in range(begin, len(first.iterations))]


def _measured(ranks: Sequence[Played], number: int) -> Measured:
    now = [rank.iterations[number] for rank in ranks]
    return Measured(
        seconds=_duration(ranks, number) * 1e-9,
        late_s=max(one.late.p99_s for one in now),
        involuntary_switches=sum(one.load.involuntary_switches for one in now),
        cpu_s=sum(one.load.cpu_s for one in now),
        steal_s=max(one.load.steal_s for one in now),
    )


def _windows(ranks: Sequence[Played]) -> list[Measured]:
    """Return windows of equal length, from when all ranks are warm until the first has ended."""
    warm = ranks[0].warmup
    begin = max(rank.iterations[warm].begin for rank in ranks)
    span = min(rank.iterations[-1].end for rank in ranks) - begin
    count = max(1, (len(ranks[0].iterations) - warm) // WINDOW)
    edges = [begin + span * number // count for number in range(count + 1)]
    return [_window(ranks, *edge) for edge in pairwise(edges)]


def _window(ranks: Sequence[Played], begin: int, end: int) -> Measured:
    """Return the mean iteration: the time in which so many workers would need to be as fast together as these."""
    shares = [[_share(one, begin, end) for one in rank.iterations] for rank in ranks]
    done = [sum(own) for own in shares]
    if end <= begin or not all(done):
        raise InvalidArgumentError("replay: ranks have no time in common", remedy="more --iterations")

    def mean(value: Callable[[Iteration], float]) -> list[float]:
        """Return the mean of each rank's iterations."""
        return [
            sum(share * value(one) for share, one in zip(own, rank.iterations, strict=True)) / total
            for own, rank, total in zip(shares, ranks, done, strict=True)
        ]

    return Measured(
        seconds=len(ranks) * (end - begin) * 1e-9 / sum(done),
        late_s=max(mean(lambda one: one.late.p99_s)),
        involuntary_switches=round(sum(mean(lambda one: one.load.involuntary_switches))),
        cpu_s=sum(mean(lambda one: one.load.cpu_s)),
        steal_s=max(mean(lambda one: one.load.steal_s)),
    )


def _share(one: Iteration, begin: int, end: int) -> float:
    """Return how much of an iteration is between two moments."""
    return max(0, min(end, one.end) - max(begin, one.begin)) / max(1, one.end - one.begin)


def _duration(ranks: Sequence[Played], number: int) -> int:
    now = [rank.iterations[number] for rank in ranks]
    before = [rank.iterations[number - 1] for rank in ranks]
    match ranks[0].boundary:
        case "start":
            return max(one.end for one in now) - max(one.begin for one in now)
        case "end":
            return max(one.end for one in now) - max(one.end for one in before)
        case "handed":
            return max(one.handed for one in now) - max(one.handed for one in before)
        case "own":
            raise AssertionError("they have no iterations in common")
