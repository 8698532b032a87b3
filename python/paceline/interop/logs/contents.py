"""The contents of a log."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError


class ReadError(PacelineError):
    """A line is invalid; `line` counts from 1."""

    def __init__(self, line: int, message: str, *, remedy: str) -> None:
        """Take the number of the line, what is wrong with it, and what to give instead."""
        super().__init__(message, remedy=remedy)
        self.line = line


@dataclass(frozen=True)
class Size:
    """Results for one message size of a communication benchmark; None if the log has no such column, or no number."""

    size_bytes: int
    seconds: float | None
    algorithm_bandwidth: float | None
    """Bytes/s."""
    bus_bandwidth: float | None
    """Bytes/s."""


@dataclass
class Read:
    """The results of one benchmark in a log: of training (`total_images_per_s`) or communication (`sizes`)."""

    format: str
    """tf_cnn_benchmarks, nccl-tests or osu."""
    what: str
    """The model, or the operation; "unknown" if neither the log nor its columns tell."""
    line: int = 1
    """Where it begins in the log."""
    devices: int | None = None
    nodes: int | None = None
    """Over which the devices are, if the log names the node of each."""
    batch: int | None = None
    """Batch size per device."""
    way: str | None = None
    """The log's name for the synchronization of variables."""
    total_images_per_s: float | None = None
    totals_images_per_s: list[float] = field(default_factory=list)
    """Of each worker that printed one; each is of all workers."""
    uncertainty: float | None = None
    jitter: float | None = None
    steps: int | None = None
    sizes: list[Size] = field(default_factory=list)
    source: str = ""
    alone: bool = True
    """Whether it is the only benchmark in the log."""
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The log's name, with the line if the log has several benchmarks."""
        return Path(self.source).name if self.alone else f"{Path(self.source).name}:{self.line}"

    def seconds_of(self, size_bytes: float) -> float | None:
        """Return the time of an operation on this many bytes, interpolated log-log between measured sizes."""
        known = [(one.size_bytes, one.seconds) for one in self.sizes if one.size_bytes > 0 and one.seconds]
        if not known or not known[0][0] <= size_bytes <= known[-1][0]:
            return None
        for (low, fast), (high, slow) in pairwise(known):
            if low <= size_bytes <= high:
                share = math.log(size_bytes / low) / math.log(high / low)
                return math.exp(math.log(fast) * (1 - share) + math.log(slow) * share)
        return known[0][1]

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        fields = {name: value for name, value in vars(self).items() if name != "alone"}
        return {**fields, "sizes": [vars(one) for one in self.sizes]}


_LARGEST = 1e15
"""Of microseconds, 30 years; of GB/s, a million times what a machine has. What is larger counts as infinite."""


def number(text: str, line: int, what: str) -> float:
    """Return a finite, non-negative number. Raises ReadError."""
    value = figure(text, line, what)
    if value is None:
        raise ReadError(line, f"{what}: '{text[:40]}' is not a number", remedy="the log as the benchmark wrote it")
    return value


def figure(text: str, line: int, what: str, unit: float = 1.0) -> float | None:
    """Return a non-negative number times a unit, or None for what is no figure: inf and nan. Raises ReadError."""
    try:
        value = float(text) if text.isascii() and "_" not in text else -1.0
    except ValueError:
        value = -1.0
    if value < 0 and not math.isnan(value):
        raise ReadError(line, f"{what}: '{text[:40]}' is not a number", remedy="the log as the benchmark wrote it")
    return finite(value * unit) if value <= _LARGEST else None


def finite(value: float) -> float | None:
    """Return the value, or None for inf and nan, which JSON does not have."""
    return value if math.isfinite(value) else None


def whole(text: str, line: int, what: str) -> int:
    """Return a non-negative whole number. Raises ReadError."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ReadError(
            line, f"{what}: '{text[:40]}' is not a whole number", remedy="the log as the benchmark wrote it"
        )
    return int(text)


def truncated(line: int) -> ReadError:
    """Return the error of a last line that may have lost digits."""
    return ReadError(
        line,
        "has no line end, so the log is truncated",
        remedy="the whole log (or a line end, if it is complete)",
    )
