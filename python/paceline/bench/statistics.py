"""Statistics of times of steps: those of tf_cnn_benchmarks, bootstrap intervals, and a regression line.

The first are as its benchmark_cnn.get_perf_timing has them (https://github.com/tensorflow/benchmarks), so that
numbers can be put beside those of its logs.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RESAMPLES = 1000
CONFIDENCE = 0.95
_TO_DEVIATION = 1.4826
"""Median absolute deviations in a standard deviation of a normal distribution."""


@dataclass(frozen=True)
class Timing:
    """Of some steps."""

    images_per_s: float
    """Images of a step over the mean time of a step."""
    uncertainty: float
    """Standard error of the mean: the standard deviation over all steps, over the root of their number."""
    jitter: float
    """The median absolute deviation of steps' rates, scaled to a standard deviation."""


@dataclass(frozen=True)
class Interval:
    """Of confidence, at CONFIDENCE."""

    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """y = intercept + slope x, by least squares; the intervals by Student's t."""

    slope: float
    intercept: float
    slope_interval: Interval | None
    """None from two points, through which the line goes."""
    intercept_interval: Interval | None


def timing(images: int, seconds: Sequence[float]) -> Timing:
    """Of steps of `images` images each, which lasted `seconds`."""
    rates = [images / each for each in seconds]
    middle = statistics.median(rates)
    return Timing(
        images / statistics.fmean(seconds),
        statistics.pstdev(rates) / math.sqrt(len(rates)),
        _TO_DEVIATION * statistics.median(abs(rate - middle) for rate in rates),
    )


def bootstrap(samples: Sequence[Sequence[float]], of: Callable[[list[list[float]]], float], seed: int = 0) -> Interval:
    """Percentiles of `of` over resamples with replacement, each of the samples by itself (Efron 1979)."""
    draw = random.Random(seed)
    found = sorted(of([draw.choices(one, k=len(one)) for one in samples]) for _ in range(RESAMPLES))
    outside = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Interval(found[outside], found[-1 - outside])


def line(points: Sequence[tuple[float, float]]) -> Line | None:
    """None for fewer than two different x."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if len(set(xs)) < 2:
        return None
    slope, intercept = statistics.linear_regression(xs, ys)
    freedom = len(points) - 2
    if freedom < 1:
        return Line(slope, intercept, None, None)
    mean = statistics.fmean(xs)
    spread = sum((x - mean) ** 2 for x in xs)
    variance = sum((y - intercept - slope * x) ** 2 for x, y in points) / freedom
    times = student(freedom)
    of_slope = times * math.sqrt(variance / spread)
    of_intercept = times * math.sqrt(variance * (1 / len(points) + mean**2 / spread))
    return Line(
        slope,
        intercept,
        Interval(slope - of_slope, slope + of_slope),
        Interval(intercept - of_intercept, intercept + of_intercept),
    )


def student(freedom: int) -> float:
    """The two-sided quantile of Student's t at CONFIDENCE, by bisection of its distribution."""
    low, high = 0.0, 1000.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """The probability of |T| < t: the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, term, total = math.cos(angle), 1.0, 1.0
    if freedom % 2:
        if freedom == 1:
            return 2 * angle / math.pi
        for k in range(3, freedom, 2):
            term *= cosine**2 * (k - 1) / k
            total += term
        return 2 / math.pi * (angle + math.sin(angle) * cosine * total)
    for k in range(2, freedom, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    return math.sin(angle) * total
