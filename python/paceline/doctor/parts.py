"""The parts of a step, or of a mean step: they add up to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True, slots=True)
class Parts:
    """Nanoseconds. Computing and the script's own work first, then exposed communication."""

    input: float = 0
    forward: float = 0
    backward: float = 0
    optimizer: float = 0
    other: float = 0
    """In no mark, or after the end of what was waited for."""
    straggler: float = 0
    negotiation: float = 0
    transfer: float = 0

    @property
    def exposed(self) -> float:
        """Waiting for other ranks, agreement and data."""
        return self.straggler + self.negotiation + self.transfer

    @property
    def compute(self) -> float:
        """What a faster processor would shorten."""
        return self.forward + self.backward + self.optimizer

    @property
    def step(self) -> float:
        """All of it."""
        return sum(self.values())

    def values(self) -> tuple[float, ...]:
        """In the order of NAMES."""
        return astuple(self)


NAMES = tuple(field.name for field in fields(Parts))


def mean(several: Sequence[Parts]) -> Parts:
    """Part by part, so that the sum is the mean step."""
    return Parts(*(sum(column) / len(several) for column in zip(*(parts.values() for parts in several), strict=True)))


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which this share lies, between neighbours by interpolation; 0.5: the median."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Iterable[float]) -> float:
    """The middle value."""
    return quantile(values, 0.5)
