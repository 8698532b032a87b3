"""Statistics of step times: those of tf_cnn_benchmarks, bootstrap intervals, and a regression line.

The first are defined as in its benchmark_cnn.get_perf_timing (https://github.com/tensorflow/benchmarks), so that
numbers can be compared with its logs.
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
"""Standard deviation of a normal distribution divided by its median absolute deviation."""


@dataclass(frozen=True)
class Timing:
    """Rate and spread of some steps."""

    images_per_s: float
    """Images per step divided by the mean step time."""
    uncertainty: float
    """Standard error of the mean: standard deviation divided by the square root of the number of steps."""
    jitter: float
    """Median absolute deviation of the steps' rates, scaled to a standard deviation."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval at CONFIDENCE."""

    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """y = intercept + slope x, by least squares; the intervals by Student's t."""

    slope: float
    intercept: float
    slope_interval: Interval | None
    """None with only two points, through which the line passes."""
    intercept_interval: Interval | None


def timing(images: int, seconds: Sequence[float]) -> Timing:
    """Return the timing of steps of `images` images each, which took `seconds`."""
    rates = [images / each for each in seconds]
    middle = statistics.median(rates)
    return Timing(
        images / statistics.fmean(seconds),
        statistics.pstdev(rates) / math.sqrt(len(rates)),
        _TO_DEVIATION * statistics.median(abs(rate - middle) for rate in rates),
    )


def bootstrap(samples: Sequence[Sequence[float]], of: Callable[[list[list[float]]], float], seed: int = 0) -> Interval:
    """Return percentiles of `of` over resamples with replacement of each sample (Efron 1979)."""
    draw = random.Random(seed)
    resampled = sorted(of([draw.choices(one, k=len(one)) for one in samples]) for _ in range(RESAMPLES))
    outside = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Interval(resampled[outside], resampled[-1 - outside])


def line(points: Sequence[tuple[float, float]]) -> Line | None:
    """Fit a line; None for fewer than two distinct x."""
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
    """Return the two-sided quantile of Student's t at CONFIDENCE, by bisection."""
    low, high = 0.0, 1000.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """Return the probability of |T| < t, by the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
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
