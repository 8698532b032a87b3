"""What an operation takes whatever its size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from paceline.doctor.account import Sent
from paceline.doctor.parts import median

_TINY = 16 << 10
"""Bytes: 0.13 ms at 1 Gbit/s. What is smaller costs its latency."""
_LARGE = 256 << 10
"""Bytes: operations of this size are no small ones, whatever a straight line through their times says."""


def fixed_part(steps: Sequence[Sequence[Sent]]) -> float:
    """The a in time = a + b x bytes, in nanoseconds, where it is most of what operations take; otherwise 0.

    If all are tiny, it is what one takes on average in the median step. Otherwise by least squares over the median time
    of each size, weighted by how many there are; of one size alone it cannot be told.
    """
    sent = [it for step in steps for it in step]
    if not sent or median(it.size for it in sent) >= _LARGE:
        return 0.0
    if max(it.size for it in sent) <= _TINY:
        return median(sum(it.took for it in step) / len(step) for step in steps if step)
    fixed = _intercept(sent)
    return fixed if fixed > median(it.took for it in sent) / 2 else 0.0


def _intercept(sent: Sequence[Sent]) -> float:
    by_size: dict[int, list[int]] = defaultdict(list)
    for it in sent:
        by_size[it.size].append(it.took)
    points = [(float(size), median(took), len(took)) for size, took in by_size.items()]
    if len(points) < 2:
        return 0.0
    total = sum(weight for _, _, weight in points)
    mean_size = sum(size * weight for size, _, weight in points) / total
    mean_took = sum(took * weight for _, took, weight in points) / total
    spread = sum(weight * (size - mean_size) ** 2 for size, _, weight in points)
    slope = sum(weight * (size - mean_size) * (took - mean_took) for size, took, weight in points) / spread
    return min(max(0.0, mean_took - max(0.0, slope) * mean_size), *(took for _, took, _ in points))
