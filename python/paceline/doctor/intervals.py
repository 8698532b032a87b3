"""Sets of moments: sorted, disjoint lists of intervals (begin, end) in nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]
Intervals = list[Interval]


def union(intervals: Iterable[Interval]) -> Intervals:
    """Return all moments in any of them; adjacent intervals are merged."""
    merged: Intervals = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def overlap(left: Sequence[Interval], right: Sequence[Interval]) -> Intervals:
    """Return the moments in both."""
    both: Intervals = []
    i = j = 0
    while i < len(left) and j < len(right):
        begin, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if begin < end:
            both.append((begin, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return both


def without(left: Sequence[Interval], right: Sequence[Interval]) -> Intervals:
    """Return the moments of `left` that are not in `right`."""
    rest: Intervals = []
    j = 0
    for begin, end in left:
        while j < len(right) and right[j][1] <= begin:
            j += 1
        at, k = begin, j
        while k < len(right) and right[k][0] < end:
            if at < right[k][0]:
                rest.append((at, right[k][0]))
            at = max(at, right[k][1])
            k += 1
        if at < end:
            rest.append((at, end))
    return rest


def clip(intervals: Iterable[Interval], begin: int, end: int) -> Intervals:
    """Return the moments between `begin` and `end`."""
    return [(max(a, begin), min(b, end)) for a, b in intervals if max(a, begin) < min(b, end)]


def length(intervals: Iterable[Interval]) -> int:
    """Return the total length in nanoseconds."""
    return sum(end - begin for begin, end in intervals)
