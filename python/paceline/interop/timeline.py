"""Intervals of a recorded timeline, and a clock that stops while a step waits for communication. No I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return disjoint intervals in order that cover the same times."""
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def difference(intervals: Sequence[Interval], without: Sequence[Interval]) -> list[Interval]:
    """Return the parts of `intervals` outside `without`; both are disjoint and in order."""
    ends = [end for _, end in without]
    kept: list[Interval] = []
    for start, end in intervals:
        at = start
        for hole_start, hole_end in without[bisect_right(ends, start) :]:
            if hole_start >= end:
                break
            if hole_start > at:
                kept.append((at, hole_start))
            at = max(at, hole_end)
        if at < end:
            kept.append((at, end))
    return kept


def intersection(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Return the times in both; both are disjoint and in order."""
    return difference(intervals, difference(intervals, others))


def length(intervals: Iterable[Interval]) -> float:
    """Return the total time in disjoint intervals."""
    return sum(end - start for start, end in intervals)


class Clock:
    """The time since an origin that is not within the removed intervals."""

    def __init__(self, removed: Sequence[Interval]) -> None:
        """Take disjoint intervals in order."""
        self._removed = removed
        self._starts = [start for start, _ in removed]
        self._before = [0.0, *accumulate(end - start for start, end in removed)]

    def __call__(self, at: float) -> float:
        """Return the clock's time at `at`."""
        index = bisect_left(self._starts, at)
        if index == 0:
            return at
        start, end = self._removed[index - 1]
        return at - self._before[index - 1] - min(at, end) + start
