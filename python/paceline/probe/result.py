"""The results of a probe."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline._internal import units
from paceline.probe.layout import Layout


@dataclass(frozen=True)
class Sample:
    """Values of one quantity; at least one."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the range, as a share of the median."""
        low, high = min(self.values), max(self.values)
        return (high - low) / 2 / abs(self.median) if self.median else 0.0


@dataclass(frozen=True)
class Rate:
    """Transfers of one pattern: what the busiest link carried, in bit/s, by repeat."""

    pattern: str
    flows: int
    """Flows at the same time."""
    size: int
    """Bytes per flow."""
    sample: Sample

    def to_dict(self) -> dict[str, Any]:
        """Return the rate for JSON."""
        return {
            "pattern": self.pattern,
            "flows": self.flows,
            "bytes_per_flow": self.size,
            "rate_bps": self.sample.median,
            "spread": self.sample.spread,
            "repeats": len(self.sample.values),
        }


@dataclass(frozen=True)
class Cost:
    """A measured time."""

    what: str
    sample: Sample
    """Seconds."""

    def to_dict(self) -> dict[str, Any]:
        """Return the time for JSON."""
        sample = self.sample
        return {"what": self.what, "s": sample.median, "spread": sample.spread, "repeats": len(sample.values)}


Pair = tuple[str, str]


@dataclass
class ProbeResult:
    """All results, at rank 0."""

    layout: Layout
    date: str
    """UTC, ISO 8601."""
    streams: int
    """Connections between two ranks."""
    rates: dict[str, Rate] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    pairs: dict[Pair, float] = field(default_factory=dict)
    """Rates from host to host while all send, in bit/s."""
    machines: list[dict[str, Any]] = field(default_factory=list)
    """Machine measurements by rank."""
    compression: list[dict[str, Any]] = field(default_factory=list)
    """Times of compressing gradients, by method, as in a cluster file, and `threads` of a rank."""
    left_out: list[str] = field(default_factory=list)
    """Measurements left out for lack of time."""
    bytes_sent: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """Return `3 hosts (a, b and c), 2 ranks each; shm and tcp, 1 connection between two ranks`."""
        words = units.listed([*self.layout.transports])
        if "tcp" in self.layout.transports:
            words += f", {units.count(self.streams, 'connection')} between two ranks"
        return f"{self.layout.describe()}; {words}"

    def rate(self, name: str) -> float | None:
        """Return the median of a measured pattern."""
        return self.rates[name].sample.median if name in self.rates else None

    def to_dict(self, cluster: dict[str, Any] | None) -> dict[str, Any]:
        """Return the results as `--json` prints them; rates in bit/s, times in seconds."""
        return {
            "date": self.date,
            "hosts": [{"host": host.name, "ranks": list(host.ranks)} for host in self.layout.hosts],
            "streams": self.streams,
            "rates": [rate.to_dict() for rate in self.rates.values()],
            "costs": [cost.to_dict() for cost in self.costs.values()],
            "pairs": [{"from": a, "to": b, "rate_bps": rate} for (a, b), rate in self.pairs.items()],
            "machines": self.machines,
            **({"compression": self.compression} if self.compression else {}),
            "left_out": self.left_out,
            "notes": self.notes,
            "bytes_sent": self.bytes_sent,
            "seconds": self.seconds,
            "cluster": cluster,
        }


def slope(counts: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the seconds for each additional message, by least squares."""
    return statistics.linear_regression(counts, seconds).slope
